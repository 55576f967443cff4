// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The Read list, the Write list and the Reply chunk (RFC 8166, section 4.3).
//!
//! [`Survey::decode`] checks all three lists in one pass and records their lengths in
//! [`ListCounts`]. The views in [`Lists`] borrow the received octets. Their iterators read octets
//! that have already been checked, and cannot fail.

use super::cursor::Reader;
use super::error::{
    DecodeError,
    ErrorBody,
    Item, //
};
use super::message::Direction;
use super::segment::{
    ReadSegment,
    Segment, //
};
use super::units::{
    u32_to_usize,
    Handle,
    Offset,
    Position,
    WORD, //
};
use super::version::Version;

/// The largest number of Write chunks in a Call of version 2: the server places no more results
/// directly. Version 1 has no error report for too many Write chunks, so a Call of version 1 may
/// offer more, as long as the Reply does not need them.
pub(crate) const MAX_WRITE_CHUNKS: u32 = 8;

/// Limits on the chunk lists that a receiver accepts in one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListLimits {
    /// Maximum number of segments in all three lists together.
    pub(crate) segments: u32,
    /// Maximum number of octets in all Read chunks together.
    pub(crate) read_octets: u32,
}

/// The number of items in each chunk list of a header, from which the lists are located, and the
/// room for results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListCounts {
    /// Number of segments in the Read list.
    reads: u32,
    /// Number of chunks in the Write list.
    writes: u32,
    /// Number of segments in the Reply chunk, or `None` without a Reply chunk.
    reply: Option<u32>,
    /// Number of octets in all Write chunks and the Reply chunk.
    room: u64,
}

impl ListCounts {
    /// Reads and checks lists without a chunk, or whose only chunk is a Read chunk or a Write chunk
    /// of one segment, as in most headers. Also returns the segment; it is all zeros if there is no
    /// chunk. Returns `None` for other lists, and for lists that [`Survey::decode`] would refuse.
    #[inline(always)]
    pub(crate) fn decode_fast(r: &mut Reader<'_>, limits: &ListLimits) -> Option<(Self, Segment)> {
        const NONE: Segment = Segment {
            handle: Handle(0),
            length: 0,
            offset: Offset(0),
        };
        if r.skip_zeros::<{ Lists::EMPTY_LEN }>() {
            return Some((Self::default(), NONE));
        }
        let lists = r.array(Item::Discriminator).ok()?;
        let sole = Self::decode_sole(lists, limits)?;
        (limits.segments != 0).then_some(sole)
    }

    /// Reads and checks lists with one chunk of one segment, which is in the Read list or in the
    /// Write list. Returns `None` for others.
    #[inline(always)]
    fn decode_sole(lists: &[u8; Lists::SOLE_LEN], limits: &ListLimits) -> Option<(Self, Segment)> {
        // No Read list, and a Write list with a chunk of one segment; a Read list.
        const WRITE: [u8; 3 * WORD] = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
        const READ: [u8; WORD] = [0, 0, 0, 1];
        let mut counts = Self::default();
        let (write, segment) = lists.split_first_chunk()?;
        if *write == WRITE && *lists.last_chunk()? == [0; 2 * WORD] {
            let segment = Segment::from_wire(segment.first_chunk()?);
            segment.check().ok()?;
            (counts.writes, counts.room) = (1, u64::from(segment.length));
            return Some((counts, segment));
        }
        let (read, item) = lists.split_first_chunk()?;
        if *read != READ || *lists.last_chunk()? != [0; 3 * WORD] {
            return None;
        }
        let item = ReadSegment::from_wire(item.first_chunk()?);
        item.check().ok()?;
        counts.reads = 1;
        (item.segment.length <= limits.read_octets).then_some((counts, item.segment))
    }

