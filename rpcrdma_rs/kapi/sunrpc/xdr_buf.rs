// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A view of sunrpc's `xdr_buf`: an RPC message as head, pages and tail.
//!
//! ```text
//!   head (one kvec) | page_len bytes, from page_base of pages[] | tail (one kvec)
//! ```
//!
//! A message is addressed by byte offset over the three in that order. Lengths come from
//! the upper layer and are trusted as far as the memory behind them goes; offsets given to
//! the functions here are not, and are clamped to the message.

use core::{
    marker::PhantomData,
    ops::Range,
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
    rdma::MemSeg, //
};

/// An RPC message in memory.
///
/// # Invariants
///
/// `self.0` is an initialised `xdr_buf`. Whoever lends it guarantees that head and tail
/// are valid for their lengths, that `pages` has a page (or, in a sparse array, null) for
/// every byte of the page part, and that none of that changes during the borrow, except
/// through the borrow.
#[repr(transparent)]
pub(crate) struct XdrBuf(Opaque<bindings::xdr_buf>);

impl XdrBuf {
    /// Borrows the `xdr_buf` at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an `xdr_buf` as the type's invariants say, for all of `'a`.
    pub(in crate::kapi) unsafe fn from_raw<'a>(ptr: *mut bindings::xdr_buf) -> &'a Self {
        // CAST: `XdrBuf` is transparent over `Opaque<xdr_buf>`.
        // SAFETY: By the safety requirement.
        unsafe { &*ptr.cast() }
    }

    /// Makes `head` the head of the message, and `tail`, if it is not to stay, the tail.
    ///
    /// Their lengths are what they are, and there is no other room: whoever takes the message
    /// apart may move it inside of it, and has more of the pages moved the longer the tail may be.
    ///
    /// # Safety
    ///
    /// `ptr` must point to an `xdr_buf` that the caller may write, and nobody use the new parts
    /// after the end of what they are borrowed from.
    pub(in crate::kapi) unsafe fn redirect(
        ptr: *mut bindings::xdr_buf,
        head: &[u8],
        tail: Option<&[u8]>,
    ) {
        let part = |bytes: &[u8]| bindings::kvec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: By the safety requirement.
        unsafe {
            (*ptr).head[0] = part(head);
            if let Some(tail) = tail {
                (*ptr).tail[0] = part(tail);
            }
            let room = head.len() + (*ptr).page_len as usize + (*ptr).tail[0].iov_len;
            // CAST: Received bytes are less than 2 GiB, and so is what was there before.
            (*ptr).buflen = room as u32;
        }
    }

    /// The C object.
    pub(in crate::kapi) fn as_ptr(&self) -> *mut bindings::xdr_buf {
        self.0.get()
    }

    fn raw(&self) -> &bindings::xdr_buf {
        // SAFETY: Initialised, and not written during the borrow, by the type invariants.
        unsafe { &*self.0.get() }
    }

    /// The length in bytes of the encoded message.
    pub(crate) fn len(&self) -> usize {
        self.raw().len as usize
    }

    /// The length in bytes of the head.
    pub(crate) fn head_len(&self) -> usize {
        self.raw().head[0].iov_len
    }

    /// The length in bytes of the page part.
    pub(crate) fn page_len(&self) -> usize {
        self.raw().page_len as usize
    }

    /// The offset in bytes of the page part from the start of the first page of the array.
    pub(crate) fn page_base(&self) -> usize {
        self.raw().page_base as usize
    }

    /// The length in bytes of the tail.
    pub(crate) fn tail_len(&self) -> usize {
        self.raw().tail[0].iov_len
    }

    /// The sum of the three parts in bytes; [`Self::len`] can be less.
    pub(crate) fn total(&self) -> usize {
        self.head_len() + self.page_len() + self.tail_len()
    }

    /// How many pages the page part touches.
    pub(crate) fn page_count(&self) -> usize {
        match self.page_len() {
            0 => 0,
            len => (self.page_base() % PAGE_SIZE + len).div_ceil(PAGE_SIZE),
        }
    }

    /// Whether the pages are to receive the payload of a read.
    pub(crate) fn is_read(&self) -> bool {
        self.raw().flags & bindings::XDRBUF_READ != 0
    }

    /// Whether the pages hold the payload of a write.
    pub(crate) fn is_write(&self) -> bool {
        self.raw().flags & bindings::XDRBUF_WRITE != 0
    }

