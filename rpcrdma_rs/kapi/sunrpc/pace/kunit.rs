// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: when a transport connects again.

use super::*;
use kernel::prelude::*;

/// The clock shortly before it wraps around.
const LATE: Jiffies = Jiffies::MAX - 10;

#[kunit_tests(rpcrdma_pace)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_apart() -> Result {
        for start in [0, 1000, LATE] {
            let after = |ticks: Jiffies| start.wrapping_add(ticks);
            let pace = Pace::new(start);
            assert_eq!(pace.pause(start, 0), 0);
            // One that failed at once, and one that took a while.
            assert_eq!(pace.pause(start, 50), 50);
            assert_eq!(pace.pause(after(80), 50), 20);
            // It takes longer than the pause would be.
            assert_eq!(pace.pause(after(200), 50), 0);
            assert_eq!(pace.pause(after(210), 50), 40);
        }
        Ok(())
    }

    #[test]
    fn an_attempt_of_long_ago_is_not_waited_for() -> Result {
        for start in [0, 1000, LATE] {
            let pace = Pace::new(start);
            let next = start.wrapping_add(1_000_000);
            assert_eq!(pace.pause(next, 50), 0);
            assert_eq!(pace.pause(next.wrapping_add(1), 50), 49);
        }
        Ok(())
    }

    #[test]
    fn without_a_spacing_there_is_no_pause() -> Result {
        let pace = Pace::new(1000);
        assert_eq!(pace.pause(1000, 50), 50);
        assert_eq!(pace.pause(1010, 0), 0);
        Ok(())
    }

    #[test]
    fn silence_is_since_the_last_message() -> Result {
        let pace = Pace::new(LATE);
        assert_eq!(pace.silence(LATE), 0);
        assert_eq!(pace.silence(LATE.wrapping_add(30)), 30);
        pace.heard(LATE.wrapping_add(20));
        assert_eq!(pace.silence(LATE.wrapping_add(30)), 10);
        // The clock was read, and then a message came at the next tick.
        assert_eq!(pace.silence(LATE.wrapping_add(19)), 0);
        assert!(time_before(LATE, LATE.wrapping_add(20)));
        assert!(!time_before(LATE, LATE));
        Ok(())
    }
}
