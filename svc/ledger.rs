// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Who may use the entries of a Send Queue next.
//!
//! Pure code: `core` only. Entries are taken in the order they were asked for: once someone
//! has to wait, everyone who comes later waits behind, so that a chain of many Work Requests
//! is not starved by short ones.
//!
//! ```text
//!   take() ---- enough, nobody waits ----> taken
//!     |
//!     +-- closed, or more than there are --> refused
//!     |
//!     +-- else: ticket --- its turn, and enough ---> taken
//!                     \--- closed ----------------> refused
//! ```

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// What came of asking for entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// They are the caller's now.
    Taken,
    /// Not yet.
    Wait(Ticket),
    /// Never: more than there are, or the queue is closed.
    Refused,
}

/// The entries of one Send Queue.
#[derive(Debug)]
pub(super) struct Ledger {
    depth: u32,
    free: u32,
    /// The ticket given out next.
    next: u64,
    /// The ticket whose turn it is; equal to `next` when nobody waits.
    serving: u64,
    /// How often entries were given back.
    given: u64,
    closed: bool,
}

impl Ledger {
    /// A queue of `depth` entries, all free.
    pub(super) const fn new(depth: u32) -> Self {
        Ledger {
            depth,
            free: depth,
            next: 0,
            serving: 0,
            given: 0,
            closed: false,
        }
    }

    /// Asks for `count` entries, without a place in the line: `None` if one would have to wait.
    pub(super) fn try_take(&mut self, count: u32) -> Option<Answer> {
        if self.closed || count > self.depth {
            return Some(Answer::Refused);
        }
        if self.next != self.serving || count > self.free {
            return None;
        }
        self.free = self.free.saturating_sub(count);
        Some(Answer::Taken)
    }

    /// Asks for `count` entries.
    pub(super) fn take(&mut self, count: u32) -> Answer {
        if let Some(answer) = self.try_take(count) {
            return answer;
        }
        let ticket = Ticket(self.next);
        self.next = self.next.wrapping_add(1);
        Answer::Wait(ticket)
    }

    /// Asks again, with a ticket. Everyone who got [`Answer::Wait`] must ask until the answer
    /// is another one.
    pub(super) fn retry(&mut self, ticket: Ticket, count: u32) -> Answer {
        if self.closed {
            return Answer::Refused;
        }
        if self.serving != ticket.0 || count > self.free {
            return Answer::Wait(ticket);
        }
        self.free = self.free.saturating_sub(count);
        self.serving = self.serving.wrapping_add(1);
        Answer::Taken
    }

    /// Gives `count` entries back. Returns whether someone waits, and is to be woken.
    pub(super) fn give(&mut self, count: u32) -> bool {
        self.free = self.free.saturating_add(count).min(self.depth);
        self.given = self.given.wrapping_add(1);
        self.has_waiters()
    }

    /// A number that changes whenever entries are given back.
    pub(super) const fn given(&self) -> u64 {
        self.given
    }

    /// How many wait.
    #[cfg(rpcrdma_kunit)]
    pub(super) const fn waiting(&self) -> u64 {
        self.next.wrapping_sub(self.serving)
    }

    /// Refuses everyone from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// How many entries are free, and how many there are.
    pub(super) const fn entries(&self) -> (u32, u32) {
        (self.free, self.depth)
    }

    /// Whether someone waits.
    pub(super) const fn has_waiters(&self) -> bool {
        !self.closed && self.next != self.serving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_in_order() {
        let mut ledger = Ledger::new(4);
        assert_eq!(ledger.take(3), Answer::Taken);
        let Answer::Wait(long) = ledger.take(4) else {
            panic!("4 of 1 taken");
        };
        // There would be room for this one, but it has to wait behind.
        let Answer::Wait(short) = ledger.take(1) else {
            panic!("overtaken");
        };
        assert_eq!(ledger.retry(short, 1), Answer::Wait(short));
        assert!(ledger.give(3));
        assert_eq!(ledger.retry(short, 1), Answer::Wait(short));
        assert_eq!(ledger.retry(long, 4), Answer::Taken);
        assert_eq!(ledger.retry(short, 1), Answer::Wait(short));
        assert!(ledger.give(4));
        assert_eq!(ledger.retry(short, 1), Answer::Taken);
        assert!(!ledger.has_waiters());
        assert!(!ledger.give(1));
        assert_eq!(ledger.take(4), Answer::Taken);
    }

    #[test]
    fn refuses_what_can_never_be() {
        let mut ledger = Ledger::new(4);
        assert_eq!(ledger.take(5), Answer::Refused);
        assert_eq!(ledger.take(4), Answer::Taken);
        let Answer::Wait(ticket) = ledger.take(1) else {
            panic!("taken twice");
        };
        ledger.close();
        assert_eq!(ledger.retry(ticket, 1), Answer::Refused);
        assert_eq!(ledger.take(1), Answer::Refused);
        assert!(!ledger.has_waiters());
    }
}
