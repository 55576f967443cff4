// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What one connection works with: its limits, its pools, its Receives, its completed Sends.
//!
//! A [`Conn`] is the handler of the connection's QP. Everything in it belongs to that one
//! connection and is dropped with it. Each pool has a lock of its own, which is never held over a
//! call out of here; it is taken inside the lock of a request's chunks.

use core::pin::Pin;

use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SetOnce,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use super::{
    invalidate::InvCtx,
    mr_pool::MrPool,
    sendctx::SendCtx,
    transport::ClntXprt,
    REVERSE_REQUESTS, //
};
use crate::{
    kapi::{
        ext::{
            completion::Done,
            noio::NoIo,
            work::{
                cancel_delayed_sync,
                OwnQueue, //
            }, //
        },
        rdma::{
            cq::{
                Completion,
                Wc,
                WcError, //
            },
            pd::Pd,
            qp::Qp,
            recv::{
                RecvBox,
                RecvPool, //
            }, //
        },
        sunrpc::{
            link::XprtLink,
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_createmrs,
            trace_xprtrdma_post_recvs,
            trace_xprtrdma_post_recvs_err,
            trace_xprtrdma_wc_send,
            Peer, //
        }, //
    },
    xdr::{
        limits::ClientLimits,
        plan::Thresholds,
        private::Private,
        units::Credits,
        version::Version, //
    },
};

/// Regions that a new connection starts with.
const FIRST_MRS: usize = 16;
/// Idle regions that a refill aims at.
const REFILL_MRS: usize = 32;
/// The pause before a refill that failed is tried again.
const REFILL_PAUSE_MS: u32 = 250;

/// Numbers connections.
static NEXT_NUMBER: Atomic<u64> = Atomic::new(1);

type Pool<T> = KVec<Pin<KBox<T>>>;

/// See the module's documentation.
#[pin_data]
pub(super) struct Conn {
    link: XprtLink<ClntXprt>,
    /// No other connection has the same.
    number: u64,
    limits: ClientLimits,
    ours: Private,
    /// What holds on this connection; set before the first Send.
    agreed: SetOnce<Private>,
    /// The grant of the last Reply.
    credits: Atomic<u32>,
    reported: Atomic<bool>,
    #[pin]
    receives: SpinLock<RecvPool<()>>,
    #[pin]
    sends: SpinLock<Pool<SendCtx>>,
    #[pin]
    reverse_sends: SpinLock<Pool<SendCtx>>,
    #[pin]
    invs: SpinLock<Pool<InvCtx>>,
    /// Its memory regions.
    #[pin]
    pub(super) mrs: MrPool,
    #[pin]
    refill: DelayedWork<Conn>,
    #[pin]
    closed: Done,
    pd: Arc<Pd>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Conn { self.refill }
}

impl Conn {
    /// Makes what a connection in `pd` works with, all its buffers included. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and what the device says.
    pub(super) fn new(
        link: XprtLink<ClntXprt>,
        pd: Arc<Pd>,
        limits: ClientLimits,
        ours: Private,
    ) -> Result<Arc<Self>> {
        let requests = limits.requests as usize;
        let (len, sges) = (ours.send.0 as usize, limits.send_sges as usize);
        let sends = pool(requests, || SendCtx::new(&pd, len, sges, false))?;
        let reverse = pool(REVERSE_REQUESTS as usize, || {
            SendCtx::new(&pd, len, sges, true)
        })?;
        let invs = pool(requests, InvCtx::new)?;
        Arc::pin_init(
            pin_init!(Self {
                link,
                number: NEXT_NUMBER.fetch_add(1, Relaxed),
                limits,
                ours,
                agreed: SetOnce::new(),
                credits: Atomic::new(1),
                reported: Atomic::new(false),
                receives <- new_spinlock!(RecvPool::new()),
                sends <- new_spinlock!(sends),
                reverse_sends <- new_spinlock!(reverse),
                invs <- new_spinlock!(invs),
                mrs <- MrPool::new(pd.clone(), limits),
                refill <- new_delayed_work!("rpcrdma_rs: memory regions"),
                closed <- Done::new(),
                pd,
            }),
            GFP_KERNEL,
        )
    }

