// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queue Pairs (QPs), each with a Completion Queue (CQ) of its own.
//!
//! ```text
//!   QpOwner::new ──► open ──close──► closing ──drained──► closed ──last reference──► freed
//! ```
//!
//! While the QP is open, any holder of a reference may post. [`QpOwner::close`] refuses further
//! posts, drains both queues, and waits until every completion has run. From then on the device
//! does not access the buffers. No peer can access memory that is registered in the PD either,
//! unless the device has refused to stop the QP, see [`Pd::is_fenced`].
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use core::{
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow,
        Mutex, //
    },
};

use super::{
    cm::{
        Handler,
        Id,
        IdInner, //
    },
    cq::{
        from_raw,
        into_raw,
        Completion,
        WcError, //
    },
    device::{
        Device,
        Port, //
    },
    entry::{
        Entry,
        EntryList, //
    },
    failure::Failure,
    pd::Pd,
    recv::{
        RecvBox,
        RecvList,
        RecvWc, //
    },
    verbs::post_send,
    wr::{
        Chain,
        Ticket, //
    }, //
};
use crate::kapi::{
    bindings,
    ext::{
        atomic::{
            Atomic,
            Relaxed,
            Release, //
        },
        errno::enotconn, //
    }, //
};

/// The callbacks of a QP.
pub(crate) trait QpHandler: Send + Sync + Sized + 'static {
    /// The data of the user in each Receive buffer.
    type Recv: Send + 'static;

    /// Called for each Receive that has completed. `buffer` contains the message, unless `result`
    /// is an error. Process context, see [`Completion::done`].
    fn recv_done(
        &self,
        qp: &Qp<Self>,
        buffer: RecvBox<Self::Recv>,
        result: Result<RecvWc, WcError>,
    );

    /// Called for each event of the QP. After [`QpEvent::Fatal`] or [`QpEvent::Broken`] the
    /// connection has to be torn down. Must not sleep. May be called during QP teardown, so the QP
    /// is not available here.
    ///
    /// Only [`Qp::post`] reports [`QpEvent::Broken`]: in the context of its caller, under the locks
    /// that the caller holds. The other events arrive in any context.
    fn event(&self, event: QpEvent);
}

/// An event of a QP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QpEvent {
    /// The device moved the QP to its error state.
    Fatal,
    /// The device accepted only a part of a chain. Draining the QP returns the chain's owner.
    Broken,
    /// An event that is no error.
    Other,
}

/// The sizes of a QP. Entries for draining and for rdma_rw are added to them.
#[derive(Clone, Copy)]
pub(crate) struct QpConfig {
    /// Send Work Requests posted at a time.
    pub(crate) max_send_wr: u32,
    /// Receives posted at a time.
    pub(crate) max_recv_wr: u32,
    /// SGEs of a Send.
    pub(crate) max_send_sge: u32,
    /// The number of SGEs of a Send that suffices, if the device cannot create a queue of longer
    /// entries.
    pub(crate) min_send_sge: u32,
    /// SGEs of a Receive.
    pub(crate) max_recv_sge: u32,
    /// rdma_rw contexts posted at a time, 0 without [`Transfer`](super::rw::Transfer)s.
    pub(crate) max_rdma_ctxs: u32,
}

/// A post that failed before the device accepted any part of it.
pub(crate) struct PostError<T> {
    /// The reason.
    pub(crate) error: Error,
    /// The owner of the chain.
    pub(crate) owner: Pin<KBox<T>>,
    ticket: Ticket,
}

impl<T> PostError<T> {
    /// Returns proof for [`Mr::retract`](super::mr::Mr::retract) that the chain was not posted.
    pub(crate) fn unposted(&self) -> Unposted {
        Unposted(self.ticket)
    }
}

/// Proof that a chain was not posted.
#[derive(Clone, Copy)]
pub(crate) struct Unposted(Ticket);

impl Unposted {
    pub(super) fn ticket(&self) -> Ticket {
        self.0
    }
}

/// The number of the next QP.
static NEXT_NUMBER: Atomic<u64> = Atomic::new(1);

