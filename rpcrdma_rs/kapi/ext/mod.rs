// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What `kernel` lacks and is neither RDMA nor sunrpc: memory, waiting, work, addresses, errors.

pub(crate) mod addr;
pub(crate) mod atomic;
pub(crate) mod completion;
pub(crate) mod count;
pub(crate) mod debugfs;
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
use kernel::time::{
    msecs_to_jiffies,
    Jiffies, //
};

/// Returns the current time. Any context.
pub(crate) fn jiffies() -> Jiffies {
    // SAFETY: The clock is there to be read; a word is read atomically.
    unsafe { (&raw const bindings::jiffies).read_volatile() }
}

/// Returns how many milliseconds ago the time `then` was, to a tick; 0 if it is not past. Any
/// context.
pub(crate) fn msecs_since(then: Jiffies) -> u64 {
    let ticks = jiffies().wrapping_sub(then);
    // Another processor, whose clock is a tick ahead, may have written it.
    if ticks > Jiffies::MAX / 2 {
        return 0;
    }
    (ticks as u64)
        .saturating_mul(1000)
        .checked_div(msecs_to_jiffies(1000) as u64)
        .unwrap_or(0)
}
