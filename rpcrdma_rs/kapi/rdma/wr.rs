// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Chains of Send Work Requests.
//!
//! A chain is built inside [`Qp::post`](super::qp::Qp::post) and handed to the device in one
//! piece. Its requests are executed in the order they were added. Only the last is signaled,
//! and its completion stands for all: the device completes them in order.

use core::{
    marker::PhantomData,
    mem::{
        ManuallyDrop,
        MaybeUninit, //
    },
};

use kernel::prelude::*;

use super::{
    cq::cid_of,
    dma::Sge,
    entry::Entry,
    mr::Mr,
    rw::Transfer, //
};
use crate::kapi::{
    bindings,
    trace::Cid, //
};

/// A chain that is being built, from what lives at least as long as `'a`.
///
/// # Invariants
///
/// `first` and `last` are the ends of a list of requests, each of which is in this chain or in
/// something borrowed for `'a`; both are null if the list is empty. The chain is not moved. `qp`
/// is valid during `'a`.
pub(crate) struct Chain<'a> {
    first: *mut bindings::ib_send_wr,
    last: *mut bindings::ib_send_wr,
    count: u32,
    ticket: u64,
    qp: *mut bindings::ib_qp,
    port: u32,
    sent: bool,
    nr_mr: usize,
    mrs: [MaybeUninit<bindings::ib_reg_wr>; Chain::MAX_MR],
    send: MaybeUninit<bindings::ib_send_wr>,
    sges: [MaybeUninit<bindings::ib_sge>; Chain::MAX_SGE],
    // Invariant in 'a: a chain is for borrows of one owner.
    _owner: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl Chain<'_> {
    /// Registrations and invalidations in one chain.
    pub(crate) const MAX_MR: usize = 32;

    /// SGEs of a Send.
    pub(crate) const MAX_SGE: usize = 32;
}

impl<'a> Chain<'a> {
    /// An empty chain for `qp`.
    ///
    /// # Safety
    ///
    /// `qp` is valid during `'a`.
    pub(super) unsafe fn new(qp: *mut bindings::ib_qp, port: u32, ticket: u64) -> Self {
        // INVARIANT: By the contract of this function; the list is empty.
        Chain {
            first: core::ptr::null_mut(),
            last: core::ptr::null_mut(),
            count: 0,
            ticket,
            qp,
            port,
            sent: false,
            nr_mr: 0,
            mrs: [const { MaybeUninit::uninit() }; Chain::MAX_MR],
            send: MaybeUninit::uninit(),
            sges: [const { MaybeUninit::uninit() }; Chain::MAX_SGE],
            _owner: PhantomData,
        }
    }

    /// What trace events show to pair this post with its completion.
    pub(crate) fn cid(&self) -> Cid {
        // SAFETY: The QP is valid by the invariants, and so is its CQ.
        unsafe { cid_of((*self.qp).send_cq, self.ticket) }
    }

    /// Appends `count` requests, linked from `first` to `last`.
    ///
    /// # Safety
    ///
    /// They must be in this chain or borrowed for `'a`, and in no other list.
    unsafe fn append(
        &mut self,
        first: *mut bindings::ib_send_wr,
        last: *mut bindings::ib_send_wr,
        count: u32,
    ) {
        if self.last.is_null() {
            self.first = first;
        } else {
            // SAFETY: By the type's invariant `last` is a valid request.
            unsafe { (*self.last).next = first };
        }
        // SAFETY: By this function's contract.
        unsafe { (*last).next = core::ptr::null_mut() };
        // INVARIANT: By this function's contract.
        self.last = last;
        self.count += count;
    }

    /// Appends the request for a memory region that `start` makes of the ticket, in the next
    /// place for these. The region is part of the chain once `start` has succeeded.
    fn append_mr(&mut self, start: impl FnOnce(u64) -> Result<bindings::ib_reg_wr>) -> Result {
        if self.sent {
            return Err(EINVAL);
        }
        let slot = self.mrs.get_mut(self.nr_mr).ok_or(E2BIG)?;
        let raw: *mut bindings::ib_send_wr = &raw mut slot.write(start(self.ticket)?).wr;
        self.nr_mr += 1;
        // SAFETY: The place is in this chain and was free.
        unsafe { self.append(raw, raw, 1) };
        Ok(())
    }

    /// Registers a mapped region.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not mapped or comes after a Send; `E2BIG` if there are too many.
    pub(crate) fn reg_mr(&mut self, mr: &mut Mr) -> Result {
        self.append_mr(|ticket| {
            let (key, access) = mr.start_registration(ticket)?;
            let wr = bindings::ib_send_wr {
                opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
                ..Default::default()
            };
            Ok(bindings::ib_reg_wr {
                wr,
                mr: mr.as_raw(),
                key,
                access,
            })
        })
    }

