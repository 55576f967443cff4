// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The Read list, the Write list and the Reply chunk (RFC 8166, section 4.3).
//!
//! [`Survey::decode`] checks all three in one pass and remembers where they are, in
//! [`Places`]. The views in [`Lists`] borrow the received octets; their iterators read again
//! what has been checked, and cannot fail.

use super::cursor::{
    Reader,
    Span, //
};
use super::error::{
    DecodeError,
    Item, //
};
use super::segment::{
    ReadSegment,
    Segment, //
};
use super::units::{
    host_len,
    Handle,
    Position,
    WORD, //
};
use super::version::Version;

/// What a receiver is ready to take in one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListLimits {
    /// Segments in all lists together.
    pub(crate) segments: u32,
    /// Octets in all Read chunks together.
    pub(crate) read_octets: u32,
}

/// Where the lists of a message are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Items of the Read list, each with its discriminator.
    reads: Span,
    /// Chunks of the Write list, each with its discriminator.
    writes: Span,
    /// Segments of the Reply chunk. Empty if there is no such chunk.
    reply: Span,
}

impl Places {
    /// The lists in `message`. Lists that lie beyond its end are empty, so that any octets have
    /// a result; only those that the places were made from have a meaningful one.
    pub(crate) fn lists<'a>(&self, message: &'a [u8]) -> Lists<'a> {
        Lists {
            read: ReadList {
                items: self.reads.of(message),
            },
            write: WriteList {
                items: self.writes.of(message),
            },
            reply: match self.reply.of(message) {
                [] => None,
                segments => Some(WriteChunk { segments }),
            },
        }
    }

    /// Whether the header has no chunk of any kind.
    pub(crate) const fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_empty()
    }

    /// Whether the Read list is empty.
    pub(crate) const fn no_reads(&self) -> bool {
        self.reads.is_empty()
    }
}

/// The handles of a header's segments, as far as they matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handles {
    None,
    /// All segments have this one.
    One(Handle),
    Several,
}

/// One pass over the lists of a header.
pub(crate) struct Survey {
    limits: ListLimits,
    /// Segments that may still come.
    segments_left: u32,
    /// Octets that may still come in Read chunks.
    octets_left: u32,
    handles: Handles,
    position_zero: bool,
}

impl Survey {
    /// Reads and checks the three lists.
    ///
    /// # Errors
    ///
    /// Those of [`DecodeError`] that are about lists, chunks and segments.
    pub(crate) fn decode(
        r: &mut Reader<'_>,
        limits: &ListLimits,
    ) -> Result<(Self, Places), DecodeError> {
        let mut this = Self {
            limits: *limits,
            segments_left: limits.segments,
            octets_left: limits.read_octets,
            handles: Handles::None,
            position_zero: false,
        };
        let reads = this.reads(r)?;
        let writes = this.writes(r)?;
        let reply = match r.present()? {
            true => this.chunk(r)?,
            false => Span::default(),
        };
        let places = Places {
            reads,
            writes,
            reply,
        };
        Ok((this, places))
    }

    /// Whether the Payload stream is in a Position Zero Read chunk.
    pub(crate) const fn position_zero(&self) -> bool {
        self.position_zero
    }

    /// The handle that a Responder invalidates remotely if both peers support that: the one
    /// handle of the Call, if all its segments share it (RFC 8797, sections 3.2 and 5.1). With
    /// two or more the Requester must invalidate by itself in any case. Segments without octets
    /// do not count: they need no memory.
    pub(crate) const fn only_handle(&self) -> Option<Handle> {
        match self.handles {
            Handles::One(handle) => Some(handle),
            Handles::None | Handles::Several => None,
        }
    }

    fn spend(&mut self, segments: u32) -> Result<(), DecodeError> {
        match self.segments_left.checked_sub(segments) {
            Some(left) => {
                self.segments_left = left;
                Ok(())
            }
            None => Err(DecodeError::TooManySegments {
                max: self.limits.segments,
            }),
        }
    }

    fn note(&mut self, segment: &Segment) {
        if segment.length == 0 {
            return;
        }
        self.handles = match self.handles {
            Handles::None => Handles::One(segment.handle),
            Handles::One(handle) if handle == segment.handle => return,
            _ => Handles::Several,
        };
    }

    fn reads(&mut self, r: &mut Reader<'_>) -> Result<Span, DecodeError> {
        let start = r.at();
        let mut items = Span::default();
        while r.present()? {
            self.spend(1)?;
            let item = ReadSegment::from_wire(r.array(Item::ReadSegment)?);
            item.check()?;
            self.octets_left = self
                .octets_left
                .checked_sub(item.segment.length)
                .ok_or(DecodeError::TooLong)?;
            self.position_zero |= item.position == Position::ZERO;
            self.note(&item.segment);
            items = r.since(start);
        }
        Ok(items)
    }

    fn writes(&mut self, r: &mut Reader<'_>) -> Result<Span, DecodeError> {
        let start = r.at();
        let mut items = Span::default();
        while r.present()? {
            self.chunk(r)?;
            items = r.since(start);
        }
        Ok(items)
    }

    /// Reads a counted array of segments; returns where the segments are.
    fn chunk(&mut self, r: &mut Reader<'_>) -> Result<Span, DecodeError> {
        let count = r.u32(Item::SegmentCount)?;
        if count == 0 {
            return Err(DecodeError::EmptyChunk);
        }
        self.spend(count)?;
        let start = r.at();
        for _ in 0..count {
            let segment = Segment::from_wire(r.array(Item::Segment)?);
            segment.check()?;
            self.note(&segment);
        }
        Ok(r.since(start))
    }
}

