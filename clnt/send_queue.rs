// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Accounting of a connection's Send Queue, and detection of stalls. Pure.
//!
//! An entry is claimed for each Work Request before it is posted. Each region in use claims another
//! one, for the LOCAL_INV that it may need, so that the regions of a Reply can always be fenced,
//! however many Sends wait. The device completes chains in order, so counting them suffices to
//! detect a stall.

/// The result of a check of the queue. "Recently" means since the check before the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// A chain that was not posted recently has not completed.
    Stalled,
    /// Calls that were given up hold all credits, and the server does not reply to them. The queue
    /// itself never returns this; `Pools::check_progress` does.
    Blocked,
    /// A chain was posted recently.
    Active,
    /// No chain was posted recently, and none is in flight.
    Idle,
}

/// The state of a Send Queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    room: u32,
    posted: u64,
    completed: u64,
    /// `posted` at the last check but one, and at the last check.
    seen: [u64; 2],
}

impl SendQueue {
    /// Creates an empty queue of `entries` entries.
    pub(super) const fn new(entries: u32) -> Self {
        Self {
            room: entries,
            posted: 0,
            completed: 0,
            seen: [0; 2],
        }
    }

    /// Claims entries; returns whether there was room.
    pub(super) fn claim(&mut self, entries: u32) -> bool {
        match self.room.checked_sub(entries) {
            Some(left) => {
                self.room = left;
                true
            }
            None => false,
        }
    }

    /// Returns whether `entries` entries could be claimed.
    pub(super) fn has_room(&self, entries: u32) -> bool {
        self.room >= entries
    }

    /// Returns the number of entries that are not claimed.
    pub(super) fn room(&self) -> u32 {
        self.room
    }

    /// Releases claimed entries.
    pub(super) fn release(&mut self, entries: u32) {
        self.room = self.room.saturating_add(entries);
    }

    /// Records that a chain is about to be posted.
    pub(super) fn post(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// Records that a chain has completed or could not be posted.
    pub(super) fn complete(&mut self) {
        self.completed = self.completed.wrapping_add(1);
    }

    /// Checks for progress. A chain that is in flight at three checks in a row is stalled.
    pub(super) fn check_progress(&mut self) -> Progress {
        let [before, last] = self.seen;
        let (in_flight, fresh) = (
            self.posted.wrapping_sub(self.completed),
            self.posted.wrapping_sub(before),
        );
        self.seen = [last, self.posted];
        // Chains complete in order. If more are in flight than were posted since the check before
        // the last one, an older one is stalled.
        if in_flight > fresh {
            Progress::Stalled
        } else if in_flight == 0 && fresh == 0 {
            Progress::Idle
        } else {
            Progress::Active
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_claimed_once() {
        let mut queue = SendQueue::new(7);
        assert!(queue.claim(3) && queue.claim(4));
        assert!(!queue.claim(1) && !queue.has_room(1));
        queue.release(2);
        assert!(queue.has_room(2) && !queue.has_room(3));
        assert!(!queue.claim(3) && queue.claim(2));
        assert!(queue.claim(0));
    }

    #[test]
    fn what_completes_before_the_third_look_is_no_stall() {
        let mut queue = SendQueue::new(9);
        queue.post();
        assert_eq!(queue.check_progress(), Progress::Active);
        for _ in 0..100 {
            queue.post();
            assert_eq!(queue.check_progress(), Progress::Active);
            queue.complete();
        }
        queue.complete();
        assert_eq!(queue.check_progress(), Progress::Active);
        assert_eq!(queue.check_progress(), Progress::Idle);
        // A chain that is posted and completes between two checks.
        queue.post();
        queue.complete();
        assert_eq!(queue.check_progress(), Progress::Active);
        assert_eq!(queue.check_progress(), Progress::Active);
        assert_eq!(queue.check_progress(), Progress::Idle);
    }

    #[test]
    fn one_that_stays_is_a_stall_whatever_is_posted_behind_it() {
        let mut queue = SendQueue::new(9);
        queue.post();
        queue.post();
        assert_eq!(queue.check_progress(), Progress::Active);
        queue.complete();
        assert_eq!(queue.check_progress(), Progress::Active);
        for _ in 0..5 {
            queue.post();
            assert_eq!(queue.check_progress(), Progress::Stalled);
        }
    }

    #[test]
    fn a_trickle_that_falls_behind_is_a_stall() {
        let mut queue = SendQueue::new(99);
        for _ in 0..8 {
            queue.post();
        }
        assert_eq!(queue.check_progress(), Progress::Active);
        queue.complete();
        assert_eq!(queue.check_progress(), Progress::Active);
        for _ in 0..6 {
            queue.complete();
            assert_eq!(queue.check_progress(), Progress::Stalled);
        }
        queue.complete();
        assert_eq!(queue.check_progress(), Progress::Idle);
    }
}
