// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A peer sends arbitrary octets as private data.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks::private(data));
