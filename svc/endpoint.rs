// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The data of a connection and of its chains, and its ownership.
//!
//! ```text
//!   SvcXprt<Conn> --owns--> QpOwner, Id, RemovalGuard
//!        ^                     |      |       |
//!        |                     v      v       v     (they call)
//!   Handle, not counted <- Endpoint  Events
//! ```
//!
//! Completions and service threads share an [`Endpoint`]. The CM and device removal call
//! [`Events`]. Both reach the transport through a handle, which does not keep it alive.
//!
//! An `Endpoint` contains the Send Queue, the Send Queue contains the chains that wait for room,
//! and a chain holds a reservation in the Send Queue. So the data of chains is defined here too.
//! The modules above this one operate on it.

use super::{
    client::{
        LastCalls,
        Member,
        OrderedPull, //
    },
    contexts::Contexts,
    events::Events,
    inbox::{
        Inbox,
        PullPermit, //
    },
    layout::Layout,
    limits::{
        Sizes,
        CALLBACK_CREDITS, //
    },
    negotiation::Negotiation,
    order::ArrivalSeq,
    pool::PagePool,
    receives::{
        CallBox,
        Receives, //
    },
    sq::{
        Sq,
        SqReservation,
        CHECK_MS, //
    },
    status::ConnStatus, //
};
use crate::{
    kapi::{
        compat::smp_mb,
        ext::{
            atomic::Atomic,
            debugfs::StatusDir,
            ratelimit::limited,
            retry::retry_while_short,
            spinlock::{
                new_spinlock,
                SpinLock, //
            }, //
        },
        rdma::{
            client::RemovalGuard,
            cm::{
                ConnParam,
                Id, //
            },
            cq::{
                impl_has_cqe,
                Cqe,
                WcError, //
            },
            qp::{
                Qp,
                QpOwner, //
            },
            rw::{
                Remote,
                Transfer, //
            },
            send::SendBuf, //
        },
        status::SERVER,
        sunrpc::{
            addr::SockAddr,
            svc::{
                Backpressure,
                Handle, //
            }, //
        }, //
    },
    xdr::{
        chunk::ListLimits,
        segment::Segment,
        units::{
            self,
            len_to_u32, //
        }, //
    }, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    workqueue::DelayedWork, //
};

/// The parameters that were fixed when the connection was accepted.
pub(super) struct Params {
    /// The client.
    pub(super) peer: SockAddr,
    /// Sizes of the queues, and the largest number of credits.
    pub(super) sizes: Sizes,
    /// Counters for the debugfs status.
    pub(super) status: Arc<ConnStatus>,
    /// Octets of the first Receive buffers, and of the buffer from which a reply is sent.
    pub(super) receive_size: usize,
    /// Whether a reply may invalidate a handle of a client that speaks version 1.
    pub(super) remote_invalidation: bool,
    /// Whether the device can invalidate remotely. A client that speaks version 2 names the handle
    /// in the Call.
    pub(super) can_invalidate: bool,
    /// The limits on the chunk lists of one message. A Call must fit into a thread's pages.
    pub(super) list_limits: ListLimits,
    /// The number of memory regions for RDMA Reads; 0 if the device needs none.
    pub(super) read_mrs: u32,
}

/// Returns the limits on the chunk lists of a message, if a thread has `max_pages` pages for a
/// Call.
pub(super) fn list_limits(max_pages: usize) -> ListLimits {
    ListLimits {
        segments: u32::try_from(max_pages).unwrap_or(u32::MAX),
        read_octets: u32::try_from(max_pages.saturating_mul(PAGE_SIZE)).unwrap_or(u32::MAX),
    }
}

/// The work item that releases unused memory.
pub(super) const TRIM: u64 = 0;
/// The work item that tries Calls again that were held back.
pub(super) const RETRY: u64 = 1;
/// The work item that closes a silent connection over iWARP.
pub(super) const FIRST_MESSAGE: u64 = 2;
/// The work item that checks whether the service has finished the Calls of a lost connection.
pub(super) const LAST_CALLS: u64 = 3;

