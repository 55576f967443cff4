// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Encoding of transport headers (RFC 8166, section 4).
//!
//! An [`Encoder`] writes the chunk lists in wire order. Its type parameter names the next list, so
//! that a caller can neither omit a list nor write one twice:
//!
//! ```text
//!   Encoder<ReadStage> --end_reads--> Encoder<WriteStage> --end_writes--> Encoder<ReplyStage>
//!     read_segment*                     write_chunk*                        reply_chunk |
//!                                                                           no_reply_chunk
//! ```
//!
//! Requesters and Responders use it in both directions. After an error the buffer holds an
//! incomplete header, which must not be sent.

use core::marker::PhantomData;

use super::chunk::{
    Lists,
    WriteChunk, //
};
use super::cursor::Writer;
use super::error::{
    EncodeError,
    ErrorBody, //
};
use super::header::{
    Header,
    Proc, //
};
use super::message::{
    Direction,
    Parsed, //
};
use super::segment::{
    ReadSegment,
    Segment, //
};
use super::units::{
    Credits,
    Handle,
    Xid, //
};
use super::version::Version;

/// The fields of a header before its chunk lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderPrefix {
    /// The version of the message.
    pub(crate) version: Version,
    /// The XID of the RPC message.
    pub(crate) xid: Xid,
    /// The credits requested in a Call or granted in a Reply.
    pub(crate) credits: Credits,
    /// [`Proc::Msg`] or [`Proc::NoMsg`].
    pub(crate) proc: Proc,
    /// The direction of the message. Version 1 does not encode it.
    pub(crate) direction: Direction,
    /// In a Call, the handle that the Reply may invalidate. Version 1 does not encode it.
    pub(crate) invalidate: Option<Handle>,
}

impl HeaderPrefix {
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        let header = Header {
            xid: self.xid,
            version: self.version.to_u32(),
            credits: self.credits,
            proc: self.proc.to_u32(),
        };
        header.encode(w)?;
        match self.version {
            Version::One => Ok(()),
            Version::Two => {
                w.u32(self.direction.to_u32())?;
                w.u32(self.invalidate.map_or(0, |handle| handle.0))
            }
        }
    }
}

/// Stage of an [`Encoder`] that writes the Read list next.
pub(crate) enum ReadStage {}
/// Stage of an [`Encoder`] that writes the Write list next.
pub(crate) enum WriteStage {}
/// Stage of an [`Encoder`] that writes the Reply chunk next.
pub(crate) enum ReplyStage {}

/// Writes the header of an RDMA_MSG or RDMA_NOMSG message.
pub(crate) struct Encoder<'a, Stage> {
    w: Writer<'a>,
    version: Version,
    stage: PhantomData<Stage>,
}

impl<'a, Stage> Encoder<'a, Stage> {
    fn next<Next>(self) -> Encoder<'a, Next> {
        Encoder {
            w: self.w,
            version: self.version,
            stage: PhantomData,
        }
    }

    /// Writes a counted array of segments.
    fn segments(&mut self, segments: impl IntoIterator<Item = Segment>) -> Result<(), EncodeError> {
        let at = self.w.len();
        self.w.u32(0)?;
        let mut count = 0u32;
        for segment in segments {
            segment.encode(&mut self.w)?;
            count = count.checked_add(1).ok_or(EncodeError::SegmentCount)?;
        }
        match (count, self.version) {
            // Some servers of version 1 reject a chunk without segments.
            (0, Version::One) => Err(EncodeError::SegmentCount),
            _ => self.w.patch_u32(at, count),
        }
    }
}

impl<Stage> Encoder<'_, Stage> {
    /// Writes an offered chunk as the Reply returns it: `octets` octets fill its segments in order.
    #[inline(always)]
    fn chunk_filled(&mut self, chunk: &WriteChunk<'_>, octets: u32) -> Result<(), EncodeError> {
        self.w.words([1, chunk.count()])?;
        let mut left = octets;
        for segment in chunk.iter() {
            let used = segment.length.min(left);
            left = left.saturating_sub(used);
            segment.with_length(used).encode(&mut self.w)?;
        }
        match left {
            0 => Ok(()),
            _ => Err(EncodeError::TooLong),
        }
    }
}

impl<'a> Encoder<'a, ReadStage> {
    /// Starts a header at the front of `buf`.
    pub(crate) fn new(buf: &'a mut [u8], prefix: &HeaderPrefix) -> Result<Self, EncodeError> {
        let mut w = Writer::new(buf);
        prefix.encode(&mut w)?;
        Ok(Self {
            w,
            version: prefix.version,
            stage: PhantomData,
        })
    }

    /// Adds a segment to the Read list.
    pub(crate) fn read_segment(&mut self, segment: ReadSegment) -> Result<(), EncodeError> {
        segment.encode(&mut self.w)
    }

    /// Ends the Read list.
    pub(crate) fn end_reads(mut self) -> Result<Encoder<'a, WriteStage>, EncodeError> {
        self.w.u32(0)?;
        Ok(self.next())
    }
}

impl<'a> Encoder<'a, WriteStage> {
    /// Adds a chunk to the Write list.
    pub(crate) fn write_chunk(
        &mut self,
        segments: impl IntoIterator<Item = Segment>,
    ) -> Result<(), EncodeError> {
        self.w.u32(1)?;
        self.segments(segments)
    }

    /// Ends the Write list.
    pub(crate) fn end_writes(mut self) -> Result<Encoder<'a, ReplyStage>, EncodeError> {
        self.w.u32(0)?;
        Ok(self.next())
    }
}