/// A QP. [`QpOwner::new`] creates it in an `Arc`.
///
/// # Examples
///
/// ```ignore
/// // `message` is a `Pin<KBox<Message>>`, and `Message` implements `Completion`.
/// qp.post(message, |message, chain| {
///     chain.transfer(&message.transfer)?;
///     chain.send(&message.text)
/// })
/// .map_err(|failed| failed.error)?;
/// // The completion calls `Message::done` with the message.
/// ```
///
/// # Invariants
///
/// Once the `QpOwner` exists, `qp` and `cq` are the QP of `id` and its CQ. `cq` does not change.
/// `qp` becomes null if the device refuses to stop the QP: then the QP is destroyed, after both
/// gates are closed and every use that they count has ended. The context of the QP is this object,
/// and that of the CQ is its `failure`. Every object of this type is in an `Arc`.
#[pin_data(PinnedDrop)]
pub(crate) struct Qp<H: QpHandler> {
    qp: Atomic<*mut bindings::ib_qp>,
    cq: Atomic<*mut bindings::ib_cq>,
    /// The most SGEs of an RDMA Read.
    max_read_sge: Atomic<u32>,
    /// The most SGEs of an RDMA Write.
    max_write_sge: Atomic<u32>,
    /// Counts the posts.
    gate: Gate,
    /// Counts the uses of the C object outside of posts.
    uses: Gate,
    /// The number of completions. Only completions write it, which run one at a time, and
    /// [`EntryList::flush`], when no completion can run any more.
    completed: Atomic<u64>,
    /// Whether the port's protocol is iWARP. It does not change while there is a QP.
    iwarp: Atomic<bool>,
    /// The posts that the device has executed.
    executed: Executed,
    /// The status of a failed request that was not the last one of its chain.
    failure: Failure,
    /// The number of this QP, which no other QP has or had.
    number: u64,
    entries: Arc<EntryList>,
    #[pin]
    closed: Mutex<bool>,
    handler: Arc<H>,
    pd: Arc<Pd>,
    id: Arc<IdInner>,
}

impl<H: QpHandler> Qp<H> {
    /// Returns another reference to the QP.
    pub(crate) fn get(&self) -> Arc<Qp<H>> {
        // SAFETY: By the type's invariant `self` is in an `Arc`, which is not dropped while
        // `self` is borrowed.
        unsafe { ArcBorrow::from_raw(self) }.into()
    }

    /// Returns the handler of Receives and events.
    pub(crate) fn handler(&self) -> &Arc<H> {
        &self.handler
    }

