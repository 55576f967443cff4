// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: waiting for conditions that another thread makes true, or that stay false.

use super::*;
use crate::kapi::{
    ext::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        jiffies, //
    },
    fixture::{
        long_pause,
        spawn, //
    }, //
};
use kernel::{sync::Arc, time::msecs_to_jiffies};

/// Far longer than any test takes.
const LONG_MS: u32 = 60_000;

#[pin_data]
struct Shared {
    #[pin]
    queue: WaitQueue,
    value: Atomic<u32>,
    past: Atomic<u32>,
}

impl Shared {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Shared {
                queue <- new_waitqueue!("rpcrdma kunit"),
                value: Atomic::new(0),
                past: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }
}

#[kunit_tests(rpcrdma_wait)]
mod tests {
    use super::*;

    #[test]
    fn a_true_condition_is_not_waited_for() -> Result {
        let shared = Shared::new()?;
        let mut asked = 0;
        let holds = shared.queue.wait_timeout(0, || {
            asked += 1;
            true
        });
        assert!(holds);
        assert_eq!(asked, 1);
        assert!(shared.queue.wait_timeout(Jiffies::MAX, || true));
        Ok(())
    }

    #[test]
    fn a_wait_lasts_until_its_time_limit() -> Result {
        let shared = Shared::new()?;
        assert!(!shared.queue.wait_timeout(0, || false));
        let (limit, before) = (msecs_to_jiffies(60), jiffies());
        assert!(!shared.queue.wait_timeout(limit, || false));
        assert!(jiffies().wrapping_sub(before) >= limit);
        // If the condition becomes true when the time limit expires, it counts as true.
        let end = jiffies().wrapping_add(limit);
        let over = || jiffies().wrapping_sub(end) < Jiffies::MAX / 2;
        assert!(shared.queue.wait_timeout(limit, over));
        Ok(())
    }

    #[test]
    fn a_wakeup_makes_waiters_check_again() -> Result {
        let shared = Shared::new()?;
        for needed in [1, 2, 2] {
            let shared = shared.clone();
            spawn(move || {
                let holds = || shared.value.load(Relaxed) >= needed;
                let limit = msecs_to_jiffies(LONG_MS);
                if shared.queue.wait_timeout(limit, holds) {
                    shared.past.add(1, Relaxed);
                }
            })?;
        }
        long_pause();
        // A wake-up without a change: the waiters continue to wait.
        shared.queue.wake_all();
        long_pause();
        assert_eq!(shared.past.load(Relaxed), 0);
        for (value, past) in [(1, 1), (2, 3)] {
            shared.value.store(value, Relaxed);
            shared.queue.wake_all();
            let limit = msecs_to_jiffies(LONG_MS);
            let (other, before) = (Shared::new()?, jiffies());
            while shared.past.load(Relaxed) < past && jiffies().wrapping_sub(before) < limit {
                other.queue.wait_timeout(1, || false);
            }
            long_pause();
            assert_eq!(shared.past.load(Relaxed), past);
        }
        Ok(())
    }

    #[test]
    fn each_value_ends_one_wait() -> Result {
        let shared = Shared::new()?;
        assert_eq!(shared.queue.wait_for(|| Some(7)), 7);
        for _ in 0..2 {
            let shared = shared.clone();
            spawn(move || {
                let taken = shared
                    .queue
                    .wait_for(|| shared.value.cmpxchg(1, 0, Full).ok());
                shared.past.add(taken, Relaxed);
            })?;
        }
        for past in 0..=2 {
            long_pause();
            assert_eq!(shared.past.load(Relaxed), past);
            shared.value.store(1, Relaxed);
            shared.queue.wake_all();
        }
        Ok(())
    }
}
