// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! When a transport tries to connect again. Pure.
//!
//! ```text
//!   last attempt                                   start of the next attempt
//!   carried a good Reply or Call                   at once, at least 50 ms after its own start
//!   did so, but lost the same Call again           500 ms after its own start, doubled up to 2 s
//!   carried neither, or there was no connection    500 ms after its own start, doubled
//! ```
//!
//! A client must not wait longer than needed for a server that restarts. A server that accepts
//! connections and drops them must not keep the client busy. A connection without a good Reply does
//! not prove that a server is useless: a server that drops a Call (RFC 2203, section 5.3.3.1)
//! closes the connection, and may drop the same Call again on the next one.
//!
//! A good Reply does not show that a connection can carry every Call. If the network drops large
//! packets, small Calls get Replies, and each Call with a large Reply ends its connection, forever.
//! So once [`SAME_CALL`] connections in a row have ended before the Reply to the same Call, the
//! client backs off. The pauses stay short, because other Calls get Replies in between. They count
//! from the start of the last attempt, so the client does not pause after a longer connection.
//!
//! All times are in jiffies, which wrap around.

/// The client backs off once this number of connections in a row have ended before the Reply to the
/// same Call. A server that restarts, or a link that fails, ends fewer connections. The C server
/// drops a Call with Kerberos up to ten times in a row while it replies to others. In that case it
/// is best to send the Call again at once.
const SAME_CALL: u32 = 16;

/// The shortest pauses, in jiffies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// The minimum time between the starts of two attempts.
    pub(super) min: usize,
    /// The time between the starts after the first attempt in a row without a good Reply.
    pub(super) first: usize,
    /// The longest time between the starts if there were good Replies, but the same Call was lost
    /// again.
    pub(super) same_call: usize,
}

/// The outcome of the last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastAttempt {
    /// There was no connection, or no good Reply on it.
    NoReply,
    /// There was a good Reply.
    GoodReply,
    /// There was a good Reply, but a Call was lost, as with many connections before.
    SameCall,
}

impl LastAttempt {
    /// Returns the outcome of an attempt. `useful` is whether there was a good Reply, `losses` the
    /// number of connections in a row that were lost before the Reply to the same Call.
    pub(super) fn new(useful: bool, losses: u32) -> Self {
        match (useful, losses) {
            (false, _) => LastAttempt::NoReply,
            (true, SAME_CALL..) => LastAttempt::SameCall,
            (true, _) => LastAttempt::GoodReply,
        }
    }
}

/// How often the Call of a request slot was lost with its connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    xid: u32,
    count: u32,
}

impl Losses {
    /// Records that the connection was lost before the Reply to the Call `xid`. Returns the number
    /// of connections that this Call was lost with. It is sent again under the same XID, which is
    /// not reused for long.
    pub(super) fn add(&mut self, xid: u32) -> u32 {
        let before = if self.xid == xid { self.count } else { 0 };
        *self = Self {
            xid,
            count: before.saturating_add(1),
        };
        self.count
    }
}

/// The start of the last attempt, and the time from it to the start of the next one.
#[derive(Debug)]
pub(super) struct Backoff {
    pauses: Pauses,
    attempted: Option<usize>,
    spacing: usize,
}

impl Backoff {
    /// Creates the state before the first attempt.
    pub(super) const fn new(pauses: Pauses) -> Self {
        Self {
            pauses,
            attempted: None,
            spacing: 0,
        }
    }

