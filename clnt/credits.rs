// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The credits that are not available for Calls: those of messages about properties
//! (draft-cel-nfsv4-rpcrdma-version-two-04, sections 5.3.2 and 5.3.4), and those of Calls that were
//! given up. Pure.
//!
//! Each message to the server needs one of its Receives, whether or not it is a Call. RDMA2_REQPROP
//! uses a credit until its response arrives. RDMA2_UPDPROP has no response, but the server handles
//! it before any Call that is sent later. So it uses a credit until more Replies have arrived than
//! were due when it was sent: one of them is the Reply to a later Call.
//!
//! sunrpc counts a Call only until its task ends. If the task gives up the Call, because a process
//! was killed or a timeout has passed, the Call still uses its credit until the server replies (RFC
//! 8166, section 3.3.1). If such Calls hold all credits, no Call can be sent. Then the connection
//! ends, unless the server replies soon.
//!
//! Messages about properties never hold the last credit, because only the Reply to a later Call
//! releases the credit of RDMA2_UPDPROP.

/// The connection ends when it is blocked at this number of checks in a row.
const BLOCKED_CHECKS: u32 = 3;

/// The credits that are not available for Calls.
#[derive(Debug)]
pub(super) struct ReservedCredits {
    /// The number of Replies after which RDMA2_UPDPROP has certainly been handled; zero if none is
    /// in flight.
    update: u32,
    /// Calls whose tasks wait for the Reply. All other Replies due are to Calls that were given up.
    awaited: u32,
    /// Whether a message waits for a credit.
    waits: bool,
    /// The number of credits that Calls may use, as last returned.
    window: u32,
    /// The number of checks since the last Reply at which the connection was blocked.
    blocked: u32,
}

impl ReservedCredits {
    /// Creates the state of a new connection, on which one Call may be sent.
    pub(super) const fn new() -> Self {
        Self {
            update: 0,
            awaited: 0,
            waits: false,
            window: 1,
            blocked: 0,
        }
    }

    /// Returns the number of credits in use, or waited for. `requested` is whether an RDMA2_REQPROP
    /// is outstanding.
    fn held(&self, requested: bool) -> u32 {
        u32::from(requested) + u32::from(self.update != 0) + u32::from(self.waits)
    }

    /// Returns the number of Calls that were given up and have no Reply yet. `due` is the number of
    /// Replies due in all.
    ///
    /// The number is a difference and not a counter, because the Reply to such a Call may arrive
    /// just before the Call is recorded as given up.
    pub(super) fn given_up(&self, due: u32) -> u32 {
        due.saturating_sub(self.awaited)
    }

    /// Returns the number of credits that Calls may use, of `granted`, if it has changed. `due`
    /// Replies are due.
    pub(super) fn window(&mut self, granted: u32, due: u32, requested: bool) -> Option<u32> {
        let usable = granted.saturating_sub(self.held(requested)).max(1);
        let window = usable.saturating_sub(self.given_up(due));
        let before = core::mem::replace(&mut self.window, window);
        (window != before).then_some(window)
    }

    /// Returns whether no Call can be sent, because Calls that were given up hold the credits.
    pub(super) fn is_blocked(&self) -> bool {
        self.window == 0
    }

    /// Checks whether the connection has to end because it is blocked: at this check and those
    /// before it no task has waited for a Reply, and no Reply has arrived since.
    pub(super) fn check_blocked(&mut self) -> bool {
        self.blocked = match self.is_blocked() && self.awaited == 0 {
            true => self.blocked.saturating_add(1),
            false => 0,
        };
        self.blocked >= BLOCKED_CHECKS
    }

    /// Records that no message waits for a credit.
    pub(super) fn end_wait(&mut self) {
        self.waits = false;
    }

    /// Returns whether a message about properties may be sent now in addition to a Call, while
    /// `due` Replies are due. If not, reserves a credit, so that the message can be sent later. One
    /// credit is always left for Calls whose tasks wait.
    pub(super) fn has_credit(&mut self, granted: u32, due: u32, requested: bool) -> bool {
        let held = self.held(requested);
        if granted < held.saturating_add(2) {
            return false;
        }
        let free = due.saturating_add(held).saturating_add(2) <= granted;
        self.waits |= !free;
        free
    }