    /// Returns views of the chunk lists in `lists`, the part of a header from its Read list to its
    /// end. The views are meaningful only for the octets from which `self` was decoded. Other
    /// octets give arbitrary or empty views, but never a panic.
    pub(crate) fn lists<'a>(&self, lists: &'a [u8]) -> Lists<'a> {
        if self.is_empty() {
            return Lists::default();
        }
        self.split(lists).unwrap_or_default()
    }

    fn split<'a>(&self, lists: &'a [u8]) -> Option<Lists<'a>> {
        let reads = u32_to_usize(self.reads).checked_mul(ReadSegment::ITEM_LEN)?;
        let (reads, rest) = lists.split_at_checked(reads)?;
        let (_, rest) = rest.split_at_checked(WORD)?;
        let (rest, reply) = match self.reply {
            None => (rest, None),
            Some(count) => {
                let segments = u32_to_usize(count).checked_mul(Segment::WIRE_LEN)?;
                let (rest, segments) = rest.split_at_checked(rest.len().checked_sub(segments)?)?;
                let rest = rest.get(..rest.len().checked_sub(WORD)?)?;
                (rest, Some(WriteChunk { segments }))
            }
        };
        // The word that ends the Write list, and the discriminator of the Reply chunk.
        let writes = rest.get(..rest.len().checked_sub(2 * WORD)?)?;
        Some(Lists {
            read: ReadList { items: reads },
            write: WriteList { items: writes },
            reply,
        })
    }

    /// Returns whether the header has no chunk of any kind.
    pub(crate) const fn is_empty(&self) -> bool {
        self.reads == 0 && self.writes == 0 && self.reply.is_none()
    }

    /// Returns the error report of a Responder that supports no chunks (RFC 8167, section 5.3), or
    /// `None` if the header has no chunk.
    pub(crate) const fn refusal(&self) -> Option<ErrorBody> {
        match (self.reads, self.writes, self.reply) {
            (0, 0, None) => None,
            (0, 0, Some(_)) => Some(ErrorBody::Segments { max: 0 }),
            (0, _, _) => Some(ErrorBody::WriteChunks { max: 0 }),
            _ => Some(ErrorBody::ReadChunks { max: 0 }),
        }
    }

    /// Returns whether the header has neither a Write chunk nor a Reply chunk.
    pub(crate) const fn no_results(&self) -> bool {
        self.writes == 0 && self.reply.is_none()
    }

    /// Returns whether the only chunk is a Write chunk.
    pub(crate) const fn is_one_write(&self) -> bool {
        self.reads == 0 && self.writes == 1 && self.reply.is_none()
    }

    /// Returns whether the header has a Reply chunk.
    pub(crate) const fn has_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// Returns the number of octets that the Write chunks and the Reply chunk have room for.
    pub(crate) const fn room(&self) -> u64 {
        self.room
    }

    /// Returns whether the Read list is empty.
    pub(crate) const fn no_reads(&self) -> bool {
        self.reads == 0
    }
}

/// The distinct handles among a header's segments: none, one, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handles {
    None,
    /// All segments that are not empty have this handle.
    One(Handle),
    Several,
}

/// The result of one pass over the chunk lists of a header.
pub(crate) struct Survey {
    /// Number of segments that the limit still allows.
    segments_left: u32,
    /// Maximum number of segments in the header.
    max_segments: u32,
    handles: Handles,
    position_zero: bool,
    /// The handle that the header names for remote invalidation.
    named: Option<Handle>,
    /// Whether a segment has the handle `named`.
    named_found: bool,
    /// Number of octets in Write chunks and the Reply chunk.
    room: u64,
    /// Number of octets that the limit still allows in Read chunks.
    octets_left: u32,
}

impl Survey {
    /// Reads and checks the three chunk lists of a header.
    ///
    /// `named` is the handle that the header names for remote invalidation. `None` and a handle of
    /// zero both mean that the header names no handle; headers of version 1 never do.
    ///
    /// # Errors
    ///
    /// The variants of [`DecodeError`] about lists, chunks and segments.
    pub(crate) fn decode(
        r: &mut Reader<'_>,
        limits: &ListLimits,
        version: Version,
        named: Option<Handle>,
    ) -> Result<(Self, ListCounts), DecodeError> {
        let mut this = Self {
            segments_left: limits.segments,
            max_segments: limits.segments,
            handles: Handles::None,
            position_zero: false,
            named,
            named_found: false,
            room: 0,
            octets_left: limits.read_octets,
        };
        let mut counts = ListCounts::default();
        this.lists(r, version, &mut counts)?;
        Ok((this, counts))
    }

    fn lists(
        &mut self,
        r: &mut Reader<'_>,
        version: Version,
        counts: &mut ListCounts,
    ) -> Result<(), DecodeError> {
        let max_writes = match version {
            Version::One => u32::MAX,
            Version::Two => MAX_WRITE_CHUNKS,
        };
        while r.present()? {
            if self.segments_left == 0 {
                return self.spend(1);
            }
            self.read_segment(&ReadSegment::from_wire(r.array(Item::ReadSegment)?))?;
            counts.reads = counts.reads.saturating_add(1);
        }
        while r.present()? {
            if counts.writes >= max_writes {
                return Err(DecodeError::TooManyWriteChunks { max: max_writes });
            }
            self.chunk(r)?;
            counts.writes = counts.writes.saturating_add(1);
        }
        if r.present()? {
            let count = self.chunk(r)?;
            if count == 0 && version == Version::One {
                return Err(DecodeError::EmptyChunk);
            }
            counts.reply = Some(count);
        }
        counts.room = self.room;
        Ok(())
    }

    /// Returns whether the Payload stream is in a Position Zero Read chunk.
    pub(crate) const fn position_zero(&self) -> bool {
        self.position_zero
    }

