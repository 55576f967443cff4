// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The order of a client's Calls while the server pulls the Read chunks of some of them. Pure.
//!
//! A Kerberos service drops a Call whose GSS sequence number is 128 or more behind that of another
//! Call (RFC 2203, section 5.3.3.1), and closes the connection. A Linux client assigns the number
//! to a WRITE, computes the checksum of its payload, and may then send it up to 127 numbers behind.
//! So the client may use up the window by itself, and no Call may overtake one that arrived before
//! it, however short its pull is.
//!
//! The pulls of a client are numbered, see [`PullSeq`]. A pull gets its number when it begins, or
//! when its Call arrives if a service thread has to begin the pull later. A message records the
//! number of the next pull when it arrives, and waits until all pulls with a lower number have
//! ended. Pulls still run in parallel; only the delivery is ordered.

/// The largest number of pulls of one client that are ordered, counted from the oldest in progress.
/// No message waits for further pulls.
const SPAN: u32 = 512;

/// The pull number of a message: the number of the first pull that it need not wait for. It wraps
/// around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PullSeq(pub(super) u32);

impl PullSeq {
    /// Returns the pull number of a message that arrives right after this pull has begun.
    pub(super) const fn after(self) -> Self {
        PullSeq(self.0.wrapping_add(1))
    }

    /// Returns whether this pull began before the pull `other`. Both are in progress.
    pub(super) fn precedes(self, PullSeq(other): Self) -> bool {
        (1..SPAN).contains(&other.wrapping_sub(self.0))
    }
}

/// The arrival number of a message on its connection. It wraps around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ArrivalSeq(pub(super) u32);

impl ArrivalSeq {
    /// Returns the number of the next message.
    pub(super) const fn next(self) -> Self {
        ArrivalSeq(self.0.wrapping_add(1))
    }

    /// Returns whether this message arrived before `other`. Both wait for a service thread.
    pub(super) fn precedes(self, other: Self) -> bool {
        (1..1 << 31).contains(&other.0.wrapping_sub(self.0))
    }
}

/// The pulls of one client.
#[derive(Default)]
pub(super) struct Order {
    /// The number of the oldest pull in progress; equal to `next` if there is none. Both wrap
    /// around.
    first: u32,
    next: u32,
    /// A bit for each pull since `first` that has ended, at its number modulo [`SPAN`].
    ended: [u64; SPAN as usize / 64],
}

impl Order {
    /// Returns the pull number of a message that arrives now.
    pub(super) fn next_seq(&self) -> PullSeq {
        PullSeq(self.next)
    }

    /// Returns the pull number of a message that waits for no pull.
    pub(super) fn first_seq(&self) -> PullSeq {
        PullSeq(self.first)
    }

    /// Returns whether all pulls that the message with the number `seq` waits for have ended.
    pub(super) fn allows(&self, PullSeq(seq): PullSeq) -> bool {
        let ahead = seq.wrapping_sub(self.first);
        ahead == 0 || ahead > self.next.wrapping_sub(self.first)
    }

