// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! When a transport connects again, and for how long its connection has been silent.
//!
//! sunrpc keeps how far attempts to connect are to be apart, but not when the last one was: what
//! it calls `connect_start` is when somebody wanted a connection. All times are in jiffies, which
//! wrap around.

use kernel::{
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Jiffies, //
};

/// Whether the time `a` is earlier than `b`.
pub(super) fn time_before(a: Jiffies, b: Jiffies) -> bool {
    // CAST: The distance has a sign.
    (a.wrapping_sub(b) as isize) < 0
}

/// How long before `now` the time `then` was; nothing if another processor, whose clock is a tick
/// ahead, wrote it after `now` was read.
pub(super) fn since(now: Jiffies, then: Jiffies) -> Jiffies {
    match time_before(now, then) {
        true => 0,
        false => now.wrapping_sub(then),
    }
}

/// The times of a transport. Any context; a lost race is one of a tick.
pub(super) struct Pace {
    /// When the last attempt to connect began, or will begin.
    attempted: Atomic<Jiffies>,
    /// When the connection was made, or the last message came on it.
    heard: Atomic<Jiffies>,
}

impl Pace {
    pub(super) fn new(now: Jiffies) -> Self {
        Self {
            attempted: Atomic::new(now),
            heard: Atomic::new(now),
        }
    }

    /// How long to wait before the next attempt, so that it is `spacing` after the last one. It is
    /// the last one from now on.
    pub(super) fn pause(&self, now: Jiffies, spacing: Jiffies) -> Jiffies {
        let due = self.attempted.load(Relaxed).wrapping_add(spacing);
        let start = if spacing != 0 && time_before(now, due) {
            due
        } else {
            now
        };
        self.attempted.store(start, Relaxed);
        start.wrapping_sub(now)
    }

    /// The connection is new, or a message came on it.
    pub(super) fn heard(&self, now: Jiffies) {
        if self.heard.load(Relaxed) != now {
            self.heard.store(now, Relaxed);
        }
    }

    /// For how long nothing was heard of the connection.
    pub(super) fn silence(&self, now: Jiffies) -> Jiffies {
        since(now, self.heard.load(Relaxed))
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
