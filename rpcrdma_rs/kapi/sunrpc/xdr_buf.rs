// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A view of sunrpc's `xdr_buf`: an RPC message as head, pages and tail.
//!
//! ```text
//!   head (one kvec) | page_len bytes, from page_base of pages[] | tail (one kvec)
//! ```
//!
//! Bytes of a message are addressed by their offset in the three parts, in that order. The lengths
//! of the parts come from the upper layer and are trusted. Offsets that callers pass are clamped to
//! the message.
//!
//! C header: [`include/linux/sunrpc/xdr.h`](srctree/include/linux/sunrpc/xdr.h)

use core::{
    marker::PhantomData,
    ops::{
        Deref,
        Range, //
    },
    ptr::NonNull, //
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    types::Opaque, //
};

use super::errno::enobufs;
use crate::kapi::{
    bindings,
    ext::memory::{
        copy,
        copy_bytes,
        copy_from_page,
        copy_to_page,
        measure,
        MemSeg, //
    }, //
};

/// The memory of an RPC message. A device may write to it at any time, so it is only described and
/// lent, and not borrowed as bytes.
///
/// # Invariants
///
/// `self.0` is an initialised `xdr_buf`. Head and tail are valid for their lengths. `pages` has a
/// page, or null in a sparse array, for every byte of the page part. Nothing changes these fields
/// during a borrow, except methods of this type.
#[repr(transparent)]
pub(crate) struct XdrParts(Opaque<bindings::xdr_buf>);

/// An RPC message in memory.
///
/// # Invariants
///
/// Nobody writes to the bytes of head and tail during a borrow.
#[repr(transparent)]
pub(crate) struct XdrBuf(XdrParts);

impl Deref for XdrBuf {
    type Target = XdrParts;

    fn deref(&self) -> &XdrParts {
        &self.0
    }
}

impl XdrBuf {
    /// Borrows the `xdr_buf` at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an `xdr_buf` as the type's invariants say, for all of `'a`.
    pub(in crate::kapi) unsafe fn from_raw<'a>(ptr: *mut bindings::xdr_buf) -> &'a Self {
        // CAST: `XdrBuf` is transparent over `XdrParts`, and that over `Opaque<xdr_buf>`.
        // SAFETY: `ptr` points to an `xdr_buf` as the invariants of both types say for all of `'a`,
        // by this function's contract.
        unsafe { &*ptr.cast() }
    }

    /// Replaces the head of the message by `head`, and the tail by `tail` if there is one.
    ///
    /// `buflen` becomes the sum of the parts. sunrpc may move bytes from one part to another when
    /// it decodes the message, and would move more pages if `buflen` had room for a longer tail.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an `xdr_buf` that the caller may write. The new parts must not be used
    /// after the memory of `head` and `tail` becomes invalid.
    pub(in crate::kapi) unsafe fn redirect(
        ptr: *mut bindings::xdr_buf,
        head: &[u8],
        tail: Option<&[u8]>,
    ) {
        let part = |bytes: &[u8]| bindings::kvec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: The caller may write it, by this function's contract.
        unsafe {
            (*ptr).head[0] = part(head);
            if let Some(tail) = tail {
                (*ptr).tail[0] = part(tail);
            }
            let room = head.len() + (*ptr).page_len as usize + (*ptr).tail[0].iov_len;
            // CAST: A received message and the former parts are shorter than 2 GiB.
            (*ptr).buflen = room as u32;
        }
    }

    /// Returns the C object.
    pub(in crate::kapi) fn as_ptr(&self) -> *mut bindings::xdr_buf {
        self.0 .0.get()
    }

    /// Returns the head.
    pub(crate) fn head(&self) -> &[u8] {
        // SAFETY: Nobody writes to the head during the borrow, by the type's invariant.
        unsafe { Bytes::of(&self.raw().head[0]).as_slice() }
    }

    /// Returns the tail.
    pub(crate) fn tail(&self) -> &[u8] {
        // SAFETY: Nobody writes to the tail during the borrow, by the type's invariant.
        unsafe { Bytes::of(&self.raw().tail[0]).as_slice() }
    }

    /// Copies the head to `dst`, as much as fits there.
    #[inline]
    pub(crate) fn copy_head_to(&self, dst: &mut [u8]) {
        copy(dst, self.head());
    }

    /// Copies the bytes `range` of the message to the front of `dst`; returns how many.
    // Inlined, because nearly always all of the bytes are in the head.
    #[inline(always)]
    pub(crate) fn copy_to(&self, range: Range<usize>, dst: &mut [u8]) -> usize {
        match (self.head().get(range.clone()), dst.get_mut(..range.len())) {
            (Some(head), Some(dst)) => {
                copy(dst, head);
                head.len()
            }
            _ => self.copy_parts(range, dst),
        }
    }