/// A connection. The order of the fields is the order of teardown.
pub(super) struct Conn {
    _status_dir: StatusDir<ConnStatus>,
    pub(super) qp: QpOwner<Endpoint>,
    pub(super) ep: Arc<Endpoint>,
    pub(super) id: Id<Events<Conn>>,
    /// Delays removal of the device until the fields above are dropped.
    _removal: RemovalGuard,
}

/// The part of a connection that completions and service threads share.
#[pin_data]
pub(super) struct Endpoint {
    pub(super) params: Params,
    /// The version of the connection and its message sizes.
    pub(super) negotiation: Negotiation,
    pub(super) sq: Arc<Queue>,
    /// Reaches the transport without keeping it alive.
    pub(super) handle: Handle<Conn>,
    /// Handles events of the CM and of device removal.
    pub(super) events: Arc<Events<Conn>>,
    /// The connection's membership in the order of its client's Calls.
    pub(super) member: Member,
    /// Messages that wait for a service thread.
    #[pin]
    pub(super) inbox: SpinLock<Inbox<Pulled>>,
    /// Wakes a service thread for Calls that are held back.
    #[pin]
    pub(super) retry: DelayedWork<Endpoint, RETRY>,
    /// Closes a connection over iWARP on which no message arrives.
    #[pin]
    pub(super) first_message: DelayedWork<Endpoint, FIRST_MESSAGE>,
    /// What the client's later Calls wait for once the connection is lost.
    #[pin]
    pub(super) last_calls: SpinLock<Option<LastCalls>>,
    /// Checks whether they have to wait any longer.
    #[pin]
    pub(super) last_calls_check: DelayedWork<Endpoint, LAST_CALLS>,
    /// Receives that are not posted, and the number of all Receives.
    #[pin]
    pub(super) recvs: SpinLock<Receives>,
    /// The credits that each reply grants.
    pub(super) granted: Atomic<u32>,
    /// Whether a service thread should add Receives.
    pub(super) few_receives: Atomic<bool>,
    /// Contexts of replies that are not in use.
    #[pin]
    pub(super) sends: SpinLock<Contexts<Pin<KBox<SendCtx>>>>,
    /// Contexts of pulls that are not in use.
    #[pin]
    pub(super) reads: SpinLock<ReadPool>,
    /// Spare pages for the next RPCs.
    #[pin]
    pub(super) pages: SpinLock<PagePool>,
    /// Scheduled while the connection has memory that it may release, or had some until recently.
    #[pin]
    pub(super) trimming: DelayedWork<Endpoint, TRIM>,
    /// Whether `trimming` is scheduled.
    pub(super) trimming_runs: Atomic<bool>,
    /// Whether the last run of `trimming` found nothing that a later run could release: no pages,
    /// contexts or Receives, and no chain that may return some.
    pub(super) without_pages: Atomic<bool>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, TRIM> for Endpoint { self.trimming }
    impl HasDelayedWork<Self, RETRY> for Endpoint { self.retry }
    impl HasDelayedWork<Self, FIRST_MESSAGE> for Endpoint { self.first_message }
    impl HasDelayedWork<Self, LAST_CALLS> for Endpoint { self.last_calls_check }
}

impl Endpoint {
    /// Creates the data of a connection, with room for all entries that it can ever hold.
    // Not inlined, because its stack is not needed when the queues are created.
    #[inline(never)]
    pub(super) fn new(
        params: Params,
        negotiation: Negotiation,
        handle: Handle<Conn>,
        events: Arc<Events<Conn>>,
        member: Member,
    ) -> Result<Arc<Self>> {
        let contexts = params.sizes.buffers as usize;
        let receive = len_to_u32(params.receive_size).unwrap_or(u32::MAX);
        let sq = Self::send_queue(&params, &handle)?;
        let sends = Contexts::new(contexts)?;
        let reads = ReadPool::new(contexts)?;
        Arc::pin_init(
            try_pin_init!(Endpoint {
                params,
                negotiation,
                sq,
                handle,
                events,
                member,
                inbox <- new_spinlock!(Inbox::new(contexts)?),
                retry <- new_delayed_work!("rpcrdma_rs: held Calls"),
                first_message <- new_delayed_work!("rpcrdma_rs: first message"),
                last_calls <- new_spinlock!(None),
                last_calls_check <- new_delayed_work!("rpcrdma_rs: last Calls"),
                recvs <- new_spinlock!(Receives::new(receive)),
                granted: Atomic::new(1),
                few_receives: Atomic::new(false),
                sends <- new_spinlock!(sends),
                reads <- new_spinlock!(reads),
                pages <- new_spinlock!(PagePool::new()),
                trimming <- new_delayed_work!("rpcrdma_rs: trim"),
                trimming_runs: Atomic::new(false),
                without_pages: Atomic::new(false),
            }? Error),
            GFP_KERNEL,
        )
    }

