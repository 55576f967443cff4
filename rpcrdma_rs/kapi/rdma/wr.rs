// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Chains of Send Work Requests.
//!
//! A Work Request is a field of the object that it describes: an [`Mr`] has the Work Requests that
//! register and invalidate it, and a [`Transfer`] has its RDMA Reads and Writes. They are filled in
//! when that object is created or mapped. A chain, which [`Qp::post`](super::qp::Qp::post) creates,
//! only links them and passes them to the driver in one post. The Send of a [`SendBuf`] is the last
//! request of its chain, and a field of the chain.
//!
//! The device executes the Work Requests of a chain in the order in which they were added. Only the
//! last one is signaled. Its completion stands for the whole chain, because the Send Queue
//! completes in order. If another one fails, the completion has the status of that one, see
//! [`failure`](super::failure).
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    marker::PhantomData,
    mem::{
        ManuallyDrop,
        MaybeUninit, //
    },
    ptr::null_mut, //
};

use kernel::prelude::*;

use super::{
    cq::cid_of,
    entry::Entry,
    mr::Mr,
    rw::Transfer,
    send::SendBuf,
    Cid, //
};
use crate::kapi::bindings;

/// Identifies a post by its QP and its number on that QP. No two posts have the same ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    /// The number of the QP, which no other QP has or had.
    pub(super) qp: u64,
    /// The number of the post on that QP.
    pub(super) post: u64,
}

impl Ticket {
    /// Returns whether `self` was posted on the QP of `other`, and before it.
    pub(super) fn precedes(self, other: Ticket) -> bool {
        self.qp == other.qp && self.post < other.post
    }
}

/// The C type that a Work Request is the first field of.
#[derive(Clone, Copy)]
pub(super) enum WrKind {
    /// `ib_send_wr` itself.
    Plain,
    /// `ib_reg_wr`.
    Reg,
    /// `ib_rdma_wr`.
    Rdma,
}

/// A Work Request of any kind.
union Copied {
    plain: ManuallyDrop<bindings::ib_send_wr>,
    reg: ManuallyDrop<bindings::ib_reg_wr>,
    rdma: ManuallyDrop<bindings::ib_rdma_wr>,
}

/// Linked Work Requests that are appended to a chain together.
pub(super) struct Requests {
    /// The first request.
    pub(super) first: *mut bindings::ib_send_wr,
    /// The last request.
    pub(super) last: *mut bindings::ib_send_wr,
    /// The C type of the last request.
    pub(super) kind: WrKind,
    /// The number of requests.
    pub(super) count: u32,
}

impl Requests {
    /// Creates a list of one request.
    pub(super) fn one(wr: *mut bindings::ib_send_wr, kind: WrKind) -> Self {
        Requests {
            first: wr,
            last: wr,
            kind,
            count: 1,
        }
    }
}

