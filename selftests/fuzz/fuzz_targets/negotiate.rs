// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Messages on a new connection: what both ends take them for.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks_version2::negotiate(data));
