// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Bounded queues that do not allocate after they were created, and the spare pages of a
//! connection.

use crate::kapi::ext::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    pages::{
        PageVec,
        SparePages, //
    }, //
};
use kernel::{
    alloc::{
        flags::__GFP_NOWARN,
        Flags, //
    },
    page::PAGE_SIZE,
    prelude::*,
};

/// A first-in, first-out queue of bounded capacity.
pub(super) struct Ring<T> {
    slots: KVVec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Ring<T> {
    /// Allocates a queue with room for `capacity` items.
    pub(super) fn new(capacity: usize, flags: Flags) -> Result<Self> {
        let mut slots = KVVec::with_capacity(capacity, flags)?;
        for _ in 0..capacity {
            slots.push_within_capacity(None).map_err(|_| ENOMEM)?;
        }
        Ok(Ring {
            slots,
            first: 0,
            len: 0,
        })
    }

    /// Appends an item. Returns it if the queue is full.
    #[inline]
    pub(super) fn push(&mut self, item: T) -> Result<(), T> {
        let capacity = self.slots.len();
        if self.len == capacity {
            return Err(item);
        }
        let at = self.slot(self.len);
        self.slots[at] = Some(item);
        self.len += 1;
        Ok(())
    }

    /// Returns the index of the slot at position `at` of the queue. `at` must be at most the
    /// capacity.
    fn slot(&self, at: usize) -> usize {
        // No division, as this runs for each Call whose Read chunks are pulled.
        let (at, capacity) = (self.first + at, self.slots.len());
        if at < capacity {
            at
        } else {
            at - capacity
        }
    }

    /// Appends an item, and moves it forward past those that it has to precede. `precedes` tells
    /// whether its first argument has to be before the second, and returns `None` if their order
    /// does not matter. Such an item neither stops the new one nor moves. Returns the item if the
    /// queue is full.
    pub(super) fn insert(
        &mut self,
        item: T,
        precedes: impl Fn(&T, &T) -> Option<bool>,
    ) -> Result<(), T> {
        self.push(item)?;
        let mut at = self.slot(self.len - 1);
        for other in (0..self.len - 1).rev() {
            let other = self.slot(other);
            let items = self.slots[at].as_ref().zip(self.slots[other].as_ref());
            match items.and_then(|(item, other)| precedes(item, other)) {
                Some(true) => {
                    self.slots.swap(at, other);
                    at = other;
                }
                Some(false) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Returns whether the queue is full.
    pub(super) fn is_full(&self) -> bool {
        self.len == self.slots.len()
    }

    /// Returns the number of items.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first item.
    pub(super) fn first(&self) -> Option<&T> {
        self.slots.get(self.first)?.as_ref()
    }

    /// Removes the first item and returns it.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.pop_if(|_| true)
    }

    /// Removes the first item and returns it, if `wanted` returns true for it.
    #[inline]
    pub(super) fn pop_if(&mut self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let item = self
            .slots
            .get_mut(self.first)?
            .take_if(|item| wanted(item))?;
        self.first = self.slot(1);
        self.len -= 1;
        Some(item)
    }
}

/// A limit that all connections share.
pub(super) struct Budget {
    used: Atomic<usize>,
    limit: usize,
}

/// A part of a [`Budget`]. Dropping it returns the part.
pub(super) struct Share {
    budget: &'static Budget,
    count: usize,
}

impl Budget {
    /// Creates a budget of which no part is taken.
    pub(super) const fn new(limit: usize) -> Self {
        Budget {
            used: Atomic::new(0),
            limit,
        }
    }

    /// Creates an empty share.
    const fn share(&'static self) -> Share {
        Share {
            budget: self,
            count: 0,
        }
    }
}

impl Share {
    /// Takes `more`, or what is left of the budget if that is less.
    fn grow(&mut self, more: usize) {
        let mut used = self.budget.used.load(Relaxed);
        loop {
            let count = self.budget.limit.saturating_sub(used).min(more);
            // At most the limit.
            match self
                .budget
                .used
                .cmpxchg(used, used.saturating_add(count), Relaxed)
            {
                Ok(_) => {
                    self.count = self.count.saturating_add(count);
                    return;
                }
                Err(now) => used = now,
            }
        }
    }

    /// Returns the part that exceeds `count`.
    fn shrink(&mut self, count: usize) {
        let excess = self.count.saturating_sub(count);
        self.count = self.count.min(count);
        self.budget.used.fetch_sub(excess, Relaxed);
    }
}

impl Budget {
    /// Takes a share of `want`; `None` if less is left.
    pub(super) fn take_all(&'static self, want: usize) -> Option<Share> {
        let mut share = self.share();
        share.grow(want);
        (share.count == want).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// The largest number of spare pages of one connection: 16 MiB.
const MAX_PAGES: usize = (16 << 20) / PAGE_SIZE;

/// The largest number of spare pages of all connections together: 32 MiB.
static SPARE: Budget = Budget::new((32 << 20) / PAGE_SIZE);

/// The number of pages by which a connection's share grows: those of one RPC of ordinary size.
const STEP: usize = (1 << 20) / PAGE_SIZE;

/// The largest number of empty arrays that are kept: one for each service thread that may have a
/// Call.
const MAX_ARRAYS: usize = 64;

/// The spare pages of a connection. They are reused, so that in steady state no page is allocated
/// or freed.
///
/// The pages were in a Call that is done, or in a reply that was sent. A connection takes a share
/// of the common budget only when it keeps more pages than at any time since the last
/// [`Self::trim`].
pub(super) struct PagePool {
    spare: SparePages,
    share: Share,
    /// The minimum number of spare pages since the last [`Self::trim`].
    low: usize,
    arrays: KVec<PageVec>,
}

impl PagePool {
    /// Creates an empty pool.
    pub(super) const fn new() -> Self {
        PagePool {
            spare: SparePages::new(),
            share: SPARE.share(),
            low: 0,
            arrays: KVec::new(),
        }
    }

    /// Adds pages to `sink` until it has `count`, or the pool is empty.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the capacity of `sink` is too small.
    pub(super) fn fill(&mut self, sink: &mut PageVec, count: usize) -> Result {
        let filled = self.spare.fill(sink, count);
        self.low = self.low.min(self.spare.len());
        filled
    }

    /// Calls `f` with the spare pages. `f` takes some of them.
    pub(super) fn with_spare<R>(&mut self, f: impl FnOnce(&mut SparePages) -> R) -> R {
        let result = f(&mut self.spare);
        self.low = self.low.min(self.spare.len());
        result
    }

    /// Keeps pages of `pages`. The caller should release those that remain there.
    pub(super) fn put(&mut self, pages: &mut PageVec) {
        let wanted = (self.spare.len() + pages.len()).min(MAX_PAGES);
        if wanted > self.share.count {
            self.share
                .grow((wanted - self.share.count).next_multiple_of(STEP));
        }
        let room = self.share.count.saturating_sub(self.spare.len());
        self.spare.put(pages, room);
    }

    /// Returns an empty array, which has the capacity of its last use.
    pub(super) fn array(&mut self) -> PageVec {
        self.arrays.pop().unwrap_or_default()
    }

    /// Keeps an empty array.
    pub(super) fn put_array(&mut self, array: PageVec) {
        if self.arrays.len() < MAX_ARRAYS {
            let _ = self.arrays.push(array, GFP_NOWAIT | __GFP_NOWARN);
        }
    }

    /// Removes the spare pages that were not used since the last call, and the arrays once no page
    /// is left, so that the caller drops them. Also returns the number of pages left.
    pub(super) fn trim(&mut self) -> (SparePages, KVec<PageVec>, usize) {
        let excess = match self.spare.len() {
            // No page was used: return the array itself, which needs no memory.
            len if self.low >= len => core::mem::take(&mut self.spare),
            _ => self.spare.split_off(self.low.min(STEP)),
        };
        let left = self.spare.len();
        self.low = left;
        self.share.shrink(left);
        let arrays = match left {
            0 => core::mem::take(&mut self.arrays),
            _ => KVec::new(),
        };
        (excess, arrays, left)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
