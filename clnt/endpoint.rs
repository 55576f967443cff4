// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The data of one connection: its limits, its pools, and its Receives.
//!
//! An [`Endpoint`] handles the events and completions of the connection's QP. Everything in it is
//! dropped with the connection. The lock of its pools is a spin lock that nests inside the lock of
//! a request's chunks. sunrpc's transport lock nests inside the lock of the pools.
//!
//! While a connection is in use, a watchdog checks it every [`WATCHDOG_MS`]:
//!
//! ```text
//!   unwatched ──a chain is posted──▶ watched ──check: quiet──▶ trimmed, unwatched
//!                                     │    └─check: active──▶ watched
//!                                     └──check: stalled, or no credits──▶ the connection is lost
//! ```

use core::pin::Pin;

use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    sync::Arc,
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
    chunks::take_fenced,
    events::Events,
    invalidate::InvCtx,
    negotiation::Negotiation,
    pools::{
        MessageKind,
        Pools,
        BC_SENDS_KEPT, //
    },
    send_queue::Progress,
    sendctx::SendCtx,
    status::{
        ConnState,
        ConnStatus, //
    },
    transport::{
        ClntXprt,
        Ended, //
    }, //
};
use crate::{
    kapi::{
        ext::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            noio::NoIo,
            scratch::ScratchPage,
            spinlock::{
                new_spinlock,
                SpinLock, //
            },
            work::{
                cancel_delayed_sync,
                OwnQueue, //
            }, //
        },
        rdma::{
            mr::{
                Mr,
                MrList, //
            },
            pd::Pd,
            qp::Qp,
            recv::{
                RecvBox,
                RecvList, //
            }, //
        },
        sunrpc::{
            errno::enobufs,
            link::XprtLink,
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_createmrs,
            trace_xprtrdma_frwr_alloc,
            trace_xprtrdma_post_recvs,
            trace_xprtrdma_post_recvs_err,
            Peer, //
        }, //
    },
    xdr::{
        limits::ClientLimits,
        plan::Thresholds,
        private::Private,
        units::{
            u32_to_usize,
            Credits,
            Xid, //
        },
        version::Version, //
    }, //
};

/// The delay before a failed refill is retried.
const REFILL_PAUSE_MS: u32 = 250;

/// The interval of the watchdog's checks while a connection is in use. A chain that is in flight
/// at three checks in a row is stalled.
const WATCHDOG_MS: u32 = 5_000;

/// The number of the next connection.
static NEXT_NUMBER: Atomic<u64> = Atomic::new(1);

/// The work item that allocates regions.
const REFILL: u64 = 0;
/// The watchdog.
const WATCHDOG: u64 = 1;

/// Returns the XID of the first message about properties on connection `number`. No RPC is
/// outstanding when that message is sent.
fn property_xid(number: u64) -> Xid {
    // CAST: The lower half suffices.
    Xid(number as u32)
}

/// The data of one connection. Its completions, its events and the sender share it.
#[pin_data]
pub(super) struct Endpoint {
    link: XprtLink<ClntXprt>,
    /// The number of the connection. It is never reused.
    number: u64,
    /// The number of messages about properties that were sent after the first one.
    properties_sent: Atomic<u32>,
    /// The limits of the device and of the settings.
    limits: ClientLimits,
    /// Wakes the worker that sets up the connection, and afterwards closes the transport.
    pub(super) events: Arc<Events>,
    /// The version of the connection and its message sizes.
    pub(super) negotiation: Negotiation,
    /// The credits that the server has granted last, by a Reply or a message about properties.
    credits: Atomic<u32>,
    /// The debugfs status.
    pub(super) status: Arc<ConnStatus>,
    /// Whether the loss of the connection was reported, or need not be.
    reported: Atomic<bool>,
    #[pin]
    pub(super) pools: SpinLock<Pools>,
    #[pin]
    refill: DelayedWork<Endpoint, REFILL>,
    #[pin]
    watchdog: DelayedWork<Endpoint, WATCHDOG>,
    #[pin]
    closed: kernel::sync::Completion,
    /// The page to which a server writes the part of a Reply that exceeds the caller's memory.
    scratch: ScratchPage,
    pd: Arc<Pd>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, REFILL> for Endpoint { self.refill }
    impl HasDelayedWork<Self, WATCHDOG> for Endpoint { self.watchdog }
}

