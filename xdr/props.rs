// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Transport properties of version 2 and the messages about them
//! (draft-cel-nfsv4-rpcrdma-version-two-04, section 5).
//!
//! A property has a number and a value, which is opaque for a receiver that does not know the
//! number. Sets are lists of properties; a subset names elements of a set by their index, one
//! bit each.
//!
//! ```text
//!   CONNPROP  start: set     nochg: subset       the sender's properties
//!   REQPROP   want: set                          a request that the receiver change
//!   RESPROP   done, rejected: subsets of want    the result of the request
//!             other: set
//!   UPDPROP   now: set                           the sender's new properties
//! ```

use super::cursor::{
    Reader,
    Writer, //
};
use super::error::{
    DecodeError,
    EncodeError,
    Item, //
};
use super::header::{
    Header,
    Proc,
    FIXED_LEN, //
};
use super::units::{
    len_to_u32,
    padded_len,
    u32_to_usize,
    Credits,
    InlineSize,
    Xid,
    WORD, //
};
use super::version::Version;

/// Number of the Receive Buffer Size property.
const RECEIVE_SIZE: u32 = 1;
/// Number of the Backward Request Support property.
const BACKWARD: u32 = 2;

/// The minimum Receive size. Smaller values count as this one, which every version can receive.
const MIN_RECEIVE: u32 = 1024;

/// A peer's support of the reverse direction (section 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackwardSupport {
    /// The peer does not support it.
    None,
    /// The peer supports inline messages only.
    Inline,
    /// The peer supports the same messages as in the forward direction.
    General,
}

impl BackwardSupport {
    const fn from_u32(word: u32) -> Option<Self> {
        match word {
            0 => Some(BackwardSupport::None),
            1 => Some(BackwardSupport::Inline),
            2 => Some(BackwardSupport::General),
            _ => None,
        }
    }

    const fn to_u32(self) -> u32 {
        match self {
            BackwardSupport::None => 0,
            BackwardSupport::Inline => 1,
            BackwardSupport::General => 2,
        }
    }
}

/// One element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    /// The size of the smallest posted Receive in octets.
    Receive(u32),
    /// Support of the reverse direction.
    Backward(BackwardSupport),
    /// An unknown property with this number.
    Unknown(u32),
}

impl Property {
    /// Reads a property. An empty value stands for the default.
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = r.u32(Item::Property)?;
        let length = r.u32(Item::Property)?;
        let padded = padded_len(length).ok_or(DecodeError::Property)?;
        let data = r.take(u32_to_usize(padded), Item::Property)?;
        let data = data.get(..u32_to_usize(length)).unwrap_or_default();
        match number {
            RECEIVE_SIZE => Ok(Property::Receive(match data {
                [] => Version::Two.default_inline().0,
                _ => word(data)?,
            })),
            BACKWARD => Ok(Property::Backward(match data {
                [] => Properties::DEFAULT.backward,
                _ => BackwardSupport::from_u32(word(data)?).ok_or(DecodeError::Property)?,
            })),
            other => Ok(Property::Unknown(other)),
        }
    }

    fn encode(self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        let (number, value) = match self {
            Property::Receive(octets) => (RECEIVE_SIZE, octets),
            Property::Backward(support) => (BACKWARD, support.to_u32()),
            // An unknown property may have any value.
            Property::Unknown(_) => return Err(EncodeError::Mismatch),
        };
        w.u32(number)?;
        w.u32(4)?;
        w.u32(value)
    }
}

/// Reads a value of one word.
fn word(data: &[u8]) -> Result<u32, DecodeError> {
    let word = data.try_into().map_err(|_| DecodeError::Property)?;
    Ok(u32::from_be_bytes(word))
}

/// A set of properties that has been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PropSet<'a> {
    items: &'a [u8],
}

impl<'a> PropSet<'a> {
    /// Reads a set.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Truncated`] if the set is incomplete; [`DecodeError::Property`] if a known
    /// property has an invalid value, or occurs twice.
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut left = r.u32(Item::Property)?;
        let whole = r.rest();
        let (mut receive, mut backward) = (false, false);
        while left != 0 {
            let twice = match Property::decode(r)? {
                Property::Receive(_) => core::mem::replace(&mut receive, true),
                Property::Backward(_) => core::mem::replace(&mut backward, true),
                Property::Unknown(_) => false,
            };
            if twice {
                return Err(DecodeError::Property);
            }
            left = left.saturating_sub(1);
        }
        let len = whole.len().saturating_sub(r.rest().len());
        Ok(Self {
            items: whole.get(..len).unwrap_or_default(),
        })
    }

    /// Returns whether the set contains the Receive size.
    pub(crate) fn has_receive(&self) -> bool {
        self.receive().is_some()
    }

    /// Returns the Receive size in octets, if the set contains it.
    pub(crate) fn receive(&self) -> Option<u32> {
        self.iter().find_map(|property| match property {
            Property::Receive(octets) => Some(octets),
            _ => None,
        })
    }

    /// Returns whether the set contains the support of the reverse direction.
    pub(crate) fn has_backward(&self) -> bool {
        self.iter()
            .any(|property| matches!(property, Property::Backward(_)))
    }

    /// Returns the properties in the order of the set.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Property> + Clone + 'a {
        let mut r = Reader::new(self.items);
        // `decode` has read the set without an error.
        core::iter::from_fn(move || Property::decode(&mut r).ok())
    }
}

