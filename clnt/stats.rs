// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Counters of a transport, and the line of `/proc/self/mountstats` that shows them.

use kernel::seq_file::SeqFile;

use crate::kapi::{
    ext::count::Count,
    sunrpc::xprt::Counters, //
};

/// Counters of a transport, over all of its connections.
pub(super) struct Stats {
    /// Segments in Read lists.
    pub(super) read_segments: Count,
    /// Segments in Write chunks.
    pub(super) write_segments: Count,
    /// Segments in Reply chunks.
    pub(super) reply_segments: Count,
    /// Bytes offered in Write and Reply chunks.
    pub(super) offered_bytes: Count,
    /// Bytes that the server placed in them.
    pub(super) placed_bytes: Count,
    /// Bytes of the pages and tails of Calls that were copied into the Send's buffer.
    pub(super) pullup_bytes: Count,
    /// Bytes of Replies copied into pages.
    pub(super) fixup_bytes: Count,
    /// Bytes allocated because a request was larger than its slot's buffers.
    pub(super) grown_bytes: Count,
    /// Calls that could not be marshalled, including those that are tried again.
    pub(super) failed_marshal: Count,
    /// Replies that failed their RPC, and further Replies to the same Call.
    pub(super) bad_replies: Count,
    /// Calls sent as RDMA_NOMSG.
    pub(super) nomsg_calls: Count,
    /// Memory regions allocated.
    pub(super) mrs_allocated: Count,
    /// Memory regions that the server did not invalidate.
    pub(super) local_invs: Count,
    /// Times that a Call waited for an earlier Send to complete.
    pub(super) send_waits: Count,
}

impl Stats {
    /// Creates counters of zero.
    pub(super) const fn new() -> Self {
        Self {
            read_segments: Count::new(),
            write_segments: Count::new(),
            reply_segments: Count::new(),
            offered_bytes: Count::new(),
            placed_bytes: Count::new(),
            pullup_bytes: Count::new(),
            fixup_bytes: Count::new(),
            grown_bytes: Count::new(),
            failed_marshal: Count::new(),
            bad_replies: Count::new(),
            nomsg_calls: Count::new(),
            mrs_allocated: Count::new(),
            local_invs: Count::new(),
            send_waits: Count::new(),
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
        s.read_segments.get(),
        s.write_segments.get(),
        s.reply_segments.get(),
        s.offered_bytes.get(),
        s.placed_bytes.get(),
        s.pullup_bytes.get(),
        s.fixup_bytes.get(),
        s.grown_bytes.get(),
        s.failed_marshal.get(),
        s.bad_replies.get(),
        s.nomsg_calls.get()
    );
    kernel::seq_print!(
        seq,
        "0 0 {} {} {} 0\n",
        s.mrs_allocated.get(),
        s.local_invs.get(),
        s.send_waits.get()
    );
}

#[cfg(rpcrdma_kunit)]
mod kunit;
