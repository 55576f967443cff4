// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The version that a connection speaks, and its message sizes (RFC 8797, section 5;
//! draft-cel-nfsv4-rpcrdma-version-two-04, sections 2.3, 5.2.1 and 7).
//!
//! ```text
//!   asked for version 1   sizes of the private data
//!   asked for version 2   RDMA2_CONNPROP ─▶ answer ─▶ version 2: sizes of the properties
//!                                             │
//!                                             └─────▶ version 1: sizes of the private data
//! ```
//!
//! It is settled before the transport is connected, so before any Call. Afterwards only the
//! sizes may change: the server tells what it receives from then on.

use kernel::{
    sync::SetOnce,
    time::Jiffies, //
};

use crate::kapi::ext::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    jiffies,
    msecs_since, //
};
use crate::xdr::{
    message::Parsed,
    negotiate::{
        answer,
        Settled, //
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
};

/// How long to wait for an answer to RDMA2_REQPROP.
const WISH_MS: u64 = 30_000;

/// The version and the sizes that a connection uses.
pub(super) struct Agreed {
    /// The version of its messages.
    pub(super) version: Version,
    /// Octets of the largest message to the server.
    send: Atomic<u32>,
    /// Octets of the largest message from the server.
    receive: Atomic<u32>,
    /// Whether the server tells its properties, and reads ours.
    changes: bool,
    /// Octets of the server's Receives.
    peer: Atomic<u32>,
    /// Octets of the largest message that the server can send, as far as we know.
    most: Atomic<u32>,
    /// Octets of the Receives that the server was asked for last.
    wanted: Atomic<u32>,
}

impl Agreed {
    fn new(version: Version, send: InlineSize, receive: InlineSize) -> Self {
        Self {
            version,
            send: Atomic::new(send.0),
            receive: Atomic::new(receive.0),
            changes: false,
            peer: Atomic::new(send.0),
            most: Atomic::new(receive.0),
            wanted: Atomic::new(u32::MAX),
        }
    }

    /// The same with a server of version 2 that has told its properties, `peer`. What it can send is
    /// never said. One that has told what it receives sends as much, from buffers that it does not
    /// change.
    fn with_peer(self, peer: InlineSize) -> Self {
        Self {
            changes: true,
            peer: Atomic::new(peer.0),
            most: Atomic::new(peer.0),
            ..self
        }
    }

    /// Whether sizes may change.
    pub(super) fn changes(&self) -> bool {
        self.changes
    }

    /// The size of the server's Receives.
    pub(super) fn peer(&self) -> InlineSize {
        InlineSize(self.peer.load(Relaxed))
    }

    /// The server's Receives have room for `octets` from now on; our Sends have for `send`.
    pub(super) fn note_peer(&self, octets: u32, send: InlineSize) {
        let peer = Properties::DEFAULT.with_receive(octets).receive;
        self.peer.store(peer.0, Relaxed);
        self.fit_send(send);
    }

    fn fit_send(&self, send: InlineSize) {
        let wanted = InlineSize(self.wanted.load(Relaxed));
        let fit = send.min(self.peer()).min(wanted);
        self.send.store(fit.0, Relaxed);
    }

    /// Our Receives have room for `size` from now on.
    pub(super) fn grow(&self, size: InlineSize) {
        let most = InlineSize(self.most.load(Relaxed));
        self.receive.store(size.min(most).0, Relaxed);
    }

    /// Whether the server is to be asked for Receives of `size`: it has others, and was not asked
    /// for these last.
    pub(super) fn is_wanting(&self, size: InlineSize) -> bool {
        size != self.peer() && size.0 != self.wanted.load(Relaxed)
    }

    /// The server is asked for Receives of `size`: no more is sent from now on.
    pub(super) fn want(&self, size: InlineSize, send: InlineSize) {
        self.wanted.store(size.0, Relaxed);
        self.fit_send(send);
    }

    /// The largest message to the server.
    pub(super) fn send(&self) -> InlineSize {
        InlineSize(self.send.load(Relaxed))
    }

    /// Returns the largest message from the server.
    pub(super) fn receive(&self) -> InlineSize {
        InlineSize(self.receive.load(Relaxed))
    }
}

/// The version of a connection, from the offer to the agreement.
pub(super) struct Spoken {
    ours: Private,
    /// The XID of the RDMA2_CONNPROP message that asks for version 2, if it is asked for.
    asks: Option<Xid>,
    asked: Atomic<bool>,
    settled: SetOnce<Settled>,
    agreed: SetOnce<Agreed>,
    replied: Atomic<bool>,
    /// The octets that the server was asked for, as long as it may answer; else 0.
    wish: Atomic<u32>,
    wished: Atomic<Jiffies>,
}

impl Spoken {
    /// Nothing is settled. `asks` is the XID to ask for version 2 with.
    pub(super) fn new(ours: Private, asks: Option<Xid>) -> Self {
        Self {
            ours,
            asks,
            asked: Atomic::new(false),
            settled: SetOnce::new(),
            agreed: SetOnce::new(),
            replied: Atomic::new(false),
            wish: Atomic::new(0),
            wished: Atomic::new(0),
        }
    }

    /// Returns what the server is offered; the Receives and the buffers of the Sends have these
    /// sizes.
    pub(super) fn ours(&self) -> &Private {
        &self.ours
    }

    /// Returns the XID to ask for version 2 with; `None` if it is not asked for.
    pub(super) fn asks(&self) -> Option<Xid> {
        self.asks
    }

    /// Returns what the server has answered.
    pub(super) fn settled(&self) -> Option<Settled> {
        self.settled.as_ref().copied()
    }

    /// Returns what holds; `None` before it is settled.
    pub(super) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// Returns the versions that the server may answer in.
    pub(super) fn accepts(&self) -> Versions {
        Versions::only(match (self.agreed(), self.asks) {
            (Some(agreed), _) => agreed.version,
            (None, Some(_)) => Version::Two,
            (None, None) => Version::One,
        })
    }

    /// Takes `parsed`, the message `bytes`, for the answer to the question for version 2, if one
    /// is awaited and it is one. Returns the credits that it leaves.
    pub(super) fn hear(
        &self,
        parsed: &Parsed,
        bytes: &[u8],
        requested: Credits,
    ) -> Option<Credits> {
        let settled = answer(parsed, bytes, self.asks?, requested)?;
        if !self.settled.populate(settled) {
            return None;
        }
        let Settled::Two { peer, told, window } = settled else {
            return Some(Credits(1));
        };
        let send = self.ours.send.min(peer.receive);
        let least = Version::Two.default_inline();
        self.agreed.populate(match told {
            true => Agreed::new(Version::Two, send, self.ours.receive.min(peer.receive))
                .with_peer(peer.receive),
            false => Agreed::new(Version::Two, send, least),
        });
        Some(window)
    }

    /// The question is about to be sent.
    pub(super) fn note_asked(&self) {
        self.asked.store(true, Relaxed);
    }

    /// Returns whether an answer is awaited.
    pub(super) fn is_awaited(&self) -> bool {
        self.asked.load(Relaxed) && self.settled.as_ref().is_none()
    }

    /// Unless it is version 2 that is spoken, what the private data `peer` says holds.
    pub(super) fn agree(&self, peer: &Private) {
        let both = self.ours.negotiate(peer);
        let one = Agreed::new(Version::One, both.send, both.receive);
        self.agreed.populate(one);
    }

    /// The server is asked for Receives of `size`.
    pub(super) fn wish(&self, size: InlineSize) {
        self.wished.store(jiffies(), Relaxed);
        self.wish.store(size.0, Relaxed);
    }

    /// Whether the server may answer what it was asked for.
    pub(super) fn has_wish(&self) -> bool {
        self.wish.load(Relaxed) != 0
    }

    /// What the server was asked for. It is answered.
    pub(super) fn take_wish(&self) -> Option<u32> {
        match self.wish.xchg(0, Relaxed) {
            0 => None,
            octets => Some(octets),
        }
    }

    /// Forgets what the server was asked for and does not answer; returns whether there was that.
    pub(super) fn forget_wish(&self) -> bool {
        self.has_wish()
            && msecs_since(self.wished.load(Relaxed)) > WISH_MS
            && self.take_wish().is_some()
    }

    /// The server had no room for a Reply that was to fit inline: it can send less than it
    /// receives.
    pub(super) fn server_sends_less(&self) {
        if let Some(agreed) = self.agreed() {
            let least = agreed.version.default_inline().min(agreed.receive());
            agreed.most.store(least.0, Relaxed);
            agreed.receive.store(least.0, Relaxed);
        }
    }

    /// A Reply has come.
    pub(super) fn note_reply(&self) {
        if self.asks.is_some() {
            self.replied.store(true, Relaxed);
        }
    }

    /// Returns whether the server has refused version 2, and has not answered in version 1 since.
    pub(super) fn useless_refusal(&self) -> bool {
        self.settled() == Some(Settled::One) && !self.replied.load(Relaxed)
    }
}
