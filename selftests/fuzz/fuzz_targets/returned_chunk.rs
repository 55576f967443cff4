// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Arbitrary octets describe an offered chunk and the chunk that is returned for it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks::returned_chunk(data));
