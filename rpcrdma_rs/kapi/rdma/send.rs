// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Messages to be sent, each with its Send Work Request.
//!
//! ```text
//!   SGEs:  part of the buffer | pages, where they are | part of the buffer
//! ```
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    mem::ManuallyDrop,
    ops::Range, //
};

use kernel::{
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    dma::{
        map_run,
        unmap_run,
        DmaBuf,
        PageRef, //
    },
    pd::Pd,
    Direction, //
};
use crate::kapi::{
    bindings,
    ext::memory::MemSeg, //
};

/// A message that is put together from parts of a buffer of its own and from pages of others,
/// and the Send that sends it.
///
/// References to the pages are taken, so that they stay what they are until the device has read
/// them, whatever becomes of the request they are from.
///
/// Not `Sync`: to put it in a chain changes its Work Request.
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
/// `sges` has room for `most` elements. Each is a part of `body`, or, at an index in `mapped`,
/// a run of bytes that is mapped for the device, of a page in `pages`.
pub(crate) struct SendBuf {
    wr: Opaque<bindings::ib_send_wr>,
    sges: KVec<bindings::ib_sge>,
    most: usize,
    mapped: Range<usize>,
    pages: KVec<PageRef>,
    body: DmaBuf,
}

// SAFETY: A request that is in no chain, plain memory, and references to pages have no affinity
// to a thread.
unsafe impl Send for SendBuf {}

impl SendBuf {
    /// Makes a message with a buffer of `len` bytes and room for `sges` elements, at least one.
    /// The buffer is zero at first. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero; `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, sges: usize) -> Result<Self> {
        let most = sges.max(1);
        // INVARIANT: There is room, and no element yet.
        Ok(SendBuf {
            wr: Opaque::new(bindings::ib_send_wr::default()),
            sges: KVec::with_capacity(most, GFP_KERNEL)?,
            most,
            mapped: 0..0,
            pages: KVec::with_capacity(most, GFP_KERNEL)?,
            body: DmaBuf::new(pd, len, Direction::ToDevice)?,
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

    /// Returns the bytes of the buffer, for writing. What is written to a part that has been added
    /// already may or may not be sent.
    pub(crate) fn body_mut(&mut self) -> &mut [u8] {
        self.body.as_mut_slice()
    }

    /// Returns the octets of the message.
    pub(crate) fn octets(&self) -> usize {
        self.sges.iter().map(|sge| sge.length as usize).sum()
    }

    fn push(&mut self, sge: bindings::ib_sge) -> Result {
        if self.sges.len() >= self.most {
            return Err(ENOSPC);
        }
        self.sges.push_within_capacity(sge).map_err(|_| ENOSPC)
    }

    /// Adds a part of the buffer at the end of the message. An empty one takes no element.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not inside the buffer; `ENOSPC` if there is no room for an element.
    pub(crate) fn add_part(&mut self, range: Range<usize>) -> Result {
        let sge = self.body.sge(range)?;
        if sge.length == 0 {
            return Ok(());
        }
        self.push(sge)
    }

    /// Adds runs of pages at the end of the message. All pages of a message come in one such call.
    /// Does not sleep; allocates only if there are more pages than there were ever before, and
    /// than elements.
    ///
    /// # Errors
    ///
    /// Nothing is added then: `EINVAL` if there are pages already, or one of these has no
    /// reference count of its own (memory of the slab allocator); `ENOSPC` if there is no room;
    /// `ENOMEM`.
    pub(crate) fn add_pages<'s>(&mut self, segs: impl Iterator<Item = MemSeg<'s>>) -> Result {
        if !self.mapped.is_empty() {
            return Err(EINVAL);
        }
        let start = self.sges.len();
        // INVARIANT: None is mapped yet.
        self.mapped = start..start;
        for seg in segs {
            if let Err(error) = self.add_run(&seg) {
                self.unmap();
                self.sges.truncate(start);
                return Err(error);
            }
        }
        Ok(())
    }

    fn add_run(&mut self, seg: &MemSeg<'_>) -> Result {
        if self.sges.len() >= self.most {
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
        // INVARIANT: Mapped just now.
        self.mapped.end += 1;
        Ok(())
    }

    fn unmap(&mut self) {
        let mapped = core::mem::take(&mut self.mapped);
        for sge in self.sges.get(mapped).unwrap_or_default() {
            unmap_run(self.body.pd().device(), sge.addr, sge.length);
        }
        self.pages.clear();
    }

    /// Makes the message empty, unmaps its pages and drops the references to them.
    pub(crate) fn clear(&mut self) {
        self.unmap();
        self.sges.clear();
    }

    /// Makes the Work Request that sends the message, unsignaled, for a chain.
    pub(super) fn request(
        &self,
        opcode: bindings::ib_wr_opcode,
        key: u32,
    ) -> *mut bindings::ib_send_wr {
        let wr = self.wr.get();
        // SAFETY: The request is ours, and in no chain: a chain borrows it until it is posted,
        // what is posted owns it, and the type is not `Sync`.
        unsafe {
            (*wr).sg_list = self.sges.as_ptr().cast_mut();
            // CAST: As many as a device takes at most, which is an `i32`.
            (*wr).num_sge = self.sges.len() as i32;
            (*wr).opcode = opcode;
            (*wr).ex.invalidate_rkey = ManuallyDrop::new(key);
        }
        wr
    }
}

impl Drop for SendBuf {
    fn drop(&mut self) {
        self.unmap();
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
