// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! When a transport tries to connect again. Pure.
//!
//! ```text
//!   the connection carried a good Reply            at once
//!   there was no connection, or no good Reply      500 ms after its start, then doubled
//! ```
//!
//! A server that restarts must not be waited for longer than needed, and one that accepts
//! connections and drops them must not keep us busy. A connection without a good Reply does not
//! make a server useless: one that drops a Call (RFC 2203, section 5.3.3.1) closes the connection,
//! and may drop the same Call again on the next. All times are in jiffies, which wrap around.

/// The shortest pauses, in jiffies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// The least time between the starts of two attempts.
    pub(super) least: usize,
    /// The time between the starts after the first attempt in a row without a good Reply.
    pub(super) first: usize,
}

/// The outcome of the last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastAttempt {
    /// There was no connection, or no good Reply on it.
    NoReply,
    /// There was a good Reply.
    GoodReply,
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
    /// `last` is the outcome of the attempt before; `longest` is the limit of the doubling.
    pub(super) fn pause(&mut self, now: usize, last: LastAttempt, longest: usize) -> usize {
        let Some(attempted) = self.attempted else {
            self.attempted = Some(now);
            return 0;
        };
        let doubled = self.spacing.saturating_mul(2);
        self.spacing = match last {
            LastAttempt::GoodReply => 0,
            LastAttempt::NoReply => doubled.max(self.pauses.first).min(longest),
        };
        let due = self.spacing.max(self.pauses.least);
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
        least: 5,
        first: 50,
    };
    const LONGEST: usize = 1500;

    /// A backoff whose first attempt was at `start`.
    fn attempted(start: usize) -> Backoff {
        let mut backoff = Backoff::new(PAUSES);
        assert_eq!(backoff.pause(start, LastAttempt::NoReply, LONGEST), 0);
        backoff
    }

    /// Pauses after attempts that end at once with `last`, until none is longer.
    fn pauses(backoff: &mut Backoff, mut now: usize, last: LastAttempt) -> Vec<usize> {
        let mut all = Vec::new();
        for _ in 0..7 {
            let pause = backoff.pause(now, last, LONGEST);
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
        assert_eq!(backoff.pause(now, LastAttempt::GoodReply, LONGEST), 0);
        assert_eq!(backoff.pause(now + 10, LastAttempt::NoReply, LONGEST), 40);
        assert_eq!(backoff.pause(now + 60, LastAttempt::GoodReply, LONGEST), 0);
        assert_eq!(backoff.pause(now + 65, LastAttempt::NoReply, LONGEST), 45);
    }

    #[test]
    fn attempts_are_apart_even_with_good_replies() {
        let mut backoff = attempted(0);
        for turn in 0..20 {
            assert_eq!(backoff.pause(turn * 5, LastAttempt::GoodReply, LONGEST), 5);
        }
    }

    #[test]
    fn the_length_of_an_attempt_counts() {
        let mut backoff = attempted(0);
        assert_eq!(backoff.pause(700, LastAttempt::NoReply, LONGEST), 0);
        assert_eq!(backoff.pause(730, LastAttempt::NoReply, LONGEST), 70);
        // It was due at 800.
        assert_eq!(backoff.pause(799, LastAttempt::GoodReply, LONGEST), 5);
    }

    #[test]
    fn a_short_limit_is_kept() {
        let mut backoff = attempted(0);
        for now in 0..5 {
            assert!(backoff.pause(now * 100, LastAttempt::NoReply, 30) <= 30);
        }
    }
}
