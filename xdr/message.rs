// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Whole received messages (RFC 8166, section 4; version 2: section 6.2) and their direction
//! (RFC 8167, section 2; version 2: section 6.2.2).
//!
//! ```text
//!   octets --decode--> Parsed { header, body, direction, where the lists are }
//!              |
//!              +-----> Rejected { header if there was one, error } --> response()
//! ```
//!
//! [`Parsed`] owns the result and is kept with the receive buffer. Together with the received
//! octets it provides the chunk lists whenever they are needed, without decoding the message again.
//! It does not refer to anything beyond the transport header, so the RPC message may be rewritten
//! in place, as the service does when it decrypts one.
//!
//! Both versions share one decode path, except for messages without a chunk, see [`plain`]. In
//! version 2 two more words follow the fixed words of RDMA_MSG and RDMA_NOMSG: the direction and
//! the handle to invalidate. In version 1 both are derived from the RPC message and the lists.

use super::chunk::{
    ListCounts,
    ListLimits,
    Lists,
    Survey, //
};
use super::cursor::Reader;
use super::error::{
    DecodeError,
    ErrorBody,
    ErrorResponse,
    Item, //
};
use super::header::{
    Header,
    Proc,
    FIXED_LEN,
    MIN_REPORT_LEN,
    RESERVED_DONE,
    RESERVED_MSGP, //
};
use super::props;
use super::segment::Segment;
use super::units::{
    padded_len,
    u32_to_usize,
    Credits,
    Handle,
    Xid, //
};
use super::version::{
    Version,
    Versions, //
};

mod plain;

use plain::decode_plain;

/// The body of a message: the part after the fixed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// RDMA_MSG: chunk lists, and behind them the (reduced) Payload stream.
    Msg,
    /// RDMA_NOMSG: chunk lists; the Payload stream is in a chunk.
    NoMsg,
    /// RDMA_ERROR.
    Error(ErrorBody),
    /// RDMA2_OPTIONAL: an operation of this number. None is implemented.
    Optional(u32),
    /// A message about transport properties; see [`props::Message`].
    Property(Proc),
}

/// The direction of an RPC message (RFC 8167, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A Call: the sender is the Requester.
    Call,
    /// A Reply: the sender is the Responder.
    Reply,
}

impl Direction {
    /// Returns the direction with this number of an RPC message type.
    pub(crate) const fn from_u32(word: u32) -> Option<Self> {
        match word {
            0 => Some(Direction::Call),
            1 => Some(Direction::Reply),
            _ => None,
        }
    }

    /// Returns the number of the RPC message type.
    pub(crate) const fn to_u32(self) -> u32 {
        match self {
            Direction::Call => 0,
            Direction::Reply => 1,
        }
    }
}

/// A decoded transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// The fixed words.
    pub(crate) header: Header,
    /// The version of the message.
    pub(crate) version: Version,
    /// The body of the message.
    pub(crate) body: Body,
    /// The direction of the message.
    ///
    /// `None` in version 1 if the first words of the RPC message are missing, have another XID than
    /// the transport header, or contain an unknown message type; version 2 refuses such a message.
    /// `None` also for a message about properties, as only its XID tells whether it is a response.
    ///
    /// RDMA_NOMSG of version 1 has no inline RPC message: with a Position Zero Read chunk it can
    /// only be a Call, and without a Read list only a Reply. An error report counts as a Reply.
    pub(crate) direction: Option<Direction>,
    /// The handle that the Reply to this Call may invalidate, if both peers support remote
    /// invalidation.
    pub(crate) invalidate: Option<Handle>,
    /// The length of the transport header in octets, which is the offset of the Payload stream.
    pub(crate) header_len: usize,
    counts: ListCounts,
}

