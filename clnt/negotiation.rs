// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The version of a connection, and its message sizes (RFC 8797, section 5;
//! draft-cel-nfsv4-rpcrdma-version-two-04, sections 2.3, 5.2.1 and 7).
//!
//! ```text
//!   version 2 disabled    version 1, sizes of the private data
//!   version 2 enabled     RDMA2_CONNPROP ─▶ response ─▶ version 2: sizes of the properties
//!                                              │
//!                                              └──────▶ version 1: sizes of the private data
//! ```
//!
//! The negotiation ends before the transport is connected, so before any Call. Afterwards only the
//! sizes may change, see [`super::properties`].

use kernel::{
    sync::SetOnce,
    time::Jiffies, //
};

use crate::{
    kapi::ext::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        jiffies,
        msecs_since, //
    },
    xdr::{
        message::Parsed,
        negotiate::{
            client_outcome,
            Negotiated, //
        },
        private::Private,
        props::Properties,
        units::{
            Credits,
            InlineSize,
            Xid, //
        },
        version::{
            Version,
            Versions, //
        }, //
    }, //
};

/// Milliseconds to wait for the response to RDMA2_REQPROP.
const REQUEST_MS: u64 = 30_000;

/// The negotiated version and message sizes of a connection.
///
/// The sizes depend on each other, and both the sender and completions change them. So they change
/// only under the lock of the connection's pools. Reading one needs no lock.
pub(super) struct Agreed {
    /// The version of its messages.
    pub(super) version: Version,
    /// Octets of the largest message to the server.
    send: Atomic<u32>,
    /// Octets of the largest message from the server.
    receive: Atomic<u32>,
    /// Whether the server exchanges properties.
    changes: bool,
    /// Octets of the server's Receives.
    peer: Atomic<u32>,
    /// Octets of the largest message that the server can send, as far as the client knows.
    peer_max_send: Atomic<u32>,
    /// Octets of the Receives that were last requested from the server.
    requested: Atomic<u32>,
    /// Whether the server may expect room for the roundup of a payload in its Write chunk.
    roundup: bool,
}

impl Agreed {
    fn new(version: Version, send: InlineSize, receive: InlineSize) -> Self {
        Self {
            version,
            send: Atomic::new(send.0),
            receive: Atomic::new(receive.0),
            changes: false,
            peer: Atomic::new(send.0),
            peer_max_send: Atomic::new(receive.0),
            requested: Atomic::new(u32::MAX),
            roundup: false,
        }
    }

    /// Sets the Receive size `peer` of a version 2 server that has sent its properties. No property
    /// tells how much a server can send. The client assumes that it sends as much as it receives,
    /// from buffers whose size does not change.
    ///
    /// The client's messages have the agreed size, as if it had been requested. So another size is
    /// requested only if the Send buffers could hold more, or after the administrator has changed
    /// the size.
    fn with_peer(self, peer: InlineSize) -> Self {
        Self {
            changes: true,
            peer: Atomic::new(peer.0),
            peer_max_send: Atomic::new(peer.0),
            requested: Atomic::new(self.send.load(Relaxed)),
            ..self
        }
    }

    /// Returns whether sizes may change.
    pub(super) fn changes(&self) -> bool {
        self.changes
    }

    /// Returns the size of the server's Receives.
    pub(super) fn peer(&self) -> InlineSize {
        InlineSize(self.peer.load(Relaxed))
    }

    /// Records that the server's Receives have `octets` from now on. `send` is the size of the
    /// client's Send buffers.
    pub(super) fn note_peer(&self, octets: u32, send: InlineSize) {
        let peer = Properties::DEFAULT.with_receive(octets).receive;
        self.peer.store(peer.0, Relaxed);
        self.fit_send(send);
    }

    fn fit_send(&self, send: InlineSize) {
        let wanted = InlineSize(self.requested.load(Relaxed));
        let fit = send.min(self.peer()).min(wanted);
        self.send.store(fit.0, Relaxed);
    }

    /// Records that the client has announced Receives of `size` to the server, which may be smaller
    /// than the last size.
    pub(super) fn note_announced(&self, size: InlineSize) {
        let max = InlineSize(self.peer_max_send.load(Relaxed));
        self.receive.store(size.min(max).0, Relaxed);
    }

    /// Returns whether the client should request Receives of `size` from the server. It should not
    /// if `size` was requested last, or the server has it already. Exception: a request for a
    /// smaller size limits the client's messages until the next request, so that one has to be
    /// made.
    pub(super) fn should_request(&self, size: InlineSize) -> bool {
        let wanted = self.requested.load(Relaxed);
        size.0 != wanted && (size != self.peer() || wanted < size.0)
    }

