// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: work that is queued, cancelled, or dropped while it is queued.

use super::*;
use crate::kapi::{
    ext::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        completion::Done, //
    },
    fixture::long_pause, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    workqueue::DelayedWork, //
};

/// Far longer than any test takes.
const NEVER_MS: u32 = 600_000;

/// What happened to a job, and two completions to synchronise with it.
#[pin_data]
struct Seen {
    started: Atomic<u32>,
    ended: Atomic<u32>,
    dropped: Atomic<u32>,
    #[pin]
    begun: Done,
    #[pin]
    may_end: Done,
}

#[pin_data(PinnedDrop)]
struct Job {
    seen: Arc<Seen>,
    #[pin]
    work: DelayedWork<Job>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Job { self.work }
}

#[pinned_drop]
impl PinnedDrop for Job {
    fn drop(self: Pin<&mut Self>) {
        self.seen.dropped.add(1, Relaxed);
    }
}

impl WorkItem for Job {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.seen.started.add(1, Relaxed);
        this.seen.begun.complete();
        this.seen.may_end.wait();
        this.seen.ended.add(1, Relaxed);
    }
}

impl Job {
    /// Creates a job that ends when `may_end` is completed.
    fn new() -> Result<(Arc<Self>, Arc<Seen>)> {
        let seen = Arc::pin_init(
            pin_init!(Seen {
                started: Atomic::new(0),
                ended: Atomic::new(0),
                dropped: Atomic::new(0),
                begun <- Done::new(),
                may_end <- Done::new(),
            }),
            GFP_KERNEL,
        )?;
        let ours = seen.clone();
        let job = Arc::pin_init(
            pin_init!(Job {
                seen: ours,
                work <- new_delayed_work!("rpcrdma kunit"),
            }),
            GFP_KERNEL,
        )?;
        Ok((job, seen))
    }

    fn queue(self: &Arc<Self>, delay: Jiffies) -> bool {
        xprtiod().enqueue_delayed(self.clone(), delay).is_ok()
    }
}

impl Seen {
    /// Returns how often the job was started, ended and dropped.
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
        let (job, seen) = Job::new()?;
        seen.may_end.complete_all();
        for times in 1..=3 {
            assert!(job.queue(0));
            seen.begun.wait();
            long_pause();
            assert_eq!(seen.counts(), (times, times, 0));
        }
        drop(job);
        assert_eq!(seen.counts(), (3, 3, 1));
        Ok(())
    }

    #[test]
    fn queued_work_is_not_queued_again() -> Result {
        let (job, seen) = Job::new()?;
        assert!(job.queue(msecs_to_jiffies(NEVER_MS)));
        assert!(!job.queue(0));
        assert!(cancel_delayed_sync(&job));
        drop(job);
        assert_eq!(seen.counts(), (0, 0, 1));
        Ok(())
    }

    #[test]
    fn cancelling_drops_the_reference_of_the_queue() -> Result {
        let (job, seen) = Job::new()?;
        // Never queued.
        assert!(!cancel_delayed_sync(&job));
        for _ in 0..3 {
            assert!(job.queue(msecs_to_jiffies(NEVER_MS)));
            assert!(cancel_delayed_sync(&job));
            assert!(!cancel_delayed_sync(&job));
        }
        // It can be queued again after that.
        seen.may_end.complete_all();
        assert!(job.queue(0));
        seen.begun.wait();
        assert!(!cancel_delayed_sync(&job));
        assert_eq!(seen.counts(), (1, 1, 0));
        drop(job);
        assert_eq!(seen.counts(), (1, 1, 1));
        Ok(())
    }

    #[test]
    fn cancelling_waits_for_running_work() -> Result {
        let (job, seen) = Job::new()?;
        assert!(job.queue(0));
        seen.begun.wait();
        assert_eq!(seen.counts(), (1, 0, 0));
        let other = seen.clone();
        crate::kapi::fixture::spawn(move || {
            long_pause();
            other.may_end.complete_all();
        })?;
        assert!(!cancel_delayed_sync(&job));
        assert_eq!(seen.counts(), (1, 1, 0));
        drop(job);
        assert_eq!(seen.counts(), (1, 1, 1));
        Ok(())
    }

    #[test]
    fn the_queue_holds_a_reference() -> Result {
        let (job, seen) = Job::new()?;
        assert!(job.queue(msecs_to_jiffies(20)));
        drop(job);
        assert_eq!(seen.counts(), (0, 0, 0));
        seen.begun.wait();
        assert_eq!(seen.counts(), (1, 0, 0));
        seen.may_end.complete_all();
        long_pause();
        assert_eq!(seen.counts(), (1, 1, 1));
        Ok(())
    }
}
