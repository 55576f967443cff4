// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Accounting of the entries of a Send Queue, and detection of stalls. Pure.
//!
//! A chain takes as many entries as it has Work Requests. Chains take entries in the order of their
//! requests: once one has to wait, all later ones wait behind it, so that short chains do not
//! starve a long one.
//!
//! ```text
//!   admit() --- enough are free, and no chain waits ---> granted --give()--> completed
//!     |                                                    ^
//!     +--- too few are free, or others wait ---> queued ---+ advance()
//!     |
//!     +--- closed, or longer than the queue ---> refused
//! ```
//!
//! # Progress
//!
//! A chain counts as admitted when it is granted its entries or queued, and as completed when it
//! returns them. A timer calls [`SqAccounting::check`], which compares the two counts with those at
//! earlier checks. So a chain costs nothing extra, and a peer that completes a chain now and then
//! does not restart the time limit of the others.

/// Checks after which a chain must be complete while its client has not proved that it has access.
const NO_ACCESS_CHECKS: usize = 2;

/// Checks after which any chain must be complete.
const CHECKS: usize = 12;

/// Consecutive checks without a completed chain, although one was admitted, that count as a stall.
const STILL_CHECKS: u32 = 6;

/// The result of a request for entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The caller owns the entries.
    Granted,
    /// The chain has to be queued until [`SqAccounting::advance`] grants its entries.
    Queued,
    /// The queue is closed, or has fewer entries than requested.
    Refused,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// No chain is admitted. The timer may stop until the next one is.
    Idle,
    /// Chains complete in time.
    Active,
    /// Chains do not complete in time.
    Stalled,
}

/// The entries of one Send Queue.
#[derive(Debug)]
pub(super) struct SqAccounting {
    depth: u32,
    free: u32,
    /// Chains that are queued.
    waiting: u32,
    /// Chains that were granted entries or queued.
    admitted: u64,
    /// Chains that returned their entries.
    completed: u64,
    /// `completed` at the last check.
    seen: u64,
    /// Consecutive checks between which no chain completed.
    still: u32,
    /// `admitted` at earlier checks, the latest first.
    marks: [u64; CHECKS],
    /// Whether the timer is on.
    watched: bool,
    closed: bool,
}

impl SqAccounting {
    /// Creates the accounting of a queue of `depth` free entries.
    pub(super) const fn new(depth: u32) -> Self {
        SqAccounting {
            depth,
            free: depth,
            waiting: 0,
            admitted: 0,
            completed: 0,
            seen: 0,
            still: 0,
            marks: [0; CHECKS],
            watched: false,
            closed: false,
        }
    }

    /// Takes `count` entries if they are free and no chain waits. Returns whether it did.
    #[inline]
    pub(super) fn take(&mut self, count: u32) -> bool {
        if self.closed || !self.has_room(count) {
            return false;
        }
        self.admitted = self.admitted.wrapping_add(1);
        self.free = self.free.saturating_sub(count);
        true
    }

    /// Requests `count` entries. The caller must queue the chain if the result is
    /// [`Admission::Queued`].
    pub(super) fn admit(&mut self, count: u32) -> Admission {
        if self.take(count) {
            return Admission::Granted;
        }
        if self.closed || count > self.depth {
            return Admission::Refused;
        }
        self.admitted = self.admitted.wrapping_add(1);
        self.waiting = self.waiting.saturating_add(1);
        Admission::Queued
    }

    /// Returns whether a chain of `count` entries has to wait: the queue is open and long enough,
    /// but too few entries are free, or others wait.
    pub(super) const fn has_to_wait(&self, count: u32) -> bool {
        !self.closed && count <= self.depth && !self.has_room(count)
    }

    /// Returns whether `count` entries are free and no chain waits.
    pub(super) const fn has_room(&self, count: u32) -> bool {
        self.waiting == 0 && count <= self.free
    }

    /// Grants the first queued chain its `count` entries. Returns `false` if they are not free.
    pub(super) fn advance(&mut self, count: u32) -> bool {
        if self.closed || count > self.free {
            return false;
        }
        self.free = self.free.saturating_sub(count);
        self.waiting = self.waiting.saturating_sub(1);
        true
    }

    /// Returns `count` entries to the queue.
    pub(super) fn give(&mut self, count: u32) {
        self.free = self.free.saturating_add(count).min(self.depth);
        self.completed = self.completed.wrapping_add(1);
    }

    /// Returns whether the caller must start the timer, because a chain was admitted while it was
    /// off.
    pub(super) fn start_watch(&mut self) -> bool {
        !core::mem::replace(&mut self.watched, true)
    }

    /// Returns whether all chains that were admitted have completed.
    pub(super) fn is_idle(&self) -> bool {
        self.completed == self.admitted
    }

