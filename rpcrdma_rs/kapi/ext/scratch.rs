// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A page that absorbs data which nobody reads.
//!
//! C header: [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

use core::ptr::NonNull;

use kernel::{
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*, //
};

use super::{
    lend::{
        Access,
        Lender,
        LentSegs, //
    },
    memory::MemSeg, //
};
use crate::kapi::bindings;

/// A page that a peer may overwrite at any time, and that the kernel never reads.
///
/// It stands for a buffer of any length: one region may map it several times, and several regions
/// may map it at the same time.
///
/// # Examples
///
/// ```ignore
/// let scratch = ScratchPage::new()?;
/// // Room for 64 KiB, all of it the same page.
/// region.map(&mut scratch.segs(64 << 10), 0)?;
/// ```
pub(crate) struct ScratchPage(Lender);

impl ScratchPage {
    /// Allocates the page. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?;
        Lender::new(Some(page)).map(Self)
    }

    /// Returns a buffer of `len` bytes, all pages of which are this page.
    pub(crate) fn segs(&self, len: usize) -> LentSegs<'_, impl Iterator<Item = MemSeg<'_>>> {
        let page = self
            .0
            .page()
            .map(|page| page.as_ptr().cast::<bindings::page>());
        let page = page.and_then(NonNull::new);
        let runs = (0..len).step_by(PAGE_SIZE).filter_map(move |at| {
            // SAFETY: `self` owns the page, which is valid while `self` is borrowed.
            unsafe { MemSeg::from_page(page?, 0, (len - at).min(PAGE_SIZE)) }
        });
        // SAFETY: The lender was created with the page, which a loan keeps allocated. Nobody reads
        // it.
        unsafe { LentSegs::new(runs, &self.0, Access::RemoteWrite) }
    }

    /// Returns whether a region maps the page.
    #[cfg(rpcrdma_kunit)]
    pub(crate) fn is_lent(&self) -> bool {
        !self.0.has_all()
    }
}