    /// Returns the PD.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Device {
        self.pd.device()
    }

    /// Returns the device's port.
    pub(crate) fn port(&self) -> Port<'_> {
        // SAFETY: `QpOwner::new` checked that the PD's device is that of the id. The id is bound to
        // it.
        unsafe { Port::new(self.device(), self.id.port()) }
    }

    /// Returns whether the port's protocol is iWARP.
    pub(super) fn is_iwarp(&self) -> bool {
        self.iwarp.load(Relaxed)
    }

    /// Returns the restrack number of the CQ, for trace events.
    pub(crate) fn cq_id(&self) -> u32 {
        // SAFETY: The CQ is valid and its number constant.
        unsafe { (*self.cq.load(Relaxed)).res.id }
    }

    /// Returns the C object. It is valid while a post is in progress, or a [`RawQp`] exists, and
    /// until closing the QP destroys it.
    fn as_raw(&self) -> *mut bindings::ib_qp {
        self.qp.load(Relaxed)
    }

    /// Returns the most SGEs of an RDMA Read and of an RDMA Write.
    pub(super) fn max_sges(&self) -> (u32, u32) {
        (
            self.max_read_sge.load(Relaxed),
            self.max_write_sge.load(Relaxed),
        )
    }

    /// Returns the status of a failed request that was not the last one of its chain.
    pub(super) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Begins a completion, which ends when the value is dropped.
    pub(super) fn completing(&self) -> Completing<'_> {
        Completing(&self.completed)
    }

    /// Posts a chain of Work Requests on the Send Queue.
    ///
    /// `build` appends the Work Requests, which it borrows from the owner. If it fails, nothing is
    /// posted. For each `Ok`, [`Completion::done`] is called once with the owner. Does not sleep,
    /// unless `build` does.
    ///
    /// # Errors
    ///
    /// Nothing was posted, and the error contains the owner:
    ///
    /// * `ENOTCONN` if the QP is closing,
    /// * `EBUSY` if the owner is in flight,
    /// * `EINVAL` if the chain is empty,
    /// * errors of `build` or of the device.
    pub(crate) fn post<T>(
        &self,
        owner: Pin<KBox<T>>,
        build: impl for<'a> FnOnce(&'a T, &mut Chain<'a>) -> Result,
    ) -> Result<(), PostError<T>>
    where
        T: Completion<Handler = H>,
    {
        let (number, posting) = self.gate.enter(1);
        let ticket = self.ticket(number);
        let owner = into_raw(owner);
        // SAFETY: The owner is valid until it is taken back.
        let entry = unsafe { super::cq::Cqe::raw_get(T::raw_get_cqe(owner.as_ptr())) };
        let posted = posting.ok_or_else(enotconn).and_then(|mut posting| {
            if posting.overlaps {
                self.executed.note_overlap(number);
            }
            // SAFETY: The entry was initialised with its owner, which stays in place and was given
            // up to us.
            if !unsafe { Entry::start(entry, &self.entries, ticket) } {
                return Err(EBUSY);
            }
            // SAFETY: The owner was given up. A completion may take it back once the device has the
            // chain, which is after the last use of this reference.
            let object = unsafe { owner.as_ref() };
            // SAFETY: The QP is valid until this post has ended, and the chain is dropped before.
            let mut chain = unsafe { Chain::new(self.as_raw(), self.pd.as_raw(), ticket) };
            build(object, &mut chain)
                .and_then(|()| {
                    let first = chain.finish(entry).ok_or(EINVAL)?;
                    // SAFETY: The chain is complete and valid during the call; what it points
                    // to is valid until it completes, as the owner is.
                    unsafe { self.post_chain(first) }
                })
                .map(|()| posting.unposted = 0)
                .inspect_err(|_| {
                    // SAFETY: Started above, and not posted.
                    unsafe { Entry::end(entry) };
                })
        });
        posted.map_err(|error| PostError {
            error,
            // SAFETY: From `into_raw` above; nothing was posted.
            owner: unsafe { from_raw(owner) },
            ticket,
        })
    }

    /// Posts a chain. An error means that the device has accepted no part of it.
    ///
    /// # Safety
    ///
    /// `first` must be a chain for this QP that is valid during the call, and whose last request
    /// has an entry in flight. The memory that the chain refers to must be valid until that
    /// completes.
    unsafe fn post_chain(&self, first: *mut bindings::ib_send_wr) -> Result {
        let mut bad: *const bindings::ib_send_wr = core::ptr::null();
        // SAFETY: The chain and the memory that it refers to are valid by this function's contract.
        // The QP is valid: `close` waits for posts that have entered.
        let ret = unsafe { post_send(self.as_raw(), first, &mut bad) };
        if ret == 0 {
            return Ok(());
        }
        if core::ptr::eq(bad, first) {
            return to_result(ret);
        }
        // The device has accepted a part of the chain, but not the signaled request, which `close`
        // completes. Or the driver does not report what it has accepted: siw, if it has no
        // processor to send from.
        self.handler.event(QpEvent::Broken);
        Ok(())
    }

    /// Posts Receives. Does not sleep.
    ///
    /// # Errors
    ///
    /// The buffers that were not posted are returned, with `ENOTCONN` if the QP is closing,
    /// `EINVAL` if one of them is of another PD, or the error of the device.
    pub(crate) fn post_recvs(
        &self,
        list: RecvList<H::Recv>,
    ) -> Result<(), (Error, RecvList<H::Recv>)> {
        let (_, Some(mut posting)) = self.gate.enter(list.len()) else {
            return Err((enotconn(), list));
        };
        // SAFETY: The QP's CQ calls `recv::handle_completion::<H>` with this QP as context, and
        // the QP is open.
        let result = unsafe { list.post::<H>(self.as_raw(), &self.pd, &self.entries) };
        // CAST: A `usize` has 64 bits.
        posting.unposted = result
            .as_ref()
            .map_or_else(|(_, left)| left.len() as u64, |()| 0);
        result
    }
}

#[pinned_drop]
impl<H: QpHandler> PinnedDrop for Qp<H> {
    /// Sleeps.
    fn drop(self: Pin<&mut Self>) {
        let (qp, cq) = (self.qp.load(Relaxed), self.cq.load(Relaxed));
        if !qp.is_null() {
            // SAFETY: The id's QP is ours, and drained. `close` has not destroyed it.
            unsafe { bindings::rdma_destroy_qp(self.id.as_raw()) };
        }
        if !cq.is_null() {
            // SAFETY: The CQ is ours and no QP uses it any more.
            unsafe { bindings::ib_free_cq(cq) };
        }
    }
}

