// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A connection that is quiet gives back what it keeps for its next RPCs.
//!
//! A timer runs while there is something to give back. Each time it drops what was not used since
//! the last time, so that a busy connection keeps what it needs and no RPC pays for it.

use super::chan::{
    Chan,
    Conn, //
};
use crate::kapi::ext::atomic::Relaxed;
use crate::kapi::ext::work::xprtiod;
use kernel::{
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

/// The period of the timer in ms.
const PERIOD_MS: u32 = 5_000;

impl WorkItem for Chan {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let (spare, arrays, left) = this.pages.lock().trim();
        drop((spare, arrays));
        this.trim_receives();
        // Pages that are in flight now come back later.
        let had_none = this.without_pages.xchg(!left, Relaxed);
        match left || !had_none {
            true => start(this),
            false => this.trimming_runs.store(false, Relaxed),
        }
    }
}

fn start(chan: Arc<Chan>) {
    // It may be queued already.
    let _ = xprtiod().enqueue_delayed::<_, 0>(chan, msecs_to_jiffies(PERIOD_MS));
}

impl Conn {
    /// Has what is not used given back later. Call it whenever pages are used.
    pub(super) fn trim_later(&self) {
        let chan = self.shared_chan();
        if !chan.trimming_runs.load(Relaxed) && !chan.trimming_runs.xchg(true, Relaxed) {
            start(chan.clone());
        }
    }
}
