// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The client: RPC transport class "rdma" (RFC 8166, the Requester's side).
//!
//! Each file uses only files further down, apart from `conn`, `sizes`, `invalidate` and `pools`,
//! which use each other:
//!
//! ```text
//!   xprt          the callbacks of sunrpc
//!   send, reply   sending a Call; handling a received message
//!   backchannel   Calls of the reverse direction, and their Replies
//!   connect       setup and teardown of a connection (state, backoff: pure)
//!   sizes         changes of the message sizes of version 2
//!   conn          the data of a connection, and its watchdog
//!   events        events of a connection; version: the version that it uses
//!   invalidate    local invalidation of regions
//!   transport     data of a transport that outlives its connections, and of a request slot
//!   marshal       the header of a Call, its memory, its Send
//!   pools         the Sends, regions and Receives of a connection (send_queue: pure)
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

/// The largest number of Calls of the reverse direction in progress: the credits that we grant.
const REVERSE_REQUESTS: u32 = 16;
/// The number of Calls of the reverse direction that there is room for. The server may send the
/// next Call as soon as it has a Reply, and the buffers of the Call before are returned a little
/// later.
const REVERSE_CALLS: u32 = 2 * REVERSE_REQUESTS;

/// Registers the transport class with sunrpc, until the result is dropped. May sleep.
///
/// # Errors
///
/// `EEXIST` if the C module is loaded.
pub(crate) fn register() -> Result<Registration> {
    xprt::CLASS.register()
}
