// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RDMA Reads into registered memory, for devices that need that (iWARP), over ib_core's
//! `rdma_rw`.
//!
//! C header: [`include/rdma/rw.h`](srctree/include/rdma/rw.h)

use core::{
    cell::UnsafeCell,
    ops::Range,
    ptr::null_mut, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    AnyQp,
    Qp,
    QpHandler,
    RawQp,
    Remote,
    Requests,
    TransferDir, //
};
use crate::kapi::{
    bindings,
    ext::{
        errno::enotconn,
        memory::{
            MemSeg,
            MemSegs, //
        },
        pages::PageVec, //
    },
    rdma::{
        failure::unsignaled,
        wr::WrKind, //
    }, //
};

/// The most pages that rdma_rw registers as one.
const MAX_PAGES: u32 = 256;

/// The number of segments kept for the next use: as many as ordinary peers offer.
const KEPT_SEGMENTS: usize = 4;

/// A part of the peer's memory, read by one request.
///
/// # Invariants
///
/// When `mapped` is set, `context` is initialised for the QP of the transfer with all of `bvecs`.
struct Segment {
    context: UnsafeCell<bindings::rdma_rw_ctx>,
    bvecs: KVec<bindings::bio_vec>,
    mapped: bool,
}

/// # Invariants
///
/// The first `used` segments are mapped for `qp`, which is set then. The others are not mapped.
pub(super) struct Registered {
    segments: KVec<KBox<Segment>>,
    used: usize,
    sqes: u32,
    qp: Option<Arc<dyn AnyQp>>,
}

impl Registered {
    /// Returns an object without mapped segments and without memory.
    pub(super) const fn new() -> Self {
        Registered {
            segments: KVec::new(),
            used: 0,
            sqes: 0,
            qp: None,
        }
    }

    /// Returns whether it refers to a QP, which it does while anything is mapped.
    pub(super) fn is_mapped(&self) -> bool {
        self.qp.is_some()
    }

    pub(super) fn sqes(&self) -> u32 {
        self.sqes
    }

    /// See [`Transfer::add`](super::Transfer::add).
    // Not inlined, as only some devices need it.
    #[inline(never)]
    pub(super) fn add<H: QpHandler>(
        &mut self,
        qp: &Qp<H>,
        pages: &PageVec,
        octets: impl Iterator<Item = Range<usize>>,
        remote: Remote,
    ) -> Result {
        let _ = self.qp.get_or_insert_with(|| qp.get());
        // rdma_rw counts an element as a page, and computes the number of regions after an IOMMU
        // has joined elements. So it may map more pages with one region than the region can hold.
        let max = qp.device().attrs().max_fast_reg_pages.min(MAX_PAGES);
        let mut runs = MemSegs::new(octets.flat_map(|range| pages.runs(range)));
        let mut done = 0;
        while runs.front().is_some() {
            let addr = remote.addr.checked_add(u64::from(done)).ok_or(EINVAL)?;
            let rest = Remote {
                addr,
                length: remote.length - done,
                ..remote
            };
            done += self.add_part(qp, &mut runs, max as usize, rest)?;
        }
        if done == remote.length && done != 0 {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    /// Maps the first part of `runs`, and returns its length in bytes.
    fn add_part<'p, H: QpHandler>(
        &mut self,
        qp: &Qp<H>,
        runs: &mut MemSegs<'p, impl Iterator<Item = MemSeg<'p>>>,
        max: usize,
        remote: Remote,
    ) -> Result<u32> {
        if self.used == self.segments.len() {
            let segment = KBox::new(Segment::new(), GFP_KERNEL)?;
            self.segments.push(segment, GFP_KERNEL)?;
        }
        let segment = self.segments.get_mut(self.used).ok_or(EINVAL)?;
        let length = segment.gather(runs, remote.length, max)?;
        let nr_bvec = u32::try_from(segment.bvecs.len())?;
        let iter = bindings::bvec_iter {
            bi_size: length,
            ..Default::default()
        };
        let qp = qp.raw_qp().ok_or_else(enotconn)?;
        // SAFETY: The context is ours, the QP is valid as long as `qp`, and so are the elements;
        // the elements' pages are those of the transfer, and stay until it is unmapped.
        let ret = unsafe {
            bindings::rdma_rw_ctx_init_bvec(
                segment.context.get(),
                qp.as_raw(),
                qp.port(),
                segment.bvecs.as_ptr(),
                nr_bvec,
                iter,
                remote.addr,
                remote.handle,
                TransferDir::Read.as_raw(),
            )
        };
        let Ok(sqes) = u32::try_from(ret) else {
            return Err(Error::from_errno(ret));
        };
        // INVARIANT: Mapped just now.
        segment.mapped = true;
        self.used += 1;
        self.sqes = self.sqes.saturating_add(sqes);
        Ok(length)
    }

    /// Calls `f` with the requests of each segment.
    ///
    /// # Safety
    ///
    /// The transfer must be in no other chain.
    #[inline(never)]
    pub(super) unsafe fn link(&self, f: &mut dyn FnMut(Requests)) {
        // A chain of the QP is being posted, so its C object is not destroyed yet.
        let Some(qp) = self.qp.as_ref().and_then(|qp| qp.raw_qp()) else {
            return;
        };
        for segment in self.segments.iter().take(self.used) {
            // SAFETY: The context is initialised for this QP, and used by nobody else.
            f(unsafe { link(segment.context.get(), qp.as_raw(), qp.port()) });
        }
    }

    /// Unmaps everything. Some memory stays allocated for the next use.
    #[inline(never)]
    pub(super) fn unmap(&mut self) {
        let Some(qp) = self.qp.take() else { return };
        let used = core::mem::take(&mut self.used);
        self.sqes = 0;
        let raw = qp.raw_qp();
        for segment in self.segments.iter_mut().take(used) {
            segment.unmap(raw.as_ref());
        }
        // INVARIANT: None is mapped.
        self.segments.truncate(KEPT_SEGMENTS);
    }
}

impl Segment {
    fn new() -> Self {
        Segment {
            context: UnsafeCell::new(bindings::rdma_rw_ctx::default()),
            bvecs: KVec::new(),
            mapped: false,
        }
    }

