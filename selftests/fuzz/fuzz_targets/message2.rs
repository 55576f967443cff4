// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A peer that supports both versions receives arbitrary octets: decode, answer, encode again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks_version2::message2(data));
