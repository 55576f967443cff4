// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: rate limits of call sites.

use super::*;
use crate::kapi::fixture::contend;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Returns how many of `n` messages the limit allows.
fn allowed(limit: &RateLimit, n: u32) -> u32 {
    (0..n).filter(|_| limit.allow()).count() as u32
}

/// Sets the age of the current period.
fn age(limit: &RateLimit, milliseconds: u32) {
    let now = jiffies();
    limit
        .began
        .store(now.wrapping_sub(msecs_to_jiffies(milliseconds)), Relaxed);
}

#[kunit_tests(rpcrdma_ratelimit)]
mod tests {
    use super::*;

    #[test]
    fn a_period_allows_one_burst() -> Result {
        let limit = RateLimit::new();
        assert_eq!(allowed(&limit, 3 * BURST), BURST);
        assert_eq!(allowed(&limit, BURST), 0);
        // The period has not ended.
        age(&limit, PERIOD_MS / 2);
        assert_eq!(allowed(&limit, BURST), 0);
        age(&limit, PERIOD_MS + 1);
        assert_eq!(allowed(&limit, 2 * BURST), BURST);
        Ok(())
    }

    #[test]
    fn threads_share_a_burst() -> Result {
        const THREADS: u32 = 6;
        let shared = Arc::new((RateLimit::new(), Atomic::new(0_u32)), GFP_KERNEL)?;
        // Start the period now, so that it does not end during the test.
        age(&shared.0, 0);
        let theirs = shared.clone();
        contend(THREADS as usize, move |_| {
            theirs.1.add(allowed(&theirs.0, 2 * BURST), Relaxed);
        })?;
        let sum = shared.1.load(Relaxed);
        // Each thread may have been allowed a message that was not counted yet.
        assert!((BURST..BURST + THREADS).contains(&sum));
        Ok(())
    }

    #[test]
    fn each_call_site_has_its_own_limit() -> Result {
        let mut printed = [0_u32; 2];
        for _ in 0..2 * BURST {
            macro_rules! count {
                ($place:literal) => {
                    printed[$place] += 1
                };
            }
            limited!(count!(0));
            limited!(count!(1));
        }
        assert_eq!(printed, [BURST, BURST]);
        Ok(())
    }
}