/// A completion in progress.
pub(super) struct Completing<'a>(&'a Atomic<u64>);

impl Drop for Completing<'_> {
    fn drop(&mut self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Release);
    }
}

/// The C object of a QP, which is not destroyed while this object exists.
pub(super) struct RawQp<'a> {
    qp: *mut bindings::ib_qp,
    port: u32,
    _use: Posting<'a>,
}

impl RawQp<'_> {
    /// Returns the C object.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_qp {
        self.qp
    }

    /// Returns the device's port.
    pub(super) fn port(&self) -> u32 {
        self.port
    }
}

/// A QP, whatever its handler.
pub(super) trait AnyQp: Send + Sync {
    /// Borrows the C object; `None` if closing the QP has destroyed it, or is about to.
    fn raw_qp(&self) -> Option<RawQp<'_>>;
}

impl<H: QpHandler> AnyQp for Qp<H> {
    fn raw_qp(&self) -> Option<RawQp<'_>> {
        let (_, entered) = self.uses.enter(1);
        entered.map(|entered| RawQp {
            qp: self.as_raw(),
            port: self.id.port(),
            _use: entered,
        })
    }
}

/// The owner of a QP. Dropping it drains the QP, see [`QpOwner::close`].
#[must_use]
pub(crate) struct QpOwner<H: QpHandler>(Arc<Qp<H>>);

impl<H: QpHandler> QpOwner<H> {
    /// Creates a QP and its CQ on the device of `id`. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if `id` has or had a QP; `EINVAL` if `pd` is of another id, or if a CQ of the device
    /// has no room for both queues; otherwise errors of the device, such as `ENOMEM` for queues
    /// that are too long.
    pub(crate) fn new<I: Handler>(
        id: &Id<I>,
        pd: &Arc<Pd>,
        config: &QpConfig,
        handler: Arc<H>,
    ) -> Result<Self> {
        if !Arc::ptr_eq(id.inner(), pd.id()) {
            return Err(EINVAL);
        }
        id.inner().claim()?;
        let entries = EntryList::new()?;
        let qp = Arc::pin_init(
            pin_init!(Qp {
                qp: Atomic::new(core::ptr::null_mut()),
                cq: Atomic::new(core::ptr::null_mut()),
                max_read_sge: Atomic::new(0),
                max_write_sge: Atomic::new(0),
                gate: Gate::new(),
                uses: Gate::new(),
                completed: Atomic::new(0),
                iwarp: Atomic::new(false),
                executed: Executed::new(),
                failure: Failure::new(),
                number: NEXT_NUMBER.fetch_add(1, Relaxed),
                entries,
                closed <- new_mutex!(false, "Qp::closed"),
                handler,
                pd: pd.clone(),
                id: id.inner().clone(),
            }),
            GFP_KERNEL,
        )?;
        // If this fails, the drop of `qp` frees what was created.
        qp.populate(config)?;
        Ok(QpOwner(qp))
    }

    /// Refuses further posts and drains the QP. Afterwards every completion has run, and the device
    /// does not access memory of the connection. A second call does nothing.
    ///
    /// Sleeps. Must not be called from a completion.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl<H: QpHandler> Deref for QpOwner<H> {
    type Target = Qp<H>;

    fn deref(&self) -> &Qp<H> {
        &self.0
    }
}

impl<H: QpHandler> Drop for QpOwner<H> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Borrows the QP of a CQ.
///
/// # Safety
///
/// `cq` must be the CQ of a `Qp<H>`, and valid during `'a`.
pub(super) unsafe fn of_cq<'a, H: QpHandler>(cq: NonNull<bindings::ib_cq>) -> &'a Qp<H> {
    // SAFETY: `cq` is valid and belongs to a `Qp<H>` by this function's contract. By the invariant
    // of `Qp` its context points to the `failure` of that `Qp`.
    unsafe {
        let failure = (*cq.as_ptr()).cq_context.cast::<Failure>();
        &*kernel::container_of!(failure, Qp<H>, failure)
    }
}

mod close;
mod create;
mod gate;
#[cfg(rpcrdma_kunit)]
mod kunit;
mod ticket;

use gate::{
    Gate,
    Posting, //
};
use ticket::Executed;
