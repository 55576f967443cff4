// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A completion that can be used again.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use kernel::{
    prelude::*,
    types::Opaque, //
};

use crate::kapi::bindings;

/// A completion: threads wait until another thread reports that an operation is done.
///
/// # Examples
///
/// ```ignore
/// let done = KBox::pin_init(Done::new(), GFP_KERNEL)?;
/// // On any thread, in any context:
/// done.complete_all();
/// // On a thread that may sleep:
/// done.wait();
/// ```
///
/// # Invariants
///
/// `inner` is initialised.
#[pin_data]
pub(crate) struct Done {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: C's completions are made for use by several threads.
unsafe impl Send for Done {}
// SAFETY: C's completions have a lock of their own.
unsafe impl Sync for Done {}

impl Done {
    /// Creates an initialiser for a completion that is not done.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is valid for writing a completion.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    /// Wakes one waiter. If there is none, the next [`Done::wait`] returns at once. Any context.
    pub(crate) fn complete(&self) {
        // SAFETY: The completion is initialised.
        unsafe { bindings::complete(self.inner.get()) };
    }

    /// Wakes all waiters. [`Done::wait`] returns at once until [`Done::reset`]. Any context.
    pub(crate) fn complete_all(&self) {
        // SAFETY: The completion is initialised.
        unsafe { bindings::complete_all(self.inner.get()) };
    }

    /// Reinitialises the completion to not done. No thread may be waiting.
    pub(crate) fn reset(&self) {
        // SAFETY: The completion is initialised.
        unsafe { bindings::rpcrdma_shim_reinit_completion(self.inner.get()) };
    }

    /// Waits until the completion is done, without a time limit. Sleeps.
    pub(crate) fn wait(&self) {
        // SAFETY: The completion is initialised.
        unsafe { bindings::wait_for_completion(self.inner.get()) };
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