impl Parsed {
    /// Returns the chunk lists; empty if the body has none. `message` holds the octets that were
    /// decoded.
    pub(crate) fn lists<'a>(&self, message: &'a [u8]) -> Lists<'a> {
        match self.body {
            Body::Msg | Body::NoMsg => {
                let lists = message.get(self.version.lists_at()..self.header_len);
                self.counts.lists(lists.unwrap_or_default())
            }
            _ => Lists::default(),
        }
    }

    /// Returns whether the message has no chunk.
    pub(crate) const fn has_no_chunks(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the error report about the chunks of this Call by a Responder that supports none
    /// (RFC 8167, section 5.3), or `None` if the message has no chunk.
    ///
    /// Version 2 has a report for each list, with the number that the Responder supports. It has
    /// none for the Reply chunk, so that report is about segments. In version 1 the encoder writes
    /// ERR_CHUNK.
    pub(crate) const fn chunk_refusal(&self) -> Option<ErrorBody> {
        self.counts.refusal()
    }

    /// Returns whether the message has neither a Write chunk nor a Reply chunk.
    pub(crate) const fn has_no_results(&self) -> bool {
        self.counts.no_results()
    }

    /// Returns whether the message has no Read chunk.
    pub(crate) const fn has_no_reads(&self) -> bool {
        self.counts.no_reads()
    }

    /// Returns the segment of the message's only chunk, if that is a Write chunk of one segment.
    /// `message` holds the octets that were decoded.
    #[inline]
    pub(crate) fn sole_write(&self, message: &[u8]) -> Option<Segment> {
        let lists = self.version.lists_at();
        let len = Lists::SOLE_LEN;
        if !self.counts.is_one_write() || self.header_len != lists.saturating_add(len) {
            return None;
        }
        let segment = message.get(lists.saturating_add(Lists::SOLE_WRITE_AT)..)?;
        Some(Segment::from_wire(segment.first_chunk()?))
    }

    /// Returns whether the message has a Reply chunk.
    pub(crate) const fn has_reply_chunk(&self) -> bool {
        self.counts.has_reply()
    }

    /// Returns the number of octets that the Write chunks and the Reply chunk have room for.
    pub(crate) const fn room(&self) -> u64 {
        self.counts.room()
    }

    /// Returns the (reduced) Payload stream if it is inline. `message` holds the octets that were
    /// decoded.
    pub(crate) fn payload<'a>(&self, message: &'a [u8]) -> Option<&'a [u8]> {
        match self.body {
            Body::Msg => Some(message.get(self.header_len..).unwrap_or_default()),
            _ => None,
        }
    }

    /// Returns whether the message reports that a Reply had no room.
    pub(crate) fn lacks_room(&self) -> bool {
        matches!(self.body, Body::Error(ErrorBody::ReplyResource { .. }))
    }

    /// Returns whether the message reports that the version of a message is not supported.
    pub(crate) fn refuses_version(&self) -> bool {
        matches!(self.body, Body::Error(ErrorBody::Version { .. }))
    }

    /// Returns a Responder's response if the message is an optional operation, of which none is
    /// implemented. A Reply to an optional operation is dropped, because none was requested.
    pub(crate) fn option_response(&self) -> Option<ErrorResponse> {
        match (self.body, self.direction) {
            (Body::Optional(_), Some(Direction::Call)) => {
                Some(ErrorResponse::Report(ErrorBody::Option))
            }
            (Body::Optional(_), _) => Some(ErrorResponse::Drop),
            _ => None,
        }
    }

    /// Returns whether this is a message about properties.
    pub(crate) const fn is_property(&self) -> bool {
        matches!(self.body, Body::Property(_))
    }

    /// Returns the sets and subsets of a message about properties. `message` holds the octets that
    /// were decoded.
    pub(crate) fn properties<'a>(&self, message: &'a [u8]) -> Option<props::Message<'a>> {
        match self.body {
            Body::Property(proc) => {
                let body = message.get(FIXED_LEN..).unwrap_or_default();
                // `decode` has read it without an error.
                props::Message::decode(proc, &mut Reader::new(body)).ok()
            }
            _ => None,
        }
    }

    /// Returns the credits that the message grants.
    ///
    /// `None` for a message that requests credits, and for one that is not known to be a Reply: its
    /// credit value has no meaning (RFC 8167, section 4.1).
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
    /// The fixed words, if the message is long enough to have them. They cannot be trusted when the
    /// message is shorter than a whole header.
    pub(crate) header: Option<Header>,
    /// The direction of the message, if its header names one. Only headers of version 2 do.
    pub(crate) direction: Option<Direction>,
    /// The reason why the message was rejected.
    pub(crate) error: DecodeError,
}

impl Rejected {
    /// Returns the procedure that the header names.
    fn proc(&self) -> Option<Proc> {
        Proc::from_u32(self.version(), self.header?.proc)
    }

    /// Returns the Responder's response to the message.
    ///
    /// An error report never causes another one: two peers would exchange them forever (RFC 8166,
    /// section 4.2.4). A message that is known to be a Reply causes none either: error reports flow
    /// from Responder to Requester.
    pub(crate) fn response(&self) -> ErrorResponse {
        match self.proc() {
            Some(Proc::Error) => ErrorResponse::Drop,
            Some(Proc::RespProp) if !matches!(self.error, DecodeError::Version(_)) => {
                ErrorResponse::Drop
            }
            _ if self.direction == Some(Direction::Reply) => ErrorResponse::Drop,
            _ => self.error.response(self.version()),
        }
    }