    /// Invalidates a registered region.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not registered or comes after a Send; `E2BIG` if there are too many.
    pub(crate) fn local_inv(&mut self, mr: &mut Mr) -> Result {
        self.append_mr(|ticket| {
            let key = mr.start_invalidation(ticket)?;
            let mut wr = bindings::ib_send_wr {
                opcode: bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
                ..Default::default()
            };
            wr.ex.invalidate_rkey = ManuallyDrop::new(key);
            Ok(bindings::ib_reg_wr {
                wr,
                ..Default::default()
            })
        })
    }

    /// Reads from or writes to the peer, all that `transfer` holds.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the transfer is of another QP, is in this chain already, or comes after a
    /// Send.
    pub(crate) fn transfer(&mut self, transfer: &'a Transfer) -> Result {
        if self.sent || !transfer.enter_chain(self.qp, self.ticket) {
            return Err(EINVAL);
        }
        for context in transfer.contexts() {
            // SAFETY: The context is initialised for this QP and borrowed for `'a`; no other
            // chain uses it, as what is posted owns the transfer, which is not `Sync`.
            let (first, last, count) = unsafe { link(context, self.qp, self.port) };
            // SAFETY: As above.
            unsafe { self.append(first, last, count) };
        }
        Ok(())
    }

    fn send_with(
        &mut self,
        sges: impl Iterator<Item = Sge<'a>>,
        mut wr: bindings::ib_send_wr,
    ) -> Result {
        if self.sent {
            return Err(EINVAL);
        }
        let mut count = 0;
        for sge in sges.filter(|s| s.len() > 0) {
            self.sges.get_mut(count).ok_or(E2BIG)?.write(sge.raw());
            count += 1;
        }
        // CAST: At most `MAX_SGE`, and the elements up to `count` are initialised.
        wr.num_sge = count as i32;
        wr.sg_list = self.sges.as_mut_ptr().cast();
        self.sent = true;
        let raw: *mut bindings::ib_send_wr = self.send.write(wr);
        // SAFETY: The request is in this chain, and this is its only use.
        unsafe { self.append(raw, raw, 1) };
        Ok(())
    }

    /// Sends a message. Nothing may follow. Empty SGEs are left out.
    ///
    /// # Errors
    ///
    /// `E2BIG` if there are too many SGEs, `EINVAL` after a Send.
    pub(crate) fn send(&mut self, sges: impl Iterator<Item = Sge<'a>>) -> Result {
        let wr = bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_SEND,
            ..Default::default()
        };
        self.send_with(sges, wr)
    }

    /// Sends a message that makes the peer's device invalidate `handle`. Nothing may follow.
    ///
    /// # Errors
    ///
    /// As [`Chain::send`].
    pub(crate) fn send_with_invalidate(
        &mut self,
        sges: impl Iterator<Item = Sge<'a>>,
        handle: u32,
    ) -> Result {
        let mut wr = bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV,
            ..Default::default()
        };
        wr.ex.invalidate_rkey = ManuallyDrop::new(handle);
        self.send_with(sges, wr)
    }

    /// The number of Work Requests so far, that is of Send Queue entries.
    pub(crate) fn wrs(&self) -> u32 {
        self.count
    }

    /// Makes the last request carry the completion and returns the first; `None` if there is
    /// none.
    pub(super) fn finish(&mut self, entry: *mut Entry) -> Option<*mut bindings::ib_send_wr> {
        if self.last.is_null() {
            return None;
        }
        // SAFETY: By the type's invariant.
        unsafe {
            (*self.last).__bindgen_anon_1.wr_cqe = ManuallyDrop::new(Entry::cqe(entry));
            (*self.last).send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED;
        }
        Some(self.first)
    }
}

/// Returns the ends and the number of the requests of an rdma_rw context, unsignaled.
///
/// # Safety
///
/// The context must be initialised for `qp` and used by nobody else.
unsafe fn link(
    context: *mut bindings::rdma_rw_ctx,
    qp: *mut bindings::ib_qp,
    port: u32,
) -> (*mut bindings::ib_send_wr, *mut bindings::ib_send_wr, u32) {
    let mut end = bindings::ib_send_wr::default();
    let end: *mut bindings::ib_send_wr = &mut end;
    // SAFETY: By this function's contract. With a request to follow, C leaves the last one of
    // the context unsignaled and links it to that one.
    let first = unsafe { bindings::rdma_rw_ctx_wrs(context, qp, port, core::ptr::null_mut(), end) };
    let mut last = first;
    let mut count = 1;
    // SAFETY: C links the requests of a context up to the one to follow.
    unsafe {
        while (*last).next != end {
            last = (*last).next;
            count += 1;
        }
        // Left from an earlier try to post, where it was the last of its chain.
        (*last).send_flags &= !bindings::ib_send_flags_IB_SEND_SIGNALED;
        (*last).__bindgen_anon_1.wr_cqe = ManuallyDrop::new(core::ptr::null_mut());
    }
    (first, last, count)
}

#[cfg(rpcrdma_kunit)]
mod kunit;