    /// The number of the connection.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// What the server is offered; the Receives have its size.
    pub(super) fn offered(&self) -> &Private {
        &self.ours
    }

    /// Sets what holds on this connection, before its first Send.
    pub(super) fn agree(&self, peer: &Private) {
        self.agreed.populate(self.ours.negotiate(peer));
    }

    /// What holds on this connection.
    pub(super) fn agreed(&self) -> &Private {
        self.agreed.as_ref().unwrap_or(&Private::DEFAULT)
    }

    /// What a message may be.
    pub(super) fn thresholds(&self) -> Thresholds {
        let agreed = self.agreed();
        Thresholds {
            version: Version::One,
            send: agreed.send,
            receive: agreed.receive,
            segments: self.limits.segments,
            send_sges: self.limits.send_sges,
        }
    }

    /// The sizes of the connection.
    pub(super) fn limits(&self) -> &ClientLimits {
        &self.limits
    }

    /// The transport; `None` once it is being destroyed.
    pub(super) fn xprt(&self) -> Option<impl core::ops::Deref<Target = Xprt<ClntXprt>> + '_> {
        self.link.get()
    }

    /// The connection is broken: has the transport disconnected, once.
    pub(super) fn lost(&self) {
        if !self.reported.xchg(true, Relaxed) {
            if let Some(xprt) = self.link.get() {
                xprt.force_disconnect();
            }
        }
    }

    /// The connection is being closed: from here on the loss of it is no news.
    pub(super) fn retire(&self) {
        self.reported.store(true, Relaxed);
    }

    /// Notes that the connection is drained, and that the last regions can be dropped.
    pub(super) fn set_closed(self: &Arc<Self>) {
        cancel_delayed_sync(self);
        self.closed.complete_all();
    }

    /// Waits until the connection is drained. Sleeps.
    pub(super) fn wait_closed(&self) {
        self.closed.wait();
    }

    /// Takes note of a grant; tells the transport if it is a new one.
    pub(super) fn set_credits(&self, xprt: &Xprt<ClntXprt>, grant: Credits) {
        if self.credits.load(Relaxed) != grant.0 {
            self.credits.store(grant.0, Relaxed);
            xprt.set_credits(grant.0);
        }
    }

    /// Takes the buffers of a Send of the forward direction.
    pub(super) fn take_send(&self) -> Option<Pin<KBox<SendCtx>>> {
        self.sends.lock().pop()
    }

    /// Takes the buffers of a Send of the reverse direction.
    pub(super) fn take_reverse_send(&self) -> Option<Pin<KBox<SendCtx>>> {
        self.reverse_sends.lock().pop()
    }

    /// Whether there are buffers for a Send of the forward direction.
    pub(super) fn has_send(&self) -> bool {
        !self.sends.lock().is_empty()
    }

    /// Gives the buffers of a Send back.
    pub(super) fn put_send(&self, ctx: Pin<KBox<SendCtx>>) {
        let pool = if ctx.is_reverse() {
            &self.reverse_sends
        } else {
            &self.sends
        };
        // There is room: it came from there.
        let _ = pool.lock().push_within_capacity(ctx);
    }

    /// Takes what a chain of LOCAL_INV needs.
    pub(super) fn take_inv(&self) -> Option<Pin<KBox<InvCtx>>> {
        self.invs.lock().pop()
    }

    /// Gives that back.
    pub(super) fn put_inv(&self, ctx: Pin<KBox<InvCtx>>) {
        // There is room: it came from there.
        let _ = self.invs.lock().push_within_capacity(ctx);
    }

    /// Makes the first regions. May sleep.
    ///
    /// # Errors
    ///
    /// What the device says, when there is not even one for each segment of a request.
    pub(super) fn first_mrs(&self, xprt: &Xprt<ClntXprt>) -> Result {
        let made = self.mrs.fill(FIRST_MRS.max(self.mrs.per_request()))?;
        trace_xprtrdma_createmrs(Peer::of(xprt), made);
        xprt.stats.mrs_allocated.add(made);
        Ok(())
    }

    /// Has more regions made.
    pub(super) fn refill_mrs(self: &Arc<Self>) {
        self.refill_mrs_after(0);
    }

    fn refill_mrs_after(self: &Arc<Self>, pause: Jiffies) {
        // If it is queued already, that will do.
        let _ = OwnQueue::enqueue_delayed(self.clone(), pause);
    }

    /// A Receive is complete, or was flushed.
    pub(super) fn received_one(&self) {
        self.receives.lock().landed();
    }

    /// Gives a receive buffer back.
    pub(super) fn put_receive(&self, buffer: RecvBox<()>) {
        self.receives.lock().put(buffer);
    }

    /// Makes all receive buffers there will be, and posts the first Receives. May sleep.
    ///
    /// A buffer that is not posted is kept by the Reply to one of the `slots` until its memory is
    /// fenced. There is one for each of these, so that as many Receives as the server may send messages
    /// can be posted at any time: for want of memory the connection is not made, but never lost.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and what the device says.
    pub(super) fn first_receives(&self, qp: &Qp<Conn>, slots: u32) -> Result {
        for _ in 0..self.limits.recv_wr + slots {
            let len = self.ours.receive.0 as usize;
            let buffer = RecvBox::new(&self.pd, len, ())?;
            self.receives.lock().put(buffer);
        }
        self.post_receives(qp)
    }

    /// Posts Receives if a batch of them is missing.
    ///
    /// Even just before a batch is posted there are as many as the server may send messages: one
    /// for each credit that we ask for, and twice the Calls of its own that it has credits for.
    ///
    /// # Errors
    ///
    /// What the device says; those posted before are posted.
    pub(super) fn post_receives(&self, qp: &Qp<Conn>) -> Result {
        let mut receives = self.receives.lock();
        let list = receives.missing(self.limits.recv_wr, self.limits.recv_batch);
        let posted = receives.posted();
        drop(receives);
        if list.is_empty() {
            return Ok(());
        }
        trace_xprtrdma_post_recvs(qp.cq_id(), list.len(), posted);
        qp.post_recvs(list).map_err(|(error, rest)| {
            trace_xprtrdma_post_recvs_err(qp.cq_id(), error.to_errno());
            self.receives.lock().unposted(rest);
            error
        })
    }
}

