// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RDMA Reads from and Writes to a peer's memory, over ib_core's `rdma_rw`.
//!
//! ```text
//!   empty ──set_pages──► idle ──add──► mapped ──(post, done)──► mapped
//!     ▲                   │ ▲                                       │ │
//!     │                   │ └──────────────── unmap ────────────────┘ │
//!     └────── finish ─────┴───────────────────────────────────────────┘
//! ```
//!
//! A transfer owns the pages it moves bytes from or to, so they stay as long as the device may
//! use them. It is a field of what owns the chain it is posted in.

use core::{
    cell::{
        Cell,
        UnsafeCell, //
    },
    iter::Peekable, //
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    qp::{
        KeepQp,
        Qp,
        QpHandler, //
    },
    wr::Ticket,
    Direction, //
};
use crate::kapi::{
    bindings,
    ext::pages::{
        PageVec,
        Piece, //
    },
};

/// The longest run of contiguous bytes that is mapped as one, in bytes: where devices are given
/// copies (by swiotlb), these have a limit of 256 KiB.
const LONGEST_RUN: u32 = 128 << 10;

/// The most pages that rdma_rw registers as one.
const MOST_PAGES: u32 = 256;

/// How many segments a transfer keeps for its next use: what ordinary peers offer.
const KEPT_SEGMENTS: usize = 4;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferDir {
    /// From the peer's memory into our pages.
    Read,
    /// From our pages into the peer's memory.
    Write,
}

impl TransferDir {
    fn as_raw(self) -> bindings::dma_data_direction {
        match self {
            TransferDir::Read => Direction::FromDevice.as_raw(),
            TransferDir::Write => Direction::ToDevice.as_raw(),
        }
    }
}

/// One remote segment, or a part of one.
///
/// # Invariants
///
/// When `direction` is set, `context` is initialised for the QP of the transfer with the
/// first `bvecs.len()` elements, which map its pages.
struct Segment {
    context: UnsafeCell<bindings::rdma_rw_ctx>,
    bvecs: KVec<bindings::bio_vec>,
    direction: Option<TransferDir>,
}

/// Pages, and the RDMA Reads and Writes that move bytes into and out of them.
///
/// Contexts are kept for the next use; in steady state nothing is allocated.
///
/// # Invariants
///
/// `qp` is there when anything is mapped; the first `used` segments are mapped for it, the
/// others not.
pub(crate) struct Transfer {
    pages: Option<PageVec>,
    segments: KVec<KBox<Segment>>,
    used: usize,
    sqes: u32,
    /// The last chain it was put in. Also makes the type `!Sync`: chaining changes contexts.
    chain: Cell<Ticket>,
    qp: Option<Arc<dyn KeepQp>>,
}

// SAFETY: What is mapped has no affinity to a thread.
unsafe impl Send for Transfer {}

impl Default for Transfer {
    fn default() -> Self {
        Self::new()
    }
}

impl Transfer {
    /// Makes an empty one.
    pub(crate) const fn new() -> Self {
        Transfer {
            pages: None,
            segments: KVec::new(),
            used: 0,
            sqes: 0,
            chain: Cell::new(Ticket { qp: 0, post: 0 }),
            qp: None,
        }
    }

    /// Gives it the pages to work on.
    ///
    /// # Errors
    ///
    /// Hands the pages back if it has some.
    pub(crate) fn set_pages(&mut self, pages: PageVec) -> Result<(), PageVec> {
        if self.pages.is_some() {
            return Err(pages);
        }
        self.pages = Some(pages);
        Ok(())
    }

    /// How many Send Queue entries its reads and writes take.
    pub(crate) fn sqes(&self) -> u32 {
        self.sqes
    }

    fn keep<H: QpHandler>(&mut self, qp: &Qp<H>) -> Result {
        match &self.qp {
            Some(kept) if kept.raw_qp() != qp.as_raw() => Err(EINVAL),
            Some(_) => Ok(()),
            None => {
                let kept: Arc<dyn KeepQp> = qp.get();
                self.qp = Some(kept);
                Ok(())
            }
        }
    }

