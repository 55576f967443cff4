// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RPC-over-RDMA, client and server: version 1 (RFC 8166), and a draft of version 2.
//!
//! This is the root of the crate: the module tree, and the list of everything that is registered
//! while the module is loaded.
//!
//! * `xdr` is the wire format: pure functions over bytes.
//! * `clnt` and `svc` are client and server. They do not use each other.
//! * `kapi` contains safe abstractions of the kernel's interfaces.

#![crate_name = "rpcrdma_rs"]

use kernel::prelude::*;

mod kapi;

#[path = "../clnt/mod.rs"]
mod clnt;
#[path = "../svc/mod.rs"]
mod svc;
#[path = "../xdr/mod.rs"]
mod xdr;

// Arithmetic on physical addresses and sums of times use `usize`.
const _: () = assert!(usize::BITS == 64);
// `xdr` counts pages of this size, and so do the limits of a chunk.
const _: () = assert!(
    kernel::page::PAGE_SIZE == 4096,
    "rpcrdma_rs supports only kernels with pages of 4 KiB"
);

module! {
    type: kapi::Root<RpcRdma>,
    name: "rpcrdma_rs",
    authors: ["The rpcrdma_rs developers"],
    description: "RPC/RDMA transports, client and server",
    license: "Dual BSD/GPL",
    alias: ["rpcrdma", "rpcrdma6", "svcrdma", "xprtrdma"],
}

/// Everything that is registered while the module is loaded.
///
/// The fields are dropped, and so unregistered, in the order of their declaration: first those that
/// create new connections. The last one waits for the release of the devices, and [`kapi::Root`]
/// after that for queued work.
struct RpcRdma {
    _open: kapi::sunrpc::class::Open,
    _client: kapi::sunrpc::class::Registration,
    _server: svc::Registration,
    _client_tunables: kapi::ext::sysctl::Registration,
    _server_tunables: kapi::ext::sysctl::Registration,
    _devices: kapi::rdma::client::Registration,
}

impl RpcRdma {
    /// Registers everything, or nothing if an error occurs.
    fn register() -> Result<Self> {
        let devices = kapi::rdma::client::Registration::new(&kapi::trace::TraceDevices)?;
        // Before the tunables: if the C module is loaded, its class and its sysctls both exist, and
        // the error of the class names the cause.
        let client = clnt::register()?;
        let client_tunables = clnt::tunables::register()?;
        let server_tunables = svc::tunables::register()?;
        // May fail if the C module is being loaded: it registers its server class first, and
        // removes it again when its client class turns out to be taken.
        let server = svc::register()?;
        // Nothing fails from here on. A mount that uses the class would not keep a module whose
        // loading fails.
        let open = kapi::sunrpc::class::Open::new();
        Ok(RpcRdma {
            _open: open,
            _client: client,
            _server: server,
            _client_tunables: client_tunables,
            _server_tunables: server_tunables,
            _devices: devices,
        })
    }
}

impl kernel::Module for RpcRdma {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Self::register().inspect_err(|error| {
            if *error == EEXIST {
                pr_err!(
                    "transport class \"rdma\" is taken: unload the C module first \
                     (rmmod rpcrdma), then load this one\n"
                );
            }
        })
    }
}
