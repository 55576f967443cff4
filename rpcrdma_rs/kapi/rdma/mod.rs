// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! ib_core and rdma_cm, as safe Rust sees them.
//!
//! # Who owns what
//!
//! ```text
//!   QpOwner ─► Qp ─► Pd ─► id (rdma_cm_id, and with it the device)
//!               ▲     ▲
//!               │     └── DmaBuf, RecvBox, SendBuf, Mr
//!               └── Transfer
//! ```
//!
//! An arrow is a counted reference; what is pointed to outlives what points. Dropping the
//! [`qp::QpOwner`] drains the queues: afterwards no completion runs, and the device touches no
//! memory of this connection any more.
//!
//! # What is posted is owned by what is posted
//!
//! A chain of Send Work Requests is posted together with an owner, and built from what can be
//! borrowed from that owner, see [`qp::Qp::post`]. The owner is gone until its completion
//! brings it back. Receives are their own owners, see [`recv::RecvBox`]. What a driver forgets to
//! complete is brought back when the QP is closed, see [`entry`]. Memory that a peer may read or
//! write is owned by an [`mr::Mr`], which gives it back only when it is fenced.

pub(crate) mod client;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dma;
mod entry;
mod list;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod recv;
pub(crate) mod rw;
pub(crate) mod send;
pub(crate) mod wr;

#[cfg(rpcrdma_kunit)]
mod kunit;

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    ffi::c_char,
    page::PAGE_SIZE, //
};

use super::{
    bindings,
    compat, //
};

/// The name under which our objects appear in `rdma resource show`, for C.
const fn owner_name() -> *const c_char {
    c"rpcrdma_rs".to_bytes_with_nul().as_ptr()
}

/// Who writes a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The CPU writes, the device reads.
    ToDevice,
    /// The device writes, the CPU reads.
    FromDevice,
}

impl Direction {
    fn as_raw(self) -> bindings::dma_data_direction {
        match self {
            Direction::ToDevice => compat::DMA_TO_DEVICE,
            Direction::FromDevice => compat::DMA_FROM_DEVICE,
        }
    }
}

/// What a peer may do with registered memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The peer may read it.
    RemoteRead,
    /// The peer may read it; its owner may give the pages back before the region is unmapped,
    /// which has references to them.
    SharedRead,
    /// The peer may write it.
    RemoteWrite,
}

impl Access {
    fn flags(self) -> i32 {
        // CAST: The flags are small positive numbers.
        match self {
            Access::RemoteRead | Access::SharedRead => {
                bindings::ib_access_flags_IB_ACCESS_REMOTE_READ as i32
            }
            Access::RemoteWrite => {
                (bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE) as i32
            }
        }
    }

    fn direction(self) -> Direction {
        match self {
            Access::RemoteRead | Access::SharedRead => Direction::ToDevice,
            Access::RemoteWrite => Direction::FromDevice,
        }
    }
}

/// A run of bytes inside one page.
///
/// Who makes one answers for the bytes: they stay where they are until the device is done
/// with whatever the run was put into.
///
/// # Invariants
///
/// The page is valid during `'a`; `offset + len` is at most [`PAGE_SIZE`]; `len` is not zero.
#[derive(Clone, Copy)]
pub(crate) struct MemSeg<'a> {
    page: NonNull<bindings::page>,
    offset: u32,
    len: u32,
    _memory: PhantomData<&'a bindings::page>,
}

impl<'a> MemSeg<'a> {
    /// Describes `len` bytes of `page` from `offset` on; `None` if they do not lie inside it
    /// or there are none.
    ///
    /// # Safety
    ///
    /// The page must be valid during `'a`.
    pub(in crate::kapi) unsafe fn from_page(
        page: NonNull<bindings::page>,
        offset: usize,
        len: usize,
    ) -> Option<Self> {
        match offset.checked_add(len) {
            Some(end) if len > 0 && end <= PAGE_SIZE => Some(MemSeg {
                // INVARIANT: Checked above, or promised by the caller.
                page,
                // CAST: Both are at most `PAGE_SIZE`.
                offset: offset as u32,
                len: len as u32,
                _memory: PhantomData,
            }),
            _ => None,
        }
    }

    /// Describes as many of the `len` bytes at `ptr` as lie in the first page; `None` if there
    /// are none.
    ///
    /// # Safety
    ///
    /// The bytes must be valid during `'a` and lie in the kernel's linear mapping (`kmalloc`
    /// or pages, not `vmalloc` or a stack).
    pub(in crate::kapi) unsafe fn from_virt(ptr: *const u8, len: usize) -> Option<Self> {
        let offset = ptr.addr() % PAGE_SIZE;
        // SAFETY: The address is in the linear mapping by this function's contract.
        let page = unsafe { bindings::rpcrdma_shim_virt_to_page(ptr.cast()) };
        // SAFETY: The page holds bytes that are valid during `'a`.
        unsafe { Self::from_page(NonNull::new(page)?, offset, len.min(PAGE_SIZE - offset)) }
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        // CAST: `u32` fits in `usize` on every 64-bit machine.
        self.len as usize
    }

    /// The first byte's place in its page.
    pub(crate) fn offset(&self) -> usize {
        // CAST: As above.
        self.offset as usize
    }

    /// Whether the run ends where its page ends.
    pub(crate) fn ends_page(&self) -> bool {
        self.offset() + self.len() == PAGE_SIZE
    }
}
