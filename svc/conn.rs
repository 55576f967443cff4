// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A connection: what sunrpc calls it for, and how it ends.
//!
//! ```text
//!   accepted --ESTABLISHED--> open
//!   accepted, open --close(), from anywhere--> closing
//!       --detach()--> disconnected --last reference--> drained, freed
//! ```
//!
//! The caller that closes it detaches it: a service thread, device removal, or the end of the service.
//! Between accepted and open messages may arrive. They wait for a service thread, which
//! ESTABLISHED calls.
//!
//! # Who owns what
//!
//! ```text
//!   SvcXprt<Conn> --owns--> QpOwner, Id, RemovalGuard
//!        ^                     |      |       |
//!        |                     v      v       v     (they call)
//!   Handle, not counted <--- Chan   ConnEvents
//! ```
//!
//! [`Chan`] is what completions and service threads share. [`ConnEvents`] is what the CM and
//! device removal call. Both reach the transport through a handle.

use super::{
    call::{
        CallState,
        Payload, //
    },
    client::Member,
    inbox::{
        Inbox,
        Incoming, //
    },
    limits::Sizes,
    live::{
        Live,
        State, //
    },
    pool::PagePool,
    post::{
        Peer,
        Queue, //
    },
    read::ReadCtx,
    recv::Receives,
    send::SendCtx,
    sq::{
        Sq,
        LOOK_MS, //
    },
    version::Spoken, //
};
use crate::kapi::ext::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed, //
};
use crate::{
    kapi::{
        compat::smp_mb,
        ext::{
            debugfs::Folder,
            patience::{
                patiently,
                Patience, //
            },
            ratelimit::limited,
            work::{
                cancel_delayed_sync,
                xprtiod, //
            }, //
        },
        live::SERVER,
        rdma::{
            client::{
                Removal,
                RemovalGuard, //
            },
            cm::{
                ConnParam,
                Event,
                Handler,
                Id, //
            },
            cq::WcError,
            qp::{
                Qp,
                QpEvent,
                QpHandler,
                QpOwner, //
            },
            recv::{
                RecvBox,
                RecvWc, //
            },
            rw::Transfer, //
        },
        sunrpc::{
            addr::SockAddr,
            svc::{
                Handle,
                SvcXprt, //
            },
            svc_ops::Connection,
            svc_reply::Reply,
            svc_rqst::{
                CallData,
                CallRef,
                Delivered,
                Receiver, //
            }, //
        },
        trace::{
            trace_svcrdma_send_err,
            trace_svcrdma_wc_recv,
            trace_svcrdma_wc_recv_err,
            trace_svcrdma_wc_recv_flush, //
        }, //
    },
    xdr::{
        chunk::ListLimits,
        units::wire_len, //
    },
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_spinlock,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        SetOnce,
        SpinLock, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

/// A received message, and what is remembered about the Call in it.
pub(super) type CallBox = RecvBox<CallData<CallState>>;

/// How long a connection is left on which a Call was dropped before any was answered.
const UNANSWERED_MS: u32 = 2_000;

/// What was settled when the connection was accepted.
pub(super) struct Params {
    /// The client.
    pub(super) peer: SockAddr,
    /// Sizes of the queues; among them the credits that are granted.
    pub(super) sizes: Sizes,
    /// What the live view shows.
    pub(super) live: Arc<Live>,
    /// Octets of the first Receive buffers, and of the buffer that a reply is sent from.
    pub(super) receive_size: usize,
    /// Whether a reply may invalidate a handle of a client that speaks version 1.
    pub(super) remote_invalidation: bool,
    /// Whether the device can invalidate remotely. A client that speaks version 2 names the handle
    /// in the Call.
    pub(super) can_invalidate: bool,
    /// Pages that a Call or a reply can have.
    pub(super) max_pages: usize,
    /// Memory regions that RDMA Reads go through; none if the device needs none.
    pub(super) read_mrs: u32,
}

impl Params {
    /// Returns what is taken in one header.
    pub(super) fn list_limits(&self) -> ListLimits {
        ListLimits {
            segments: u32::try_from(self.max_pages).unwrap_or(u32::MAX),
            read_octets: self.max_stream(),
        }
    }

    /// Returns the longest Call in octets: all that lands in a thread's pages counts.
    pub(super) fn max_stream(&self) -> u32 {
        u32::try_from(self.max_pages.saturating_mul(PAGE_SIZE)).unwrap_or(u32::MAX)
    }
}

/// A connection. The fields are dropped in the order in which it is taken down.
pub(super) struct Conn {
    _folder: Folder<Live>,
    qp: QpOwner<Chan>,
    chan: Arc<Chan>,
    id: Id<ConnEvents>,
    /// The device stays until nothing of the above is left.
    _removal: RemovalGuard,
}

/// What completions and service threads share.
#[pin_data]
pub(super) struct Chan {
    pub(super) params: Params,
    pub(super) spoken: Spoken,
    pub(super) sq: Arc<Queue>,
    pub(super) handle: Handle<Conn>,
    pub(super) events: Arc<ConnEvents>,
    pub(super) member: Member,
    #[pin]
    pub(super) inbox: SpinLock<Inbox>,
    #[pin]
    pub(super) retry: DelayedWork<Chan, 1>,
    #[pin]
    pub(super) recvs: SpinLock<Receives>,
    /// Credits that every reply grants.
    pub(super) granted: Atomic<u32>,
    /// Whether Receives are to be added.
    pub(super) few_receives: Atomic<bool>,
    #[pin]
    pub(super) sends: SpinLock<KVec<Pin<KBox<SendCtx>>>>,
    #[pin]
    pub(super) reads: SpinLock<KVec<Pin<KBox<ReadCtx>>>>,
    #[pin]
    pub(super) pages: SpinLock<PagePool>,
    /// Runs while the connection keeps pages, or has just had some.
    #[pin]
    trimming: DelayedWork<Chan>,
    pub(super) trimming_runs: Atomic<bool>,
    /// Whether there were no spare pages when it ran last.
    pub(super) without_pages: Atomic<bool>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Chan { self.trimming }
}

impl Chan {
    /// Makes it, with room for all it will ever hold.
    // Not inlined, as its stack is not needed when the queues are made.
    #[inline(never)]
    pub(super) fn new(
        params: Params,
        spoken: Spoken,
        handle: Handle<Conn>,
        events: Arc<ConnEvents>,
        member: Member,
    ) -> Result<Arc<Self>> {
        let contexts = params.sizes.contexts as usize;
        let receive = wire_len(params.receive_size).unwrap_or(u32::MAX);
        let peer = Peer {
            handle: handle.clone(),
            addr: params.peer,
            live: params.live.clone(),
        };
        let sq = Sq::new(params.sizes.sends, contexts, peer, LOOK_MS)?;
        let received = Inbox::new(contexts)?;
        let sends = KVec::with_capacity(contexts, GFP_KERNEL)?;
        let reads = KVec::with_capacity(contexts, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Chan {
                params,
                spoken,
                sq,
                handle,
                events,
                member,
                inbox <- new_spinlock!(received),
                retry <- new_delayed_work!("rpcrdma_rs: held Calls"),
                recvs <- new_spinlock!(Receives::new(receive)),
                granted: Atomic::new(1),
                few_receives: Atomic::new(false),
                sends <- new_spinlock!(sends),
                reads <- new_spinlock!(reads),
                pages <- new_spinlock!(PagePool::new()),
                trimming <- new_delayed_work!("rpcrdma_rs: trim"),
                trimming_runs: Atomic::new(false),
                without_pages: Atomic::new(false),
            }),
            GFP_KERNEL,
        )
    }

    /// Closes the connection: it cannot go on. Idempotent; from any process context.
    pub(super) fn fail(&self) {
        self.handle.close();
        self.sq.close();
    }

    /// Returns whether the connection is being closed.
    pub(super) fn is_closing(&self) -> bool {
        self.handle.is_closing()
    }

    /// Tries again as long as memory is short, which is no reason to lose the connection. Sleeps.
    pub(super) fn patiently<T>(&self, f: impl FnMut() -> Result<T>) -> Result<T> {
        patiently(|| self.is_closing(), f)
    }

    /// Has `map` map the pages of `transfer`, again as long as something for that is short, as
    /// above. Sleeps.
    ///
    /// # Errors
    ///
    /// What `map` says otherwise; nothing is mapped then.
    pub(super) fn map_patiently(
        &self,
        transfer: &mut Transfer,
        mut map: impl FnMut(&mut Transfer) -> Result,
    ) -> Result {
        let mut patience = Patience::new();
        loop {
            let Err(error) = map(transfer) else {
                return Ok(());
            };
            // Others may wait for what is mapped already.
            transfer.unmap();
            let _crowded = self.handle.crowd();
            if !patience.pause(error, || self.is_closing()) {
                return Err(error);
            }
        }
    }

    /// Closes the connection because of a completion, and says so unless it is an aftermath.
    pub(super) fn fail_completion(&self, what: &str, error: &WcError) {
        self.params.live.traffic.failed_completions.add(1);
        if !error.flushed() && !self.is_closing() {
            limited!(pr_warn!(
                "server: {what} failed: {} (vendor {:#x}); closing the connection of {}\n",
                error.text().to_str().unwrap_or_default(),
                error.vendor(),
                self.params.peer
            ));
        }
        self.fail();
    }
}

