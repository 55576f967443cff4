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

#[cfg(test)]
mod tests {
    use super::*;

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
