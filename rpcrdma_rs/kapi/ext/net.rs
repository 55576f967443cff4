// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Network namespaces.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use kernel::types::Opaque;

use crate::kapi::bindings;

/// A network namespace.
///
/// Whoever lends one (an `rpc_xprt`, a `svc_xprt`) holds a reference to it for as long as
/// the borrow lasts.
///
/// # Invariants
///
/// `self.0` is a live `struct net`.
#[repr(transparent)]
pub(crate) struct Net(Opaque<bindings::net>);

// SAFETY: A namespace is shared by everything in it; all we do is hand its address on.
unsafe impl Send for Net {}
// SAFETY: Shared access reads only its address.
unsafe impl Sync for Net {}

impl Net {
    /// Borrows the namespace at `net`.
    ///
    /// # Safety
    ///
    /// `net` must point to a live namespace that stays alive for `'a`.
    pub(in crate::kapi) unsafe fn from_raw<'a>(net: *mut bindings::net) -> &'a Self {
        // CAST: `Net` is transparent over `Opaque<net>`.
        // SAFETY: By this function's contract it is a namespace that lives for `'a`.
        unsafe { &*net.cast() }
    }

    /// Returns the C object.
    pub(in crate::kapi) fn as_ptr(&self) -> *mut bindings::net {
        self.0.get()
    }
}