    /// Records a request for Receives of `size`. From now on the client sends only messages that
    /// fit them. Returns the size that was requested before.
    pub(super) fn set_requested(&self, size: InlineSize, send: InlineSize) -> InlineSize {
        let before = self.requested.xchg(size.0, Relaxed);
        self.fit_send(send);
        InlineSize(before)
    }

    /// Returns the largest message to the server.
    pub(super) fn send(&self) -> InlineSize {
        InlineSize(self.send.load(Relaxed))
    }

    /// Returns the largest message from the server.
    pub(super) fn receive(&self) -> InlineSize {
        InlineSize(self.receive.load(Relaxed))
    }
}

/// The negotiation of a connection's version.
pub(super) struct Negotiation {
    ours: Private,
    /// The XID of the RDMA2_CONNPROP message that requests version 2, if it is requested.
    connprop_xid: Option<Xid>,
    connprop_sent: Atomic<bool>,
    /// Whether the server's device has received the request.
    delivered: Atomic<bool>,
    outcome: SetOnce<Negotiated>,
    agreed: SetOnce<Agreed>,
    replied: Atomic<bool>,
    /// Whether the server has refused the version of a Call after agreeing to it.
    revoked: Atomic<bool>,
    /// The Receive size of the outstanding RDMA2_REQPROP; 0 if there is none.
    requested: Atomic<u32>,
    requested_xid: Atomic<u32>,
    requested_at: Atomic<Jiffies>,
}

impl Negotiation {
    /// Creates a negotiation before its start. `connprop_xid` is the XID of the request for version
    /// 2, if the client makes one.
    pub(super) fn new(ours: Private, connprop_xid: Option<Xid>) -> Self {
        Self {
            ours,
            connprop_xid,
            connprop_sent: Atomic::new(false),
            delivered: Atomic::new(false),
            outcome: SetOnce::new(),
            agreed: SetOnce::new(),
            replied: Atomic::new(false),
            revoked: Atomic::new(false),
            requested: Atomic::new(0),
            requested_xid: Atomic::new(0),
            requested_at: Atomic::new(0),
        }
    }

    /// Returns the client's offer. The Receives and the Send buffers have these sizes.
    pub(super) fn ours(&self) -> &Private {
        &self.ours
    }

    /// Returns the XID of the request for version 2; `None` if it is not requested.
    pub(super) fn connprop_xid(&self) -> Option<Xid> {
        self.connprop_xid
    }

    /// Returns the outcome, as decided by the server's response.
    pub(super) fn outcome(&self) -> Option<Negotiated> {
        self.outcome.as_ref().copied()
    }

    /// Returns the result of the negotiation; `None` while it lasts.
    pub(super) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// Returns whether the server may expect room for the roundup of a payload in its Write chunk.
    pub(super) fn expects_roundup(&self) -> bool {
        self.agreed().is_some_and(|agreed| agreed.roundup)
    }

    /// Returns the versions that messages of the server may have.
    pub(super) fn accepts(&self) -> Versions {
        Versions::only(match (self.agreed(), self.connprop_xid) {
            (Some(agreed), _) => agreed.version,
            (None, Some(_)) => Version::Two,
            (None, None) => Version::One,
        })
    }

    /// Handles `parsed`, the message `bytes`, if it is the response to the pending request for
    /// version 2. Returns the credits that the server grants then. The completions of a connection
    /// run one at a time, so there is one caller at a time.
    pub(super) fn handle_response(
        &self,
        parsed: &Parsed,
        bytes: &[u8],
        requested: Credits,
    ) -> Option<Credits> {
        let outcome = client_outcome(parsed, bytes, self.connprop_xid?, requested)?;
        if self.outcome().is_some() {
            return None;
        }
        let window = match outcome {
            Negotiated::Two {
                peer,
                announced,
                window,
            } => {
                let send = self.ours.send.min(peer.receive);
                let default_size = Version::Two.default_inline();
                self.agreed.populate(if announced {
                    Agreed::new(Version::Two, send, self.ours.receive.min(peer.receive))
                        .with_peer(peer.receive)
                } else {
                    Agreed::new(Version::Two, send, default_size)
                });
                window
            }
            Negotiated::One | Negotiated::Failed { .. } => Credits(1),
        };
        // Set the outcome last: a worker that sees it ends the negotiation, in version 1 unless
        // version 2 is agreed by then.
        self.outcome.populate(outcome).then_some(window)
    }

    /// Records that the request is about to be sent.
    pub(super) fn note_connprop_sent(&self) {
        self.connprop_sent.store(true, Relaxed);
    }

