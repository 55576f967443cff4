// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory regions (MRs): memory that is registered so that a peer can read or write it.
//!
//! ```text
//!          map            Chain::reg_mr           Chain::local_inv
//!   Idle ──────► Mapped ───────────────► Registered ─────────────► Invalidating
//!     ▲            │                         │ the peer's               │ completed_by
//!     │            │ unmap                   │ Send With Invalidate     │
//!     └────────────┴──────── Fenced ◄────────┴──────────────────────────┘
//! ```
//!
//! If a chain is not posted, `retract` undoes the step. Once the QP is stopped and drained, every
//! region is fenced.
//!
//! The memory of a region may be reused only when the region is *fenced*: it was never registered,
//! one of the completions above has proved that it is invalidated, or the peer can no longer reach
//! it because the QP is stopped and drained. If a device refuses to stop the QP, dropping the
//! region after the QP is closed fences it, by deregistering it before its memory is unmapped. A
//! device that refuses to deregister it as well counts as dead: the memory is returned, because the
//! task that waits for it would otherwise never end. Dropping a region that is not fenced before
//! the QP is closed leaks it with a warning, because the device may still write to its memory.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

use kernel::{
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    cq::Wc,
    dma::{
        describe,
        map_list,
        unmap_list,
        PageRef, //
    },
    failure::unsignaled,
    list::{
        Linked,
        List, //
    },
    pd::Pd,
    qp::Unposted,
    recv::Invalidated,
    wr::Ticket,
    DataDirection, //
};
use crate::kapi::{
    bindings,
    ext::{
        lend::{
            Access,
            LentSegs,
            Loan, //
        },
        memory::{
            MemSeg,
            MemSegs, //
        }, //
    }, //
};

/// The bits of a key that the consumer chooses.
const KEY: u32 = 0xff;

/// Returns `key` with its consumer-chosen bits incremented.
fn next_key(key: u32) -> u32 {
    (key & !KEY) | (key.wrapping_add(1) & KEY)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Mapped,
    Registered { by: Ticket },
    Invalidating { registered_by: Ticket, by: Ticket },
    Fenced,
}

/// # Invariants
///
/// `mr` is a region of `pd` for up to `list.len()` entries. In every state but `Idle` the
/// first `nents` entries of `list` are mapped for the device in the direction of `access`, and
/// `reg` and `inv` register and invalidate that mapping.
pub(crate) struct MrInner {
    mr: *mut bindings::ib_mr,
    reg: Opaque<bindings::ib_reg_wr>,
    inv: Opaque<bindings::ib_send_wr>,
    list: KVec<bindings::scatterlist>,
    nents: usize,
    /// Keeps the mapped memory from being reused.
    loan: Option<Loan>,
    /// References to the mapped pages, if others share them.
    pages: KVec<PageRef>,
    gaps: bool,
    state: State,
    access: Access,
    pd: Arc<Pd>,
    next: *mut MrInner,
}

/// A memory region for fast registration.
///
/// # Examples
///
/// ```ignore
/// let mut region = Mr::new(&pd, 256)?;
/// let bytes = region.map(&mut lent, 0)?;
/// // Tell the peer, in the message that the same chain sends:
/// let (handle, offset) = (region.handle(), region.offset());
/// qp.post(message, |message, chain| {
///     chain.reg_mr(&mut region)?;
///     chain.send(&message.text)
/// })
/// ```
///
/// # Invariants
///
/// The pointer comes from `KBox::into_raw`, and this object owns it.
#[repr(transparent)]
pub(crate) struct Mr(NonNull<MrInner>);

// SAFETY: ib_core allows any thread to use an MR, one at a time.
unsafe impl Send for Mr {}
// SAFETY: Methods that take a shared reference only read.
unsafe impl Sync for Mr {}

