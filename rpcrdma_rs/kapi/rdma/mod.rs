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
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

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
mod verbs;
pub(crate) mod wr;

use kernel::ffi::c_char;

use super::{
    bindings,
    compat, //
};

/// Returns the name under which our objects appear in `rdma resource show`, for C: the module's, as
/// `KBUILD_MODNAME` in C.
const fn owner_name() -> *const c_char {
    crate::__LOG_PREFIX.as_ptr()
}

/// What a completion is about; pairs a post with its completion.
#[derive(Clone, Copy)]
pub(crate) struct Cid {
    /// The restrack number of the Completion Queue.
    pub(crate) queue: u32,
    /// A number that is unique in that queue.
    pub(crate) completion: u32,
}

/// Which side writes a piece of memory.
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
