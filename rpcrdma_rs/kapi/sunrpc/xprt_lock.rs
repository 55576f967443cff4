// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The spin locks of sunrpc's client transports.
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use kernel::ffi::c_ulong;

use crate::kapi::{
    bindings,
    ext::spinlock::{
        SpinLock,
        SpinLockGuard, //
    }, //
};

/// Takes `transport_lock`, under which sunrpc changes the congestion window and the timeouts.
///
/// # Safety
///
/// `xprt` must stay allocated until the guard is dropped.
#[inline]
pub(super) unsafe fn lock_transport<'a>(xprt: *mut bindings::rpc_xprt) -> SpinLockGuard<'a, ()> {
    // SAFETY: By this function's contract the transport outlives the guard. sunrpc has initialised
    // its locks.
    unsafe { SpinLock::from_raw(&raw mut (*xprt).transport_lock) }.lock()
}

/// Takes `queue_lock`, under which sunrpc looks up and completes requests.
///
/// # Safety
///
/// `xprt` must stay allocated until the guard is dropped.
#[inline]
pub(super) unsafe fn lock_queue<'a>(xprt: *mut bindings::rpc_xprt) -> SpinLockGuard<'a, ()> {
    // SAFETY: By this function's contract the transport outlives the guard. sunrpc has initialised
    // its locks.
    unsafe { SpinLock::from_raw(&raw mut (*xprt).queue_lock) }.lock()
}

/// Sets the congestion window to `credits` requests. Returns with the transport lock held; does not
/// sleep.
///
/// # Safety
///
/// `xprt` must be a live transport, and stay allocated until the guard is dropped.
pub(super) unsafe fn set_window<'a>(
    xprt: *mut bindings::rpc_xprt,
    credits: u32,
) -> SpinLockGuard<'a, ()> {
    // SAFETY: The transport outlives the guard, by this function's contract.
    let guard = unsafe { lock_transport(xprt) };
    // CAST: A C `unsigned long` has at least 32 bits.
    // SAFETY: The transport is live. The window is written under the transport lock, which we hold.
    unsafe { (*xprt).cwnd = (credits as c_ulong) << bindings::RPC_CWNDSHIFT };
    guard
}
