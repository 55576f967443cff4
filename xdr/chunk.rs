// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The Read list, the Write list and the Reply chunk (RFC 8166, section 4.3).
//!
//! [`Lists::decode`] checks all three in one pass. The views borrow the received octets; their
//! iterators decode again what was found good before.

use super::cursor::Reader;
use super::error::{
    DecodeError,
    Item, //
};
use super::header::FIXED_LEN;
use super::segment::{
    ReadSegment,
    Segment, //
};
use super::units::{
    host_len,
    Position,
    WORD, //
};

/// What a receiver is ready to take in one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListLimits {
    /// Segments in all lists together.
    pub(crate) segments: u32,
    /// Octets in all Read chunks together.
    pub(crate) read_octets: u32,
}

/// Counts down the segments that a receiver is still ready to take.
struct Budget(u32);

impl Budget {
    fn spend(&mut self, segments: u32) -> Result<(), DecodeError> {
        self.0 = self
            .0
            .checked_sub(segments)
            .ok_or(DecodeError::TooManySegments)?;
        Ok(())
    }
}

/// The Read list: segments the peer offers to be read.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadList<'a> {
    /// Items, each with its discriminator.
    items: &'a [u8],
}

impl<'a> ReadList<'a> {
    fn decode(
        r: &mut Reader<'a>,
        limits: &ListLimits,
        budget: &mut Budget,
    ) -> Result<Self, DecodeError> {
        let start = *r;
        let mut end = *r;
        let mut octets = 0u32;
        while r.present()? {
            budget.spend(1)?;
            let item = ReadSegment::decode(r)?;
            octets = octets
                .checked_add(item.segment.length)
                .filter(|sum| *sum <= limits.read_octets)
                .ok_or(DecodeError::TooLong)?;
            end = *r;
        }
        Ok(Self {
            items: end.since(&start),
        })
    }

    /// Whether there is no segment at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The segments in list order, those of no length included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ReadSegment> + Clone + 'a {
        self.items
            .chunks_exact(ReadSegment::WIRE_LEN)
            .filter_map(|item| {
                let mut r = Reader::new(item);
                r.present().ok()?;
                ReadSegment::decode(&mut r).ok()
            })
    }

    /// The memory that holds the octets `[skip, skip + len)` of the chunk at `position`, in
    /// order. Segments of no length are left out.
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

/// A Write chunk or a Reply chunk: a counted array of plain segments, never empty.
#[derive(Clone, Copy)]
pub(crate) struct WriteChunk<'a> {
    segments: &'a [u8],
}

impl<'a> WriteChunk<'a> {
    fn decode(r: &mut Reader<'a>, budget: &mut Budget) -> Result<Self, DecodeError> {
        let count = r.u32(Item::SegmentCount)?;
        if count == 0 {
            return Err(DecodeError::EmptyChunk);
        }
        budget.spend(count)?;
        let len = host_len(count)
            .checked_mul(Segment::WIRE_LEN)
            .ok_or(DecodeError::TooManySegments)?;
        let segments = r.take(len, Item::Segment)?;
        let mut check = Reader::new(segments);
        while !check.rest().is_empty() {
            Segment::decode(&mut check)?;
        }
        Ok(Self { segments })
    }

    /// The segments in order, those of no length included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Segment> + Clone + 'a {
        self.segments
            .chunks_exact(Segment::WIRE_LEN)
            .filter_map(|segment| Segment::decode(&mut Reader::new(segment)).ok())
    }

    /// Octets that the segments hold together.
    pub(crate) fn capacity(&self) -> u64 {
        self.iter().fold(0u64, |sum, segment| {
            sum.saturating_add(u64::from(segment.length))
        })
    }

    /// The memory for the octets `[skip, skip + len)` of a payload, in order. Segments of no
    /// length are left out.
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

/// The Write list: chunks the peer offers to be written.
#[derive(Clone, Copy, Default)]
pub(crate) struct WriteList<'a> {
    /// Chunks, each with its discriminator.
    items: &'a [u8],
}

impl<'a> WriteList<'a> {
    fn decode(r: &mut Reader<'a>, budget: &mut Budget) -> Result<Self, DecodeError> {
        let start = *r;
        let mut end = *r;
        while r.present()? {
            WriteChunk::decode(r, budget)?;
            end = *r;
        }
        Ok(Self {
            items: end.since(&start),
        })
    }

    /// Whether there is no chunk at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The chunks in list order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = WriteChunk<'a>> + Clone + 'a {
        let mut r = Reader::new(self.items);
        core::iter::from_fn(move || {
            if r.rest().is_empty() {
                return None;
            }
            r.present().ok()?;
            WriteChunk::decode(&mut r, &mut Budget(u32::MAX)).ok()
        })
    }

    /// Octets on the wire, the end of the list included.
    pub(crate) fn wire_len(&self) -> usize {
        self.items.len().saturating_add(WORD)
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

impl<'a> Lists<'a> {
    /// Reads and checks the three lists.
    pub(crate) fn decode(r: &mut Reader<'a>, limits: &ListLimits) -> Result<Self, DecodeError> {
        let mut budget = Budget(limits.segments);
        let read = ReadList::decode(r, limits, &mut budget)?;
        let write = WriteList::decode(r, &mut budget)?;
        let reply = match r.present()? {
            true => Some(WriteChunk::decode(r, &mut budget)?),
            false => None,
        };
        Ok(Self { read, write, reply })
    }

    /// Whether the header has no chunk of any kind.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty() && self.write.is_empty() && self.reply.is_none()
    }

    /// Every segment of the header.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + 'a {
        let reads = self.read.iter().map(|item| item.segment);
        let writes = self.write.iter().flat_map(|chunk| chunk.iter());
        let reply = self.reply.into_iter().flat_map(|chunk| chunk.iter());
        reads.chain(writes).chain(reply)
    }

    /// Octets of the header of a Reply that returns these lists: the fixed words, an empty
    /// Read list, the Write list and the Reply chunk as offered.
    pub(crate) fn reply_header_len(&self) -> usize {
        FIXED_LEN
            .saturating_add(WORD)
            .saturating_add(self.write.wire_len())
            .saturating_add(WORD)
            .saturating_add(self.reply.map_or(0, |chunk| chunk.wire_len()))
    }
}
