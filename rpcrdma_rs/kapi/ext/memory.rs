// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Physically contiguous runs of bytes, as a device is given them.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/asm-generic/memory_model.h`](srctree/include/asm-generic/memory_model.h)

use core::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{
        compiler_fence,
        Ordering, //
    }, //
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

use crate::kapi::bindings;

// All memory is mapped by the kernel, so that every page has an address.
const _: () = assert!(usize::BITS == 64);

/// The longest run, in pages: where devices are given copies (by swiotlb), these have a limit of
/// 256 KiB.
pub(crate) const MAX_RUN_PAGES: usize = (128 << 10) / PAGE_SIZE;

/// Returns the address of a page.
///
/// # Safety
///
/// `page` must be a valid page.
#[cfg(all(CONFIG_X86_64, CONFIG_SPARSEMEM_VMEMMAP))]
#[inline]
pub(in crate::kapi) unsafe fn page_address(page: *const bindings::page) -> *mut u8 {
    // SAFETY: Both are set at boot and constant afterwards.
    let (pages, memory) = unsafe { (bindings::vmemmap_base, bindings::page_offset_base) };
    let number = page.addr().wrapping_sub(pages) / size_of::<bindings::page>();
    core::ptr::with_exposed_provenance_mut(memory.wrapping_add(number * PAGE_SIZE))
}

/// Returns the address of a page.
///
/// # Safety
///
/// `page` must be a valid page.
#[cfg(not(all(CONFIG_X86_64, CONFIG_SPARSEMEM_VMEMMAP)))]
#[inline]
pub(in crate::kapi) unsafe fn page_address(page: *const bindings::page) -> *mut u8 {
    // SAFETY: The page is valid by this function's contract.
    unsafe { bindings::rpcrdma_shim_page_address(page) }.cast()
}

/// Returns whether the memory of `next` follows that of `page`.
///
/// # Safety
///
/// Both must be valid pages.
#[cfg(CONFIG_SPARSEMEM_VMEMMAP)]
#[inline]
pub(in crate::kapi) unsafe fn is_next(
    page: *const bindings::page,
    next: *const bindings::page,
) -> bool {
    // All `struct page`s are in one array, in the order of their memory.
    core::ptr::eq(page.wrapping_add(1), next)
}

/// Returns whether the memory of `next` follows that of `page`.
///
/// # Safety
///
/// Both must be valid pages.
#[cfg(not(CONFIG_SPARSEMEM_VMEMMAP))]
#[inline]
pub(in crate::kapi) unsafe fn is_next(
    page: *const bindings::page,
    next: *const bindings::page,
) -> bool {
    // Their `struct page`s must follow each other as well: there may be several arrays of them.
    // SAFETY: The pages are valid by this function's contract.
    core::ptr::eq(page.wrapping_add(1), next)
        && unsafe {
            bindings::rpcrdma_shim_page_to_pfn(page) + 1 == bindings::rpcrdma_shim_page_to_pfn(next)
        }
}

/// Measures a run in an array of pages: the bytes from `offset` of the first page on, at most
/// `max`, that are physically contiguous, in at most [`MAX_RUN_PAGES`] pages.
///
/// # Safety
///
/// `pages` must be an array with a valid page, or null, for each of `max` bytes from `offset` of
/// its first page on, and that first page must not be null. `offset` must be less than a page.
#[inline]
pub(in crate::kapi) unsafe fn measure(
    pages: *const *mut bindings::page,
    offset: usize,
    max: usize,
) -> usize {
    let max = max.min(MAX_RUN_PAGES * PAGE_SIZE - offset);
    let mut len = PAGE_SIZE - offset;
    let mut at = pages;
    while len < max {
        // SAFETY: There are more bytes, so the array continues; both pages are valid, or the second
        // is null, which is no page's successor.
        unsafe {
            let next = at.add(1);
            if (*next).is_null() || !is_next(*at, *next) {
                break;
            }
            at = next;
        }
        len += PAGE_SIZE;
    }
    len.min(max)
}

