// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Arithmetic on jiffies, which wrap around, and the time for which a connection has been silent.
//!
//! C header: [`include/linux/jiffies.h`](srctree/include/linux/jiffies.h)

use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};
use kernel::time::Jiffies;

/// Returns whether the time `a` is earlier than `b`.
pub(super) fn time_before(a: Jiffies, b: Jiffies) -> bool {
    // CAST: The sign of the difference is the result.
    (a.wrapping_sub(b) as isize) < 0
}

/// Returns the time in jiffies from `then` to `now`. Returns zero if `then` is later than `now`:
/// another processor, whose clock is a tick ahead, may have written it after `now` was read.
pub(super) fn since(now: Jiffies, then: Jiffies) -> Jiffies {
    if time_before(now, then) {
        0
    } else {
        now.wrapping_sub(then)
    }
}

/// The time of the last message. Any context. After a race it may be wrong by a tick.
pub(super) struct LastHeard(Atomic<Jiffies>);

impl LastHeard {
    pub(super) fn new(now: Jiffies) -> Self {
        Self(Atomic::new(now))
    }

    /// Records that the connection was established or a message has arrived at the time `now`.
    pub(super) fn heard(&self, now: Jiffies) {
        if self.0.load(Relaxed) != now {
            self.0.store(now, Relaxed);
        }
    }

    /// Returns for how long the connection has been silent at the time `now`, in jiffies.
    pub(super) fn silence(&self, now: Jiffies) -> Jiffies {
        since(now, self.0.load(Relaxed))
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
