// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The client: RPC transport class "rdma" (RFC 8166, the Requester's side).
//!
//! Each file uses only files further down, apart from `conn`, `sizes`, `invalidate` and `pools`,
//! which use each other:
//!
//! ```text
//!   xprt          what sunrpc calls
//!   send, reply   sending a Call, handling a message received
//!   backchannel   Calls of the reverse direction, and their Replies
//!   connect       a connection is made and closed (state, backoff: pure)
//!   sizes         what a message may be follows what the administrator sets
//!   conn          what a connection works with, and its watchdog
//!   events        its events; version: what it speaks
//!   invalidate    its LOCAL_INVs
//!   transport     what outlives connections, and the transport's part of a request
//!   marshal       the header of a Call, its memory, its Send
//!   pools         what messages take and give back (send_queue: pure)
//!   chunks, sendctx, stats, tunables
//! ```

#![deny(unsafe_code)]

mod backchannel;
mod backoff;
mod chunks;
mod conn;
mod connect;
mod events;
mod invalidate;
mod live;
mod marshal;
mod pools;
mod reply;
mod send;
mod send_queue;
mod sendctx;
mod sizes;
mod state;
mod stats;
mod transport;
pub(crate) mod tunables;
mod version;
pub(crate) mod xprt;

use kernel::error::Result;

use crate::kapi::sunrpc::class::Registration;

/// The limit on Calls of the reverse direction that are under way: the credits we grant.
const REVERSE_REQUESTS: u32 = 16;
/// How many there is room for: the server may call again as soon as it has a Reply, and what
/// belongs to the Call before is given back a little later.
const REVERSE_CALLS: u32 = 2 * REVERSE_REQUESTS;

/// Makes the class known to sunrpc, until the result is dropped. May sleep.
///
/// # Errors
///
/// `EEXIST` when another module serves NFS over RDMA already.
pub(crate) fn register() -> Result<Registration> {
    xprt::CLASS.register()
}