    /// Whether pages may be missing from the array.
    pub(crate) fn is_sparse(&self) -> bool {
        self.raw().flags & bindings::XDRBUF_SPARSE_PAGES != 0
    }

    /// The head.
    pub(crate) fn head(&self) -> &[u8] {
        kvec_bytes(&self.raw().head[0])
    }

    /// The tail.
    pub(crate) fn tail(&self) -> &[u8] {
        kvec_bytes(&self.raw().tail[0])
    }

    /// Walks the bytes `range` of the message, piece by piece; a piece never crosses from
    /// one page of the page part into the next.
    pub(crate) fn pieces(&self, range: Range<usize>) -> Pieces<'_> {
        Pieces {
            buf: self,
            pos: range.start,
            end: range.end.min(self.total()),
        }
    }

    /// The bytes of the page part.
    pub(crate) fn page_range(&self) -> Range<usize> {
        self.head_len()..self.head_len() + self.page_len()
    }

    /// The bytes of the tail.
    pub(crate) fn tail_range(&self) -> Range<usize> {
        let start = self.head_len() + self.page_len();
        start..start + self.tail_len()
    }

    /// Copies the bytes `range` of the message to the front of `dst`; returns how many.
    pub(crate) fn copy_to(&self, range: Range<usize>, dst: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in self.pieces(range) {
            let room = &mut dst[done..];
            let n = piece.len().min(room.len());
            piece.copy_to(&mut room[..n]);
            done += n;
        }
        done
    }

    /// Writes `src` to the page part, from `offset` bytes into it; returns how many fitted.
    pub(super) fn fill_pages(&self, offset: usize, src: &[u8]) -> usize {
        let pages = self.page_range();
        let Some(start) = pages.start.checked_add(offset) else {
            return 0;
        };
        let mut done = 0;
        for piece in self.pieces(start..pages.end) {
            let rest = &src[done..];
            if rest.is_empty() {
                break;
            }
            if let Piece::Page(page) = piece {
                let n = page.len().min(rest.len());
                page.write(&rest[..n]);
                done += n;
            }
        }
        done
    }

    /// Writes `src` to the front of the tail if it fits there; returns whether.
    pub(super) fn fill_tail(&self, src: &[u8]) -> bool {
        let tail = &self.raw().tail[0];
        if src.len() > tail.iov_len {
            return false;
        }
        if !src.is_empty() {
            // SAFETY: The tail is valid for its length, and lent to us, by the type invariants;
            // `src` is not in it: it is none of this message.
            unsafe {
                core::ptr::copy_nonoverlapping(src.as_ptr(), tail.iov_base.cast(), src.len())
            };
        }
        true
    }

    /// Walks the bytes `range` of the message as runs inside one page each, for a device.
    pub(crate) fn segs(&self, range: Range<usize>) -> impl Iterator<Item = MemSeg<'_>> {
        let mut pieces = self.pieces(range);
        let mut rest: &[u8] = &[];
        core::iter::from_fn(move || {
            if rest.is_empty() {
                match pieces.next()? {
                    // SAFETY: Lent for as long as the message is.
                    Piece::Page(p) => return unsafe { MemSeg::from_page(p.page, p.offset, p.len) },
                    Piece::Bytes(bytes) => rest = bytes,
                }
            }
            // SAFETY: As above; heads and tails are in `kmalloc` memory or in pages.
            let seg = unsafe { MemSeg::from_virt(rest.as_ptr(), rest.len())? };
            rest = &rest[seg.len()..];
            Some(seg)
        })
    }

    /// Allocates the missing pages of a sparse page part. Does not sleep.
    ///
    /// The pages belong to the upper layer, which frees what it finds in its array.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when there is no memory; what was allocated stays in the array.
    pub(crate) fn fill_sparse(&self) -> Result {
        let first = self.page_base() / PAGE_SIZE;
        for i in first..first + self.page_count() {
            // SAFETY: The array covers the page part by the type invariants.
            let slot = unsafe { self.raw().pages.add(i) };
            // SAFETY: As above.
            if unsafe { (*slot).is_null() } {
                // SAFETY: It asks for a page, at any time and in any context.
                let page = unsafe { bindings::rpcrdma_shim_alloc_page_nowait() };
                if page.is_null() {
                    return Err(enobufs());
                }
                // SAFETY: As above; nobody else writes the array during the borrow.
                unsafe { *slot = page };
            }
        }
        Ok(())
    }
}

