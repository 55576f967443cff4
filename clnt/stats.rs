// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Counters of a transport, and the line of `/proc/self/mountstats` that shows them.

use kernel::seq_file::SeqFile;

use super::transport::ClntXprt;
use crate::kapi::{
    ext::count::{
        Count,
        SerialCount, //
    },
    sunrpc::{
        send_lock::SendLocked,
        xprt::Counters, //
    }, //
};

/// The counters of a transport that only the holder of its send lock adds to.
pub(super) struct Sending {
    /// Segments in Read lists.
    pub(super) read_segments: SerialCount,
    /// Segments in Write chunks.
    pub(super) write_segments: SerialCount,
    /// Segments in Reply chunks.
    pub(super) reply_segments: SerialCount,
    /// Bytes offered in Write and Reply chunks.
    pub(super) offered_bytes: SerialCount,
    /// Bytes of the pages and tails of Calls that were copied into the Send's buffer.
    pub(super) pullup_bytes: SerialCount,
    /// Calls that could not be marshalled, including those that are tried again.
    pub(super) failed_marshal: SerialCount,
    /// Calls sent as RDMA_NOMSG.
    pub(super) nomsg_calls: SerialCount,
    /// Times that a Call waited for a resource of its connection, such as a Send or regions.
    pub(super) send_waits: SerialCount,
}

impl Sending {
    /// Creates counters of zero.
    const fn new() -> Self {
        Self {
            read_segments: SerialCount::new(),
            write_segments: SerialCount::new(),
            reply_segments: SerialCount::new(),
            offered_bytes: SerialCount::new(),
            pullup_bytes: SerialCount::new(),
            failed_marshal: SerialCount::new(),
            nomsg_calls: SerialCount::new(),
            send_waits: SerialCount::new(),
        }
    }

    /// Returns the counters of a transport whose send lock is held.
    #[inline]
    pub(super) fn of<'a>(xprt: &'a SendLocked<'_, ClntXprt>) -> &'a Self {
        &xprt.stats.sending
    }
}

/// Counters of a transport, over all of its connections.
pub(super) struct Stats {
    sending: Sending,
    /// Bytes that the server placed in Write and Reply chunks.
    pub(super) placed_bytes: Count,
    /// Bytes of Replies copied into pages.
    pub(super) fixup_bytes: Count,
    /// Bytes allocated because a request was larger than its slot's buffers.
    pub(super) grown_bytes: Count,
    /// Replies to a Call that could not be used.
    pub(super) bad_replies: Count,
    /// Memory regions allocated.
    pub(super) mrs_allocated: Count,
    /// Memory regions that the server did not invalidate.
    pub(super) local_invs: Count,
}

impl Stats {
    /// Creates counters of zero.
    pub(super) const fn new() -> Self {
        Self {
            sending: Sending::new(),
            placed_bytes: Count::new(),
            fixup_bytes: Count::new(),
            grown_bytes: Count::new(),
            bad_replies: Count::new(),
            mrs_allocated: Count::new(),
            local_invs: Count::new(),
        }
    }
}

/// Prints the line `xprt: rdma` that `mountstats` and `nfsiostat` read.
///
/// Values of the C module that have no meaning here are zero: the local port, the regions recycled
/// or orphaned, and the Replies that waited for their Send.
pub(super) fn print(c: &Counters, s: &Stats, seq: &SeqFile) {
    kernel::seq_print!(
        seq,
        "\txprt:\trdma 0 {} {} {} {} {} {} {} {} {} ",
        c.binds,
        c.connects,
        c.connect_secs,
        c.idle_secs,
        c.sends,
        c.recvs,
        c.bad_xids,
        c.requests,
        c.backlog
    );
    kernel::seq_print!(
        seq,
        "{} {} {} {} {} {} {} {} {} {} {} ",
        s.sending.read_segments.get(),
        s.sending.write_segments.get(),
        s.sending.reply_segments.get(),
        s.sending.offered_bytes.get(),
        s.placed_bytes.get(),
        s.sending.pullup_bytes.get(),
        s.fixup_bytes.get(),
        s.grown_bytes.get(),
        s.sending.failed_marshal.get(),
        s.bad_replies.get(),
        s.sending.nomsg_calls.get()
    );
    kernel::seq_print!(
        seq,
        "0 0 {} {} {} 0\n",
        s.mrs_allocated.get(),
        s.local_invs.get(),
        s.sending.send_waits.get()
    );
}

#[cfg(rpcrdma_kunit)]
mod kunit;