    /// Checks the progress since earlier checks. `has_access` is whether the client has proved that
    /// it has access.
    pub(super) fn check(&mut self, has_access: bool) -> Progress {
        if self.is_idle() {
            self.watched = false;
            self.still = 0;
            return Progress::Idle;
        }
        let was_waited_for = self.marks[0] > self.completed;
        self.still = if was_waited_for && self.seen == self.completed {
            self.still.saturating_add(1)
        } else {
            0
        };
        self.seen = self.completed;
        let checks = if has_access { CHECKS } else { NO_ACCESS_CHECKS };
        let late = self.marks[checks - 1] > self.completed;
        self.marks.copy_within(..CHECKS - 1, 1);
        self.marks[0] = self.admitted;
        if late || self.still >= STILL_CHECKS {
            Progress::Stalled
        } else {
            Progress::Active
        }
    }

    /// Refuses all further chains.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Returns the number of free entries.
    pub(super) const fn free(&self) -> u32 {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_in_order() {
        let mut accounting = SqAccounting::new(4);
        assert_eq!(accounting.admit(3), Admission::Granted);
        assert_eq!(accounting.admit(4), Admission::Queued);
        // There is room for this one, but it has to wait behind the other.
        assert!(!accounting.has_room(1));
        assert_eq!(accounting.admit(1), Admission::Queued);
        assert!(!accounting.advance(4));
        accounting.give(3);
        assert!(accounting.advance(4));
        assert!(!accounting.advance(1));
        accounting.give(4);
        assert!(accounting.advance(1));
        accounting.give(1);
        assert_eq!(accounting.free(), 4);
        assert_eq!(accounting.admit(4), Admission::Granted);
    }

    #[test]
    fn refuses_what_can_never_be() {
        let mut accounting = SqAccounting::new(4);
        assert_eq!(accounting.admit(5), Admission::Refused);
        assert_eq!(accounting.admit(4), Admission::Granted);
        assert_eq!(accounting.admit(1), Admission::Queued);
        assert!(accounting.has_to_wait(1) && !accounting.has_to_wait(5));
        accounting.close();
        assert!(!accounting.has_to_wait(1));
        accounting.give(4);
        assert!(!accounting.advance(1));
        assert_eq!(accounting.admit(1), Admission::Refused);
    }

    /// Returns the number of the first check, from 1, whose result is `Stalled`; 0 if there is
    /// none.
    fn until_stalled(
        accounting: &mut SqAccounting,
        has_access: bool,
        mut each: impl FnMut(&mut SqAccounting),
    ) -> usize {
        for check in 1..1000 {
            match accounting.check(has_access) {
                Progress::Stalled => return check,
                Progress::Idle => panic!("idle at check {check}"),
                Progress::Active => each(accounting),
            }
        }
        0
    }

    #[test]
    fn without_a_completion_the_connection_stalls() {
        let mut accounting = SqAccounting::new(4);
        assert_eq!(accounting.admit(1), Admission::Granted);
        assert!(accounting.start_watch() && !accounting.start_watch());
        assert_eq!(until_stalled(&mut accounting, true, |_| ()), 7);
        let mut accounting = SqAccounting::new(4);
        assert_eq!(accounting.admit(1), Admission::Granted);
        assert_eq!(until_stalled(&mut accounting, false, |_| ()), 3);
    }

    #[test]
    fn a_completion_now_and_then_is_not_enough() {
        // One of 100 chains completes between two checks, so some of them take too long in the end.
        for (has_access, expected) in [(true, 13), (false, 3)] {
            let mut accounting = SqAccounting::new(1);
            for _ in 0..100 {
                accounting.admit(1);
            }
            let checks = until_stalled(&mut accounting, has_access, |accounting| {
                accounting.give(1);
                assert!(accounting.advance(1));
            });
            assert_eq!(checks, expected);
        }
    }

    #[test]
    fn a_slow_client_that_takes_all_in_time_stays() {
        let mut accounting = SqAccounting::new(64);
        for _ in 0..10 {
            accounting.admit(1);
        }
        // As many chains are admitted as complete, so there are always ten, the oldest of five
        // checks.
        let checks = until_stalled(&mut accounting, true, |accounting| {
            for _ in 0..2 {
                accounting.give(1);
                accounting.admit(1);
            }
        });
        assert_eq!(checks, 0);
    }

    #[test]
    fn the_timer_rests_when_nothing_is_admitted() {
        let mut accounting = SqAccounting::new(4);
        for _ in 0..3 {
            assert_eq!(accounting.admit(2), Admission::Granted);
            assert!(accounting.start_watch());
            for _ in 0..2 {
                assert_eq!(accounting.check(false), Progress::Active);
            }
            accounting.give(2);
            assert_eq!(accounting.check(false), Progress::Idle);
        }
    }
}
