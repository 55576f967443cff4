// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The four fixed words of every header, in every version (RFC 8166, section 4.2).

use super::cursor::Writer;
use super::error::EncodeError;
use super::units::{
    Credits,
    Xid, //
};

/// Octets of the fixed words.
pub(crate) const FIXED_LEN: usize = 16;

/// Octets of the shortest error report, which is the shortest message of version 1.
pub(crate) const LEAST_REPORT: usize = 20;

/// Procedure number: what follows the fixed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proc {
    /// Chunk lists, then the Payload stream.
    Msg,
    /// Chunk lists; the Payload stream is in a chunk.
    NoMsg,
    /// An error report.
    Error,
}

impl Proc {
    /// The procedure with this number. `None` for RDMA_MSGP and RDMA_DONE, which are reserved
    /// (RFC 8166, section 4.6), and for a number that the protocol does not define.
    pub(crate) const fn from_wire(word: u32) -> Option<Self> {
        match word {
            0 => Some(Proc::Msg),
            1 => Some(Proc::NoMsg),
            4 => Some(Proc::Error),
            _ => None,
        }
    }

    /// The number of this procedure.
    pub(crate) const fn to_wire(self) -> u32 {
        match self {
            Proc::Msg => 0,
            Proc::NoMsg => 1,
            Proc::Error => 4,
        }
    }
}

/// Number of RDMA_MSGP, which is reserved.
pub(crate) const RESERVED_MSGP: u32 = 2;
/// Number of RDMA_DONE, which is reserved.
pub(crate) const RESERVED_DONE: u32 = 3;

/// The fixed words, as received: neither version nor procedure is known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Joins Replies to Calls.
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
        w.u32(self.xid.0)?;
        w.u32(self.version)?;
        w.u32(self.credits.0)?;
        w.u32(self.proc)
    }
}
