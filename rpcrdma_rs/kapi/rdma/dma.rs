// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! DMA mappings for RDMA devices.
//!
//! Software devices (rxe, siw) use kernel addresses as DMA addresses. ib_core's mapping functions
//! hide the difference.
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
    DataDirection, //
};
use crate::kapi::{
    bindings,
    compat,
    ext::memory::{
        page_address,
        MemSeg, //
    }, //
};

/// Returns whether `addr` is what mapping returns when it fails. With virtual DMA it never fails.
fn mapping_failed(device: &Device, addr: u64) -> bool {
    if device.uses_virt_dma() {
        return false;
    }
    // SAFETY: The device is valid.
    unsafe { bindings::rpcrdma_shim_ib_dma_mapping_error(device.as_raw(), addr) != 0 }
}

/// `__GFP_NORETRY`: the allocation fails if one attempt to reclaim memory frees too little.
const NO_RETRY: bindings::gfp_t = 1 << bindings::___GFP_NORETRY_BIT;

/// A mapped buffer in the kernel's heap, zeroed when it is created. While a posted Work Request
/// refers to it, the device may read or write it at any time.
///
/// # Invariants
///
/// `ptr` points to `len` initialised bytes from `kmalloc` that this object owns. They are mapped at
/// `addr` in `direction` for the device of `pd`.
pub(crate) struct DmaBuf {
    ptr: NonNull<u8>,
    len: usize,
    addr: u64,
    direction: DataDirection,
    pd: Arc<Pd>,
}

// SAFETY: Plain memory and its mapping have no affinity to a thread.
unsafe impl Send for DmaBuf {}
// SAFETY: Shared access only reads.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Allocates and maps `len` bytes near the device. May sleep, but fails if one attempt at
    /// reclaim does not suffice. Otherwise it might wait forever: its caller may hold a lock that
    /// is needed by the RPCs that free memory.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero; `ENOMEM` without memory or without room in the IOMMU.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, direction: DataDirection) -> Result<Self> {
        if len == 0 {
            return Err(EINVAL);
        }
        let device = pd.device();
        // SAFETY: A null pointer asks for a new allocation.
        let ptr = unsafe {
            bindings::krealloc_node_align_noprof(
                core::ptr::null(),
                len,
                1,
                bindings::GFP_KERNEL | NO_RETRY | bindings::__GFP_NOWARN | bindings::__GFP_ZERO,
                device.numa_node(),
            )
        };
        let ptr = NonNull::new(ptr.cast::<u8>()).ok_or(ENOMEM)?;
        // SAFETY: The device is valid, and the memory was allocated above with that length.
        let addr = unsafe {
            bindings::rpcrdma_shim_ib_dma_map_single(
                device.as_raw(),
                ptr.as_ptr().cast(),
                len,
                direction.as_raw(),
            )
        };
        if mapping_failed(device, addr) {
            // SAFETY: The memory was allocated above, and it is not mapped.
            unsafe { bindings::kfree(ptr.as_ptr().cast()) };
            return Err(ENOMEM);
        }
        // INVARIANT: The memory was zeroed and mapped above.
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
        // SAFETY: By the type's invariant these bytes are initialised and owned by `self`, which is
        // borrowed.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the bytes, for writing.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: By the type's invariant these bytes are initialised and owned by `self`, which is
        // borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the DMA address and length of a range, or `None` if it is not inside the buffer.
    fn part(&self, range: Range<usize>) -> Option<(u64, usize)> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len {
            return None;
        }
        // CAST: `usize` has at most 64 bits. The sum is an address inside the mapping.
        Some((self.addr + range.start as u64, len))
    }

    /// Syncs a range for the device, so that it reads what the CPU wrote. Does nothing if the range
    /// is not inside the buffer.
    #[inline]
    pub(crate) fn sync_for_device(&self, range: Range<usize>) {
        if self.pd.device().uses_virt_dma() {
            return;
        }
        let Some((addr, len)) = self.part(range) else {
            return;
        };
        // SAFETY: The range is inside the mapping, which has this direction.
        unsafe {
            bindings::rpcrdma_shim_ib_dma_sync_single_for_device(
                self.pd.device().as_raw(),
                addr,
                len,
                self.direction.as_raw(),
            );
        }
    }

    /// Syncs a range for the CPU, so that it reads what the device wrote. Does nothing if the range
    /// is not inside the buffer.
    #[inline]
    pub(crate) fn sync_for_cpu(&mut self, range: Range<usize>) {
        if self.pd.device().uses_virt_dma() {
            return;
        }
        let Some((addr, len)) = self.part(range) else {
            return;
        };
        // SAFETY: The range is inside the mapping, which has this direction.
        unsafe {
            bindings::rpcrdma_shim_ib_dma_sync_single_for_cpu(
                self.pd.device().as_raw(),
                addr,
                len,
                self.direction.as_raw(),
            );
        }
    }

    /// Syncs a range for the device and returns an SGE for it. The buffer must outlive each Work
    /// Request with that SGE.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not inside the buffer.
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
        // SAFETY: By the type's invariant the buffer was allocated and mapped with these values. No
        // posted Work Request refers to it, because the owner of a posted chain owns its buffers.
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

