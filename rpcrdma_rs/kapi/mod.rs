// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Safe abstractions of the kernel interfaces a transport needs and `kernel` lacks.
//!
//! Written as if it were `rust/kernel/{rdma,sunrpc}`.
//!
//! ```text
//!   trace   live   recv_context    of this module alone
//!   rdma    sunrpc                 do not import each other
//!        ext
//! ```
//!
//! A layer imports what is below it only; `selftests/lint` holds that. Rules of the room:
//!
//! * `unsafe`, C types and the bindings stay in here; what is public is safe to use.
//! * Nothing in here knows the RPC-over-RDMA protocol, the client or the server.
//! * Memory that C or a device may use at that time is never behind a `&mut`.

mod bindings;
pub(crate) mod compat;

pub(crate) mod ext;
pub(crate) mod live;
pub(crate) mod rdma;
mod recv_context;
pub(crate) mod sunrpc;
pub(crate) mod trace;

#[cfg(any(rpcrdma_kapi_test, rpcrdma_kunit))]
#[path = "../../selftests/kapi/fixture.rs"]
pub(crate) mod fixture;
#[cfg(rpcrdma_kapi_test)]
#[path = "../../selftests/kapi/loopback.rs"]
pub(crate) mod loopback;