impl Mr {
    /// Allocates a region for up to `max_pages` pages. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `max_pages` is zero, `ENOMEM`, or an error of the device.
    pub(crate) fn new(pd: &Arc<Pd>, max_pages: u32) -> Result<Mr> {
        if max_pages == 0 {
            return Err(EINVAL);
        }
        let gaps = pd.device().attrs().sg_gaps;
        let kind = if gaps {
            bindings::ib_mr_type_IB_MR_TYPE_SG_GAPS
        } else {
            bindings::ib_mr_type_IB_MR_TYPE_MEM_REG
        };
        let mut list = KVec::new();
        list.extend_with(
            max_pages as usize,
            bindings::scatterlist::default(),
            GFP_KERNEL,
        )?;
        // SAFETY: The PD is valid.
        let mr = from_err_ptr(unsafe { bindings::ib_alloc_mr(pd.as_raw(), kind, max_pages) })?;
        let reg = bindings::ib_reg_wr {
            wr: bindings::ib_send_wr {
                opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
                __bindgen_anon_1: unsignaled(),
                ..Default::default()
            },
            mr,
            ..Default::default()
        };
        let inv = bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
            __bindgen_anon_1: unsignaled(),
            ..Default::default()
        };
        // INVARIANT: `mr` was allocated for this PD and number of pages, and nothing is mapped.
        let inner = MrInner {
            mr,
            reg: Opaque::new(reg),
            inv: Opaque::new(inv),
            list,
            nents: 0,
            loan: None,
            pages: KVec::new(),
            gaps,
            state: State::Idle,
            access: Access::RemoteRead,
            pd: pd.clone(),
            next: core::ptr::null_mut(),
        };
        let inner = KBox::into_raw(KBox::new(inner, GFP_KERNEL)?);
        // INVARIANT: The pointer comes from `into_raw`, and this object owns it.
        // SAFETY: `into_raw` does not return null.
        Ok(Mr(unsafe { NonNull::new_unchecked(inner) }))
    }

    fn inner(&self) -> &MrInner {
        // SAFETY: By the type's invariant this object owns the pointee, and `self` is borrowed.
        unsafe { self.0.as_ref() }
    }

    fn inner_mut(&mut self) -> &mut MrInner {
        // SAFETY: By the type's invariant this object owns the pointee, and `self` is borrowed
        // mutably. C has pointers to the MR and the list, not to the pointee itself.
        unsafe { self.0.as_mut() }
    }

    pub(in crate::kapi) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.inner().mr
    }

    /// DMA-maps the front of `segs`, as much as one registration can cover, and returns the number
    /// of bytes. Does not sleep.
    ///
    /// The mapped runs are consumed from `segs`. If the device does not support gaps, a
    /// registration ends before a run that does not start at a page boundary, and after a run that
    /// does not end at one. `tag` becomes the upper half of the region's offset. Each call changes
    /// the handle.
    ///
    /// # Errors
    ///
    /// * `EBUSY` if the region is not idle,
    /// * `EINVAL` if `segs` is empty,
    /// * `ENOMEM` if the IOMMU has no room, references to shared pages cannot be allocated, or the
    ///   driver has no memory,
    /// * `EIO` if the device cannot map the runs.
    ///
    /// The runs that were consumed from `segs` are lost then.
    pub(crate) fn map<'s, I>(&mut self, segs: &mut LentSegs<'s, I>, tag: u32) -> Result<usize>
    where
        I: Iterator<Item = MemSeg<'s>>,
    {
        let this = self.inner_mut();
        if this.state != State::Idle {
            return Err(EBUSY);
        }
        let access = segs.access();
        this.access = access;
        let filled = this.fill(segs.segs()).and_then(|(count, bytes)| {
            this.dma_map(count)?;
            Ok(bytes)
        });
        let Ok(bytes) = filled else {
            this.pages.clear();
            return filled;
        };
        this.loan = Some(segs.loan());
        // SAFETY: This object owns the MR. The device does not use it while it is not registered,
        // and its Work Requests are in no chain.
        unsafe {
            let mr = this.mr;
            (*mr).iova = ((*mr).iova & u64::from(u32::MAX)) | (u64::from(tag) << 32);
            let key = next_key((*mr).rkey);
            (*mr).rkey = key;
            (*mr).lkey = ((*mr).lkey & !KEY) | (key & KEY);
            // INVARIANT: `reg` and `inv` describe the new mapping from here on.
            (*this.reg.get()).key = key;
            (*this.reg.get()).access = access.flags();
            (*this.inv.get()).ex.invalidate_rkey = ManuallyDrop::new(key);
        }
        Ok(bytes)
    }

    /// Returns the handle (R_key) that the peer uses for the region.
    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: The region is valid.
        unsafe { (*self.as_raw()).rkey }
    }

    /// Returns the number of mapped bytes.
    pub(crate) fn length(&self) -> u32 {
        // SAFETY: The region is valid.
        let length = unsafe { (*self.as_raw()).length };
        // `fill` limits the length to what fits.
        u32::try_from(length).unwrap_or(u32::MAX)
    }

    /// Returns the offset that the peer uses for the first byte.
    pub(crate) fn offset(&self) -> u64 {
        // SAFETY: The region is valid.
        unsafe { (*self.as_raw()).iova }
    }

    /// Returns the PD.
    pub(super) fn pd(&self) -> &Pd {
        &self.inner().pd
    }

    /// Records that a chain registers the region. Returns the Work Request for that, the first
    /// field of an `ib_reg_wr`.
    pub(super) fn start_registration(
        &mut self,
        ticket: Ticket,
    ) -> Result<*mut bindings::ib_send_wr> {
        let this = self.inner_mut();
        if this.state != State::Mapped {
            return Err(EINVAL);
        }
        this.state = State::Registered { by: ticket };
        Ok(this.reg.get().cast())
    }

    /// Records that a chain invalidates the region. Returns the Work Request for that.
    pub(super) fn start_invalidation(
        &mut self,
        ticket: Ticket,
    ) -> Result<*mut bindings::ib_send_wr> {
        let this = self.inner_mut();
        let State::Registered { by } = this.state else {
            return Err(EINVAL);
        };
        this.state = State::Invalidating {
            registered_by: by,
            by: ticket,
        };
        Ok(this.inv.get())
    }

    /// Undoes the step that a chain recorded, because that chain was not posted.
    pub(crate) fn retract(&mut self, unposted: Unposted) {
        let ticket = unposted.ticket();
        let this = self.inner_mut();
        this.state = match this.state {
            State::Registered { by } if by == ticket => State::Mapped,
            State::Invalidating { registered_by, by } if by == ticket => {
                // One chain may both register and invalidate a region.
                if registered_by == ticket {
                    State::Mapped
                } else {
                    State::Registered { by: registered_by }
                }
            }
            other => other,
        };
    }

    /// Fences the region if `invalidated` is a remote invalidation of its handle; returns whether
    /// it is.
    ///
    /// A message that was received before the region was registered proves nothing, even if the
    /// handle is the same: a region has 256 handles, and uses them in turn.
    pub(crate) fn invalidated_by(&mut self, invalidated: Invalidated<'_>) -> bool {
        let ours = matches!(
            self.inner().state,
            State::Registered { by } if by.precedes(invalidated.before())
        ) && self.handle() == invalidated.handle();
        if ours {
            self.inner_mut().state = State::Fenced;
        }
        ours
    }

    /// Fences the region if the completed chain invalidated it; returns whether it did.
    pub(crate) fn completed_by(&mut self, wc: &Wc) -> bool {
        let ours = matches!(
            self.inner().state,
            State::Invalidating { by, .. } if by == wc.ticket()
        );
        if ours {
            self.inner_mut().state = State::Fenced;
        }
        ours
    }

    /// Returns whether the region is fenced: no peer can access the memory.
    pub(crate) fn is_fenced(&self) -> bool {
        let this = self.inner();
        match this.state {
            State::Idle | State::Mapped | State::Fenced => true,
            State::Registered { .. } | State::Invalidating { .. } => this.pd.is_fenced(),
        }
    }

    /// Unmaps the memory and drops its loan. The region is idle afterwards.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the region is not fenced.
    pub(crate) fn unmap(&mut self) -> Result {
        if !self.is_fenced() {
            return Err(EBUSY);
        }
        let this = self.inner_mut();
        if this.state != State::Idle {
            // INVARIANT: Nothing is mapped any more, as `Idle` requires.
            this.state = State::Idle;
            this.dma_unmap();
        }
        Ok(())
    }
}

