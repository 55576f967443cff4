// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory regions: memory that a peer may read or write for a while.
//!
//! ```text
//!          map            Chain::reg_mr           Chain::local_inv
//!   Idle ──────► Mapped ───────────────► Registered ─────────────► Invalidating
//!     ▲            │                         │ the peer's               │ completed_by
//!     │            │ unmap                   │ Send With Invalidate     │
//!     └────────────┴──────── Fenced ◄────────┴──────────────────────────┘
//! ```
//!
//! With a chain that was not posted, a step is taken back (`retract`). Once the QP is drained,
//! every region counts as fenced.
//!
//! The memory behind a region may be used by others again only once it is *fenced*: never
//! registered, invalidated as one of the completions above proves, or out of the peer's reach
//! because the QP is drained. A region that is dropped before that is leaked, with a warning,
//! for the device may still write to its memory.
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
    list::{
        Linked,
        List, //
    },
    pd::Pd,
    qp::Unposted,
    recv::Invalidated,
    wr::Ticket,
    Access,
    Direction, //
};
use crate::kapi::{
    bindings,
    ext::{
        lend::{
            LentSegs,
            Loan, //
        },
        memory::{
            MemSeg,
            MemSegs, //
        }, //
    }, //
};

/// The part of a key that is the consumer's.
const KEY: u32 = 0xff;

/// Returns the key after `key`: the next one of those that differ in the consumer's part.
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
/// first `nents` entries of `list` are mapped for the device in `direction`, and `reg` and `inv`
/// register and invalidate that mapping.
pub(crate) struct MrInner {
    mr: *mut bindings::ib_mr,
    reg: Opaque<bindings::ib_reg_wr>,
    inv: Opaque<bindings::ib_send_wr>,
    list: KVec<bindings::scatterlist>,
    nents: usize,
    /// Keeps what is mapped.
    loan: Option<Loan>,
    /// References to what is mapped, if that is shared.
    pages: KVec<PageRef>,
    gaps: bool,
    state: State,
    access: Access,
    pd: Arc<Pd>,
    next: *mut MrInner,
}

/// A memory region.
///
/// # Examples
///
/// ```ignore
/// let mut region = Mr::new(&pd, 256)?;
/// let bytes = region.map(&mut lent, Access::RemoteWrite, 0)?;
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
/// The pointer is a box given up, and ours alone.
#[repr(transparent)]
pub(crate) struct Mr(NonNull<MrInner>);

// SAFETY: Regions are used from every thread, one at a time.
unsafe impl Send for Mr {}
// SAFETY: Shared access reads only.
unsafe impl Sync for Mr {}

