// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The callbacks of sunrpc for a transport.
//!
//! Connecting, sending and closing run under sunrpc's send lock, one at a time. Completions, and so
//! Replies, run at any time without that lock; closing the connection waits for them. A task may
//! also give up its request at any time; it holds a reference to the connection while it does so.
//!
//! Lock order: the lock of a request's chunks, then the lock of the connection's pools or of the
//! reference to the connection. The latter two are spin locks.

use kernel::{
    prelude::*,
    seq_file::SeqFile,
    sync::Arc,
    time::Jiffies, //
};

use super::{
    connect::{
        our_sizes,
        Conn, //
    },
    events::ConnectError,
    send::send_call,
    stats,
    transport::{
        ClntSlot,
        ClntXprt, //
    },
    tunables,
    BC_CREDITS,
    BC_MAX_CALLS, //
};
use crate::{
    kapi::{
        sunrpc::{
            addr::SockAddr,
            backchannel::BcRqst,
            class::XprtClass,
            errno::{
                ebadslt,
                ecanceled,
                enotconn,
                eproto, //
            },
            link::XprtLink,
            ops::XprtOps,
            rqst::Slot,
            send_lock::SendLocked,
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

/// The transport class. NFS finds it by its number, `XPRT_TRANSPORT_RDMA`.
pub(super) static CLASS: XprtClass<ClntXprt> = XprtClass::new(c"rdma", 256, [c"rdma", c"rdma6"]);

/// Records the result of an attempt to connect, and logs the first failure in a row.
fn note_attempt(xprt: &Xprt<ClntXprt>, failed: Option<ConnectError>) {
    let failed_before = xprt.note_attempt(failed.is_some());
    if let (Some(failed), false) = (failed, failed_before) {
        let hint = if failed.cause == eproto() {
            " (that address does not answer, or no RDMA device with a link leads there)"
        } else {
            ""
        };
        pr_warn!(
            "connecting to {} failed: {:?}{}\n",
            xprt.server(),
            failed.cause,
            hint
        );
    }
}

/// Ends the server's access to the memory of a request that was given up. Sleeps.
#[cold]
fn fence_buffers(xprt: &Xprt<ClntXprt>, slot: &Slot<ClntXprt>) {
    // Read the connection first: the regions in the slot then belong to it or to none.
    let conn = xprt.conn();
    let chunks = slot.chunks.lock();
    if let (true, Some(conn)) = (chunks.is_outstanding(), &conn) {
        // `close` takes the lock of each slot before the next connection is made. As this Call is
        // still outstanding, the window is that of this connection.
        conn.ep().note_given_up(xprt);
    }
    let list = chunks.take();
    if list.is_empty() {
        return;
    }
    trace_xprtrdma_mrs_zap(Task::of(slot));
    // Without a connection the regions are already fenced, and are only dropped.
    if let Some(conn) = conn {
        conn.ep().fence(conn.qp(), list, &slot.fence);
        xprt.write_space();
    }
}

#[vtable]
impl XprtOps for ClntXprt {
    type Slot = ClntSlot;
    type Conn = Conn;

    fn class() -> &'static XprtClass<Self> {
        &CLASS
    }

    fn new(link: XprtLink<Self>) -> impl PinInit<Self, Error> {
        Self::unconnected(link)
    }

    fn new_slot() -> impl PinInit<ClntSlot, Error> {
        ClntSlot::new()
    }

    fn slots() -> u32 {
        tunables::SLOT_TABLE_ENTRIES.get()
    }

    fn max_payload() -> usize {
        MAX_DATA_PAGES as usize * kernel::page::PAGE_SIZE
    }

    fn reconnect_pause(xprt: &SendLocked<'_, Self>) -> Jiffies {
        let data: &ClntXprt = xprt;
        let pause = data.reconnect_pause(xprt.max_reconnect_pause());
        trace_xprtrdma_op_connect(Peer::of(xprt), pause);
        pause
    }

    fn establish(xprt: &SendLocked<'_, Self>) -> Result<Arc<Conn>> {
        let result = Conn::establish(xprt);
        let failed = result.as_ref().err().copied();
        let rc = failed.map_or(0, |failed| failed.cause.to_errno());
        trace_xprtrdma_connect(Peer::of(xprt), rc, if rc == 0 { 1 } else { rc });
        note_attempt(xprt, failed);
        result.map_err(|failed| failed.status)
    }

    fn close(xprt: &mut SendLocked<'_, Self>) {
        let Some(conn) = xprt.conn() else {
            return;
        };
        conn.shutdown();
        if let Some(why) = conn.ep().negotiation.why_avoid() {
            xprt.avoid_version_2(why);
        }
        trace_xprtrdma_disconnect(Peer::of(xprt), 0, enotconn().to_errno());
        let mut max = 0;
        for slot in xprt.slot_data() {
            // The next connection cannot use these regions. They are fenced by now, or by being
            // dropped.
            max = max.max(slot.chunks.lock().connection_lost());
        }
        xprt.note_losses(max);
        drop(xprt.set_conn(None));
    }

    fn destroy(xprt: &mut SendLocked<'_, Self>) {
        Self::close(xprt);
    }

    #[inline(always)]
    fn send_request(xprt: &mut SendLocked<'_, Self>, slot: &Slot<Self>) -> Result {
        if !xprt.is_connected() {
            return Err(enotconn());
        }
        let Some(conn) = xprt.conn() else {
            return Err(enotconn());
        };
        // Send a Call only once per connection: a second one would use a credit that no Reply
        // returns.
        if slot.connect_cookie() == xprt.connect_cookie() {
            xprt.close();
            return Err(enotconn());
        }
        if !slot.get_cong() {
            return Err(ebadslt());
        }
        let sent = send_call(xprt, conn, slot);
        // The credit of a Call without a Reply is not returned either.
        let keep = match &sent {
            Ok(()) => slot.reply_expected(),
            Err(error) => *error != enotconn(),
        };
        if !keep {
            xprt.close();
            return Err(enotconn());
        }
        sent
    }

    #[inline(always)]
    fn may_be_unanswered(slot: &Self::Slot) -> bool {
        !slot.chunks.is_unused()
    }

    #[inline(always)]
    fn release_buffers(xprt: &Xprt<Self>, slot: &Slot<Self>) {
        if !slot.chunks.is_unused() {
            fence_buffers(xprt, slot);
        }
    }

    fn note_grown(xprt: &Xprt<Self>, bytes: usize) {
        xprt.stats.grown_bytes.add(bytes);
    }

    fn local_addr(xprt: &Xprt<Self>) -> Option<SockAddr> {
        Some(xprt.conn()?.local_addr())
    }

    fn print_stats(xprt: &Xprt<Self>, seq: &SeqFile) {
        stats::print(&xprt.counters(), &xprt.stats, seq);
    }

    fn inject_disconnect(xprt: &Xprt<Self>) {
        if let Some(conn) = xprt.conn() {
            conn.disconnect();
        }
    }

    fn bc_setup(xprt: &Xprt<Self>, _min_reqs: u32) -> Result {
        xprt.alloc_bc_requests(BC_MAX_CALLS as usize)?;
        // The sender of the next Call posts the Receives on this connection. Later connections
        // begin with them; on one that is being made, a sender posts them with its next batch.
        xprt.allow_bc();
        if let Some(conn) = xprt.conn() {
            conn.ep().allow_bc();
        }
        Ok(())
    }

    fn bc_max_payload(xprt: &Xprt<Self>) -> usize {
        // Takes no reference: dropping the last one sleeps, and sunrpc calls this under RCU.
        let limits = xprt.with_conn(|conn| conn.map(|conn| conn.ep().thresholds()));
        let (version, send, receive) = match limits {
            Some(limits) => (limits.version, limits.send, limits.receive),
            None => {
                let ours = our_sizes(false);
                (Version::One, ours.send, ours.receive)
            }
        };
        let max_len = send.min(receive).0 as usize;
        max_len
            .min(kernel::page::PAGE_SIZE)
            .saturating_sub(version.min_header_len())
    }

    fn bc_slots(_xprt: &Xprt<Self>) -> u32 {
        BC_CREDITS
    }

    fn bc_send_reply(xprt: &mut SendLocked<'_, Self>, rqst: &BcRqst<Self>) -> Result {
        if !xprt.is_connected() {
            return Err(enotconn());
        }
        let Some(conn) = xprt.conn() else {
            return Err(enotconn());
        };
        let ep = conn.ep();
        // If the Call arrived on an earlier connection, the server does not wait for a Reply on
        // this one. The error must not be one after which sunrpc retries: senders of other requests
        // would get it, and try in vain to connect, until the task of this request runs.
        if rqst.connection() != ep.number() {
            return Err(ecanceled());
        }
        trace_xprtrdma_cb_reply(Peer::of(xprt), rqst.xid());
        let sent = ep.bc_send_reply(conn.qp(), rqst);
        if sent == Err(enotconn()) {
            xprt.close();
        }
        sent
    }
}
