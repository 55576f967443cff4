// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A decoded message together with its octets, and openings of headers, for nearly every test.

use std::ops::Deref;

use crate::xdr::{
    chunk::{
        ListLimits,
        Lists, //
    },
    encode::HeaderPrefix,
    error::DecodeError,
    header::Proc,
    message::{
        self,
        Direction,
        Parsed,
        Rejected, //
    },
    reply::{
        self,
        Outcome, //
    },
    segment::Segment,
    units::{
        Credits,
        Xid, //
    },
    version::{
        Version,
        Versions, //
    }, //
};

/// A message of version 1 that has been decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    parsed: Parsed,
    bytes: &'a [u8],
}

/// Decodes a message on a connection that speaks version 1.
pub(crate) fn decode<'a>(bytes: &'a [u8], limits: &ListLimits) -> Result<Message<'a>, Rejected> {
    let parsed = decode_as(bytes, limits, Versions::only(Version::One))?;
    Ok(Message { parsed, bytes })
}

/// Decodes a message of one of the versions in `accepts`, after a check that the general path alone
/// decodes it to the same.
pub(crate) fn decode_as(
    bytes: &[u8],
    limits: &ListLimits,
    accepts: Versions,
) -> Result<Parsed, Rejected> {
    let general = message::decode_any(bytes, limits, accepts);
    assert_eq!(message::decode(bytes, limits, accepts), general);
    let mut slot = None;
    let kept = message::decode_into(&mut slot, bytes, limits, accepts).copied();
    assert_eq!(kept, general);
    assert_eq!(slot, general.ok());
    if slot.is_some() {
        // It is not decoded again.
        let again = message::decode_into(&mut slot, &[], limits, accepts).copied();
        assert_eq!(again, general);
    }
    general
}

impl Deref for Message<'_> {
    type Target = Parsed;

    fn deref(&self) -> &Parsed {
        &self.parsed
    }
}

impl<'a> Message<'a> {
    pub(crate) fn lists(&self) -> Lists<'a> {
        self.parsed.lists(self.bytes)
    }

    pub(crate) fn payload(&self) -> Option<&'a [u8]> {
        self.parsed.payload(self.bytes)
    }

    /// Checks the message as the Reply to a Call that offered these chunks.
    pub(crate) fn check(
        &self,
        write: impl IntoIterator<Item = Segment>,
        reply: impl IntoIterator<Item = Segment>,
    ) -> Result<Outcome<'a>, DecodeError> {
        reply::check(&self.parsed, self.bytes, || write, || reply)
    }
}

/// Returns every segment of a header.
pub(crate) fn segments<'a>(lists: &Lists<'a>) -> impl Iterator<Item = Segment> + 'a {
    let reads = lists.read.iter().map(|item| item.segment);
    let writes = lists.write.iter().flat_map(|chunk| chunk.iter());
    let reply = lists.reply.into_iter().flat_map(|chunk| chunk.iter());
    reads.chain(writes).chain(reply)
}

/// Returns the prefix of a Call of version 1.
pub(crate) fn prefix(xid: Xid, credits: Credits, proc: Proc) -> HeaderPrefix {
    HeaderPrefix {
        version: Version::One,
        xid,
        credits,
        proc,
        direction: Direction::Call,
        invalidate: None,
    }
}
