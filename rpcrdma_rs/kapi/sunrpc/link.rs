// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Weak references to an [`Xprt`].
//!
//! sunrpc destroys a transport when the last RPC client releases it. Objects that the transport
//! owns (a connection and its completions, a work item) use the transport, but must not keep it
//! alive. They hold an [`XprtLink`], and borrow the transport while they have work to do.
//! `->destroy` first refuses new borrows, and then waits for the existing ones.
//!
//! ```text
//!   users:  CLOSED ──set up──▶ 0 ◀──get/drop──▶ n ──destroy──▶ CLOSED + n ──drops──▶ CLOSED: idle
//! ```

use core::ops::Deref;

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Completion, //
    }, //
};

use super::{
    ops::XprtOps,
    xprt::Xprt, //
};
use crate::kapi::ext::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed,
    Release, //
};

/// Added to the number of borrows when further ones are refused. The sum is negative for any number
/// of borrows.
const CLOSED: i32 = i32::MIN / 2;

/// The state that all links of one transport share.
///
/// # Invariants
///
/// While `users` is not [`CLOSED`], `xprt` is a transport whose set-up is complete.
#[pin_data]
pub(super) struct Shared<T: XprtOps> {
    xprt: *mut Xprt<T>,
    users: Atomic<i32>,
    #[pin]
    idle: Completion,
}

// SAFETY: The pointer is only turned into a shared reference, and an `Xprt` is `Sync`.
unsafe impl<T: XprtOps> Send for Shared<T> {}
// SAFETY: The pointer is only turned into a shared reference, and an `Xprt` is `Sync`.
unsafe impl<T: XprtOps> Sync for Shared<T> {}

impl<T: XprtOps> Shared<T> {
    /// Creates the state of the links to `xprt`. They refuse borrows until [`Self::open`].
    pub(super) fn new(xprt: *mut Xprt<T>) -> impl PinInit<Self> {
        // INVARIANT: `users` is `CLOSED`.
        pin_init!(Self {
            xprt,
            users: Atomic::new(CLOSED),
            idle <- Completion::new(),
        })
    }

    /// Permits borrows from now on.
    ///
    /// # Safety
    ///
    /// The transport's setup must be complete, and [`Self::close`] must be called before its
    /// teardown.
    pub(super) unsafe fn open(&self) {
        // INVARIANT: The setup of the transport is complete, by this function's contract.
        self.users.store(0, Release);
    }

    /// Refuses further borrows, and waits for the existing ones to end. Sleeps.
    pub(super) fn close(&self) {
        if self.users.fetch_add(CLOSED, Full) != 0 {
            self.idle.wait_for_completion();
        }
    }
}

/// A weak reference to a transport, see the module's documentation.
pub(crate) struct XprtLink<T: XprtOps>(pub(super) Arc<Shared<T>>);

impl<T: XprtOps> Clone for XprtLink<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: XprtOps> XprtLink<T> {
    /// Borrows the transport; `None` once it is being destroyed.
    ///
    /// `->destroy` waits for the borrow to end. So a borrower must not wait for anything that only
    /// `->destroy` does. Any context.
    pub(crate) fn get(&self) -> Option<XprtGuard<'_, T>> {
        let users = &self.0.users;
        let mut seen = users.load(Relaxed);
        loop {
            if seen < 0 {
                return None;
            }
            match users.cmpxchg(seen, seen + 1, Acquire) {
                // INVARIANT: The borrow was counted above.
                Ok(_) => return Some(XprtGuard(&self.0)),
                Err(now) => seen = now,
            }
        }
    }
}

/// A borrow of a transport through a link.
///
/// # Invariants
///
/// The borrow is counted in `users`.
#[must_use]
pub(crate) struct XprtGuard<'a, T: XprtOps>(&'a Arc<Shared<T>>);

impl<T: XprtOps> Deref for XprtGuard<'_, T> {
    type Target = Xprt<T>;

    fn deref(&self) -> &Xprt<T> {
        // SAFETY: `users` counts this borrow, so the transport is valid by the invariants of
        // `Shared`.
        unsafe { &*self.0.xprt }
    }
}

impl<T: XprtOps> Drop for XprtGuard<'_, T> {
    fn drop(&mut self) {
        let users = &self.0.users;
        // INVARIANT: This borrow is no longer counted.
        if users.fetch_sub(1, Release) == CLOSED + 1 {
            // Pairs with the release when other borrows ended: their accesses happened before.
            users.load(Acquire);
            self.0.idle.complete_all();
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
