// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Physically contiguous runs of bytes, the form in which devices get memory.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/asm-generic/memory_model.h`](srctree/include/asm-generic/memory_model.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

use crate::kapi::bindings;

// A 64-bit kernel maps all memory, so every page has an address.
const _: () = assert!(usize::BITS == 64);

/// The longest run, in pages. swiotlb, which copies memory that a device cannot reach, maps at most
/// 256 KiB at a time.
pub(crate) const MAX_RUN_PAGES: usize = (128 << 10) / PAGE_SIZE;

/// Returns the address of a page.
///
/// # Safety
///
/// `page` must be a valid page.
#[cfg(all(CONFIG_X86_64, CONFIG_SPARSEMEM_VMEMMAP))]
#[inline]
pub(in crate::kapi) unsafe fn page_address(page: *const bindings::page) -> *mut u8 {
    // SAFETY: Both variables are set at boot and constant afterwards.
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
/// `page` must be a valid page, and `next` one or null.
#[inline]
pub(in crate::kapi) unsafe fn is_next(
    page: *const bindings::page,
    next: *const bindings::page,
) -> bool {
    if !core::ptr::eq(page.wrapping_add(1), next) {
        return false;
    }
    // The end of a page's struct is no null pointer, so `next` is a page.
    // With a vmemmap all `struct page`s are in one array, in the order of their memory. Otherwise
    // there may be several arrays, so neighbours in an array are not necessarily neighbours in
    // memory, nor are neighbours in memory necessarily in one array. Callers need both.
    if cfg!(CONFIG_SPARSEMEM_VMEMMAP) {
        return true;
    }
    // SAFETY: The pages are valid by this function's contract.
    unsafe {
        bindings::rpcrdma_shim_page_to_pfn(page) + 1 == bindings::rpcrdma_shim_page_to_pfn(next)
    }
}

/// Returns the length of the run that starts at `offset` of the first page of an array: the number
/// of physically contiguous bytes, at most `max` and in at most [`MAX_RUN_PAGES`] pages.
///
/// # Safety
///
/// `offset` must be less than a page. `pages` must be an array that is long enough for `max` bytes
/// from `offset` on. Its elements must be valid pages or null, the first not null.
#[inline]
pub(in crate::kapi) unsafe fn measure(
    pages: *const *mut bindings::page,
    offset: usize,
    max: usize,
) -> usize {
    if max <= PAGE_SIZE - offset {
        return max;
    }
    let max = max.min(MAX_RUN_PAGES * PAGE_SIZE - offset);
    let entries = (offset + max).div_ceil(PAGE_SIZE);
    // SAFETY: The array has a first element by this function's contract.
    let mut last = unsafe { *pages };
    for at in 1..entries {
        // SAFETY: The array has `entries` elements by this function's contract.
        let next = unsafe { *pages.add(at) };
        // SAFETY: `last` is a page: the first one, or one that was found to follow a page. Each
        // other element is a valid page or null, by this function's contract.
        if !unsafe { is_next(last, next) } {
            return at * PAGE_SIZE - offset;
        }
        last = next;
    }
    max
}

/// A run of physically contiguous bytes, in one or more pages.
///
/// Code that gives the run to a device for longer than `'a` must keep the memory allocated until
/// the device has finished with it.
///
/// # Invariants
///
/// The `len` bytes from `offset` of `page` on are in contiguous pages, which are valid during `'a`.
/// `offset` is less than [`PAGE_SIZE`]; `len` is not zero; there are at most [`MAX_RUN_PAGES`]
/// pages.
#[derive(Clone, Copy)]
pub(crate) struct MemSeg<'a> {
    page: NonNull<bindings::page>,
    offset: u32,
    len: u32,
    _memory: PhantomData<&'a bindings::page>,
}

