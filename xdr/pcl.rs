// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The parsed Read list: Read chunks in the order of the Payload stream (RFC 8166, section
//! 3.4.5).
//!
//! A Requester may list segments in any order; those with one position form a chunk. A
//! Responder puts each chunk back at its position in the *base*: the inline Payload stream, or
//! the Position Zero Read chunk when the whole message was sent that way.
//!
//! ```text
//!   base      |--- a ---|----- b -----|-- c --|
//!   chunks              ^ P1: x       ^ P2: y (odd length)
//!   stream    |--- a ---|x|----- b ----|y|pad|-- c --|
//! ```
//!
//! [`ReadChunks::set`] checks the positions: no chunk overlaps another, and none lies beyond the
//! end of the base. [`ReadChunks::pieces`] then walks the stream.

use super::chunk::ReadList;
use super::error::DecodeError;
use super::segment::ReadSegment;
use super::units::{
    len_to_u32,
    pad_len,
    padded_len,
    Position, //
};

/// The largest number of Read chunks of one Call, the Position Zero Read chunk not counted.
pub(crate) const MAX_READ_CHUNKS: usize = 16;

/// One Read chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadChunk {
    /// Position of the chunk in the unreduced Payload stream.
    pub(crate) position: Position,
    /// Octets in all its segments. Never zero.
    pub(crate) length: u32,
}

impl ReadChunk {
    const NONE: Self = Self {
        position: Position::ZERO,
        length: 0,
    };

    fn add(&mut self, length: u32) -> Result<(), DecodeError> {
        self.length = self
            .length
            .checked_add(length)
            .ok_or(DecodeError::TooLong)?;
        Ok(())
    }
}

/// A piece of the unreduced Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Octets `[offset, offset + length)` of the base.
    Base {
        /// First octet.
        offset: u32,
        /// Number of octets; not zero.
        length: u32,
    },
    /// A whole Read chunk.
    Chunk(ReadChunk),
    /// Octets of XDR roundup, which the Requester left out; 1 to 3.
    Pad(u32),
}

/// The Read chunks of a Call, sorted and checked. Borrows nothing: it can be kept while the
/// chunks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadChunks {
    chunks: [ReadChunk; MAX_READ_CHUNKS],
    count: usize,
    call: ReadChunk,
    base_len: u32,
    stream_len: u32,
}

impl ReadChunks {
    /// A set without Read chunks.
    pub(crate) const EMPTY: Self = Self {
        chunks: [ReadChunk::NONE; MAX_READ_CHUNKS],
        count: 0,
        call: ReadChunk::NONE,
        base_len: 0,
        stream_len: 0,
    };

    /// Replaces the contents with the chunks of `list`, sorted and checked.
    ///
    /// `inline_len` is the length of the inline Payload stream; `None` for RDMA_NOMSG.
    /// `max_stream` is the longest unreduced Payload stream that the receiver has room for.
    /// Segments without octets are ignored.
    ///
    /// # Errors
    ///
    /// Fails if the chunks do not fit together, or if there are too many. After an error the
    /// contents must not be used.
    pub(crate) fn set(
        &mut self,
        list: &ReadList<'_>,
        inline_len: Option<u32>,
        max_stream: u32,
    ) -> Result<(), DecodeError> {
        self.count = 0;
        self.call = ReadChunk::NONE;
        if let (Some(item), Some(inline_len)) = (list.sole(), inline_len) {
            if item.segment.length != 0 && item.position != Position::ZERO {
                return self.set_one(&item, inline_len, max_stream);
            }
        }
        for item in list.iter() {
            if item.segment.length != 0 {
                self.insert(item.position, item.segment.length)?;
            }
        }
        self.base_len = match (inline_len, self.call.length) {
            (Some(inline_len), 0) => inline_len,
            (None, 1..) => self.call.length,
            _ => return Err(DecodeError::PayloadLocation),
        };
        self.stream_len = self.check_stream(max_stream)?;
        Ok(())
    }

    /// Does what [`Self::set`] does, for an inline message and one segment that has octets and is
    /// not at position zero.
    fn set_one(
        &mut self,
        item: &ReadSegment,
        inline_len: u32,
        max_stream: u32,
    ) -> Result<(), DecodeError> {
        let (position, length) = (item.position, item.segment.length);
        if position.0 > inline_len {
            return Err(DecodeError::Overlap);
        }
        self.stream_len = padded_len(length)
            .and_then(|len| len.checked_add(inline_len))
            .filter(|len| *len <= max_stream)
            .ok_or(DecodeError::TooLong)?;
        if let Some(chunk) = self.chunks.first_mut() {
            *chunk = ReadChunk { position, length };
            self.count = 1;
        }
        self.base_len = inline_len;
        Ok(())
    }