    /// Maps one remote segment: `length` bytes of the peer's memory at `remote_addr` under
    /// `handle`, from or to the bytes of `pieces`, in order. Runs of physically contiguous
    /// bytes are mapped as one. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a piece does not exist, the pieces have not `length` bytes in all, or
    /// `length` is zero; `ENOMEM`; what ib_core says, such as `EAGAIN` when a device has run
    /// out of what it needs. A part of the segment may be mapped then, so that all that is left
    /// to do is [`Self::finish`].
    pub(crate) fn add<H: QpHandler>(
        &mut self,
        qp: &Qp<H>,
        direction: TransferDir,
        pieces: impl Iterator<Item = Piece>,
        length: u32,
        remote_addr: u64,
        handle: u32,
    ) -> Result {
        self.keep(qp)?;
        let mut pieces = pieces.filter(|piece| piece.len != 0).peekable();
        let mut done = 0;
        while pieces.peek().is_some() {
            let remote_addr = remote_addr.checked_add(u64::from(done)).ok_or(EINVAL)?;
            done += self.add_part(
                qp,
                direction,
                &mut pieces,
                length - done,
                remote_addr,
                handle,
            )?;
        }
        match done == length && length != 0 {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Maps the first part of a remote segment, at most `longest` bytes; returns its length.
    fn add_part<H: QpHandler>(
        &mut self,
        qp: &Qp<H>,
        direction: TransferDir,
        pieces: &mut Peekable<impl Iterator<Item = Piece>>,
        longest: u32,
        remote_addr: u64,
        handle: u32,
    ) -> Result<u32> {
        let pages = self.pages.as_ref().ok_or(EINVAL)?;
        if self.used == self.segments.len() {
            let segment = KBox::new(
                Segment {
                    context: UnsafeCell::new(bindings::rdma_rw_ctx::default()),
                    bvecs: KVec::new(),
                    direction: None,
                },
                GFP_KERNEL,
            )?;
            self.segments.push(segment, GFP_KERNEL)?;
        }
        let segment = self.segments.get_mut(self.used).ok_or(EINVAL)?;
        let length = segment.gather(pages, pieces, longest, Elements::of(qp, direction))?;
        let nr_bvec = u32::try_from(segment.bvecs.len())?;
        let iter = bindings::bvec_iter {
            bi_size: length,
            ..Default::default()
        };
        // SAFETY: The context is ours, the QP and the elements are valid; the elements' pages
        // are ours and stay until `finish`.
        let ret = unsafe {
            bindings::rdma_rw_ctx_init_bvec(
                segment.context.get(),
                qp.as_raw(),
                qp.port().number(),
                segment.bvecs.as_ptr(),
                nr_bvec,
                iter,
                remote_addr,
                handle,
                direction.as_raw(),
            )
        };
        let Ok(sqes) = u32::try_from(ret) else {
            return Err(Error::from_errno(ret));
        };
        // INVARIANT: Mapped just now.
        segment.direction = Some(direction);
        self.used += 1;
        self.sqes = self.sqes.saturating_add(sqes);
        Ok(length)
    }

    /// Unmaps everything. May sleep.
    pub(crate) fn unmap(&mut self) {
        if let Some(qp) = self.qp.take() {
            let used = self.used;
            // INVARIANT: None of the segments is mapped any more.
            self.used = 0;
            self.sqes = 0;
            for segment in self.segments.iter_mut().take(used) {
                segment.unmap(&*qp);
            }
        }
    }

    /// Unmaps everything and gives the pages back; the transfer is empty then. May sleep.
    pub(crate) fn finish(&mut self) -> Option<PageVec> {
        self.unmap();
        // INVARIANT: None is mapped.
        self.segments.truncate(KEPT_SEGMENTS);
        self.pages.take()
    }

    /// Notes that it is put in a chain for `qp`; `false` if it is in this chain already or
    /// mapped for another QP.
    pub(super) fn enter_chain(&self, qp: *mut bindings::ib_qp, ticket: Ticket) -> bool {
        match &self.qp {
            Some(kept) if kept.raw_qp() != qp => return false,
            _ => (),
        }
        self.chain.replace(ticket) != ticket
    }

    /// The contexts of all segments.
    pub(super) fn contexts(&self) -> impl Iterator<Item = *mut bindings::rdma_rw_ctx> + '_ {
        self.segments
            .iter()
            .take(self.used)
            .map(|segment| segment.context.get())
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        drop(self.finish());
    }
}

/// What a mapping is made of.
#[derive(Clone, Copy)]
struct Elements {
    /// Bytes of the longest that is merged from several pieces.
    longest: u32,
    /// How many there may be.
    most: usize,
}

impl Elements {
    fn of<H: QpHandler>(qp: &Qp<H>, direction: TransferDir) -> Self {
        if direction == TransferDir::Write || !qp.port().iwarp() {
            return Elements {
                longest: LONGEST_RUN,
                most: usize::MAX,
            };
        }
        // A region is registered. rdma_rw takes an element for a page, and counts regions after
        // an IOMMU has joined elements: more than one region holds may then go to one.
        let most = qp.device().attrs().max_fast_reg_pages.min(MOST_PAGES);
        Elements {
            longest: 0,
            most: most as usize,
        }
    }
}

impl Segment {
    /// Collects pieces, merging what is contiguous. Stops before a piece that an IOMMU could not
    /// put behind the others, as it joins whole pages, and before one element too many. Returns
    /// how many bytes that are.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a piece does not exist, or there are more than `longest` bytes; `ENOMEM`.
    fn gather(
        &mut self,
        pages: &PageVec,
        pieces: &mut Peekable<impl Iterator<Item = Piece>>,
        longest: u32,
        elements: Elements,
    ) -> Result<u32> {
        self.bvecs.clear();
        let mut total = 0_u32;
        // Physical address of the first byte after the last element.
        let mut end = 0;
        while let Some(&piece) = pieces.peek() {
            let page = pages.piece_page(piece).ok_or(EINVAL)?;
            // SAFETY: The page is valid.
            let pfn = unsafe { bindings::rpcrdma_shim_page_to_pfn(page.as_ptr()) };
            let start = pfn * PAGE_SIZE + piece.offset;
            // CAST: A piece lies in a page.
            let (offset, len) = (piece.offset as u32, piece.len as u32);
            let full = self.bvecs.len() >= elements.most;
            let fits = |last: u32| start == end && last.saturating_add(len) <= elements.longest;
            match self.bvecs.as_mut_slice().last_mut() {
                Some(last) if fits(last.bv_len) => last.bv_len += len,
                Some(_) if full || start % PAGE_SIZE != 0 || end % PAGE_SIZE != 0 => break,
                _ => self.bvecs.push(
                    bindings::bio_vec {
                        bv_page: page.as_ptr(),
                        bv_len: len,
                        bv_offset: offset,
                    },
                    GFP_KERNEL,
                )?,
            }
            end = start + piece.len;
            total = total
                .checked_add(len)
                .filter(|total| *total <= longest)
                .ok_or(EINVAL)?;
            pieces.next();
        }
        Ok(total)
    }

    fn unmap(&mut self, qp: &dyn KeepQp) {
        let Some(direction) = self.direction.take() else {
            return;
        };
        // SAFETY: By the type's invariant this is how it was initialised. It is not posted, as
        // what is posted owns it.
        unsafe {
            bindings::rdma_rw_ctx_destroy_bvec(
                self.context.get(),
                qp.raw_qp(),
                qp.raw_port(),
                self.bvecs.as_ptr(),
                // CAST: `add` checked that it fits.
                self.bvecs.len() as u32,
                direction.as_raw(),
            );
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
