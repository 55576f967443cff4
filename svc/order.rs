// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The order of a client's Calls while some of them are pulled. Pure.
//!
//! A service with Kerberos drops a Call whose sequence number is 128 or more behind that of another
//! (RFC 2203, section 5.3.3.1), and the client's connection with it. A Linux client numbers a WRITE,
//! computes the checksum of its payload, and sends it when up to 127 newer Calls have been sent: it
//! uses up the window by itself. So nothing that came after a Call may overtake it, however short the
//! time that it takes to pull it.
//!
//! Pulls are numbered as they begin. A message remembers how many there were when it came, and
//! waits until all of these have ended. Pulls run at the same time; only what comes of them is put in
//! order.

/// Pulls of one client, from the oldest under way on, that are kept in order. Further ones are not.
const SPAN: u32 = 512;

/// Where a message is in the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place(pub(super) u32);

/// The pulls of one client.
#[derive(Default)]
pub(super) struct Order {
    /// The number of the oldest pull under way; `next` if there is none. Both wrap around.
    first: u32,
    next: u32,
    /// Of the pulls from `first` on those that have ended, by number modulo [`SPAN`].
    ended: [u64; SPAN as usize / 64],
}

impl Order {
    /// The place of a message that comes now.
    pub(super) fn place(&self) -> Place {
        Place(self.next)
    }

    /// Whether it is the turn of what is at `place`.
    pub(super) fn allows(&self, Place(place): Place) -> bool {
        let ahead = place.wrapping_sub(self.first);
        ahead == 0 || ahead > self.next.wrapping_sub(self.first)
    }

    /// A pull begins; `None` if there are too many to keep it in order. The caller ends it by
    /// [`Self::end`].
    pub(super) fn begin(&mut self) -> Option<Place> {
        let place = self.place();
        if self.next.wrapping_sub(self.first) == SPAN {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(place)
    }

    /// A pull has ended. Returns whether it is the turn of others now.
    pub(super) fn end(&mut self, Place(place): Place) -> bool {
        self.flip(place);
        let before = self.first;
        while self.first != self.next && self.has_ended(self.first) {
            self.flip(self.first);
            self.first = self.first.wrapping_add(1);
        }
        self.first != before
    }

    fn bit(place: u32) -> (usize, u64) {
        let at = place % SPAN;
        // CAST: Lossless with pointers of 32 and of 64 bits.
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn has_ended(&self, place: u32) -> bool {
        let (word, bit) = Self::bit(place);
        self.ended[word] & bit != 0
    }

    fn flip(&mut self, place: u32) {
        let (word, bit) = Self::bit(place);
        self.ended[word] ^= bit;
    }
}

/// How many ms Calls wait for all the pulls that are under way at a time.
const TRAIN_MS: u64 = 5_000;

/// The pulls that were under way at some time. A Call behind them waits for all of them, and each may
/// end just before it has taken too long by itself.
#[derive(Default)]
pub(super) struct Train {
    /// Behind them.
    end: Place,
    /// How many ms Calls have waited for them, up to when the oldest pull became the oldest.
    waited: u64,
}

impl Train {
    /// Whether Calls have waited too long for them, when they have waited `used` ms for the oldest.
    /// Once they have ended, it is those that are under way now.
    pub(super) fn is_long(&mut self, order: &Order, used: u64) -> bool {
        if order.allows(self.end) {
            *self = Train {
                end: order.place(),
                waited: 0,
            };
        }
        self.waited.saturating_add(used) >= TRAIN_MS
    }

    /// The oldest pull has ended, for which Calls have waited `used` ms.
    pub(super) fn moved(&mut self, used: u64) {
        self.waited = self.waited.saturating_add(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has `count` pulls under way, one of which ends after `each` ms, and another begins if `more`;
    /// returns after how many ms the train is long, if it is within `limit` ms.
    fn train(first: u32, count: u32, each: u64, more: bool, limit: u64) -> Option<u64> {
        let (mut order, mut time) = (starting_at(first), 0);
        let mut train = Train {
            end: order.place(),
            waited: 0,
        };
        let mut pulls = (0..count)
            .map(|_| order.begin().unwrap())
            .collect::<std::collections::VecDeque<_>>();
        while let Some(oldest) = pulls.pop_front() {
            if train.is_long(&order, 0) || train.is_long(&order, each) {
                return Some(time);
            }
            time += each;
            if time > limit {
                return None;
            }
            assert!(order.end(oldest));
            train.moved(each);
            pulls.extend(more.then(|| order.begin().unwrap()));
        }
        None
    }

    #[test]
    fn pulls_that_end_one_by_one_are_a_long_train() {
        for first in [0, 77, u32::MAX - 3] {
            for more in [false, true] {
                let long = train(first, 40, 900, more, 60_000).unwrap();
                assert!(long < TRAIN_MS, "{long}");
            }
        }
    }

    #[test]
    fn many_pulls_that_end_in_time_are_none() {
        // It does not matter how long that lasts: each ends within the time.
        assert_eq!(train(0, 40, 100, true, 600_000), None);
        assert_eq!(train(u32::MAX - 100, 4, 1_000, true, 600_000), None);
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
            assert!(order.allows(order.place()));
            assert!(order.allows(Place(first.wrapping_sub(1))));
        }
    }

    #[test]
    fn what_came_before_a_pull_passes_and_what_came_after_waits() {
        // Also where the numbers wrap around.
        for first in (0..3).chain(u32::MAX - 3..=u32::MAX) {
            let mut order = starting_at(first);
            let before = order.place();
            let pulls = [order.begin().unwrap(), order.begin().unwrap()];
            let after = order.place();
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
        let after = order.place();
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
        assert_eq!(order.begin(), Some(Place(pulls[0].0.wrapping_add(SPAN))));
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
                1 => waiting.push((order.place(), pulls.clone())),
                _ if !pulls.is_empty() => {
                    order.end(pulls.swap_remove(dice / 4 % pulls.len()));
                }
                _ => {}
            }
            waiting.retain(|(place, older)| {
                let turn = !older.iter().any(|pull| pulls.contains(pull));
                assert_eq!(order.allows(*place), turn);
                !turn
            });
        }
        for pull in pulls {
            order.end(pull);
        }
        assert!(order.allows(order.place()));
        assert_eq!(order.ended, [0; SPAN as usize / 64]);
    }
}
