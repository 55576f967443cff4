// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Abstractions that `kernel` lacks and that belong neither to RDMA nor to sunrpc.

pub(crate) mod addr;
pub(crate) mod atomic;
pub(crate) mod count;
pub(crate) mod debugfs;
pub(crate) mod errno;
pub(crate) mod lend;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod noio;
pub(crate) mod pages;
pub(crate) mod ratelimit;
pub(crate) mod retry;
pub(crate) mod scratch;
pub(crate) mod spinlock;
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
    // SAFETY: `jiffies` exists as long as the kernel runs, and one word is read atomically.
    unsafe { (&raw const bindings::jiffies).read_volatile() }
}

/// Returns the milliseconds since the time `then`, rounded to ticks, or 0 if `then` is in the
/// future. Any context.
pub(crate) fn msecs_since(then: Jiffies) -> u64 {
    let ticks = jiffies().wrapping_sub(then);
    // `then` may come from a processor that saw the next tick earlier.
    if ticks > Jiffies::MAX / 2 {
        return 0;
    }
    (ticks as u64)
        .saturating_mul(1000)
        .checked_div(msecs_to_jiffies(1000) as u64)
        .unwrap_or(0)
}
