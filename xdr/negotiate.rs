// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Version negotiation (draft-cel-nfsv4-rpcrdma-version-two-04, section 7; RFC 8166, section
//! 4.2.2).
//!
//! The client sends RDMA2_CONNPROP before any RPC. The server's first response decides the version:
//!
//! ```text
//!   client  pending     CONNPROP                          -> Two, with its properties
//!                       another message of version 2      -> Two, with the defaults
//!                       ERR_VERS that includes version 1  -> One, on this connection
//!                       any other ERR_VERS                -> Failed
//!                       no response, or connection lost   -> connect again, in version 1
//!
//!   server  Undecided   a valid message, no error report  -> Decided(its version), until the end
//!                       a version that is not supported   -> ERR_VERS, stays Undecided
//!           Decided(v)  a version other than v            -> ERR_VERS v to v
//! ```
//!
//! Another message of version 2 may be a request of the server. The client handles it once the
//! version is decided.
//!
//! The client sends no RPC before the version is decided, so it never has to send one again in the
//! other version. Our server never sends the first version 2 message, because a client that does
//! not implement version 2 would discard it. Other servers may.

use super::error::ErrorBody;
use super::header::Proc;
use super::message::{
    Body,
    Parsed, //
};
use super::props::{
    Message,
    Properties, //
};
use super::units::{
    Credits,
    Xid, //
};
use super::version::{
    Version,
    Versions, //
};

/// The outcome of negotiation for a client, as decided by the response to its RDMA2_CONNPROP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Negotiated {
    /// Version 2.
    Two {
        /// The server's transport properties.
        peer: Properties,
        /// Whether the server has announced its Receive size, and thus has read ours.
        announced: bool,
        /// Number of messages that may be in flight.
        window: Credits,
    },
    /// Version 1.
    One,
    /// The peers have no version in common.
    Failed {
        /// The lowest version that the server speaks.
        low: u32,
        /// The highest version that the server speaks.
        high: u32,
    },
}

/// Returns the outcome of negotiation for a client that has sent RDMA2_CONNPROP with `xid` and
/// asked for `requested` credits, or `None` if the message decides nothing.
///
/// `parsed` is the decoded message, and `message` holds the octets that it was decoded from.
pub(crate) fn client_outcome(
    parsed: &Parsed,
    message: &[u8],
    xid: Xid,
    requested: Credits,
) -> Option<Negotiated> {
    let ours = parsed.header.xid == xid;
    let silent = Negotiated::Two {
        peer: Properties::DEFAULT,
        announced: false,
        window: Credits(1),
    };
    match parsed.body {
        Body::Error(ErrorBody::Version { low, high }) if ours => {
            let one = (low..=high).contains(&Version::One.to_u32());
            Some(if one {
                Negotiated::One
            } else {
                Negotiated::Failed { low, high }
            })
        }
        // A report about another message decides nothing. A report about the request, other than
        // ERR_VERS, shows that the server knows version 2 but not its properties.
        Body::Error(ErrorBody::Version { .. }) => None,
        Body::Error(_) if !ours => None,
        Body::Property(Proc::ConnProp) => match parsed.properties(message) {
            Some(Message::Connect { start }) => Some(Negotiated::Two {
                peer: Properties::DEFAULT.with(&start),
                announced: start.has_receive(),
                // A message with another XID is not the response: its credit value grants nothing.
                window: if ours {
                    parsed.header.credits.usable(requested)
                } else {
                    Credits(1)
                },
            }),
            _ => None,
        },
        Body::Msg | Body::NoMsg | Body::Error(_) | Body::Optional(_) | Body::Property(_) => {
            Some(silent)
        }
    }
}

/// Returns whether a message that decides the version has no other purpose. If it has one, the
/// client handles it like any later message, so that its sender need not send it again.
pub(crate) fn is_only_outcome(parsed: &Parsed) -> bool {
    matches!(parsed.body, Body::Error(_) | Body::Property(Proc::ConnProp))
}

/// The state of version negotiation on a server's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerVersion {
    /// No message has decided the version. The server accepts version 1 up to this version.
    Undecided(Version),
    /// The first valid message was of this version.
    Decided(Version),
}

impl ServerVersion {
    /// Returns the versions that the server accepts at the moment.
    pub(crate) const fn accepts(self) -> Versions {
        match self {
            ServerVersion::Undecided(max) => Versions::up_to(max),
            ServerVersion::Decided(version) => Versions::only(version),
        }
    }

    /// Returns the state after the message `parsed`. An error report decides nothing: an undecided
    /// server has sent nothing that a peer could report an error about.
    pub(crate) const fn after(self, parsed: &Parsed) -> Self {
        match (self, parsed.body) {
            (ServerVersion::Undecided(_), Body::Error(_)) | (ServerVersion::Decided(_), _) => self,
            (ServerVersion::Undecided(_), _) => ServerVersion::Decided(parsed.version),
        }
    }
}
