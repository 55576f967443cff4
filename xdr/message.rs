// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Whole received messages (RFC 8166, section 4) and their direction (RFC 8167, section 2).
//!
//! ```text
//!   octets --decode--> Parsed { header, body: Msg | NoMsg | Error, direction, places of lists }
//!              |
//!              +-----> Rejected { header if there was one, error } --> answer()
//! ```
//!
//! A message is decoded once. [`Parsed`] owns what was found and is kept with the receive
//! buffer; together with the octets it gives the chunk lists again whenever they are needed. It
//! does not reach beyond the transport header: the RPC message may be rewritten in place, as
//! the service does when it decrypts one.

use super::chunk::{
    ListLimits,
    Lists,
    Places,
    Survey, //
};
use super::cursor::Reader;
use super::error::{
    Answer,
    DecodeError,
    ErrorBody,
    Item, //
};
use super::header::{
    Header,
    Proc,
    LEAST_REPORT,
    RESERVED_DONE,
    RESERVED_MSGP, //
};
use super::units::{
    Credits,
    Handle,
    Xid, //
};
use super::version::{
    Version,
    Versions, //
};

/// What follows the fixed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// RDMA_MSG: chunk lists, and behind them the (reduced) Payload stream.
    Msg,
    /// RDMA_NOMSG: chunk lists; the Payload stream is in a chunk.
    NoMsg,
    /// RDMA_ERROR.
    Error(ErrorBody),
}

/// Which way an RPC message goes (RFC 8167, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A Call: the sender is the Requester.
    Call,
    /// A Reply: the sender is the Responder.
    Reply,
}

impl Direction {
    /// The direction with this number of an RPC message type.
    pub(crate) const fn from_wire(word: u32) -> Option<Self> {
        match word {
            0 => Some(Direction::Call),
            1 => Some(Direction::Reply),
            _ => None,
        }
    }

    /// The number of the RPC message type.
    pub(crate) const fn to_wire(self) -> u32 {
        match self {
            Direction::Call => 0,
            Direction::Reply => 1,
        }
    }
}

/// What a good transport header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// The fixed words.
    pub(crate) header: Header,
    /// The version of the message.
    pub(crate) version: Version,
    /// What follows the fixed words.
    pub(crate) body: Body,
    /// Which way the message goes. `None` if the first words of the RPC message are missing, have
    /// another XID than the transport header, or make no sense.
    ///
    /// RDMA_NOMSG carries no RPC message that could be looked at: one with a Position Zero
    /// Read chunk can only be a Call, one without a Read list only a Reply. An error report
    /// answers a Call.
    pub(crate) direction: Option<Direction>,
    /// The handle that the Reply to this Call may invalidate, if both peers support remote
    /// invalidation.
    pub(crate) invalidate: Option<Handle>,
    /// Octets of the whole transport header: where the Payload stream starts.
    pub(crate) header_len: usize,
    places: Places,
}

impl Parsed {
    /// The chunk lists; empty for an error report. `message` holds the octets that were decoded.
    pub(crate) fn lists<'a>(&self, message: &'a [u8]) -> Lists<'a> {
        self.places.lists(message)
    }

    /// Whether there is no chunk at all.
    pub(crate) const fn has_no_chunks(&self) -> bool {
        self.places.is_empty()
    }

    /// The (reduced) Payload stream if it is inline. `message` holds the octets that were
    /// decoded.
    pub(crate) fn payload<'a>(&self, message: &'a [u8]) -> Option<&'a [u8]> {
        match self.body {
            Body::Msg => Some(message.get(self.header_len..).unwrap_or_default()),
            Body::NoMsg | Body::Error(_) => None,
        }
    }

    /// The credits that the message grants.
    ///
    /// `None` for a message that requests them, and for one that neither context nor an RPC
    /// message shows to be a Reply: its credit value means nothing (RFC 8167, section 4.1).
    pub(crate) fn grant(&self) -> Option<Credits> {
        match (self.body, self.direction) {
            (Body::Msg | Body::NoMsg, Some(Direction::Reply)) => Some(self.header.credits),
            _ => None,
        }
    }
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
        let proc = self.header.and_then(|header| Proc::from_wire(header.proc));
        let has_lists = matches!(proc, Some(Proc::Msg | Proc::NoMsg));
        has_lists && self.answer() == Answer::Report(ErrorBody::Chunk)
    }
}