    /// Returns the version whose rules apply to the message: version 1 if its version is unknown.
    fn version(&self) -> Version {
        let word = self.header.map(|header| header.version);
        word.and_then(Version::from_u32).unwrap_or(Version::One)
    }

    /// Returns the fixed words, with the XID of the RPC that a Requester gives up because of this
    /// message; `None` if the message is to be discarded.
    ///
    /// RFC 8166 requires that messages are discarded if they are too short to be trusted, if they
    /// are error reports that cannot be read (section 4.5), or if their procedure is reserved
    /// (section 4.6).
    ///
    /// In all other cases this message was the Responder's response, so no other follows.
    pub(crate) fn failed_rpc(&self) -> Option<Header> {
        let is_reply = match (self.version(), self.proc()) {
            (_, Some(Proc::Error)) => false,
            (Version::One, _) => true,
            (Version::Two, Some(Proc::Msg | Proc::NoMsg)) => {
                self.direction == Some(Direction::Reply)
            }
            (Version::Two, _) => false,
        };
        match self.error {
            DecodeError::Truncated(Item::FixedHeader) | DecodeError::Reserved(_) => None,
            DecodeError::Version(_) => self.header,
            _ if is_reply => self.header,
            _ => None,
        }
    }

    /// Returns the error report that a Requester sends about the message. It is the Responder of
    /// the reverse direction.
    ///
    /// A message that may be a Call causes a report, unless its procedure is reserved. The limits
    /// in the report are zero, because this Responder supports no chunks.
    pub(crate) fn refusal(&self) -> Option<ErrorBody> {
        match (self.error, self.response()) {
            (DecodeError::Reserved(_), _) | (_, ErrorResponse::Drop) => None,
            (_, ErrorResponse::Report(report)) => Some(report.without_chunks()),
        }
    }
}

/// Decodes and checks a received message.
///
/// `bytes` holds exactly the octets that the Receive completed with. `accepts` is the range of
/// versions that the connection accepts at the moment.
pub(crate) fn decode(
    bytes: &[u8],
    limits: &ListLimits,
    accepts: Versions,
) -> Result<Parsed, Rejected> {
    match decode_plain(bytes, accepts).or_else(|| decode_fast(bytes, limits, accepts)) {
        Some(parsed) => Ok(parsed),
        None => decode_any(bytes, limits, accepts),
    }
}

/// Decodes a message as [`decode`] does, and stores the header in `slot`, where the caller keeps
/// it. If the slot already has a header, it is that of this message, which is not decoded again.
/// The slot is empty after an error.
#[inline(always)]
pub(crate) fn decode_into<'a>(
    slot: &'a mut Option<Parsed>,
    bytes: &[u8],
    limits: &ListLimits,
    accepts: Versions,
) -> Result<&'a Parsed, Rejected> {
    if slot.is_none() {
        if let Some(parsed) = decode_plain(bytes, accepts) {
            return Ok(slot.insert(parsed));
        }
        if let Some(parsed) = decode_fast(bytes, limits, accepts) {
            return Ok(slot.insert(parsed));
        }
        return decode_any_into(slot, bytes, limits, accepts);
    }
    decode_other_into(slot, bytes, limits, accepts)
}

/// Implements [`decode_into`] for a message of any form.
#[inline(never)]
pub(crate) fn decode_other_into<'a>(
    slot: &'a mut Option<Parsed>,
    bytes: &[u8],
    limits: &ListLimits,
    accepts: Versions,
) -> Result<&'a Parsed, Rejected> {
    if let Some(parsed) = slot.take() {
        return Ok(slot.insert(parsed));
    }
    match decode_fast(bytes, limits, accepts) {
        Some(parsed) => Ok(slot.insert(parsed)),
        None => decode_any_into(slot, bytes, limits, accepts),
    }
}

/// Implements [`decode_into`] for a message that no shorter way decodes.
#[cold]
#[inline(never)]
fn decode_any_into<'a>(
    slot: &'a mut Option<Parsed>,
    bytes: &[u8],
    limits: &ListLimits,
    accepts: Versions,
) -> Result<&'a Parsed, Rejected> {
    Ok(slot.insert(decode_any(bytes, limits, accepts)?))
}

