// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A Requester receives arbitrary octets: decode, compare with the offered chunks.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks::reply(data));
