// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Whole received messages (RFC 8166, section 4) and their direction (RFC 8167, section 2).
//!
//! ```text
//!   octets --decode--> Message { header, body: Msg | NoMsg | Error }
//!              |
//!              +-----> Rejected { header if there was one, error } --> answer()
//! ```

use super::chunk::{
    ListLimits,
    Lists, //
};
use super::cursor::Reader;
use super::error::{
    Answer,
    DecodeError,
    Item, //
};
use super::header::{
    Header,
    Proc,
    ERR_CHUNK_LEN,
    MIN_LEN, //
};
use super::units::{
    Credits,
    Position,
    Version,
    Xid, //
};

/// What an RDMA_ERROR message reports (RFC 8166, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorBody {
    /// ERR_VERS: the versions that the Responder speaks, both ends included.
    Version {
        /// Lowest version.
        low: Version,
        /// Highest version.
        high: Version,
    },
    /// ERR_CHUNK: the header or the chunks cannot be used.
    Chunk,
    /// A code that the protocol does not define.
    Unknown(u32),
}

impl ErrorBody {
    /// Number of ERR_VERS.
    pub(crate) const ERR_VERS: u32 = 1;
    /// Number of ERR_CHUNK.
    pub(crate) const ERR_CHUNK: u32 = 2;

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.u32(Item::ErrorBody)? {
            Self::ERR_VERS => Ok(ErrorBody::Version {
                low: Version(r.u32(Item::ErrorBody)?),
                high: Version(r.u32(Item::ErrorBody)?),
            }),
            Self::ERR_CHUNK => Ok(ErrorBody::Chunk),
            other => Ok(ErrorBody::Unknown(other)),
        }
    }
}

/// What follows the fixed words.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    /// RDMA_MSG.
    Msg {
        /// The chunk lists.
        lists: Lists<'a>,
        /// The (reduced) Payload stream: an RPC message.
        payload: &'a [u8],
    },
    /// RDMA_NOMSG: the Payload stream is in a chunk.
    NoMsg {
        /// The chunk lists.
        lists: Lists<'a>,
    },
    /// RDMA_ERROR.
    Error(ErrorBody),
}

/// A received message whose header is good.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    /// The fixed words.
    pub(crate) header: Header,
    /// What follows them.
    pub(crate) body: Body<'a>,
    /// Octets of the whole transport header: where the Payload stream starts.
    pub(crate) header_len: usize,
}

/// A received message that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// The fixed words, if the message had them. They are not to be trusted when the message
    /// is shorter than a whole header.
    pub(crate) header: Option<Header>,
    /// What is wrong.
    pub(crate) error: DecodeError,
}

impl Rejected {
    /// What a Responder answers.
    ///
    /// An error report is never answered with another one, whatever is wrong with it: two
    /// peers would never stop (RFC 8166, section 4.2.4).
    pub(crate) fn answer(&self) -> Answer {
        match self.header {
            Some(header) if header.proc == Proc::Error.to_wire() => Answer::Drop,
            _ => self.error.answer(),
        }
    }

    /// The fixed words, with the XID of the RPC that a Requester gives up because of this
    /// message; `None` if the message is to be discarded.
    ///
    /// RFC 8166 demands the latter of messages that are too short to be trusted, of error
    /// reports that cannot be read (section 4.5) and of reserved procedures (section 4.6).
    ///
    /// In all other cases the Responder has said what it had to say, so there is nothing left
    /// to wait for.
    pub(crate) fn failed_rpc(&self) -> Option<Header> {
        match self.error {
            DecodeError::Truncated(Item::FixedHeader | Item::ErrorBody)
            | DecodeError::Reserved(_) => None,
            _ => self.header,
        }
    }

    /// Whether it may have been a Call: its chunk lists are wrong, so that nobody can say.
    pub(crate) fn may_be_call(&self) -> bool {
        let proc = self.header.map(|header| Proc::from_wire(header.proc));
        let has_lists = matches!(proc, Some(Ok(Proc::Msg | Proc::NoMsg)));
        has_lists && self.answer() == Answer::ErrChunk
    }
}

/// Which way an RPC message goes, told by its own first words (RFC 8167, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A Call: the sender is the Requester.
    Call,
    /// A Reply: the sender is the Responder.
    Reply,
    /// The words are missing, have another XID than the transport header, or make no sense.
    Unknown,
}

