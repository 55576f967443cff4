// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Rate limits for log messages that a peer can trigger.
//!
//! C header: [`include/linux/ratelimit.h`](srctree/include/linux/ratelimit.h)

use kernel::time::{
    msecs_to_jiffies,
    Jiffies, //
};

use super::jiffies;
use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};

/// The length of a period, in milliseconds.
const PERIOD_MS: u32 = 5_000;

/// The number of messages that a period allows.
const BURST: u32 = 10;

/// The rate limit of one call site. Use [`limited!`] instead.
///
/// The limit is approximate: concurrent callers may print a few messages more.
pub(crate) struct RateLimit {
    began: Atomic<Jiffies>,
    count: Atomic<u32>,
}

impl RateLimit {
    /// Creates a limit whose period has not begun.
    pub(crate) const fn new() -> Self {
        RateLimit {
            began: Atomic::new(0),
            count: Atomic::new(0),
        }
    }

    /// Counts a message and returns whether it may be printed. Any context.
    pub(crate) fn allow(&self) -> bool {
        let now = jiffies();
        let age = now.wrapping_sub(self.began.load(Relaxed));
        if age >= msecs_to_jiffies(PERIOD_MS) {
            self.began.store(now, Relaxed);
            self.count.store(0, Relaxed);
        }
        if self.count.load(Relaxed) >= BURST {
            return false;
        }
        self.count.add(1, Relaxed);
        true
    }
}

/// Prints a message unless this call site has used up its period's messages:
/// `limited!(pr_warn!("...\n"))`.
macro_rules! limited {
    ($print:ident!($($message:tt)*)) => {{
        static LIMIT: $crate::kapi::ext::ratelimit::RateLimit =
            $crate::kapi::ext::ratelimit::RateLimit::new();
        if LIMIT.allow() {
            $print!($($message)*);
        }
    }};
}
pub(crate) use limited;

#[cfg(rpcrdma_kunit)]
mod kunit;