/// Decodes a message of one of the most common forms: RDMA_MSG without a chunk, or with one Read
/// chunk or Write chunk of one segment. Returns `None` for any other message, and for one that
/// [`decode_any`] would refuse.
// Inlined, so that the header is built where the caller keeps it.
#[inline(always)]
pub(crate) fn decode_fast(bytes: &[u8], limits: &ListLimits, accepts: Versions) -> Option<Parsed> {
    let mut r = Reader::new(bytes);
    let header = Header::from_wire(r.array(Item::FixedHeader).ok()?);
    let version = accepts.find(header.version)?;
    if header.proc != Proc::Msg.to_u32() {
        return None;
    }
    let said = match version {
        Version::One => None,
        Version::Two => {
            let direction = read_direction(&mut r).ok()?;
            Some((direction, Handle(r.u32(Item::Invalidate).ok()?)))
        }
    };
    let (counts, segment) = ListCounts::decode_fast(&mut r, limits)?;
    let direction = payload_direction(header.xid, r.rest());
    let invalidate = match said {
        None => (segment.length != 0).then_some(segment.handle),
        Some((said, _)) if direction != Some(said) => return None,
        Some((Direction::Reply, _)) => None,
        Some((Direction::Call, named)) if named.0 == 0 || named == segment.handle => Some(named),
        Some((Direction::Call, _)) => return None,
    };
    Some(Parsed {
        header,
        version,
        body: Body::Msg,
        direction,
        invalidate: invalidate.filter(|handle| handle.0 != 0),
        header_len: r.at(),
        counts,
    })
}

/// Decodes and checks a message of any form. It also decodes the most common forms, so that tests
/// can compare it with [`decode_fast`].
#[inline(never)]
pub(crate) fn decode_any(
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
                direction: None,
                error,
            })
        }
    };
    let reject = |direction, error| Rejected {
        header: Some(header),
        direction,
        error,
    };
    // The rare cases take a copy of the reader, so that this reader can stay in registers.
    let Some(version) = accepts.find(header.version) else {
        return foreign(r, header, accepts).map_err(|error| reject(None, error));
    };
    let body = match Proc::from_u32(version, header.proc) {
        Some(Proc::Msg) => Body::Msg,
        Some(Proc::NoMsg) => Body::NoMsg,
        proc => {
            let mut direction = None;
            return without_lists(r, header, version, proc, &mut direction)
                .map_err(|error| reject(direction, error));
        }
    };
    if r.whole() < version.min_message_len() {
        return Err(reject(None, DecodeError::Truncated(Item::FixedHeader)));
    }
    let (mut said, mut named) = (None, None);
    if version == Version::Two {
        said = Some(read_direction(&mut r).map_err(|error| reject(None, error))?);
        let handle = r.u32(Item::Invalidate);
        named = Some(Handle(handle.map_err(|error| reject(said, error))?));
    }
    let (survey, counts) =
        Survey::decode(&mut r, limits, version, named).map_err(|error| reject(said, error))?;
    let found = match body {
        Body::Msg => payload_direction(header.xid, r.rest()),
        _ if counts.is_empty() => return Err(reject(said, DecodeError::PayloadLocation)),
        _ if version == Version::Two => said,
        _ if counts.no_reads() => Some(Direction::Reply),
        _ if survey.position_zero() => Some(Direction::Call),
        _ => None,
    };
    let invalidate = match said {
        None => survey.only_handle(),
        Some(said) => survey
            .check_direction(said, found)
            .map_err(|error| reject(Some(said), error))?,
    };
    Ok(Parsed {
        header,
        version,
        body,
        direction: found,
        invalidate,
        header_len: r.at(),
        counts,
    })
}

fn read_direction(r: &mut Reader<'_>) -> Result<Direction, DecodeError> {
    Direction::from_u32(r.u32(Item::Direction)?).ok_or(DecodeError::Direction)
}

/// Reads a message that has no chunk lists.
#[cold]
fn without_lists(
    mut r: Reader<'_>,
    header: Header,
    version: Version,
    proc: Option<Proc>,
    direction: &mut Option<Direction>,
) -> Result<Parsed, DecodeError> {
    let min_len = match proc {
        Some(Proc::Error) => MIN_REPORT_LEN,
        _ => version.min_message_len(),
    };
    if r.whole() < min_len {
        return Err(DecodeError::Truncated(Item::FixedHeader));
    }
    let body = match proc {
        Some(Proc::Error) => {
            *direction = Some(Direction::Reply);
            Body::Error(read_report(&mut r, version)?)
        }
        Some(Proc::Optional) => {
            let said = read_direction(&mut r)?;
            *direction = Some(said);
            optional(&mut r, header.xid, said)?
        }
        Some(proc) => {
            props::Message::decode(proc, &mut r)?;
            Body::Property(proc)
        }
        None => {
            return Err(match (version, header.proc) {
                (Version::One, RESERVED_MSGP | RESERVED_DONE) => DecodeError::Reserved(header.proc),
                (_, other) => DecodeError::UnknownProc(other),
            })
        }
    };
    Ok(no_lists(header, version, body, *direction, r.at()))
}

