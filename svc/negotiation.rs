// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The version of a connection, and the largest message that may be sent on it
//! (draft-cel-nfsv4-rpcrdma-version-two-04, sections 5 and 7).
//!
//! The client's first valid message decides the version, see [`ServerVersion`]. In version 1 the
//! private data limits the size of messages. In version 2 the client's properties do, which the
//! client may change later.

use super::tunables::STAT_VERSION_2;
use crate::{
    kapi::{
        ext::{
            addr::SockAddr,
            atomic::{
                Atomic,
                Relaxed, //
            }, //
        },
        trace::trace_svcrdma_version, //
    },
    xdr::{
        error::DecodeError,
        message::{
            Body,
            Parsed, //
        },
        negotiate::ServerVersion,
        plan::fits,
        props::{
            BackwardSupport,
            PropSet,
            Properties, //
        },
        units::{
            u32_to_usize,
            InlineSize,
            Xid, //
        },
        version::{
            Version,
            Versions, //
        }, //
    }, //
};

/// The longest reply that is sent inline, however long the messages are that a client receives.
const LONGEST_REPLY: InlineSize = InlineSize(65536);

/// The version of a connection, and its message sizes.
pub(super) struct Negotiation {
    max: Version,
    /// The number of the version; zero until it is decided.
    decided: Atomic<u32>,
    /// Whether the message with the client's properties has arrived, and its XID.
    connected: Atomic<bool>,
    xid: Atomic<u32>,
    /// Whether a service thread has sent the response to that message.
    pub(super) announced: Atomic<bool>,
    /// Octets of the largest message that the client receives in version 2.
    pub(super) receive: Atomic<u32>,
    /// Whether the client receives Calls in version 2.
    pub(super) calls: Atomic<bool>,
    /// Octets of the largest message that may be sent in version 1.
    send: InlineSize,
}

impl Negotiation {
    /// Creates a negotiation before its start. Versions up to `max` are supported. In version 1
    /// messages have at most `send` octets.
    pub(super) fn new(max: Version, send: InlineSize) -> Self {
        let defaults = Properties::DEFAULT;
        Self {
            max,
            decided: Atomic::new(0),
            connected: Atomic::new(false),
            xid: Atomic::new(0),
            announced: Atomic::new(false),
            receive: Atomic::new(defaults.receive.0),
            calls: Atomic::new(defaults.backward != BackwardSupport::None),
            send,
        }
    }

    fn state(&self) -> ServerVersion {
        match Version::from_u32(self.decided.load(Relaxed)) {
            Some(version) => ServerVersion::Decided(version),
            None => ServerVersion::Undecided(self.max),
        }
    }

    /// Returns the versions that messages of the client may have.
    pub(super) fn accepts(&self) -> Versions {
        self.state().accepts()
    }

    /// Returns the version. Before it is decided, only error reports are sent.
    pub(super) fn version(&self) -> Version {
        Version::from_u32(self.decided.load(Relaxed)).unwrap_or(Version::One)
    }

    /// Returns whether the version is decided and is `version`.
    #[inline]
    pub(super) fn has_decided(&self, version: Version) -> bool {
        self.decided.load(Relaxed) == version.to_u32()
    }

    /// Handles a message.
    ///
    /// # Errors
    ///
    /// A concurrent message has decided for another version.
    pub(super) fn note_version(
        &self,
        peer: &SockAddr,
        message: &Parsed,
    ) -> Result<(), DecodeError> {
        let before = self.state();
        let ServerVersion::Decided(version) = before.after(message) else {
            return Ok(());
        };
        if before == ServerVersion::Decided(version) {
            // Another message may have decided since this one was decoded. An error report gets no
            // response.
            if version == message.version || matches!(message.body, Body::Error(_)) {
                return Ok(());
            }
            return Err(DecodeError::Version(self.accepts()));
        }
        match self.decided.cmpxchg(0, version.to_u32(), Relaxed) {
            Ok(_) => {
                trace_svcrdma_version(peer, version.to_u32());
                if version == Version::Two {
                    STAT_VERSION_2.inc();
                }
                Ok(())
            }
            Err(other) if other == version.to_u32() => Ok(()),
            Err(_) => Err(DecodeError::Version(self.accepts())),
        }
    }

    /// Records that RDMA2_CONNPROP has arrived in the message `xid`. Returns whether it is the
    /// first one. Called by the completion, for one message at a time.
    pub(super) fn note_connected(&self, Xid(xid): Xid) -> bool {
        let is_first = !self.connected.load(Relaxed);
        if is_first {
            self.xid.store(xid, Relaxed);
            self.connected.store(true, Relaxed);
        }
        is_first
    }

    /// Returns whether the caller must send the response to the RDMA2_CONNPROP in the message
    /// `xid`. Only the first one gets a response, once: several service threads may have such
    /// messages.
    pub(super) fn announce(&self, Xid(xid): Xid) -> bool {
        let is_first = self.connected.load(Relaxed) && self.xid.load(Relaxed) == xid;
        is_first && !self.announced.xchg(true, Relaxed)
    }

    /// Returns the longest message that may be sent to the client from a buffer of `buffer` octets.
    pub(super) fn send(&self, buffer: usize) -> InlineSize {
        match self.version() {
            Version::One => self.send,
            Version::Two => {
                let buffer = u32::try_from(buffer).unwrap_or(u32::MAX);
                InlineSize(self.receive.load(Relaxed).min(buffer))
            }
        }
    }

    /// Returns whether a reply of `message` octets behind a header of `header` octets may be sent
    /// inline although the buffers of the connection are smaller. In version 2 the client knows no
    /// limit but its own Receives (section 5.2.1 of the draft).
    pub(super) fn may_send(&self, header: usize, message: u32) -> bool {
        let longest = InlineSize(self.receive.load(Relaxed)).min(LONGEST_REPLY);
        self.version() == Version::Two && fits(longest, header, u32_to_usize(message))
    }

    /// Returns whether the client receives Calls.
    pub(super) fn has_calls(&self) -> bool {
        self.version() == Version::One || self.calls.load(Relaxed)
    }

    /// Records all of the client's properties, with which it begins. Those that `set` does not
    /// contain have their default values (section 5.3.1 of the draft).
    pub(super) fn begin(&self, set: &PropSet<'_>) {
        let now = Properties::DEFAULT.with(set);
        self.receive.store(now.receive.0, Relaxed);
        self.set_backward(now.backward);
    }

    /// Records the client's properties in `set`. Properties that it does not contain do not change.
    pub(super) fn update(&self, set: &PropSet<'_>) {
        let before = Properties {
            receive: InlineSize(self.receive.load(Relaxed)),
            backward: Properties::DEFAULT.backward,
        };
        let now = before.with(set);
        self.receive.store(now.receive.0, Relaxed);
        if set.has_backward() {
            self.set_backward(now.backward);
        }
    }

    fn set_backward(&self, backward: BackwardSupport) {
        self.calls.store(backward != BackwardSupport::None, Relaxed);
    }
}
