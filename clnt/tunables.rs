// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The client's tunables, in `/proc/sys/sunrpc`.
//!
//! A connection reads the tunables when it is made, except for the number of slots, which a mount
//! reads. A change does not affect existing connections and mounts; version 2 has exceptions
//! (`Documentation/version2.rst`).

use crate::kapi::ext::sysctl::{
    File,
    Registration,
    Uint, //
};
use kernel::prelude::*;

/// The number of requests that a transport may have in flight: the credits that each Call requests.
pub(super) static SLOT_TABLE_ENTRIES: Uint = Uint::new(128, 4, 16384);

/// Bytes of the largest Reply that is received inline, transport header included.
pub(super) static MAX_INLINE_READ: Uint = Uint::new(4096, 1024, 65536);

/// Bytes of the largest Call that is sent inline, transport header included.
pub(super) static MAX_INLINE_WRITE: Uint = Uint::new(4096, 1024, 65536);

/// The highest version of RPC-over-RDMA that the client requests.
pub(super) static MAX_VERSION: Uint = Uint::new(1, 1, 2);

// These have no effect, as in the C module. They exist so that a sysctl.conf or a script that sets
// them, as old guides recommend, does not fail.
static INLINE_WRITE_PADDING: Uint = Uint::new(0, 0, 4096);
static MEMREG_STRATEGY: Uint = Uint::new(5, 0, 6);
static PAD_OPTIMIZE: Uint = Uint::new(0, 0, i32::MAX as u32);

/// Shows the numbers in `/proc/sys/sunrpc` until the result is dropped. May sleep.
///
/// # Errors
///
/// `ENOMEM` if memory is short or a file of the same name exists.
pub(crate) fn register() -> Result<Registration> {
    Registration::new(
        c"sunrpc",
        &[
            File::Uint(c"rdma_slot_table_entries", &SLOT_TABLE_ENTRIES),
            File::Uint(c"rdma_max_inline_read", &MAX_INLINE_READ),
            File::Uint(c"rdma_max_inline_write", &MAX_INLINE_WRITE),
            File::Uint(c"rdma_max_version", &MAX_VERSION),
            File::Uint(c"rdma_inline_write_padding", &INLINE_WRITE_PADDING),
            File::Uint(c"rdma_memreg_strategy", &MEMREG_STRATEGY),
            File::Uint(c"rdma_pad_optimize", &PAD_OPTIMIZE),
        ],
    )
}
