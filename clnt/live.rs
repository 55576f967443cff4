// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The live view of a connection: `rpcrdma_rs/client/<number>/status` of debugfs.
//!
//! The connection stores what it knows into atomics as it goes, and a reader loads them: it takes
//! no lock, and keeps neither connection nor device. Lines are `name: value`; a list of values has
//! spaces in between. `Documentation/live.rst` explains each.

use core::fmt;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::Jiffies,
};

use super::{
    transport::{
        ClntXprt,
        Ended, //
    },
    version::Agreed, //
};
use crate::{
    kapi::{
        ext::{
            addr::SockAddr,
            count::Count,
            debugfs::Status,
            jiffies,
            msecs_since, //
        },
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
    peer: SockAddr,
    device: DeviceName,
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
    version: Atomic<u32>,
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
    /// Calls sent and Replies taken in.
    pub(super) sent: Count,
    pub(super) received: Count,
    /// Octets sent and received in messages.
    pub(super) inline_out: Count,
    pub(super) inline_in: Count,
    /// Octets offered in Read chunks, and placed by the server.
    pub(super) read: Count,
    pub(super) placed: Count,
    /// Replies that failed their RPC, and second ones.
    pub(super) bad_replies: Count,
    /// Replies to no request.
    pub(super) stray_replies: Count,
    /// Messages that could not be decoded.
    pub(super) malformed: Count,
    /// Work Requests that failed.
    pub(super) failed_completions: Count,
    /// When the last message came or left.
    last: Atomic<Jiffies>,
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
            peer: xprt.server(),
            device,
            credits: limits.requests,
            depth: limits.send_wr,
            reconnects: xprt.counters().connects as u64,
            ended: xprt.ended(),
            state: Atomic::new(State::Connecting as u32),
            send: Atomic::new(0),
            receive: Atomic::new(0),
            version: Atomic::new(0),
            granted: Atomic::new(1),
            owed: Atomic::new(0),
            queue_room: Atomic::new(limits.send_wr),
            receives: Atomic::new(0),
            regions: Atomic::new(0),
            idle: Atomic::new(0),
            sent: Count::new(),
            received: Count::new(),
            inline_out: Count::new(),
            inline_in: Count::new(),
            read: Count::new(),
            placed: Count::new(),
            bad_replies: Count::new(),
            stray_replies: Count::new(),
            malformed: Count::new(),
            failed_completions: Count::new(),
            last: Atomic::new(jiffies()),
        };
        Ok(Arc::new(live, GFP_KERNEL)?)
    }

    /// The connection is in that state from here on.
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u32, Relaxed);
    }

    /// Whether Calls can be sent.
    pub(super) fn is_connected(&self) -> bool {
        self.state.load(Relaxed) == State::Connected as u32
    }

    /// The server has agreed to that.
    pub(super) fn agree(&self, agreed: &Agreed) {
        self.version.store(agreed.version.word(), Relaxed);
        self.send.store(agreed.send().0, Relaxed);
        self.receive.store(agreed.receive().0, Relaxed);
        self.set_state(State::Connected);
    }

    /// A Call of `inline` octets was sent, with Read chunks of `read` octets.
    pub(super) fn note_sent(&self, inline: usize, read: usize) {
        self.sent.add(1);
        self.inline_out.add(inline);
        if read != 0 {
            self.read.add(read);
        }
        self.last.store(jiffies(), Relaxed);
    }

    /// A message of `inline` octets was received.
    pub(super) fn note_received(&self, inline: u32) {
        self.received.add(1);
        self.inline_in.add(inline as usize);
        self.last.store(jiffies(), Relaxed);
    }
}

impl Status for Live {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = STATES.get(self.state.load(Relaxed) as usize);
        let idle = self.idle.load(Relaxed);
        let room = self.queue_room.load(Relaxed);
        writeln!(f, "peer: {}", self.peer)?;
        writeln!(f, "device: {}", self.device.to_str().unwrap_or("-"))?;
        writeln!(f, "state: {}", state.unwrap_or(&"unknown"))?;
        writeln!(f, "version: {}", self.version.load(Relaxed))?;
        writeln!(f, "send_threshold: {}", self.send.load(Relaxed))?;
        writeln!(f, "receive_threshold: {}", self.receive.load(Relaxed))?;
        writeln!(f, "credits_asked: {}", self.credits)?;
        writeln!(f, "credits_granted: {}", self.granted.load(Relaxed))?;
        writeln!(f, "credits_used: {}", self.owed.load(Relaxed))?;
        writeln!(f, "receives_posted: {}", self.receives.load(Relaxed))?;
        writeln!(f, "send_queue_depth: {}", self.depth)?;
        let used = self.depth.saturating_sub(room);
        writeln!(f, "send_queue_used: {used}")?;
        writeln!(f, "regions: {}", self.regions.load(Relaxed))?;
        writeln!(f, "regions_idle: {idle}")?;
        writeln!(f, "messages_sent: {}", self.sent.get())?;
        writeln!(f, "messages_received: {}", self.received.get())?;
        writeln!(f, "inline_sent: {}", self.inline_out.get())?;
        writeln!(f, "inline_received: {}", self.inline_in.get())?;
        writeln!(f, "read_chunks: {}", self.read.get())?;
        writeln!(f, "write_chunks: {}", self.placed.get())?;
        writeln!(f, "bad_replies: {}", self.bad_replies.get())?;
        writeln!(f, "stray_replies: {}", self.stray_replies.get())?;
        writeln!(f, "malformed: {}", self.malformed.get())?;
        writeln!(f, "failed_completions: {}", self.failed_completions.get())?;
        writeln!(f, "idle_ms: {}", msecs_since(self.last.load(Relaxed)))?;
        writeln!(f, "reconnects: {}", self.reconnects)?;
        writeln!(f, "last_ended: {}", self.ended.map_or("-", Ended::text))
    }
}
