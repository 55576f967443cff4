// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Changing the size of the Receives on an established connection
//! (draft-cel-nfsv4-rpcrdma-version-two-04, section 5.2.1).
//!
//! A peer may send messages up to the Receive size that was announced to it. A larger size is
//! therefore announced only when no smaller Receive is posted. A smaller size is agreed
//! on first: the peer asks for it and observes it from then on.
//!
//! ```text
//!   raised    replacements made ─begin─▶ smaller Receives land, one by one ─▶ none left: told
//!   lowered   asked for by the peer: told ─▶ replacements made ─begin─▶ larger Receives land
//! ```
//!
//! This module keeps sizes and counts only; the buffer pools own the buffers. At most one exchange
//! is in progress at a time.

use super::units::host_len;
use super::version::Version;

/// What a peer has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The size is as it was asked for.
    Done,
    /// The size stays.
    Rejected,
}

/// The size of the Receives of a connection; all sizes are octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// Of the buffers that are posted from now on.
    size: u32,
    /// What the peer has been told.
    told: u32,
    /// What the peer has asked for.
    asked: u32,
    /// Receives posted that have another size.
    old: u32,
    /// A size for which there was no memory.
    refused: u32,
}

impl Growth {
    /// All Receives have the size `size`, and the peer is told so.
    pub(crate) const fn new(size: u32) -> Self {
        Self {
            size,
            told: size,
            asked: u32::MAX,
            old: 0,
            refused: 0,
        }
    }

    /// The size of new buffers.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// The size that the peer has been told.
    pub(crate) const fn told(&self) -> u32 {
        self.told
    }

    /// The size that Receives are to be exchanged for now, if any, where the administrator allows
    /// `most`. That the administrator allows less than before changes nothing: the peer has been told.
    pub(crate) fn wants(&self, most: u32) -> Option<u32> {
        let size = most.min(self.asked).max(self.told);
        (self.old == 0 && size != self.size && size != self.refused).then_some(size)
    }

    /// Replacements of `size` octets, which [`Self::wants`] has asked for, are free, and no other
    /// buffer is; `posted` Receives of the former size are posted.
    pub(crate) fn begin(&mut self, size: u32, posted: u32) {
        self.size = size;
        self.old = posted;
        self.refused = 0;
    }

    /// There was no memory for replacements of `size` octets.
    pub(crate) fn give_up(&mut self, size: u32) {
        self.refused = size;
    }

    /// Whether a buffer of `capacity` octets is to be posted again.
    pub(crate) fn keeps(&self, capacity: usize) -> bool {
        capacity == host_len(self.size)
    }

    /// `count` buffers of `capacity` octets are not posted any more, or were not after all.
    pub(crate) fn landed(&mut self, capacity: usize, count: u32) {
        if !self.keeps(capacity) {
            self.old = self.old.saturating_sub(count);
        }
    }

    /// Whether the peer is to be told a larger size.
    pub(crate) const fn is_due(&self) -> bool {
        self.old == 0 && self.told < self.size && self.size <= self.asked
    }

    /// The size that the peer is to be told, if it is to be told a larger one; it counts as told
    /// from then on.
    pub(crate) fn due(&mut self) -> Option<u32> {
        let due = self.is_due();
        due.then(|| {
            self.told = self.size;
            self.size
        })
    }

    /// The peer asks for `octets`. Less than it has been told, it gets at once; more, if it is
    /// allowed, when it is told so.
    pub(crate) fn ask(&mut self, octets: u32) -> Wish {
        if octets < Version::Two.default_inline().0 {
            return Wish::Rejected;
        }
        self.asked = octets;
        if octets > self.told {
            return Wish::Rejected;
        }
        self.told = octets;
        Wish::Done
    }
}
