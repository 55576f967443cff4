// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Arbitrary messages on a new connection: how both ends interpret them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks_version2::negotiate(data));
