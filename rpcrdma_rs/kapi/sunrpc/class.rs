// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Classes of client transports.

use core::{
    cell::UnsafeCell,
    marker::PhantomData, //
};

use kernel::{
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*, //
};

use super::{
    ops::XprtOps,
    xprt::Xprt, //
};
use crate::kapi::bindings;

/// An `xprt_class` with its network ids, which C has as a flexible array.
#[repr(C)]
struct ClassWithIds {
    class: bindings::xprt_class,
    netids: [*const c_char; 3],
}

const _: () = assert!(
    core::mem::offset_of!(ClassWithIds, netids)
        == core::mem::offset_of!(bindings::xprt_class, netid)
);

/// A class of client transports. To be a `static`.
pub(crate) struct XprtClass<T>(UnsafeCell<ClassWithIds>, PhantomData<fn() -> T>);

// SAFETY: It is written by `Registration::new` before sunrpc knows it, and by sunrpc under its
// own lock from then on.
unsafe impl<T> Sync for XprtClass<T> {}

impl<T: XprtOps> XprtClass<T> {
    /// A class of the given name and number; `netids` are the network ids it serves.
    pub(crate) const fn new(name: &'static CStr, ident: c_int, netids: [&'static CStr; 2]) -> Self {
        let mut chars = [0; 32];
        let bytes = name.to_bytes();
        let mut i = 0;
        while i < bytes.len() {
            // CAST: A byte is a byte.
            chars[i] = bytes[i] as c_char;
            i += 1;
        }
        let list = bindings::list_head {
            next: core::ptr::null_mut(),
            prev: core::ptr::null_mut(),
        };
        Self(
            UnsafeCell::new(ClassWithIds {
                class: bindings::xprt_class {
                    list,
                    ident,
                    setup: Some(Xprt::<T>::setup),
                    owner: core::ptr::null_mut(),
                    name: chars,
                    netid: bindings::__IncompleteArrayField::new(),
                },
                // CAST: C strings of chars of either sign.
                netids: [
                    netids[0].to_bytes_with_nul().as_ptr().cast(),
                    netids[1].to_bytes_with_nul().as_ptr().cast(),
                    c"".to_bytes_with_nul().as_ptr().cast(),
                ],
            }),
            PhantomData,
        )
    }
}

impl<T> XprtClass<T> {
    /// The C object, which is the first field.
    pub(super) fn as_ptr(&self) -> *mut bindings::xprt_class {
        self.0.get().cast()
    }
}

/// A class that sunrpc knows. Dropping it makes sunrpc forget it; there is no transport of it
/// left then, as each holds a reference to the module.
pub(crate) struct Registration<T: XprtOps>(&'static XprtClass<T>);

impl<T: XprtOps> Registration<T> {
    /// Registers the class of `T`.
    ///
    /// # Errors
    ///
    /// `EEXIST` when there is a class of that number, ours or another module's.
    pub(crate) fn new() -> Result<Self> {
        let class = T::class();
        let raw = class.as_ptr();
        // SAFETY: A class that is registered already has that owner; one that is not is ours to
        // write. sunrpc refuses the second of two.
        kernel::error::to_result(unsafe {
            (&raw mut (*raw).owner).write(crate::THIS_MODULE.as_ptr());
            bindings::xprt_register_transport(raw)
        })?;
        Ok(Self(class))
    }
}

impl<T: XprtOps> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by `new`.
        unsafe { bindings::xprt_unregister_transport(self.0.as_ptr()) };
    }
}
