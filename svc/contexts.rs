// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The contexts of a connection that are not in use: for messages to send, and for RDMA Reads.
//!
//! A context keeps the arrays of its largest transfer, some 60 KiB for a payload of 4 MiB. As many
//! contexts exist as a client had Calls at the same time. [`super::trim`] frees those that were not
//! used for a while.

use kernel::prelude::*;

/// Contexts. The most recently used one is taken first.
pub(super) struct Contexts<C> {
    kept: KVVec<C>,
    /// The minimum number of contexts since the last [`Self::end_period`]: that many were not used.
    low: usize,
    /// Whether the contexts stay until the connection is freed.
    sealed: bool,
}

impl<C> Contexts<C> {
    /// The number of contexts that a quiet connection keeps.
    const MIN: usize = 2;

    /// Creates an empty list with room for `contexts` contexts.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Contexts {
            kept: KVVec::with_capacity(contexts, GFP_KERNEL)?,
            low: 0,
            sealed: false,
        })
    }

    /// Keeps a context. Returns it if there are too many.
    #[inline]
    pub(super) fn push(&mut self, ctx: C) -> Option<C> {
        self.kept.push_within_capacity(ctx).err().map(|full| full.0)
    }

    /// Makes all contexts stay until the list is dropped, those that are added later too.
    pub(super) fn seal(&mut self) {
        self.sealed = true;
    }

    /// Removes the context that was used last; `None` once the list is sealed.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<C> {
        if self.sealed {
            return None;
        }
        let ctx = self.kept.pop();
        self.low = self.low.min(self.kept.len());
        ctx
    }

    /// Returns the number of contexts.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Returns the contexts, and for each whether it was not used in this period.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&mut C, bool)> {
        let low = self.low;
        let kept = self.kept.iter_mut().enumerate();
        kept.map(move |(at, ctx)| (ctx, at < low))
    }

    /// Removes a context that was not used in this period, unless few are left. The caller drops it
    /// without the lock, as that may sleep.
    pub(super) fn pop_unused(&mut self) -> Option<C> {
        if self.sealed || self.low <= Self::MIN {
            return None;
        }
        self.low -= 1;
        self.kept.remove(0).ok()
    }

    /// Begins the next period. Returns whether there are contexts that it may free.
    pub(super) fn end_period(&mut self) -> bool {
        self.low = self.kept.len();
        self.low > Self::MIN
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