    // Not inlined, as for `new`.
    #[inline(never)]
    fn send_queue(params: &Params, handle: &Handle<Conn>) -> Result<Arc<Queue>> {
        let owner = SqConn {
            handle: handle.clone(),
            addr: params.peer,
            status: params.status.clone(),
        };
        // CAST: `usize` has at least 32 bits.
        let queued = params.sizes.buffers.saturating_add(CALLBACK_CREDITS) as usize;
        Sq::new(params.sizes.sends, queued, owner, CHECK_MS)
    }

    /// Closes the connection after an error, and refuses further chains. Idempotent. Process
    /// context; code that may run in an interrupt calls [`Handle::close`] only.
    pub(super) fn fail(&self) {
        self.handle.close();
        self.sq.close();
    }

    /// Returns whether the connection is being closed.
    pub(super) fn is_closing(&self) -> bool {
        self.handle.is_closing()
    }

    /// Retries `f` for up to 30 s while memory or a resource of the device is short, because a
    /// brief shortage must not end the connection. Sleeps.
    ///
    /// # Errors
    ///
    /// Errors of `f`. The caller must close the connection then: a shortage may last forever, and
    /// nfsd cannot be stopped while a thread waits.
    pub(super) fn retry_while_short<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        let mut backpressure = None;
        let result = retry_while_short(
            || self.is_closing(),
            || {
                let result = f();
                if result.is_err() {
                    // Keep other threads from waiting for this connection.
                    backpressure.get_or_insert_with(|| self.handle.apply_backpressure());
                }
                result
            },
        );
        if backpressure.take().is_some() {
            // `queue_message` wakes no thread while backpressure applies. Pairs with its barrier.
            smp_mb();
            self.handle.enqueue();
        }
        result
    }

    /// Calls `map` to map the pages of a reply in `transfer`, and retries it as
    /// [`Self::retry_while_short`] does.
    ///
    /// # Errors
    ///
    /// Other errors of `map`; nothing is mapped then.
    pub(super) fn map_with_retries(
        &self,
        transfer: &mut Transfer,
        mut map: impl FnMut(&mut Transfer) -> Result,
    ) -> Result {
        self.retry_while_short(|| {
            let mapped = map(transfer);
            if mapped.is_err() {
                // Other transfers may wait for the resources of the part that is already mapped.
                transfer.unmap();
            }
            mapped
        })
    }

    /// Closes the connection because of a failed completion. Logs it, unless the connection is
    /// closing already.
    pub(super) fn fail_completion(&self, what: &str, error: &WcError) {
        self.params.status.traffic.failed_completions.add(1);
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

impl Conn {
    /// Creates a connection from its parts.
    pub(super) fn new(
        qp: QpOwner<Endpoint>,
        id: Id<Events<Conn>>,
        ep: Arc<Endpoint>,
        removal: RemovalGuard,
    ) -> Self {
        Conn {
            _status_dir: StatusDir::new(&SERVER, ep.params.status.number, ep.params.status.clone()),
            qp,
            ep,
            id,
            _removal: removal,
        }
    }

    /// Returns the endpoint, which is the part that completions share.
    pub(super) fn ep(&self) -> &Endpoint {
        &self.ep
    }

    /// Returns a reference to the endpoint that the caller may keep.
    pub(super) fn shared_ep(&self) -> &Arc<Endpoint> {
        &self.ep
    }

    /// Returns the queue pair.
    pub(super) fn qp(&self) -> &Qp<Endpoint> {
        &self.qp
    }

    /// Returns the address of the client.
    pub(super) fn peer_addr(&self) -> SockAddr {
        self.ep.params.peer
    }

    /// Accepts the connection.
    pub(super) fn accept(&self, param: &ConnParam<'_>) -> Result {
        self.id.accept(param)
    }
}

/// The Send Queue of a connection.
pub(super) type Queue = Sq<QueuedChain, SqConn>;

/// Entries of the Send Queue of a connection.
pub(super) type Reservation = SqReservation<QueuedChain, SqConn>;

/// The context of a chain that is ready to be posted.
pub(super) enum ChainCtx {
    /// RDMA Writes and a Send.
    Reply(Pin<KBox<SendCtx>>),
    /// The RDMA Reads of a Call.
    Pull(Pulled),
}

/// A chain that waits for room in the Send Queue.
pub(super) struct QueuedChain {
    pub(super) chain: ChainCtx,
    pub(super) _backpressure: Backpressure<Conn>,
}

/// The owner of a connection's Send Queue.
pub(super) struct SqConn {
    pub(super) handle: Handle<Conn>,
    pub(super) addr: SockAddr,
    pub(super) status: Arc<ConnStatus>,
}

/// The chain of a reply: the RDMA Writes of `transfer`, and a Send of `message`.
#[pin_data]
pub(super) struct SendCtx {
    #[pin]
    pub(super) cqe: Cqe<Self>,
    pub(super) message: SendBuf,
    pub(super) transfer: Transfer,
    pub(super) reservation: Option<Reservation>,
    /// Whether the transfer writes to a Reply chunk, perhaps among other chunks.
    pub(super) reply_chunk: bool,
    /// The handle that the Send invalidates.
    pub(super) invalidate: Option<units::Handle>,
    /// Whether the pages of the transfer were a service thread's own.
    pub(super) own_pages: bool,
}

impl_has_cqe! {
    impl HasCqe for SendCtx { self.cqe }
}

/// A Call whose Read chunks are being pulled or have been pulled.
#[pin_data]
pub(super) struct ReadCtx {
    #[pin]
    pub(super) cqe: Cqe<Self>,
    pub(super) transfer: Transfer,
    pub(super) reservation: Option<Reservation>,
    pub(super) call: Option<PullCall>,
    /// The layout of the Call.
    pub(super) layout: Layout,
}

/// The Call whose Read chunks a [`ReadCtx`] pulls.
pub(super) struct PullCall {
    pub(super) buf: CallBox,
    /// The arrival number of the Call on its connection.
    pub(super) arrival: ArrivalSeq,
    pub(super) permit: PullPermit,
    /// The place of the Call in the order; held until a service thread takes the Call. `None` if
    /// the order of the Call does not matter.
    pub(super) ordered: Option<OrderedPull>,
}

impl_has_cqe! {
    impl HasCqe for ReadCtx { self.cqe }
}

/// A Call whose Read chunks have been pulled.
pub(super) type Pulled = Pin<KBox<ReadCtx>>;

/// The contexts for RDMA Reads.
pub(super) type ReadPool = Contexts<Pulled>;

impl ReadPool {
    /// The number of contexts that may keep a page. One client rarely needs more at a time. No
    /// budget limits these pages.
    pub(super) const WITH_PAGE: usize = 16;

    /// Returns whether the next context that is pushed may have a page.
    pub(super) fn may_keep_page(&self) -> bool {
        self.len() < Self::WITH_PAGE
    }

    /// Frees the pages of the contexts that were not used in this period. Returns the number of
    /// pages that the others keep. No page of a context here is mapped.
    pub(super) fn trim_pages(&mut self) -> usize {
        let mut left = 0;
        for (ctx, is_unused) in self.iter_mut().take(Self::WITH_PAGE) {
            let pages = ctx.as_mut().project().transfer.unmap();
            if is_unused {
                pages.truncate(0);
            }
            left += pages.len();
        }
        left
    }
}

// Converts a segment of a chunk into the form that RDMA Reads and Writes take.
impl From<Segment> for Remote {
    fn from(segment: Segment) -> Self {
        Remote {
            addr: segment.offset.0,
            length: segment.length,
            handle: segment.handle.0,
        }
    }
}