    /// Implements [`Self::copy_to`] for bytes that are not all in the head.
    #[inline(never)]
    fn copy_parts(&self, range: Range<usize>, dst: &mut [u8]) -> usize {
        let end = range.end.min(range.start.saturating_add(dst.len()));
        let Cut { head, pages, tail } = self.cut(range.start..end);
        // SAFETY: Nobody writes to head and tail during the borrow, by the type's invariant.
        let (head, tail) = unsafe { (head.as_slice(), tail.as_slice()) };
        let Some((to_head, rest)) = dst.split_at_mut_checked(head.len()) else {
            return 0;
        };
        copy(to_head, head);
        let (mut done, due) = (head.len(), pages.left);
        let Some((mut to_pages, to_tail)) = rest.split_at_mut_checked(due) else {
            return done;
        };
        for run in pages {
            let Some((now, later)) = to_pages.split_at_mut_checked(run.len()) else {
                return done;
            };
            // SAFETY: The run has that many bytes. `dst` does not overlap them: no Rust reference
            // to pages of a message exists.
            unsafe { copy_from_page(&run, now) };
            done += now.len();
            to_pages = later;
        }
        if done == head.len() + due {
            let n = tail.len().min(to_tail.len());
            copy(&mut to_tail[..n], &tail[..n]);
            done += n;
        }
        done
    }
}

impl XdrParts {
    /// Borrows the `xdr_buf` at `ptr`, without its bytes.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an `xdr_buf` as the type's invariants say, for all of `'a`.
    pub(in crate::kapi) unsafe fn from_raw<'a>(ptr: *mut bindings::xdr_buf) -> &'a Self {
        // CAST: `XdrParts` is transparent over `Opaque<xdr_buf>`.
        // SAFETY: `ptr` points to an `xdr_buf` as the type's invariants say for all of `'a`, by
        // this function's contract.
        unsafe { &*ptr.cast() }
    }

    fn raw(&self) -> &bindings::xdr_buf {
        // SAFETY: Initialised, and not written during the borrow, by the type invariants.
        unsafe { &*self.0.get() }
    }

    /// Returns the length in bytes of the encoded message.
    pub(crate) fn len(&self) -> usize {
        self.raw().len as usize
    }

    /// Returns the length in bytes of the head.
    pub(crate) fn head_len(&self) -> usize {
        self.raw().head[0].iov_len
    }

    /// Returns the length in bytes of the page part.
    pub(crate) fn page_len(&self) -> usize {
        self.raw().page_len as usize
    }

    /// Returns the offset in bytes of the page part from the start of the first page of the array.
    pub(crate) fn page_base(&self) -> usize {
        self.raw().page_base as usize
    }

    /// Returns the length in bytes of the tail.
    pub(crate) fn tail_len(&self) -> usize {
        self.raw().tail[0].iov_len
    }

    /// Returns the sum of the three parts in bytes; [`Self::len`] can be less.
    pub(crate) fn total(&self) -> usize {
        self.head_len() + self.page_len() + self.tail_len()
    }

    /// Returns how many pages the page part touches.
    pub(crate) fn page_count(&self) -> usize {
        match self.page_len() {
            0 => 0,
            len => (self.page_base() % PAGE_SIZE + len).div_ceil(PAGE_SIZE),
        }
    }

    /// Returns whether the pages are to receive the payload of a read.
    pub(crate) fn is_read(&self) -> bool {
        self.raw().flags & bindings::XDRBUF_READ != 0
    }

    /// Returns whether the pages hold the payload of a write.
    pub(crate) fn is_write(&self) -> bool {
        self.raw().flags & bindings::XDRBUF_WRITE != 0
    }

    /// Returns whether pages may be missing from the array.
    pub(crate) fn is_sparse(&self) -> bool {
        self.raw().flags & bindings::XDRBUF_SPARSE_PAGES != 0
    }

    /// Returns the bytes of the page part.
    pub(crate) fn page_range(&self) -> Range<usize> {
        self.head_len()..self.head_len() + self.page_len()
    }

    /// Returns the bytes of the tail.
    pub(crate) fn tail_range(&self) -> Range<usize> {
        let start = self.head_len() + self.page_len();
        start..start + self.tail_len()
    }

