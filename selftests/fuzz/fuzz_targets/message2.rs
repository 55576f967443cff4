// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A peer that speaks both versions gets these octets: decode, answer, write again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rpcrdma_host_tests::checks_version2::message2(data));
