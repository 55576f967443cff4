// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: work that is queued, cancelled, or dropped while it is queued.

use super::*;
use crate::kapi::{
    ext::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        wait::{
            new_waitqueue,
            WaitQueue, //
        }, //
    },
    fixture::long_pause, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    sync::Completion,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    workqueue::DelayedWork, //
};

/// Far longer than any test takes.
const NEVER_MS: u32 = 600_000;

/// What happened to a work item, and how a test synchronises with it.
#[pin_data]
struct Seen {
    started: Atomic<u32>,
    ended: Atomic<u32>,
    dropped: Atomic<u32>,
    #[pin]
    begun: WaitQueue,
    #[pin]
    may_end: Completion,
}

#[pin_data(PinnedDrop)]
struct TestWork {
    seen: Arc<Seen>,
    #[pin]
    work: DelayedWork<TestWork>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for TestWork { self.work }
}

#[pinned_drop]
impl PinnedDrop for TestWork {
    fn drop(self: Pin<&mut Self>) {
        self.seen.dropped.add(1, Relaxed);
    }
}

impl WorkItem for TestWork {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.seen.started.add(1, Relaxed);
        this.seen.begun.wake_all();
        this.seen.may_end.wait_for_completion();
        this.seen.ended.add(1, Relaxed);
    }
}

impl TestWork {
    /// Creates a work item that ends when `may_end` is completed.
    fn new() -> Result<(Arc<Self>, Arc<Seen>)> {
        let seen = Arc::pin_init(
            pin_init!(Seen {
                started: Atomic::new(0),
                ended: Atomic::new(0),
                dropped: Atomic::new(0),
                begun <- new_waitqueue!("rpcrdma kunit"),
                may_end <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let ours = seen.clone();
        let work = Arc::pin_init(
            pin_init!(TestWork {
                seen: ours,
                work <- new_delayed_work!("rpcrdma kunit"),
            }),
            GFP_KERNEL,
        )?;
        Ok((work, seen))
    }

    fn queue(self: &Arc<Self>, delay: Jiffies) -> bool {
        xprtiod().enqueue_delayed(self.clone(), delay).is_ok()
    }
}

impl Seen {
    /// Waits until the work was started `times` times.
    fn wait_started(&self, times: u32) {
        self.begun
            .wait_for(|| (self.started.load(Relaxed) >= times).then_some(()));
    }

    /// Returns how often the work was started and ended, and how often its item was dropped.
    fn counts(&self) -> (u32, u32, u32) {
        (
            self.started.load(Relaxed),
            self.ended.load(Relaxed),
            self.dropped.load(Relaxed),
        )
    }
}

#[kunit_tests(rpcrdma_work)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_once_each_time_it_is_queued() -> Result {
        let (work, seen) = TestWork::new()?;
        seen.may_end.complete_all();
        for times in 1..=3 {
            assert!(work.queue(0));
            seen.wait_started(times);
            long_pause();
            assert_eq!(seen.counts(), (times, times, 0));
        }
        drop(work);
        assert_eq!(seen.counts(), (3, 3, 1));
        Ok(())
    }

    #[test]
    fn queued_work_is_not_queued_again() -> Result {
        let (work, seen) = TestWork::new()?;
        assert!(work.queue(msecs_to_jiffies(NEVER_MS)));
        assert!(!work.queue(0));
        assert!(cancel_delayed_sync(&work));
        drop(work);
        assert_eq!(seen.counts(), (0, 0, 1));
        Ok(())
    }

    #[test]
    fn cancelling_drops_the_reference_of_the_queue() -> Result {
        let (work, seen) = TestWork::new()?;
        // Never queued.
        assert!(!cancel_delayed_sync(&work));
        for _ in 0..3 {
            assert!(work.queue(msecs_to_jiffies(NEVER_MS)));
            assert!(cancel_delayed_sync(&work));
            assert!(!cancel_delayed_sync(&work));
        }
        // It can be queued again after that.
        seen.may_end.complete_all();
        assert!(work.queue(0));
        seen.wait_started(1);
        assert!(!cancel_delayed_sync(&work));
        assert_eq!(seen.counts(), (1, 1, 0));
        drop(work);
        assert_eq!(seen.counts(), (1, 1, 1));
        Ok(())
    }

    #[test]
    fn cancelling_waits_for_running_work() -> Result {
        let (work, seen) = TestWork::new()?;
        assert!(work.queue(0));
        seen.wait_started(1);
        assert_eq!(seen.counts(), (1, 0, 0));
        let other = seen.clone();
        crate::kapi::fixture::spawn(move || {
            long_pause();
            other.may_end.complete_all();
        })?;
        assert!(!cancel_delayed_sync(&work));
        assert_eq!(seen.counts(), (1, 1, 0));
        drop(work);
        assert_eq!(seen.counts(), (1, 1, 1));
        Ok(())
    }

    #[test]
    fn the_queue_holds_a_reference() -> Result {
        let (work, seen) = TestWork::new()?;
        assert!(work.queue(msecs_to_jiffies(20)));
        drop(work);
        assert_eq!(seen.counts(), (0, 0, 0));
        seen.wait_started(1);
        assert_eq!(seen.counts(), (1, 0, 0));
        seen.may_end.complete_all();
        long_pause();
        assert_eq!(seen.counts(), (1, 1, 1));
        Ok(())
    }
}
