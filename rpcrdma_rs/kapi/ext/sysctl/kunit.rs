// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: event counters with contending threads.

use super::*;
use crate::kapi::fixture::contend;

static COUNTER: Counter = Counter::new();

#[kunit_tests(rpcrdma_sysctl)]
mod tests {
    use super::*;

    #[test]
    fn no_event_is_lost() -> Result {
        assert_eq!(COUNTER.sum(), 0);
        contend(4, |_| {
            for _ in 0..10_000 {
                COUNTER.inc();
            }
        })?;
        assert_eq!(COUNTER.sum(), 40_000);
        COUNTER.reset();
        assert_eq!(COUNTER.sum(), 0);
        COUNTER.inc();
        assert_eq!(COUNTER.sum(), 1);
        Ok(())
    }
}