impl Mr {
    /// Makes a region for up to `max_pages` pages. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for none; `ENOMEM`, and what the device says.
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
                ..Default::default()
            },
            mr,
            ..Default::default()
        };
        let inv = bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
            ..Default::default()
        };
        // INVARIANT: Made for this PD and length.
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
        // INVARIANT: The box is given up to us.
        // SAFETY: A box is not null.
        Ok(Mr(unsafe { NonNull::new_unchecked(inner) }))
    }

    fn inner(&self) -> &MrInner {
        // SAFETY: The pointer is a box given up, ours alone, and `self` is borrowed.
        unsafe { self.0.as_ref() }
    }

    fn inner_mut(&mut self) -> &mut MrInner {
        // SAFETY: By the type's invariant; C has no pointer to the object, only to what it
        // points to.
        unsafe { self.0.as_mut() }
    }

    pub(in crate::kapi) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.inner().mr
    }

    /// Maps a first part of `segs` for the device, as much as one registration covers.
    ///
    /// Takes from `segs` what it maps, and returns the number of bytes. Without support for
    /// gaps, a registration ends before a run that does not start its page and after one that
    /// does not end its page. `tag` becomes the upper half of the region's offset. The handle
    /// is a new one every time.
    ///
    /// # Errors
    ///
    /// `EBUSY` unless the region is idle; `EINVAL` if there is nothing to map; `ENOMEM` if
    /// there is no room in the IOMMU, or no memory for references to shared pages, which is
    /// asked for without sleeping; `EIO` if the device cannot. What was taken from `segs` is then
    /// lost.
    pub(crate) fn map<'s, I>(
        &mut self,
        segs: &mut LentSegs<'s, I>,
        access: Access,
        tag: u32,
    ) -> Result<usize>
    where
        I: Iterator<Item = MemSeg<'s>>,
    {
        let this = self.inner_mut();
        if this.state != State::Idle {
            return Err(EBUSY);
        }
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
        // SAFETY: The region is ours, unknown to the device as long as it is not registered, and
        // its requests are in no chain.
        unsafe {
            let mr = this.mr;
            (*mr).iova = ((*mr).iova & u64::from(u32::MAX)) | (u64::from(tag) << 32);
            let key = next_key((*mr).rkey);
            (*mr).rkey = key;
            (*mr).lkey = ((*mr).lkey & !KEY) | (key & KEY);
            // INVARIANT: That is what they say now.
            (*this.reg.get()).key = key;
            (*this.reg.get()).access = access.flags();
            (*this.inv.get()).ex.invalidate_rkey = ManuallyDrop::new(key);
        }
        Ok(bytes)
    }

    /// Returns the handle by which the peer names the region.
    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: The region is valid.
        unsafe { (*self.as_raw()).rkey }
    }

    /// Returns the length of what is mapped.
    pub(crate) fn length(&self) -> u32 {
        // SAFETY: The region is valid.
        let length = unsafe { (*self.as_raw()).length };
        // `fill` limits it.
        u32::try_from(length).unwrap_or(u32::MAX)
    }

    /// Returns the offset by which the peer names the first byte.
    pub(crate) fn offset(&self) -> u64 {
        // SAFETY: The region is valid.
        unsafe { (*self.as_raw()).iova }
    }

    /// Returns the PD.
    pub(super) fn pd(&self) -> &Pd {
        &self.inner().pd
    }

    /// Notes that a chain registers the region, and returns the request for that, which is the
    /// first field of an `ib_reg_wr`.
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

    /// Notes that a chain invalidates the region, and returns the request for that.
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

    /// Takes back what a chain was to do with the region, which was not posted.
    pub(crate) fn retract(&mut self, unposted: Unposted) {
        let ticket = unposted.ticket();
        let this = self.inner_mut();
        this.state = match this.state {
            State::Registered { by } if by == ticket => State::Mapped,
            State::Invalidating { registered_by, by } if by == ticket => {
                // A chain may do both.
                if registered_by == ticket {
                    State::Mapped
                } else {
                    State::Registered { by: registered_by }
                }
            }
            other => other,
        };
    }

    /// Notes that the peer had a handle invalidated; returns whether it was this region's,
    /// which is then fenced.
    ///
    /// What was received before the region was registered says nothing about it, even if the
    /// handle is the same: there are 256 of them, used in turn.
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

    /// Notes that a chain is done; returns whether it invalidated this region, which is then
    /// fenced.
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

    /// Returns whether no peer reaches the memory.
    pub(crate) fn is_fenced(&self) -> bool {
        let this = self.inner();
        match this.state {
            State::Idle | State::Mapped | State::Fenced => true,
            State::Registered { .. } | State::Invalidating { .. } => this.pd.is_fenced(),
        }
    }

    /// Gives the memory back; the region is idle then.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is not fenced.
    pub(crate) fn unmap(&mut self) -> Result {
        if !self.is_fenced() {
            return Err(EBUSY);
        }
        let this = self.inner_mut();
        if this.state != State::Idle {
            // INVARIANT: Idle is the state in which nothing is mapped.
            this.state = State::Idle;
            this.dma_unmap();
        }
        Ok(())
    }
}