    /// Returns whether the request may have been sent.
    pub(super) fn is_connprop_sent(&self) -> bool {
        self.connprop_sent.load(Relaxed)
    }

    /// Records that the server's device has received a message. The request is the first one.
    pub(super) fn note_delivered(&self) {
        if self.connprop_sent.load(Relaxed) {
            self.delivered.store(true, Relaxed);
        }
    }

    /// Returns whether the server's device has received the request for version 2, and the server
    /// has not responded in version 2. If the connection is lost then, the next one may have
    /// version 1 (section 7.2 of the draft). Final once the connection is drained.
    pub(super) fn is_unanswered(&self) -> bool {
        self.is_delivered() && matches!(self.outcome(), None | Some(Negotiated::One))
    }

    fn is_delivered(&self) -> bool {
        self.delivered.load(Relaxed)
    }

    /// Returns whether the request for version 2 was not sent yet, or the server has not responded.
    /// A server may send its properties before it receives the request (section 5.3.1 of the
    /// draft). The client handles no other message until then, because its response could precede
    /// the request.
    pub(super) fn is_pending(&self) -> bool {
        self.connprop_xid.is_some() && (self.outcome.as_ref().is_none() || !self.is_connprop_sent())
    }

    /// Ends the negotiation. Unless version 2 was agreed, the sizes are those of the private data
    /// `peer`.
    ///
    /// If the private data is absent or has only default values, the server may be older than RFC
    /// 8166. Such a server may expect room for the roundup in a Write chunk, as RFC 5666 allowed.
    pub(super) fn agree(&self, peer: &Private) {
        let both = self.ours.negotiate(peer);
        let one = Agreed::new(Version::One, both.send, both.receive);
        self.agreed.populate(Agreed {
            roundup: *peer == Private::DEFAULT,
            ..one
        });
    }

    /// Records an outstanding request with the XID `xid` for Receives of `size`.
    pub(super) fn note_request(&self, size: InlineSize, xid: Xid) {
        self.requested_xid.store(xid.0, Relaxed);
        self.requested_at.store(jiffies(), Relaxed);
        self.requested.store(size.0, Relaxed);
    }

    /// Returns whether a request for another Receive size is outstanding.
    pub(super) fn has_request(&self) -> bool {
        self.requested.load(Relaxed) != 0
    }

    /// Returns whether the outstanding request has this XID.
    pub(super) fn has_requested_with(&self, xid: Xid) -> bool {
        self.has_request() && self.requested_xid.load(Relaxed) == xid.0
    }

    /// Ends the outstanding request, and returns its size.
    pub(super) fn take_request(&self) -> Option<u32> {
        match self.requested.xchg(0, Relaxed) {
            0 => None,
            octets => Some(octets),
        }
    }

    /// Ends a request without a response for [`REQUEST_MS`], and returns its size.
    pub(super) fn expire_request(&self) -> Option<u32> {
        if self.has_request() && msecs_since(self.requested_at.load(Relaxed)) > REQUEST_MS {
            self.take_request()
        } else {
            None
        }
    }

    /// Limits inline Replies to the default size of the version. Called when the server has
    /// reported that an inline Reply did not fit, or has refused to note the size of the client's
    /// Receives. The caller holds the lock of the pools.
    pub(super) fn reset_receive_threshold(&self) {
        if let Some(agreed) = self.agreed() {
            let default_size = agreed.version.default_inline().min(agreed.receive());
            agreed.peer_max_send.store(default_size.0, Relaxed);
            agreed.receive.store(default_size.0, Relaxed);
        }
    }

    /// Records that a Reply has arrived.
    pub(super) fn note_reply(&self) {
        if self.connprop_xid.is_some() {
            self.replied.store(true, Relaxed);
        }
    }

    /// Records that the server has refused the version of a Call. Returns whether it had agreed to
    /// that version, and so would refuse every Call.
    pub(super) fn revoke(&self) -> bool {
        let is_decided = self.outcome().is_some();
        if is_decided {
            self.revoked.store(true, Relaxed);
        }
        is_decided
    }

    /// Returns why the next connection must not request version 2, for the log; `None` if it may.
    pub(super) fn why_avoid(&self) -> Option<&'static str> {
        if self.revoked.load(Relaxed) {
            Some("refuses the version of RPC-over-RDMA that it has agreed to")
        } else if self.outcome() == Some(Negotiated::One) && !self.replied.load(Relaxed) {
            Some("answers no Call after it has refused version 2 of RPC-over-RDMA")
        } else {
            None
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
