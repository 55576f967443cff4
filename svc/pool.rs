// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queues that never allocate once they are made, and a limit on what rests in them.

use kernel::{
    alloc::Flags,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// A first-in first-out queue of at most as many items as it was made for.
pub(super) struct Ring<T> {
    slots: KVec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Ring<T> {
    /// A queue with room for `capacity` items.
    pub(super) fn new(capacity: usize, flags: Flags) -> Result<Self> {
        let mut slots = KVec::with_capacity(capacity, flags)?;
        for _ in 0..capacity {
            slots.push_within_capacity(None).map_err(|_| ENOMEM)?;
        }
        Ok(Ring {
            slots,
            first: 0,
            len: 0,
        })
    }

    /// Adds an item at the end; gives it back if there is no room.
    pub(super) fn push(&mut self, item: T) -> Result<(), T> {
        let capacity = self.slots.len();
        if self.len == capacity {
            return Err(item);
        }
        let at = (self.first + self.len) % capacity;
        self.slots[at] = Some(item);
        self.len += 1;
        Ok(())
    }

    /// Whether there is no room for another.
    pub(super) fn is_full(&self) -> bool {
        self.len == self.slots.len()
    }

    /// The first item.
    pub(super) fn first(&self) -> Option<&T> {
        self.slots.get(self.first)?.as_ref()
    }

    /// Takes the first item.
    pub(super) fn pop(&mut self) -> Option<T> {
        let item = self.slots.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % self.slots.len();
        self.len -= 1;
        Some(item)
    }
}

/// A limit on how much is kept for reuse, over all connections.
pub(super) struct Budget {
    used: Atomic<usize>,
    limit: usize,
}

/// A part of a [`Budget`]. Dropping it gives the part back.
pub(super) struct Share {
    budget: &'static Budget,
    /// How much it is.
    pub(super) count: usize,
}

impl Budget {
    /// A limit that nothing is taken of yet.
    pub(super) const fn new(limit: usize) -> Self {
        Budget {
            used: Atomic::new(0),
            limit,
        }
    }

    /// Takes `want`, or what is left if that is less.
    pub(super) fn take(&'static self, want: usize) -> Share {
        let mut used = self.used.load(Relaxed);
        loop {
            let count = self.limit.saturating_sub(used).min(want);
            // At most the limit.
            match self.used.cmpxchg(used, used.saturating_add(count), Relaxed) {
                Ok(_) => {
                    return Share {
                        budget: self,
                        count,
                    }
                }
                Err(now) => used = now,
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.count, Relaxed);
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
