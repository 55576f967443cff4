// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Release of the spare memory of a quiet connection.
//!
//! A timer runs while a connection has spare memory. Each run frees the memory that was not used
//! since the previous run. So a busy connection keeps what it needs, and no RPC has to free memory.

use super::{
    contexts::Contexts,
    endpoint::{
        Conn,
        Endpoint,
        TRIM, //
    }, //
};
use crate::kapi::ext::{
    atomic::Relaxed,
    spinlock::SpinLock,
    work::xprtiod, //
};
use kernel::{
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

/// The period of the timer in ms.
const PERIOD_MS: u32 = 5_000;

impl WorkItem<TRIM> for Endpoint {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Clear this first, so that a thread that keeps pages from now on starts the timer again.
        this.trimming_runs.store(false, Relaxed);
        // Read this before counting the pages: a completing Send returns its pages first.
        let busy = this.sq.is_busy();
        let (spare, arrays, left) = this.pages.lock().trim();
        drop((spare, arrays));
        let left = left.saturating_add(this.reads.lock().trim_pages());
        this.params.status.spare_pages.store(left, Relaxed);
        let contexts = free_unused(&this.reads) | free_unused(&this.sends);
        let surplus = this.trim_receives();
        // The pages of replies that are not sent yet are returned later, and so are the Receives of
        // Calls in process.
        let in_use = left != 0 || contexts || surplus || busy;
        let had_none = this.without_pages.xchg(!in_use, Relaxed);
        if in_use || !had_none {
            start(&this);
        }
    }
}

/// Frees the contexts that were not used in this period, and begins the next period. Returns
/// whether the next one may free some. Sleeps.
fn free_unused<C>(contexts: &SpinLock<Contexts<C>>) -> bool {
    loop {
        let unused = contexts.lock().pop_unused();
        if unused.is_none() {
            return contexts.lock().end_period();
        }
    }
}

/// Starts the timer unless it runs.
fn start(ep: &Arc<Endpoint>) {
    if !ep.trimming_runs.xchg(true, Relaxed) {
        let _ = xprtiod().enqueue_delayed::<_, TRIM>(ep.clone(), msecs_to_jiffies(PERIOD_MS));
    }
}

impl Conn {
    /// Schedules the release of unused memory. Must be called whenever pages are used.
    pub(super) fn trim_later(&self) {
        let ep = self.shared_ep();
        if !ep.trimming_runs.load(Relaxed) {
            ep.without_pages.store(false, Relaxed);
            start(ep);
        }
    }
}