impl Encoder<'_, ReplyStage> {
    /// Writes the Reply chunk. Returns the length of the finished header.
    pub(crate) fn reply_chunk(
        mut self,
        segments: impl IntoIterator<Item = Segment>,
    ) -> Result<usize, EncodeError> {
        self.w.u32(1)?;
        self.segments(segments)?;
        Ok(self.w.len())
    }

    /// Marks the Reply chunk as not present. Returns the length of the finished header.
    pub(crate) fn no_reply_chunk(mut self) -> Result<usize, EncodeError> {
        self.w.u32(0)?;
        Ok(self.w.len())
    }
}

/// Writes a header without chunks. Returns its length.
pub(crate) fn encode_plain(buf: &mut [u8], prefix: &HeaderPrefix) -> Result<usize, EncodeError> {
    let mut w = Writer::new(buf);
    prefix.encode(&mut w)?;
    w.words([0, 0, 0])?;
    Ok(w.len())
}

/// A segment, and the list that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SoleSegment {
    /// In the Read list.
    Read(ReadSegment),
    /// In a Write chunk.
    Write(Segment),
    /// In the Reply chunk.
    Reply(Segment),
}

/// Writes the header of a Call with one segment, the most common form of a Call with chunks.
/// Returns its length. An [`Encoder`] would write the same octets, in more steps.
pub(crate) fn encode_one(
    buf: &mut [u8],
    prefix: &HeaderPrefix,
    segment: SoleSegment,
) -> Result<usize, EncodeError> {
    let mut w = Writer::new(buf);
    prefix.encode(&mut w)?;
    match segment {
        SoleSegment::Read(ReadSegment { position, segment }) => {
            let [handle, length, high, low] = segment.words();
            w.words([1, position.0, handle, length, high, low, 0, 0, 0])?;
        }
        SoleSegment::Write(segment) => {
            let [handle, length, high, low] = segment.words();
            w.words([0, 1, 1, handle, length, high, low, 0, 0])?;
        }
        SoleSegment::Reply(segment) => {
            let [handle, length, high, low] = segment.words();
            w.words([0, 0, 1, 1, handle, length, high, low])?;
        }
    }
    Ok(w.len())
}

/// Writes the header of the Reply to `call`: the offered lists, with the number of octets that were
/// written to each segment as its length. Returns the length of the header.
///
/// `written` is the number of octets in each chunk of the Write list, in order. If it has fewer
/// items than the list, the other chunks are returned unused. `reply_written` is the number of
/// octets in the Reply chunk; the message is RDMA_NOMSG then. With `None` it is RDMA_MSG: the
/// Payload stream follows inline, and an offered Reply chunk is returned unused.
///
/// # Errors
///
/// [`EncodeError::TooLong`] if a chunk is too short for its octets, [`EncodeError::Mismatch`] for
/// octets in a chunk that was not offered, [`EncodeError::NoSpace`].
#[inline(always)]
pub(crate) fn encode_reply(
    buf: &mut [u8],
    call: &Parsed,
    credits: Credits,
    offered: &Lists<'_>,
    written: impl IntoIterator<Item = u32>,
    reply_written: Option<u32>,
) -> Result<usize, EncodeError> {
    let proc = match reply_written {
        Some(_) => Proc::NoMsg,
        None => Proc::Msg,
    };
    let prefix = HeaderPrefix {
        version: call.version,
        xid: call.header.xid,
        credits,
        proc,
        direction: Direction::Reply,
        invalidate: None,
    };
    let mut writes = Encoder::new(buf, &prefix)?.end_reads()?;
    let mut written = written.into_iter();
    for chunk in offered.write.iter() {
        writes.chunk_filled(&chunk, written.next().unwrap_or(0))?;
    }
    if written.any(|octets| octets != 0) {
        return Err(EncodeError::Mismatch);
    }
    let mut reply = writes.end_writes()?;
    match (offered.reply, reply_written) {
        (Some(chunk), octets) => {
            reply.chunk_filled(&chunk, octets.unwrap_or(0))?;
            Ok(reply.w.len())
        }
        (None, None) => reply.no_reply_chunk(),
        (None, Some(_)) => Err(EncodeError::Mismatch),
    }
}

/// Writes an RDMA_ERROR message about the message that began with `failed`. Returns its length.
///
/// XID and version are those of the message that failed (RFC 8166, section 4.5).
pub(crate) fn encode_error(
    buf: &mut [u8],
    failed: &Header,
    credits: Credits,
    body: ErrorBody,
) -> Result<usize, EncodeError> {
    let mut w = Writer::new(buf);
    let header = Header {
        credits,
        proc: Proc::Error.to_u32(),
        ..*failed
    };
    header.encode(&mut w)?;
    // An unknown version gets only ERR_VERS, whose layout is the same in all versions.
    let version = Version::from_u32(failed.version).unwrap_or(Version::One);
    let body = body.in_version(version);
    let arguments: &[u32] = match &body {
        ErrorBody::Version { low, high } => &[*low, *high],
        ErrorBody::ReadChunks { max }
        | ErrorBody::WriteChunks { max }
        | ErrorBody::Segments { max } => &[*max],
        ErrorBody::WriteResource { chunk, needed } => &[*chunk, *needed],
        ErrorBody::ReplyResource { needed } => &[*needed],
        _ => &[],
    };
    w.u32(body.code())?;
    for argument in arguments {
        w.u32(*argument)?;
    }
    Ok(w.len())
}
