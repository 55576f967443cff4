// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Owned arrays of pages, as sunrpc hands them out and a device reads and writes them.

use super::super::bindings;
use core::ptr::NonNull;
use kernel::{
    alloc::{
        flags::__GFP_NOWARN,
        Flags, //
    },
    ffi,
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic, //
    }, //
};

/// Some bytes inside one page of a [`PageVec`].
///
/// The bytes do not cross the end of the page as long as `offset + len <= PAGE_SIZE`, which
/// every user checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which page of the array.
    pub(crate) index: usize,
    /// First byte, counted from the start of the page.
    pub(crate) offset: usize,
    /// Number of bytes.
    pub(crate) len: usize,
}

/// An array that owns one reference to each of its pages.
///
/// A page may at the same time be in the page cache or mapped by a process, so its bytes are
/// never handed out as a Rust slice: they are copied in and out.
///
/// # Invariants
///
/// The array owns one reference to each page.
pub(crate) struct PageVec {
    pages: KVec<NonNull<bindings::page>>,
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
        PageVec { pages: KVec::new() }
    }

    /// The number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there is room for any page, so that the array is worth keeping.
    pub(crate) fn has_room(&self) -> bool {
        self.pages.capacity() != 0
    }

    /// Makes room for `capacity` pages in all, so that adding them allocates nothing.
    pub(crate) fn reserve(&mut self, capacity: usize, flags: Flags) -> Result {
        let more = capacity.saturating_sub(self.pages.len());
        self.pages.reserve(more, flags)?;
        Ok(())
    }

    /// Gives all pages but the first `len` back.
    pub(crate) fn truncate(&mut self, len: usize) {
        let Some(excess) = self.pages.as_mut_slice().get_mut(len..) else {
            return;
        };
        if !excess.is_empty() {
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
        self.pages.extend_from_slice(moving, flags)?;
        // INVARIANT: The references of these pages are the other array's now.
        from.pages.truncate(at);
        Ok(())
    }

    /// Copies `src` into the page at `index`, from byte `offset` on.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such page or the bytes do not fit in it.
    pub(crate) fn copy_in(&mut self, index: usize, offset: usize, src: &[u8]) -> Result {
        let page = self.checked(index, offset, src.len())?;
        // SAFETY: The page is ours and the range inside it was checked.
        unsafe {
            bindings::rpcrdma_shim_memcpy_to_page(page, offset, src.as_ptr().cast(), src.len())
        };
        Ok(())
    }

    /// Copies the bytes of the page at `index`, from byte `offset` on, to `dst`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such page, or `dst` is longer than what follows in it.
    pub(crate) fn copy_out(&self, index: usize, offset: usize, dst: &mut [u8]) -> Result {
        let page = self.checked(index, offset, dst.len())?;
        // SAFETY: The page is ours and the range inside it was checked.
        unsafe {
            bindings::rpcrdma_shim_memcpy_from_page(
                dst.as_mut_ptr().cast(),
                page,
                offset,
                dst.len(),
            )
        };
        Ok(())
    }

    fn checked(&self, index: usize, offset: usize, len: usize) -> Result<*mut bindings::page> {
        let page = self.pages.get(index).ok_or(EINVAL)?;
        match offset.checked_add(len) {
            Some(end) if end <= PAGE_SIZE => Ok(page.as_ptr()),
            _ => Err(EINVAL),
        }
    }

    /// The page of `piece`, if the piece lies inside it.
    pub(in crate::kapi) fn piece_page(&self, piece: Piece) -> Option<NonNull<bindings::page>> {
        NonNull::new(self.checked(piece.index, piece.offset, piece.len).ok()?)
    }

    /// The pages, for exchange with others.
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
    fn drop(&mut self) {
        self.truncate(0);
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

    /// The number of pages.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Moves the last pages of `pages`, at most `count`, to this array; what remains there is to
    /// be released: pages that somebody else has a reference to as well, those for which there is
    /// no memory, and those above `count`. Does not sleep.
    pub(crate) fn put(&mut self, pages: &mut PageVec, count: usize) {
        let mut kept = 0;
        for at in (0..pages.len()).rev() {
            let last = pages.len() - 1 - kept;
            let page = pages.pages[at].as_ptr();
            // SAFETY: The array has a reference to the page, and the counter is changed by atomic
            // operations only.
            let references = unsafe { Atomic::from_ptr(&raw mut (*page)._refcount.counter) };
            // Pairs with the release by whoever had the other reference.
            if references.load(Acquire) == 1 {
                pages.pages.swap(last, at);
                kept += 1;
            }
        }
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

#[cfg(rpcrdma_kunit)]
mod kunit;
