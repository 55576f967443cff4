// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Protocol versions, and the constants that depend only on the version (RFC 8166, section 4.2.2).
//!
//! The version word of a header may hold any value. [`Version`] is a version that is implemented
//! here, and [`Versions`] is the range of versions that a receiver accepts at the moment.

use super::units::{
    InlineSize,
    WORD, //
};

/// An implemented protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// RFC 8166.
    One,
    /// draft-cel-nfsv4-rpcrdma-version-two-04.
    Two,
}

impl Version {
    /// Returns the version with this number.
    pub(crate) const fn from_u32(word: u32) -> Option<Self> {
        match word {
            1 => Some(Version::One),
            2 => Some(Version::Two),
            _ => None,
        }
    }

    /// Returns the number of this version.
    pub(crate) const fn to_u32(self) -> u32 {
        match self {
            Version::One => 1,
            Version::Two => 2,
        }
    }

    /// Returns the octets before the chunk lists: the four fixed words; in version 2 also the
    /// direction and the handle to invalidate.
    pub(crate) const fn lists_at(self) -> usize {
        match self {
            Version::One => 4 * WORD,
            Version::Two => 6 * WORD,
        }
    }

    /// Returns the octets of the smallest header of an RPC message: that with three empty lists.
    pub(crate) const fn min_header_len(self) -> usize {
        match self {
            Version::One => 7 * WORD,
            Version::Two => 9 * WORD,
        }
    }

    /// Returns the octets of the shortest message that is decoded: in version 1 the smallest header
    /// of an RPC message (RFC 8166, section 4.5), in version 2 the smallest header that exists.
    /// Error reports of version 1 may be shorter.
    pub(crate) const fn min_message_len(self) -> usize {
        match self {
            Version::One => 7 * WORD,
            Version::Two => 5 * WORD,
        }
    }

    /// Returns the inline threshold to assume until the peer has announced its own (RFC 8166,
    /// section 3.3.3; version 2: section 2.3).
    pub(crate) const fn default_inline(self) -> InlineSize {
        match self {
            Version::One => InlineSize(1024),
            Version::Two => InlineSize(4096),
        }
    }
}

/// A range of versions, both ends included. It is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    low: Version,
    high: Version,
}

impl Versions {
    /// Returns the range of one version.
    pub(crate) const fn only(version: Version) -> Self {
        Self {
            low: version,
            high: version,
        }
    }

    /// Returns the range from version 1 to `high`.
    pub(crate) const fn up_to(high: Version) -> Self {
        Self {
            low: Version::One,
            high,
        }
    }

    /// Returns the lowest version.
    pub(crate) const fn low(self) -> Version {
        self.low
    }

    /// Returns the highest version.
    pub(crate) const fn high(self) -> Version {
        self.high
    }

    /// Returns the version with the number `word`, if it is in the range.
    pub(crate) fn find(self, word: u32) -> Option<Version> {
        match Version::from_u32(word)? {
            Version::One if self.low == Version::One => Some(Version::One),
            Version::Two if self.high == Version::Two => Some(Version::Two),
            _ => None,
        }
    }
}