/// A reference to a page, which keeps the page from being freed and reused.
///
/// # Invariants
///
/// This object owns the reference.
pub(super) struct PageRef(NonNull<bindings::page>);

impl PageRef {
    /// Adds references to all pages of a run to `pages`. If that has to grow, `flags` apply.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a page has no reference count, such as one of the slab allocator; `ENOMEM`.
    /// Nothing is added then.
    pub(super) fn add(seg: &MemSeg<'_>, pages: &mut KVec<PageRef>, flags: Flags) -> Result {
        let counted = |page: NonNull<bindings::page>| {
            // SAFETY: All pages of a run are valid.
            unsafe { bindings::rpcrdma_shim_sendpage_ok(page.as_ptr()) }
        };
        if !seg.pages().all(counted) {
            return Err(EINVAL);
        }
        pages.reserve(seg.page_count(), flags)?;
        for page in seg.pages() {
            // SAFETY: The page is valid and has a reference count, see above.
            unsafe { bindings::rpcrdma_shim_get_page(page.as_ptr()) };
            // INVARIANT: The reference was taken above. There is room for it.
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
        // SAFETY: `self` owns the reference, and only this drop gives it up.
        unsafe { bindings::rpcrdma_shim_put_page(self.0.as_ptr()) };
    }
}

/// Maps `len` bytes from `offset` of `page` on, which are contiguous. Returns `ENOMEM` if there is
/// no room in the IOMMU.
///
/// # Safety
///
/// The bytes must be in valid pages.
#[inline(always)]
unsafe fn map_bytes(
    device: &Device,
    page: *mut bindings::page,
    offset: usize,
    len: usize,
    direction: bindings::dma_data_direction,
) -> Result<u64> {
    if device.uses_virt_dma() {
        // SAFETY: The page is valid by this function's contract.
        let address = unsafe { page_address(page) };
        // CAST: `usize` has 64 bits.
        return Ok((address.expose_provenance() + offset) as u64);
    }
    // SAFETY: The device is valid, and the bytes are in valid, contiguous pages.
    let addr = unsafe {
        bindings::rpcrdma_shim_ib_dma_map_page(device.as_raw(), page, offset, len, direction)
    };
    if mapping_failed(device, addr) {
        return Err(ENOMEM);
    }
    Ok(addr)
}

/// Unmaps what [`map_bytes`] has mapped.
///
/// # Safety
///
/// [`map_bytes`] must have mapped `len` bytes at `addr` for this device and direction. They must
/// still be mapped, and their pages allocated.
#[inline]
unsafe fn unmap_bytes(
    device: &Device,
    addr: u64,
    len: u32,
    direction: bindings::dma_data_direction,
) {
    if device.uses_virt_dma() {
        return;
    }
    // SAFETY: The device is valid, and the mapping is from `map_bytes` by this function's contract.
    unsafe {
        bindings::rpcrdma_shim_ib_dma_unmap_page(device.as_raw(), addr, len as usize, direction);
    }
}

/// Maps a run for the device to read. Returns `ENOMEM` if there is no room in the IOMMU.
pub(super) fn map_run(device: &Device, seg: &MemSeg<'_>) -> Result<u64> {
    let (page, offset, len) = (seg.page().as_ptr(), seg.offset(), seg.len());
    // SAFETY: The pages of a run are valid and contiguous.
    unsafe { map_bytes(device, page, offset, len, compat::DMA_TO_DEVICE) }
}

/// Undoes [`map_run`].
///
/// # Safety
///
/// [`map_run`] must have returned `addr` for this device and a run of `len` bytes. They must still
/// be mapped, and their pages allocated.
pub(super) unsafe fn unmap_run(device: &Device, addr: u64, len: u32) {
    // SAFETY: `map_run` has mapped the bytes in this direction; the rest is this function's
    // contract.
    unsafe { unmap_bytes(device, addr, len, compat::DMA_TO_DEVICE) };
}

/// The flag bits in the `page_link` of a scatterlist entry: `SG_CHAIN` and `SG_END`.
const SG_MARKS: usize = 3;
/// The flag of the last entry.
const SG_END: usize = 2;

/// Returns the scatterlist entry of a run, for [`map_list`].
pub(super) fn describe(seg: &MemSeg<'_>) -> bindings::scatterlist {
    bindings::scatterlist {
        page_link: seg.page().as_ptr().expose_provenance() & !SG_MARKS,
        // CAST: The offset is less than a page, the length at most that of the longest run.
        offset: seg.offset() as u32,
        length: seg.len() as u32,
        ..Default::default()
    }
}

/// Maps a list of runs, which must not change until [`unmap_list`]. Returns the number of mapped
/// runs (see [`mapped_run`]). There are fewer than in `list` if an IOMMU joins some.
///
/// # Errors
///
/// `EINVAL` for an empty list; `ENOMEM` if there is no room in the IOMMU.
///
/// # Safety
///
/// Each entry must be what [`describe`] has returned for a run. The pages of the run must stay
/// allocated until it is unmapped.
#[inline(always)]
pub(super) unsafe fn map_list(
    device: &Device,
    list: &mut [bindings::scatterlist],
    direction: bindings::dma_data_direction,
) -> Result<usize> {
    match list {
        // SAFETY: The contract is the same.
        [run] => unsafe { map_alone(device, run, direction) },
        // SAFETY: The contract is the same.
        list => unsafe { map_several(device, list, direction) },
    }
}

/// Maps a list of several runs, some of which an IOMMU may join.
///
/// # Safety
///
/// As for [`map_list`].
unsafe fn map_several(
    device: &Device,
    list: &mut [bindings::scatterlist],
    direction: bindings::dma_data_direction,
) -> Result<usize> {
    let count = i32::try_from(list.len())?;
    // Without the flag C would continue with the entry after the last one.
    list.last_mut().ok_or(EINVAL)?.page_link |= SG_END;
    // SAFETY: The device is valid, and the list has `count` entries, each of which describes a run
    // of valid memory by this function's contract.
    let mapped = unsafe {
        if device.uses_virt_dma() {
            bindings::ib_dma_virt_map_sg(device.as_raw(), list.as_mut_ptr(), count)
        } else {
            let list = list.as_mut_ptr();
            bindings::rpcrdma_shim_ib_dma_map_sg(device.as_raw(), list, count, direction)
        }
    };
    match usize::try_from(mapped) {
        Ok(0) | Err(_) => Err(ENOMEM),
        Ok(mapped) => Ok(mapped),
    }
}

/// Maps a list of one run, which an IOMMU cannot join with another one.
///
/// # Safety
///
/// As for [`map_list`].
#[inline(always)]
unsafe fn map_alone(
    device: &Device,
    run: &mut bindings::scatterlist,
    direction: bindings::dma_data_direction,
) -> Result<usize> {
    let page = core::ptr::with_exposed_provenance_mut(run.page_link & !SG_MARKS);
    // SAFETY: The entry describes a run of valid memory by this function's contract.
    // CAST: `usize` has 64 bits.
    let addr = unsafe {
        map_bytes(
            device,
            page,
            run.offset as usize,
            run.length as usize,
            direction,
        )
    }?;
    run.page_link |= SG_END;
    run.dma_address = addr;
    #[cfg(CONFIG_NEED_SG_DMA_LENGTH)]
    {
        run.dma_length = run.length;
    }
    Ok(1)
}

/// Returns whether the entry is the last one of a list that [`map_list`] has mapped.
pub(super) fn ends_list(entry: &bindings::scatterlist) -> bool {
    entry.page_link & SG_END != 0
}

/// Undoes [`map_list`].
///
/// # Safety
///
/// [`map_list`] must have mapped exactly this list, for this device and direction. It must still be
/// mapped, and its pages allocated.
pub(super) unsafe fn unmap_list(
    device: &Device,
    list: &mut [bindings::scatterlist],
    direction: bindings::dma_data_direction,
) {
    if device.uses_virt_dma() {
        return;
    }
    if let [run] = list {
        // SAFETY: `map_list` maps a list of one run with `map_bytes`. The rest is this function's
        // contract.
        return unsafe { unmap_bytes(device, run.dma_address, run.length, direction) };
    }
    // SAFETY: The device is valid, and `map_list` has mapped this list, by this function's
    // contract.
    unsafe {
        bindings::rpcrdma_shim_ib_dma_unmap_sg(
            device.as_raw(),
            list.as_mut_ptr(),
            // CAST: `map_list` has checked that the length fits.
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