impl Endpoint {
    /// Allocates the data of a connection in `pd`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and errors of the device.
    pub(super) fn new(
        link: XprtLink<ClntXprt>,
        events: Arc<Events>,
        pd: Arc<Pd>,
        limits: ClientLimits,
        ours: Private,
        request_v2: bool,
        status: Arc<ConnStatus>,
    ) -> Result<Arc<Self>> {
        let pools = Pools::new(&limits, ours.receive, status.clone())?;
        let scratch = ScratchPage::new()?;
        let number = NEXT_NUMBER.fetch_add(1, Relaxed);
        let xid = request_v2.then_some(property_xid(number));
        let this = Arc::pin_init(
            pin_init!(Self {
                link,
                number,
                properties_sent: Atomic::new(0),
                limits,
                events,
                negotiation: Negotiation::new(ours, xid),
                credits: Atomic::new(1),
                status,
                reported: Atomic::new(false),
                pools <- new_spinlock!(pools),
                refill <- new_delayed_work!("rpcrdma_rs: memory regions"),
                watchdog <- new_delayed_work!("rpcrdma_rs: connection"),
                closed <- kernel::sync::Completion::new(),
                scratch,
                pd,
            }),
            GFP_KERNEL,
        )?;
        this.alloc_send(false)?;
        for _ in 0..BC_SENDS_KEPT {
            this.alloc_send(true)?;
        }
        Ok(this)
    }

    /// Returns an XID that no earlier message about properties on this connection has.
    pub(super) fn new_xid(&self) -> Xid {
        let count = self.properties_sent.fetch_add(1, Relaxed).wrapping_add(1);
        Xid(property_xid(self.number).0.wrapping_add(count))
    }

    /// Returns whether a message about properties may have been sent with this XID. Also true for
    /// the XID of the first one on a connection that does not request version 2.
    pub(super) fn is_property_xid(&self, Xid(xid): Xid) -> bool {
        let after = xid.wrapping_sub(property_xid(self.number).0);
        after <= self.properties_sent.load(Relaxed)
    }

    /// Returns the credits that the server has granted last.
    pub(super) fn granted(&self) -> u32 {
        self.credits.load(Relaxed)
    }

    /// Returns the number of the connection.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the limits of a message.
    pub(super) fn thresholds(&self) -> Thresholds {
        let (version, send, receive) = match self.negotiation.agreed() {
            Some(agreed) => (agreed.version, agreed.send(), agreed.receive()),
            // Before the first Send.
            None => {
                let version = Version::One;
                (version, version.default_inline(), version.default_inline())
            }
        };
        Thresholds {
            version,
            send,
            receive,
            segments: self.limits.segments,
            send_sges: self.limits.send_sges,
        }
    }

    /// Returns the sizes of the connection.
    pub(super) fn limits(&self) -> &ClientLimits {
        &self.limits
    }

    /// Returns the page that absorbs the excess part of a Reply.
    pub(super) fn scratch(&self) -> &ScratchPage {
        &self.scratch
    }

