// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RDMA Reads and Writes whose elements point to pages, without a memory region.
//!
//! ```text
//!   octets of the pages ──► runs ──DMA──► elements ──as many as a request takes──► requests
//! ```
//!
//! `rdma_rw_ctx_init` of ib_core does the same, but it allocates and clears arrays for each
//! segment. Here the arrays are reused. An IOMMU may join runs, so there may be fewer elements than
//! runs.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/linux/scatterlist.h`](srctree/include/linux/scatterlist.h)

use core::{
    iter::once,
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
    ext::{
        memory::MemSeg,
        pages::PageVec, //
    },
    rdma::{
        device::Device,
        dma::{
            describe,
            ends_list,
            map_list,
            mapped_run,
            unmap_list, //
        },
        failure::unsignaled,
        wr::WrKind, //
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
        let (read, write) = qp.max_sges();
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

/// # Invariants
///
/// `runs` are DMA-mapped in `direction` for the device that the requests are for, by one call of
/// [`map_list`] for each part that ends with a marked entry. `elements` are parts of these
/// mappings. The first `used` requests refer to all of them, in order.
pub(super) struct Direct {
    runs: KVec<bindings::scatterlist>,
    elements: KVec<bindings::ib_sge>,
    requests: KVec<Opaque<bindings::ib_rdma_wr>>,
    used: usize,
    direction: TransferDir,
}

/// Makes room for `more` items. In steady state there is room already.
#[inline]
fn make_room<T>(items: &mut KVec<T>, more: usize) -> Result {
    if items.capacity().saturating_sub(items.len()) < more {
        return grow(items, more);
    }
    Ok(())
}

/// Implements [`make_room`] if there is too little room.
#[cold]
#[inline(never)]
fn grow<T>(items: &mut KVec<T>, more: usize) -> Result {
    Ok(items.reserve(more, GFP_KERNEL)?)
}

/// Appends `item`, for which there must be room. The functions of `KVec` that do this are not
/// inlined, and `push_within_capacity` takes the item from memory.
#[inline(always)]
fn put<T>(items: &mut KVec<T>, item: T) -> Result {
    let at = items.len();
    if at >= items.capacity() {
        return Err(ENOMEM);
    }
    // SAFETY: The array has memory for an element after the last one, which is written before it
    // counts.
    unsafe {
        items.as_mut_ptr().add(at).write(item);
        items.inc_len(1);
    }
    Ok(())
}

/// Allocates one more request.
#[cold]
#[inline(never)]
fn allocate_request(requests: &mut KVec<Opaque<bindings::ib_rdma_wr>>) -> Result {
    let unused = bindings::ib_rdma_wr {
        wr: bindings::ib_send_wr {
            __bindgen_anon_1: unsignaled(),
            ..Default::default()
        },
        ..Default::default()
    };
    Ok(requests.push(Opaque::new(unused), GFP_KERNEL)?)
}

impl Direct {
    /// Returns an object without mapped runs and without memory.
    pub(super) const fn new() -> Self {
        Direct {
            runs: KVec::new(),
            elements: KVec::new(),
            requests: KVec::new(),
            used: 0,
            direction: TransferDir::Read,
        }
    }

    /// Returns whether runs are mapped.
    pub(super) fn is_mapped(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Returns the number of Send Queue entries that the RDMA Reads or Writes take.
    pub(super) fn sqes(&self) -> u32 {
        // CAST: Each takes more than a byte of memory that is less than 4 GiB.
        self.used as u32
    }

    /// See [`Transfer::add`](super::Transfer::add).
    ///
    /// # Safety
    ///
    /// While anything is mapped, every target must have the same device. The pages must stay
    /// allocated until [`Self::unmap`].
    #[inline]
    pub(super) unsafe fn add(
        &mut self,
        target: &Target<'_>,
        pages: &PageVec,
        octets: Range<usize>,
        remote: Remote,
    ) -> Result {
        match pages.whole_run(octets.clone()) {
            // The usual case.
            Some(run) if run.len() == remote.length as usize => {
                self.set_direction(target.direction)?;
                // SAFETY: The contract is the same.
                unsafe { self.add_run(target, &run, remote) }
            }
            // SAFETY: The contract is the same.
            _ => unsafe { self.add_parts(target, pages, once(octets), remote) },
        }
    }

    /// Makes `direction` the direction of the requests.
    #[inline(always)]
    fn set_direction(&mut self, direction: TransferDir) -> Result {
        if self.direction != direction {
            if self.is_mapped() {
                return Err(EINVAL);
            }
            self.direction = direction;
        }
        Ok(())
    }

    /// Adds a request for all of `run`, which has as many bytes as `remote`.
    ///
    /// # Safety
    ///
    /// As for [`Self::add`].
    #[inline(always)]
    unsafe fn add_run(&mut self, target: &Target<'_>, run: &MemSeg<'_>, remote: Remote) -> Result {
        make_room(&mut self.runs, 1)?;
        make_room(&mut self.elements, 1)?;
        let mut list = [describe(run)];
        let lkey = target.lkey;
        // SAFETY: The entry describes a run, whose pages stay by this function's contract.
        unsafe { map_list(target.device, &mut list, target.direction.as_raw()) }?;
        let [run] = list;
        let (addr, length) = mapped_run(&run);
        // There is room.
        let _ = put(&mut self.runs, run);
        self.add_request(target, 1, remote)?;
        let _ = put(&mut self.elements, bindings::ib_sge { addr, length, lkey });
        Ok(())
    }

    /// See [`Transfer::add_parts`](super::Transfer::add_parts).
    ///
    /// # Safety
    ///
    /// As for [`Self::add`].
    #[inline(never)]
    pub(super) unsafe fn add_parts(
        &mut self,
        target: &Target<'_>,
        pages: &PageVec,
        octets: impl Iterator<Item = Range<usize>>,
        remote: Remote,
    ) -> Result {
        self.set_direction(target.direction)?;
        let start = self.runs.len();
        let mapped = match self.gather(pages, octets) {
            Ok(length) if length == remote.length as usize && length != 0 => {
                // SAFETY: `gather` has described the runs from `start` on, whose pages stay by this
                // function's contract.
                unsafe { self.map(target, start) }
            }
            other => other.and(Err(EINVAL)),
        };
        match mapped {
            Ok(count) => self.make_requests(target, start, count, remote),
            Err(error) => {
                // INVARIANT: The runs before `start` are mapped, and no others are left.
                self.runs.truncate(start);
                Err(error)
            }
        }
    }

    /// Maps the runs from `start` on. Returns the number of mapped runs.
    ///
    /// # Safety
    ///
    /// As for [`map_list`].
    unsafe fn map(&mut self, target: &Target<'_>, start: usize) -> Result<usize> {
        let list = self.runs.get_mut(start..).ok_or(EINVAL)?;
        // SAFETY: The contract is the same.
        unsafe { map_list(target.device, list, target.direction.as_raw()) }
    }

    /// Appends the runs of `octets` to `runs`. Returns the number of bytes.
    fn gather(
        &mut self,
        pages: &PageVec,
        octets: impl Iterator<Item = Range<usize>>,
    ) -> Result<usize> {
        let mut length = 0_usize;
        for range in octets {
            // Every run but the first and the last has at least a page.
            let max = range.len().div_ceil(PAGE_SIZE) + 1;
            make_room(&mut self.runs, max.min(pages.len()))?;
            for run in pages.runs(range) {
                put(&mut self.runs, describe(&run))?;
                length += run.len();
            }
        }
        Ok(length)
    }

    /// Fills in the requests for `count` mapped runs, starting at `start`. After an error some of
    /// them may be there.
    #[inline(always)]
    fn make_requests(
        &mut self,
        target: &Target<'_>,
        start: usize,
        count: usize,
        mut remote: Remote,
    ) -> Result {
        make_room(&mut self.elements, count)?;
        let (mut at, end) = (start, start + count);
        while at < end {
            let next = end.min(at + target.max_sge);
            // Before its elements, so that none is left without a request if this fails.
            self.add_request(target, next - at, remote)?;
            for run in self.runs.get(at..next).ok_or(EINVAL)? {
                let (addr, length) = mapped_run(run);
                let lkey = target.lkey;
                put(&mut self.elements, bindings::ib_sge { addr, length, lkey })?;
                // May wrap around: only the peer's device checks the address.
                remote.addr = remote.addr.wrapping_add(u64::from(length));
            }
            at = next;
        }
        Ok(())
    }

    /// Adds a request for the next `count` elements, which are at most what the device takes. The
    /// memory of the peer starts where `remote` starts.
    #[inline(always)]
    fn add_request(&mut self, target: &Target<'_>, count: usize, remote: Remote) -> Result {
        if self.used == self.requests.len() {
            allocate_request(&mut self.requests)?;
        }
        let request = self.requests.get(self.used).ok_or(EINVAL)?.get();
        // SAFETY: The request is ours, and in no chain, as the transfer is borrowed mutably.
        unsafe {
            (*request).wr.opcode = match target.direction {
                TransferDir::Read => bindings::ib_wr_opcode_IB_WR_RDMA_READ,
                TransferDir::Write => bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            };
            // CAST: At most what a device takes, which is an `i32`.
            (*request).wr.num_sge = count as i32;
            (*request).remote_addr = remote.addr;
            (*request).rkey = remote.handle;
        }
        // INVARIANT: The request refers to the next elements.
        self.used += 1;
        Ok(())
    }

    /// Links the requests and returns them; `None` if there are none.
    ///
    /// # Safety
    ///
    /// The transfer must be in no other chain.
    pub(super) unsafe fn link(&self) -> Option<Requests> {
        let wr = |request: &Opaque<bindings::ib_rdma_wr>| {
            // CAST: The first field.
            request.get().cast::<bindings::ib_send_wr>()
        };
        let (first, more) = self.requests.get(..self.used)?.split_first()?;
        let (first, mut last) = (wr(first), wr(first));
        let mut elements = self.elements.as_ptr().cast_mut();
        // SAFETY: The requests are ours, and in no other chain by this function's contract. By the
        // type's invariant the elements are those of the requests.
        unsafe {
            (*first).sg_list = elements;
            for request in more {
                let request = wr(request);
                // CAST: Not negative.
                elements = elements.add((*last).num_sge as usize);
                (*request).sg_list = elements;
                (*last).next = request;
                last = request;
            }
            (*last).next = null_mut();
        }
        Some(Requests {
            first,
            last,
            kind: WrKind::Rdma,
            count: self.sqes(),
        })
    }

    /// Unmaps all runs and empties the arrays, which stay allocated.
    ///
    /// # Safety
    ///
    /// `device` must be that of the targets of [`Self::add`]. Nothing that is mapped may be posted.
    #[inline]
    pub(super) unsafe fn unmap(&mut self, device: &Device) {
        // INVARIANT: None of the runs is mapped any more.
        self.used = 0;
        self.elements.clear();
        if !device.uses_virt_dma() {
            // SAFETY: The contract is the same.
            unsafe { self.dma_unmap(device) };
        }
        self.runs.clear();
    }

    /// Unmaps the runs, for a device with real DMA. The caller clears `runs`.
    ///
    /// # Safety
    ///
    /// As for [`Self::unmap`].
    #[inline(never)]
    unsafe fn dma_unmap(&mut self, device: &Device) {
        for list in self.runs.split_inclusive_mut(ends_list) {
            // SAFETY: By the type's invariant this list was mapped in this direction, and by this
            // function's contract for this device.
            unsafe { unmap_list(device, list, self.direction.as_raw()) };
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
