// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A look into runs of bytes, for KUnit.

use super::*;

impl MemSeg<'_> {
    /// The page.
    pub(in crate::kapi) fn page(&self) -> NonNull<bindings::page> {
        self.page
    }
}