    /// Returns the transport; `None` once it is being destroyed.
    pub(super) fn xprt(&self) -> Option<impl core::ops::Deref<Target = Xprt<ClntXprt>> + '_> {
        self.link.get()
    }

    /// Ends the connection because it is broken. Later calls have no effect. Does not sleep. Takes
    /// sunrpc's transport lock, so it must not be called from an interrupt.
    pub(super) fn fail(&self, why: Ended) {
        if !self.reported.xchg(true, Relaxed) {
            self.status.set_state(ConnState::Lost);
            self.events.fail(why);
        }
    }

    /// Records that the connection is being closed. From then on its loss is not reported.
    pub(super) fn retire(&self) {
        if !self.reported.xchg(true, Relaxed) && self.status.is_connected() {
            if let Some(xprt) = self.link.get() {
                xprt.note_end(Ended::Local);
            }
        }
        self.status.set_state(ConnState::Lost);
        self.pools.lock().retire();
    }

    /// Cancels the refill and the watchdog, and wakes the tasks in [`Self::wait_closed`]. Called
    /// when the connection is drained. Sleeps.
    pub(super) fn set_closed(self: &Arc<Self>) {
        cancel_delayed_sync::<_, REFILL>(self);
        cancel_delayed_sync::<_, WATCHDOG>(self);
        self.closed.complete_all();
    }

    /// Waits until the connection is drained. Sleeps.
    pub(super) fn wait_closed(&self) {
        self.closed.wait_for_completion();
    }

    /// Records a grant of credits, and passes it to the transport if it has changed.
    pub(super) fn set_credits(self: &Arc<Self>, xprt: &Xprt<ClntXprt>, grant: Credits) {
        if self.credits.load(Relaxed) != grant.0 {
            self.credits.store(grant.0, Relaxed);
            self.status.granted.store(grant.0, Relaxed);
            self.update_window(xprt);
        }
    }

    /// Passes the number of credits that Calls may use to the transport, if it has changed.
    #[cold]
    pub(super) fn update_window(self: &Arc<Self>, xprt: &Xprt<ClntXprt>) {
        // Hold the lock to the end: the last caller must set the current window.
        let mut pools = self.pools.lock();
        let requested = self.negotiation.has_request();
        if let Some(window) = pools.window(self.granted(), requested) {
            xprt.set_credits(window);
        }
        if pools.reserve.is_blocked() {
            self.watch(&mut pools);
        }
    }

    /// Records that a Call was given up before its Reply arrived. Its credit stays in use until
    /// then.
    pub(super) fn note_given_up(self: &Arc<Self>, xprt: &Xprt<ClntXprt>) {
        self.pools.lock().reserve.end_call();
        self.update_window(xprt);
    }

    /// Calls `f` under the lock of the pools, a spin lock, so `f` must not sleep. Then wakes the
    /// sender if it waits for a resource.
    pub(super) fn return_to_pools(&self, f: impl FnOnce(&mut Pools)) {
        let starved = {
            let mut pools = self.pools.lock();
            f(&mut pools);
            pools.take_starved()
        };
        if starved {
            self.wake_sender();
        }
    }

    #[cold]
    fn wake_sender(&self) {
        if let Some(xprt) = self.link.get() {
            xprt.write_space();
        }
    }

    /// Takes a Send of the reverse direction from the pool. If the pool is empty and `allocates` is
    /// set, allocates one, and once more if another sender has taken that one. May sleep then.
    pub(super) fn take_bc_send(self: &Arc<Self>, allocates: bool) -> Option<Pin<KBox<SendCtx>>> {
        let take = || {
            let mut pools = self.pools.lock();
            let taken = pools.take_bc_send();
            self.watch(&mut pools);
            taken
        };
        let mut taken = take();
        for _ in 0..2 {
            if allocates && matches!(taken, Err(true)) {
                self.alloc_send(true).ok()?;
                taken = take();
            }
        }
        taken.ok()
    }

    /// Allocates the buffers of one more Send. May sleep.
    pub(super) fn alloc_send(&self, is_bc: bool) -> Result {
        // Reclaim may be waiting for the message that is about to be sent.
        let _no_io = NoIo::begin();
        let len = self.negotiation.ours().send.0 as usize;
        let sges = self.limits.send_sges as usize;
        let ctx = SendCtx::new(&self.pd, len, sges, is_bc)?;
        let surplus = self.pools.lock().add_send(ctx);
        drop(surplus);
        Ok(())
    }

    /// Takes the resources of a chain of LOCAL_INV from the pool.
    pub(super) fn take_inv(self: &Arc<Self>) -> Option<Pin<KBox<InvCtx>>> {
        let mut pools = self.pools.lock();
        self.watch(&mut pools);
        pools.take_inv()
    }

    /// Unmaps the fenced regions in `list`, and returns them to the pool. The others stay in
    /// `list`.
    pub(super) fn recycle(&self, list: &mut MrList) {
        let mut idle = take_fenced(list);
        if !idle.is_empty() {
            self.return_to_pools(|pools| pools.recycled(&mut idle));
        }
    }

    /// Allocates the first regions, and posts the first Receives. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` or `ENOBUFS` if memory is short, and errors of the device.
    pub(super) fn begin(self: &Arc<Self>, xprt: &Xprt<ClntXprt>, qp: &Qp<Endpoint>) -> Result {
        if xprt.is_bc_allowed() {
            self.allow_bc();
        }
        self.alloc_regions(xprt)?;
        self.post_receives(qp, true)
    }

    /// Schedules the allocation of more regions.
    pub(super) fn refill_regions(self: &Arc<Self>, pause: Jiffies) {
        // The work may be queued already.
        let _ = OwnQueue::enqueue_delayed::<_, REFILL>(self.clone(), pause);
    }

    /// Allocates the missing regions. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or errors of the device. The regions allocated before the error are in the pool.
    fn alloc_regions(&self, xprt: &Xprt<ClntXprt>) -> Result {
        let mut made = 0;
        let result = loop {
            if self.pools.lock().regions_missing() == 0 {
                break Ok(());
            }
            let new = Mr::new(&self.pd, self.limits.pages_per_segment)
                .and_then(|mr| Ok((mr, InvCtx::new()?)));
            match new {
                Ok((mr, inv)) => {
                    trace_xprtrdma_frwr_alloc(&mr);
                    self.pools.lock().add_region(mr, inv);
                    made += 1;
                }
                Err(error) => break Err(error),
            }
        };
        trace_xprtrdma_createmrs(Peer::of(xprt), made);
        xprt.stats.mrs_allocated.add(made);
        result
    }

    /// Returns a Receive buffer to the pool.
    pub(super) fn put_receive(&self, buffer: RecvBox<()>) {
        self.pools.lock().put_receive(buffer);
    }

    /// Records that a Receive of `capacity` octets has completed with a message that is no Reply.
    pub(super) fn received_other(&self, capacity: usize) {
        self.pools.lock().received(MessageKind::Other, capacity);
    }

    /// Allows Calls from the server.
    pub(super) fn allow_bc(&self) {
        self.pools.lock().allow_bc();
    }

    /// Posts free Receives for the server's Calls, if too few are posted. Does not allocate: a
    /// completion that waits for memory delays the Replies behind it, which may free that memory.
    pub(super) fn restore_receives(&self, qp: &Qp<Endpoint>) {
        if self.pools.lock().lacks_receives() {
            // Fails when the connection is broken, which other completions report.
            let _ = self.post_receives(qp, false);
        }
    }

    /// Posts a batch of Receives. If `allocates` is set, allocates missing ones, and may sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if there is no memory for a single Receive, and errors of the device. Some
    /// Receives of the batch may have been posted then.
    pub(super) fn post_receives(&self, qp: &Qp<Endpoint>, allocates: bool) -> Result {
        let (mut list, missing, size) = self.pools.lock().receives_to_post(allocates);
        let made = self.alloc_receives(missing, size, &mut list);
        let (count, short) = (list.len(), missing - made);
        // CAST: A batch.
        let counted = count as u32 + short;
        if counted == 0 {
            return Ok(());
        }
        let mut rest = RecvList::new();
        let result = if count == 0 {
            Err(enobufs())
        } else {
            trace_xprtrdma_post_recvs(qp.cq_id(), count, self.pools.lock().posted());
            qp.post_recvs(list).map_err(|(error, unposted)| {
                trace_xprtrdma_post_recvs_err(qp.cq_id(), error.to_errno());
                rest = unposted;
                error
            })
        };
        // A sender may wait for them.
        self.return_to_pools(|pools| pools.end_post(counted, rest, short, size));
        result
    }

    /// Allocates up to `count` Receive buffers of `size` octets. Returns the number allocated.
    pub(super) fn alloc_receives(&self, count: u32, size: u32, list: &mut RecvList<()>) -> u32 {
        if count == 0 {
            return 0;
        }
        let _no_io = NoIo::begin();
        for made in 0..count {
            match RecvBox::new(&self.pd, u32_to_usize(size), ()) {
                Ok(buffer) => list.push(buffer),
                Err(_) => return made,
            }
        }
        count
    }

    /// Queues the watchdog, unless it is queued. The caller holds the lock of the pools, so the
    /// watchdog is not queued after the connection was retired.
    pub(super) fn watch(self: &Arc<Self>, pools: &mut Pools) {
        if pools.watch() {
            let pause = msecs_to_jiffies(WATCHDOG_MS);
            let _ = OwnQueue::enqueue_delayed::<_, WATCHDOG>(self.clone(), pause);
        }
    }

    /// Frees the resources that a quiet connection does not need. Sleeps.
    fn trim(&self) {
        loop {
            let (send, inv) = {
                let mut pools = self.pools.lock();
                (pools.shrink_sends(), pools.shrink_invs())
            };
            if send.is_none() && inv.is_none() {
                return;
            }
        }
    }
}

