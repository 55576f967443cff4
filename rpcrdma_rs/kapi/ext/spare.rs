// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Room for what nobody reads.
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
        Lender, //
        LentSegs,
    },
    memory::MemSeg, //
};
use crate::kapi::bindings;

/// A page that peers may write anything into, and that is never read.
///
/// It stands for as much room as is asked for: a region may name it many times, and so may many
/// regions at the same time.
///
/// # Examples
///
/// ```ignore
/// let spare = SparePage::new()?;
/// // Room for 64 KiB, all of it the same page.
/// region.map(&mut spare.segs(16), Access::RemoteWrite, 0)?;
/// ```
pub(crate) struct SparePage(Lender);

impl SparePage {
    /// Allocates one. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?;
        Lender::new(Some(page)).map(Self)
    }

    /// Room of `pages` pages.
    pub(crate) fn segs(&self, pages: usize) -> LentSegs<'_, impl Iterator<Item = MemSeg<'_>>> {
        let page = self
            .0
            .page()
            .map(|page| page.as_ptr().cast::<bindings::page>());
        let page = page.and_then(NonNull::new);
        let runs = (0..pages).filter_map(move |_| {
            // SAFETY: The page is ours, and valid as long as `self` is borrowed.
            unsafe { MemSeg::from_page(page?, 0, PAGE_SIZE) }
        });
        // SAFETY: A loan keeps the lender, and with it the page.
        unsafe { LentSegs::new(runs, &self.0) }
    }
}
