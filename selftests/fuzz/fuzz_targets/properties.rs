// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A set of transport properties: read, granted or rejected, responded to.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks_version2::properties(data));
