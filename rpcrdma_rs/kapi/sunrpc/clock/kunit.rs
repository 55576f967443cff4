// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the time since the last message, across the wraparound of jiffies.

use super::*;
use kernel::prelude::*;

/// The clock shortly before it wraps around.
const LATE: Jiffies = Jiffies::MAX - 10;

#[kunit_tests(rpcrdma_clock)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_counts_from_the_last_message() -> Result {
        let last = LastHeard::new(LATE);
        assert_eq!(last.silence(LATE), 0);
        assert_eq!(last.silence(LATE.wrapping_add(30)), 30);
        last.heard(LATE.wrapping_add(20));
        assert_eq!(last.silence(LATE.wrapping_add(30)), 10);
        // A message arrives in the tick after the one in which the time was read.
        assert_eq!(last.silence(LATE.wrapping_add(19)), 0);
        assert!(time_before(LATE, LATE.wrapping_add(20)));
        assert!(!time_before(LATE, LATE));
        Ok(())
    }
}
