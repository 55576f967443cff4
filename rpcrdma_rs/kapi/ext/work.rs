// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A work queue that makes progress under memory pressure, and cancelling of work.
//!
//! Work items themselves are the kernel crate's `Work` and `DelayedWork`.

use kernel::{
    sync::Arc,
    workqueue::{
        HasDelayedWork,
        Queue,
        Work,
        WorkItem, //
    },
};

use crate::kapi::bindings;

/// Returns sunrpc's own queue for transports, which makes progress when memory is short.
pub(crate) fn xprtiod() -> &'static Queue {
    // SAFETY: sunrpc makes the queue before any of its users can be loaded and destroys it
    // after the last is gone; the variable is not written in between.
    unsafe { Queue::from_raw(bindings::xprtiod_workqueue) }
}

/// Takes `this` back from its queue if it waits there or for its timer, and waits for it if it
/// runs.
///
/// Returns whether it was waiting. Sleeps; never to be called from the work itself.
pub(crate) fn cancel_delayed_sync<T, const ID: u64>(this: &Arc<T>) -> bool
where
    T: HasDelayedWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(this).cast_mut();
    // SAFETY: `ptr` points to a valid `T`, and so does what is derived from it to its field.
    let work = unsafe { Work::raw_get(T::raw_get_work(ptr)) };
    // SAFETY: By `HasDelayedWork` the work is the field of a `delayed_work`.
    let delayed = unsafe { kernel::container_of!(work, bindings::delayed_work, work) };
    // SAFETY: The delayed work was initialised when `T` was.
    let pending = unsafe { bindings::cancel_delayed_work_sync(delayed) };
    if pending {
        // SAFETY: Queueing turned an `Arc` into a raw pointer which would have been taken back
        // by the run that we have just cancelled.
        drop(unsafe { Arc::from_raw(ptr) });
    }
    pending
}

#[cfg(rpcrdma_kunit)]
mod kunit;
