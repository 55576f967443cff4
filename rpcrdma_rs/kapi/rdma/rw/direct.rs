// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RDMA Reads and Writes whose elements point to pages, without a memory region.
//!
//! ```text
//!   octets of the pages ──► runs ──DMA──► elements ──as many as a request takes──► requests
//! ```
//!
//! `rdma_rw_ctx_init` of ib_core does the same, but it allocates and clears arrays for each segment.
//! Here the arrays are reused. An IOMMU may join runs, so there may be fewer elements than runs.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/linux/scatterlist.h`](srctree/include/linux/scatterlist.h)

use core::{
    ops::Range,
    ptr::null_mut, //
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    types::Opaque, //
};

use super::{
    Qp,
    QpHandler,
    Remote,
    Requests,
    TransferDir, //
};
use crate::kapi::{
    bindings,
    ext::pages::PageVec,
    rdma::{
        device::Device,
        dma::{
            describe,
            map_list,
            mapped_run,
            unmap_list, //
        },
        wr::Kind, //
    }, //
};

/// The device and the limits that requests are made for.
pub(super) struct Target<'a> {
    pub(super) device: &'a Device,
    /// The local key of the PD.
    pub(super) lkey: u32,
    /// The largest number of elements of a request; at least one.
    pub(super) max_sge: usize,
    pub(super) direction: TransferDir,
}

impl<'a> Target<'a> {
    pub(super) fn of<H: QpHandler>(qp: &'a Qp<H>, direction: TransferDir) -> Self {
        // SAFETY: The QP is valid; these are constant once it is made.
        let (read, write) = unsafe {
            let qp = qp.as_raw();
            ((*qp).max_read_sge, (*qp).max_write_sge)
        };
        let max_sge = match direction {
            TransferDir::Read => read,
            TransferDir::Write => write,
        };
        Target {
            device: qp.device(),
            lkey: qp.pd().lkey(),
            // CAST: `usize` has 64 bits.
            max_sge: (max_sge as usize).max(1),
            direction,
        }
    }
}

/// A range of runs that one call has DMA-mapped.
struct Mapped {
    runs: Range<usize>,
    direction: TransferDir,
}

/// # Invariants
///
/// The ranges of `runs` in `mapped` are DMA-mapped for the device that the requests are for.
/// `elements` are parts of these mappings, and the requests refer to all of them, in order.
pub(super) struct Direct {
    runs: KVec<bindings::scatterlist>,
    mapped: KVec<Mapped>,
    elements: KVec<bindings::ib_sge>,
    requests: KVec<Opaque<bindings::ib_rdma_wr>>,
}

impl Direct {
    pub(super) const fn new() -> Self {
        Direct {
            runs: KVec::new(),
            mapped: KVec::new(),
            elements: KVec::new(),
            requests: KVec::new(),
        }
    }

    pub(super) fn sqes(&self) -> u32 {
        // CAST: Each takes more than a byte of memory that is less than 4 GiB.
        self.requests.len() as u32
    }

    /// See [`Transfer::add`](super::Transfer::add).
    pub(super) fn add(
        &mut self,
        target: &Target<'_>,
        pages: &PageVec,
        octets: impl Iterator<Item = Range<usize>>,
        remote: Remote,
    ) -> Result {
        let start = self.runs.len();
        match self.gather(pages, octets) {
            Ok(length) if length == remote.length as usize && length != 0 => (),
            other => {
                self.runs.truncate(start);
                return other.and(Err(EINVAL));
            }
        }
        self.mapped.reserve(1, GFP_KERNEL)?;
        let runs = start..self.runs.len();
        let list = self.runs.get_mut(runs.clone()).ok_or(EINVAL)?;
        let raw = target.direction.as_raw();
        let count = match map_list(target.device, list, raw) {
            Ok(count) => count,
            Err(error) => {
                self.runs.truncate(start);
                return Err(error);
            }
        };
        // INVARIANT: Mapped just now. There is room.
        let _ = self.mapped.push_within_capacity(Mapped {
            runs,
            direction: target.direction,
        });
        self.make_requests(target, start, count, remote)
    }

