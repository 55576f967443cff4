// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Errors in received messages, and the Responder's response to each (RFC 8166, section 4.5).
//!
//! Protocol errors are kept apart from errno. [`DecodeError::response`] returns the response to
//! each; `Rejected::response` in [`super::message`] is for messages that did not decode.

use super::header::RESERVED_DONE;
use super::version::{
    Version,
    Versions, //
};

/// The part of a message that was truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// The four fixed words, or the minimum length of a whole header.
    FixedHeader,
    /// A word that tells whether a list continues.
    Discriminator,
    /// A read segment: position and plain segment.
    ReadSegment,
    /// The number of segments in a chunk.
    SegmentCount,
    /// A plain segment.
    Segment,
    /// The body of an RDMA_ERROR message.
    ErrorBody,
    /// The direction of a message of version 2.
    Direction,
    /// The handle to invalidate.
    Invalidate,
    /// An optional operation: its number and what belongs to it.
    Optional,
    /// A message about transport properties.
    Property,
    /// The RPC message, before its arguments.
    RpcHeader,
}

/// Why a received header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// The message ends within the named item.
    Truncated(Item),
    /// A version that the receiver does not accept, and the versions that it accepts.
    Version(Versions),
    /// A procedure number that the protocol does not define.
    UnknownProc(u32),
    /// The number of RDMA_MSGP or RDMA_DONE: reserved, never sent (RFC 8166, section 4.6).
    Reserved(u32),
    /// A word that has to be 0 or 1 is neither.
    Discriminator(u32),
    /// More segments than the receiver's limit.
    TooManySegments {
        /// The limit.
        max: u32,
    },
    /// More Read chunks than the receiver's limit, the Position Zero Read chunk not counted.
    TooManyReadChunks {
        /// The limit.
        max: u32,
    },
    /// More Write chunks than the receiver's limit.
    TooManyWriteChunks {
        /// The limit.
        max: u32,
    },
    /// A Reply chunk of no segments in a message of version 1.
    EmptyChunk,
    /// Offset and length of a segment exceed the address space.
    SegmentRange,
    /// A Read chunk position that is no multiple of four or lies within the first two words
    /// of the RPC message.
    Position,
    /// Read chunks overlap, or lie beyond the end of the stream that they belong to.
    Overlap,
    /// A Read list or a chunk longer than the receiver's limit.
    TooLong,
    /// The Payload stream is in two places, inline and in a Position Zero Read chunk or the Reply
    /// chunk, or in none: RDMA_NOMSG without either.
    PayloadLocation,
    /// The XID or the message type of the RPC message is wrong or missing.
    RpcHeader,
    /// The direction is no RPC message type, or not that of the RPC message.
    Direction,
    /// The handle to invalidate is in none of the lists.
    Invalidate,
    /// A transport property with an invalid value, or one that appears twice.
    Property,
    /// An error report of version 2 with a code that the protocol does not define.
    UnknownError(u32),
    /// A Reply with a Read list.
    ReadListInReply,
    /// A returned chunk list that does not match the one that was offered.
    Mismatch,
}

/// What an RDMA_ERROR message reports (RFC 8166, section 4.5; version 2: section 6.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorBody {
    /// ERR_VERS: the versions that the Responder speaks, both ends included, as numbers.
    Version {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// ERR_CHUNK: the header or the chunks cannot be used. BAD_XDR in version 2, which has the
    /// same number.
    Chunk,
    /// A code that version 1 does not define.
    Unknown(u32),
    /// INVALID_PROC: the version has no such procedure. Version 2 only, as are those that follow.
    Procedure,
    /// READ_CHUNKS: too many Read chunks.
    ReadChunks {
        /// How many there may be.
        max: u32,
    },
    /// WRITE_CHUNKS: too many Write chunks.
    WriteChunks {
        /// How many there may be.
        max: u32,
    },
    /// SEGMENTS: too many segments.
    Segments {
        /// How many there may be.
        max: u32,
    },
    /// WRITE_RESOURCE: a Write chunk is too small for the result.
    WriteResource {
        /// The number of the chunk in its list, from 1 on.
        chunk: u32,
        /// Octets of the result.
        needed: u32,
    },
    /// REPLY_RESOURCE: there is no room for the Reply.
    ReplyResource {
        /// Octets of the Reply.
        needed: u32,
    },
    /// INVALID_OPTION: the optional operation is not supported.
    Option,
    /// SYSTEM: something else has failed at the Responder.
    System,
}

