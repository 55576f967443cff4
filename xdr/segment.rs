// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Segments: contiguous pieces of a peer's registered memory (RFC 8166, section 3.4.3).

use super::cursor::{
    Reader,
    Writer, //
};
use super::error::{
    DecodeError,
    EncodeError,
    Item, //
};
use super::units::{
    Handle,
    Offset,
    Position, //
};

/// A plain segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Names the registration.
    pub(crate) handle: Handle,
    /// Octets. Zero is legal: nothing is to be moved.
    pub(crate) length: u32,
    /// Address of the first octet.
    pub(crate) offset: Offset,
}

impl Segment {
    /// Octets on the wire.
    pub(crate) const WIRE_LEN: usize = 16;

    /// Reads a segment; one that exceeds the address space is refused.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let segment = Self {
            handle: Handle(r.u32(Item::Segment)?),
            length: r.u32(Item::Segment)?,
            offset: Offset(r.u64(Item::Segment)?),
        };
        match segment.offset.0.checked_add(u64::from(segment.length)) {
            Some(_) => Ok(segment),
            None => Err(DecodeError::SegmentRange),
        }
    }

    /// Writes the segment.
    pub(crate) fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.u32(self.handle.0)?;
        w.u32(self.length)?;
        w.u64(self.offset.0)
    }

    /// The same memory, shortened to `length` octets.
    pub(crate) const fn with_length(self, length: u32) -> Self {
        Self { length, ..self }
    }

    /// The part that starts `skip` octets in and is at most `limit` octets long. `None` if
    /// nothing is left.
    pub(crate) fn part(self, skip: u32, limit: u32) -> Option<Self> {
        let length = self.length.checked_sub(skip)?.min(limit);
        let offset = self.offset.0.checked_add(u64::from(skip))?;
        (length > 0).then_some(Self {
            handle: self.handle,
            length,
            offset: Offset(offset),
        })
    }
}

/// A read segment: a plain segment and the place of its octets in the Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadSegment {
    /// Shared by all segments of one Read chunk.
    pub(crate) position: Position,
    /// The memory to be read.
    pub(crate) segment: Segment,
}

impl ReadSegment {
    /// Octets on the wire, the discriminator before it included.
    pub(crate) const WIRE_LEN: usize = 24;

    /// Least position of a Read chunk other than zero: the XID and the message type of an RPC
    /// message are never in a chunk of their own.
    pub(crate) const MIN_POSITION: u32 = 8;

    /// Reads a read segment, without the discriminator.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let position = r.u32(Item::ReadSegment)?;
        let segment = Segment::decode(r)?;
        if position & 3 != 0 || (1..Self::MIN_POSITION).contains(&position) {
            return Err(DecodeError::Position);
        }
        Ok(Self {
            position: Position(position),
            segment,
        })
    }

    /// Writes the read segment, with the discriminator.
    pub(crate) fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.u32(1)?;
        w.u32(self.position.0)?;
        self.segment.encode(w)
    }
}
