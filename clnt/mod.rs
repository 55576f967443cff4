// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The client: RPC transport class "rdma" (RFC 8166, the Requester's side).
//!
//! A file imports only files below it, except that `endpoint`, `invalidate` and `pools` import each
//! other, and so do `stats` and `transport`:
//!
//! ```text
//!   xprt         the callbacks of sunrpc
//!   send         sends a Call, handles completions of Sends
//!   reply        handles a received message
//!   backchannel  Calls of the reverse direction, and their Replies
//!   connect      setup and teardown of a connection
//!   properties   changes of the message sizes of version 2
//!   endpoint     the data of a connection, and its watchdog
//!   invalidate   local invalidation of regions
//!   pools        the Sends, regions and Receives of a connection
//!   send_queue   entries of the Send Queue, and detection of stalls
//!   credits      credits that are not available for Calls
//!   events       events of the CM and of device removal, the outcome of negotiation
//!   status       the status of a connection in debugfs
//!   state        the state of a connection
//!   transport    data of a transport that outlives its connections, and of a request slot
//!   negotiation  the version of a connection, and its message sizes
//!   marshal      the transfer modes of a Call, its header, its memory and its Send
//!   chunks       the regions of a request
//!   backoff      when to connect again
//!   sendctx      the owner of a posted Send
//!   stats        counters, and the line of mountstats
//!   tunables     the sysctls
//! ```
//!
//! `backoff`, `credits`, `send_queue` and `state` are pure: they use no kernel interface, and are
//! tested on the host.

#![deny(unsafe_code)]

mod backchannel;
mod backoff;
mod chunks;
mod connect;
mod credits;
mod endpoint;
mod events;
mod invalidate;
mod marshal;
mod negotiation;
mod pools;
mod properties;
mod reply;
mod send;
mod send_queue;
mod sendctx;
mod state;
mod stats;
mod status;
mod transport;
pub(crate) mod tunables;
pub(crate) mod xprt;

use kernel::error::Result;

use crate::kapi::sunrpc::class::Registration;

/// The credits that the client grants in the reverse direction.
const BC_CREDITS: u32 = 16;
/// The number of Calls of the reverse direction for which there are buffers. It is twice the
/// credits: the server may send the next Call as soon as it has a Reply, shortly before the buffers
/// of the previous Call are free.
const BC_MAX_CALLS: u32 = 2 * BC_CREDITS;

/// Registers the transport class with sunrpc, until the result is dropped. May sleep.
///
/// # Errors
///
/// `EEXIST` if the C module is loaded.
pub(crate) fn register() -> Result<Registration> {
    xprt::CLASS.register()
}