/// Decodes a message of a version that the receiver does not accept.
///
/// An ERR_VERS report is accepted in any version: RFC 5666, section 4.2, does not say which version
/// its header has. Any other message fails.
#[cold]
fn foreign(mut r: Reader<'_>, header: Header, accepts: Versions) -> Result<Parsed, DecodeError> {
    let is_report = header.proc == Proc::Error.to_u32();
    let min_len = if is_report {
        MIN_REPORT_LEN
    } else {
        Version::One.min_message_len()
    };
    if r.whole() < min_len {
        return Err(DecodeError::Truncated(Item::FixedHeader));
    }
    if is_report && r.u32(Item::ErrorBody)? == ErrorBody::ERR_VERS {
        let body = Body::Error(ErrorBody::Version {
            low: r.u32(Item::ErrorBody)?,
            high: r.u32(Item::ErrorBody)?,
        });
        let direction = Some(Direction::Reply);
        return Ok(no_lists(header, accepts.low(), body, direction, r.at()));
    }
    Err(DecodeError::Version(accepts))
}

/// Reads the body of an error report.
fn read_report(r: &mut Reader<'_>, version: Version) -> Result<ErrorBody, DecodeError> {
    let code = r.u32(Item::ErrorBody)?;
    let mut word = || r.u32(Item::ErrorBody);
    let report = match (version, code) {
        (_, ErrorBody::ERR_VERS) => ErrorBody::Version {
            low: word()?,
            high: word()?,
        },
        (_, ErrorBody::ERR_CHUNK) => ErrorBody::Chunk,
        (Version::One, other) => ErrorBody::Unknown(other),
        (Version::Two, 3) => ErrorBody::Procedure,
        (Version::Two, 4) => ErrorBody::ReadChunks { max: word()? },
        (Version::Two, 5) => ErrorBody::WriteChunks { max: word()? },
        (Version::Two, 6) => ErrorBody::Segments { max: word()? },
        (Version::Two, 7) => ErrorBody::WriteResource {
            chunk: word()?,
            needed: word()?,
        },
        (Version::Two, 8) => ErrorBody::ReplyResource { needed: word()? },
        (Version::Two, 9) => ErrorBody::Option,
        (Version::Two, 10) => ErrorBody::System,
        (Version::Two, other) => return Err(DecodeError::UnknownError(other)),
    };
    match version {
        // A report has no Payload stream (section 6.2.1).
        Version::Two if !r.rest().is_empty() => Err(DecodeError::PayloadLocation),
        _ => Ok(report),
    }
}

/// Reads the rest of RDMA2_OPTIONAL, whose header has the direction `said`.
fn optional(r: &mut Reader<'_>, xid: Xid, said: Direction) -> Result<Body, DecodeError> {
    let number = r.u32(Item::Optional)?;
    let length = padded_len(r.u32(Item::Optional)?).ok_or(DecodeError::TooLong)?;
    r.take(u32_to_usize(length), Item::Optional)?;
    match payload_direction(xid, r.rest()) {
        Some(other) if other != said => Err(DecodeError::Direction),
        _ => Ok(Body::Optional(number)),
    }
}

fn no_lists(
    header: Header,
    version: Version,
    body: Body,
    direction: Option<Direction>,
    header_len: usize,
) -> Parsed {
    Parsed {
        header,
        version,
        body,
        direction,
        invalidate: None,
        header_len,
        counts: ListCounts::default(),
    }
}

/// Returns the direction of the RPC message that begins with `payload`, or `None` if its XID is not
/// `xid` or its message type is unknown.
pub(crate) fn payload_direction(xid: Xid, payload: &[u8]) -> Option<Direction> {
    let (words, _) = payload.split_first_chunk()?;
    let [x0, x1, x2, x3, t0, t1, t2, t3] = *words;
    if u32::from_be_bytes([x0, x1, x2, x3]) != xid.0 {
        return None;
    }
    Direction::from_u32(u32::from_be_bytes([t0, t1, t2, t3]))
}