    /// Returns the handle that a Responder of version 1 may invalidate remotely, if both peers
    /// support remote invalidation (RFC 8797, sections 3.2 and 5.1).
    ///
    /// This is the handle that all segments of the Call share. A Requester that offers two or more
    /// handles has to invalidate locally in any case. Segments without octets are ignored: they
    /// need no registered memory. A handle of zero is none, as in a header of version 2.
    pub(crate) const fn only_handle(&self) -> Option<Handle> {
        match self.handles {
            Handles::None | Handles::One(Handle(0)) | Handles::Several => None,
            Handles::One(handle) => Some(handle),
        }
    }

    /// Returns the handle that the header of a version 2 Call names for remote invalidation
    /// (section 6.2.3). The field has no meaning in a Reply, for which this returns `None`.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Invalidate`] if no segment has the named handle.
    fn named_handle(&self, direction: Direction) -> Result<Option<Handle>, DecodeError> {
        match (direction, self.named) {
            (Direction::Reply, _) | (_, None | Some(Handle(0))) => Ok(None),
            (Direction::Call, handle) if self.named_found => Ok(handle),
            (Direction::Call, _) => Err(DecodeError::Invalidate),
        }
    }

    /// Checks the direction of a version 2 message, and returns the handle that it names for remote
    /// invalidation.
    ///
    /// `said` is the direction in the transport header, `found` the direction of the RPC message.
    ///
    /// # Errors
    ///
    /// [`DecodeError::RpcHeader`] if `found` is `None`, [`DecodeError::Direction`] if the two
    /// directions differ, [`DecodeError::Invalidate`] if no segment has the named handle.
    pub(crate) fn check_direction(
        &self,
        said: Direction,
        found: Option<Direction>,
    ) -> Result<Option<Handle>, DecodeError> {
        match found {
            Some(found) if found == said => self.named_handle(said),
            Some(_) => Err(DecodeError::Direction),
            None => Err(DecodeError::RpcHeader),
        }
    }

    fn spend(&mut self, segments: u32) -> Result<(), DecodeError> {
        match self.segments_left.checked_sub(segments) {
            Some(left) => {
                self.segments_left = left;
                Ok(())
            }
            None => Err(DecodeError::TooManySegments {
                max: self.max_segments,
            }),
        }
    }

    fn note(&mut self, segment: &Segment) {
        self.named_found |= self.named == Some(segment.handle);
        if segment.length == 0 {
            return;
        }
        self.handles = match self.handles {
            Handles::None => Handles::One(segment.handle),
            Handles::One(handle) if handle == segment.handle => return,
            _ => Handles::Several,
        };
    }

    /// Reads a counted array of segments and returns the count.
    #[inline(always)]
    fn chunk(&mut self, r: &mut Reader<'_>) -> Result<u32, DecodeError> {
        let count = r.u32(Item::SegmentCount)?;
        if let Err(error) = self.spend(count) {
            // A chunk that is cut off cannot be parsed, whatever its count.
            r.take(
                u32_to_usize(count).saturating_mul(Segment::WIRE_LEN),
                Item::Segment,
            )?;
            return Err(error);
        }
        for _ in 0..count {
            self.write_segment(&Segment::from_wire(r.array(Item::Segment)?))?;
        }
        Ok(count)
    }

    /// Checks and records a segment of the Read list.
    #[inline]
    fn read_segment(&mut self, item: &ReadSegment) -> Result<(), DecodeError> {
        self.spend(1)?;
        item.check()?;
        self.octets_left = match self.octets_left.checked_sub(item.segment.length) {
            Some(left) => left,
            None => return Err(DecodeError::TooLong),
        };
        self.position_zero |= item.position == Position::ZERO;
        self.note(&item.segment);
        Ok(())
    }

    /// Checks and records a segment of a Write chunk or the Reply chunk, which was counted.
    #[inline]
    fn write_segment(&mut self, segment: &Segment) -> Result<(), DecodeError> {
        segment.check()?;
        self.note(segment);
        self.room = self.room.saturating_add(u64::from(segment.length));
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
    /// Returns the segment of a list that has exactly one.
    #[inline]
    pub(crate) fn sole(&self) -> Option<ReadSegment> {
        let item: &[u8; ReadSegment::ITEM_LEN] = self.items.try_into().ok()?;
        item.last_chunk().map(ReadSegment::from_wire)
    }

    /// Returns whether the list has no segments.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the segments in list order, those without octets included.
    pub(crate) fn iter(&self) -> ReadSegments<'a> {
        ReadSegments { items: self.items }
    }

