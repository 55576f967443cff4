// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work queues (sunrpc's and the module's own) and cancellation of delayed work.
//!
//! Work items themselves are the kernel crate's `Work` and `DelayedWork`.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use core::ptr::null_mut;

use kernel::{
    prelude::*,
    sync::Arc,
    time::Jiffies,
    workqueue::{
        HasDelayedWork,
        Queue,
        RawDelayedWorkItem,
        RawWorkItem,
        Work,
        WorkItem, //
    },
};

use crate::kapi::{
    bindings,
    ext::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    }, //
};

/// Returns sunrpc's own queue for transports, which makes progress when memory is short.
pub(crate) fn xprtiod() -> &'static Queue {
    // SAFETY: sunrpc, which this module depends on, creates the queue when it is loaded and
    // destroys it when it is unloaded. The variable is not written in between.
    unsafe { Queue::from_raw(bindings::xprtiod_workqueue) }
}

/// The module's own queue, while there is an [`OwnQueue`].
static OWN: Atomic<*mut bindings::workqueue_struct> = Atomic::new(null_mut());

/// The module's own work queue, for work that module unload has to wait for.
///
/// Dropping it waits for all work on the queue and destroys the queue. It does not wait for delayed
/// work whose timer still runs: that must be cancelled first, see [`cancel_delayed_sync`]. Nothing
/// may enqueue work afterwards.
///
/// # Examples
///
/// ```ignore
/// let _queue = OwnQueue::new(c"example")?;
/// // `work` is a `Pin<KBox<_>>` or an `Arc` of a type that implements `WorkItem`.
/// OwnQueue::enqueue(work);
/// ```
pub(crate) struct OwnQueue(());

impl OwnQueue {
    /// Allocates the queue. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the queue already exists; `ENOMEM`.
    pub(in crate::kapi) fn new(name: &CStr) -> Result<Self> {
        // SAFETY: Format and argument are strings; the name is copied.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                bindings::wq_flags_WQ_UNBOUND,
                0,
                name.as_char_ptr(),
            )
        };
        if queue.is_null() {
            return Err(ENOMEM);
        }
        if OWN.cmpxchg(null_mut(), queue, Full).is_err() {
            // SAFETY: The queue was allocated above, and nobody else knows it.
            unsafe { bindings::destroy_workqueue(queue) };
            return Err(EBUSY);
        }
        Ok(OwnQueue(()))
    }

    /// Queues `work`, which runs in process context and may sleep. Any context.
    ///
    /// The queue exists: `kapi::Root` creates it before the module's data, and destroys it after
    /// that was dropped. The caller runs on behalf of an object that keeps the module loaded.
    pub(crate) fn enqueue<W>(work: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<0> + Send + 'static,
    {
        Self::queue().enqueue(work)
    }

    /// Queues `work` after `delay`, in jiffies. Otherwise like [`Self::enqueue`]. Its owner must
    /// cancel it before the [`OwnQueue`] is dropped.
    pub(crate) fn enqueue_delayed<W, const ID: u64>(work: W, delay: Jiffies) -> W::EnqueueOutput
    where
        W: RawDelayedWorkItem<ID> + Send + 'static,
    {
        Self::queue().enqueue_delayed(work, delay)
    }

    fn queue() -> &'static Queue {
        let queue = OWN.load(Acquire);
        assert!(!queue.is_null());
        // SAFETY: The queue exists until the drop of the `OwnQueue`, after which nobody calls this.
        unsafe { Queue::from_raw(queue) }
    }
}

impl Drop for OwnQueue {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the queue. The call waits for all work on it.
        unsafe { bindings::destroy_workqueue(OWN.load(Acquire)) };
        OWN.store(null_mut(), Release);
    }
}

/// Cancels the delayed work of `this` and waits until it no longer runs.
///
/// Returns whether the work was pending, on its timer or on its queue. Sleeps. The work itself
/// must not call this.
pub(crate) fn cancel_delayed_sync<T, const ID: u64>(this: &Arc<T>) -> bool
where
    T: HasDelayedWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let ptr = Arc::as_ptr(this).cast_mut();
    // SAFETY: `ptr` points to a valid `T`, so the pointer to its field is valid as well.
    let work = unsafe { Work::raw_get(T::raw_get_work(ptr)) };
    // SAFETY: `HasDelayedWork` guarantees that the work is a field of a `delayed_work`.
    let delayed = unsafe { kernel::container_of!(work, bindings::delayed_work, work) };
    // SAFETY: The delayed work was initialised when `T` was.
    let pending = unsafe { bindings::cancel_delayed_work_sync(delayed) };
    if pending {
        // SAFETY: Queueing the work turned an `Arc` into a raw pointer. The cancelled run would
        // have turned it back.
        drop(unsafe { Arc::from_raw(ptr) });
    }
    pending
}

#[cfg(rpcrdma_kunit)]
mod kunit;
