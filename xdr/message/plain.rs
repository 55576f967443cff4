// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RDMA_MSG without a chunk, as most messages are (RFC 8166, section 4.3; version 2: section
//! 6.2.2).
//!
//! Except for the XID, the credits and the direction, all words of such a header are constants, so
//! a few comparisons recognize it. This decoder reports no errors: [`super`] decodes any other
//! message, and reports what is wrong with a malformed one.

use super::{
    payload_direction,
    Body,
    Direction,
    Parsed, //
};
use crate::xdr::{
    chunk::{
        ListCounts,
        Lists, //
    },
    header::{
        Header,
        Proc,
        FIXED_LEN, //
    },
    units::WORD,
    version::{
        Version,
        Versions, //
    }, //
};

/// The lists of a message without a chunk.
const NO_LISTS: [u8; Lists::EMPTY_LEN] = [0; Lists::EMPTY_LEN];

/// Decodes a message without a chunk, of the lowest version of `accepts`. Returns `None` for any
/// other message.
#[inline(always)]
pub(super) fn decode_plain(bytes: &[u8], accepts: Versions) -> Option<Parsed> {
    match accepts.low() {
        Version::One => decode_1(bytes),
        Version::Two => decode_2(bytes),
    }
}

/// Decodes a message of version 1.
#[inline(always)]
fn decode_1(bytes: &[u8]) -> Option<Parsed> {
    const LEN: usize = Version::One.min_header_len();
    let (head, payload) = bytes.split_first_chunk::<LEN>()?;
    let (fixed, lists) = head.split_first_chunk()?;
    let header = Header::from_wire(fixed);
    let direction = payload_direction(header.xid, payload);
    let known = *lists == NO_LISTS && is_message(&header, Version::One);
    known.then(|| parsed(header, Version::One, direction))
}

/// Decodes a message of version 2.
#[inline(always)]
fn decode_2(bytes: &[u8]) -> Option<Parsed> {
    const LEN: usize = Version::Two.min_header_len();
    let (head, payload) = bytes.split_first_chunk::<LEN>()?;
    let (fixed, words) = head.split_first_chunk::<FIXED_LEN>()?;
    let (said, words) = words.split_first_chunk::<WORD>()?;
    let (named, lists) = words.split_first_chunk::<WORD>()?;
    let header = Header::from_wire(fixed);
    let direction = payload_direction(header.xid, payload)?;
    let known = *lists == NO_LISTS
        && is_message(&header, Version::Two)
        && Direction::from_u32(u32::from_be_bytes(*said)) == Some(direction)
        // The handle in a Reply is ignored.
        && (direction == Direction::Reply || *named == [0; WORD]);
    known.then(|| parsed(header, Version::Two, Some(direction)))
}

/// Returns whether a header is that of RDMA_MSG.
#[inline(always)]
fn is_message(header: &Header, version: Version) -> bool {
    (header.version, header.proc) == (version.to_u32(), Proc::Msg.to_u32())
}

#[inline(always)]
fn parsed(header: Header, version: Version, direction: Option<Direction>) -> Parsed {
    Parsed {
        header,
        version,
        body: Body::Msg,
        direction,
        invalidate: None,
        header_len: version.min_header_len(),
        counts: ListCounts::default(),
    }
}