impl WorkItem<REFILL> for Endpoint {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Reclaim may be waiting for a Call that needs these regions.
        let _no_io = NoIo::begin();
        let Some(xprt) = this.link.get() else {
            return;
        };
        let _scope = xprt.reclaim_scope();
        if this.alloc_regions(&xprt).is_err() {
            // Perhaps no request in progress returns regions, so retry.
            this.refill_regions(msecs_to_jiffies(REFILL_PAUSE_MS));
        }
        this.return_to_pools(|_| ());
    }
}

impl WorkItem<WATCHDOG> for Endpoint {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Closing the connection waits for the watchdog. Freeing a region allocates memory in some
        // drivers, and reclaim may wait for an RPC that is sent on the next connection.
        let _no_io = NoIo::begin();
        let (progress, surplus) = this.pools.lock().check_progress();
        match progress {
            Progress::Idle => {
                drop(surplus);
                this.trim();
                if let Some(xprt) = this.link.get() {
                    xprt.trim_slots();
                }
            }
            Progress::Active => this.watch(&mut this.pools.lock()),
            // Twice `WATCHDOG_MS`.
            Progress::Stalled => this.end("server has not acknowledged a message for 10 s"),
            Progress::Blocked => {
                this.end("all credits are held by abandoned Calls that the server has not answered")
            }
        }
    }
}

impl Endpoint {
    /// Ends the connection because it makes no progress, and logs why. Sleeps.
    fn end(&self, why: &str) {
        let link = self.link.get();
        if let Some(xprt) = &link {
            pr_warn!("{}: {}; disconnecting\n", xprt.server(), why);
        }
        self.fail(Ended::Stalled);
        // sunrpc closes the connection under the send lock. The holder of that lock may wait for a
        // LOCAL_INV in this Send Queue. So disconnect without the lock, which flushes the queue.
        let conn = link.and_then(|xprt| xprt.conn());
        if let Some(conn) = conn.filter(|it| core::ptr::eq(&**it.ep(), self)) {
            conn.disconnect();
        }
    }
}
