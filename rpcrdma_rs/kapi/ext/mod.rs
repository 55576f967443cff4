// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What `kernel` lacks and is neither RDMA nor sunrpc: memory, waiting, work, addresses, errors.

pub(crate) mod addr;
pub(crate) mod completion;
pub(crate) mod errno;
pub(crate) mod lend;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod noio;
pub(crate) mod pages;
pub(crate) mod patience;
pub(crate) mod ratelimit;
pub(crate) mod spare;
pub(crate) mod sysctl;
pub(crate) mod wait;
pub(crate) mod work;

use super::bindings;
use kernel::time::Jiffies;

/// What time it is. Any context.
pub(crate) fn jiffies() -> Jiffies {
    // SAFETY: The clock is there to be read; a word is read in one piece.
    unsafe { (&raw const bindings::jiffies).read_volatile() }
}
