// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory that is lent to a device.
//!
//! ```text
//!   Lender ──lend──► LentSegs ──mapped──► Loan, in what maps it ──unmapped──► dropped
//! ```
//!
//! The owner of the memory takes it back only when there are no loans: what is mapped has one until
//! it is unmapped.

use kernel::{
    page::Page,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

use super::memory::{
    MemSeg,
    MemSegs, //
};

/// Somebody's memory, and how many loans there are of it.
pub(crate) struct Lender {
    loans: Atomic<usize>,
    /// The memory, if it is to stay as long as there are loans, whatever its owner does.
    page: Option<Page>,
}

impl Lender {
    /// Makes one for memory that its owner keeps, or for that of `page`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(page: Option<Page>) -> Result<Arc<Self>> {
        let loans = Atomic::new(0);
        Ok(Arc::new(Lender { loans, page }, GFP_KERNEL)?)
    }

    /// The page that stays.
    pub(crate) fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// Whether there is no loan, and so nothing uses the memory through one.
    pub(crate) fn has_all(&self) -> bool {
        self.loans.load(Acquire) == 0
    }
}

/// What maps memory of a [`Lender`] has one until it is unmapped.
pub(crate) struct Loan(Arc<Lender>);

impl Loan {
    fn new(lender: &Arc<Lender>) -> Self {
        lender.loans.fetch_add(1, Relaxed);
        Loan(lender.clone())
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // Pairs with the look in `has_all`.
        self.0.loans.fetch_sub(1, Release);
    }
}

/// Runs of lent memory, to be mapped.
///
/// # Invariants
///
/// The memory stays as long as there is a loan of the lender.
pub(crate) struct LentSegs<'a, I> {
    segs: MemSegs<'a, I>,
    lender: &'a Arc<Lender>,
}

impl<'a, I: Iterator<Item = MemSeg<'a>>> LentSegs<'a, I> {
    /// Lends `runs`.
    ///
    /// # Safety
    ///
    /// Their memory must stay as long as there is a loan of `lender`, also after `'a`.
    pub(in crate::kapi) unsafe fn new(runs: I, lender: &'a Arc<Lender>) -> Self {
        // INVARIANT: By this function's contract.
        LentSegs {
            segs: MemSegs::new(runs),
            lender,
        }
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.segs.front().is_none()
    }

    /// The runs that are left.
    pub(in crate::kapi) fn segs(&mut self) -> &mut MemSegs<'a, I> {
        &mut self.segs
    }

    /// A loan, for what maps some of the runs.
    pub(in crate::kapi) fn loan(&self) -> Loan {
        Loan::new(self.lender)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
