// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Owned arrays of pages: the form in which sunrpc passes pages, and in which a device reads and
//! writes them.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

use super::{
    super::{
        bindings,
        compat::smp_mb, //
    },
    memory::{
        copy_bytes,
        copy_from_page,
        copy_to_page,
        measure,
        MemSeg, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ops::Range,
    ptr::NonNull, //
};
use kernel::{
    alloc::{
        flags::__GFP_NOWARN,
        Flags, //
    },
    ffi,
    page::PAGE_SIZE,
    prelude::*, //
};

/// Up to this number, references are dropped one by one: a batch pays off only for more.
const FEW: usize = 8;

/// An array that owns one reference to each of its pages.
///
/// A page may also be in the page cache or mapped by a process. So its bytes are never borrowed as
/// a Rust slice; they are copied in and out.
///
/// # Invariants
///
/// The array owns one reference to each page.
pub(crate) struct PageVec {
    /// Dropped by hand, and only if it has capacity: dropping an empty vector calls the allocator
    /// as well.
    pages: ManuallyDrop<KVec<NonNull<bindings::page>>>,
}

// SAFETY: A page has no affinity to a thread.
unsafe impl Send for PageVec {}

// SAFETY: Shared access only reads the array.
unsafe impl Sync for PageVec {}

impl Default for PageVec {
    fn default() -> Self {
        Self::new()
    }
}

impl PageVec {
    /// Creates an empty array without capacity.
    pub(crate) const fn new() -> Self {
        PageVec {
            pages: ManuallyDrop::new(KVec::new()),
        }
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns the number of pages that the array can hold without an allocation.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.pages.capacity()
    }

    /// Allocates room for `capacity` pages in all, so that adding them does not allocate.
    #[inline]
    pub(crate) fn reserve(&mut self, capacity: usize, flags: Flags) -> Result {
        if capacity > self.pages.capacity() {
            let more = capacity.saturating_sub(self.pages.len());
            self.pages.reserve(more, flags)?;
        }
        Ok(())
    }

    /// Allocates room for `more` pages behind those in the array.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, more: usize, flags: Flags) -> Result {
        Ok(self.pages.reserve(more, flags)?)
    }

    /// Drops the references to all pages but the first `len`.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        if self.pages.len() > len {
            self.give_back(len);
        }
    }

    fn give_back(&mut self, len: usize) {
        let excess = self.pages.as_mut_slice().get_mut(len..).unwrap_or_default();
        if excess.len() <= FEW {
            for page in excess {
                // SAFETY: By the type invariants the array owns a reference to the page, which is
                // forgotten below.
                unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
            }
        } else {
            // SAFETY: By the type invariants the array owns a reference to each of these pages,
            // which are forgotten below. `NonNull<T>` has the layout of `*mut T`. There are
            // fewer than `i32::MAX` of them, as the array holds 8 bytes for each.
            unsafe {
                bindings::rpcrdma_shim_release_pages(
                    excess.as_mut_ptr().cast(),
                    excess.len() as ffi::c_int,
                )
            };
        }
        self.pages.truncate(len);
    }

    /// Returns whether nobody else has a reference to any of the pages, so that they may be
    /// overwritten.
    pub(crate) fn are_unshared(&self) -> bool {
        // SAFETY: The array's reference keeps the page valid.
        let unshared = |page: &NonNull<_>| unsafe { references(*page) } == 1;
        let all = self.pages.iter().all(unshared);
        // Pairs with the release by the last other user when it dropped its reference.
        smp_mb();
        all
    }

    /// Moves the last `count` pages of `from`, or all if it has fewer, to the end of this array.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory; no page is moved then.
    pub(crate) fn take_from(&mut self, from: &mut PageVec, count: usize, flags: Flags) -> Result {
        let at = from.len().saturating_sub(count);
        let moving = from.pages.get(at..).unwrap_or_default();
        let room = self.pages.capacity().saturating_sub(self.pages.len());
        if room < moving.len() {
            self.grow(moving.len(), flags)?;
        }
        // SAFETY: There is room for the entries, which are initialised before they count. The
        // arrays do not overlap, as both are borrowed mutably.
        unsafe {
            let end = self.pages.as_mut_ptr().add(self.pages.len());
            copy_bytes(moving.as_ptr().cast(), end.cast(), size_of_val(moving));
            self.pages.inc_len(moving.len());
        }
        // INVARIANT: This array owns the references to these pages now.
        from.pages.truncate(at);
        Ok(())
    }

    /// Returns the physically contiguous runs that contain the octets `range`, in order.
    ///
    /// Octet 0 is the first of the first page. The iterator ends early if the array has fewer
    /// octets.
    #[inline]
    pub(crate) fn runs(&self, range: Range<usize>) -> Runs<'_> {
        Runs {
            pages: &self.pages,
            at: range.start,
            end: range.end.min(self.pages.len() * PAGE_SIZE),
        }
    }

    /// Returns the octets `range` as a run, if the array has them and they are one.
    #[inline]
    pub(crate) fn whole_run(&self, range: Range<usize>) -> Option<MemSeg<'_>> {
        let (index, offset) = (range.start / PAGE_SIZE, range.start % PAGE_SIZE);
        let len = range.end.checked_sub(range.start)?;
        let page = *self.pages.get(index)?;
        if len == 0 || range.end.div_ceil(PAGE_SIZE) > self.pages.len() {
            return None;
        }
        // SAFETY: The array has valid pages for all of these octets. `NonNull<T>` has the layout of
        // `*mut T`.
        let run = unsafe { measure(self.pages.as_ptr().add(index).cast(), offset, len) };
        // SAFETY: `measure` has found that all of them, at least one, are contiguous, and the array
        // owns their pages.
        (run == len).then(|| unsafe { MemSeg::measured(page, offset, len) })
    }

    /// Copies `src` to the octets of the pages that start at `at`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the pages end before that; nothing is copied then.
    pub(crate) fn copy_in(&mut self, at: usize, src: &[u8]) -> Result {
        let mut rest = src;
        for run in self.runs(self.checked(at, src.len())?) {
            let (now, later) = rest.split_at_checked(run.len()).ok_or(EINVAL)?;
            // SAFETY: The array owns the pages, and the run has that many bytes. `src` does not
            // overlap them: no Rust reference to bytes of an array's pages exists.
            unsafe { copy_to_page(&run, now) };
            rest = later;
        }
        Ok(())
    }

    /// Copies the octets of the pages that start at `at` to `dst`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the pages end before `dst` is full; nothing is copied then.
    pub(crate) fn copy_out(&self, at: usize, dst: &mut [u8]) -> Result {
        let mut rest = &mut dst[..];
        for run in self.runs(self.checked(at, rest.len())?) {
            let (now, later) = rest.split_at_mut_checked(run.len()).ok_or(EINVAL)?;
            // SAFETY: The array owns the pages, and the run has that many bytes. `dst` does not
            // overlap them: no Rust reference to bytes of an array's pages exists.
            unsafe { copy_from_page(&run, now) };
            rest = later;
        }
        Ok(())
    }

    /// Returns the range of the `len` octets that start at `at`, or `EINVAL` if the pages end
    /// before that.
    fn checked(&self, at: usize, len: usize) -> Result<Range<usize>> {
        match at.checked_add(len) {
            Some(end) if end <= self.pages.len() * PAGE_SIZE => Ok(at..end),
            _ => Err(EINVAL),
        }
    }

    /// Returns the pages, so that the caller can replace them.
    ///
    /// # Safety
    ///
    /// A caller that replaces a page takes over the array's reference to the old page, and must own
    /// a reference to the new page, which becomes the array's.
    pub(in crate::kapi) unsafe fn as_mut_slice(&mut self) -> &mut [NonNull<bindings::page>] {
        &mut self.pages
    }

    /// Appends a page. Does not allocate, see [`Self::reserve`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the capacity is used up; the caller still owns the reference then.
    ///
    /// # Safety
    ///
    /// The caller must own a reference to the page. Unless an error is returned, the array owns it
    /// afterwards.
    pub(in crate::kapi) unsafe fn push(&mut self, page: NonNull<bindings::page>) -> Result {
        // INVARIANT: The array owns the caller's reference from here on.
        self.pages.push_within_capacity(page).map_err(|_| ENOMEM)
    }

    /// Appends another reference to each of the pages up to the first null pointer, as long as
    /// there is capacity.
    ///
    /// # Safety
    ///
    /// Each element must be a valid page or null.
    #[inline]
    pub(in crate::kapi) unsafe fn share(&mut self, pages: &[*mut bindings::page]) {
        let room = self.pages.capacity().saturating_sub(self.pages.len());
        // SAFETY: The length is at most the capacity.
        let end = unsafe { self.pages.as_mut_ptr().add(self.pages.len()) };
        let mut count = 0;
        for page in pages.iter().take(room) {
            let Some(page) = NonNull::new(*page) else {
                break;
            };
            // SAFETY: The page is valid by this function's contract. There is room for it.
            unsafe {
                bindings::rpcrdma_shim_get_page(page.as_ptr());
                end.add(count).write(page);
            }
            count += 1;
        }
        // INVARIANT: The array owns the references that were taken above.
        // SAFETY: These elements were initialised above.
        unsafe { self.pages.inc_len(count) };
    }
}

