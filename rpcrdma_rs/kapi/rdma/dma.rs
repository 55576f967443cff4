// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory that is mapped for a device.
//!
//! Devices that copy in software (rxe, siw) use kernel addresses for DMA addresses; ib_core's
//! mapping functions take care of the difference.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use core::{
    ops::Range,
    ptr::NonNull, //
};

use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};

use super::{
    device::Device,
    pd::Pd,
    Direction, //
};
use crate::kapi::{
    bindings,
    compat,
    ext::memory::MemSeg, //
};

fn mapping_failed(device: &Device, addr: u64) -> bool {
    // SAFETY: The device is valid.
    unsafe { bindings::rpcrdma_shim_ib_dma_mapping_error(device.as_raw(), addr) != 0 }
}

/// Bytes of the kernel's heap that a device may read or write at any time while a Work Request
/// names them. Zero at first.
///
/// # Invariants
///
/// `ptr` points to `len` initialised bytes of `kmalloc`, which are ours, and mapped at `addr`
/// in `direction` for the device of `pd`.
pub(crate) struct DmaBuf {
    ptr: NonNull<u8>,
    len: usize,
    addr: u64,
    direction: Direction,
    pd: Arc<Pd>,
}

// SAFETY: Plain memory and its mapping have no affinity to a thread.
unsafe impl Send for DmaBuf {}
// SAFETY: Shared access only reads.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Allocates and maps `len` bytes near the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero; `ENOMEM`, also if there is no room in the IOMMU.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, direction: Direction) -> Result<Self> {
        if len == 0 {
            return Err(EINVAL);
        }
        let device = pd.device();
        // SAFETY: Asks for new memory.
        let ptr = unsafe {
            bindings::krealloc_node_align_noprof(
                core::ptr::null(),
                len,
                1,
                bindings::GFP_KERNEL | bindings::__GFP_ZERO,
                device.numa_node(),
            )
        };
        let ptr = NonNull::new(ptr.cast::<u8>()).ok_or(ENOMEM)?;
        // SAFETY: The memory is valid and of that length.
        let addr = unsafe {
            bindings::rpcrdma_shim_ib_dma_map_single(
                device.as_raw(),
                ptr.as_ptr().cast(),
                len,
                direction.as_raw(),
            )
        };
        if mapping_failed(device, addr) {
            // SAFETY: Allocated above, and not mapped.
            unsafe { bindings::kfree(ptr.as_ptr().cast()) };
            return Err(ENOMEM);
        }
        // INVARIANT: Zeroed and mapped just now.
        Ok(DmaBuf {
            ptr,
            len,
            addr,
            direction,
            pd: pd.clone(),
        })
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: There are that many initialised bytes, which are ours, and `self` is borrowed.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the bytes, for writing.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: By the type's invariant, and `self` is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// Checks a range and returns its DMA address and length.
    fn part(&self, range: Range<usize>) -> Option<(u64, usize)> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len {
            return None;
        }
        // CAST: `usize` has 64 bits here. The sum is inside the mapping.
        Some((self.addr + range.start as u64, len))
    }

    /// Hands a range to the device: what the CPU wrote is what the device reads. A range that
    /// is not inside is left alone.
    pub(crate) fn sync_for_device(&self, range: Range<usize>) {
        let Some((addr, len)) = self.part(range) else {
            return;
        };
        // SAFETY: The range is mapped this way.
        unsafe {
            bindings::rpcrdma_shim_ib_dma_sync_single_for_device(
                self.pd.device().as_raw(),
                addr,
                len,
                self.direction.as_raw(),
            );
        }
    }

    /// Takes a range back from the device: what the device wrote is what the CPU reads. A
    /// range that is not inside is left alone.
    pub(crate) fn sync_for_cpu(&self, range: Range<usize>) {
        let Some((addr, len)) = self.part(range) else {
            return;
        };
        // SAFETY: The range is mapped this way.
        unsafe {
            bindings::rpcrdma_shim_ib_dma_sync_single_for_cpu(
                self.pd.device().as_raw(),
                addr,
                len,
                self.direction.as_raw(),
            );
        }
    }

    /// Describes a range for a Work Request, after handing it to the device. The request must not
    /// be used longer than the buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not inside.
    pub(super) fn sge(&self, range: Range<usize>) -> Result<bindings::ib_sge> {
        let (addr, len) = self.part(range.clone()).ok_or(EINVAL)?;
        self.sync_for_device(range);
        Ok(bindings::ib_sge {
            addr,
            length: u32::try_from(len)?,
            lkey: self.pd.lkey(),
        })
    }

    /// Returns the PD that the buffer is mapped in.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant this is how it was mapped and allocated. Nothing is
        // posted with it, as what is posted owns it.
        unsafe {
            bindings::rpcrdma_shim_ib_dma_unmap_single(
                self.pd.device().as_raw(),
                self.addr,
                self.len,
                self.direction.as_raw(),
            );
            bindings::kfree(self.ptr.as_ptr().cast());
        }
    }
}

/// A reference to a page, which stays what it is meanwhile, whatever its owner does.
///
/// # Invariants
///
/// The reference is ours.
pub(super) struct PageRef(NonNull<bindings::page>);

