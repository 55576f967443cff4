// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Owned arrays of pages, as sunrpc hands them out and a device reads and writes them.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

use super::{
    super::{
        bindings,
        compat::smp_mb, //
    },
    memory::{
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

/// Up to so many references are given back one by one: it is for more that a batch pays.
const FEW: usize = 8;

/// An array that owns one reference to each of its pages.
///
/// A page may at the same time be in the page cache or mapped by a process, so its bytes are
/// never handed out as a Rust slice: they are copied in and out.
///
/// # Invariants
///
/// The array owns one reference to each page.
pub(crate) struct PageVec {
    /// Dropped with the array, unless it is without room: the kernel's allocator is called even
    /// for that.
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
    /// An empty array without room.
    pub(crate) const fn new() -> Self {
        PageVec {
            pages: ManuallyDrop::new(KVec::new()),
        }
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns how many pages there is room for.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.pages.capacity()
    }

    /// Makes room for `capacity` pages in all, so that adding them allocates nothing.
    #[inline]
    pub(crate) fn reserve(&mut self, capacity: usize, flags: Flags) -> Result {
        if capacity > self.pages.capacity() {
            let more = capacity.saturating_sub(self.pages.len());
            self.pages.reserve(more, flags)?;
        }
        Ok(())
    }

    /// Gives all pages but the first `len` back.
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

    /// Moves the last `count` pages of `from`, or all if it has fewer, to the end of this array.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: no page has moved.
    pub(crate) fn take_from(&mut self, from: &mut PageVec, count: usize, flags: Flags) -> Result {
        let at = from.len().saturating_sub(count);
        let moving = from.pages.get(at..).unwrap_or_default();
        self.pages.reserve(moving.len(), flags)?;
        for page in moving {
            // There is room.
            let _ = self.pages.push_within_capacity(*page);
        }
        // INVARIANT: The references of these pages are the other array's now.
        from.pages.truncate(at);
        Ok(())
    }

    /// Returns the physically contiguous runs that the octets `range` are in, in order; ends early
    /// where the pages do. The first page has the first [`PAGE_SIZE`] octets, and so on.
    #[inline]
    pub(crate) fn runs(&self, range: Range<usize>) -> Runs<'_> {
        Runs {
            pages: &self.pages,
            at: range.start,
            end: range.end.min(self.pages.len() * PAGE_SIZE),
        }
    }

    /// Copies `src` into the pages, from octet `at` on.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are not as many pages; nothing is copied then.
    pub(crate) fn copy_in(&mut self, at: usize, src: &[u8]) -> Result {
        let mut rest = src;
        for run in self.runs(self.checked(at, src.len())?) {
            let (now, later) = rest.split_at_checked(run.len()).ok_or(EINVAL)?;
            // SAFETY: The pages are ours and the run has that many bytes; `src` is not in pages of
            // an array, which nobody has a reference to.
            unsafe { copy_to_page(&run, now) };
            rest = later;
        }
        Ok(())
    }

    /// Copies the octets from `at` on to `dst`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are not as many pages; nothing is copied then.
    pub(crate) fn copy_out(&self, at: usize, dst: &mut [u8]) -> Result {
        let mut rest = &mut dst[..];
        for run in self.runs(self.checked(at, rest.len())?) {
            let (now, later) = rest.split_at_mut_checked(run.len()).ok_or(EINVAL)?;
            // SAFETY: The pages are ours and the run has that many bytes; `dst` is not in pages of
            // an array, which nobody has a reference to.
            unsafe { copy_from_page(&run, now) };
            rest = later;
        }
        Ok(())
    }

    /// Returns the octets from `at` on, if there are `len`.
    fn checked(&self, at: usize, len: usize) -> Result<Range<usize>> {
        match at.checked_add(len) {
            Some(end) if end <= self.pages.len() * PAGE_SIZE => Ok(at..end),
            _ => Err(EINVAL),
        }
    }

    /// Returns the pages, for exchange with others.
    ///
    /// # Safety
    ///
    /// Whoever replaces a page takes over the array's reference to it and leaves one to the
    /// new page.
    pub(in crate::kapi) unsafe fn as_mut_slice(&mut self) -> &mut [NonNull<bindings::page>] {
        &mut self.pages
    }

    /// Adds a page.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no room, see [`Self::reserve`]; the reference stays the caller's.
    ///
    /// # Safety
    ///
    /// The caller owns a reference to the page and, unless there is an error, gives it up.
    pub(in crate::kapi) unsafe fn push(&mut self, page: NonNull<bindings::page>) -> Result {
        // INVARIANT: The reference is the array's from now on.
        self.pages.push_within_capacity(page).map_err(|_| ENOMEM)
    }
}

impl Drop for PageVec {
    #[inline]
    fn drop(&mut self) {
        self.truncate(0);
        if self.capacity() != 0 {
            // SAFETY: Dropped once, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// Pages that nobody else can reach, so that anything may be written to them.
///
/// # Invariants
///
/// Each page has one reference, which is the array's.
#[derive(Default)]
pub(crate) struct SparePages(PageVec);

impl SparePages {
    /// An empty array without room.
    pub(crate) const fn new() -> Self {
        // INVARIANT: There is no page.
        SparePages(PageVec::new())
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Moves the last pages of `pages`, at most `count`, to this array; what remains there is to
    /// be released: pages that somebody else has a reference to as well, those for which there is
    /// no memory, and those above `count`. Does not sleep.
    pub(crate) fn put(&mut self, pages: &mut PageVec, count: usize) {
        let all = pages.pages.as_mut_slice();
        // The pages from here on are to move.
        let mut first = all.len();
        for at in (0..all.len()).rev() {
            let page = all[at].as_ptr();
            // SAFETY: The array has a reference to the page, whose counter is changed by atomic
            // operations only.
            let references = unsafe { (&raw const (*page)._refcount.counter).read_volatile() };
            if references == 1 {
                first -= 1;
                all.swap(first, at);
            }
        }
        let kept = all.len() - first;
        // Pairs with the release by whoever had another reference.
        smp_mb();
        // INVARIANT: The last `kept` pages have no other reference, and without one nobody can
        // take one. Without room nothing moves.
        let _ = self
            .0
            .take_from(pages, kept.min(count), GFP_NOWAIT | __GFP_NOWARN);
    }

    /// Moves as many pages to `sink` as it takes for that to have `count`, or all there are.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if `sink` has not the room, see [`PageVec::reserve`].
    pub(crate) fn fill(&mut self, sink: &mut PageVec, count: usize) -> Result {
        let wanted = count.saturating_sub(sink.len());
        if sink.pages.capacity() < count {
            return Err(ENOMEM);
        }
        sink.take_from(&mut self.0, wanted, GFP_NOWAIT | __GFP_NOWARN)
    }

    /// Takes the last page; its reference is the caller's.
    pub(in crate::kapi) fn pop(&mut self) -> Option<NonNull<bindings::page>> {
        self.0.pages.pop()
    }

    /// Takes the last `count` pages, if there is memory for another array. Does not sleep.
    pub(crate) fn split_off(&mut self, count: usize) -> SparePages {
        let mut rest = PageVec::new();
        // INVARIANT: Each of these pages was in this array.
        let _ = rest.take_from(&mut self.0, count, GFP_NOWAIT | __GFP_NOWARN);
        SparePages(rest)
    }
}

/// The runs of some octets, see [`PageVec::runs`].
///
/// # Invariants
///
/// The pages are valid during `'a`, and have at least `end` octets.
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
        // SAFETY: By the type's invariant the pages are valid, and there is one for each of the
        // octets left. `NonNull<T>` has the layout of `*mut T`.
        let len = unsafe { measure(pages.as_ptr().cast(), offset, left) };
        self.at += len;
        // SAFETY: That many bytes are in pages next to each other, which the array keeps.
        unsafe { MemSeg::from_page(*pages.first()?, offset, len) }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
