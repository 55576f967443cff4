// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Waiting for a condition.
//!
//! C header: [`include/linux/wait.h`](srctree/include/linux/wait.h)

use core::{
    ffi::c_int,
    pin::Pin, //
};

use kernel::{
    prelude::*,
    str::CStr,
    sync::LockClassKey,
    time::Jiffies,
    types::Opaque, //
};

use crate::kapi::bindings;

/// Creates an initialiser for a [`WaitQueue`] with a lock class of its own.
macro_rules! new_waitqueue {
    ($name:literal) => {
        $crate::kapi::ext::wait::WaitQueue::new(
            ::kernel::c_str!($name),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_waitqueue;

/// A queue of threads that wait for a condition.
///
/// A thread that makes the condition true calls [`WaitQueue::wake_all`] afterwards. The waiter
/// evaluates the condition when it is about to sleep, so the condition itself must not sleep.
///
/// # Examples
///
/// ```ignore
/// let changed = KBox::pin_init(new_waitqueue!("changed"), GFP_KERNEL)?;
/// let ready = Atomic::new(false);
/// // One thread makes the condition true:
/// ready.store(true, Release);
/// changed.wake_all();
/// // Another waits for it, at most for a second:
/// if !changed.wait_timeout(msecs_to_jiffies(1000), || ready.load(Acquire)) {
///     return Err(ETIMEDOUT);
/// }
/// ```
///
/// # Invariants
///
/// `head` is initialised.
#[pin_data]
pub(crate) struct WaitQueue {
    #[pin]
    head: Opaque<bindings::wait_queue_head>,
}

// SAFETY: C's wait queues are made for use by several threads.
unsafe impl Send for WaitQueue {}
// SAFETY: C's wait queues have a lock of their own.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    /// Creates an initialiser for an empty queue. Use [`new_waitqueue!`] instead.
    pub(crate) fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        pin_init!(Self {
            head <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writing a wait queue; name and key are static.
                unsafe {
                    bindings::__init_waitqueue_head(slot, name.as_char_ptr(), key.as_ptr())
                }
            }),
        })
    }

    /// Waits until `condition` holds, for at most `limit` jiffies. Sleeps.
    ///
    /// Returns whether the condition holds.
    pub(crate) fn wait_timeout(&self, limit: Jiffies, mut condition: impl FnMut() -> bool) -> bool {
        let mut left = isize::try_from(limit).unwrap_or(isize::MAX);
        let entry = Opaque::<bindings::wait_queue_entry>::uninit();
        // SAFETY: `entry` is valid for writing and stays where it is until `finish_wait`.
        unsafe { bindings::init_wait_entry(entry.get(), 0) };
        let holds = loop {
            // SAFETY: The queue is initialised, the entry as well and not moved. CAST: A task
            // state is a small set of bits.
            unsafe {
                bindings::prepare_to_wait_event(
                    self.head.get(),
                    entry.get(),
                    bindings::TASK_UNINTERRUPTIBLE as c_int,
                )
            };
            if condition() {
                break true;
            }
            if left == 0 {
                break false;
            }
            // SAFETY: We are in process context and hold no lock that forbids sleeping.
            left = unsafe { bindings::schedule_timeout(left) };
        };
        // SAFETY: Queue and entry are initialised; afterwards nothing refers to the entry.
        unsafe { bindings::finish_wait(self.head.get(), entry.get()) };
        holds
    }

    /// Waits until `poll` returns a value, without a time limit, and returns the value. Sleeps;
    /// `poll` must not.
    pub(crate) fn wait_for<T>(&self, mut poll: impl FnMut() -> Option<T>) -> T {
        loop {
            let mut value = None;
            self.wait_timeout(Jiffies::MAX, || {
                value = poll();
                value.is_some()
            });
            if let Some(value) = value {
                return value;
            }
        }
    }

    /// Wakes all waiters, which evaluate their conditions again. Any context.
    pub(crate) fn wake_all(&self) {
        // SAFETY: The queue is initialised.
        unsafe {
            bindings::__wake_up(
                self.head.get(),
                bindings::TASK_NORMAL,
                0,
                core::ptr::null_mut(),
            );
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