    /// Returns the pause before the next attempt, which counts as started when the pause ends.
    /// `last` is the outcome of the attempt before; `max` is the limit of the doubling.
    pub(super) fn pause(&mut self, now: usize, last: LastAttempt, max: usize) -> usize {
        let Some(attempted) = self.attempted else {
            self.attempted = Some(now);
            return 0;
        };
        let doubled = self.spacing.saturating_mul(2);
        self.spacing = match last {
            LastAttempt::GoodReply => 0,
            LastAttempt::NoReply => doubled.max(self.pauses.first).min(max),
            LastAttempt::SameCall => doubled
                .max(self.pauses.first)
                .min(self.pauses.same_call)
                .min(max),
        };
        let due = self.spacing.max(self.pauses.min);
        // An attempt that has not begun yet counts as beginning now.
        let passed = match now.wrapping_sub(attempted) {
            passed if passed > usize::MAX / 2 => 0,
            passed => passed,
        };
        let pause = due.saturating_sub(passed);
        self.attempted = Some(now.wrapping_add(pause));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Pauses = Pauses {
        min: 5,
        first: 50,
        same_call: 200,
    };
    const MAX: usize = 1500;

    /// A backoff whose first attempt was at `start`.
    fn attempted(start: usize) -> Backoff {
        let mut backoff = Backoff::new(PAUSES);
        assert_eq!(backoff.pause(start, LastAttempt::NoReply, MAX), 0);
        backoff
    }

    /// Pauses after attempts that end at once with `last`, until none is longer.
    fn pauses(backoff: &mut Backoff, mut now: usize, last: LastAttempt) -> Vec<usize> {
        let mut all = Vec::new();
        for _ in 0..7 {
            let pause = backoff.pause(now, last, MAX);
            all.push(pause);
            now = now.wrapping_add(pause);
        }
        all
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        for start in [0, 1000, usize::MAX - 100] {
            let failed = pauses(&mut attempted(start), start, LastAttempt::NoReply);
            assert_eq!(failed, [50, 100, 200, 400, 800, 1500, 1500]);
        }
    }

    #[test]
    fn a_good_reply_resets_the_pauses() {
        let mut backoff = attempted(0);
        pauses(&mut backoff, 0, LastAttempt::NoReply);
        let now = 100_000;
        assert_eq!(backoff.pause(now, LastAttempt::GoodReply, MAX), 0);
        assert_eq!(backoff.pause(now + 10, LastAttempt::NoReply, MAX), 40);
        assert_eq!(backoff.pause(now + 60, LastAttempt::GoodReply, MAX), 0);
        assert_eq!(backoff.pause(now + 65, LastAttempt::NoReply, MAX), 45);
    }

    #[test]
    fn pauses_are_short_if_only_the_same_call_is_lost() {
        let failed = pauses(&mut attempted(0), 0, LastAttempt::SameCall);
        assert_eq!(failed, [50, 100, 200, 200, 200, 200, 200]);
        let mut backoff = attempted(0);
        pauses(&mut backoff, 0, LastAttempt::NoReply);
        let now = 100_000;
        assert_eq!(backoff.pause(now, LastAttempt::SameCall, MAX), 0);
        // Unless that connection lasted.
        assert_eq!(backoff.pause(now + 10, LastAttempt::SameCall, MAX), 190);
        assert_eq!(backoff.pause(now + 500, LastAttempt::SameCall, MAX), 0);
        assert_eq!(backoff.pause(now + 510, LastAttempt::GoodReply, MAX), 0);
    }

    #[test]
    fn a_few_losses_of_a_call_are_no_reason_to_wait() {
        let (mut slot, mut other) = (Losses::default(), Losses::default());
        let outcome = |slot: &mut Losses, xid| LastAttempt::new(true, slot.add(xid));
        for xid in [0, 7, 8, 7, u32::MAX] {
            for _ in 1..SAME_CALL {
                assert_eq!(outcome(&mut slot, xid), LastAttempt::GoodReply);
            }
        }
        assert_eq!(outcome(&mut slot, u32::MAX), LastAttempt::SameCall);
        assert_eq!(outcome(&mut slot, u32::MAX), LastAttempt::SameCall);
        assert_eq!(outcome(&mut other, u32::MAX), LastAttempt::GoodReply);
        assert_eq!(LastAttempt::new(false, 9), LastAttempt::NoReply);
    }

    #[test]
    fn attempts_are_apart_even_with_good_replies() {
        let mut backoff = attempted(0);
        for turn in 0..20 {
            assert_eq!(backoff.pause(turn * 5, LastAttempt::GoodReply, MAX), 5);
        }
    }

    #[test]
    fn the_length_of_an_attempt_counts() {
        let mut backoff = attempted(0);
        assert_eq!(backoff.pause(700, LastAttempt::NoReply, MAX), 0);
        assert_eq!(backoff.pause(730, LastAttempt::NoReply, MAX), 70);
        // It was due at 800.
        assert_eq!(backoff.pause(799, LastAttempt::GoodReply, MAX), 5);
    }

    #[test]
    fn a_short_limit_is_kept() {
        let mut backoff = attempted(0);
        for now in 0..5 {
            assert!(backoff.pause(now * 100, LastAttempt::NoReply, 30) <= 30);
        }
    }
}
