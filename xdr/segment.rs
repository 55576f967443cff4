// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Segments: contiguous pieces of a peer's registered memory (RFC 8166, section 3.4.3).

use super::cursor::Writer;
use super::error::{
    DecodeError,
    EncodeError, //
};
use super::units::{
    Handle,
    Offset,
    Position,
    WORD, //
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

    /// Reads a segment.
    pub(crate) const fn from_wire(bytes: &[u8; Self::WIRE_LEN]) -> Self {
        let [h0, h1, h2, h3, l0, l1, l2, l3, offset @ ..] = *bytes;
        Self {
            handle: Handle(u32::from_be_bytes([h0, h1, h2, h3])),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
            offset: Offset(u64::from_be_bytes(offset)),
        }
    }

    /// Checks that the segment does not exceed the address space.
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        match self.offset.0.checked_add(u64::from(self.length)) {
            Some(_) => Ok(()),
            None => Err(DecodeError::SegmentRange),
        }
    }

    /// Writes the segment.
    pub(crate) fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.words([self.handle.0, self.length])?;
        w.put(self.offset.0.to_be_bytes())
    }

    /// Returns the words of the segment on the wire.
    pub(crate) fn words(&self) -> [u32; Self::WIRE_LEN / WORD] {
        // Neither conversion fails.
        let half = |octets: u64| u32::try_from(octets).unwrap_or_default();
        let offset = self.offset.0;
        let (high, low) = (half(offset >> 32), half(offset & u64::from(u32::MAX)));
        [self.handle.0, self.length, high, low]
    }

    /// Returns the same memory, shortened to `length` octets.
    pub(crate) const fn with_length(self, length: u32) -> Self {
        Self { length, ..self }
    }

    /// Returns the part that starts `skip` octets in and is at most `limit` octets long. `None` if
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

/// A read segment: a plain segment and the position of its octets in the Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadSegment {
    /// Shared by all segments of one Read chunk.
    pub(crate) position: Position,
    /// The memory to be read.
    pub(crate) segment: Segment,
}

impl ReadSegment {
    /// Octets on the wire, the discriminator before it not included.
    pub(crate) const WIRE_LEN: usize = 20;

    /// Octets of an item of the Read list: the discriminator and the read segment.
    pub(crate) const ITEM_LEN: usize = 24;

    /// Minimum position of a Read chunk other than zero: the XID and the message type of an RPC
    /// message are never in a chunk of their own.
    pub(crate) const MIN_POSITION: u32 = 8;

    /// Reads a read segment, without the discriminator.
    pub(crate) const fn from_wire(bytes: &[u8; Self::WIRE_LEN]) -> Self {
        let [p0, p1, p2, p3, ref segment @ ..] = *bytes;
        Self {
            position: Position(u32::from_be_bytes([p0, p1, p2, p3])),
            segment: Segment::from_wire(segment),
        }
    }

    /// Checks position and segment.
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        self.segment.check()?;
        let position = self.position.0;
        if position & 3 != 0 || (1..Self::MIN_POSITION).contains(&position) {
            return Err(DecodeError::Position);
        }
        Ok(())
    }

    /// Writes the read segment, with the discriminator.
    pub(crate) fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.words([1, self.position.0])?;
        self.segment.encode(w)
    }
}
