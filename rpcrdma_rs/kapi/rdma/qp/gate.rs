// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Counts of the posts on a QP. Closing the QP waits for the posts in progress.
//!
//! ```text
//!   enter ──► in progress ──Posting is dropped──► ended
//!     └─────► refused, if the gate is closed
//! ```
//!
//! The number of posts that have begun also numbers the posts.

use crate::kapi::ext::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};

/// The bit of [`Gate::begun`] that is set once posts are refused. The bits above it count the
/// chains and Receives whose post has begun or was refused, in units of [`ONE`].
const CLOSED: u64 = 1;
const ONE: u64 = 2;

/// See the module's documentation. A chain counts as one, and so does each Receive.
pub(super) struct Gate {
    begun: Atomic<u64>,
    /// The number of chains and Receives whose post has ended. A refused post does not count.
    ended: Atomic<u64>,
    /// The number of those whose post has ended without the device accepting them.
    unposted: Atomic<u64>,
}

impl Gate {
    /// Creates an open gate.
    pub(super) const fn new() -> Self {
        Self {
            begun: Atomic::new(0),
            ended: Atomic::new(0),
            unposted: Atomic::new(0),
        }
    }

    /// Returns the number of the next post. Every post that began before has a smaller one.
    pub(super) fn next(&self) -> u64 {
        self.begun.load(Relaxed) / ONE
    }

    /// Begins a post of `count` chains or Receives, and returns its number. Returns no post if the
    /// gate is closed.
    #[inline]
    pub(super) fn enter(&self, count: usize) -> (u64, Option<Posting<'_>>) {
        // CAST: A `usize` has 64 bits.
        let count = count as u64;
        // Before the count: posts that begin later may end before earlier ones.
        let ended = self.ended.load(Acquire);
        // Counts first, so that `close` either sees us or is seen by us.
        let begun = self.begun.fetch_add(count * ONE, Acquire);
        // Not `then_some`: for a refused post it would create a `Posting` and drop it, which counts
        // as ended.
        let posting = if begun & CLOSED == 0 {
            Some(Posting {
                gate: self,
                count,
                unposted: count,
                overlaps: ended != begun / ONE,
            })
        } else {
            None
        };
        (begun / ONE, posting)
    }

    /// Refuses further posts, and returns the number of those that have begun. Called once.
    pub(super) fn close(&self) -> u64 {
        self.begun.fetch_add(CLOSED, Relaxed) / ONE
    }

    /// Returns whether all of the `begun` posts have ended.
    pub(super) fn have_ended(&self, begun: u64) -> bool {
        self.ended.load(Acquire) == begun
    }

    /// Returns the number of chains and Receives that the device has accepted. No post may be in
    /// progress.
    pub(super) fn accepted(&self) -> u64 {
        let ended = self.ended.load(Acquire);
        ended.wrapping_sub(self.unposted.load(Relaxed))
    }
}

/// A post in progress of `count` chains or Receives.
pub(super) struct Posting<'a> {
    gate: &'a Gate,
    count: u64,
    /// How many of them the device has not accepted: all, until the poster says otherwise.
    pub(super) unposted: u64,
    /// Whether another post may have been in progress when this one began.
    pub(super) overlaps: bool,
}

impl Drop for Posting<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.unposted != 0 {
            self.gate.unposted.add(self.unposted, Relaxed);
        }
        self.gate.ended.add(self.count, Release);
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
