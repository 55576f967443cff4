// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests of `kapi/rdma`, run when the module is inserted.
//!
//! Insertion fails if a test fails. The kernel log gets a KTAP line for each test.

#![crate_name = "rpcrdma_kapi_test"]

use kernel::prelude::*;

#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "tests use a part of it"
)]
#[path = "../../rpcrdma_rs/kapi/mod.rs"]
mod kapi;

module! {
    type: KapiTest,
    name: "rpcrdma_kapi_test",
    authors: ["The rpcrdma_rs developers"],
    description: "Tests of the RDMA abstractions of rpcrdma_rs",
    license: "Dual BSD/GPL",
    params: {
        address: u32 {
            default: 0xc0a8_5802,
            description: "IPv4 address of an RDMA device of this machine",
        },
    },
}

struct KapiTest {
    _devices: kapi::rdma::client::Registration,
}

impl kernel::Module for KapiTest {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let devices = kapi::rdma::client::Registration::new(&kapi::trace::TraceDevices)?;
        kapi::loopback::run(kapi::compat::parameter(module_parameters::address.value()))?;
        Ok(KapiTest { _devices: devices })
    }
}