impl MrInner {
    /// Puts runs into the list; returns how many, and of how many bytes.
    fn fill<'s, I>(&mut self, segs: &mut MemSegs<'s, I>) -> Result<(usize, usize)>
    where
        I: Iterator<Item = MemSeg<'s>>,
    {
        // As many pages as entries.
        let (mut count, mut bytes, mut room) = (0, 0_usize, self.list.len());
        for entry in &mut self.list {
            match segs.front() {
                Some(seg) if room > 0 && (count == 0 || self.gaps || seg.offset() == 0) => (),
                _ => break,
            }
            let Some(seg) = segs.take(room) else { break };
            if self.access == Access::SharedRead {
                match PageRef::add(&seg, &mut self.pages, GFP_NOWAIT) {
                    // Memory of the slab allocator: its owner keeps it.
                    Ok(()) | Err(EINVAL) => (),
                    Err(error) => return Err(error),
                }
            }
            *entry = describe(&seg);
            count += 1;
            bytes += seg.len();
            room -= seg.page_count();
            if !self.gaps && !seg.ends_page() {
                break;
            }
        }
        match count {
            0 => Err(EINVAL),
            _ => Ok((count, bytes)),
        }
    }

    fn direction(&self) -> bindings::dma_data_direction {
        let direction: Direction = self.access.direction();
        direction.as_raw()
    }

    /// Maps the first `count` entries and tells the region of them.
    fn dma_map(&mut self, count: usize) -> Result {
        let direction = self.direction();
        let list = self.list.get_mut(..count).ok_or(EINVAL)?;
        let mapped = map_list(self.pd.device(), list, direction)?;
        self.nents = count;
        // CAST: Not more than entries, which are as many as a region of the device has pages.
        let mapped = mapped as i32;
        // SAFETY: The list has that many mapped runs; the region was made for as many pages as
        // these have.
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
            return Err(EIO);
        }
        // INVARIANT: The entries are mapped.
        self.state = State::Mapped;
        Ok(())
    }

    /// Unmaps what is mapped. Neither the device nor a peer may use it any more.
    fn dma_unmap(&mut self) {
        let direction = self.direction();
        if let Some(list) = self.list.get_mut(..self.nents) {
            unmap_list(self.pd.device(), list, direction);
        }
        self.nents = 0;
        self.pages.clear();
        self.loan = None;
    }
}

impl Drop for MrInner {
    /// Sleeps.
    fn drop(&mut self) {
        // A region that is gone is a fence as well, so the order matters.
        // SAFETY: The region is ours and no Work Request names it.
        unsafe { bindings::ib_dereg_mr_user(self.mr, core::ptr::null_mut()) };
        if self.nents != 0 {
            self.dma_unmap();
        }
    }
}

impl Drop for Mr {
    /// Sleeps.
    fn drop(&mut self) {
        if !self.is_fenced() {
            // The device may still use the region, and the peer its memory: leak both.
            kernel::warn_on!(true);
            return;
        }
        // SAFETY: The pointer is a box given up, which nobody uses after this drop.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }
}

/// A queue of [`Mr`]s.
pub(crate) type MrList = List<Mr>;

// SAFETY: The type is transparent, and nobody else uses `next`.
unsafe impl Linked for Mr {
    type Node = MrInner;

    fn into_node(self) -> NonNull<MrInner> {
        ManuallyDrop::new(self).0
    }

    unsafe fn from_node(node: NonNull<MrInner>) -> Self {
        // INVARIANT: By this function's contract.
        Mr(node)
    }

    unsafe fn link(node: *mut MrInner) -> *mut *mut MrInner {
        // SAFETY: The node is valid by this function's contract.
        unsafe { &raw mut (*node).next }
    }
}

impl MrList {
    /// Takes back what a chain was to do with the regions, which was not posted.
    pub(crate) fn retract(&mut self, unposted: Unposted) {
        let _ = self.try_for_each(|mr| {
            mr.retract(unposted);
            Ok(())
        });
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
