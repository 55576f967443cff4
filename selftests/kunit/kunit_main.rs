// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A module with the KUnit suites, whose sources are next to the code that they test.
//!
//! Inserting it does not register rpcrdma_rs: KUnit finds the suites in the section
//! `.kunit_test_suites`, runs them, and shows the results in `/sys/kernel/debug/kunit`.

#![crate_name = "rpcrdma_kunit"]

use kernel::prelude::*;

#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "tests use a part of it"
)]
#[path = "../../rpcrdma_rs/kapi/mod.rs"]
mod kapi;

#[allow(dead_code, reason = "tests use a part of it")]
#[path = "../../clnt/mod.rs"]
mod clnt;

#[allow(dead_code, reason = "tests use a part of it")]
#[path = "../../svc/mod.rs"]
mod svc;

#[allow(dead_code, reason = "tests use a part of it")]
#[path = "../../xdr/mod.rs"]
mod xdr;

module! {
    type: Suites,
    name: "rpcrdma_kunit",
    authors: ["The rpcrdma_rs developers"],
    description: "KUnit suites of rpcrdma_rs",
    license: "Dual BSD/GPL",
    params: {
        address: u32 {
            default: 0xc0a8_5802,
            description: "IPv4 address of an RDMA device of this machine",
        },
    },
}

struct Suites;

impl kernel::Module for Suites {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Suites)
    }
}
