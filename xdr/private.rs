// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RPC-over-RDMA private data: the properties that peers exchange in the private data of the
//! connection manager (RFC 8797).

use super::cursor::{
    Reader,
    Writer, //
};
use super::error::Item;
use super::units::InlineSize;
use super::version::Version;

/// Format identifier of RPC-over-RDMA private data.
const MAGIC: u32 = 0xf6ab_0e18;
/// Version of the format.
const VERSION: u8 = 1;
/// Flag: remote invalidation is supported.
const REMOTE_INVALIDATION: u8 = 1;

/// The properties that one peer sends to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Private {
    /// Any handle in a Call may be invalidated by the Send that carries the Reply.
    pub(crate) remote_invalidation: bool,
    /// The largest message this peer sends.
    pub(crate) send: InlineSize,
    /// The largest message this peer receives.
    pub(crate) receive: InlineSize,
}

impl Private {
    /// Octets on the wire.
    pub(crate) const WIRE_LEN: usize = 8;

    /// The properties of a peer that sends no private data (RFC 8797, section 4.1).
    pub(crate) const DEFAULT: Self = Self {
        remote_invalidation: false,
        send: Version::One.default_inline(),
        receive: Version::One.default_inline(),
    };

    /// Decodes private data. Returns `None` if the format identifier or its version is unknown.
    ///
    /// Further octets are ignored: the connection manager pads its field with zeros.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let magic = r.u32(Item::FixedHeader).ok()?;
        let &[version, flags, send, receive] = r.rest().first_chunk::<4>()?;
        (magic == MAGIC && version == VERSION).then_some(Self {
            remote_invalidation: flags & REMOTE_INVALIDATION != 0,
            send: size_from_wire(send),
            receive: size_from_wire(receive),
        })
    }

    /// Encodes the properties for the wire.
    pub(crate) fn encode(&self) -> [u8; Self::WIRE_LEN] {
        let mut bytes = [0; Self::WIRE_LEN];
        let flags = if self.remote_invalidation {
            REMOTE_INVALIDATION
        } else {
            0
        };
        let tail = [
            VERSION,
            flags,
            size_to_wire(self.send),
            size_to_wire(self.receive),
        ];
        let mut w = Writer::new(&mut bytes);
        // Both fit: the array has the length of the format.
        let _ = w.u32(MAGIC).and_then(|()| w.put(tail));
        bytes
    }

    /// Returns the properties of a connection between this peer and `other`, as this peer sees it:
    /// each direction takes the smaller of what its sender sends and its receiver receives, and
    /// both must support remote invalidation (RFC 8797, sections 5.1 and 5.2).
    pub(crate) fn negotiate(&self, other: &Self) -> Self {
        Self {
            remote_invalidation: self.remote_invalidation && other.remote_invalidation,
            send: self.send.min(other.receive),
            receive: self.receive.min(other.send),
        }
    }
}

/// Decodes a size. The wire format is the number of KiB, less one.
fn size_from_wire(size: u8) -> InlineSize {
    InlineSize(u32::from(size).saturating_add(1).saturating_mul(1024))
}

fn size_to_wire(size: InlineSize) -> u8 {
    let size = InlineSize::representable(size.0);
    u8::try_from((size.0 / 1024).saturating_sub(1)).unwrap_or(u8::MAX)
}
