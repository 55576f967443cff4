// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory that is lent to a device.
//!
//! ```text
//!   Lender ──lend──► LentSegs ──mapped──► Loan, in what maps it ──unmapped──► dropped
//! ```
//!
//! The owner of the memory takes it back only when there are no loans: what is mapped has one until
//! it is unmapped.

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

/// What a [`Lender`] and its loans share.
struct Shared {
    /// The lender, and its loans.
    references: Atomic<usize>,
    /// The memory, if it is to stay as long as there are loans, whatever its owner does.
    page: Option<Page>,
}

/// Somebody's memory, and how many loans there are of it.
///
/// # Examples
///
/// ```ignore
/// let lender = Lender::new(None)?;
/// // SAFETY: The memory is freed only when `has_all` says that there is no loan.
/// let mut lent = unsafe { LentSegs::new(runs, &lender) };
/// region.map(&mut lent, Access::RemoteRead, 0)?;
/// assert!(!lender.has_all());
/// ```
///
/// # Invariants
///
/// `0` is a box given up, to which we have one of its references.
pub(crate) struct Lender(NonNull<Shared>);

// SAFETY: The references are counted atomically, and a page has no affinity to a thread.
unsafe impl Send for Lender {}
// SAFETY: Shared access counts, and reads.
unsafe impl Sync for Lender {}

impl Lender {
    /// Makes one for memory that its owner keeps, or for that of `page`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(page: Option<Page>) -> Result<Self> {
        let references = Atomic::new(1);
        let shared = KBox::into_raw(KBox::new(Shared { references, page }, GFP_KERNEL)?);
        // INVARIANT: Given up just now; that one reference is ours.
        // SAFETY: A box is not null.
        Ok(Self(unsafe { NonNull::new_unchecked(shared) }))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: It stays as long as our reference to it.
        unsafe { self.0.as_ref() }
    }

    /// Returns the page that stays.
    pub(crate) fn page(&self) -> Option<&Page> {
        self.shared().page.as_ref()
    }

    /// Returns whether there is no loan, and so nothing uses the memory through one.
    pub(crate) fn has_all(&self) -> bool {
        // Pairs with the end of a loan.
        self.shared().references.load(Acquire) == 1
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and given up once.
        unsafe { put(self.0) };
    }
}

/// What maps memory of a [`Lender`] has one until it is unmapped.
///
/// # Invariants
///
/// As those of [`Lender`].
pub(crate) struct Loan(NonNull<Shared>);

// SAFETY: As for `Lender`.
unsafe impl Send for Loan {}
// SAFETY: As for `Lender`.
unsafe impl Sync for Loan {}

impl Loan {
    fn new(lender: &Lender) -> Self {
        lender.shared().references.fetch_add(1, Relaxed);
        // INVARIANT: Counted just now.
        Loan(lender.0)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and given up once.
        unsafe { put(self.0) };
    }
}

/// Gives a reference up.
///
/// # Safety
///
/// The reference must be the caller's.
unsafe fn put(shared: NonNull<Shared>) {
    // SAFETY: It stays as long as there is a reference, which there is.
    if unsafe { shared.as_ref() }.references.fetch_sub(1, Release) == 1 {
        fence(Ordering::Acquire);
        // SAFETY: A box given up, and that was the last reference.
        drop(unsafe { KBox::from_raw(shared.as_ptr()) });
    }
}

/// Runs of lent memory, to be mapped.
///
/// # Invariants
///
/// The memory stays as long as there is a loan of the lender.
pub(crate) struct LentSegs<'a, I> {
    segs: MemSegs<'a, I>,
    lender: &'a Lender,
}

impl<'a, I: Iterator<Item = MemSeg<'a>>> LentSegs<'a, I> {
    /// Lends `runs`.
    ///
    /// # Safety
    ///
    /// Their memory must stay as long as there is a loan of `lender`, also after `'a`.
    pub(in crate::kapi) unsafe fn new(runs: I, lender: &'a Lender) -> Self {
        // INVARIANT: By this function's contract.
        LentSegs {
            segs: MemSegs::new(runs),
            lender,
        }
    }

    /// Returns whether nothing is left.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.segs.front().is_none()
    }

    /// Returns the runs that are left.
    pub(in crate::kapi) fn segs(&mut self) -> &mut MemSegs<'a, I> {
        &mut self.segs
    }

    /// Returns a loan, for what maps some of the runs.
    pub(in crate::kapi) fn loan(&self) -> Loan {
        Loan::new(self.lender)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
