// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Counters of events, for statistics.
//!
//! Use [`SerialCount`] if a lock or a queue orders the additions, as it is the cheaper one;
//! otherwise [`Count`]. Both may be read at any time.

use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};

/// A counter that is never reset. Any context.
pub(crate) struct Count(Atomic<u64>);

impl Count {
    /// Creates a counter of zero.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds `n`. Zero, which is common, costs no write.
    #[inline]
    pub(crate) fn add(&self, n: usize) {
        if n != 0 {
            // CAST: A `usize` has at most 64 bits.
            self.0.add(n as u64, Relaxed);
        }
    }

    /// Returns the current value.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A counter that is never reset, for events that are not counted concurrently: events under one
/// lock, or completions of one queue. If two additions do run at the same time, one may be lost.
///
/// Adding takes no locked instruction.
pub(crate) struct SerialCount(Count);

impl SerialCount {
    /// Creates a counter of zero.
    pub(crate) const fn new() -> Self {
        Self(Count::new())
    }

    /// Adds `n`. Zero, which is common, costs no write.
    #[inline]
    pub(crate) fn add(&self, n: usize) {
        if n != 0 {
            // CAST: A `usize` has at most 64 bits.
            let sum = self.get().wrapping_add(n as u64);
            self.0 .0.store(sum, Relaxed);
        }
    }

    /// Returns the current value. Any context.
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}
