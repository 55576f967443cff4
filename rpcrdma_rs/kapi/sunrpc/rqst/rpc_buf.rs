// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The memory of a request's messages, which sunrpc calls its buffers.
//!
//! C header: [`include/linux/sunrpc/sched.h`](srctree/include/linux/sunrpc/sched.h)

use kernel::prelude::*;

use crate::kapi::bindings;

/// Memory that sunrpc encodes a Call into or that a Reply is decoded from.
///
/// # Invariants
///
/// `ptr` is a `kmalloc` allocation of at least `len` bytes, which this object owns, or null with
/// `len` zero.
pub(super) struct RpcBuf {
    ptr: *mut u8,
    len: usize,
}

impl RpcBuf {
    /// No memory.
    pub(super) const EMPTY: RpcBuf = RpcBuf {
        ptr: core::ptr::null_mut(),
        len: 0,
    };

    /// Returns the address of the memory, null without memory.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Returns the length of the memory in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The smallest size of a buffer in octets. Most messages fit, so few slots allocate twice.
    const MIN_LEN: usize = 2048;

    /// Makes room for `call_len` and `reply_len` bytes, see [`Self::reserve`].
    #[cold]
    pub(super) fn reserve_both(
        call: &mut Self,
        call_len: usize,
        reply: &mut Self,
        reply_len: usize,
    ) -> Result<usize> {
        Ok(call.reserve(call_len)? + reply.reserve(reply_len)?)
    }

    /// Allocates both buffers in the smallest size.
    pub(super) fn fill(call: &mut Self, reply: &mut Self) -> Result {
        Self::reserve_both(call, Self::MIN_LEN, reply, Self::MIN_LEN)?;
        Ok(())
    }

    /// Makes room for `len` bytes, with the allocation flags of an RPC task. Returns the number of
    /// allocated bytes if `len` is more than [`Self::MIN_LEN`], and zero otherwise.
    fn reserve(&mut self, len: usize) -> Result<usize> {
        if self.len >= len {
            return Ok(0);
        }
        let unusual = if len > Self::MIN_LEN { len } else { 0 };
        let len = len.max(Self::MIN_LEN);
        // SAFETY: Any size and context are fine.
        let ptr = unsafe { bindings::rpcrdma_shim_kmalloc_task(len) };
        if ptr.is_null() {
            return Err(ENOMEM);
        }
        // INVARIANT: Allocated above.
        *self = Self {
            ptr: ptr.cast(),
            len,
        };
        Ok(unusual)
    }
}

impl Drop for RpcBuf {
    fn drop(&mut self) {
        // SAFETY: By the invariants this object owns the allocation, or the pointer is null, which
        // `kfree` accepts.
        unsafe { bindings::kfree(self.ptr.cast()) };
    }
}
