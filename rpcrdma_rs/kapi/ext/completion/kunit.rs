// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: completions with waiting threads.

use super::*;
use crate::kapi::{
    ext::atomic::{
        Atomic,
        Relaxed, //
    },
    fixture::{
        long_pause,
        spawn, //
    }, //
};
use kernel::sync::Arc;

/// A completion, and the number of threads whose wait has returned.
#[pin_data]
struct Gate {
    #[pin]
    done: Done,
    past: Atomic<u32>,
}

impl Gate {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Gate {
                done <- Done::new(),
                past: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Starts a thread that waits.
    fn wait_in_thread(self: &Arc<Self>) -> Result {
        let gate = self.clone();
        spawn(move || {
            gate.done.wait();
            gate.past.add(1, Relaxed);
        })
    }

    /// Returns, after a pause, the number of threads whose wait has returned.
    fn past(&self) -> u32 {
        long_pause();
        self.past.load(Relaxed)
    }
}

#[kunit_tests(rpcrdma_completion)]
mod tests {
    use super::*;

    #[test]
    fn each_complete_lets_one_pass() -> Result {
        let gate = Gate::new()?;
        for _ in 0..3 {
            gate.wait_in_thread()?;
        }
        assert_eq!(gate.past(), 0);
        for past in 1..=3 {
            gate.done.complete();
            assert_eq!(gate.past(), past);
        }
        // One that waits only later passes as well.
        gate.done.complete();
        gate.done.wait();
        gate.wait_in_thread()?;
        assert_eq!(gate.past(), 3);
        gate.done.complete();
        assert_eq!(gate.past(), 4);
        Ok(())
    }

    #[test]
    fn complete_all_lets_all_pass_until_reset() -> Result {
        let gate = Gate::new()?;
        gate.wait_in_thread()?;
        gate.wait_in_thread()?;
        assert_eq!(gate.past(), 0);
        gate.done.complete_all();
        assert_eq!(gate.past(), 2);
        for _ in 0..3 {
            gate.done.wait();
        }
        gate.wait_in_thread()?;
        assert_eq!(gate.past(), 3);
        gate.done.reset();
        gate.wait_in_thread()?;
        assert_eq!(gate.past(), 3);
        gate.done.complete_all();
        assert_eq!(gate.past(), 4);
        Ok(())
    }
}
