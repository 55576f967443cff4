// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The status of a connection in debugfs: `rpcrdma_rs/client/<number>/status`.
//!
//! The connection stores its state into atomics, which a reader loads. So a reader takes no lock,
//! and holds neither the connection nor the device. Each line is `name: value`.
//! `Documentation/live.rst` explains each line.

use core::fmt;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    negotiation::Agreed,
    transport::{
        ClntXprt,
        Ended, //
    }, //
};
use crate::{
    kapi::{
        ext::{
            atomic::{
                Atomic,
                Relaxed, //
            },
            count::Count,
            debugfs::Status, //
        },
        rdma::device::DeviceName,
        status::Traffic,
        sunrpc::{
            addr::SockAddr,
            xprt::Xprt, //
        }, //
    },
    xdr::limits::ClientLimits, //
};

/// Values of `state`, in the order of `STATES`.
#[derive(Clone, Copy)]
pub(super) enum ConnState {
    /// The connection is being established.
    Connecting,
    /// Calls can be sent.
    Connected,
    /// The connection is lost, and the transport will be disconnected.
    Lost,
}

const STATES: [&str; 3] = ["connecting", "connected", "lost"];

/// The values that are shown for one connection.
pub(super) struct ConnStatus {
    pub(super) traffic: Traffic,
    credits: u32,
    depth: u32,
    /// The number of earlier connections of the transport.
    reconnects: u64,
    /// Why the previous connection ended.
    ended: Option<Ended>,
    state: Atomic<u32>,
    /// Inline thresholds for sending and receiving; 0 before both sides have agreed.
    send: Atomic<u32>,
    receive: Atomic<u32>,
    /// The size of the server's Receives.
    peer_receive: Atomic<u32>,
    /// Credits that the server has granted.
    pub(super) granted: Atomic<u32>,
    /// Outstanding Replies, including those to Calls that were given up.
    pub(super) owed: Atomic<u32>,
    /// Entries of the Send Queue that are not claimed.
    pub(super) queue_room: Atomic<u32>,
    /// Posted Receives.
    pub(super) receives: Atomic<u32>,
    /// Memory regions, and how many of them are idle.
    pub(super) regions: Atomic<usize>,
    pub(super) idle: Atomic<usize>,
    /// Chains of LOCAL_INV in flight.
    pub(super) invalidations: Atomic<usize>,
    /// Replies to a Call that could not be used.
    pub(super) bad_replies: Count,
    /// Messages that match no Call that waits for its Reply.
    pub(super) stray_replies: Count,
}

impl ConnStatus {
    /// Allocates the status of a connection of `xprt` that is being established through `device`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(
        xprt: &Xprt<ClntXprt>,
        device: DeviceName,
        limits: &ClientLimits,
    ) -> Result<Arc<Self>> {
        let reconnects = xprt.counters().connects as u64;
        Self::of(xprt.server(), device, limits, reconnects, xprt.ended())
    }

    /// Allocates the status of a connection to `server`. `reconnects` is the number of earlier
    /// connections, and `ended` is why the last of them ended.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    // Not inlined, as it is too large for the stack of the function that connects.
    #[inline(never)]
    pub(super) fn of(
        server: SockAddr,
        device: DeviceName,
        limits: &ClientLimits,
        reconnects: u64,
        ended: Option<Ended>,
    ) -> Result<Arc<Self>> {
        let status = ConnStatus {
            traffic: Traffic::new(server, device),
            credits: limits.requests,
            depth: limits.send_wr,
            reconnects,
            ended,
            state: Atomic::new(ConnState::Connecting as u32),
            send: Atomic::new(0),
            receive: Atomic::new(0),
            peer_receive: Atomic::new(0),
            granted: Atomic::new(1),
            owed: Atomic::new(0),
            queue_room: Atomic::new(limits.send_wr),
            receives: Atomic::new(0),
            regions: Atomic::new(0),
            idle: Atomic::new(0),
            invalidations: Atomic::new(0),
            bad_replies: Count::new(),
            stray_replies: Count::new(),
        };
        Ok(Arc::new(status, GFP_KERNEL)?)
    }

    /// Sets the state of the connection.
    pub(super) fn set_state(&self, state: ConnState) {
        self.state.store(state as u32, Relaxed);
    }

    /// Returns whether Calls can be sent.
    pub(super) fn is_connected(&self) -> bool {
        self.state.load(Relaxed) == ConnState::Connected as u32
    }

    /// Records what both sides have agreed on. The connection is connected now, unless it is lost
    /// already.
    pub(super) fn agree(&self, agreed: &Agreed) {
        self.traffic.version.store(agreed.version.to_u32(), Relaxed);
        self.show_sizes(agreed);
        let (from, to) = (ConnState::Connecting, ConnState::Connected);
        let _ = self.state.cmpxchg(from as u32, to as u32, Relaxed);
    }

    /// Updates the sizes of messages.
    pub(super) fn show_sizes(&self, agreed: &Agreed) {
        self.send.store(agreed.send().0, Relaxed);
        self.receive.store(agreed.receive().0, Relaxed);
        self.peer_receive.store(agreed.peer().0, Relaxed);
    }

    /// Counts a sent Call of `inline` octets, with Read chunks of `read` octets.
    pub(super) fn note_sent(&self, inline: usize, read: usize) {
        self.traffic.note_sent(inline);
        self.traffic.read.add(read);
    }
}

impl Status for ConnStatus {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = STATES.get(self.state.load(Relaxed) as usize);
        let idle = self.idle.load(Relaxed);
        let room = self.queue_room.load(Relaxed);
        self.traffic.show_peer(f, state.unwrap_or(&"unknown"))?;
        writeln!(f, "send_threshold: {}", self.send.load(Relaxed))?;
        writeln!(f, "receive_threshold: {}", self.receive.load(Relaxed))?;
        writeln!(f, "peer_receive_size: {}", self.peer_receive.load(Relaxed))?;
        writeln!(f, "credits_asked: {}", self.credits)?;
        writeln!(f, "credits_granted: {}", self.granted.load(Relaxed))?;
        writeln!(f, "credits_used: {}", self.owed.load(Relaxed))?;
        writeln!(f, "receives_posted: {}", self.receives.load(Relaxed))?;
        writeln!(f, "send_queue_depth: {}", self.depth)?;
        let used = self.depth.saturating_sub(room);
        writeln!(f, "send_queue_used: {used}")?;
        writeln!(f, "regions: {}", self.regions.load(Relaxed))?;
        writeln!(f, "regions_idle: {idle}")?;
        let invalidations = self.invalidations.load(Relaxed);
        writeln!(f, "invalidations: {invalidations}")?;
        self.traffic.show_counts(f)?;
        writeln!(f, "bad_replies: {}", self.bad_replies.get())?;
        writeln!(f, "stray_replies: {}", self.stray_replies.get())?;
        writeln!(f, "reconnects: {}", self.reconnects)?;
        writeln!(f, "last_ended: {}", self.ended.map_or("-", Ended::text))
    }
}