/// Reads and checks a received message: `bytes` is exactly what the Receive got. `accepts` are
/// the versions that may come on this connection at the moment.
pub(crate) fn decode(
    bytes: &[u8],
    limits: &ListLimits,
    accepts: Versions,
) -> Result<Parsed, Rejected> {
    let mut r = Reader::new(bytes);
    let header = match r.array(Item::FixedHeader) {
        Ok(words) => Header::from_wire(words),
        Err(error) => {
            return Err(Rejected {
                header: None,
                error,
            })
        }
    };
    decode_body(&mut r, header, limits, accepts).map_err(|error| Rejected {
        header: Some(header),
        error,
    })
}

fn decode_body(
    r: &mut Reader<'_>,
    header: Header,
    limits: &ListLimits,
    accepts: Versions,
) -> Result<Parsed, DecodeError> {
    let proc = Proc::from_wire(header.proc);
    let length = r.at().saturating_add(r.rest().len());
    let least = match proc {
        Some(Proc::Error) => LEAST_REPORT,
        _ => Version::One.least_header(),
    };
    if length < least {
        return Err(DecodeError::Truncated(Item::FixedHeader));
    }
    let accepted = accepts.find(header.version);
    if proc == Some(Proc::Error) {
        let report = decode_report(r, accepted, accepts)?;
        let version = accepted.unwrap_or(accepts.low());
        return Ok(error_report(header, version, report, r.at()));
    }
    let version = accepted.ok_or(DecodeError::Version(accepts))?;
    let body = match proc {
        Some(Proc::Msg) => Body::Msg,
        Some(Proc::NoMsg) => Body::NoMsg,
        _ => {
            return Err(match header.proc {
                RESERVED_MSGP | RESERVED_DONE => DecodeError::Reserved(header.proc),
                other => DecodeError::UnknownProc(other),
            })
        }
    };
    let (survey, places) = Survey::decode(r, limits)?;
    let direction = match body {
        Body::Msg => payload_direction(header.xid, r.rest()),
        _ if places.is_empty() => return Err(DecodeError::PayloadPlace),
        _ if places.no_reads() => Some(Direction::Reply),
        _ if survey.position_zero() => Some(Direction::Call),
        _ => None,
    };
    Ok(Parsed {
        header,
        version,
        body,
        direction,
        invalidate: survey.only_handle(),
        header_len: r.at(),
        places,
    })
}

/// Reads the body of an error report. A Responder may put any version into the header of an
/// ERR_VERS (RFC 5666, section 4.2, did not say which), so that one is read whatever it is;
/// other reports only of an `accepted` version.
fn decode_report(
    r: &mut Reader<'_>,
    accepted: Option<Version>,
    accepts: Versions,
) -> Result<ErrorBody, DecodeError> {
    let code = r.u32(Item::ErrorBody)?;
    if code == ErrorBody::ERR_VERS {
        return Ok(ErrorBody::Version {
            low: r.u32(Item::ErrorBody)?,
            high: r.u32(Item::ErrorBody)?,
        });
    }
    match (accepted, code) {
        (None, _) => Err(DecodeError::Version(accepts)),
        (Some(_), ErrorBody::ERR_CHUNK) => Ok(ErrorBody::Chunk),
        (Some(_), other) => Ok(ErrorBody::Unknown(other)),
    }
}

fn error_report(header: Header, version: Version, report: ErrorBody, header_len: usize) -> Parsed {
    Parsed {
        header,
        version,
        body: Body::Error(report),
        direction: Some(Direction::Reply),
        invalidate: None,
        header_len,
        places: Places::default(),
    }
}

/// Which way the RPC message goes that begins with `payload`, in a message of this XID.
pub(crate) fn payload_direction(xid: Xid, payload: &[u8]) -> Option<Direction> {
    let (words, _) = payload.split_first_chunk()?;
    let [x0, x1, x2, x3, t0, t1, t2, t3] = *words;
    if u32::from_be_bytes([x0, x1, x2, x3]) != xid.0 {
        return None;
    }
    Direction::from_wire(u32::from_be_bytes([t0, t1, t2, t3]))
}
