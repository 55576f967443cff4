// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Spin locks that are locked and unlocked by one call each.
//!
//! [`kernel::sync::SpinLock`] calls a C helper, which calls the function of the lock. It calls
//! another helper to assert that the lock is held, which does nothing without lockdep. This backend
//! calls the functions of the lock directly, as C code does. With lockdep, and where these
//! functions do not exist, it uses the kernel's backend.
//!
//! C header: [`include/linux/spinlock_api_smp.h`](srctree/include/linux/spinlock_api_smp.h)

use kernel::{
    ffi::c_char,
    sync::lock::{
        spinlock::SpinLockBackend,
        Backend,
        Guard,
        Lock, //
    }, //
};

use crate::kapi::bindings;

/// A spin lock, and the data that it protects.
pub(crate) type SpinLock<T> = Lock<T, Direct>;

/// Keeps a [`SpinLock`] locked until it is dropped.
pub(crate) type SpinLockGuard<'a, T> = Guard<'a, T, Direct>;

/// The backend of a [`SpinLock`].
pub(crate) struct Direct;

/// `spin_lock` and `spin_unlock` are calls of these functions, with the first field of the lock.
#[cfg(all(
    CONFIG_SMP,
    CONFIG_UNINLINE_SPIN_UNLOCK,
    not(CONFIG_LOCKDEP),
    not(CONFIG_PREEMPT_RT)
))]
mod raw {
    use super::*;

    pub(super) const CHECKED: bool = false;

    /// Acquires the lock.
    ///
    /// # Safety
    ///
    /// As for [`Backend::lock`].
    #[inline]
    pub(super) unsafe fn lock(ptr: *mut bindings::spinlock_t) {
        // SAFETY: By this function's contract the lock is valid and initialised.
        unsafe { bindings::_raw_spin_lock(ptr.cast()) }
    }

    /// Releases the lock.
    ///
    /// # Safety
    ///
    /// As for [`Backend::unlock`].
    #[inline]
    pub(super) unsafe fn unlock(ptr: *mut bindings::spinlock_t) {
        // SAFETY: By this function's contract the lock is valid and held by the caller.
        unsafe { bindings::_raw_spin_unlock(ptr.cast()) }
    }
}

#[cfg(not(all(
    CONFIG_SMP,
    CONFIG_UNINLINE_SPIN_UNLOCK,
    not(CONFIG_LOCKDEP),
    not(CONFIG_PREEMPT_RT)
)))]
mod raw {
    use super::*;

    pub(super) const CHECKED: bool = true;

    /// Acquires the lock.
    ///
    /// # Safety
    ///
    /// As for [`Backend::lock`].
    #[inline]
    pub(super) unsafe fn lock(ptr: *mut bindings::spinlock_t) {
        // SAFETY: The contract is the same.
        unsafe { SpinLockBackend::lock(ptr) }
    }

    /// Releases the lock.
    ///
    /// # Safety
    ///
    /// As for [`Backend::unlock`].
    #[inline]
    pub(super) unsafe fn unlock(ptr: *mut bindings::spinlock_t) {
        // SAFETY: The contract is the same.
        unsafe { SpinLockBackend::unlock(ptr, &()) }
    }
}

// SAFETY: The state is that of `SpinLockBackend`, and each function does what that of
// `SpinLockBackend` does.
unsafe impl Backend for Direct {
    type State = bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: The contract is the same.
        unsafe { SpinLockBackend::init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) {
        // SAFETY: The contract is the same.
        unsafe { raw::lock(ptr) }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _state: &()) {
        // SAFETY: The contract is the same.
        unsafe { raw::unlock(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<()> {
        // SAFETY: The contract is the same.
        unsafe { SpinLockBackend::try_lock(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        if raw::CHECKED {
            // SAFETY: The contract is the same.
            unsafe { SpinLockBackend::assert_is_held(ptr) }
        }
    }
}

/// Creates the initialiser of a [`SpinLock`], as `kernel::new_spinlock!` does.
macro_rules! new_spinlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::kapi::ext::spinlock::SpinLock::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}
pub(crate) use new_spinlock;