impl MrInner {
    /// Fills the scatterlist with runs. Returns the number of entries and of bytes.
    #[inline(always)]
    fn fill<'s, I>(&mut self, segs: &mut MemSegs<'s, I>) -> Result<(usize, usize)>
    where
        I: Iterator<Item = MemSeg<'s>>,
    {
        // A region covers as many pages as its list has entries.
        let first = segs.take(self.list.len()).ok_or(EINVAL)?;
        self.set_entry(0, &first)?;
        match segs.front() {
            // The usual case.
            None => Ok((1, first.len())),
            Some(_) => self.fill_more(segs, first),
        }
    }

    /// Adds the runs that one registration can cover with the run before, the first of the list.
    /// Returns the number of entries and of bytes.
    #[inline(never)]
    fn fill_more<'s, I>(
        &mut self,
        segs: &mut MemSegs<'s, I>,
        mut before: MemSeg<'s>,
    ) -> Result<(usize, usize)>
    where
        I: Iterator<Item = MemSeg<'s>>,
    {
        let (mut count, mut bytes) = (1, before.len());
        let mut room = self.list.len() - before.page_count();
        while let Some(next) = segs.front() {
            let joins = self.gaps || (before.ends_page() && next.offset() == 0);
            if !joins || room == 0 || count == self.list.len() {
                break;
            }
            let Some(seg) = segs.take(room) else { break };
            self.set_entry(count, &seg)?;
            count += 1;
            bytes += seg.len();
            room -= seg.page_count();
            before = seg;
        }
        Ok((count, bytes))
    }

    /// Makes the entry `at` of the scatterlist that of a run.
    #[inline(always)]
    fn set_entry(&mut self, at: usize, seg: &MemSeg<'_>) -> Result {
        if self.access == Access::SharedRead {
            match PageRef::add(seg, &mut self.pages, GFP_NOWAIT) {
                // Slab memory has no page reference; its owner keeps it allocated.
                Ok(()) | Err(EINVAL) => (),
                Err(error) => return Err(error),
            }
        }
        *self.list.get_mut(at).ok_or(EINVAL)? = describe(seg);
        Ok(())
    }

    fn direction(&self) -> bindings::dma_data_direction {
        let direction: DataDirection = self.access.direction();
        direction.as_raw()
    }

    /// DMA-maps the first `count` entries and passes them to the MR.
    #[inline(always)]
    fn dma_map(&mut self, count: usize) -> Result {
        let direction = self.direction();
        let list = self.list.get_mut(..count).ok_or(EINVAL)?;
        // SAFETY: `fill` has written these entries with `describe`. The loan, or the references in
        // `pages`, keep the pages allocated until they are unmapped; a region that cannot be
        // unmapped is leaked.
        let mapped = unsafe { map_list(self.pd.device(), list, direction) }?;
        self.nents = count;
        // CAST: `count` is at most the number of entries, which is the device's limit of pages.
        let mapped = mapped as i32;
        // SAFETY: The list has that many mapped entries, and the MR was allocated for at least as
        // many pages as they cover.
        let taken = unsafe {
            bindings::ib_map_mr_sg(
                self.mr,
                self.list.as_mut_ptr(),
                mapped,
                core::ptr::null_mut(),
                // CAST: A page is not larger than `u32::MAX`.
                PAGE_SIZE as u32,
            )
        };
        if taken != mapped {
            self.dma_unmap();
            // Zero means that hns could not allocate a list of pages. Entries that do not fit give
            // an error, or a smaller number.
            return Err(if taken == 0 { ENOMEM } else { EIO });
        }
        // INVARIANT: The first `nents` entries are mapped.
        self.state = State::Mapped;
        Ok(())
    }

    /// DMA-unmaps the list. Neither the device nor a peer may use the memory any more.
    #[inline]
    fn dma_unmap(&mut self) {
        if !self.pd.device().uses_virt_dma() {
            self.unmap_entries();
        }
        self.nents = 0;
        if !self.pages.is_empty() {
            self.pages.clear();
        }
        self.loan = None;
    }

    /// DMA-unmaps the list of a device that does not use virtual addresses.
    #[inline(never)]
    fn unmap_entries(&mut self) {
        let direction = self.direction();
        if let Some(list) = self.list.get_mut(..self.nents) {
            // SAFETY: `dma_map` has mapped the first `nents` entries, if there are any, for this
            // device and access, which change only while nothing is mapped.
            unsafe { unmap_list(self.pd.device(), list, direction) };
        }
    }
}

