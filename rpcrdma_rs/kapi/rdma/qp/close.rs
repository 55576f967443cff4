// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Closing a Queue Pair.
//!
//! ```text
//!   open ──close──► posts refused ──► stop: move to the error state, drain
//!
//!   stop ──every request has completed────────────────► closed
//!        ──stopped, some requests are in flight───────► flushed ──► closed
//!        ──refused by the device, some are in flight──► stop again, `REFUSALS` attempts in all
//!        ──refused at the last attempt────────────────► destroyed ──► flushed ──► closed
//! ```
//!
//! A chain in flight owns its buffers, and through them the id of the connection, which the removal
//! of a device waits for. So every chain has to complete, whatever the device does. Its completion
//! returns the buffers, which may then be freed. So a QP that the device refuses to stop is
//! destroyed first.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    ffi::c_int,
    ptr::null_mut, //
};

use kernel::{
    error::to_result,
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    },
};

use super::{
    AnyQp,
    Gate,
    Qp,
    QpHandler, //
};
use crate::kapi::{
    bindings,
    ext::{
        atomic::{
            Acquire,
            Relaxed, //
        },
        ratelimit::limited, //
    }, //
};

/// How long completions may arrive after a drain, in milliseconds.
const LATE_MS: u32 = 1000;

/// The number of attempts to stop a QP, [`LATE_MS`] apart. cxgb4 refuses while it ends a connection
/// by itself; bnxt_re and irdma always refuse once the hardware has failed.
const REFUSALS: u32 = 3;

/// The outcome of stopping a QP.
struct Stop {
    /// Whether the device has moved the QP to its error state. If not, a peer may still reach
    /// registered memory.
    stopped: bool,
    /// Whether every request has completed. If not, the device will not complete the rest.
    drained: bool,
}

/// Closes a gate, and waits until all that has begun there has ended. Sleeps.
fn shut(gate: &Gate) {
    let begun = gate.close();
    while !gate.have_ended(begun) {
        fsleep(Delta::from_micros(20));
    }
}

impl<H: QpHandler> Qp<H> {
    /// Moves the QP to its error state. Sleeps.
    ///
    /// # Safety
    ///
    /// The C object must not have been destroyed.
    unsafe fn fail(&self) -> Result {
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_ERR,
            ..Default::default()
        };
        // CAST: The mask is a small positive number.
        let mask = bindings::ib_qp_attr_mask_IB_QP_STATE as c_int;
        // SAFETY: The QP is valid by this function's contract, and so are the attributes.
        to_result(unsafe { bindings::ib_modify_qp(self.as_raw(), &mut attr, mask) })
    }

    /// Ends the connection: moves the QP to its error state and tells the peer. Sleeps. A handler
    /// of the id must not call this.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no connection; other errors of rdma_cm.
    pub(crate) fn disconnect(&self) -> Result {
        if self.is_iwarp() {
            // Over iWARP rdma_cm disconnects gracefully, which need not flush the Send Queue: siw
            // never completes the requests in it. If this fails, the drain handles that.
            if let Some(_used) = self.raw_qp() {
                // SAFETY: The C object is valid as long as `_used`.
                let _ = unsafe { self.fail() };
            }
        }
        let _call = self.id.begin_call();
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_disconnect(self.id.as_raw()) })
    }

    /// Implements [`QpOwner::close`](super::QpOwner::close).
    pub(super) fn close(&self) {
        let mut closed = self.closed.lock();
        if *closed {
            return;
        }
        shut(&self.gate);
        let Stop { stopped, drained } = self.stop();
        let cq = self.cq.load(Relaxed);
        if !drained {
            // SAFETY: The CQ is that of the QP. Its work polls it, and this function does not run
            // in that work. Freeing the CQ cancels the work, which may be disabled.
            unsafe { bindings::disable_work_sync((&raw mut (*cq).__bindgen_anon_1.work).cast()) };
            if !stopped {
                self.destroy();
            }
        }
        // SAFETY: The gate is closed and no post is in progress. `stop` has drained the QP, or the
        // QP is destroyed. `stop` says `stopped` only if the QP is in its error state.
        unsafe { self.pd.set_closed(stopped) };
        if !drained {
            // SAFETY: No post is in progress, and the CQ is no longer polled. The QP is in its
            // error state or destroyed, so the device does not use what the entries own.
            unsafe { self.entries.flush(cq) };
        }
        *closed = true;
    }

    /// Destroys the C object, which the device has refused to stop: afterwards the device does not
    /// use the buffers of Work Requests in flight. A device that refuses this as well counts as
    /// dead. Sleeps. Called once, by [`Self::close`], when no post is in progress.
    #[cold]
    fn destroy(&self) {
        shut(&self.uses);
        // INVARIANT: Both gates are closed, and every use that they count has ended.
        self.qp.store(null_mut(), Relaxed);
        // SAFETY: The id's QP is ours, and nobody uses it: see above.
        unsafe { bindings::rdma_destroy_qp(self.id.as_raw()) };
    }

    /// Makes the device stop the QP and complete everything that is in flight. Sleeps.
    fn stop(&self) -> Stop {
        let mut refusals = 0;
        loop {
            // SAFETY: Only `close` destroys the C object, after this function.
            let stopped = unsafe { self.fail() };
            let mut stop = Stop {
                stopped: stopped.is_ok(),
                drained: false,
            };
            if self.drain(stop.stopped) {
                stop.drained = true;
                return stop;
            }
            let forgotten = self.in_flight();
            let name = self.device().name();
            let Err(error) = stopped else {
                limited!(pr_info!(
                    "device {name} did not complete {forgotten} requests after a drain; \
                     flushing them\n"
                ));
                return stop;
            };
            refusals += 1;
            if refusals == REFUSALS {
                limited!(pr_err!(
                    "device {name} refuses to move a queue pair to the error state: {error:?}; \
                     flushing {forgotten} requests\n"
                ));
                return stop;
            }
        }
    }

    /// Returns the number of chains and Receives that the device has accepted and not completed. No
    /// post may be in progress.
    fn in_flight(&self) -> u64 {
        let accepted = self.gate.accepted();
        accepted.wrapping_sub(self.completed.load(Acquire))
    }

    /// Drains the QP and waits for its completions. Returns whether everything has completed.
    ///
    /// Requests complete in order, and those of the drain are the last. So when these have
    /// completed, a request that is still in flight was forgotten. An exception is siw, which
    /// completes the requests of the drain at once while another thread is about to flush the
    /// others. So this function waits for a while, and then drains again.
    ///
    /// If the QP has not been `stopped`, `ib_drain_qp` only warns, unless the driver has a drain of
    /// its own, as some have for hardware that has failed. Requests in flight may complete anyway.
    fn drain(&self, stopped: bool) -> bool {
        // SAFETY: The QP and its device are valid.
        let by_itself = unsafe { (*(*self.as_raw()).device).ops.drain_sq.is_some() };
        let drain = || {
            if stopped || by_itself {
                // SAFETY: The QP is valid, and no post is in progress. All queues have room,
                // because the requests of an earlier drain have completed.
                unsafe { bindings::ib_drain_qp(self.as_raw()) };
            }
        };
        drain();
        for _ in 0..LATE_MS {
            if self.in_flight() == 0 {
                return true;
            }
            fsleep(Delta::from_millis(1));
        }
        drain();
        self.in_flight() == 0
    }
}