    /// Writes `src` to the front of the head if it fits there. Returns whether it does.
    #[inline]
    pub(super) fn fill_head(&self, src: &[u8]) -> bool {
        fill(&self.raw().head[0], src)
    }

    /// Writes `src` to the page part, from `offset` bytes into it; returns how many fitted.
    pub(super) fn fill_pages(&self, offset: usize, src: &[u8]) -> usize {
        if src.is_empty() || offset >= self.page_len() {
            return 0;
        }
        let mut rest = src;
        for run in self.page_part(offset, self.page_len() - offset) {
            let (now, later) = rest.split_at(run.len().min(rest.len()));
            if now.is_empty() {
                break;
            }
            // SAFETY: The run has that many bytes. `src` does not overlap them: no Rust reference
            // to pages of a message exists.
            unsafe { copy_to_page(&run, now) };
            rest = later;
        }
        src.len() - rest.len()
    }

    /// Writes `src` to the front of the tail if it fits there. Returns whether it does.
    pub(super) fn fill_tail(&self, src: &[u8]) -> bool {
        fill(&self.raw().tail[0], src)
    }

    /// Splits the bytes `range` by the part of the message that they are in.
    fn cut(&self, range: Range<usize>) -> Cut<'_> {
        let pages = self.page_range();
        let end = range.end.min(self.total());
        let start = range.start.min(end);
        let in_pages = start.clamp(pages.start, pages.end);
        Cut {
            head: Bytes::of(&self.raw().head[0]).part(start, end.min(pages.start)),
            pages: self.page_part(
                in_pages - pages.start,
                end.min(pages.end).saturating_sub(in_pages),
            ),
            tail: Bytes::of(&self.raw().tail[0]).part(
                start.saturating_sub(pages.end),
                end.saturating_sub(pages.end),
            ),
        }
    }

    /// Returns the bytes `range` of the message as physically contiguous runs. A run does not
    /// extend beyond one of the three parts. Ends early at a missing page.
    #[inline]
    pub(crate) fn segs(&self, range: Range<usize>) -> Segs<'_> {
        Segs(self.cut(range))
    }

    /// Returns the page part as physically contiguous runs. Ends early at a missing page.
    #[inline]
    pub(crate) fn page_segs(&self) -> PageSegs<'_> {
        self.page_part(0, self.page_len())
    }

    /// Returns `len` bytes of the page part, from `offset` on, as runs. The page part must have
    /// them.
    #[inline]
    fn page_part(&self, offset: usize, len: usize) -> PageSegs<'_> {
        let at = self.page_base() + offset;
        // INVARIANT: The array has an entry for every byte of the page part by the invariants of
        // `XdrParts`: a valid page, or null.
        PageSegs {
            pages: self.raw().pages.wrapping_add(at / PAGE_SIZE),
            offset: at % PAGE_SIZE,
            left: len,
            _buf: PhantomData,
        }
    }

    /// Allocates the missing pages of a sparse page part. Does not sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if memory is short. The pages that were allocated stay in the array.
    ///
    /// # Safety
    ///
    /// Nobody else may write the array of pages during the call, nor read an entry that is missing.
    pub(super) unsafe fn fill_sparse(&self) -> Result {
        let first = self.page_base() / PAGE_SIZE;
        for i in first..first + self.page_count() {
            // SAFETY: The array covers the page part by the type invariants.
            let slot = unsafe { self.raw().pages.add(i) };
            // SAFETY: The entry is inside the array, and nobody else writes it, by this function's
            // contract.
            if unsafe { (*slot).is_null() } {
                // SAFETY: The function allocates a page, and may be called in any context.
                let page = unsafe { bindings::rpcrdma_shim_alloc_page_nowait() };
                if page.is_null() {
                    return Err(enobufs());
                }
                // SAFETY: The entry is inside the array, and nobody else uses it, by this
                // function's contract.
                unsafe { *slot = page };
            }
        }
        Ok(())
    }
}

/// Writes `src`, which is not part of the message, to the front of `vec`, the head or the tail of a
/// message, if it fits there. Returns whether it does.
#[inline]
fn fill(vec: &bindings::kvec, src: &[u8]) -> bool {
    if src.len() > vec.iov_len {
        return false;
    }
    if !src.is_empty() {
        // SAFETY: `vec` is valid for its length, by the invariants of `XdrParts`. `src` is not part
        // of the message, so it does not overlap.
        unsafe { copy_bytes(src.as_ptr(), vec.iov_base.cast(), src.len()) };
    }
    true
}

