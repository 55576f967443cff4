// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Choice of the transfer mode of a message (RFC 8166, sections 3.5 and 4.3.3).
//!
//! A Requester chooses the mode of its Call. It also chooses the mode of the Reply, because it
//! provides the memory for it:
//!
//! ```text
//!   Reply:  the longest possible Reply is known and fits inline -> Inline
//!           else one item may be placed directly, and the rest fits inline -> WriteChunk
//!           else -> ReplyChunk
//!   Call:   fits inline, and in the copy buffer -> Copy
//!           fits inline, and in the SGEs -> Gather
//!           else its page part may be placed directly, and the rest fits inline -> ReadChunk
//!           else -> PositionZero
//! ```
//!
//! A message fits inline if it does not exceed the inline threshold together with its transport
//! header. The header is counted with the maximum number of segments in each of its chunks.

use super::chunk::WriteChunk;
use super::segment::{
    ReadSegment,
    Segment, //
};
use super::units::{
    pad_len,
    u32_to_usize,
    InlineSize,
    Position,
    WORD, //
};
use super::version::Version;

/// The limits of a connection that a Requester has to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// The version of the messages.
    pub(crate) version: Version,
    /// Largest message to the Responder.
    pub(crate) send: InlineSize,
    /// Largest message from the Responder.
    pub(crate) receive: InlineSize,
    /// The largest number of segments in one chunk.
    pub(crate) segments: u32,
    /// The largest number of SGEs of one Send, the one for the transport header included.
    pub(crate) send_sges: u32,
}

/// A Call that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallShape {
    /// Octets before the pages, thus the position of the page part in the stream.
    pub(crate) head: u32,
    /// Octets in the pages.
    pub(crate) pages: u32,
    /// Offset of the page part in its first page.
    pub(crate) page_offset: u32,
    /// Octets after the pages, roundup of the page part included.
    pub(crate) tail: u32,
    /// The page part is one item that may be placed directly (XDRBUF_WRITE).
    pub(crate) pages_eligible: bool,
    /// Octets of the buffer that a whole Call may be copied to, for one SGE.
    pub(crate) copy_room: u32,
}

/// The memory for the Reply to a Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyShape {
    /// Octets before the pages.
    pub(crate) head: u32,
    /// Octets in the pages.
    pub(crate) pages: u32,
    /// Octets after the pages.
    pub(crate) tail: u32,
    /// The page part is one item that may be placed directly (XDRBUF_READ).
    pub(crate) pages_eligible: bool,
    /// The Reply may be longer than the three lengths add up to: the Call does not limit it.
    pub(crate) open_ended: bool,
}

/// How a Call is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallMode {
    /// Inline, copied behind the header: one SGE.
    Copy,
    /// Inline; the pages are sent from where they are.
    Gather,
    /// The pages in a Read chunk, the rest inline.
    ReadChunk {
        /// Position of the chunk: the length of the head.
        position: Position,
        /// Octets at the start of the tail that are roundup of the pages, and not sent.
        tail_skip: u32,
    },
    /// All in a Position Zero Read chunk; RDMA_NOMSG.
    PositionZero,
}

/// How the Reply is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// Inline; no chunk is offered.
    Inline,
    /// The pages in a Write chunk, the rest inline.
    WriteChunk,
    /// All in the Reply chunk.
    ReplyChunk,
}

/// Size of a page, for the count of SGEs.
const PAGE_SIZE: u32 = 4096;

/// Chooses the modes of a Requester's Call and of its Reply. `direct_placement` is false when the
/// security flavor covers every octet of the message (krb5i, krb5p; RFC 8166, section 8.2.2).
pub(crate) fn choose(
    limits: &Thresholds,
    call: &CallShape,
    reply: &ReplyShape,
    direct_placement: bool,
) -> (CallMode, ReplyMode) {
    let reply_mode = choose_reply(limits, reply, direct_placement);
    (
        choose_call(limits, call, reply_mode, direct_placement),
        reply_mode,
    )
}

/// Returns whether a Call of `call` octets and its Reply of at most `reply` octets, both without
/// pages, are moved by [`CallMode::Copy`] and [`ReplyMode::Inline`]. [`choose`] makes this choice
/// for most Calls that read or write no data, but costs more. `copy_room` is
/// [`CallShape::copy_room`].
#[inline]
pub(crate) fn is_plain(limits: &Thresholds, call: usize, copy_room: u32, reply: usize) -> bool {
    let header = limits.version.min_header_len();
    call <= u32_to_usize(copy_room)
        && fits(limits.send, header, call)
        && fits(limits.receive, header, reply)
}

/// Returns whether a Call of `call` octets without pages, and its Reply, are moved by
/// [`CallMode::Copy`] and [`ReplyMode::WriteChunk`]. The Reply has at most `reply` octets, and
/// `pages` octets of pages that may be placed directly. [`choose`] makes this choice for most
/// READs, but costs more.
#[inline]
pub(crate) fn is_plain_read(
    limits: &Thresholds,
    call: usize,
    copy_room: u32,
    reply: usize,
    pages: usize,
) -> bool {
    let header = header_len(limits, CallMode::Copy, ReplyMode::WriteChunk);
    pages != 0
        && call <= u32_to_usize(copy_room)
        && fits(limits.send, header, call)
        && fits(limits.receive, header, reply)
        && !fits(
            limits.receive,
            limits.version.min_header_len(),
            reply.saturating_add(pages),
        )
}