/// A run of physically contiguous bytes, in one page or several.
///
/// Whoever puts it into something that outlives `'a` must keep the bytes where they are until the
/// device is done with that.
///
/// # Invariants
///
/// The bytes from `offset` of `page` on are `len` bytes of valid pages during `'a`, next to each
/// other. `offset` is less than [`PAGE_SIZE`]; `len` is not zero; there are at most
/// [`MAX_RUN_PAGES`] pages.
#[derive(Clone, Copy)]
pub(crate) struct MemSeg<'a> {
    page: NonNull<bindings::page>,
    offset: u32,
    len: u32,
    _memory: PhantomData<&'a bindings::page>,
}

impl<'a> MemSeg<'a> {
    /// Describes `len` bytes from `offset` of `page` on; `None` if they do not begin in this page,
    /// there are none, or they are in too many pages.
    ///
    /// # Safety
    ///
    /// All pages that the bytes are in must be valid during `'a`, and next to each other.
    #[inline]
    pub(in crate::kapi) unsafe fn from_page(
        page: NonNull<bindings::page>,
        offset: usize,
        len: usize,
    ) -> Option<Self> {
        match offset.checked_add(len) {
            Some(end) if len > 0 && offset < PAGE_SIZE && end <= MAX_RUN_PAGES * PAGE_SIZE => {
                Some(MemSeg {
                    // INVARIANT: Checked above, or promised by the caller.
                    page,
                    // CAST: Both are at most the length of the longest run.
                    offset: offset as u32,
                    len: len as u32,
                    _memory: PhantomData,
                })
            }
            _ => None,
        }
    }

    /// Describes as many of the `len` bytes at `ptr` as one run may have; `None` if there are
    /// none.
    ///
    /// # Safety
    ///
    /// The bytes must be valid during `'a` and lie in the kernel's linear mapping (`kmalloc`
    /// or pages, not `vmalloc` or a stack).
    pub(in crate::kapi) unsafe fn from_virt(ptr: *const u8, len: usize) -> Option<Self> {
        let offset = ptr.addr() % PAGE_SIZE;
        // SAFETY: The address is in the linear mapping by this function's contract.
        let page = unsafe { bindings::rpcrdma_shim_virt_to_page(ptr.cast()) };
        let len = len.min(MAX_RUN_PAGES * PAGE_SIZE - offset);
        // SAFETY: The pages hold bytes that are valid during `'a`; what is contiguous in the
        // linear mapping is contiguous in memory.
        unsafe { Self::from_page(NonNull::new(page)?, offset, len) }
    }

    /// Returns the number of bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // CAST: `usize` has 64 bits.
        self.len as usize
    }

    /// Returns the offset of the first byte in its page.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        // CAST: `usize` has 64 bits.
        self.offset as usize
    }

    /// Returns the number of pages.
    #[inline]
    pub(crate) fn page_count(&self) -> usize {
        (self.offset() + self.len()).div_ceil(PAGE_SIZE)
    }

    /// Returns whether the run ends where its last page ends.
    #[inline]
    pub(crate) fn ends_page(&self) -> bool {
        (self.offset() + self.len()) % PAGE_SIZE == 0
    }

    /// Returns the first page.
    #[inline]
    pub(in crate::kapi) fn page(&self) -> NonNull<bindings::page> {
        self.page
    }

    /// Every page.
    pub(in crate::kapi) fn pages(&self) -> impl Iterator<Item = NonNull<bindings::page>> + '_ {
        let (first, count) = (self.page, self.page_count());
        // SAFETY: By the type's invariant these are valid pages, next to each other, and `struct
        // page`s of contiguous memory are as well.
        (0..count).map(move |i| unsafe { first.add(i) })
    }

    /// Returns the address of the first byte. The others follow.
    #[inline]
    pub(in crate::kapi) fn address(&self) -> *mut u8 {
        // SAFETY: The page is valid by the type's invariant.
        let base = unsafe { page_address(self.page.as_ptr()) };
        base.wrapping_add(self.offset())
    }

    /// Splits what is in the first `pages` pages off; the rest, if there is any, comes second.
    #[inline]
    fn split(self, pages: usize) -> (Self, Option<Self>) {
        let most = (pages.max(1) * PAGE_SIZE).saturating_sub(self.offset());
        if self.len() <= most {
            return (self, None);
        }
        // SAFETY: More pages follow, so this one is valid; see `pages`.
        let page = unsafe { self.page.add(pages.max(1)) };
        // INVARIANT: Parts of a run, the second from the beginning of a page on.
        // CAST: Parts of what fits.
        let first = MemSeg {
            len: most as u32,
            ..self
        };
        let rest = MemSeg {
            page,
            offset: 0,
            len: self.len - most as u32,
            ..self
        };
        (first, Some(rest))
    }
}

