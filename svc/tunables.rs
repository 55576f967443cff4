// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The server's tunables and counters, in `/proc/sys/sunrpc/svc_rdma`.
//!
//! A connection reads the tunables when it is accepted. A change does not affect existing
//! connections; version 2 has exceptions (`Documentation/version2.rst`). The counters are sums over
//! all connections since the module was loaded or the counter was last written.

use crate::kapi::ext::sysctl::{
    Counter,
    File,
    Registration,
    Uint, //
};
use kernel::prelude::*;

/// The largest number of credits that a connection grants, if its device allows that many Receives.
pub(super) static MAX_REQUESTS: Uint = Uint::new(128, 4, 16384);

/// Bytes of the largest message received or sent inline, transport header included.
pub(super) static MAX_REQ_SIZE: Uint = Uint::new(4096, 4096, 65536);

/// The number of RDMA Reads that a connection may have outstanding on the wire, if the client and
/// the device allow that many.
pub(super) static MAX_OUTBOUND_READ_REQUESTS: Uint = Uint::new(16, 1, 255);

/// The highest version of RPC-over-RDMA that is supported. A Reply has the version of its Call.
pub(super) static MAX_VERSION: Uint = Uint::new(2, 1, 2);

/// Connections that use version 2.
pub(super) static STAT_VERSION_2: Counter = Counter::new();

/// Segments of Read chunks for which RDMA Reads were prepared.
pub(super) static STAT_READ: Counter = Counter::new();

/// Messages taken from the Receive Queue for dispatch.
pub(super) static STAT_RECV: Counter = Counter::new();

/// Segments of Write and Reply chunks for which RDMA Writes were prepared.
pub(super) static STAT_WRITE: Counter = Counter::new();

/// Chains that were queued for room in the Send Queue.
pub(super) static STAT_SQ_STARVE: Counter = Counter::new();

// Always zero, as in the C module: monitors that read every file of the directory find the
// ones they know.
static STAT_UNUSED: Uint = Uint::new(0, 0, 0);

/// Shows the files in `/proc/sys/sunrpc/svc_rdma` until the result is dropped. May sleep.
///
/// # Errors
///
/// `ENOMEM` if memory is short or a file of the same name exists.
pub(crate) fn register() -> Result<Registration> {
    Registration::new(
        c"sunrpc/svc_rdma",
        &[
            File::Uint(c"max_requests", &MAX_REQUESTS),
            File::Uint(c"max_req_size", &MAX_REQ_SIZE),
            File::Uint(c"max_outbound_read_requests", &MAX_OUTBOUND_READ_REQUESTS),
            File::Uint(c"max_version", &MAX_VERSION),
            File::Counter(c"rdma_stat_version_2", &STAT_VERSION_2),
            File::Counter(c"rdma_stat_read", &STAT_READ),
            File::Counter(c"rdma_stat_recv", &STAT_RECV),
            File::Counter(c"rdma_stat_write", &STAT_WRITE),
            File::Counter(c"rdma_stat_sq_starve", &STAT_SQ_STARVE),
            File::Uint(c"rdma_stat_rq_starve", &STAT_UNUSED),
            File::Uint(c"rdma_stat_rq_poll", &STAT_UNUSED),
            File::Uint(c"rdma_stat_rq_prod", &STAT_UNUSED),
            File::Uint(c"rdma_stat_sq_poll", &STAT_UNUSED),
            File::Uint(c"rdma_stat_sq_prod", &STAT_UNUSED),
        ],
    )
}
