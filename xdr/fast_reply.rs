// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Headers of the most common Replies (RFC 8166, section 4): RDMA_MSG, for a Call without chunks
//! for results, or with one Write chunk of one segment.
//!
//! [`super::encode::encode_reply`] writes the same octets for these Calls, and handles all others.

use super::chunk::Lists;
use super::cursor::Writer;
use super::error::EncodeError;
use super::header::Proc;
use super::message::{
    Direction,
    Parsed, //
};
use super::segment::Segment;
use super::units::Credits;
use super::version::Version;

/// Returns the length of the header that [`encode_no_chunk`] writes.
pub(crate) const fn no_chunk_len(version: Version) -> usize {
    version.lists_at().saturating_add(Lists::EMPTY_LEN)
}

/// Returns the length of the header that [`encode_sole_write`] writes.
pub(crate) const fn sole_write_len(version: Version) -> usize {
    version.lists_at().saturating_add(Lists::SOLE_LEN)
}

/// Writes the header of the Reply to `call`, which has neither a Write chunk nor a Reply chunk.
/// Returns its length.
#[inline]
pub(crate) fn encode_no_chunk(
    buf: &mut [u8],
    call: &Parsed,
    credits: Credits,
) -> Result<usize, EncodeError> {
    encode(buf, call, credits, [0, 0, 0])
}

/// Writes the header of the Reply to `call`, whose only chunk is a Write chunk of one segment.
/// `written` is that segment, with the number of octets written to it as its length. Returns the
/// length of the header.
#[inline]
pub(crate) fn encode_sole_write(
    buf: &mut [u8],
    call: &Parsed,
    credits: Credits,
    written: Segment,
) -> Result<usize, EncodeError> {
    let [handle, length, high, low] = written.words();
    encode(
        buf,
        call,
        credits,
        [0, 1, 1, handle, length, high, low, 0, 0],
    )
}

/// Writes the header of the Reply to `call`, with the three lists in `lists`. Returns its length.
#[inline(always)]
fn encode<const N: usize>(
    buf: &mut [u8],
    call: &Parsed,
    credits: Credits,
    lists: [u32; N],
) -> Result<usize, EncodeError> {
    let mut w = Writer::new(buf);
    let (xid, version, proc) = (call.header.xid.0, call.version, Proc::Msg.to_u32());
    let word = version.to_u32();
    match version {
        Version::One => w.words([xid, word, credits.0, proc])?,
        // No handle to invalidate in a Reply.
        Version::Two => w.words([xid, word, credits.0, proc, Direction::Reply.to_u32(), 0])?,
    }
    w.words(lists)?;
    Ok(w.len())
}