/// Number of the RPC message type CALL.
const RPC_CALL: u32 = 0;
/// Number of the RPC message type REPLY.
const RPC_REPLY: u32 = 1;

/// Reads and checks a received message: `bytes` is exactly what the Receive got.
pub(crate) fn decode<'a>(bytes: &'a [u8], limits: &ListLimits) -> Result<Message<'a>, Rejected> {
    let mut r = Reader::new(bytes);
    let header = Header::decode(&mut r).map_err(|error| Rejected {
        header: None,
        error,
    })?;
    let reject = |error| Rejected {
        header: Some(header),
        error,
    };
    let proc = Proc::from_wire(header.proc);
    let min_len = match proc {
        Ok(Proc::Error) => ERR_CHUNK_LEN,
        _ => MIN_LEN,
    };
    if bytes.len() < min_len {
        return Err(reject(DecodeError::Truncated(Item::FixedHeader)));
    }
    if header.version != Version::ONE {
        return Err(reject(DecodeError::Version(header.version)));
    }
    let body = decode_body(&mut r, proc, limits).map_err(reject)?;
    let header_len = match body {
        Body::Msg { payload, .. } => bytes.len().saturating_sub(payload.len()),
        _ => bytes.len().saturating_sub(r.rest().len()),
    };
    Ok(Message {
        header,
        body,
        header_len,
    })
}

fn decode_body<'a>(
    r: &mut Reader<'a>,
    proc: Result<Proc, DecodeError>,
    limits: &ListLimits,
) -> Result<Body<'a>, DecodeError> {
    match proc? {
        Proc::Msg => Ok(Body::Msg {
            lists: Lists::decode(r, limits)?,
            payload: r.rest(),
        }),
        Proc::NoMsg => {
            let lists = Lists::decode(r, limits)?;
            match lists.is_empty() {
                true => Err(DecodeError::PayloadPlace),
                false => Ok(Body::NoMsg { lists }),
            }
        }
        Proc::Error => Ok(Body::Error(ErrorBody::decode(r)?)),
        reserved @ (Proc::Msgp | Proc::Done) => Err(DecodeError::Reserved(reserved)),
    }
}

impl<'a> Message<'a> {
    /// The chunk lists; empty for an error report.
    pub(crate) fn lists(&self) -> Lists<'a> {
        match self.body {
            Body::Msg { lists, .. } | Body::NoMsg { lists } => lists,
            Body::Error(_) => Lists::default(),
        }
    }

    /// Which way the message goes.
    ///
    /// RDMA_NOMSG carries no RPC message that could be looked at: one with a Position Zero
    /// Read chunk can only be a Call, one without a Read list only a Reply. An error report
    /// answers a Call.
    pub(crate) fn direction(&self) -> Direction {
        match self.body {
            Body::Msg { payload, .. } => payload_direction(self.header.xid, payload),
            Body::NoMsg { lists } if lists.read.is_empty() => Direction::Reply,
            Body::NoMsg { lists } => {
                let mut segments = lists.read.iter();
                match segments.any(|item| item.position == Position::ZERO) {
                    true => Direction::Call,
                    false => Direction::Unknown,
                }
            }
            Body::Error(_) => Direction::Reply,
        }
    }

    /// The credits that the message grants.
    ///
    /// `None` for a message that requests them, and for one that neither context nor an RPC
    /// message shows to be a Reply: its credit value means nothing (RFC 8167, section 4.1).
    pub(crate) fn grant(&self) -> Option<Credits> {
        match (self.body, self.direction()) {
            (Body::Msg { .. } | Body::NoMsg { .. }, Direction::Reply) => Some(self.header.credits),
            _ => None,
        }
    }
}

/// Which way the RPC message goes that begins with `payload`, in a message of this XID.
pub(crate) fn payload_direction(xid: Xid, payload: &[u8]) -> Direction {
    let mut r = Reader::new(payload);
    let (Ok(own), Ok(kind)) = (r.u32(Item::FixedHeader), r.u32(Item::FixedHeader)) else {
        return Direction::Unknown;
    };
    match kind {
        _ if own != xid.0 => Direction::Unknown,
        RPC_CALL => Direction::Call,
        RPC_REPLY => Direction::Reply,
        _ => Direction::Unknown,
    }
}
