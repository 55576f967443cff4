// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Arithmetic on jiffies, which wrap around, and for how long a connection has been silent.

use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};
use kernel::time::Jiffies;

/// Returns whether the time `a` is earlier than `b`.
pub(super) fn time_before(a: Jiffies, b: Jiffies) -> bool {
    // CAST: The distance has a sign.
    (a.wrapping_sub(b) as isize) < 0
}

/// Returns how long before `now` the time `then` was; nothing if another processor, whose clock is
/// a tick ahead, wrote it after `now` was read.
pub(super) fn since(now: Jiffies, then: Jiffies) -> Jiffies {
    if time_before(now, then) {
        0
    } else {
        now.wrapping_sub(then)
    }
}

/// When the last message came. Any context; a lost race is one of a tick.
pub(super) struct LastHeard(Atomic<Jiffies>);

impl LastHeard {
    pub(super) fn new(now: Jiffies) -> Self {
        Self(Atomic::new(now))
    }

    /// The connection is new, or a message came on it.
    pub(super) fn heard(&self, now: Jiffies) {
        if self.0.load(Relaxed) != now {
            self.0.store(now, Relaxed);
        }
    }

    /// Returns how long the connection has been silent.
    pub(super) fn silence(&self, now: Jiffies) -> Jiffies {
        since(now, self.0.load(Relaxed))
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