/// A subset of a set in another message or field: one bit for each element, starting with the least
/// significant bit of the first word. Missing words are zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PropSubset<'a> {
    words: &'a [u8],
}

impl<'a> PropSubset<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = r.u32(Item::Property)?;
        let words = r.take(u32_to_usize(count).saturating_mul(WORD), Item::Property)?;
        Ok(Self { words })
    }

    /// Returns whether the subset contains the first element of the set.
    fn has_first(&self) -> bool {
        // The least significant octet of the first word.
        self.words.get(WORD - 1).is_some_and(|octet| octet & 1 != 0)
    }
}

/// The body of a message about properties.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message<'a> {
    /// RDMA2_CONNPROP.
    Connect {
        /// The properties of the sender.
        start: PropSet<'a>,
    },
    /// RDMA2_REQPROP.
    Request {
        /// The properties that the receiver should have.
        want: PropSet<'a>,
    },
    /// RDMA2_RESPROP: the result for each element of the requested set.
    Response {
        /// The elements that were granted.
        done: PropSubset<'a>,
        /// The elements that do not change.
        rejected: PropSubset<'a>,
        /// The properties that have another value than requested now.
        other: PropSet<'a>,
    },
    /// RDMA2_UPDPROP.
    Update {
        /// The sender's properties from now on.
        now: PropSet<'a>,
    },
}

impl<'a> Message<'a> {
    /// Reads the body of a message of procedure `proc`.
    ///
    /// # Errors
    ///
    /// Those of [`PropSet::decode`]; [`DecodeError::UnknownProc`] if the procedure is not about
    /// properties.
    pub(crate) fn decode(proc: Proc, r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match proc {
            Proc::ConnProp => {
                let start = PropSet::decode(r)?;
                // Whether a property may change is not used: an update is handled when it arrives.
                PropSubset::decode(r)?;
                Ok(Message::Connect { start })
            }
            Proc::ReqProp => Ok(Message::Request {
                want: PropSet::decode(r)?,
            }),
            Proc::RespProp => Ok(Message::Response {
                done: PropSubset::decode(r)?,
                rejected: PropSubset::decode(r)?,
                other: PropSet::decode(r)?,
            }),
            Proc::UpdProp => Ok(Message::Update {
                now: PropSet::decode(r)?,
            }),
            other => Err(DecodeError::UnknownProc(other.to_u32())),
        }
    }
}

/// Returns the Receive size of a peer after its response to a request for `wanted` octets alone, if
/// the response changes it. A property that is in both subsets does not change (section 5.3.3).
pub(crate) fn granted(
    wanted: u32,
    done: &PropSubset<'_>,
    rejected: &PropSubset<'_>,
    other: &PropSet<'_>,
) -> Option<u32> {
    match (done.has_first(), rejected.has_first(), other.receive()) {
        (true, false, None) => Some(wanted),
        (false, false, value) => value,
        _ => None,
    }
}

/// The properties of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Properties {
    /// The largest message that the peer receives; at least 1024 octets.
    pub(crate) receive: InlineSize,
    /// The peer's support of the reverse direction.
    pub(crate) backward: BackwardSupport,
}

impl Properties {
    /// The properties of a peer that sends none.
    pub(crate) const DEFAULT: Self = Self {
        receive: Version::Two.default_inline(),
        backward: BackwardSupport::Inline,
    };

    /// Returns the properties with a Receive size of `octets`.
    pub(crate) fn with_receive(self, octets: u32) -> Self {
        Self {
            receive: InlineSize(octets.max(MIN_RECEIVE)),
            ..self
        }
    }

    /// Returns the properties after the peer has sent `set`.
    pub(crate) fn with(mut self, set: &PropSet<'_>) -> Self {
        for property in set.iter() {
            match property {
                Property::Receive(octets) => self = self.with_receive(octets),
                Property::Backward(support) => self.backward = support,
                Property::Unknown(_) => {}
            }
        }
        self
    }
}

fn fixed_words(
    w: &mut Writer<'_>,
    xid: Xid,
    credits: Credits,
    proc: Proc,
) -> Result<(), EncodeError> {
    let header = Header {
        xid,
        version: Version::Two.to_u32(),
        credits,
        proc: proc.to_u32(),
    };
    header.encode(w)
}

