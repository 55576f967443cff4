// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Types for the numbers of the protocol (RFC 8166, section 4.1.2).
//!
//! The types prevent one kind of number from being used as another, a handle as a position for
//! example. They do not hide the value: the inner field is visible. All values are in host byte
//! order.

/// Transaction ID: matches a Reply with its Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Xid(pub(crate) u32);

/// Steering tag (R_key) of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) u32);

/// Virtual address of the first octet of a segment within its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset(pub(crate) u64);

/// Byte offset of a Read chunk in the unreduced Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) u32);

impl Position {
    /// Position of the Read chunk that holds the Payload stream itself.
    pub(crate) const ZERO: Self = Position(0);
}

/// Number of credits: those requested in a Call, or granted in a Reply (RFC 8166, section 3.3.1).
///
/// The two directions of a connection have credits of their own (RFC 8167, section 4). A Responder
/// grants no more credits than it has Receives, see `svc/limits.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credits(pub(crate) u32);

impl Credits {
    /// Returns the number of credits of this grant that a Requester may use: at least one, since a
    /// grant of zero would be a deadlock, and at most the number `requested`.
    pub(crate) fn usable(self, requested: Self) -> Self {
        Credits(self.0.min(requested.0).max(1))
    }
}

/// Number of octets that one Send can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InlineSize(pub(crate) u32);

impl InlineSize {
    /// Returns the largest size up to `octets` that private data can represent (RFC 8797, section
    /// 5.2), or 1 KiB if that is more. Both sides must use it, because private data cannot carry
    /// any other size.
    pub(crate) fn representable(octets: u32) -> Self {
        InlineSize((octets / 1024).clamp(1, 256).saturating_mul(1024))
    }
}

/// Octets of one XDR word.
pub(crate) const WORD: usize = 4;

/// Returns the octets of XDR roundup that follow an item of `len` octets (RFC 4506, section 3).
pub(crate) const fn pad_len(len: u32) -> u32 {
    len.wrapping_neg() & 3
}

/// Returns `len` rounded up to a whole number of XDR words, or `None` if that does not fit.
pub(crate) const fn padded_len(len: u32) -> Option<u32> {
    len.checked_add(pad_len(len))
}

/// Converts a length to an XDR word. Returns `None` if it does not fit.
pub(crate) fn len_to_u32(len: usize) -> Option<u32> {
    u32::try_from(len).ok()
}

/// Converts an XDR word to a length or an index. Lossless, because pointers have at least 32 bits.
pub(crate) fn u32_to_usize(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
