// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Failures of Work Requests that are not the last one of their chain.
//!
//! A device reports each request that fails, signaled or not, and flushes the requests behind it.
//! So the last request of the chain completes as flushed, which does not tell why the chain failed.
//! All requests before the last one share one `ib_cqe`, [`UNSIGNALED`]. Its callback keeps the
//! status of the request that failed. The completion of the chain takes that status. It comes
//! later, because the Send Queue completes in order.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::mem::ManuallyDrop;

use crate::kapi::{
    bindings,
    ext::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The status of a request that failed, until the completion of its chain takes it.
///
/// The upper half is the `ib_wc_status`, the lower half the vendor's code; zero if there is none.
/// Only completions of one QP access it, which run one at a time.
pub(super) struct Failure(Atomic<u64>);

impl Failure {
    /// Creates an object without a status.
    pub(super) const fn new() -> Self {
        Failure(Atomic::new(0))
    }

    /// Keeps the status of a request that is not the last one of its chain, if it has failed.
    fn note(&self, wc: &bindings::ib_wc) {
        match wc.status {
            // Nothing has failed, or the request was flushed, which does not tell the cause.
            bindings::ib_wc_status_IB_WC_SUCCESS | bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR => (),
            status => {
                let failure = u64::from(status) << 32 | u64::from(wc.vendor_err);
                self.0.store(failure, Relaxed);
            }
        }
    }

    /// Removes the status and the vendor's code, and returns them.
    #[cold]
    pub(super) fn take(&self) -> Option<(bindings::ib_wc_status, u32)> {
        let failure = self.0.load(Relaxed);
        self.0.store(0, Relaxed);
        // CAST: The halves, as `note` has joined them.
        (failure != 0).then_some(((failure >> 32) as bindings::ib_wc_status, failure as u32))
    }
}

/// The completion queue entry of all requests that are not the last one of their chain. It is not
/// written.
static UNSIGNALED: bindings::ib_cqe = bindings::ib_cqe {
    done: Some(handle_completion),
};

/// Returns the completion queue entry of a request that is not the last one of its chain.
#[inline]
pub(super) fn unsignaled() -> bindings::ib_send_wr__bindgen_ty_1 {
    bindings::ib_send_wr__bindgen_ty_1 {
        wr_cqe: ManuallyDrop::new((&raw const UNSIGNALED).cast_mut()),
    }
}

/// Called by ib_core for a request that is not the last one of its chain, if it failed or was
/// flushed.
///
/// # Safety
///
/// `cq` must be the CQ of a `Qp`, and `wc` a completion.
unsafe extern "C" fn handle_completion(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: Both are valid during the call, by this function's contract. The context of the CQ of
    // a `Qp` is the `Failure` of that `Qp`, which is valid as long as the CQ.
    let (failure, wc) = unsafe { (&*(*cq).cq_context.cast::<Failure>(), &*wc) };
    failure.note(wc);
}

#[cfg(rpcrdma_kunit)]
mod kunit;
