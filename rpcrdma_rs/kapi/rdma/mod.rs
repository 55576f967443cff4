// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Safe abstractions of ib_core and rdma_cm.
//!
//! # Ownership
//!
//! ```text
//!   QpOwner ─► Qp ─► Pd ─► id (rdma_cm_id, and with it the device)
//!               ▲     ▲
//!               │     └── DmaBuf, RecvBox, SendBuf, Mr, Transfer
//!               └── Transfer while it is mapped by rdma_rw
//! ```
//!
//! An arrow is a counted reference, so an object outlives all objects that point to it. Dropping
//! the [`qp::QpOwner`] drains the queues: afterwards no completion runs, and the device does not
//! access memory of the connection any more.
//!
//! # Posting transfers ownership
//!
//! [`qp::Qp::post`] takes the owner of a chain of Send Work Requests, and the chain can only borrow
//! from that owner. The completion returns the owner. A Receive is its own owner, see
//! [`recv::RecvBox`]. Closing the QP completes the chains that a driver forgot, see [`entry`]. An
//! [`mr::Mr`] owns the memory that a peer may read or write, and returns it only when it is fenced.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

pub(crate) mod client;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dma;
mod entry;
mod failure;
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
    compat,
    ext::lend::Access, //
};

/// Returns the name under which `rdma resource show` lists the module's objects, as
/// `KBUILD_MODNAME` does in C code.
const fn owner_name() -> *const c_char {
    crate::__LOG_PREFIX.as_ptr()
}

/// The identifier by which trace events pair a post with its completion.
#[derive(Clone, Copy)]
pub(crate) struct Cid {
    /// The restrack number of the Completion Queue.
    pub(crate) queue: u32,
    /// A number that is unique in that queue.
    pub(crate) completion: u32,
}

/// The direction of a DMA mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataDirection {
    /// The CPU writes, the device reads.
    ToDevice,
    /// The device writes, the CPU reads.
    FromDevice,
}

impl DataDirection {
    fn as_raw(self) -> bindings::dma_data_direction {
        match self {
            DataDirection::ToDevice => compat::DMA_TO_DEVICE,
            DataDirection::FromDevice => compat::DMA_FROM_DEVICE,
        }
    }
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

    fn direction(self) -> DataDirection {
        match self {
            Access::RemoteRead | Access::SharedRead => DataDirection::ToDevice,
            Access::RemoteWrite => DataDirection::FromDevice,
        }
    }
}