/// The Read list: segments the peer offers to be read.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadList<'a> {
    /// Items, each with its discriminator.
    items: &'a [u8],
}

impl<'a> ReadList<'a> {
    /// Whether there is no segment at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The segments in list order, those without octets included.
    pub(crate) fn iter(&self) -> ReadSegments<'a> {
        ReadSegments { items: self.items }
    }

    /// The memory that holds the octets `[skip, skip + len)` of the chunk at `position`, in
    /// order. Segments without octets are left out.
    pub(crate) fn chunk_range(
        &self,
        position: Position,
        skip: u32,
        len: u32,
    ) -> impl Iterator<Item = Segment> + Clone + 'a {
        let mut skip = skip;
        let mut left = len;
        self.iter()
            .filter(move |item| item.position == position)
            .filter_map(move |item| {
                let part = item.segment.part(skip, left);
                skip = skip.saturating_sub(item.segment.length);
                left = left.saturating_sub(part.map_or(0, |part| part.length));
                part
            })
    }
}

/// Iterates over the segments of a [`ReadList`].
#[derive(Clone)]
pub(crate) struct ReadSegments<'a> {
    items: &'a [u8],
}

impl Iterator for ReadSegments<'_> {
    type Item = ReadSegment;

    fn next(&mut self) -> Option<ReadSegment> {
        let (item, rest) = self
            .items
            .split_first_chunk::<{ ReadSegment::ITEM_LEN }>()?;
        self.items = rest;
        // The discriminator is known to be 1.
        item.last_chunk().map(ReadSegment::from_wire)
    }
}

/// A Write chunk or a Reply chunk: a counted array of plain segments, never empty.
#[derive(Clone, Copy)]
pub(crate) struct WriteChunk<'a> {
    segments: &'a [u8],
}

impl<'a> WriteChunk<'a> {
    /// The segments in order, those without octets included.
    pub(crate) fn iter(&self) -> Segments<'a> {
        Segments {
            octets: self.segments,
        }
    }

    /// Octets that the segments hold together.
    pub(crate) fn capacity(&self) -> u64 {
        self.iter().fold(0u64, |sum, segment| {
            sum.saturating_add(u64::from(segment.length))
        })
    }

    /// The memory for the octets `[skip, skip + len)` of a payload, in order. Segments without
    /// octets are left out.
    pub(crate) fn range(&self, skip: u32, len: u32) -> impl Iterator<Item = Segment> + Clone + 'a {
        let mut skip = skip;
        let mut left = len;
        self.iter().filter_map(move |segment| {
            let part = segment.part(skip, left);
            skip = skip.saturating_sub(segment.length);
            left = left.saturating_sub(part.map_or(0, |part| part.length));
            part
        })
    }

    /// Octets on the wire, the count included.
    pub(crate) fn wire_len(&self) -> usize {
        self.segments.len().saturating_add(WORD)
    }
}

/// Iterates over the segments of a [`WriteChunk`].
#[derive(Clone)]
pub(crate) struct Segments<'a> {
    octets: &'a [u8],
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let (segment, rest) = self.octets.split_first_chunk()?;
        self.octets = rest;
        Some(Segment::from_wire(segment))
    }
}

/// The Write list: chunks the peer offers to be written.
#[derive(Clone, Copy, Default)]
pub(crate) struct WriteList<'a> {
    /// Chunks, each with its discriminator.
    items: &'a [u8],
}

impl<'a> WriteList<'a> {
    /// The chunks in list order.
    pub(crate) fn iter(&self) -> WriteChunks<'a> {
        WriteChunks { items: self.items }
    }

    /// Octets on the wire, the end of the list included.
    pub(crate) fn wire_len(&self) -> usize {
        self.items.len().saturating_add(WORD)
    }
}

/// Iterates over the chunks of a [`WriteList`].
#[derive(Clone)]
pub(crate) struct WriteChunks<'a> {
    items: &'a [u8],
}

impl<'a> Iterator for WriteChunks<'a> {
    type Item = WriteChunk<'a>;

    fn next(&mut self) -> Option<WriteChunk<'a>> {
        let (head, rest) = self.items.split_first_chunk::<{ 2 * WORD }>()?;
        let count = head
            .last_chunk()
            .map_or(0, |word| u32::from_be_bytes(*word));
        let len = host_len(count).saturating_mul(Segment::WIRE_LEN);
        let (segments, rest) = rest.split_at_checked(len)?;
        self.items = rest;
        Some(WriteChunk { segments })
    }
}

/// The three lists of a header.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lists<'a> {
    /// Memory to be read.
    pub(crate) read: ReadList<'a>,
    /// Memory for results that are placed directly.
    pub(crate) write: WriteList<'a>,
    /// Memory for a whole Reply.
    pub(crate) reply: Option<WriteChunk<'a>>,
}

impl Lists<'_> {
    /// Octets of the header of a Reply that returns these lists: what is before the lists, an
    /// empty Read list, the Write list and the Reply chunk as offered.
    pub(crate) fn reply_header_len(&self, version: Version) -> usize {
        version
            .lists_at()
            .saturating_add(WORD)
            .saturating_add(self.write.wire_len())
            .saturating_add(WORD)
            .saturating_add(self.reply.map_or(0, |chunk| chunk.wire_len()))
    }
}
