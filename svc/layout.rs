// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Assembly of a Call from its inline part and its Read chunks (RFC 8166, section 3.5), see
//! [`super::read`].

use super::tunables::STAT_READ;
use crate::{
    kapi::{
        ext::pages::PageVec,
        rdma::{
            qp::{
                Qp,
                QpHandler, //
            },
            rw::{
                Transfer,
                TransferDir, //
            }, //
        },
        status::Traffic,
        trace::{
            trace_svcrdma_decode_rseg,
            Cid, //
        }, //
    },
    xdr::{
        chunk::Lists,
        error::DecodeError,
        message::{
            self,
            Direction,
            Parsed, //
        },
        pcl::{
            self,
            ReadChunk,
            ReadChunks, //
        },
        rpc::plain_arguments,
        segment::Segment,
        units::{
            len_to_u32,
            pad_len,
            padded_len,
            u32_to_usize,
            Position,
            Xid, //
        }, //
    },
};
use core::ops::Range;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// The layout of a Call with Read chunks.
pub(super) struct Layout {
    pub(super) chunks: ReadChunks,
    /// The offset of the inline part in the received message.
    pub(super) inline_start: usize,
    /// The position of the payload, if there is exactly one payload, it is behind the RPC header
    /// of an inline message, and it fills a page.
    pub(super) item: Option<u32>,
    /// The number of octets that are placed in pages.
    paged_len: usize,
    /// Whether the order of the Call among those of its client may matter: the inline part does not
    /// show that the Call has no sequence number.
    pub(super) ordered: bool,
}

impl Layout {
    /// The layout of no Call.
    pub(super) const EMPTY: Self = Layout {
        chunks: ReadChunks::EMPTY,
        inline_start: 0,
        item: None,
        paged_len: 0,
        ordered: true,
    };

    /// Computes the layout of the Call `call`, which is in `bytes`.
    ///
    /// # Errors
    ///
    /// The Read chunks of the Call overlap, or are not within the Call.
    pub(super) fn set(
        &mut self,
        call: &Parsed,
        bytes: &[u8],
        max_stream: u32,
    ) -> Result<(), DecodeError> {
        let inline_len = call
            .payload(bytes)
            .and_then(|inline| len_to_u32(inline.len()));
        let chunks = &mut self.chunks;
        chunks.set(&call.lists(bytes).read, inline_len, max_stream)?;
        let inline = bytes.get(call.header_len..).unwrap_or_default();
        // The service expects a contiguous RPC header, and a contiguous GSS token: it accesses them
        // by pointer.
        (self.item, self.ordered) = match (chunks.chunks(), plain_arguments(inline)) {
            ([one], Some(arguments))
                if chunks.call_chunk().is_none() && arguments.at <= one.position.0 =>
            {
                // Whatever the length of the chunk, nfsd may read the first page to its end instead
                // of what follows the chunk.
                let fills_page = u32_to_usize(one.length) >= PAGE_SIZE;
                (fills_page.then_some(one.position.0), arguments.sequenced)
            }
            _ => (None, true),
        };
        self.inline_start = call.header_len;
        self.paged_len = u32_to_usize(match (self.item, self.chunks.chunks()) {
            (Some(_), [one]) => padded_len(one.length).unwrap_or(u32::MAX),
            _ => self.chunks.stream_len(),
        });
        Ok(())
    }

    /// Returns the number of octets that are placed in pages.
    pub(super) fn paged_len(&self) -> usize {
        self.paged_len
    }

    /// Returns the only chunk, if it alone is placed in pages.
    #[inline]
    fn alone(&self) -> Option<ReadChunk> {
        match (self.item, self.chunks.chunks()) {
            (Some(_), [one]) => Some(*one),
            _ => None,
        }
    }

    /// Returns the number of pages for these octets.
    pub(super) fn page_count(&self) -> usize {
        self.paged_len().div_ceil(PAGE_SIZE)
    }