fn pool<T>(count: usize, mut make: impl FnMut() -> Result<Pin<KBox<T>>>) -> Result<Pool<T>> {
    let mut pool = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        pool.push_within_capacity(make()?).map_err(|_| ENOMEM)?;
    }
    Ok(pool)
}

impl WorkItem for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Reclaim may be waiting for what needs these regions.
        let _no_io = NoIo::begin();
        let Some(xprt) = this.link.get() else {
            return;
        };
        let _scope = xprt.reclaim_scope();
        match this.mrs.fill(REFILL_MRS) {
            Ok(made) => {
                trace_xprtrdma_createmrs(Peer::of(&xprt), made);
                xprt.stats.mrs_allocated.add(made);
            }
            // There may be no request under way whose regions come back: try again.
            Err(_) => this.refill_mrs_after(msecs_to_jiffies(REFILL_PAUSE_MS)),
        }
        // If there are too few still, those in use come back and wake whoever waits.
        if this.mrs.has_idle() {
            xprt.write_space();
        }
    }
}

impl Completion for SendCtx {
    type Handler = Conn;

    fn done(mut this: Pin<KBox<Self>>, qp: &Qp<Conn>, result: Result<Wc, WcError>) {
        match &result {
            Ok(wc) => trace_xprtrdma_wc_send(wc.cid(), 0, 0),
            Err(e) => trace_xprtrdma_wc_send(e.cid(), e.status(), e.vendor()),
        }
        this.as_mut().clear();
        let conn = qp.handler();
        conn.put_send(this);
        if result.is_err() {
            conn.lost();
        }
        if let Some(xprt) = conn.xprt() {
            xprt.write_space();
        }
    }
}
