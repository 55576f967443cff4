// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory that its owner lends to a device.
//!
//! ```text
//!   Lender ──lend──► LentSegs ──map──► Loan, held by the mapping ──unmap──► dropped
//! ```
//!
//! Each mapping of the memory holds a [`Loan`] until it is unmapped. The owner reuses or frees the
//! memory only when no loan exists. The owner also chooses the [`Access`] that a peer gets; the
//! code that maps the memory cannot change it.

use core::{
    ptr::NonNull,
    sync::atomic::{
        fence,
        Ordering, //
    },
};

use kernel::{
    page::Page,
    prelude::*, //
};

use super::memory::{
    MemSeg,
    MemSegs, //
};
use crate::kapi::ext::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};

/// The part that a [`Lender`] and its loans share.
struct Shared {
    /// One reference of the lender, and one of each loan.
    references: Atomic<usize>,
    /// The memory itself, if it must stay allocated until the last loan is dropped.
    page: Option<Page>,
}

/// The owner's side of lent memory: it knows whether a loan exists.
///
/// # Examples
///
/// ```ignore
/// let lender = Lender::new(None)?;
/// // SAFETY: The memory is freed only after `has_all` has returned true.
/// let mut lent = unsafe { LentSegs::new(runs, &lender, Access::RemoteRead) };
/// region.map(&mut lent, 0)?;
/// assert!(!lender.has_all());
/// ```
///
/// # Invariants
///
/// `0` comes from `KBox::into_raw`, and this object owns one of its references.
pub(crate) struct Lender(NonNull<Shared>);

// SAFETY: The reference count is atomic, and a page may be freed on any thread.
unsafe impl Send for Lender {}
// SAFETY: Shared references only access the atomic reference count and read `page`.
unsafe impl Sync for Lender {}

impl Lender {
    /// Creates a lender of `page`, which stays allocated until the last loan is dropped. With
    /// `None`, the caller owns the memory and keeps it allocated. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(page: Option<Page>) -> Result<Self> {
        let references = Atomic::new(1);
        let shared = KBox::into_raw(KBox::new(Shared { references, page }, GFP_KERNEL)?);
        // INVARIANT: `shared` comes from `into_raw`, and its only reference is this object's.
        // SAFETY: `into_raw` does not return null.
        Ok(Self(unsafe { NonNull::new_unchecked(shared) }))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: The reference that `self` owns keeps it allocated.
        unsafe { self.0.as_ref() }
    }

    /// Returns the page that was passed to [`Lender::new`].
    pub(crate) fn page(&self) -> Option<&Page> {
        self.shared().page.as_ref()
    }

    /// Returns whether no loan exists, so that no mapping uses the memory.
    pub(crate) fn has_all(&self) -> bool {
        // Pairs with the release in `put` when a loan is dropped.
        self.shared().references.load(Acquire) == 1
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and given up once.
        unsafe { put(self.0) };
    }
}

/// A loan of a [`Lender`]'s memory. A mapping of the memory holds one until it is unmapped.
///
/// # Invariants
///
/// `0` comes from `KBox::into_raw`, and this object owns one of its references.
#[must_use]
pub(crate) struct Loan(NonNull<Shared>);

// SAFETY: The reference count is atomic, and a page may be freed on any thread.
unsafe impl Send for Loan {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for Loan {}

impl Loan {
    fn new(lender: &Lender) -> Self {
        lender.shared().references.fetch_add(1, Relaxed);
        // INVARIANT: The reference was added above.
        Loan(lender.0)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and given up once.
        unsafe { put(self.0) };
    }
}

/// Drops a reference, and frees `shared` with the last one.
///
/// # Safety
///
/// The caller must own a reference, which it gives up.
unsafe fn put(shared: NonNull<Shared>) {
    // SAFETY: The caller's reference keeps it allocated.
    if unsafe { shared.as_ref() }.references.fetch_sub(1, Release) == 1 {
        fence(Ordering::Acquire);
        // SAFETY: `shared` comes from `into_raw`, and the last reference was dropped above.
        drop(unsafe { KBox::from_raw(shared.as_ptr()) });
    }
}

/// The access that a peer has to lent memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The peer may read it.
    RemoteRead,
    /// The peer may read it. A mapping holds references to the pages, so that their owner may
    /// release them before the memory is unmapped.
    SharedRead,
    /// The peer may write it.
    RemoteWrite,
}

/// Runs of physically contiguous lent memory that a device may map.
///
/// # Invariants
///
/// While a loan of `lender` exists, the memory is valid and a peer may access it as `access` says.
pub(crate) struct LentSegs<'a, I> {
    segs: MemSegs<'a, I>,
    lender: &'a Lender,
    access: Access,
}

impl<'a, I: Iterator<Item = MemSeg<'a>>> LentSegs<'a, I> {
    /// Lends `runs` for this access.
    ///
    /// # Safety
    ///
    /// The memory of `runs` must be valid while a loan of `lender` exists, even after `'a`. With
    /// [`Access::SharedRead`] the owner may give up its references to the pages earlier. While a
    /// loan exists, no Rust reference to the memory may exist if `access` is
    /// [`Access::RemoteWrite`], and nobody may write to the memory otherwise.
    pub(in crate::kapi) unsafe fn new(runs: I, lender: &'a Lender, access: Access) -> Self {
        // INVARIANT: By this function's contract.
        LentSegs {
            segs: MemSegs::new(runs),
            lender,
            access,
        }
    }

    /// Returns the access that a peer may get to the memory.
    pub(in crate::kapi) fn access(&self) -> Access {
        self.access
    }

    /// Returns whether all runs have been consumed.
    pub(crate) fn is_empty(&self) -> bool {
        self.segs.front().is_none()
    }

    /// Returns the runs that have not been consumed.
    pub(in crate::kapi) fn segs(&mut self) -> &mut MemSegs<'a, I> {
        &mut self.segs
    }

    /// Returns a loan for an object that maps some of the runs.
    pub(in crate::kapi) fn loan(&self) -> Loan {
        Loan::new(self.lender)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
