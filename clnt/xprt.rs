// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The transport: what sunrpc asks of it.
//!
//! Everything that makes, uses for sending, or ends a connection runs under sunrpc's send lock,
//! one at a time. Replies, completions and requests that are given up come at any time; they
//! find the connection by [`ClntXprt::conn`], which holds it while they use it.
//!
//! Lock order: a request's chunks, then the lock of one of the engine's pools or that of the
//! connection, which is held for a moment only.

use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_mutex,
    new_spinlock,
    prelude::*,
    seq_file::SeqFile,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use super::{
    conn::{
        our_sizes,
        Conn,
        Failed, //
    },
    frwr::{
        Chunks,
        Fence, //
    },
    marshal,
    stats::{
        self,
        Stats, //
    },
    tunables,
    CLASS,
    REVERSE_CALLS,
    REVERSE_REQUESTS, //
};
use crate::{
    kapi::{
        ext::{
            noio::NoIo,
            work::{
                cancel_delayed_sync,
                xprtiod, //
            }, //
        },
        sunrpc::{
            addr::SockAddr,
            backchannel::BcRqst,
            class::XprtClass,
            errno::{
                ebadslt,
                enotconn,
                eproto, //
            },
            link::XprtLink,
            ops::XprtOps,
            rqst::Slot,
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_cb_reply,
            trace_xprtrdma_connect,
            trace_xprtrdma_disconnect,
            trace_xprtrdma_mrs_zap,
            trace_xprtrdma_op_connect,
            Peer,
            Task, //
        },
    },
    xdr::{
        limits::MAX_DATA_PAGES,
        version::Version, //
    },
};

/// What a transport keeps.
#[pin_data]
pub(crate) struct ClntXprt {
    /// What it counts.
    pub(super) stats: Stats,
    #[pin]
    conn: SpinLock<Option<Arc<Conn>>>,
    connector: Arc<Connector>,
    link: XprtLink<Self>,
    /// Whether the last attempt to connect failed, and the log says so.
    failed: Atomic<bool>,
}

impl ClntXprt {
    /// A way to the transport.
    pub(super) fn link(&self) -> XprtLink<Self> {
        self.link.clone()
    }

    /// The connection, if there is one.
    fn conn(&self) -> Option<Arc<Conn>> {
        self.conn.lock().clone()
    }
}

/// What a request slot keeps.
#[pin_data]
pub(crate) struct ClntSlot {
    /// Memory of the request that the server may reach. The lock is held while the Call is
    /// sent, so that a Reply finds all of it.
    #[pin]
    pub(super) chunks: Mutex<Chunks>,
    /// For the one who gives the request up.
    fence: Arc<Fence>,
}

/// Connects in the background.
#[pin_data]
struct Connector {
    #[pin]
    work: DelayedWork<Connector>,
    link: XprtLink<ClntXprt>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Connector { self.work }
}

impl WorkItem for Connector {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(xprt) = this.link.get() else {
            return;
        };
        // Reclaim may be waiting for this very transport.
        let _no_io = NoIo::begin();
        let _scope = xprt.reclaim_scope();
        xprt.clear_connected();
        let result = Conn::establish(&xprt);
        let failed = result.as_ref().err().copied();
        let rc = failed.map_or(0, |failed| failed.error.to_errno());
        trace_xprtrdma_connect(Peer::of(&xprt), rc, if rc == 0 { 1 } else { rc });
        note_attempt(&xprt, failed);
        let result = result.map_err(|failed| failed.told).map(|conn| {
            *xprt.conn.lock() = Some(conn);
        });
        xprt.finish_connect(result);
    }
}

/// Remembers how an attempt to connect went, and logs the first of a row that failed.
fn note_attempt(xprt: &Xprt<ClntXprt>, failed: Option<Failed>) {
    let failed_before = xprt.failed.xchg(failed.is_some(), Relaxed);
    if let (Some(failed), false) = (failed, failed_before) {
        let hint = match failed.told == eproto() {
            true => " (that address does not answer, or no RDMA device with a link leads there)",
            false => "",
        };
        pr_warn!(
            "connecting to {} failed: {:?}{}\n",
            xprt.server(),
            failed.error,
            hint
        );
    }
}

impl XprtOps for ClntXprt {
    type Slot = ClntSlot;