impl ErrorBody {
    /// Number of ERR_VERS, in every version.
    pub(crate) const ERR_VERS: u32 = 1;
    /// Number of ERR_CHUNK, and of BAD_XDR.
    pub(crate) const ERR_CHUNK: u32 = 2;

    /// Returns the number of the error.
    pub(crate) const fn code(self) -> u32 {
        match self {
            ErrorBody::Version { .. } => Self::ERR_VERS,
            ErrorBody::Chunk => Self::ERR_CHUNK,
            ErrorBody::Unknown(code) => code,
            ErrorBody::Procedure => 3,
            ErrorBody::ReadChunks { .. } => 4,
            ErrorBody::WriteChunks { .. } => 5,
            ErrorBody::Segments { .. } => 6,
            ErrorBody::WriteResource { .. } => 7,
            ErrorBody::ReplyResource { .. } => 8,
            ErrorBody::Option => 9,
            ErrorBody::System => 10,
        }
    }

    /// Returns this report with limits of zero: those of a Responder that supports no chunks.
    pub(crate) const fn without_chunks(self) -> Self {
        match self {
            ErrorBody::ReadChunks { .. } => ErrorBody::ReadChunks { max: 0 },
            ErrorBody::WriteChunks { .. } => ErrorBody::WriteChunks { max: 0 },
            ErrorBody::Segments { .. } => ErrorBody::Segments { max: 0 },
            other => other,
        }
    }

    /// Returns this report as `version` can express it. Version 1 has ERR_CHUNK for every error
    /// except a wrong version. [`ErrorBody::Unknown`] stays as it is.
    pub(crate) const fn in_version(self, version: Version) -> Self {
        match (version, self) {
            (Version::Two, report) => report,
            (Version::One, report @ (ErrorBody::Version { .. } | ErrorBody::Unknown(_))) => report,
            (Version::One, _) => ErrorBody::Chunk,
        }
    }
}

/// What a Responder does with a message that it cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorResponse {
    /// Drop the message without a response.
    Drop,
    /// Send an error report.
    Report(ErrorBody),
}

impl DecodeError {
    /// Returns a Responder's response to a message of `version`. The connection stays up in all
    /// cases.
    ///
    /// A message too short for a header has no XID that could be trusted, so no response can be
    /// sent (RFC 8166, section 4.5).
    pub(crate) const fn response(self, version: Version) -> ErrorResponse {
        let report = match self {
            DecodeError::Truncated(Item::FixedHeader) | DecodeError::Reserved(RESERVED_DONE) => {
                return ErrorResponse::Drop
            }
            DecodeError::Version(accepted) => ErrorBody::Version {
                low: accepted.low().to_u32(),
                high: accepted.high().to_u32(),
            },
            DecodeError::UnknownProc(_) => ErrorBody::Procedure,
            DecodeError::TooManyReadChunks { max } => ErrorBody::ReadChunks { max },
            DecodeError::TooManyWriteChunks { max } => ErrorBody::WriteChunks { max },
            DecodeError::TooManySegments { max } => ErrorBody::Segments { max },
            _ => ErrorBody::Chunk,
        };
        ErrorResponse::Report(report.in_version(version))
    }
}

/// Why a header cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodeError {
    /// The buffer is too small for the header.
    NoSpace,
    /// A chunk of no segments in version 1, or of more segments than the count field can hold.
    SegmentCount,
    /// More octets than the offered chunk can hold.
    TooLong,
    /// Octets in a chunk that was not offered, or a property or procedure that is not encoded.
    Mismatch,
}
