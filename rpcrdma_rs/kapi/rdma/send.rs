// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Send buffers: a message and the Send Work Request for it.
//!
//! ```text
//!   SGEs:  part of the buffer | pages, not copied | part of the buffer
//! ```
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    mem::ManuallyDrop,
    ops::Range,
    ptr::null_mut, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    dma::{
        map_run,
        unmap_run,
        DmaBuf,
        PageRef, //
    },
    pd::Pd,
    DataDirection, //
};
use crate::kapi::{
    bindings,
    ext::memory::MemSeg, //
};

/// A message, and the Send that sends it. The message consists of parts of a buffer that this
/// object owns and of pages that others own.
///
/// The object takes a reference to each page, so that the page is not freed before the device has
/// read it, even if the RPC that it belongs to has ended.
///
/// # Examples
///
/// ```ignore
/// let mut message = SendBuf::new(&pd, 1024, 3)?;
/// message.body_mut()[..header.len()].copy_from_slice(header);
/// message.add_part(0..header.len())?;
/// message.add_pages(runs)?;
/// ```
///
/// # Invariants
///
/// The first `used` of `sges` are the elements of the message. An element at an index in `mapped`
/// is a DMA-mapped run of bytes of pages in `pages`; every other element is a part of `body`.
pub(crate) struct SendBuf {
    sges: KVec<bindings::ib_sge>,
    used: usize,
    mapped: Range<usize>,
    pages: KVec<PageRef>,
    body: DmaBuf,
}

// SAFETY: Plain memory and page references may be used from any thread.
unsafe impl Send for SendBuf {}

impl SendBuf {
    /// Allocates a message with a zeroed buffer of `len` bytes and room for `sges` elements, at
    /// least one. May sleep, but does not wait until memory is free, see [`DmaBuf::new`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero; `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, sges: usize) -> Result<Self> {
        let max = sges.max(1);
        // This allocation reclaims memory if it has to, the small ones do not.
        let body = DmaBuf::new(pd, len, DataDirection::ToDevice)?;
        let mut sges = KVec::with_capacity(max, GFP_NOWAIT | __GFP_NOWARN)?;
        for _ in 0..max {
            sges.push_within_capacity(bindings::ib_sge::default())
                .map_err(|_| ENOMEM)?;
        }
        // INVARIANT: The message has no element yet.
        Ok(SendBuf {
            sges,
            used: 0,
            mapped: 0..0,
            pages: KVec::with_capacity(max, GFP_NOWAIT | __GFP_NOWARN)?,
            body,
        })
    }

    /// Returns the PD.
    pub(super) fn pd(&self) -> &Pd {
        self.body.pd()
    }

    /// Returns the bytes of the buffer.
    #[cfg(any(rpcrdma_kapi_test, rpcrdma_kunit))]
    pub(crate) fn body(&self) -> &[u8] {
        self.body.as_slice()
    }

    /// Returns the bytes of the buffer, for writing. Changes to a part that was already added may
    /// or may not be sent.
    pub(crate) fn body_mut(&mut self) -> &mut [u8] {
        self.body.as_mut_slice()
    }

    /// Appends an element to the message, or returns `ENOSPC`.
    fn push(&mut self, sge: bindings::ib_sge) -> Result {
        *self.sges.get_mut(self.used).ok_or(ENOSPC)? = sge;
        // INVARIANT: The new element is the last one of the message.
        self.used += 1;
        Ok(())
    }

    /// Makes the first `len` bytes of the buffer the only part of a message that has none yet.
    /// Costs less than [`Self::add_part`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if the buffer is shorter, if `len` is zero, or if the message has a part.
    #[inline]
    pub(crate) fn set_len(&mut self, len: usize) -> Result {
        let first = self.sges.first_mut().ok_or(EINVAL)?;
        if self.used != 0 || len == 0 {
            return Err(EINVAL);
        }
        *first = self.body.sge(0..len)?;
        // INVARIANT: The element is the only one of the message.
        self.used = 1;
        Ok(())
    }

    /// Appends a part of the buffer to the message. An empty part takes no element.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the part is not inside the buffer; `ENOSPC` if there is no room for an element.
    pub(crate) fn add_part(&mut self, range: Range<usize>) -> Result {
        let sge = self.body.sge(range)?;
        if sge.length == 0 {
            return Ok(());
        }
        self.push(sge)
    }

    /// Appends runs of pages to the message. May be called once per message. Does not sleep. It
    /// allocates only if there are more pages than elements, and more than in any earlier message.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the message has pages already, or one of them has no reference count of its
    ///   own (slab memory),
    /// * `ENOSPC` if there is no room for the elements,
    /// * `ENOMEM`.
    ///
    /// Nothing is added then.
    pub(crate) fn add_pages<'s>(&mut self, segs: impl Iterator<Item = MemSeg<'s>>) -> Result {
        if !self.mapped.is_empty() {
            return Err(EINVAL);
        }
        let start = self.used;
        // INVARIANT: `mapped` is empty.
        self.mapped = start..start;
        for seg in segs {
            if let Err(error) = self.add_run(&seg) {
                self.unmap();
                self.used = start;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Maps a run of pages, takes references to them, and appends it to the message.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the message has as many elements as the device accepts; those of
    /// [`PageRef::add`] and [`map_run`].
    fn add_run(&mut self, seg: &MemSeg<'_>) -> Result {
        if self.used == self.sges.len() {
            return Err(ENOSPC);
        }
        PageRef::add(seg, &mut self.pages, GFP_NOWAIT)?;
        let addr = map_run(self.pd().device(), seg)?;
        let lkey = self.pd().lkey();
        self.push(bindings::ib_sge {
            addr,
            // CAST: At most the longest run.
            length: seg.len() as u32,
            lkey,
        })?;
        // INVARIANT: The last element was mapped above.
        self.mapped.end += 1;
        Ok(())
    }

    /// Unmaps the pages of the message, if it has any, and drops the references to them.
    #[inline]
    fn unmap(&mut self) {
        // Each mapped run has pages.
        if !self.pages.is_empty() {
            self.unmap_pages();
        }
    }

    /// Does what [`Self::unmap`] has to do for a message with pages.
    #[inline(never)]
    fn unmap_pages(&mut self) {
        let mapped = core::mem::take(&mut self.mapped);
        for sge in self.sges.get(mapped).unwrap_or_default() {
            // SAFETY: By the type's invariant it is a mapped run, whose pages are in `pages`.
            // Taking `mapped` ensures that it is unmapped once.
            unsafe { unmap_run(self.body.pd().device(), sge.addr, sge.length) };
        }
        self.pages.clear();
    }

    /// Removes all parts of the message, unmaps its pages and drops the references to them.
    pub(crate) fn clear(&mut self) {
        self.unmap();
        self.used = 0;
    }

    /// Returns the unsignaled Work Request that sends the message. It refers to the elements of the
    /// message.
    #[inline]
    pub(super) fn request(&self, opcode: bindings::ib_wr_opcode, key: u32) -> bindings::ib_send_wr {
        bindings::ib_send_wr {
            next: null_mut(),
            __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                wr_id: ManuallyDrop::new(0),
            },
            sg_list: self.sges.as_ptr().cast_mut(),
            // CAST: The number of elements is at most the device's limit, which is an `i32`.
            num_sge: self.used as i32,
            opcode,
            send_flags: 0,
            ex: bindings::ib_send_wr__bindgen_ty_2 {
                invalidate_rkey: ManuallyDrop::new(key),
            },
        }
    }
}

impl Drop for SendBuf {
    fn drop(&mut self) {
        self.unmap();
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