impl QpHandler for Chan {
    type Recv = CallData<CallState>;

    fn recv_done(&self, qp: &Qp<Self>, buf: CallBox, result: Result<RecvWc, WcError>) {
        match result {
            Ok(wc) => {
                trace_svcrdma_wc_recv(buf.cid(), wc.byte_len);
                self.params.live.note_received(wc.byte_len);
                self.received(qp, buf.capacity());
                if let Some(buf) = self.pull_at_once(qp, buf) {
                    self.queue_message(buf);
                }
            }
            Err(e) => {
                match e.flushed() {
                    true => trace_svcrdma_wc_recv_flush(e.cid(), e.status(), e.vendor()),
                    false => trace_svcrdma_wc_recv_err(e.cid(), e.status(), e.vendor()),
                }
                self.keep_receive(buf);
                self.fail_completion("Receive", &e);
            }
        }
    }

    fn event(&self, event: QpEvent) {
        if let QpEvent::Fatal | QpEvent::Broken = event {
            self.handle.close();
        }
    }
}

/// What the CM, device removal and the timer call.
#[pin_data]
pub(super) struct ConnEvents {
    pub(super) established: Atomic<bool>,
    lost: Atomic<bool>,
    /// Whether a message of the client has been answered with a Reply or an error report.
    answered: Atomic<bool>,
    conn: SetOnce<Handle<Conn>>,
    #[pin]
    unanswered: DelayedWork<ConnEvents>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for ConnEvents { self.unanswered }
}

