// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The four fixed words of every header, in every version (RFC 8166, section 4.2).

use super::cursor::{
    Reader,
    Writer, //
};
use super::error::{
    DecodeError,
    EncodeError,
    Item, //
};
use super::units::{
    Credits,
    Version,
    Xid, //
};

/// Octets of the fixed words.
pub(crate) const FIXED_LEN: usize = 16;

/// Octets of the smallest header of RDMA_MSG and RDMA_NOMSG: fixed words, three empty lists.
pub(crate) const MIN_LEN: usize = 28;

/// Octets of an ERR_CHUNK message, the only message that is shorter than [`MIN_LEN`].
pub(crate) const ERR_CHUNK_LEN: usize = 20;

/// Procedure number: what follows the fixed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proc {
    /// Chunk lists, then the Payload stream.
    Msg,
    /// Chunk lists; the Payload stream is in a chunk.
    NoMsg,
    /// Reserved.
    Msgp,
    /// Reserved.
    Done,
    /// An error report.
    Error,
}

impl Proc {
    /// The procedure with this number.
    pub(crate) const fn from_wire(word: u32) -> Result<Self, DecodeError> {
        match word {
            0 => Ok(Proc::Msg),
            1 => Ok(Proc::NoMsg),
            2 => Ok(Proc::Msgp),
            3 => Ok(Proc::Done),
            4 => Ok(Proc::Error),
            other => Err(DecodeError::UnknownProc(other)),
        }
    }

    /// The number of this procedure.
    pub(crate) const fn to_wire(self) -> u32 {
        match self {
            Proc::Msg => 0,
            Proc::NoMsg => 1,
            Proc::Msgp => 2,
            Proc::Done => 3,
            Proc::Error => 4,
        }
    }
}

/// The fixed words, as received: neither version nor procedure is known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Joins Replies to Calls.
    pub(crate) xid: Xid,
    /// Version of all that follows.
    pub(crate) version: Version,
    /// Requested in a Call, granted in a Reply.
    pub(crate) credits: Credits,
    /// The number of the procedure.
    pub(crate) proc: u32,
}

impl Header {
    /// The header of a version one message.
    pub(crate) const fn new(xid: Xid, credits: Credits, proc: Proc) -> Self {
        Self {
            xid,
            version: Version::ONE,
            credits,
            proc: proc.to_wire(),
        }
    }

    /// Reads the fixed words.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            xid: Xid(r.u32(Item::FixedHeader)?),
            version: Version(r.u32(Item::FixedHeader)?),
            credits: Credits(r.u32(Item::FixedHeader)?),
            proc: r.u32(Item::FixedHeader)?,
        })
    }

    /// Writes the fixed words.
    pub(crate) fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.u32(self.xid.0)?;
        w.u32(self.version.0)?;
        w.u32(self.credits.0)?;
        w.u32(self.proc)
    }
}
