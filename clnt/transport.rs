// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The data of a transport that outlives connections, and its part of a request slot.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    }, //
};

use super::{
    backoff::{
        Backoff,
        LastAttempt,
        Pauses, //
    },
    chunks::{
        Fence,
        SlotChunks, //
    },
    stats::Stats,
};
use crate::kapi::{
    ext::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        jiffies,
        spinlock::{
            new_spinlock,
            SpinLock, //
        }, //
    },
    sunrpc::link::XprtLink, //
};

/// How long version 2 is not requested after a server failed to handle the request.
const AVOID_MS: u32 = 15 * 60_000;

/// The data of a transport.
#[pin_data]
pub(crate) struct ClntXprt {
    /// The transport's counters.
    pub(super) stats: Stats,
    link: XprtLink<Self>,
    /// Whether the last attempt to connect failed. If so, it was logged.
    failed: Atomic<bool>,
    /// Set when the server turns out to support none of the client's versions. Cleared when an
    /// attempt to connect succeeds.
    refused: Atomic<bool>,
    /// Whether a good Reply, or a good Call of the server, has arrived since the last attempt.
    useful: Atomic<bool>,
    /// The number of connections in a row that were lost before the Reply to the same Call.
    losses: Atomic<u32>,
    /// Why the last connection has ended, as `Ended`; 0 if none has.
    ended: Atomic<u32>,
    /// Whether `ended` is about the current connection.
    end_noted: Atomic<bool>,
    #[pin]
    backoff: SpinLock<Backoff>,
    /// Whether the server may send Calls.
    bc_allowed: Atomic<bool>,
    /// The time in jiffies when the server last failed to handle the request for version 2; zero if
    /// it never did.
    no_version_2: Atomic<usize>,
}

/// Why a connection has ended.
#[derive(Clone, Copy)]
pub(super) enum Ended {
    /// The server disconnected, or has become unreachable.
    Peer = 1,
    /// The device was removed, or the hardware address of its interface has changed.
    Device,
    /// A Work Request failed.
    Completion,
    /// The watchdog closed it, because the server took or answered nothing.
    Stalled,
    /// We closed it, because the server broke the protocol.
    Protocol,
    /// We closed it: it was idle, a Call timed out or could not be posted, or the transport is
    /// destroyed.
    Local,
}

/// All of them.
const ENDED: [Ended; 6] = [
    Ended::Peer,
    Ended::Device,
    Ended::Completion,
    Ended::Stalled,
    Ended::Protocol,
    Ended::Local,
];

impl Ended {
    /// Returns the text of the debugfs status.
    pub(super) fn text(self) -> &'static str {
        match self {
            Ended::Peer => "peer",
            Ended::Device => "device",
            Ended::Completion => "completion",
            Ended::Stalled => "stalled",
            Ended::Protocol => "protocol",
            Ended::Local => "local",
        }
    }
}

impl ClntXprt {
    /// Returns a transport that has never been connected.
    pub(super) fn unconnected(link: XprtLink<Self>) -> impl PinInit<Self, Error> {
        let pauses = Pauses {
            min: msecs_to_jiffies(50),
            first: msecs_to_jiffies(500),
            same_call: msecs_to_jiffies(2000),
        };
        try_pin_init!(Self {
            stats: Stats::new(),
            link,
            failed: Atomic::new(false),
            refused: Atomic::new(false),
            useful: Atomic::new(false),
            losses: Atomic::new(0),
            backoff <- new_spinlock!(Backoff::new(pauses)),
            ended: Atomic::new(0),
            end_noted: Atomic::new(false),
            bc_allowed: Atomic::new(false),
            no_version_2: Atomic::new(0),
        }? Error)
    }

    /// Returns a link to the transport.
    pub(super) fn link(&self) -> XprtLink<Self> {
        self.link.clone()
    }

