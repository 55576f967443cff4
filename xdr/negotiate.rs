// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Which version a connection speaks (draft-cel-nfsv4-rpcrdma-version-two-04, section 7; RFC
//! 8166, section 4.2.2).
//!
//! The client's first message is RDMA2_CONNPROP, before any RPC. What comes back decides:
//!
//! ```text
//!   client   Asked   CONNPROP                          -> Two, with its properties
//!                    another message of version 2      -> Two, with the defaults
//!                    ERR_VERS that includes version 1  -> One, on this connection
//!                    any other ERR_VERS                -> Failed
//!                    the connection is lost, or silent -> connect again, in version 1
//!
//!   server   Silent  a valid message, no error report  -> its version, until the end
//!                    a version that is not spoken      -> ERR_VERS, stays Silent
//!            v       a version other than v            -> ERR_VERS v to v
//! ```
//!
//! No RPC is sent in a version that might have to be taken back, so none is sent twice. A
//! server never speaks version 2 first: a client that does not know it would discard that.

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

/// What an answer to the client's RDMA2_CONNPROP settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Version 2.
    Two {
        /// What the server is like.
        peer: Properties,
        /// Whether the server has told its Receive size, and so read ours.
        told: bool,
        /// Messages that may be under way.
        window: Credits,
    },
    /// Version 1.
    One,
    /// No version that both speak.
    Failed {
        /// The lowest version that the server speaks.
        low: u32,
        /// The highest one.
        high: u32,
    },
}

/// Returns what the message `parsed`, with the octets `message`, means to a client that has sent
/// RDMA2_CONNPROP with `xid` and asked for `requested` credits. `None` if it is no answer.
pub(crate) fn answer(
    parsed: &Parsed,
    message: &[u8],
    xid: Xid,
    requested: Credits,
) -> Option<Settled> {
    let ours = parsed.header.xid == xid;
    let silent = Settled::Two {
        peer: Properties::DEFAULT,
        told: false,
        window: Credits(1),
    };
    match parsed.body {
        Body::Error(ErrorBody::Version { low, high }) if ours => {
            let one = (low..=high).contains(&Version::One.word());
            Some(match one {
                true => Settled::One,
                false => Settled::Failed { low, high },
            })
        }
        // Another error report says that the server knows the version and no properties.
        Body::Error(ErrorBody::Version { .. }) => None,
        Body::Error(_) if !ours => None,
        Body::Property(Proc::ConnProp) => match parsed.properties(message) {
            Some(Message::Connect { start }) => Some(Settled::Two {
                peer: Properties::DEFAULT.with(&start),
                told: start.tells_receive(),
                // The credit value of a message that answers nothing is no grant.
                window: match ours {
                    true => parsed.header.credits.usable(requested),
                    false => Credits(1),
                },
            }),
            _ => None,
        },
        Body::Msg | Body::NoMsg | Body::Error(_) | Body::Optional(_) | Body::Property(_) => {
            Some(silent)
        }
    }
}

/// What a server has heard on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// Nothing that decides; versions from 1 to this one are spoken.
    Silent(Version),
    /// The first valid message was of this version.
    Decided(Version),
}

impl Server {
    /// Returns what may come.
    pub(crate) const fn accepts(self) -> Versions {
        match self {
            Server::Silent(max) => Versions::up_to(max),
            Server::Decided(version) => Versions::only(version),
        }
    }

    /// Handles a message. Error reports decide nothing: a server has sent nothing yet.
    pub(crate) const fn heard(self, parsed: &Parsed) -> Self {
        match (self, parsed.body) {
            (Server::Silent(_), Body::Error(_)) | (Server::Decided(_), _) => self,
            (Server::Silent(_), _) => Server::Decided(parsed.version),
        }
    }
}