/// Returns the length, roundup included, of a payload of `placed` bytes in the pages. `before` is
/// the message up to the payload, so it ends with the length that the message claims for it.
///
/// If the message claims more than was placed, only whole words count. Otherwise the upper layer
/// would take the roundup, which nobody has written, for a part of the payload.
pub(super) fn arrived(before: &[u8], placed: usize) -> usize {
    let claimed = before
        .last_chunk()
        .map_or(0, |word| u32::from_be_bytes(*word));
    // CAST: `usize` has 64 bits.
    if claimed as usize > placed {
        placed & !3
    } else {
        placed.next_multiple_of(4)
    }
}

/// Bytes of the head or the tail of a message.
///
/// # Invariants
///
/// The `len` bytes at `start` are valid during `'a`.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    start: *const u8,
    len: usize,
    _parts: PhantomData<&'a XdrParts>,
}

impl<'a> Bytes<'a> {
    /// Returns the bytes of `vec`, the head or the tail of a borrowed message.
    #[inline]
    fn of(vec: &'a bindings::kvec) -> Self {
        // INVARIANT: Valid for its length during the borrow by the invariants of `XdrParts`.
        Bytes {
            start: vec.iov_base.cast_const().cast(),
            len: if vec.iov_base.is_null() {
                0
            } else {
                vec.iov_len
            },
            _parts: PhantomData,
        }
    }

    /// Returns the bytes from `start` to `end`, or none if there are not as many.
    #[inline]
    fn part(self, start: usize, end: usize) -> Self {
        let (start, end) = if start <= end && end <= self.len {
            (start, end)
        } else {
            (0, 0)
        };
        // INVARIANT: A part of bytes that are valid.
        Bytes {
            start: self.start.wrapping_add(start),
            len: end - start,
            ..self
        }
    }

    /// Borrows the bytes.
    ///
    /// # Safety
    ///
    /// Nobody may write to them during `'a`.
    #[inline]
    unsafe fn as_slice(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: Valid during `'a` by the type's invariant, and not written by this function's
        // contract.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }

    /// Takes the first run off the bytes.
    fn take_run(&mut self) -> Option<MemSeg<'a>> {
        // SAFETY: The bytes are valid while the message is borrowed. Heads and tails are in
        // `kmalloc` memory or in pages.
        let run = unsafe { MemSeg::from_virt(self.start, self.len) }?;
        // INVARIANT: The run is a part of the bytes.
        self.start = self.start.wrapping_add(run.len());
        self.len -= run.len();
        Some(run)
    }
}

/// A range of bytes of a message, split by part.
#[derive(Clone)]
struct Cut<'a> {
    head: Bytes<'a>,
    pages: PageSegs<'a>,
    tail: Bytes<'a>,
}

/// The runs of some bytes of a message, see [`XdrParts::segs`].
#[derive(Clone)]
pub(crate) struct Segs<'a>(Cut<'a>);

impl<'a> Iterator for Segs<'a> {
    type Item = MemSeg<'a>;

    fn next(&mut self) -> Option<MemSeg<'a>> {
        let Cut { head, pages, tail } = &mut self.0;
        if head.len != 0 {
            head.take_run()
        } else if pages.left != 0 {
            pages.next()
        } else {
            tail.take_run()
        }
    }
}

/// The runs of bytes in an array of pages, see [`XdrParts::page_segs`].
///
/// # Invariants
///
/// During `'a`, `pages` has an entry for each of `left` bytes, of which the first is at `offset` of
/// the first page: a valid page, or null. `offset` is less than a page.
#[derive(Clone)]
pub(crate) struct PageSegs<'a> {
    pages: *mut *mut bindings::page,
    offset: usize,
    left: usize,
    _buf: PhantomData<&'a XdrParts>,
}

impl<'a> Iterator for PageSegs<'a> {
    type Item = MemSeg<'a>;

    #[inline]
    fn next(&mut self) -> Option<MemSeg<'a>> {
        if self.left == 0 {
            return None;
        }
        // SAFETY: There is an entry by the invariants. It is not null when the run is measured.
        let run = unsafe {
            let page = NonNull::new(*self.pages)?;
            let len = match PAGE_SIZE - self.offset {
                // The usual last run, which needs no other page.
                max if self.left <= max => self.left,
                _ => measure(self.pages, self.offset, self.left),
            };
            MemSeg::from_page(page, self.offset, len)?
        };
        // INVARIANT: The run is removed from the front of the bytes.
        let end = self.offset + run.len();
        self.pages = self.pages.wrapping_add(end / PAGE_SIZE);
        self.offset = end % PAGE_SIZE;
        self.left -= run.len();
        Some(run)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
