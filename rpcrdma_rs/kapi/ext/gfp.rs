// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Allocation contexts that `kernel::alloc::Flags` cannot name.

use kernel::{
    ffi::c_uint,
    types::NotThreadSafe, //
};

use crate::kapi::bindings;

/// How an allocation may get its memory.
#[derive(Clone, Copy)]
pub(crate) struct Gfp(bindings::gfp_t);

impl Gfp {
    /// May sleep and reclaim in every way.
    pub(crate) const KERNEL: Gfp = Gfp(bindings::RPCRDMA_GFP_KERNEL);

    /// The flags as C takes them.
    pub(in crate::kapi) const fn as_raw(self) -> bindings::gfp_t {
        self.0
    }

    /// The nearest flags that the kernel crate's own containers take.
    pub(crate) fn flags(self) -> kernel::alloc::Flags {
        kernel::alloc::flags::GFP_KERNEL
    }
}

/// While it exists, no allocation of this thread starts I/O, not even inside of functions that
/// take no flags: for work that reclaim may be waiting for, such as connecting.
///
/// Of scopes inside each other, the outer one must end last.
#[must_use = "the scope ends when it is dropped"]
pub(crate) struct NoIo {
    before: c_uint,
    _thread: NotThreadSafe,
}

impl NoIo {
    /// Begins a scope.
    pub(crate) fn begin() -> Self {
        NoIo {
            // SAFETY: Changes a flag of the current thread.
            before: unsafe { bindings::rpcrdma_shim_memalloc_noio_save() },
            _thread: NotThreadSafe,
        }
    }
}

impl Drop for NoIo {
    fn drop(&mut self) {
        // SAFETY: What `begin` returned, on the same thread.
        unsafe { bindings::rpcrdma_shim_memalloc_noio_restore(self.before) };
    }
}
