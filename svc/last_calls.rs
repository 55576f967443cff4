// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The Calls that the service still processes when their connection is lost.
//!
//! A client that reconnects retransmits these Calls, perhaps before the service has finished. nfsd
//! does not process a Call twice. In version 4.1 and later it answers the second one with
//! NFS4ERR_DELAY (RFC 8881, section 2.10.6.2), and a Linux client then waits for 15 s. In earlier
//! versions it drops the second one, and the client has to retransmit it once more.
//!
//! So later Calls of the client wait until the service has finished, on all connections, but no
//! longer than for a pull. They wait as for one, see [`super::client`]. A connection whose client
//! has not proved that it has access makes no Call wait, because other clients may have the same
//! address.

use super::endpoint::{
    Endpoint,
    LAST_CALLS, //
};
use crate::kapi::ext::work::xprtiod;
use kernel::{
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

/// The interval of the checks whether the service has finished, in ms.
const CHECK_MS: u32 = 10;

impl WorkItem<LAST_CALLS> for Endpoint {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut last = this.last_calls.lock();
        let ended = last.take_if(|calls| calls.is_overdue() || !this.handle.is_processing());
        let wait = last.is_some();
        drop(last);
        drop(ended);
        if wait {
            this.check_last_calls();
        }
    }
}

impl Endpoint {
    /// Makes later Calls of the client wait for those that the service still processes. Called
    /// once, when the connection is detached.
    pub(super) fn order_last_calls(self: &Arc<Self>) {
        if !self.handle.has_access() || !self.handle.is_processing() {
            return;
        }
        let Some(last) = self.member.begin_last_calls() else {
            return;
        };
        *self.last_calls.lock() = Some(last);
        self.check_last_calls();
    }

    /// Schedules the next check.
    fn check_last_calls(self: &Arc<Self>) {
        let pause = msecs_to_jiffies(CHECK_MS);
        let _ = xprtiod().enqueue_delayed::<_, LAST_CALLS>(self.clone(), pause);
    }

    /// Makes no Call wait any longer.
    pub(super) fn end_last_calls(&self) {
        let last = self.last_calls.lock().take();
        drop(last);
    }
}