    fn class() -> &'static XprtClass<Self> {
        &CLASS
    }

    fn new(link: XprtLink<Self>) -> Result<impl PinInit<Self, Error>> {
        let to_it = link.clone();
        let connector = Arc::pin_init(
            pin_init!(Connector {
                work <- new_delayed_work!("rpcrdma_rs: connect"),
                link: to_it,
            }),
            GFP_KERNEL,
        )?;
        Ok(try_pin_init!(Self {
            stats: Stats::new(),
            conn <- new_spinlock!(None),
            connector,
            link,
            failed: Atomic::new(false),
        }? Error))
    }

    fn new_slot() -> impl PinInit<ClntSlot, Error> {
        try_pin_init!(ClntSlot {
            chunks <- new_mutex!(Chunks::default()),
            fence: Arc::pin_init(Fence::new(), GFP_KERNEL)?,
        }? Error)
    }

    fn slots() -> u32 {
        tunables::SLOT_TABLE_ENTRIES.get()
    }

    fn max_payload() -> usize {
        MAX_DATA_PAGES as usize * kernel::page::PAGE_SIZE
    }

    fn connect(xprt: &Xprt<Self>) {
        let pause = xprt.reconnect_pause();
        trace_xprtrdma_op_connect(Peer::of(xprt), pause);
        // It cannot be queued already: there is one attempt at a time.
        let _ = xprtiod().enqueue_delayed(xprt.connector.clone(), pause);
    }

    fn close(xprt: &Xprt<Self>) {
        let Some(conn) = xprt.conn() else {
            return;
        };
        conn.shutdown();
        trace_xprtrdma_disconnect(Peer::of(xprt), 0, enotconn().to_errno());
        for slot in xprt.slot_data() {
            // Fenced by now, of no use to the next connection.
            drop(slot.chunks.lock().take());
        }
        let last = xprt.conn.lock().take();
        drop(last);
    }

    fn destroy(xprt: &Xprt<Self>) {
        cancel_delayed_sync(&xprt.connector);
        Self::close(xprt);
    }

    fn send_request(xprt: &Xprt<Self>, slot: &Slot<Self>) -> Result {
        let conn = match (xprt.is_connected(), xprt.conn()) {
            (true, Some(conn)) => conn,
            _ => return Err(enotconn()),
        };
        // A connection carries a Call once: a second would cost a credit that nobody returns.
        if slot.connect_cookie() == xprt.connect_cookie() {
            xprt.close();
            return Err(enotconn());
        }
        if !slot.get_cong() {
            return Err(ebadslt());
        }
        let sent = send_call(xprt, &conn, slot);
        // Nor does anybody return the credit of a Call without a Reply.
        let keep = match &sent {
            Ok(()) => slot.reply_expected(),
            Err(error) => *error != enotconn(),
        };
        if !keep {
            drop(conn);
            xprt.close();
            return Err(enotconn());
        }
        sent
    }

    fn release_buffers(xprt: &Xprt<Self>, slot: &Slot<Self>) {
        // The connection first: what is found in the slot then belongs to it or to none.
        let conn = xprt.conn();
        let list = slot.chunks.lock().take();
        if list.is_empty() {
            return;
        }
        trace_xprtrdma_mrs_zap(Task::of(slot));
        // Without a connection the regions are fenced, and dropped.
        if let Some(conn) = conn {
            conn.engine().fence(conn.qp(), list, &slot.fence);
            xprt.write_space();
        }
    }

    fn note_grown(xprt: &Xprt<Self>, bytes: usize) {
        xprt.stats.grown_bytes.add(bytes);
    }

    fn local_addr(xprt: &Xprt<Self>) -> Option<SockAddr> {
        Some(xprt.conn()?.local_addr())
    }

    fn print_stats(xprt: &Xprt<Self>, seq: &SeqFile) {
        stats::print(xprt, seq);
    }

    fn inject_disconnect(xprt: &Xprt<Self>) {
        if let Some(conn) = xprt.conn() {
            conn.disconnect();
        }
    }

    fn bc_setup(xprt: &Xprt<Self>, _min_reqs: u32) -> Result {
        // Receives and Sends of the reverse direction are there from the start.
        xprt.make_bc_requests(REVERSE_CALLS as usize)
    }

    fn bc_max_payload(xprt: &Xprt<Self>) -> usize {
        // Under the lock: the last reference to a connection must not be dropped here.
        let conn = xprt.conn.lock();
        let agreed = conn
            .as_ref()
            .map_or_else(our_sizes, |conn| *conn.engine().agreed());
        drop(conn);
        let longest = agreed.send.0.min(agreed.receive.0) as usize;
        longest
            .min(kernel::page::PAGE_SIZE)
            .saturating_sub(Version::One.least_header())
    }

    fn bc_slots(_xprt: &Xprt<Self>) -> u32 {
        REVERSE_REQUESTS
    }

    fn bc_send_reply(xprt: &Xprt<Self>, rqst: &BcRqst<Self>) -> Result {
        let conn = match (xprt.is_connected(), xprt.conn()) {
            (true, Some(conn)) => conn,
            _ => return Err(enotconn()),
        };
        // The server that called on an earlier connection does not wait for a Reply on this one.
        if rqst.connection() != conn.engine().number() {
            return Err(enotconn());
        }
        trace_xprtrdma_cb_reply(Peer::of(xprt), rqst.xid());
        let sent = conn.engine().reverse_reply(conn.qp(), rqst);
        if sent == Err(enotconn()) {
            drop(conn);
            xprt.close();
        }
        sent
    }
}

/// Sends a Call on `conn`; see [`XprtOps::send_request`].
fn send_call(xprt: &Xprt<ClntXprt>, conn: &Conn, slot: &Slot<ClntXprt>) -> Result {
    let engine = conn.engine();
    let Some(ctx) = engine.take_send(false) else {
        xprt.stats.send_waits.add(1);
        return wait_for(xprt, || engine.has_send());
    };
    let mut chunks = slot.chunks.lock();
    let Err((error, ctx)) = marshal::send(engine, conn.qp(), &xprt.stats, slot, &mut chunks, ctx)
    else {
        chunks.awaits_reply = true;
        return Ok(());
    };
    engine.put_send(ctx);
    let mut list = chunks.take();
    drop(chunks);
    engine.recycle_mrs(&mut list);
    if error == EAGAIN {
        return wait_for(xprt, || engine.has_idle_mrs());
    }
    Err(error)
}

/// Has the sender come again when something is given back, or at once if it is there already.
fn wait_for(xprt: &Xprt<ClntXprt>, there: impl Fn() -> bool) -> Result {
    xprt.wait_for_buffer_space();
    // What came back before the line above has woken nobody.
    if there() {
        xprt.write_space();
    }
    Err(EAGAIN)
}
