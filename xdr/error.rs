// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What can be wrong with a message, and what a Responder answers to it (RFC 8166, section
//! 4.5).
//!
//! Protocol errors are kept apart from errno. [`DecodeError::answer`] has the answer to each;
//! `Rejected::answer` in [`super::message`] is for messages that did not decode.

use super::header::RESERVED_DONE;
use super::version::Versions;

/// Part of a header that a message ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// The four fixed words, or the least length of a whole header.
    FixedHeader,
    /// A word that tells whether a list goes on.
    Discriminator,
    /// A read segment: position and plain segment.
    ReadSegment,
    /// The number of segments in a chunk.
    SegmentCount,
    /// A plain segment.
    Segment,
    /// The body of an RDMA_ERROR message.
    ErrorBody,
    /// The RPC message, before its arguments.
    RpcHeader,
}

/// Why a received header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// The message ends within the named item.
    Truncated(Item),
    /// A version that the receiver does not accept; these are the ones it does.
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
    /// A Write or Reply chunk of no segments.
    EmptyChunk,
    /// Offset and length of a segment exceed the address space.
    SegmentRange,
    /// A Read chunk position that is no multiple of four or lies within the first two words
    /// of the RPC message.
    Position,
    /// Read chunks overlap, or lie behind the end of the stream they are to be put in.
    Overlap,
    /// A Read list or a chunk longer than the receiver's limit.
    TooLong,
    /// The Payload stream is in two places, inline and in a Position Zero Read chunk or the Reply
    /// chunk, or in none: RDMA_NOMSG without either.
    PayloadPlace,
    /// The XID or the message type of the RPC message is wrong or missing.
    RpcHeader,
    /// A Reply with a Read list.
    ReadListInReply,
    /// A returned chunk list that does not match the one that was offered.
    Mismatch,
}

/// What an RDMA_ERROR message reports (RFC 8166, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorBody {
    /// ERR_VERS: the versions that the Responder speaks, both ends included, as numbers.
    Version {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// ERR_CHUNK: the header or the chunks cannot be used.
    Chunk,
    /// A code that the protocol does not define.
    Unknown(u32),
}

impl ErrorBody {
    /// Number of ERR_VERS, in every version.
    pub(crate) const ERR_VERS: u32 = 1;
    /// Number of ERR_CHUNK.
    pub(crate) const ERR_CHUNK: u32 = 2;
}

/// What a Responder does with a message that it cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Say nothing.
    Drop,
    /// Send an error report.
    Report(ErrorBody),
}

impl DecodeError {
    /// What a Responder answers. The connection stays up in all cases.
    ///
    /// A message too short for a header has no XID that could be trusted, so there is no one
    /// to answer (RFC 8166, section 4.5).
    pub(crate) const fn answer(self) -> Answer {
        match self {
            DecodeError::Truncated(Item::FixedHeader) | DecodeError::Reserved(RESERVED_DONE) => {
                Answer::Drop
            }
            DecodeError::Version(accepted) => Answer::Report(ErrorBody::Version {
                low: accepted.low().word(),
                high: accepted.high().word(),
            }),
            _ => Answer::Report(ErrorBody::Chunk),
        }
    }
}

/// Why a header cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodeError {
    /// The buffer is too small for the header.
    NoSpace,
    /// A chunk of no segments, or of more than its count can tell.
    SegmentCount,
    /// More octets than the offered chunk can hold.
    TooLong,
    /// The offered chunk lists are not those that were announced.
    Mismatch,
}
