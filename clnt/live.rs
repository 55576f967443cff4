// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The status of a connection in debugfs: `rpcrdma_rs/client/<number>/status`.
//!
//! The connection stores its state into atomics, which a reader loads. So a reader takes no lock,
//! and holds neither the connection nor the device. Each line is `name: value`; values of a list
//! are separated by spaces. `Documentation/live.rst` explains each line.

use core::fmt;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    transport::{
        ClntXprt,
        Ended, //
    },
    version::Agreed, //
};
use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};
use crate::{
    kapi::{
        ext::{
            count::Count,
            debugfs::Status, //
        },
        live::Traffic,
        rdma::device::DeviceName,
        sunrpc::xprt::Xprt, //
    },
    xdr::limits::ClientLimits,
};

/// Values of `state`, in the order of their names.
#[derive(Clone, Copy)]
pub(super) enum State {
    /// The steps to a connection are being taken.
    Connecting,
    /// Calls can be sent.
    Connected,
    /// The transport is to be disconnected.
    Lost,
}

const STATES: [&str; 3] = ["connecting", "connected", "lost"];

/// What a reader sees of one connection.
pub(super) struct Live {
    pub(super) traffic: Traffic,
    credits: u32,
    depth: u32,
    /// Connections that the transport had before this one.
    reconnects: u64,
    /// Why the one before has ended.
    ended: Option<Ended>,
    state: Atomic<u32>,
    /// Inline thresholds, ours to send and to receive; 0 before they are agreed.
    send: Atomic<u32>,
    receive: Atomic<u32>,
    /// What the server receives.
    peer_receive: Atomic<u32>,
    /// Credits that the server has granted.
    pub(super) granted: Atomic<u32>,
    /// Calls whose Reply is due.
    pub(super) owed: Atomic<u32>,
    /// Entries of the Send Queue that are not claimed.
    pub(super) queue_room: Atomic<u32>,
    /// Receives posted.
    pub(super) receives: Atomic<u32>,
    /// Regions, and those of them that are idle.
    pub(super) regions: Atomic<usize>,
    pub(super) idle: Atomic<usize>,
    /// Replies that failed their RPC, and second ones.
    pub(super) bad_replies: Count,
    /// Replies to no request.
    pub(super) stray_replies: Count,
}

impl Live {
    /// That of a connection of `xprt` which is to be made through `device`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    // It is large, and the stack of whoever makes a connection is not.
    #[inline(never)]
    pub(super) fn new(
        xprt: &Xprt<ClntXprt>,
        device: DeviceName,
        limits: &ClientLimits,
    ) -> Result<Arc<Self>> {
        let live = Live {
            traffic: Traffic::new(xprt.server(), device),
            credits: limits.requests,
            depth: limits.send_wr,
            reconnects: xprt.counters().connects as u64,
            ended: xprt.ended(),
            state: Atomic::new(State::Connecting as u32),
            send: Atomic::new(0),
            receive: Atomic::new(0),
            peer_receive: Atomic::new(0),
            granted: Atomic::new(1),
            owed: Atomic::new(0),
            queue_room: Atomic::new(limits.send_wr),
            receives: Atomic::new(0),
            regions: Atomic::new(0),
            idle: Atomic::new(0),
            bad_replies: Count::new(),
            stray_replies: Count::new(),
        };
        Ok(Arc::new(live, GFP_KERNEL)?)
    }

    /// The connection is in that state from here on.
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u32, Relaxed);
    }

    /// Returns whether Calls can be sent.
    pub(super) fn is_connected(&self) -> bool {
        self.state.load(Relaxed) == State::Connected as u32
    }

    /// The server has agreed to that.
    pub(super) fn agree(&self, agreed: &Agreed) {
        self.traffic.version.store(agreed.version.word(), Relaxed);
        self.show_sizes(agreed);
        self.set_state(State::Connected);
    }

    /// What a message may be has changed.
    pub(super) fn show_sizes(&self, agreed: &Agreed) {
        self.send.store(agreed.send().0, Relaxed);
        self.receive.store(agreed.receive().0, Relaxed);
        self.peer_receive.store(agreed.peer().0, Relaxed);
    }

    /// A Call of `inline` octets was sent, with Read chunks of `read` octets.
    pub(super) fn note_sent(&self, inline: usize, read: usize) {
        self.traffic.note_sent(inline);
        self.traffic.read.add(read);
    }
}

impl Status for Live {
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
        self.traffic.show_counts(f)?;
        writeln!(f, "bad_replies: {}", self.bad_replies.get())?;
        writeln!(f, "stray_replies: {}", self.stray_replies.get())?;
        writeln!(f, "reconnects: {}", self.reconnects)?;
        writeln!(f, "last_ended: {}", self.ended.map_or("-", Ended::text))
    }
}