    /// Appends the runs of `octets` to `runs`. Returns the number of bytes.
    fn gather(
        &mut self,
        pages: &PageVec,
        octets: impl Iterator<Item = Range<usize>>,
    ) -> Result<usize> {
        let mut length = 0_usize;
        for range in octets {
            // No run is shorter than a page, but for the first and the last.
            let most = range.len().div_ceil(PAGE_SIZE) + 1;
            self.runs.reserve(most.min(pages.len()), GFP_KERNEL)?;
            for run in pages.runs(range) {
                self.runs
                    .push_within_capacity(describe(&run))
                    .map_err(|_| EINVAL)?;
                length += run.len();
            }
        }
        Ok(length)
    }

    /// Fills in the requests for `count` mapped runs, starting at `start`.
    #[inline(always)]
    fn make_requests(
        &mut self,
        target: &Target<'_>,
        start: usize,
        count: usize,
        remote: Remote,
    ) -> Result {
        let first = self.elements.len();
        self.elements.reserve(count, GFP_KERNEL)?;
        for run in self.runs.get(start..start + count).ok_or(EINVAL)? {
            let (addr, length) = mapped_run(run);
            let lkey = target.lkey;
            // There is room.
            let _ = self
                .elements
                .push_within_capacity(bindings::ib_sge { addr, length, lkey });
        }
        let opcode = match target.direction {
            TransferDir::Read => bindings::ib_wr_opcode_IB_WR_RDMA_READ,
            TransferDir::Write => bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
        };
        let mut addr = remote.addr;
        let elements = self.elements.get(first..).ok_or(EINVAL)?;
        for part in elements.chunks(target.max_sge) {
            let wr = bindings::ib_rdma_wr {
                wr: bindings::ib_send_wr {
                    opcode,
                    // CAST: At most what a device takes, which is an `i32`.
                    num_sge: part.len() as i32,
                    ..Default::default()
                },
                remote_addr: addr,
                rkey: remote.handle,
            };
            self.requests.push(Opaque::new(wr), GFP_KERNEL)?;
            if part.len() < elements.len() {
                let length = part.iter().fold(0, |sum: u64, element| {
                    sum.wrapping_add(u64::from(element.length))
                });
                // The end of the peer's memory, which only the peer's device looks at.
                addr = addr.wrapping_add(length);
            }
        }
        Ok(())
    }

    /// Links the requests and returns them; `None` if there are none.
    pub(super) fn link(&self) -> Option<Requests> {
        let wr = |request: &Opaque<bindings::ib_rdma_wr>| {
            // CAST: The first field.
            request.get().cast::<bindings::ib_send_wr>()
        };
        let (last, before) = self.requests.split_last()?;
        let mut elements = self.elements.as_ptr().cast_mut();
        let mut next = self.requests.iter().skip(1);
        for request in &self.requests {
            // SAFETY: The request is ours, and in no other chain: a chain borrows it until it is
            // posted, what is posted owns it, and the type is not `Sync`. By the type's invariant
            // the elements are those of the requests.
            unsafe {
                let request = wr(request);
                (*request).next = next.next().map_or(null_mut(), wr);
                (*request).sg_list = elements;
                // CAST: Not negative.
                elements = elements.add((*request).num_sge as usize);
            }
        }
        Some(Requests {
            first: wr(self.requests.first()?),
            before_last: before.last().map_or(null_mut(), wr),
            last: wr(last),
            kind: Kind::Rdma,
            count: self.sqes(),
        })
    }

    /// Unmaps all runs and empties the arrays, which stay allocated.
    pub(super) fn unmap(&mut self, device: &Device) {
        // INVARIANT: None of the runs is mapped any more.
        self.requests.clear();
        self.elements.clear();
        for mapped in &self.mapped {
            if let Some(list) = self.runs.get_mut(mapped.runs.clone()) {
                unmap_list(device, list, mapped.direction.as_raw());
            }
        }
        self.mapped.clear();
        self.runs.clear();
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
