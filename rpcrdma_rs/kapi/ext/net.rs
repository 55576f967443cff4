// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Network namespaces.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use kernel::types::Opaque;

use crate::kapi::bindings;

/// A network namespace.
///
/// Only borrowed, from an object that holds a reference to it (an `rpc_xprt`, a `svc_xprt`).
///
/// # Invariants
///
/// `self.0` is a `struct net` to which a reference exists.
#[repr(transparent)]
pub(crate) struct Net(Opaque<bindings::net>);

// SAFETY: A namespace may be used on any thread. This type only gives its address to C.
unsafe impl Send for Net {}
// SAFETY: Shared access only reads the address.
unsafe impl Sync for Net {}

impl Net {
    /// Borrows the namespace at `net`.
    ///
    /// # Safety
    ///
    /// `net` must point to a namespace to which a reference exists during `'a`.
    pub(in crate::kapi) unsafe fn from_raw<'a>(net: *mut bindings::net) -> &'a Self {
        // CAST: `Net` is transparent over `Opaque<net>`.
        // SAFETY: The namespace is valid during `'a` by this function's contract.
        unsafe { &*net.cast() }
    }

    /// Returns the C object.
    pub(in crate::kapi) fn as_ptr(&self) -> *mut bindings::net {
        self.0.get()
    }
}