impl PageRef {
    /// References to all pages of a run, added to `pages`, which has room for them or gets it by
    /// `flags`.
    ///
    /// # Errors
    ///
    /// None is added then: `EINVAL` if one is memory of the slab allocator, which has no reference
    /// count; `ENOMEM`.
    pub(super) fn add(seg: &MemSeg<'_>, pages: &mut KVec<PageRef>, flags: Flags) -> Result {
        let counted = |page: NonNull<bindings::page>| {
            // SAFETY: The page is valid, as all pages of a run are.
            unsafe { bindings::rpcrdma_shim_sendpage_ok(page.as_ptr()) }
        };
        if !seg.pages().all(counted) {
            return Err(EINVAL);
        }
        pages.reserve(seg.page_count(), flags)?;
        for page in seg.pages() {
            // SAFETY: The page is valid and has a reference count.
            unsafe { bindings::rpcrdma_shim_get_page(page.as_ptr()) };
            // INVARIANT: Taken here. There is room.
            let _ = pages.push_within_capacity(PageRef(page));
        }
        Ok(())
    }
}

// SAFETY: References to pages have no affinity to a thread.
unsafe impl Send for PageRef {}
// SAFETY: Shared access does nothing.
unsafe impl Sync for PageRef {}

impl Drop for PageRef {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and given up once.
        unsafe { bindings::rpcrdma_shim_put_page(self.0.as_ptr()) };
    }
}

/// Maps a run for the device to read; `ENOMEM` if there is no room in the IOMMU.
pub(super) fn map_run(device: &Device, seg: &MemSeg<'_>) -> Result<u64> {
    // SAFETY: The device is valid; the run is in valid pages next to each other.
    let addr = unsafe {
        bindings::rpcrdma_shim_ib_dma_map_page(
            device.as_raw(),
            seg.page().as_ptr(),
            seg.offset(),
            seg.len(),
            compat::DMA_TO_DEVICE,
        )
    };
    if mapping_failed(device, addr) {
        return Err(ENOMEM);
    }
    Ok(addr)
}

/// Undoes [`map_run`].
pub(super) fn unmap_run(device: &Device, addr: u64, len: u32) {
    // SAFETY: The device is valid; the caller has address and length from `map_run`.
    unsafe {
        bindings::rpcrdma_shim_ib_dma_unmap_page(
            device.as_raw(),
            addr,
            len as usize,
            compat::DMA_TO_DEVICE,
        );
    }
}

/// The marks in a scatterlist entry's `page_link`: of a chain, and of the end.
const SG_MARKS: usize = 3;
/// The mark of the end.
const SG_END: usize = 2;

/// Describes a run for [`map_list`].
pub(super) fn describe(seg: &MemSeg<'_>) -> bindings::scatterlist {
    bindings::scatterlist {
        page_link: seg.page().as_ptr().expose_provenance() & !SG_MARKS,
        // CAST: Less than a page, and at most the longest run.
        offset: seg.offset() as u32,
        length: seg.len() as u32,
        ..Default::default()
    }
}

/// Maps a list of runs, which must stay as it is until [`unmap_list`]; returns how many mapped runs
/// there are, see [`mapped_run`]: fewer than runs if an IOMMU joins some.
///
/// # Errors
///
/// `EINVAL` for an empty list; `ENOMEM` if there is no room in the IOMMU.
pub(super) fn map_list(
    device: &Device,
    list: &mut [bindings::scatterlist],
    direction: bindings::dma_data_direction,
) -> Result<usize> {
    let count = i32::try_from(list.len())?;
    // C looks at the entry behind one that is not marked as the last.
    list.last_mut().ok_or(EINVAL)?.page_link |= SG_END;
    // SAFETY: The device is valid, and the list has that many entries, each of which describes a
    // run of memory.
    let mapped = unsafe {
        bindings::rpcrdma_shim_ib_dma_map_sg(device.as_raw(), list.as_mut_ptr(), count, direction)
    };
    match usize::try_from(mapped) {
        Ok(0) | Err(_) => Err(ENOMEM),
        Ok(mapped) => Ok(mapped),
    }
}

/// Undoes [`map_list`].
pub(super) fn unmap_list(
    device: &Device,
    list: &mut [bindings::scatterlist],
    direction: bindings::dma_data_direction,
) {
    // SAFETY: The device is valid; the caller had `map_list` map the list, with as many entries.
    unsafe {
        bindings::rpcrdma_shim_ib_dma_unmap_sg(
            device.as_raw(),
            list.as_mut_ptr(),
            // CAST: `map_list` checked that it fits.
            list.len() as i32,
            direction,
        );
    }
}

/// Returns the DMA address and the length of a mapped run.
pub(super) fn mapped_run(entry: &bindings::scatterlist) -> (u64, u32) {
    #[cfg(CONFIG_NEED_SG_DMA_LENGTH)]
    let length = entry.dma_length;
    #[cfg(not(CONFIG_NEED_SG_DMA_LENGTH))]
    let length = entry.length;
    (entry.dma_address, length)
}

#[cfg(rpcrdma_kunit)]
mod kunit;