    /// Begins a pull. Returns `None` if there are too many pulls to keep it in order. The caller
    /// must end it by [`Self::end`].
    pub(super) fn begin(&mut self) -> Option<PullSeq> {
        let seq = self.next_seq();
        if self.next.wrapping_sub(self.first) == SPAN {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(seq)
    }

    /// Ends a pull. Returns whether messages may have become deliverable.
    pub(super) fn end(&mut self, PullSeq(seq): PullSeq) -> bool {
        self.flip(seq);
        let before = self.first;
        while self.first != self.next && self.has_ended(self.first) {
            self.flip(self.first);
            self.first = self.first.wrapping_add(1);
        }
        self.first != before
    }

    fn bit(seq: u32) -> (usize, u64) {
        let at = seq % SPAN;
        // CAST: Lossless with pointers of 32 and of 64 bits.
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn has_ended(&self, seq: u32) -> bool {
        let (word, bit) = Self::bit(seq);
        self.ended[word] & bit != 0
    }

    fn flip(&mut self, seq: u32) {
        let (word, bit) = Self::bit(seq);
        self.ended[word] ^= bit;
    }
}

/// The longest time in ms that Calls wait for a batch of pulls.
const BATCH_MS: u64 = 5_000;

/// A batch of pulls: those that were in progress at one time. A Call behind a batch waits for all
/// of its pulls. Each of them may end just before it would be too slow by itself.
#[derive(Default)]
pub(super) struct Batch {
    /// The number after the last pull of the batch.
    end: PullSeq,
    /// Time in ms that Calls have waited for the pulls of the batch that have ended.
    waited: u64,
}

impl Batch {
    /// Returns whether Calls have waited too long for the batch, of which `used` ms for the oldest
    /// pull in progress. If all pulls of the batch have ended, a new batch begins with those in
    /// progress.
    pub(super) fn is_overdue(&mut self, order: &Order, used: u64) -> bool {
        if order.allows(self.end) {
            *self = Batch {
                end: order.next_seq(),
                waited: 0,
            };
        }
        self.waited.saturating_add(used) >= BATCH_MS
    }

    /// Records the end of the oldest pull, for which Calls have waited `used` ms.
    pub(super) fn pull_ended(&mut self, used: u64) {
        self.waited = self.waited.saturating_add(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts `count` pulls, the oldest of which ends every `each` ms, when another one begins if
    /// `more`. Returns the time in ms after which the batch is overdue, if it is within `limit` ms.
    fn batch(first: u32, count: u32, each: u64, more: bool, limit: u64) -> Option<u64> {
        let (mut order, mut time) = (starting_at(first), 0);
        let mut batch = Batch {
            end: order.next_seq(),
            waited: 0,
        };
        let mut pulls = (0..count)
            .map(|_| order.begin().unwrap())
            .collect::<std::collections::VecDeque<_>>();
        while let Some(oldest) = pulls.pop_front() {
            if batch.is_overdue(&order, 0) || batch.is_overdue(&order, each) {
                return Some(time);
            }
            time += each;
            if time > limit {
                return None;
            }
            assert!(order.end(oldest));
            batch.pull_ended(each);
            pulls.extend(more.then(|| order.begin().unwrap()));
        }
        None
    }

    #[test]
    fn pulls_that_end_one_by_one_are_a_long_train() {
        for first in [0, 77, u32::MAX - 3] {
            for more in [false, true] {
                let long = batch(first, 40, 900, more, 60_000).unwrap();
                assert!(long < BATCH_MS, "{long}");
            }
        }
    }

    #[test]
    fn many_pulls_that_end_in_time_are_none() {
        // However many pulls follow each other, each ends within its time.
        assert_eq!(batch(0, 40, 100, true, 600_000), None);
        assert_eq!(batch(u32::MAX - 100, 4, 1_000, true, 600_000), None);
    }

    #[test]
    fn pulls_precede_those_that_began_later() {
        for first in [0, 77, u32::MAX - 3, u32::MAX] {
            let mut order = starting_at(first);
            let pulls = (0..SPAN).map(|_| order.begin().unwrap());
            let pulls = pulls.collect::<Vec<_>>();
            for (at, pull) in pulls.iter().enumerate() {
                let precedes = |other: &PullSeq| pull.precedes(*other);
                assert!(!pulls[..=at].iter().any(precedes));
                assert!(pulls[at + 1..].iter().all(precedes));
            }
            assert!(order.allows(order.first_seq()) && !order.allows(order.next_seq()));
        }
    }

    #[test]
    fn a_message_precedes_those_that_arrive_later() {
        for first in [0, 77, u32::MAX - 3, u32::MAX] {
            let first = ArrivalSeq(first);
            let mut later = first;
            assert!(!first.precedes(first));
            for _ in 0..40_000 {
                later = later.next();
                assert!(first.precedes(later) && !later.precedes(first));
            }
        }
    }

    fn starting_at(first: u32) -> Order {
        Order {
            first,
            next: first,
            ..Order::default()
        }
    }

    #[test]
    fn without_a_pull_nothing_waits() {
        for first in [0, 1, SPAN, u32::MAX] {
            let order = starting_at(first);
            assert!(order.allows(order.next_seq()));
            assert!(order.allows(PullSeq(first.wrapping_sub(1))));
        }
    }

    #[test]
    fn what_came_before_a_pull_passes_and_what_came_after_waits() {
        // Also where the numbers wrap around.
        for first in (0..3).chain(u32::MAX - 3..=u32::MAX) {
            let mut order = starting_at(first);
            let before = order.next_seq();
            let pulls = [order.begin().unwrap(), order.begin().unwrap()];
            let after = order.next_seq();
            assert!(order.allows(before) && order.allows(pulls[0]));
            assert!(!order.allows(pulls[1]) && !order.allows(after));
            assert!(order.end(pulls[0]));
            assert!(order.allows(before) && order.allows(pulls[1]) && !order.allows(after));
            assert!(order.end(pulls[1]));
            assert!(order.allows(after));
        }
    }

    #[test]
    fn a_pull_that_ends_early_lets_nobody_pass_an_older_one() {
        let mut order = Order::default();
        let pulls = [order.begin().unwrap(), order.begin().unwrap()];
        let after = order.next_seq();
        assert!(!order.end(pulls[1]));
        assert!(!order.allows(after));
        assert!(order.end(pulls[0]));
        assert!(order.allows(after));
    }

    #[test]
    fn too_many_pulls_are_not_kept_in_order() {
        let mut order = starting_at(u32::MAX - 100);
        let pulls = (0..SPAN)
            .map(|_| order.begin().unwrap())
            .collect::<Vec<_>>();
        assert_eq!(order.begin(), None);
        assert!(order.end(pulls[0]));
        assert_eq!(order.begin(), Some(PullSeq(pulls[0].0.wrapping_add(SPAN))));
    }

    /// Pulls on many connections that end in any order.
    #[test]
    fn nobody_overtakes_a_pull_of_many() {
        let (mut order, mut pulls, mut seed) = (starting_at(u32::MAX - 500), Vec::new(), 1_u32);
        let mut waiting = Vec::new();
        for _ in 0..5_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let dice = (seed >> 16) as usize;
            match dice % 4 {
                0 if pulls.len() < 30 => pulls.extend(order.begin()),
                1 => waiting.push((order.next_seq(), pulls.clone())),
                _ if !pulls.is_empty() => {
                    order.end(pulls.swap_remove(dice / 4 % pulls.len()));
                }
                _ => {}
            }
            waiting.retain(|(seq, older)| {
                let turn = !older.iter().any(|pull| pulls.contains(pull));
                assert_eq!(order.allows(*seq), turn);
                !turn
            });
        }
        for pull in pulls {
            order.end(pull);
        }
        assert!(order.allows(order.next_seq()));
        assert_eq!(order.ended, [0; SPAN as usize / 64]);
    }
}