    /// Records that a good Reply or a good Call of the server has arrived: a Reply that does not
    /// fail its RPC, or a Call of at least the minimum length. If the connection is lost then, the
    /// client normally reconnects at once, see [`Backoff`].
    pub(super) fn note_use(&self) {
        if !self.useful.load(Relaxed) {
            self.useful.store(true, Relaxed);
        }
    }

    /// Records that a connection has ended. It is the last one of `losses` in a row that were lost
    /// before the Reply to the same Call. `losses` is zero if no Reply was due.
    pub(super) fn note_losses(&self, losses: u32) {
        self.losses.store(losses, Relaxed);
    }

    /// Returns the pause before the next attempt to connect, in jiffies; `max` is the limit.
    pub(super) fn reconnect_pause(&self, max: Jiffies) -> Jiffies {
        let useful = self.useful.xchg(false, Relaxed);
        let last = LastAttempt::new(useful, self.losses.load(Relaxed));
        self.backoff.lock().pause(jiffies(), last, max)
    }

    /// Allows Calls from the server from now on.
    pub(super) fn allow_bc(&self) {
        self.bc_allowed.store(true, Relaxed);
    }

    /// Returns whether the server may send Calls.
    pub(super) fn is_bc_allowed(&self) -> bool {
        self.bc_allowed.load(Relaxed)
    }

    /// Returns whether version 2 is not requested from the server for now.
    pub(super) fn avoids_version_2(&self) -> bool {
        let since = self.no_version_2.load(Relaxed);
        since != 0 && jiffies().wrapping_sub(since) < msecs_to_jiffies(AVOID_MS)
    }

    /// Records that the server cannot handle the request for version 2, which is not sent again for
    /// [`AVOID_MS`]. Only the first call for a transport logs this. `does` is the part of the log
    /// message that says what the server does instead.
    pub(super) fn avoid_version_2(&self, does: &str) {
        let before = self.no_version_2.xchg(jiffies().max(1), Relaxed);
        if let (0, Some(xprt)) = (before, self.link.get()) {
            pr_info!(
                "server {} {}; using version 1 for {} minutes\n",
                xprt.server(),
                does,
                AVOID_MS / 60_000
            );
        }
    }

    /// Records that a connection is being made, after the previous one was closed.
    pub(super) fn note_begin(&self) {
        self.end_noted.store(false, Relaxed);
    }

    /// Records why the connection ends. Only the first reason counts: the requests of a lost
    /// connection are also flushed, and it is also closed.
    pub(super) fn note_end(&self, why: Ended) {
        if !self.end_noted.xchg(true, Relaxed) {
            self.ended.store(why as u32, Relaxed);
        }
    }

    /// Returns why the last connection has ended; `None` if none has.
    pub(super) fn ended(&self) -> Option<Ended> {
        let ended = self.ended.load(Relaxed);
        ENDED.into_iter().find(|why| *why as u32 == ended)
    }

    /// Records whether an attempt to connect has failed. Returns whether the previous one had.
    pub(super) fn note_attempt(&self, failed: bool) -> bool {
        if !failed {
            self.refused.store(false, Relaxed);
        }
        self.failed.xchg(failed, Relaxed)
    }

    /// Records that the server supports no version that the client does. Returns whether it is the
    /// first time since a connection was made.
    pub(super) fn note_refused(&self) -> bool {
        !self.refused.xchg(true, Relaxed)
    }
}

/// The transport's data of a request slot.
#[pin_data]
pub(crate) struct ClntSlot {
    /// Memory of the request that the server can access. The lock is held while the Call is sent,
    /// so that a Reply finds all regions.
    #[pin]
    pub(super) chunks: SlotChunks,
    /// The fence that a task waits on when it aborts the request.
    pub(super) fence: Arc<Fence>,
}

impl ClntSlot {
    /// Creates the data of a slot without a request.
    pub(super) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            chunks <- SlotChunks::new(),
            fence: Arc::pin_init(Fence::new(), GFP_KERNEL)?,
        }? Error)
    }
}
