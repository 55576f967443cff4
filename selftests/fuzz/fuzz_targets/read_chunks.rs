// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Arbitrary octets describe a Read list: assemble the Payload stream.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks::read_chunks(data));