/// A chain that is being built from objects that live at least as long as `'a`.
///
/// # Invariants
///
/// `first` to `last` is a linked list of requests, and both are null if it is empty. If `sent`,
/// `end` is another request, which follows them: a Send of an object borrowed for `'a`. `count` is
/// the number of all requests. Each request of the list is valid, and only this chain accesses it,
/// until the chain is posted or dropped: it is a field of an object borrowed for `'a`, or of a
/// memory region that this chain registers or invalidates. `last` is of `kind`. `qp` is valid
/// during `'a`.
pub(crate) struct Chain<'a> {
    first: *mut bindings::ib_send_wr,
    last: *mut bindings::ib_send_wr,
    kind: WrKind,
    count: u32,
    ticket: Ticket,
    qp: *mut bindings::ib_qp,
    pd: *mut bindings::ib_pd,
    sent: bool,
    /// The last request that the driver gets: the Send, or a copy of `last`, see [`Self::finish`].
    end: MaybeUninit<Copied>,
    // Invariant in `'a`: everything that a chain borrows comes from one owner.
    _owner: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<'a> Chain<'a> {
    /// Creates an empty chain for `qp`, whose PD is `pd`.
    ///
    /// # Safety
    ///
    /// `qp` must be valid during `'a`.
    pub(super) unsafe fn new(
        qp: *mut bindings::ib_qp,
        pd: *mut bindings::ib_pd,
        ticket: Ticket,
    ) -> Self {
        // INVARIANT: The list is empty; the QP is valid by the contract of this function.
        Chain {
            first: null_mut(),
            last: null_mut(),
            kind: WrKind::Plain,
            count: 0,
            ticket,
            qp,
            pd,
            sent: false,
            end: MaybeUninit::uninit(),
            _owner: PhantomData,
        }
    }

    /// Returns the identifier by which trace events pair this post with its completion.
    pub(crate) fn cid(&self) -> Cid {
        // SAFETY: The QP is valid by the invariants, and so is its CQ.
        unsafe { cid_of((*self.qp).send_cq, self.ticket.post) }
    }

    /// Appends requests.
    ///
    /// # Safety
    ///
    /// The requests must be linked as `list` says, and be in no other list. Until the chain is
    /// posted or dropped, they must be valid, and nobody else may access them.
    #[inline]
    unsafe fn append(&mut self, list: Requests) {
        // SAFETY: All requests of `list` are valid by this function's contract.
        unsafe { (*list.last).next = null_mut() };
        if self.last.is_null() {
            self.first = list.first;
        } else {
            // SAFETY: By the type's invariant `last` is a valid request.
            unsafe { (*self.last).next = list.first };
        }
        // INVARIANT: The requests are valid and linked by this function's contract.
        self.last = list.last;
        self.kind = list.kind;
        self.count += list.count;
    }

    /// Appends the registration of a mapped region.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not mapped, is of another PD, or comes after a Send.
    pub(crate) fn reg_mr(&mut self, mr: &mut Mr) -> Result {
        if self.sent || mr.pd().as_raw() != self.pd {
            return Err(EINVAL);
        }
        let wr = mr.start_registration(self.ticket)?;
        // SAFETY: The request is a field of the region. The region is in state `Registered` now. In
        // that state it is neither freed (dropping leaks it) nor mapped again. The state ends with
        // an invalidation that completes after this post began, with proof that the chain was not
        // posted, or when the QP is closed, which waits for posts in progress.
        unsafe { self.append(Requests::one(wr, WrKind::Reg)) };
        Ok(())
    }

    /// Appends the local invalidation of a registered region.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not registered, is of another PD, or comes after a Send.
    pub(crate) fn local_inv(&mut self, mr: &mut Mr) -> Result {
        if self.sent || mr.pd().as_raw() != self.pd {
            return Err(EINVAL);
        }
        let wr = mr.start_invalidation(self.ticket)?;
        // SAFETY: The request is a field of the region. The region is in state `Invalidating` now.
        // In that state it is neither freed (dropping leaks it) nor used by another chain. The
        // state ends with the completion of this post, with proof that the chain was not posted, or
        // when the QP is closed, which waits for posts in progress.
        unsafe { self.append(Requests::one(wr, WrKind::Plain)) };
        Ok(())
    }

    /// Appends all RDMA Reads or Writes of `transfer`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the transfer is of another PD, is in this chain already, or comes after a
    /// Send.
    #[inline]
    pub(crate) fn transfer(&mut self, transfer: &'a Transfer) -> Result {
        if self.sent || !transfer.enter_chain(self.pd, self.ticket) {
            return Err(EINVAL);
        }
        // SAFETY: The transfer is of the QP of this PD, entered this chain just now, and is in no
        // other: it is borrowed for `'a`, and not `Sync`. So its requests stay valid and untouched.
        unsafe { transfer.requests(|list| self.append(list)) };
        Ok(())
    }

    /// Appends a Send of `message` with this opcode. `key` is the handle that it invalidates, if
    /// any.
    fn send_with(
        &mut self,
        message: &'a SendBuf,
        opcode: bindings::ib_wr_opcode,
        key: u32,
    ) -> Result {
        if self.sent || message.pd().as_raw() != self.pd {
            return Err(EINVAL);
        }
        self.end.write(Copied {
            plain: ManuallyDrop::new(message.request(opcode, key)),
        });
        // INVARIANT: `end` is a Send of the message, which is borrowed for `'a`.
        self.sent = true;
        self.count += 1;
        Ok(())
    }

    /// Appends a Send. It must be the last request.
    ///
    /// # Errors
    ///
    /// `EINVAL` after a Send, or if the message is of another PD.
    pub(crate) fn send(&mut self, message: &'a SendBuf) -> Result {
        self.send_with(message, bindings::ib_wr_opcode_IB_WR_SEND, 0)
    }

    /// Appends a Send With Invalidate, which invalidates `handle` at the peer. It must be the last
    /// request.
    ///
    /// # Errors
    ///
    /// `EINVAL` after a Send, or if the message is of another PD.
    pub(crate) fn send_with_invalidate(&mut self, message: &'a SendBuf, handle: u32) -> Result {
        self.send_with(message, bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV, handle)
    }

    /// Returns the number of Work Requests added so far, which is the number of Send Queue entries
    /// that the chain needs.
    pub(crate) fn wrs(&self) -> u32 {
        self.count
    }

    /// Makes the last request the signaled one, and returns the first; `None` if the chain is
    /// empty. No request may be added afterwards.
    ///
    /// The driver gets a copy of the last request, which is valid as long as the chain. Drivers
    /// check whether another request follows it after the device may have completed it: by then the
    /// owner may have linked the request into another chain, or freed it.
    #[inline]
    pub(super) fn finish(&mut self, entry: *mut Entry) -> Option<*mut bindings::ib_send_wr> {
        let end = if self.sent {
            self.append_send()
        } else if self.last.is_null() {
            return None;
        } else {
            self.copy_last()
        };
        // SAFETY: By the type's invariant the Send, or the copy, is valid and this chain's.
        unsafe {
            (*end).__bindgen_anon_1.wr_cqe = ManuallyDrop::new(Entry::cqe(entry));
            (*end).send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED;
        }
        Some(self.first)
    }

    /// Appends the Send to the list, and returns it.
    #[inline]
    fn append_send(&mut self) -> *mut bindings::ib_send_wr {
        let wr = self.end.as_mut_ptr().cast::<bindings::ib_send_wr>();
        if self.last.is_null() {
            self.first = wr;
        } else {
            // SAFETY: By the type's invariant `last` is a valid request.
            unsafe { (*self.last).next = wr };
        }
        // INVARIANT: The Send is valid as long as the chain.
        self.last = wr;
        wr
    }

    /// Replaces the last request of the list by a copy, and returns that.
    #[inline]
    fn copy_last(&mut self) -> *mut bindings::ib_send_wr {
        let end: *mut Copied = self.end.as_mut_ptr();
        let wr = end.cast::<bindings::ib_send_wr>();
        // SAFETY: By the type's invariant `last` is a request of that kind, and the last of the
        // list. Each kind begins with an `ib_send_wr`.
        unsafe {
            match self.kind {
                WrKind::Plain => {
                    core::ptr::copy_nonoverlapping(self.last, (&raw mut (*end).plain).cast(), 1)
                }
                WrKind::Reg => core::ptr::copy_nonoverlapping(
                    self.last.cast::<bindings::ib_reg_wr>(),
                    (&raw mut (*end).reg).cast(),
                    1,
                ),
                WrKind::Rdma => core::ptr::copy_nonoverlapping(
                    self.last.cast::<bindings::ib_rdma_wr>(),
                    (&raw mut (*end).rdma).cast(),
                    1,
                ),
            }
            let mut link: *mut *mut bindings::ib_send_wr = &mut self.first;
            while *link != self.last {
                link = &raw mut (**link).next;
            }
            *link = wr;
        }
        // INVARIANT: The copy is valid as long as the chain, and is where the last request was.
        self.last = wr;
        wr
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
