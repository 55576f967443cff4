// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests of the wire format, one file for each kind of fault.

mod fast_path;
mod fast_reply;
mod golden;
mod hostile;
mod limits;
mod mutation;
mod negotiate;
mod numbers;
mod plan;
mod resize;
mod returned;
mod rpc;
mod streams;
mod version2;