    /// Returns the parts that are placed in pages, with their offsets there.
    fn pieces(&self) -> impl Iterator<Item = (usize, pcl::Piece)> + '_ {
        let item = self.item.is_some();
        let mut at = 0;
        self.chunks
            .pieces()
            .filter(move |piece| !item || !matches!(piece, pcl::Piece::Base { .. }))
            .map(move |piece| {
                let start = at;
                at += u32_to_usize(match piece {
                    pcl::Piece::Base { length, .. } => length,
                    pcl::Piece::Chunk(chunk) => chunk.length,
                    pcl::Piece::Pad(length) => length,
                });
                (start, piece)
            })
    }

    /// Returns the parts to pull: position in the message, offset in the pages, and the client's
    /// memory.
    fn segments<'a>(
        &'a self,
        lists: &Lists<'a>,
    ) -> impl Iterator<Item = (Position, Range<usize>, Segment)> + 'a {
        let read = lists.read;
        self.pieces()
            .filter_map(|(at, piece)| match piece {
                pcl::Piece::Chunk(chunk) => Some((at, chunk.position, 0, chunk.length)),
                pcl::Piece::Base { offset, length } if self.chunks.call_chunk().is_some() => {
                    Some((at, Position::ZERO, offset, length))
                }
                _ => None,
            })
            .flat_map(move |(mut at, position, skip, length)| {
                read.chunk_range(position, skip, length)
                    .map(move |segment| {
                        let start = at;
                        at += u32_to_usize(segment.length);
                        (position, start..at, segment)
                    })
            })
    }

    /// Returns the number of memory regions for the pull, on a device that needs regions for RDMA
    /// Reads.
    pub(super) fn read_mrs<H: QpHandler>(&self, qp: &Qp<H>, lists: &Lists<'_>) -> u32 {
        self.segments(lists).fold(0, |sum, (_, octets, _)| {
            let pages = octets.end.div_ceil(PAGE_SIZE) - octets.start / PAGE_SIZE;
            let pages = u32::try_from(pages).unwrap_or(u32::MAX);
            sum.saturating_add(qp.port().rw_mr_factor(pages))
        })
    }

    /// Adds the RDMA Reads of the parts to pull to `transfer`, which already has the pages. May
    /// sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Transfer::add`]. Some parts may be mapped then, so the caller must unmap them.
    pub(super) fn map<H: QpHandler>(
        &self,
        qp: &Qp<H>,
        traffic: &Traffic,
        lists: &Lists<'_>,
        transfer: &mut Transfer,
        call: Cid,
    ) -> Result {
        let mut number = 0;
        let mut add = |position: Position, octets: Range<usize>, segment: Segment| -> Result {
            trace_svcrdma_decode_rseg(
                call,
                number,
                position.0,
                segment.handle.0,
                segment.length,
                segment.offset.0,
            );
            number += 1;
            transfer.add(qp, TransferDir::Read, octets, segment.into())?;
            STAT_READ.inc();
            traffic.read.add(u32_to_usize(segment.length));
            Ok(())
        };
        let Some(chunk) = self.alone() else {
            for (position, octets, segment) in self.segments(lists) {
                add(position, octets, segment)?;
            }
            return Ok(());
        };
        let mut at = 0;
        for segment in lists.read.chunk_range(chunk.position, 0, chunk.length) {
            let start = at;
            at += u32_to_usize(segment.length);
            add(chunk.position, start..at, segment)?;
        }
        Ok(())
    }

    /// Returns whether the RPC message is a Call, and has the XID of the transport header (RFC
    /// 8166, section 4.2.1). For an inline message this was checked before.
    pub(super) fn is_call(&self, xid: Xid, pages: &PageVec) -> bool {
        let mut words = [0; 8];
        match self.chunks.call_chunk() {
            Some(_) if self.paged_len() < words.len() => false,
            Some(_) => {
                pages.copy_out(0, &mut words).is_ok()
                    && message::payload_direction(xid, &words) == Some(Direction::Call)
            }
            None => true,
        }
    }

    /// Copies the parts that are not pulled into the pages: inline parts, and zeroes for XDR
    /// roundup.
    pub(super) fn fill(&self, inline: &[u8], pages: &mut PageVec) -> Result {
        if self.alone().is_some_and(|chunk| pad_len(chunk.length) == 0) {
            return Ok(());
        }
        for (at, piece) in self.pieces() {
            match piece {
                pcl::Piece::Base { offset, length } if self.chunks.call_chunk().is_none() => {
                    let start = u32_to_usize(offset);
                    let end = start + u32_to_usize(length);
                    pages.copy_in(at, inline.get(start..end).ok_or(EINVAL)?)?;
                }
                pcl::Piece::Pad(length) => {
                    let zeroes = [0; 4];
                    pages.copy_in(at, zeroes.get(..u32_to_usize(length)).ok_or(EINVAL)?)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