impl Drop for MrInner {
    /// Sleeps.
    fn drop(&mut self) {
        // Deregistering the MR fences the memory too, so it comes before unmapping. Only a device
        // that is dead refuses it.
        // SAFETY: This object owns the MR, and no Work Request in flight uses it.
        unsafe { bindings::ib_dereg_mr_user(self.mr, core::ptr::null_mut()) };
        if self.nents != 0 {
            self.dma_unmap();
        }
    }
}

impl Drop for Mr {
    /// Sleeps.
    fn drop(&mut self) {
        // When the QP is closed, no Work Request uses the MR, and `MrInner::drop` deregisters it
        // before it unmaps the memory.
        if !self.is_fenced() && !self.pd().is_closed() {
            // The device may still use the MR, and the peer its memory: leak both.
            kernel::warn_on!(true);
            return;
        }
        // SAFETY: The pointer comes from `into_raw`, and is not used after this drop.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }
}

/// A queue of [`Mr`]s.
pub(crate) type MrList = List<Mr>;

// SAFETY: `Mr` is a transparent wrapper of the pointer, and only the list uses `next`.
unsafe impl Linked for Mr {
    type Node = MrInner;

    fn into_node(self) -> NonNull<MrInner> {
        ManuallyDrop::new(self).0
    }

    unsafe fn from_node(node: NonNull<MrInner>) -> Self {
        // INVARIANT: The node comes from `into_node`, by this function's contract.
        Mr(node)
    }

    unsafe fn link(node: *mut MrInner) -> *mut *mut MrInner {
        // SAFETY: The node is valid by this function's contract.
        unsafe { &raw mut (*node).next }
    }
}

impl MrList {
    /// Undoes the steps that a chain recorded for the regions, because that chain was not posted.
    pub(crate) fn retract(&mut self, unposted: Unposted) {
        let _ = self.try_for_each(|mr| {
            mr.retract(unposted);
            Ok(())
        });
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