/// Writes an RDMA2_CONNPROP message with the properties `ours`. Only the Receive size may change
/// later. Returns the length of the message, 52 octets.
pub(crate) fn encode_connprop(
    buf: &mut [u8],
    xid: Xid,
    credits: Credits,
    ours: &Properties,
) -> Result<usize, EncodeError> {
    let mut w = Writer::new(buf);
    fixed_words(&mut w, xid, credits, Proc::ConnProp)?;
    w.u32(2)?;
    Property::Receive(ours.receive.0).encode(&mut w)?;
    Property::Backward(ours.backward).encode(&mut w)?;
    // A subset of one word, which contains the second property.
    w.u32(1)?;
    w.u32(1 << 1)?;
    Ok(w.len())
}

/// Returns whether a requested property is granted: it has to be a Receive size within `sizes`,
/// which the posted Receives have room for.
fn grants(property: Property, sizes: &core::ops::RangeInclusive<u32>) -> bool {
    matches!(property, Property::Receive(octets) if sizes.contains(&octets))
}

/// Writes the subset of the granted elements of `want`, or of the other elements. Trailing zero
/// words are left out.
fn encode_subset(
    w: &mut Writer<'_>,
    want: &PropSet<'_>,
    sizes: &core::ops::RangeInclusive<u32>,
    granted: bool,
) -> Result<(), EncodeError> {
    let at = w.len();
    w.u32(0)?;
    let (mut used, mut end) = (0, w.len());
    let (mut word, mut bit) = (0u32, 1u32);
    for property in want.iter() {
        if grants(property, sizes) == granted {
            word |= bit;
        }
        bit = bit.rotate_left(1);
        if bit == 1 {
            w.u32(word)?;
            if word != 0 {
                (used, end) = (word_count(w.len(), at), w.len());
            }
            word = 0;
        }
    }
    if word != 0 {
        w.u32(word)?;
        (used, end) = (word_count(w.len(), at), w.len());
    }
    w.truncate(end);
    w.patch_u32(at, used)
}

/// Returns the number of words between the count at `at` and `end`.
fn word_count(end: usize, at: usize) -> u32 {
    let octets = len_to_u32(end.saturating_sub(at)).unwrap_or(u32::MAX);
    (octets >> 2).saturating_sub(1)
}

/// Returns whether the response to a request for the properties `want` has at most `room` octets
/// with a bit for each of them. Otherwise the response has none, which rejects them all (section
/// 5.3.3).
pub(crate) fn has_response(want: &PropSet<'_>, room: InlineSize) -> bool {
    let words = want.iter().count().div_ceil(32);
    let subsets = words.saturating_mul(2 * WORD);
    subsets.saturating_add(FIXED_LEN + 3 * WORD) <= u32_to_usize(room.0)
}

/// Writes an RDMA2_RESPROP message, the response to the RDMA2_REQPROP message `xid` for the
/// properties `want`. A Receive size in `sizes` is granted, and all others are rejected. `sizes` is
/// `None` if the peer has no room for a bit for each property, see [`has_response`]; then nothing
/// is granted. Returns the length.
pub(crate) fn encode_resprop(
    buf: &mut [u8],
    xid: Xid,
    credits: Credits,
    want: &PropSet<'_>,
    sizes: Option<&core::ops::RangeInclusive<u32>>,
) -> Result<usize, EncodeError> {
    let mut w = Writer::new(buf);
    fixed_words(&mut w, xid, credits, Proc::RespProp)?;
    if let Some(sizes) = sizes {
        encode_subset(&mut w, want, sizes, true)?;
        encode_subset(&mut w, want, sizes, false)?;
    } else {
        w.u32(0)?;
        w.u32(0)?;
    }
    // The third set is empty: a property is granted as requested, or does not change.
    w.u32(0)?;
    Ok(w.len())
}

/// Writes a message with a Receive size of `octets` as its only property: RDMA2_REQPROP requests it
/// from the receiver, RDMA2_UPDPROP announces that of the sender. Returns the length.
///
/// # Errors
///
/// [`EncodeError::Mismatch`] for any other procedure.
pub(crate) fn encode_receive(
    buf: &mut [u8],
    proc: Proc,
    xid: Xid,
    credits: Credits,
    octets: u32,
) -> Result<usize, EncodeError> {
    if !matches!(proc, Proc::ReqProp | Proc::UpdProp) {
        return Err(EncodeError::Mismatch);
    }
    let mut w = Writer::new(buf);
    fixed_words(&mut w, xid, credits, proc)?;
    w.u32(1)?;
    Property::Receive(octets).encode(&mut w)?;
    Ok(w.len())
}
