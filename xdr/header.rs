// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The four fixed words of every header, in every version (RFC 8166, section 4.2).

use super::cursor::Writer;
use super::error::EncodeError;
use super::units::{
    Credits,
    Xid, //
};
use super::version::Version;

/// Octets of the fixed words.
pub(crate) const FIXED_LEN: usize = 16;

/// Octets of the shortest message of any version: an error report without arguments.
pub(crate) const MIN_REPORT_LEN: usize = 20;

/// Procedure number: what follows the fixed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proc {
    /// Chunk lists, then the Payload stream.
    Msg,
    /// Chunk lists; the Payload stream is in a chunk.
    NoMsg,
    /// An error report.
    Error,
    /// An optional operation. Version 2 only, as are those that follow.
    Optional,
    /// The sender's properties at the start of a connection.
    ConnProp,
    /// A request to change properties.
    ReqProp,
    /// The response to a request to change properties.
    RespProp,
    /// Properties of the sender have changed.
    UpdProp,
}

impl Proc {
    /// Returns the procedure with this number. `None` for RDMA_MSGP and RDMA_DONE, which are
    /// reserved (RFC 8166, section 4.6), and for a number that the version does not define.
    pub(crate) const fn from_u32(version: Version, word: u32) -> Option<Self> {
        match (version, word) {
            (_, 0) => Some(Proc::Msg),
            (_, 1) => Some(Proc::NoMsg),
            (_, 4) => Some(Proc::Error),
            (Version::Two, 5) => Some(Proc::Optional),
            (Version::Two, 6) => Some(Proc::ConnProp),
            (Version::Two, 7) => Some(Proc::ReqProp),
            (Version::Two, 8) => Some(Proc::RespProp),
            (Version::Two, 9) => Some(Proc::UpdProp),
            _ => None,
        }
    }

    /// Returns the number of this procedure.
    pub(crate) const fn to_u32(self) -> u32 {
        match self {
            Proc::Msg => 0,
            Proc::NoMsg => 1,
            Proc::Error => 4,
            Proc::Optional => 5,
            Proc::ConnProp => 6,
            Proc::ReqProp => 7,
            Proc::RespProp => 8,
            Proc::UpdProp => 9,
        }
    }
}

/// Number of RDMA_MSGP, which version 1 reserves.
pub(crate) const RESERVED_MSGP: u32 = 2;
/// Number of RDMA_DONE, which version 1 reserves.
pub(crate) const RESERVED_DONE: u32 = 3;

/// The fixed words, as received: neither version nor procedure is known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Matches a Reply with its Call.
    pub(crate) xid: Xid,
    /// The number of the version of all that follows.
    pub(crate) version: u32,
    /// Requested in a Call, granted in a Reply.
    pub(crate) credits: Credits,
    /// The number of the procedure.
    pub(crate) proc: u32,
}

impl Header {
    /// Reads the fixed words.
    pub(crate) const fn from_wire(bytes: &[u8; FIXED_LEN]) -> Self {
        let [x0, x1, x2, x3, v0, v1, v2, v3, c0, c1, c2, c3, p0, p1, p2, p3] = *bytes;
        Self {
            xid: Xid(u32::from_be_bytes([x0, x1, x2, x3])),
            version: u32::from_be_bytes([v0, v1, v2, v3]),
            credits: Credits(u32::from_be_bytes([c0, c1, c2, c3])),
            proc: u32::from_be_bytes([p0, p1, p2, p3]),
        }
    }

    /// Writes the fixed words.
    pub(crate) fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.words([self.xid.0, self.version, self.credits.0, self.proc])
    }
}