impl<'a> MemSeg<'a> {
    /// Creates the run of `len` bytes from `offset` of `page` on. Returns `None` if the run is
    /// empty, has too many pages, or does not begin in `page`.
    ///
    /// # Safety
    ///
    /// All pages of the run must be valid during `'a` and contiguous.
    #[inline]
    pub(in crate::kapi) unsafe fn from_page(
        page: NonNull<bindings::page>,
        offset: usize,
        len: usize,
    ) -> Option<Self> {
        match offset.checked_add(len) {
            Some(end) if len > 0 && offset < PAGE_SIZE && end <= MAX_RUN_PAGES * PAGE_SIZE => {
                Some(MemSeg {
                    // INVARIANT: The numbers were checked above. The pages are valid and contiguous
                    // by this function's contract.
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

    /// Creates the run of `len` bytes from `offset` of `page` on.
    ///
    /// # Safety
    ///
    /// All pages of the run must be valid during `'a` and contiguous, and at most
    /// [`MAX_RUN_PAGES`]. `offset` must be less than a page, and `len` not zero.
    #[inline]
    pub(in crate::kapi) unsafe fn measured(
        page: NonNull<bindings::page>,
        offset: usize,
        len: usize,
    ) -> Self {
        // INVARIANT: By this function's contract.
        // CAST: Both are at most the length of the longest run.
        MemSeg {
            page,
            offset: offset as u32,
            len: len as u32,
            _memory: PhantomData,
        }
    }

    /// Creates a run of the `len` bytes at `ptr`, or of as many as one run can have. Returns `None`
    /// if `len` is zero.
    ///
    /// # Safety
    ///
    /// The bytes must be valid during `'a` and in the kernel's linear mapping (from `kmalloc` or
    /// the page allocator, not `vmalloc` or a stack).
    pub(in crate::kapi) unsafe fn from_virt(ptr: *const u8, len: usize) -> Option<Self> {
        if len == 0 {
            // With no bytes, `ptr` need not be a valid address.
            return None;
        }
        let offset = ptr.addr() % PAGE_SIZE;
        // SAFETY: The address is in the linear mapping by this function's contract.
        let page = unsafe { bindings::rpcrdma_shim_virt_to_page(ptr.cast()) };
        let len = len.min(MAX_RUN_PAGES * PAGE_SIZE - offset);
        // SAFETY: The bytes are valid during `'a`, so their pages are. Bytes that are contiguous in
        // the linear mapping are physically contiguous.
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

    /// Returns the pages, in order.
    pub(in crate::kapi) fn pages(&self) -> impl Iterator<Item = NonNull<bindings::page>> + '_ {
        let (first, count) = (self.page, self.page_count());
        // SAFETY: By the type's invariant the pages are valid and contiguous, so their `struct
        // page`s follow each other, see `is_next`.
        (0..count).map(move |i| unsafe { first.add(i) })
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(in crate::kapi) fn address(&self) -> *mut u8 {
        // SAFETY: The page is valid by the type's invariant.
        let base = unsafe { page_address(self.page.as_ptr()) };
        base.wrapping_add(self.offset())
    }

    /// Splits the run after its first `pages` pages, at least one. Returns both parts; the second
    /// is `None` if the run does not have more pages.
    #[inline]
    fn split(self, pages: usize) -> (Self, Option<Self>) {
        let max = (pages.max(1) * PAGE_SIZE).saturating_sub(self.offset());
        if self.len() <= max {
            return (self, None);
        }
        // SAFETY: The run has more pages, so this one is valid; see `pages`.
        let page = unsafe { self.page.add(pages.max(1)) };
        // INVARIANT: Both are parts of this run. The second starts at the beginning of a page.
        // CAST: `max` is less than `self.len`.
        let first = MemSeg {
            len: max as u32,
            ..self
        };
        let rest = MemSeg {
            page,
            offset: 0,
            len: self.len - max as u32,
            ..self
        };
        (first, Some(rest))
    }
}

/// The longest copy in bytes that is made word by word, because a string instruction takes long to
/// start.
const SHORT: usize = 512;

/// Copies `len` bytes.
///
/// # Safety
///
/// `src` must be valid for reads and `dst` for writes of `len` bytes. They must not overlap.
#[inline(never)]
pub(in crate::kapi) unsafe fn copy_bytes(src: *const u8, dst: *mut u8, len: usize) {
    if len > SHORT {
        // SAFETY: Both are valid for `len` bytes and do not overlap, by this function's contract.
        return unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
    }
    let mut at = 0;
    // Copies words of type `$word` while at least one is left.
    macro_rules! step {
        ($word:ty) => {
            if let Some(last) = len.checked_sub(size_of::<$word>()) {
                while at <= last {
                    // SAFETY: At least one word is left of the bytes that are valid by this
                    // function's contract.
                    unsafe { copy_word::<$word>(src, dst, at) };
                    at = hide(at + size_of::<$word>());
                }
            }
        };
    }
    step!([u64; 4]);
    if let Some(last) = len.checked_sub(size_of::<[u64; 4]>()) {
        if at != len {
            // SAFETY: The last words are bytes that are valid by this function's contract. Some of
            // them are copied again.
            unsafe { copy_word::<[u64; 4]>(src, dst, last) };
        }
        return;
    }
    step!(u64);
    match len - at {
        0 => (),
        // SAFETY: The last word consists of bytes that are valid by this function's contract. Some
        // of them are copied again.
        _ if len >= size_of::<u64>() => unsafe {
            copy_word::<u64>(src, dst, len - size_of::<u64>())
        },
        _ => step!(u8),
    }
}

/// Copies the word of type `T` at byte `at`.
///
/// # Safety
///
/// `src` must be valid for reads and `dst` for writes of the word. They must not overlap.
#[inline(always)]
unsafe fn copy_word<T: Copy>(src: *const u8, dst: *mut u8, at: usize) {
    // SAFETY: The word is valid by this function's contract.
    unsafe {
        let word = src.byte_add(at).cast::<T>().read_unaligned();
        dst.byte_add(at).cast::<T>().write_unaligned(word);
    }
}

/// Returns `value`, and hides it from the compiler, as `OPTIMIZER_HIDE_VAR` does in C. The compiler
/// would otherwise unroll the loops of [`copy_bytes`], or turn them into string instructions.
#[inline(always)]
fn hide(mut value: usize) -> usize {
    // SAFETY: No instruction is executed.
    unsafe {
        core::arch::asm!(
            "/* {0} */",
            inout(reg) value,
            options(pure, nomem, nostack, preserves_flags),
        )
    };
    value
}

/// Copies `src` to `dst`. If their lengths differ, copies as many bytes as the shorter one has.
#[inline]
pub(in crate::kapi) fn copy(dst: &mut [u8], src: &[u8]) {
    let len = dst.len().min(src.len());
    // SAFETY: Both have `len` bytes, and a mutable reference does not overlap with another one.
    unsafe { copy_bytes(src.as_ptr(), dst.as_mut_ptr(), len) };
}

/// Copies `src` to the start of a run.
///
/// # Safety
///
/// The run must have at least as many bytes as `src`. No Rust reference to these bytes may exist.
#[inline]
pub(in crate::kapi) unsafe fn copy_to_page(run: &MemSeg<'_>, src: &[u8]) {
    // SAFETY: The run's bytes are valid by its invariants. By this function's contract there are
    // enough of them, and `src`, a reference, does not overlap them.
    unsafe { copy_bytes(src.as_ptr(), run.address(), src.len()) };
    #[cfg(not(CONFIG_X86_64))]
    for page in run.pages() {
        // SAFETY: The page is valid by the invariants of the run.
        unsafe { bindings::rpcrdma_shim_flush_dcache_page(page.as_ptr()) };
    }
}

/// Copies the start of a run to `dst`.
///
/// # Safety
///
/// The run must have at least as many bytes as `dst`, which must not overlap them.
#[inline]
pub(in crate::kapi) unsafe fn copy_from_page(run: &MemSeg<'_>, dst: &mut [u8]) {
    // SAFETY: The run's bytes are valid by its invariants. By this function's contract there are
    // enough of them, and `dst` does not overlap them.
    unsafe { copy_bytes(run.address(), dst.as_mut_ptr(), dst.len()) };
}

/// Runs that are consumed in parts, from the front.
pub(crate) struct MemSegs<'a, I> {
    front: Option<MemSeg<'a>>,
    rest: I,
}

impl<'a, I: Iterator<Item = MemSeg<'a>>> MemSegs<'a, I> {
    /// Wraps an iterator of runs.
    #[inline]
    pub(crate) fn new(mut runs: I) -> Self {
        MemSegs {
            front: runs.next(),
            rest: runs,
        }
    }

    /// Returns the next run, or what is left of it.
    #[inline]
    pub(crate) fn front(&self) -> Option<&MemSeg<'a>> {
        self.front.as_ref()
    }

    /// Removes the first `pages` pages of the next run, at least one, or all if it has fewer, and
    /// returns them.
    #[inline(always)]
    pub(crate) fn take(&mut self, pages: usize) -> Option<MemSeg<'a>> {
        let run = self.front?;
        if run.page_count() <= pages {
            self.front = self.rest.next();
            return Some(run);
        }
        let (first, rest) = run.split(pages);
        self.front = rest.or_else(|| self.rest.next());
        Some(first)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