    /// Collects up to `max` elements of at most a page each. Stops before an element that an IOMMU
    /// could not place behind the others, because it joins whole pages. Returns the number of
    /// bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are more than `max_len` bytes; `ENOMEM`.
    fn gather<'p>(
        &mut self,
        runs: &mut MemSegs<'p, impl Iterator<Item = MemSeg<'p>>>,
        max_len: u32,
        max: usize,
    ) -> Result<u32> {
        self.bvecs.clear();
        let mut total = 0_u32;
        let mut whole = true;
        while let Some(front) = runs.front() {
            let joins = whole && front.offset() == 0;
            if !self.bvecs.is_empty() && (!joins || self.bvecs.len() >= max) {
                break;
            }
            let Some(run) = runs.take(1) else { break };
            // CAST: At most a page.
            let (offset, len) = (run.offset() as u32, run.len() as u32);
            self.bvecs.push(
                bindings::bio_vec {
                    bv_page: run.page().as_ptr(),
                    bv_len: len,
                    bv_offset: offset,
                },
                GFP_KERNEL,
            )?;
            whole = run.ends_page();
            total = total
                .checked_add(len)
                .filter(|total| *total <= max_len)
                .ok_or(EINVAL)?;
        }
        Ok(total)
    }

    /// Unmaps the context. Without `qp`, which means that the QP was destroyed, it sleeps.
    fn unmap(&mut self, qp: Option<&RawQp<'_>>) {
        if !core::mem::take(&mut self.mapped) {
            return;
        }
        let Some(qp) = qp else {
            // SAFETY: By the type's invariant the context was initialised. It is not in use, see
            // below.
            return unsafe { deregister(self.context.get()) };
        };
        // SAFETY: By the type's invariant the context was initialised with these arguments. It is
        // not posted: a posted chain owns the transfer, which the caller borrows mutably.
        unsafe {
            bindings::rdma_rw_ctx_destroy_bvec(
                self.context.get(),
                qp.as_raw(),
                qp.port(),
                self.bvecs.as_ptr(),
                // CAST: `add_part` checked that it fits.
                self.bvecs.len() as u32,
                TransferDir::Read.as_raw(),
            );
        }
    }
}

/// Deregisters the memory regions of an rdma_rw context whose QP is destroyed. They are not in the
/// QP's pool, so nothing else would deregister them. The rest, a few allocations and DMA mappings,
/// leaks, because rdma_rw cannot free it without the QP. Sleeps.
///
/// # Safety
///
/// `context` must be initialised, for an RDMA Read of an iWARP device, and not posted. Nobody may
/// use it afterwards.
#[cold]
unsafe fn deregister(context: *mut bindings::rdma_rw_ctx) {
    // SAFETY: For an RDMA Read of an iWARP device rdma_rw registers memory, so `reg` is the member
    // in use, and has `nr_ops` elements. The context took each of their regions out of the pool of
    // the QP, and so owns them.
    unsafe {
        let registrations = (*context).__bindgen_anon_1.reg;
        // CAST: `usize` has 64 bits.
        for at in 0..(*context).nr_ops as usize {
            let region = (*registrations.add(at)).mr;
            bindings::ib_dereg_mr_user(region, null_mut());
        }
    }
}

/// Returns the requests of an rdma_rw context, unsignaled.
///
/// # Safety
///
/// The context must be initialised for `qp` and used by nobody else.
unsafe fn link(
    context: *mut bindings::rdma_rw_ctx,
    qp: *mut bindings::ib_qp,
    port: u32,
) -> Requests {
    let mut end = bindings::ib_send_wr::default();
    let end: *mut bindings::ib_send_wr = &mut end;
    // SAFETY: The context is initialised for this QP by this function's contract. With a request
    // to follow, C leaves the last one of the context unsignaled and links it to that one.
    let first = unsafe { bindings::rdma_rw_ctx_wrs(context, qp, port, null_mut(), end) };
    let mut last = first;
    let mut count = 1;
    // SAFETY: C links the requests of a context up to the one to follow. They are the caller's, and
    // C does not look at their entries.
    unsafe {
        (*first).__bindgen_anon_1 = unsignaled();
        while (*last).next != end {
            last = (*last).next;
            (*last).__bindgen_anon_1 = unsignaled();
            count += 1;
        }
    }
    // The last request of a context is an RDMA Read: registrations precede it.
    Requests {
        first,
        last,
        kind: WrKind::Rdma,
        count,
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
