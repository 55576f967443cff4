// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The client: RPC transport class "rdma" (RFC 8166, the Requester's side).
//!
//! ```text
//!   sunrpc ──XprtOps──▶ xprt ──▶ conn ──▶ engine: pools, Receives
//!                        │         └─▶ state (pure)
//!                        ├─ marshal: Call ──▶ sendctx, frwr ──▶ posted
//!                        └─ reply ◀── received; frwr fences; sunrpc completes
//!                             └─ backchannel: Calls of the reverse direction
//! ```

#![deny(unsafe_code)]

mod backchannel;
mod conn;
mod engine;
mod frwr;
mod marshal;
mod reply;
mod sendctx;
mod state;
mod stats;
pub(crate) mod tunables;
pub(crate) mod xprt;

use kernel::error::Result;

use crate::kapi::sunrpc::class::{
    Registration,
    XprtClass, //
};

use xprt::ClntXprt;

/// How many Calls of the reverse direction may be under way at a time: the credits we grant.
const REVERSE_REQUESTS: u32 = 16;
/// How many there is room for: the server may call again as soon as it has a Reply, and what
/// belongs to the Call before is given back a little later.
const REVERSE_CALLS: u32 = 2 * REVERSE_REQUESTS;

/// The class: its number, `XPRT_TRANSPORT_RDMA`, is the one that NFS asks for.
static CLASS: XprtClass<ClntXprt> = XprtClass::new(c"rdma", 256, [c"rdma", c"rdma6"]);

/// Makes the class known to sunrpc, until the result is dropped. May sleep.
///
/// # Errors
///
/// `EEXIST` when another module serves NFS over RDMA already.
pub(crate) fn register() -> Result<Registration> {
    CLASS.register()
}