fn kvec_bytes(vec: &bindings::kvec) -> &[u8] {
    match NonNull::new(vec.iov_base.cast::<u8>()) {
        // SAFETY: Valid for its length during the borrow by the invariants of `XdrBuf`.
        Some(base) => unsafe { core::slice::from_raw_parts(base.as_ptr(), vec.iov_len) },
        None => &[],
    }
}

/// A run of bytes of a message.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// Bytes of the head or the tail; may cross pages.
    Bytes(&'a [u8]),
    /// Bytes of one page of the page part.
    Page(PagePart<'a>),
}

impl Piece<'_> {
    /// The length in bytes, never zero.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Page(page) => page.len(),
        }
    }

    /// Copies the first `dst.len()` bytes, at most all, to `dst`.
    pub(crate) fn copy_to(&self, dst: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => {
                let n = dst.len().min(bytes.len());
                dst[..n].copy_from_slice(&bytes[..n]);
            }
            Self::Page(page) => page.read(dst),
        }
    }
}

/// A run of bytes inside one page.
///
/// # Invariants
///
/// `page` is a live page for `'a`, and `offset + len <= PAGE_SIZE`.
#[derive(Clone, Copy)]
pub(crate) struct PagePart<'a> {
    page: NonNull<bindings::page>,
    offset: usize,
    len: usize,
    _lent: PhantomData<&'a ()>,
}

impl PagePart<'_> {
    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn with_address<R>(&self, f: impl FnOnce(*mut u8) -> R) -> R {
        // SAFETY: The page is live by the invariants.
        let base = unsafe { bindings::kmap_local_page(self.page.as_ptr()) };
        // SAFETY: The offset is inside the page by the invariants.
        let r = f(unsafe { base.cast::<u8>().add(self.offset) });
        // SAFETY: Mapped above, and no mapping made since is left.
        unsafe { bindings::kunmap_local(base) };
        r
    }

    /// Copies the first `dst.len()` bytes, at most all, to `dst`.
    fn read(&self, dst: &mut [u8]) {
        let n = dst.len().min(self.len);
        // SAFETY: The page has `len` bytes there by the invariants; `dst` has at least `n`,
        // and is not page memory of a message, which nobody has a reference to.
        self.with_address(|src| unsafe { core::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), n) })
    }

    /// Overwrites the first `src.len()` bytes, at most all, with `src`.
    fn write(&self, src: &[u8]) {
        let n = src.len().min(self.len);
        // SAFETY: As for `read`.
        self.with_address(|dst| unsafe { core::ptr::copy_nonoverlapping(src.as_ptr(), dst, n) })
    }
}

/// Walks a range of a message, see [`XdrBuf::pieces`].
#[derive(Clone)]
pub(crate) struct Pieces<'a> {
    buf: &'a XdrBuf,
    pos: usize,
    end: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.pos >= self.end {
            return None;
        }
        let pages = self.buf.page_range();
        let piece = if self.pos < pages.start {
            Piece::Bytes(&self.buf.head()[self.pos..pages.start.min(self.end)])
        } else if self.pos < pages.end {
            self.page_part(self.pos - pages.start, pages.end.min(self.end) - self.pos)?
        } else {
            Piece::Bytes(&self.buf.tail()[self.pos - pages.end..self.end - pages.end])
        };
        self.pos += piece.len();
        Some(piece)
    }
}

impl<'a> Pieces<'a> {
    /// The piece at `offset` of the page part, at most `max` bytes; `None` if its page is missing.
    fn page_part(&self, offset: usize, max: usize) -> Option<Piece<'a>> {
        let at = self.buf.page_base() + offset;
        let in_page = at % PAGE_SIZE;
        // SAFETY: The array has an entry for every byte of the page part by the invariants of
        // `XdrBuf`, and `offset` is inside the page part.
        let page = unsafe { *self.buf.raw().pages.add(at / PAGE_SIZE) };
        // INVARIANT: The sum is at most the page size.
        Some(Piece::Page(PagePart {
            page: NonNull::new(page)?,
            offset: in_page,
            len: max.min(PAGE_SIZE - in_page),
            _lent: PhantomData,
        }))
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