impl WorkItem for ConnEvents {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if !this.answered.load(Relaxed) {
            this.lose();
        }
    }
}

impl ConnEvents {
    /// Of a connection that nobody knows yet.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(ConnEvents {
                established: Atomic::new(false),
                lost: Atomic::new(false),
                answered: Atomic::new(false),
                conn: SetOnce::new(),
                unanswered <- new_delayed_work!("rpcrdma_rs: unanswered"),
            }),
            GFP_KERNEL,
        )
    }

    /// The client gets a Reply or an error report.
    pub(super) fn answer(&self) {
        self.answered.store(true, Relaxed);
    }

    /// Tells where to report to, and reports what has happened already.
    pub(super) fn attach(&self, handle: &Handle<Conn>) {
        self.conn.populate(handle.clone());
        // Pairs with the exchange in `lose`: one of the two sees the other.
        smp_mb();
        if self.lost.load(Acquire) {
            handle.close();
        }
    }

    fn lose(&self) {
        self.lost.xchg(true, Full);
        if let Some(handle) = self.conn.as_ref() {
            handle.close();
        }
    }
}

#[vtable]
impl Handler for ConnEvents {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Established(_) => {
                self.established.xchg(true, Full);
                if let Some(handle) = self.conn.as_ref() {
                    // Something may have arrived before.
                    handle.enqueue();
                }
            }
            Event::Disconnected
            | Event::DeviceRemoval
            | Event::ConnectError
            | Event::Unreachable
            | Event::Rejected { .. } => self.lose(),
            // Without meaning on this side, or, as a move of the address, harmless: if the
            // path is gone, the client finds out.
            Event::AddrResolved
            | Event::AddrError
            | Event::RouteResolved
            | Event::RouteError
            | Event::AddrChange
            | Event::TimewaitExit
            | Event::Other => {}
        }
    }
}

impl Removal for ConnEvents {
    fn removed(&self) {
        self.lost.xchg(true, Full);
        if let Some(handle) = self.conn.as_ref() {
            // There may be no service thread left to do it.
            handle.close_now();
        }
    }
}

impl Conn {
    /// Puts a connection together.
    pub(super) fn new(
        qp: QpOwner<Chan>,
        id: Id<ConnEvents>,
        chan: Arc<Chan>,
        removal: RemovalGuard,
    ) -> Self {
        Conn {
            _folder: Folder::new(&SERVER, chan.params.live.number, chan.params.live.clone()),
            qp,
            chan,
            id,
            _removal: removal,
        }
    }

