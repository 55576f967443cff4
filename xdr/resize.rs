// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Changing the size of the Receives on an established connection
//! (draft-cel-nfsv4-rpcrdma-version-two-04, section 5.2.1).
//!
//! A peer may send messages up to the Receive size that was announced to it. A larger size is
//! therefore announced only when no smaller Receive is posted. A smaller size needs the peer's
//! request, which the peer observes from then on.
//!
//! ```text
//!   raised    replacements allocated ─begin─▶ smaller Receives complete ─▶ none left: announced
//!   lowered   the peer's request granted ─▶ replacements allocated ─begin─▶ larger ones complete
//! ```
//!
//! If two threads send an announcement and the response to a request, the peer may receive them in
//! another order than they were decided in. So requests are rejected from the decision to announce
//! a size until the announcement is posted. The response that grants a request, and the message
//! with the properties, are treated in the same way, see [`Resize::hold`].
//!
//! This module keeps sizes and counts only; the buffer pools own the buffers. At most one exchange
//! is in progress at a time.

use super::units::u32_to_usize;
use super::version::Version;

/// The result of a peer's request for another Receive size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeResult {
    /// The size is the requested one.
    Granted,
    /// The size does not change now.
    Rejected,
}

/// The size of the Receives of a connection, while they are replaced. All sizes are in octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resize {
    /// The size of buffers that are posted from now on.
    size: u32,
    /// The size that the peer knows.
    announced: u32,
    /// The size that the peer knew before the announcement that is being sent; zero if none is.
    before: u32,
    /// The number of other messages with a size that are being sent.
    holds: u32,
    /// The size that the peer has requested.
    requested: u32,
    /// The number of posted Receives of the former size.
    old: u32,
    /// Whether a thread allocates replacements.
    allocating: bool,
    /// A size for which no memory was available.
    refused: u32,
}

impl Resize {
    /// Creates the state in which all Receives have the size `size`, and the peer knows it.
    pub(crate) const fn new(size: u32) -> Self {
        Self {
            size,
            announced: size,
            before: 0,
            holds: 0,
            requested: u32::MAX,
            old: 0,
            allocating: false,
            refused: 0,
        }
    }

    /// Returns the size of new buffers.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of posted Receives of the former size.
    pub(crate) const fn outdated(&self) -> u32 {
        self.old
    }

    /// Returns the size that the peer knows.
    pub(crate) const fn announced(&self) -> u32 {
        self.announced
    }

    /// Returns the size of the replacements to allocate now, if any. `max` is the administrator's
    /// limit. A limit below the size that the peer knows has no effect.
    pub(crate) fn wants(&self, max: u32) -> Option<u32> {
        let size = max.min(self.requested).max(self.announced);
        let may_begin = self.old == 0 && !self.allocating;
        (may_begin && size != self.size && size != self.refused).then_some(size)
    }

    /// Returns what [`Self::wants`] returns. The caller allocates the replacements, and calls
    /// [`Self::release`] then. Until that call no other thread does so.
    pub(crate) fn claim(&mut self, max: u32) -> Option<u32> {
        let size = self.wants(max)?;
        self.allocating = true;
        Some(size)
    }

    /// Ends what [`Self::claim`] has begun.
    pub(crate) fn release(&mut self) {
        self.allocating = false;
    }

    /// Begins the replacement by Receives of `size` octets, as [`Self::wants`] has returned. All
    /// free buffers must have that size. `posted` is the number of posted Receives of the former
    /// size.
    pub(crate) fn begin(&mut self, size: u32, posted: u32) {
        self.size = size;
        self.old = posted;
        self.refused = 0;
    }

    /// Records that no memory for replacements of `size` octets was available.
    pub(crate) fn give_up(&mut self, size: u32) {
        self.refused = size;
    }

    /// Returns whether a buffer of `capacity` octets may be posted again.
    pub(crate) fn keeps(&self, capacity: usize) -> bool {
        capacity == u32_to_usize(self.size)
    }

    /// Records that `count` Receives of `capacity` octets have completed or could not be posted.
    pub(crate) fn note_completed(&mut self, capacity: usize, count: u32) {
        if !self.keeps(capacity) {
            self.old = self.old.saturating_sub(count);
        }
    }

    /// Returns whether a larger size has to be announced to the peer.
    pub(crate) const fn is_due(&self) -> bool {
        self.old == 0 && self.announced < self.size && self.size <= self.requested
    }

    /// Returns the larger size to announce to the peer, if there is one, and counts it as
    /// announced. The caller sends the announcement, and calls [`Self::end_announcement`].
    pub(crate) fn take_due(&mut self) -> Option<u32> {
        if !self.is_due() || self.is_announcing() {
            return None;
        }
        self.before = self.announced;
        self.announced = self.size;
        Some(self.size)
    }

    /// Records that the announcement was posted or, if it was not `sent`, that the peer does not
    /// get it.
    pub(crate) fn end_announcement(&mut self, sent: bool) {
        let before = core::mem::take(&mut self.before);
        if !sent && before != 0 {
            self.announced = before;
        }
    }

    /// Records that a message that tells the peer the current size is being sent: its properties,
    /// or the response to the request that was just granted. Until [`Self::end_hold`] requests are
    /// rejected, and nothing is announced, because the peer may receive the messages in another
    /// order.
    pub(crate) fn hold(&mut self) {
        self.holds = self.holds.saturating_add(1);
    }

    /// Records that the message was posted, or that the peer does not get it.
    pub(crate) fn end_hold(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }

    /// Returns whether a message that tells the peer a size is being sent.
    fn is_announcing(&self) -> bool {
        self.before != 0 || self.holds != 0
    }

    /// Handles the peer's request for Receives of `octets`. A smaller size is granted at once,
    /// unless a message that tells the peer a size is being sent. A larger size is rejected for
    /// now, and announced once the Receives have it, if the limit allows it.
    pub(crate) fn request(&mut self, octets: u32) -> ResizeResult {
        if octets < Version::Two.default_inline().0 {
            return ResizeResult::Rejected;
        }
        self.requested = octets;
        if octets > self.announced || self.is_announcing() {
            return ResizeResult::Rejected;
        }
        self.announced = octets;
        ResizeResult::Granted
    }
}
