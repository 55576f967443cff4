// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Classes of client transports.
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData, //
};

use kernel::{
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*,
};

use super::{
    ops::XprtOps,
    xprt::Xprt, //
};
use crate::kapi::{
    bindings,
    compat::this_module,
    ext::atomic::{
        Acquire,
        Atomic,
        Release, //
    }, //
};

/// An `xprt_class` with its network ids, which are a flexible array in C. The last id is empty.
#[repr(C)]
struct ClassWithIds {
    class: bindings::xprt_class,
    netids: [*const c_char; 3],
}

const _: () = assert!(
    core::mem::offset_of!(ClassWithIds, netids)
        == core::mem::offset_of!(bindings::xprt_class, netid)
);

/// The `->setup` of a class: creates a transport.
type Setup = unsafe extern "C" fn(*mut bindings::xprt_create) -> *mut bindings::rpc_xprt;

impl ClassWithIds {
    /// Creates a class of this module that is on no list. A name that is too long does not
    /// compile.
    const fn new(
        name: &'static CStr,
        ident: c_int,
        setup: Setup,
        netids: [&'static CStr; 3],
    ) -> Self {
        let bytes = name.to_bytes();
        let mut chars: [c_char; 32] = [0; 32];
        let mut i = 0;
        assert!(bytes.len() < chars.len());
        while i < bytes.len() {
            // CAST: `c_char` has one byte, with or without a sign.
            chars[i] = bytes[i] as c_char;
            i += 1;
        }
        let mut ids = [core::ptr::null(); 3];
        let mut i = 0;
        while i < netids.len() {
            // CAST: `c_char` may be signed.
            ids[i] = netids[i].to_bytes_with_nul().as_ptr().cast();
            i += 1;
        }
        Self {
            class: bindings::xprt_class {
                list: bindings::list_head {
                    next: core::ptr::null_mut(),
                    prev: core::ptr::null_mut(),
                },
                ident,
                setup: Some(setup),
                owner: this_module(),
                name: chars,
                netid: bindings::__IncompleteArrayField::new(),
            },
            netids: ids,
        }
    }
}

/// Whether the client's class creates transports.
static OPEN: Atomic<bool> = Atomic::new(false);

/// Lets the client's class create transports while it exists. Until then the class returns
/// `EAGAIN`, after which mount.nfs tries again.
///
/// sunrpc may request a transport from a registered class while the module is still being loaded.
/// If loading then fails, the module is freed, although the transport refers to it.
pub(crate) struct Open(());

impl Open {
    /// Lets the class create transports.
    pub(crate) fn new() -> Self {
        OPEN.store(true, Release);
        Open(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.store(false, Release);
    }
}

/// Returns `EAGAIN` unless the class may create transports.
pub(super) fn check_open() -> Result {
    if OPEN.load(Acquire) {
        Ok(())
    } else {
        Err(EAGAIN)
    }
}

/// A class of client transports of type `T`. Must be a `static`.
///
/// # Invariants
///
/// The network ids end with an empty one. Only sunrpc writes to the class: its list head.
#[repr(transparent)]
pub(crate) struct XprtClass<T>(UnsafeCell<ClassWithIds>, PhantomData<fn() -> T>);

// SAFETY: By the type's invariants only sunrpc writes to it, under its own lock.
unsafe impl<T> Sync for XprtClass<T> {}

impl<T: XprtOps> XprtClass<T> {
    /// Creates a class with this name and number that serves the network ids `netids`.
    pub(crate) const fn new(name: &'static CStr, ident: c_int, netids: [&'static CStr; 2]) -> Self {
        Self::with_setup(name, ident, Xprt::<T>::setup, netids)
    }
}

impl<T> XprtClass<T> {
    /// Creates a class whose transports `setup` creates.
    pub(super) const fn with_setup(
        name: &'static CStr,
        ident: c_int,
        setup: Setup,
        netids: [&'static CStr; 2],
    ) -> Self {
        let netids = [netids[0], netids[1], c""];
        let class = ClassWithIds::new(name, ident, setup, netids);
        Self(UnsafeCell::new(class), PhantomData)
    }

    /// Returns the C object, which is the first field.
    pub(super) fn as_ptr(&self) -> *mut bindings::xprt_class {
        self.0.get().cast()
    }

    /// Registers the class with sunrpc, until the result is dropped. May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST` if a class with this number is registered, for instance by the C module.
    pub(crate) fn register(&'static self) -> Result<Registration> {
        let raw = self.as_ptr();
        // SAFETY: The class is static and complete. sunrpc refuses to register a class twice before
        // it accesses the list head.
        kernel::error::to_result(unsafe { bindings::xprt_register_transport(raw) })?;
        Ok(Registration(raw))
    }
}

/// A registered class. Dropping it unregisters the class. No transport of the class exists then,
/// because each holds a reference to the module.
///
/// # Invariants
///
/// The class is static and registered.
#[must_use]
pub(crate) struct Registration(*mut bindings::xprt_class);

// SAFETY: sunrpc has a lock for its classes.
unsafe impl Send for Registration {}
// SAFETY: Shared access does nothing.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: The class is registered by the type's invariant.
        unsafe { bindings::xprt_unregister_transport(self.0) };
    }
}
