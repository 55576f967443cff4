// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Scopes in which allocations start no I/O.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)

use kernel::{
    ffi::c_uint,
    types::NotThreadSafe, //
};

use crate::kapi::bindings;

/// A scope in which allocations of the current thread start no I/O, as with `GFP_NOIO`.
///
/// The scope covers functions that take no allocation flags. It is for work that reclaim may wait
/// for, such as connecting. Nested scopes must end in reverse order.
///
/// # Examples
///
/// ```ignore
/// let _no_io = NoIo::begin();
/// // Starts no I/O, although it says `GFP_KERNEL`.
/// let buffer = KVec::<u8>::with_capacity(4096, GFP_KERNEL)?;
/// ```
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
        // SAFETY: The value is from `begin`, which ran on this thread, as the type is not `Send`.
        unsafe { bindings::rpcrdma_shim_memalloc_noio_restore(self.before) };
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
