// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Messages in the log that a peer can cause at will, and therefore not at any rate.
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

/// How long a period is.
const PERIOD_MS: u32 = 5_000;

/// How many messages a period has.
const BURST: u32 = 10;

/// Counts the messages of one place; use [`limited!`].
///
/// Exact enough for its purpose: where periods meet, some more may pass.
pub(crate) struct RateLimit {
    began: Atomic<Jiffies>,
    count: Atomic<u32>,
}

impl RateLimit {
    pub(crate) const fn new() -> Self {
        RateLimit {
            began: Atomic::new(0),
            count: Atomic::new(0),
        }
    }

    /// Returns whether one more message may go out. Any context.
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

/// Prints unless this place has printed too much recently: `limited!(pr_warn!("...\n"))`.
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