    fn insert(&mut self, position: Position, length: u32) -> Result<(), DecodeError> {
        if position == Position::ZERO {
            return self.call.add(length);
        }
        let at = self
            .chunks()
            .partition_point(|chunk| chunk.position < position);
        if let Some(chunk) = self
            .chunks
            .get_mut(..self.count)
            .and_then(|c| c.get_mut(at))
        {
            if chunk.position == position {
                return chunk.add(length);
            }
        }
        let count = self.count.saturating_add(1);
        let moved = self
            .chunks
            .get_mut(at..count)
            .ok_or(DecodeError::TooManyReadChunks {
                max: len_to_u32(MAX_READ_CHUNKS).unwrap_or(u32::MAX),
            })?;
        if moved.len() > 1 {
            moved.rotate_right(1);
        }
        if let Some(chunk) = moved.first_mut() {
            *chunk = ReadChunk { position, length };
        }
        self.count = count;
        Ok(())
    }

    /// Checks every position and returns the length of the unreduced stream.
    fn check_stream(&self, max_stream: u32) -> Result<u32, DecodeError> {
        let mut base_left = self.base_len;
        let mut at = 0u32;
        for chunk in self.chunks() {
            let gap = chunk
                .position
                .0
                .checked_sub(at)
                .ok_or(DecodeError::Overlap)?;
            base_left = base_left.checked_sub(gap).ok_or(DecodeError::Overlap)?;
            at = padded_len(chunk.length)
                .and_then(|len| len.checked_add(chunk.position.0))
                .ok_or(DecodeError::TooLong)?;
        }
        at.checked_add(base_left)
            .filter(|len| *len <= max_stream)
            .ok_or(DecodeError::TooLong)
    }

    /// Returns the Position Zero Read chunk.
    pub(crate) fn call_chunk(&self) -> Option<ReadChunk> {
        (self.call.length != 0).then_some(self.call)
    }

    /// Returns the other Read chunks, by rising position.
    pub(crate) fn chunks(&self) -> &[ReadChunk] {
        self.chunks.get(..self.count).unwrap_or_default()
    }

    /// Returns whether nothing has to be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0 && self.call.length == 0
    }

    /// Returns the octets of the unreduced Payload stream, roundup included.
    pub(crate) fn stream_len(&self) -> u32 {
        self.stream_len
    }

    /// Returns the unreduced Payload stream from its start to its end.
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        Pieces {
            chunks: self.chunks().iter(),
            next: None,
            pad: 0,
            at: 0,
            base_at: 0,
            base_len: self.base_len,
        }
    }
}

/// Walks the pieces of a Payload stream; see [`ReadChunks::pieces`].
#[derive(Clone)]
pub(crate) struct Pieces<'a> {
    chunks: core::slice::Iter<'a, ReadChunk>,
    /// A chunk that was taken from `chunks` and waits for the base before it.
    next: Option<ReadChunk>,
    /// Roundup of the chunk returned last.
    pad: u32,
    /// Octets of the stream passed so far.
    at: u32,
    /// Octets of the base passed so far.
    base_at: u32,
    base_len: u32,
}

impl Pieces<'_> {
    fn base(&mut self, length: u32) -> Piece {
        let offset = self.base_at;
        self.base_at = self.base_at.saturating_add(length);
        self.at = self.at.saturating_add(length);
        Piece::Base { offset, length }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.pad != 0 {
            let pad = core::mem::take(&mut self.pad);
            self.at = self.at.saturating_add(pad);
            return Some(Piece::Pad(pad));
        }
        let Some(chunk) = self.next.take().or_else(|| self.chunks.next().copied()) else {
            let length = self.base_len.saturating_sub(self.base_at);
            return (length != 0).then(|| self.base(length));
        };
        let gap = chunk.position.0.saturating_sub(self.at);
        if gap != 0 {
            self.next = Some(chunk);
            return Some(self.base(gap));
        }
        self.at = self.at.saturating_add(chunk.length);
        self.pad = pad_len(chunk.length);
        Some(Piece::Chunk(chunk))
    }
}
