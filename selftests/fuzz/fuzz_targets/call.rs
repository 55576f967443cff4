// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A Responder receives arbitrary octets: decode, parse the Read list, answer.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks::call(data));
