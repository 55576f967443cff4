// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: a connection that several threads find lost, or done, at the same time.

use super::*;
use crate::kapi::fixture::contend;
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// The state, and how often each action was asked for.
struct Shared {
    fsm: Fsm,
    wake: u32,
    disconnect: u32,
}

impl Shared {
    fn event(&mut self, event: Event) {
        match self.fsm.event(event) {
            Action::None => (),
            Action::Wake => self.wake += 1,
            Action::Disconnect => self.disconnect += 1,
        }
    }
}

/// A connection after `steps`, as threads share it.
fn after(steps: &[Step]) -> Result<Arc<SpinLock<Shared>>> {
    let mut fsm = Fsm::new();
    for step in steps {
        fsm.begin(*step).map_err(|_| EIO)?;
        fsm.event(Event::Done(*step));
    }
    if steps.contains(&Step::Connect) {
        fsm.finish().map_err(|_| EIO)?;
    }
    let shared = Shared {
        fsm,
        wake: 0,
        disconnect: 0,
    };
    Arc::pin_init(new_spinlock!(shared), GFP_KERNEL)
}

#[kunit_tests(rpcrdma_state)]
mod tests {
    use super::*;

    #[test]
    fn only_one_of_many_threads_disconnects() -> Result {
        for _ in 0..10 {
            let shared = after(&[Step::Address, Step::Route, Step::Connect])?;
            let theirs = shared.clone();
            contend(4, move |number| {
                let failure = [DownReason::Lost, DownReason::DeviceGone][number % 2];
                theirs.lock().event(Event::Down(failure));
                theirs.lock().event(Event::Broken);
                theirs.lock().event(Event::Done(Step::Connect));
            })?;
            let now = shared.lock();
            assert_eq!((now.wake, now.disconnect), (0, 1));
            assert!(now.fsm.outcome().is_some_and(|outcome| outcome.is_err()));
        }
        Ok(())
    }

    #[test]
    fn a_step_ends_once() -> Result {
        for _ in 0..10 {
            let shared = after(&[Step::Address])?;
            let begun = shared.lock().fsm.begin(Step::Route);
            assert_eq!(begun, Ok(()));
            let theirs = shared.clone();
            contend(4, move |number| {
                let event = match number {
                    0 => Event::Done(Step::Address),
                    _ => Event::Down(DownReason::Route),
                };
                theirs.lock().event(event);
            })?;
            let now = shared.lock();
            assert_eq!((now.wake, now.disconnect), (1, 0));
            assert_eq!(now.fsm.outcome(), Some(Err(DownReason::Route)));
        }
        Ok(())
    }
}
