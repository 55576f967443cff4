// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks of a Reply against its Call, which a Requester makes before it uses any result (RFC 8166,
//! sections 3.4.6, 4.3.2 and 4.3.3).

use super::chunk::WriteChunk;
use super::error::{
    DecodeError,
    ErrorBody, //
};
use super::message::{
    Body,
    Parsed, //
};
use super::segment::Segment;

/// The location of the result of a Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// The Payload stream is inline, except for the octets placed in the Write chunk.
    Inline {
        /// The (reduced) Payload stream.
        payload: &'a [u8],
        /// Octets in the Write chunk, from its start and without a gap.
        written: u32,
    },
    /// The Payload stream is in the Reply chunk.
    ReplyChunk {
        /// Octets in the Reply chunk, from its start and without a gap. Not zero.
        written: u32,
    },
    /// There is no result, and none follows.
    Failed(ErrorBody),
}

/// Checks a Reply against the chunks that the Call offered: at most one Write chunk, at most
/// one Reply chunk, each given by a function that returns its segments in the order they were sent.
/// `message` holds the octets that `parsed` was made from.
///
/// An offered chunk that the Reply does not return holds no octets. A returned chunk has to match
/// the offered chunk.
///
/// # Errors
///
/// [`DecodeError::Mismatch`], [`DecodeError::ReadListInReply`], [`DecodeError::PayloadLocation`],
/// and [`DecodeError::TooLong`] if a chunk holds more than `u32::MAX` octets. The RPC has failed.
/// The XID was good, so the RPC need not wait for another Reply.
pub(crate) fn check<'a, W, R>(
    parsed: &Parsed,
    message: &'a [u8],
    write_offered: impl FnOnce() -> W,
    reply_offered: impl FnOnce() -> R,
) -> Result<Outcome<'a>, DecodeError>
where
    W: IntoIterator<Item = Segment>,
    R: IntoIterator<Item = Segment>,
{
    if let Body::Error(error) = parsed.body {
        return Ok(Outcome::Failed(error));
    }
    // Most Replies return no chunk, or a Write chunk of one segment.
    if parsed.has_no_chunks() {
        return outcome(parsed, message, 0, 0);
    }
    if let Some(segment) = parsed.sole_write(message) {
        let written = check_segments([segment].into_iter(), write_offered())?;
        return outcome(parsed, message, written, 0);
    }
    let lists = parsed.lists(message);
    if !lists.read.is_empty() {
        return Err(DecodeError::ReadListInReply);
    }
    let mut chunks = lists.write.iter();
    let written = match chunks.next() {
        Some(chunk) => check_chunk(&chunk, write_offered())?,
        None => 0,
    };
    if chunks.next().is_some() {
        return Err(DecodeError::Mismatch);
    }
    let reply_written = match lists.reply {
        Some(chunk) => check_chunk(&chunk, reply_offered())?,
        None => 0,
    };
    outcome(parsed, message, written, reply_written)
}

/// Returns the outcome of a Reply with `written` octets in its Write chunk and `reply_written` in
/// its Reply chunk.
fn outcome<'a>(
    parsed: &Parsed,
    message: &'a [u8],
    written: u32,
    reply_written: u32,
) -> Result<Outcome<'a>, DecodeError> {
    match (parsed.payload(message), written, reply_written) {
        (Some(payload), written, 0) => Ok(Outcome::Inline { payload, written }),
        (None, 0, written @ 1..) => Ok(Outcome::ReplyChunk { written }),
        _ => Err(DecodeError::PayloadLocation),
    }
}

/// Compares a returned chunk with the offered chunk. Returns the number of octets it holds.
///
/// A Responder fills a chunk from its start: a segment after one that is not full is empty.
/// Without this check, memory that the Responder never wrote could be taken for a result.
///
/// Segments at the end may be missing. A Responder has to return all segments, but illumos, and
/// Linux before 4.12, leave out those that they have not used.
pub(crate) fn check_chunk(
    returned: &WriteChunk<'_>,
    offered: impl IntoIterator<Item = Segment>,
) -> Result<u32, DecodeError> {
    check_segments(returned.iter(), offered)
}

/// Compares the segments of a returned chunk with those offered, as [`check_chunk`] does.
#[inline]
fn check_segments(
    returned: impl Iterator<Item = Segment>,
    offered: impl IntoIterator<Item = Segment>,
) -> Result<u32, DecodeError> {
    let mut offered = offered.into_iter();
    let mut total = 0u32;
    let mut full = true;
    for segment in returned {
        let Some(ours) = offered.next() else {
            return Err(DecodeError::Mismatch);
        };
        let same = segment.handle == ours.handle && segment.offset == ours.offset;
        let fits = segment.length <= ours.length && (full || segment.length == 0);
        if !same || !fits {
            return Err(DecodeError::Mismatch);
        }
        full = full && segment.length == ours.length;
        total = total
            .checked_add(segment.length)
            .ok_or(DecodeError::TooLong)?;
    }
    Ok(total)
}