/// Chooses how the Reply is moved: inline if it fits, and in a Write chunk rather than in the Reply
/// chunk.
fn choose_reply(limits: &Thresholds, reply: &ReplyShape, direct_placement: bool) -> ReplyMode {
    let rest = u32_to_usize(reply.head).saturating_add(u32_to_usize(reply.tail));
    let all = rest.saturating_add(u32_to_usize(reply.pages));
    let write_header = header_len(limits, CallMode::Copy, ReplyMode::WriteChunk);
    if !reply.open_ended && fits(limits.receive, limits.version.min_header_len(), all) {
        ReplyMode::Inline
    } else if direct_placement
        && reply.pages_eligible
        && reply.pages != 0
        && fits(limits.receive, write_header, rest)
    {
        ReplyMode::WriteChunk
    } else {
        ReplyMode::ReplyChunk
    }
}

/// Chooses how the Call is moved, after the mode of the Reply, whose chunks are in the same header.
fn choose_call(
    limits: &Thresholds,
    call: &CallShape,
    reply: ReplyMode,
    direct_placement: bool,
) -> CallMode {
    let rest = u32_to_usize(call.head).saturating_add(u32_to_usize(call.tail));
    let all = rest.saturating_add(u32_to_usize(call.pages));
    if fits(limits.send, header_len(limits, CallMode::Copy, reply), all) {
        if all <= u32_to_usize(call.copy_room) {
            return CallMode::Copy;
        }
        if gather_sges(call) <= limits.send_sges {
            return CallMode::Gather;
        }
    }
    let tail_skip = pad_len(call.pages);
    let chunk = CallMode::ReadChunk {
        position: Position(call.head),
        tail_skip,
    };
    let eligible = direct_placement
        && call.pages_eligible
        && call.pages != 0
        && call.head & 3 == 0
        && call.head >= ReadSegment::MIN_POSITION
        && call.tail >= tail_skip;
    if eligible && fits(limits.send, header_len(limits, chunk, reply), rest) {
        return chunk;
    }
    CallMode::PositionZero
}

/// Returns the length of the longest header that a message of these modes can have.
pub(crate) fn header_len(limits: &Thresholds, call: CallMode, reply: ReplyMode) -> usize {
    let segments = u32_to_usize(limits.segments);
    let read = match call {
        CallMode::Copy | CallMode::Gather => 0,
        CallMode::ReadChunk { .. } | CallMode::PositionZero => {
            segments.saturating_mul(ReadSegment::ITEM_LEN)
        }
    };
    let chunk = segments
        .saturating_mul(Segment::WIRE_LEN)
        .saturating_add(WORD);
    let write = match reply {
        ReplyMode::Inline => 0,
        // A list item has a discriminator before it.
        ReplyMode::WriteChunk => chunk.saturating_add(WORD),
        ReplyMode::ReplyChunk => chunk,
    };
    limits
        .version
        .min_header_len()
        .saturating_add(read)
        .saturating_add(write)
}

/// Returns the largest number of SGEs of a gathered Call: transport header, head, pages, tail.
pub(crate) fn gather_sges(call: &CallShape) -> u32 {
    let pages = call
        .pages
        .saturating_add(call.page_offset % PAGE_SIZE)
        .div_ceil(PAGE_SIZE);
    let pages = match call.pages {
        0 => 0,
        _ => pages,
    };
    pages
        .saturating_add(2)
        .saturating_add(u32::from(call.tail != 0))
}

/// Returns whether a header and a message of these lengths fit inline.
#[inline]
pub(crate) fn fits(threshold: InlineSize, header: usize, message: usize) -> bool {
    header.saturating_add(message) <= u32_to_usize(threshold.0)
}

/// How a Responder moves a Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseMode {
    /// Header and message in one Send; RDMA_MSG.
    Inline,
    /// The message in the Reply chunk; RDMA_NOMSG.
    ReplyChunk,
    /// The Reply fits neither inline nor in the Reply chunk. The caller sends it inline from a
    /// larger buffer if the Requester can receive that, and otherwise sends an error report.
    TooLarge,
}

/// Chooses the transfer mode of a Responder's Reply.
///
/// `message` is the length of the (reduced) Payload stream, `header` the length of the transport
/// header with the offered lists, and `send` the negotiated threshold for messages to the
/// Requester.
///
/// An offered Reply chunk need not be used when the message fits inline (RFC 8166, section
/// 4.3.3): a Send costs less than an RDMA Write and a Send. With `chunk_first` it is used if it has
/// room, for a Requester that may not know that rule.
pub(crate) fn choose_response(
    send: InlineSize,
    header: usize,
    message: u32,
    reply_chunk: Option<&WriteChunk<'_>>,
    chunk_first: bool,
) -> ResponseMode {
    let inline = fits(send, header, u32_to_usize(message));
    if inline && !(chunk_first && reply_chunk.is_some()) {
        return ResponseMode::Inline;
    }
    match reply_chunk {
        Some(chunk) if u64::from(message) <= chunk.capacity() && fits(send, header, 0) => {
            ResponseMode::ReplyChunk
        }
        _ if inline => ResponseMode::Inline,
        _ => ResponseMode::TooLarge,
    }
}