/// Returns the number of references to a page.
///
/// # Safety
///
/// The page must be valid.
#[inline]
pub(in crate::kapi) unsafe fn references(page: NonNull<bindings::page>) -> i32 {
    // SAFETY: The page is valid by this function's contract, and its reference count is only
    // accessed atomically.
    unsafe { (&raw const (*page.as_ptr())._refcount.counter).read_volatile() }
}

/// Moves the pages without another reference to the end of the array. Returns their number.
#[cold]
fn move_unshared(all: &mut [NonNull<bindings::page>]) -> usize {
    let mut first = all.len();
    for at in (0..all.len()).rev() {
        // SAFETY: The array's reference keeps the page valid.
        if unsafe { references(all[at]) } == 1 {
            first -= 1;
            all.swap(first, at);
        }
    }
    all.len() - first
}

impl Drop for PageVec {
    #[inline]
    fn drop(&mut self) {
        self.truncate(0);
        if self.capacity() != 0 {
            // SAFETY: `pages` is dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// Pages without another user, which may be overwritten.
///
/// # Invariants
///
/// The array owns a reference to each page. Nobody else accesses the bytes of the pages.
#[derive(Default)]
pub(crate) struct SparePages(PageVec);

impl SparePages {
    /// Creates an empty array without capacity.
    pub(crate) const fn new() -> Self {
        // INVARIANT: The array has no page.
        SparePages(PageVec::new())
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Moves at most `count` of the last pages of `pages` to this array. Does not sleep.
    ///
    /// `pages` keeps the pages that have another reference, those that exceed `count`, and all of
    /// them if the array cannot grow. The caller should release these.
    pub(crate) fn put(&mut self, pages: &mut PageVec, count: usize) {
        let all = pages.pages.as_mut_slice();
        // SAFETY: The array's reference keeps the page valid.
        let unshared = |page: &NonNull<_>| unsafe { references(*page) } == 1;
        let kept = if all.iter().all(unshared) {
            all.len()
        } else {
            move_unshared(all)
        };
        // Pairs with the release by the last other user when it dropped its reference.
        smp_mb();
        // INVARIANT: The last `kept` pages had no other reference, so they have no other user. A
        // walker by page number, such as compaction, may take a reference for a moment, but does
        // not access the bytes. If there is no room, no page is moved.
        let _ = self
            .0
            .take_from(pages, kept.min(count), GFP_NOWAIT | __GFP_NOWARN);
    }

    /// Moves pages to `sink` until that has `count` pages, or this array is empty.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the capacity of `sink` is used up, see [`PageVec::reserve`].
    pub(crate) fn fill(&mut self, sink: &mut PageVec, count: usize) -> Result {
        let wanted = count.saturating_sub(sink.len());
        if sink.pages.capacity() < count {
            return Err(ENOMEM);
        }
        sink.take_from(&mut self.0, wanted, GFP_NOWAIT | __GFP_NOWARN)
    }

    /// Removes the last page and returns it. The caller owns the reference to it.
    pub(in crate::kapi) fn pop(&mut self) -> Option<NonNull<bindings::page>> {
        self.0.pages.pop()
    }

    /// Removes the last `count` pages and returns them, if another array can be allocated. Does not
    /// sleep.
    pub(crate) fn split_off(&mut self, count: usize) -> SparePages {
        let mut rest = PageVec::new();
        // INVARIANT: These pages come from this array, so they have no other user.
        let _ = rest.take_from(&mut self.0, count, GFP_NOWAIT | __GFP_NOWARN);
        SparePages(rest)
    }
}

/// Iterator over the runs of some octets, see [`PageVec::runs`].
///
/// # Invariants
///
/// The pages are valid during `'a` and have at least `end` octets.
#[derive(Clone)]
pub(crate) struct Runs<'a> {
    pages: &'a [NonNull<bindings::page>],
    at: usize,
    end: usize,
}

impl<'a> Iterator for Runs<'a> {
    type Item = MemSeg<'a>;

    #[inline]
    fn next(&mut self) -> Option<MemSeg<'a>> {
        let left = self.end.checked_sub(self.at).filter(|left| *left > 0)?;
        let (index, offset) = (self.at / PAGE_SIZE, self.at % PAGE_SIZE);
        let pages = self.pages.get(index..)?;
        // SAFETY: By the type's invariant the pages are valid and have all the octets that are
        // left. `NonNull<T>` has the layout of `*mut T`.
        let len = unsafe { measure(pages.as_ptr().cast(), offset, left) };
        self.at += len;
        // SAFETY: `measure` has found that many contiguous bytes, at least one as there are some
        // left, and the array owns their pages.
        Some(unsafe { MemSeg::measured(*pages.first()?, offset, len) })
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
