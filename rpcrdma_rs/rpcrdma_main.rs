// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RPC-over-RDMA version 1 (RFC 8166), client and server.
//!
//! The root of the crate: the module tree and the list of what is registered while the
//! module is loaded.
//!
//! * `xdr` is the wire format: pure functions over bytes.
//! * `clnt` and `svc` are the two sides. They do not use each other.
//! * `kapi` is the kernel as safe Rust sees it.

#![crate_name = "rpcrdma_rs"]

use kernel::prelude::*;

mod kapi;

#[path = "../clnt/mod.rs"]
mod clnt;
#[path = "../svc/mod.rs"]
mod svc;
#[path = "../xdr/mod.rs"]
mod xdr;

// Physical addresses are counted with, and times added up, in `usize`.
const _: () = assert!(usize::BITS == 64);

module! {
    type: RpcRdma,
    name: "rpcrdma_rs",
    authors: ["The rpcrdma_rs developers"],
    description: "RPC/RDMA transports, client and server",
    license: "Dual BSD/GPL",
    alias: ["rpcrdma", "rpcrdma6", "svcrdma", "xprtrdma"],
}

/// What is registered while the module is loaded.
///
/// The fields are dropped, that is unregistered, in the order they are written: first nothing
/// new comes in, last the devices are let go, and the end of what was freed is waited for.
struct RpcRdma {
    _open: kapi::sunrpc::class::Open,
    _client: kapi::sunrpc::class::Registration,
    _server: svc::Registration,
    _client_tunables: kapi::ext::sysctl::Registration,
    _server_tunables: kapi::ext::sysctl::Registration,
    _devices: kapi::rdma::client::Registration,
    _queue: kapi::ext::work::OwnQueue,
    /// The queue removes what is in there.
    _live: kapi::ext::debugfs::Registration,
}

impl RpcRdma {
    /// Registers everything, or nothing.
    fn register(module: &'static ThisModule) -> Result<Self> {
        let live = kapi::live::register();
        let queue = kapi::ext::work::OwnQueue::new(c"rpcrdma_rs")?;
        let devices = kapi::rdma::client::Registration::new(&kapi::trace::TraceDevices)?;
        // Before the tunables, whose names may be taken as well: the class tells by whom.
        let client = clnt::register()?;
        let client_tunables = clnt::tunables::register()?;
        let server_tunables = svc::tunables::register()?;
        // From here on nothing can fail, as long as the names of a module are taken together.
        let open = kapi::sunrpc::class::Open::new();
        let server = svc::register(module)?;
        Ok(RpcRdma {
            _open: open,
            _client: client,
            _server: server,
            _client_tunables: client_tunables,
            _server_tunables: server_tunables,
            _devices: devices,
            _queue: queue,
            _live: live,
        })
    }
}

impl kernel::Module for RpcRdma {
    fn init(module: &'static ThisModule) -> Result<Self> {
        Self::register(module).inspect_err(|error| {
            if *error == EEXIST {
                pr_err!(
                    "transport class \"rdma\" is taken: unload the C module first \
                     (rmmod rpcrdma), then load this one\n"
                );
            }
        })
    }
}