    /// Returns what is shared with completions.
    pub(super) fn chan(&self) -> &Chan {
        &self.chan
    }

    /// Returns the same, to be kept.
    pub(super) fn shared_chan(&self) -> &Arc<Chan> {
        &self.chan
    }

    /// Returns the queue pair.
    pub(super) fn qp(&self) -> &Qp<Chan> {
        &self.qp
    }

    /// Returns the address of the client.
    pub(super) fn peer_addr(&self) -> SockAddr {
        self.chan.params.peer
    }

    /// Accepts the connection.
    pub(super) fn accept(&self, param: &ConnParam<'_>) -> Result {
        self.id.accept(param)
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        cancel_delayed_sync(&self.chan.events);
        cancel_delayed_sync::<_, 0>(&self.chan);
        cancel_delayed_sync::<_, 1>(&self.chan);
        self.chan.sq.end();
        // From here on no completion runs, and no device touches memory.
        self.qp.close();
        self.chan.clear_line(&self.qp);
        self.chan.clear_inbox();
    }
}

#[vtable]
impl Connection for Conn {
    type Call = CallBox;
    type Incoming = Incoming;

    fn next(this: &SvcXprt<Self>) -> Option<Incoming> {
        let incoming = this.chan.next_incoming(|| this.clear_data())?;
        if let Incoming::Message(message) = &incoming {
            this.chan.take_update(message.bytes());
        }
        Some(incoming)
    }

    fn receive<'a>(
        this: &SvcXprt<Self>,
        receiver: Receiver<'a, Self::Call>,
        incoming: Incoming,
    ) -> Option<Delivered<'a>> {
        if this.chan.few_receives.load(Relaxed) {
            this.chan.add_receives(&this.qp);
            this.tell_receive_size();
            this.trim_later();
        }
        match incoming {
            Incoming::Message(message) => this.receive_message(this, receiver, message),
            Incoming::Pulled(ctx) => this.deliver_pulled(receiver, ctx),
        }
    }

    fn send(this: &SvcXprt<Self>, reply: &mut Reply<'_>, call: CallRef<'_, CallState>) -> Result {
        let xid = call
            .bytes
            .first_chunk()
            .map_or(0, |xid| u32::from_be_bytes(*xid));
        this.send_reply(reply, call).inspect_err(|e| {
            trace_svcrdma_send_err(&this.peer_addr(), xid, e.to_errno());
            this.chan.fail();
        })
    }

    fn result_payload(
        _this: &SvcXprt<Self>,
        call: CallRef<'_, CallState>,
        offset: u32,
        length: u32,
    ) -> Result {
        let CallState {
            call: seen,
            payloads,
            ..
        } = call.state;
        let lists = seen.as_ref().map(|seen| seen.lists(call.bytes));
        let noted = payloads.noted();
        if let Some(chunk) = lists.and_then(|lists| lists.write.iter().nth(noted)) {
            // One that is too small is answered when the reply is sent: the service's own
            // answer would not fit the client's question.
            payloads.note(Payload { offset, length }, chunk.capacity());
        }
        Ok(())
    }

    /// The service drops a Call without an answer if it has that of an earlier connection in
    /// process still, and leaves it to the client to ask again after a while. In version 1 a client
    /// has one credit before its first answer (RFC 8166, section 3.3.1), so no other Call would come
    /// until then; in version 2 the Call is as late. The client shall ask sooner; not at once, since
    /// some do that without a pause.
    fn release(this: &SvcXprt<Self>, mut call: CallBox) {
        if let Some(array) = call.data_mut().recall() {
            this.chan.pages.lock().put_array(array);
        }
        this.chan.release_receive(&this.qp, call);
        let events = &this.chan.events;
        if !events.answered.load(Relaxed) && !this.chan.is_closing() {
            let delay = msecs_to_jiffies(UNANSWERED_MS);
            // It may be queued already.
            let _ = xprtiod().enqueue_delayed(events.clone(), delay);
        }
    }

    fn detach(this: &SvcXprt<Self>) {
        this.chan.params.live.set_state(State::Closing);
        // Fails if the connection is gone already.
        let _ = this.qp.disconnect();
        this.chan.sq.close();
        this.chan.clear_line(&this.qp);
        this.chan.clear_inbox();
    }
}