    /// Returns whether an RDMA2_UPDPROP may still be in flight.
    pub(super) fn has_update(&self) -> bool {
        self.update != 0
    }

    /// Records that RDMA2_UPDPROP was sent while `due` Replies were due.
    pub(super) fn note_update(&mut self, due: u32) {
        self.update = due.saturating_add(1);
    }

    /// Records that a Call is about to be sent.
    pub(super) fn note_call(&mut self) {
        self.awaited = self.awaited.saturating_add(1);
    }

    /// Records that the task of a Call no longer waits: its Reply has arrived, it was given up, or
    /// it could not be sent.
    pub(super) fn end_call(&mut self) {
        self.awaited = self.awaited.saturating_sub(1);
    }

    /// Records that a Reply has arrived, whether or not a task waits for it.
    pub(super) fn note_reply(&mut self) {
        self.update = self.update.saturating_sub(1);
        self.blocked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_waits_until_a_credit_is_free() {
        let mut reserve = ReservedCredits::new();
        assert_eq!(reserve.window(8, 0, false), Some(8));
        // The Call that is being sent needs the last credit.
        assert!(!reserve.has_credit(8, 7, false));
        assert_eq!(reserve.window(8, 0, false), Some(7));
        assert_eq!(reserve.window(8, 0, false), None);
        reserve.end_wait();
        assert!(reserve.has_credit(8, 6, false));
        assert_eq!(reserve.window(8, 0, true), None);
        assert_eq!(reserve.window(8, 0, false), Some(8));
    }

    #[test]
    fn an_update_holds_its_credit_until_a_later_call_is_answered() {
        let mut reserve = ReservedCredits::new();
        assert!(reserve.has_credit(8, 3, false));
        reserve.note_update(3);
        assert!(reserve.has_update());
        assert_eq!(reserve.window(8, 0, false), Some(7));
        // These Replies may all be to earlier Calls.
        (0..3).for_each(|_| reserve.note_reply());
        assert_eq!(reserve.window(8, 0, false), None);
        reserve.note_reply();
        assert!(!reserve.has_update());
        assert_eq!(reserve.window(8, 0, false), Some(8));
        reserve.note_reply();
        assert_eq!(reserve.window(8, 0, false), None);
    }

    #[test]
    fn the_last_credit_is_for_calls() {
        for granted in 0..4 {
            let mut reserve = ReservedCredits::new();
            assert_eq!(reserve.has_credit(granted, 0, false), granted >= 2);
            reserve.note_update(0);
            assert_eq!(reserve.has_credit(granted, 0, false), granted >= 3);
            assert_eq!(reserve.has_credit(granted, 0, true), granted >= 4);
            assert_eq!(
                reserve.window(granted, 0, true).unwrap_or(1),
                granted.saturating_sub(2).max(1)
            );
        }
    }

    /// A connection with calls whose tasks wait, and with the Replies that are due.
    struct Calls {
        reserve: ReservedCredits,
        due: u32,
        window: u32,
    }

    impl Calls {
        /// Sends `count` Calls on a connection with as many credits.
        fn sent(count: u32) -> Self {
            let mut reserve = ReservedCredits::new();
            (0..count).for_each(|_| reserve.note_call());
            Self {
                reserve,
                due: count,
                window: 1,
            }
        }

        fn window(&mut self, granted: u32) -> u32 {
            let window = self.reserve.window(granted, self.due, false);
            self.window = window.unwrap_or(self.window);
            self.window
        }

        fn reply(&mut self) {
            self.due = self.due.saturating_sub(1);
            self.reserve.note_reply();
        }
    }

    #[test]
    fn a_call_that_was_given_up_holds_its_credit_until_it_is_answered() {
        let mut calls = Calls::sent(4);
        assert_eq!(calls.window(4), 4);
        (0..3).for_each(|_| calls.reserve.end_call());
        assert_eq!(calls.window(4), 1);
        assert!(!calls.reserve.is_blocked());
        calls.reserve.end_call();
        assert_eq!(calls.window(4), 0);
        assert!(calls.reserve.is_blocked());
        assert_eq!(calls.reserve.given_up(calls.due), 4);
        // The Replies due include those to Calls that were given up.
        assert!(calls.reserve.has_credit(8, calls.due, false));
        calls.reply();
        calls.reply();
        assert_eq!(calls.window(4), 2);
        (0..9).for_each(|_| calls.reply());
        assert_eq!(calls.window(4), 4);
    }

    #[test]
    fn calls_that_were_given_up_exceed_no_smaller_grant() {
        let mut calls = Calls::sent(8);
        (0..5).for_each(|_| calls.reserve.end_call());
        assert_eq!(calls.window(8), 3);
        assert_eq!(calls.window(5), 0);
        // A message about properties holds none of the credits that are left.
        calls.reserve.note_update(8);
        assert_eq!(calls.window(1), 0);
        (0..5).for_each(|_| calls.reply());
        assert_eq!(calls.window(1), 1);
    }

    #[test]
    fn a_blocked_connection_ends_unless_the_server_answers() {
        let mut calls = Calls::sent(2);
        assert_eq!(calls.window(2), 2);
        // A task waits for one of the Replies, and may time out.
        calls.reserve.end_call();
        assert_eq!(calls.window(1), 0);
        assert!((0..9).all(|_| !calls.reserve.check_blocked()));
        calls.reserve.end_call();
        assert!((1..BLOCKED_CHECKS).all(|_| !calls.reserve.check_blocked()));
        assert_eq!(calls.window(1), 0);
        calls.reply();
        assert_eq!(calls.window(1), 0);
        assert!((1..BLOCKED_CHECKS).all(|_| !calls.reserve.check_blocked()));
        assert!(calls.reserve.check_blocked());
        calls.reply();
        assert_eq!(calls.window(1), 1);
        assert!((0..9).all(|_| !calls.reserve.check_blocked()));
    }

    /// The Reply finds no task that waits, since the task ends. Then the task records that.
    #[test]
    fn a_reply_just_before_its_call_is_given_up_returns_the_credit() {
        let mut calls = Calls::sent(4);
        for _ in 0..2 {
            calls.reply();
            assert_eq!(calls.window(4), 4);
            calls.reserve.end_call();
            assert_eq!(calls.window(4), 4);
        }
        calls.reserve.end_call();
        assert_eq!(calls.window(4), 3);
        calls.reply();
        assert_eq!(calls.window(4), 4);
    }

    #[test]
    fn a_second_reply_has_no_effect_once_all_calls_are_answered() {
        let mut calls = Calls::sent(3);
        calls.reply();
        (0..3).for_each(|_| {
            calls.reply();
            calls.reserve.end_call();
        });
        calls.reserve.note_call();
        calls.due += 1;
        calls.reserve.end_call();
        assert_eq!(calls.window(4), 3);
    }

    /// A server with as many Receives as it has granted credits, which replies in any order.
    #[test]
    fn no_message_lacks_a_receive() {
        let mut random = 8166_u32;
        let mut below = |n: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % n
        };
        let mut updates = 0;
        for granted in 2..20 {
            let mut reserve = ReservedCredits::new();
            let (mut window, mut requested) = (1, false);
            // The messages that the server has not received yet, the Calls that it has, and the
            // Replies due.
            let (mut sent, mut calls, mut due) = (Vec::new(), 0, 0);
            for _ in 0..5000 {
                window = reserve.window(granted, due, requested).unwrap_or(window);
                match below(8) {
                    0..=2 if due < window => {
                        sent.push("call");
                        reserve.note_call();
                        due += 1;
                    }
                    3 if due < window && !reserve.has_update() => {
                        reserve.end_wait();
                        if reserve.has_credit(granted, due, requested) {
                            reserve.note_update(due);
                            sent.push("update");
                            updates += 1;
                        }
                    }
                    4 if due < window && !requested => {
                        requested = reserve.has_credit(granted, due, requested);
                        sent.extend(requested.then_some("request"));
                    }
                    5..=6 if !sent.is_empty() => match sent.remove(0) {
                        "call" => calls += 1,
                        "request" => requested = false,
                        _ => (),
                    },
                    _ if calls != 0 => {
                        (calls, due) = (calls - 1, due - 1);
                        reserve.note_reply();
                        reserve.end_call();
                    }
                    _ => (),
                }
                // A Call occupies its Receive until the Reply is sent.
                assert!(sent.len() as u32 + calls <= granted);
            }
        }
        assert!(updates > 1000);
    }
}
