// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Safe abstractions of the kernel interfaces that a transport needs and `kernel` lacks.
//!
//! Written as if it were `rust/kernel/{rdma,sunrpc}`.
//!
//! ```text
//!                  root
//!   trace   status   recv_context  of this module alone
//!   rdma    sunrpc                 do not import each other
//!        ext
//! ```
//!
//! A layer imports only the layers below it, which `selftests/lint` checks. The rules of `kapi`:
//!
//! * `unsafe` code, C types and the bindings are private to it. Its public items are safe.
//! * `ext` and `rdma` know nothing of RPC-over-RDMA. The layer `sunrpc` contains only the names,
//!   timeouts and flags that the kernel's sunrpc needs for it. `trace` and `status` use its terms,
//!   but no layer imports `xdr`, `clnt` or `svc`.
//! * No `&mut` exists to memory that C or a device may use at the same time.

mod bindings;
pub(crate) mod compat;

pub(crate) mod ext;
pub(crate) mod rdma;
mod recv_context;
mod root;
pub(crate) mod status;
pub(crate) mod sunrpc;
pub(crate) mod trace;

pub(crate) use root::Root;

#[cfg(any(rpcrdma_kapi_test, rpcrdma_kunit))]
#[path = "../../selftests/kapi/fixture.rs"]
pub(crate) mod fixture;
#[cfg(rpcrdma_kapi_test)]
#[path = "../../selftests/kapi/loopback.rs"]
pub(crate) mod loopback;