/// The longest copy that is made word by word: a string instruction takes long to start.
const SHORT: usize = 512;

/// Copies `len` bytes.
///
/// # Safety
///
/// `src` must be valid to be read and `dst` to be written for as many bytes, without overlap.
#[inline(never)]
pub(in crate::kapi) unsafe fn copy_bytes(src: *const u8, dst: *mut u8, len: usize) {
    if len > SHORT {
        // SAFETY: By this function's contract.
        return unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
    }
    let (mut src, mut dst, mut left) = (src, dst, len);
    // Copies the next `$word`s; without the fence the loop would become the string instruction.
    macro_rules! step {
        ($word:ty) => {
            while left >= size_of::<$word>() {
                // SAFETY: There are so many bytes left by this function's contract.
                unsafe {
                    let word = src.cast::<$word>().read_unaligned();
                    dst.cast::<$word>().write_unaligned(word);
                    src = src.byte_add(size_of::<$word>());
                    dst = dst.byte_add(size_of::<$word>());
                }
                left -= size_of::<$word>();
                compiler_fence(Ordering::AcqRel);
            }
        };
    }
    step!([u64; 4]);
    step!(u64);
    step!(u8);
}

/// Copies `src` to `dst`, which is as long; as much as there is of both.
#[inline]
pub(in crate::kapi) fn copy(dst: &mut [u8], src: &[u8]) {
    let len = dst.len().min(src.len());
    // SAFETY: Both have so many bytes, and a mutable reference overlaps with no other.
    unsafe { copy_bytes(src.as_ptr(), dst.as_mut_ptr(), len) };
}

/// Copies `src` to the front of a run.
///
/// # Safety
///
/// The run must have as many bytes, which nobody has a reference to; `src` must not overlap them.
#[inline]
pub(in crate::kapi) unsafe fn copy_to_page(run: &MemSeg<'_>, src: &[u8]) {
    // SAFETY: The run's bytes are valid by its invariants, and as many by this function's
    // contract, by which there is no overlap either.
    unsafe { copy_bytes(src.as_ptr(), run.address(), src.len()) };
    #[cfg(not(CONFIG_X86_64))]
    for page in run.pages() {
        // SAFETY: The page is valid by the invariants of the run.
        unsafe { bindings::rpcrdma_shim_flush_dcache_page(page.as_ptr()) };
    }
}

/// Copies the front of a run to `dst`.
///
/// # Safety
///
/// The run must have as many bytes; `dst` must not overlap them.
#[inline]
pub(in crate::kapi) unsafe fn copy_from_page(run: &MemSeg<'_>, dst: &mut [u8]) {
    // SAFETY: The run's bytes are valid by its invariants, and as many by this function's
    // contract, by which there is no overlap either.
    unsafe { copy_bytes(run.address(), dst.as_mut_ptr(), dst.len()) };
}

/// Runs that are taken in parts, from the front.
pub(crate) struct MemSegs<'a, I> {
    front: Option<MemSeg<'a>>,
    rest: I,
}

impl<'a, I: Iterator<Item = MemSeg<'a>>> MemSegs<'a, I> {
    /// Takes from `runs`.
    pub(crate) fn new(runs: I) -> Self {
        MemSegs {
            front: None,
            rest: runs,
        }
    }

    /// The next run, or what is left of it.
    #[inline]
    pub(crate) fn front(&mut self) -> Option<&MemSeg<'a>> {
        if self.front.is_none() {
            self.front = self.rest.next();
        }
        self.front.as_ref()
    }

    /// Takes the first part of the next run, at most `pages` pages, at least one.
    #[inline]
    pub(crate) fn take(&mut self, pages: usize) -> Option<MemSeg<'a>> {
        self.front()?;
        let (first, rest) = self.front.take()?.split(pages);
        self.front = rest;
        Some(first)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