    /// Returns the segments, cut to size, that hold the octets `[skip, skip + len)` of the chunk at
    /// `position`, in order. Segments without octets are left out.
    pub(crate) fn chunk_range(
        &self,
        position: Position,
        skip: u32,
        len: u32,
    ) -> impl Iterator<Item = Segment> + Clone + 'a {
        let items = self.iter().filter(move |item| item.position == position);
        Cut {
            segments: items.map(|item| item.segment),
            skip,
            left: len,
        }
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
        // `Survey::decode` has checked that the discriminator is 1.
        item.last_chunk().map(ReadSegment::from_wire)
    }
}

/// A Write chunk or a Reply chunk: a counted array of plain segments. An empty Write chunk asks for
/// its result inline (RFC 8166, section 4.3.2.3).
#[derive(Clone, Copy)]
pub(crate) struct WriteChunk<'a> {
    segments: &'a [u8],
}

impl<'a> WriteChunk<'a> {
    /// Returns the segments in order, those without octets included.
    pub(crate) fn iter(&self) -> Segments<'a> {
        Segments {
            octets: self.segments,
        }
    }

    /// Returns the number of segments.
    pub(crate) fn count(&self) -> u32 {
        // It was read from a word.
        u32::try_from(self.segments.len() / Segment::WIRE_LEN).unwrap_or(u32::MAX)
    }

    /// Returns the total length of the segments in octets.
    pub(crate) fn capacity(&self) -> u64 {
        self.iter().fold(0u64, |sum, segment| {
            sum.saturating_add(u64::from(segment.length))
        })
    }

    /// Returns the number of octets that a result in this chunk may have; `None` for a chunk
    /// without segments, whose result is to be inline.
    pub(crate) fn room(&self) -> Option<u64> {
        (!self.segments.is_empty()).then(|| self.capacity())
    }

    /// Returns the segments, cut to size, for the octets `[skip, skip + len)` of a payload, in
    /// order. Segments without octets are left out.
    #[inline]
    pub(crate) fn range(&self, skip: u32, len: u32) -> Cut<Segments<'a>> {
        Cut {
            segments: self.iter(),
            skip,
            left: len,
        }
    }

    /// Returns the number of octets on the wire, the count included.
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

/// Cuts `left` octets out of the memory that segments name, after `skip`. Leaves out segments
/// without octets.
#[derive(Clone)]
pub(crate) struct Cut<I> {
    segments: I,
    skip: u32,
    left: u32,
}

impl<I: Iterator<Item = Segment>> Iterator for Cut<I> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        while self.left != 0 {
            let segment = self.segments.next()?;
            let part = segment.part(self.skip, self.left);
            self.skip = self.skip.saturating_sub(segment.length);
            if let Some(part) = part {
                self.left = self.left.saturating_sub(part.length);
                return Some(part);
            }
        }
        None
    }
}

/// The Write list: chunks the peer offers to be written.
#[derive(Clone, Copy, Default)]
pub(crate) struct WriteList<'a> {
    /// Chunks, each with its discriminator.
    items: &'a [u8],
}

impl<'a> WriteList<'a> {
    /// Returns the chunks in list order.
    pub(crate) fn iter(&self) -> WriteChunks<'a> {
        WriteChunks { items: self.items }
    }

    /// Returns the number of octets on the wire, the end of the list included.
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
        let len = u32_to_usize(count).saturating_mul(Segment::WIRE_LEN);
        let (segments, rest) = rest.split_at_checked(len)?;
        self.items = rest;
        Some(WriteChunk { segments })
    }
}

/// The three lists of a header.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lists<'a> {
    /// Memory that the Responder reads.
    pub(crate) read: ReadList<'a>,
    /// Memory for results that are placed directly.
    pub(crate) write: WriteList<'a>,
    /// Memory for a whole Reply message.
    pub(crate) reply: Option<WriteChunk<'a>>,
}

impl Lists<'_> {
    /// Octets of lists without a chunk.
    pub(crate) const EMPTY_LEN: usize = 3 * WORD;

    /// The offset of the segment in lists whose only chunk is a Write chunk of one segment.
    pub(crate) const SOLE_WRITE_AT: usize = 3 * WORD;

    /// Octets of such lists, and of those whose only chunk is a Read chunk of one segment.
    pub(crate) const SOLE_LEN: usize = Self::SOLE_WRITE_AT + Segment::WIRE_LEN + 2 * WORD;

    /// Returns the length in octets of the header of a Reply that returns these lists: the words
    /// before the lists, an empty Read list, and the Write list and the Reply chunk as offered.
    pub(crate) fn reply_header_len(&self, version: Version) -> usize {
        version
            .lists_at()
            .saturating_add(WORD)
            .saturating_add(self.write.wire_len())
            .saturating_add(WORD)
            .saturating_add(self.reply.map_or(0, |chunk| chunk.wire_len()))
    }
}
