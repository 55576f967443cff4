// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! These octets describe an offered chunk and what comes back for it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks::returned_chunk(data));
