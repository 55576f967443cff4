// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The status of a connection in debugfs: `rpcrdma_rs/server/<number>/status`.
//!
//! The connection stores its state into atomics, which a reader loads. So a reader takes no lock,
//! and holds neither the connection nor the device. Each line is `name: value`.
//! `Documentation/live.rst` explains each line.

use super::limits::Sizes;
use crate::{
    kapi::{
        ext::{
            addr::SockAddr,
            atomic::{
                Atomic,
                Relaxed, //
            },
            count::Count,
            debugfs::Status, //
        },
        rdma::{
            device::DeviceName,
            recv::RecvWc, //
        },
        status::Traffic, //
    },
    xdr::private::Private, //
};
use core::fmt;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The number of the next connection.
static NEXT_NUMBER: Atomic<u64> = Atomic::new(1);

/// Values of `state`, in the order of [`STATES`].
#[derive(Clone, Copy)]
pub(super) enum ConnState {
    /// The client has not sent anything.
    Accepted,
    /// The client has sent a message.
    Connected,
    /// The connection is being closed.
    Closing,
}

const STATES: [&str; 3] = ["accepted", "connected", "closing"];

/// The status of one connection.
pub(super) struct ConnStatus {
    /// The number of the connection. It is never reused.
    pub(super) number: u64,
    pub(super) traffic: Traffic,
    sizes: Sizes,
    agreed: Private,
    state: Atomic<u32>,
    /// Octets of a Receive that were announced to the client in version 2.
    pub(super) announced: Atomic<u32>,
    /// The client's properties in version 2: octets of a Receive, and whether it receives Calls.
    pub(super) peer_receive: Atomic<u32>,
    pub(super) peer_calls: Atomic<bool>,
    /// Receives posted.
    pub(super) receives: Atomic<u32>,
    /// Free entries of the Send Queue.
    pub(super) queue_free: Atomic<u32>,
    /// Times that a chain had to wait for room in the Send Queue.
    pub(super) queue_waits: Count,
    /// Chains that had to wait, and then were posted.
    pub(super) queue_resumed: Count,
    /// Spare pages when unused ones were last released.
    pub(super) spare_pages: Atomic<usize>,
    /// Calls whose chunks could not be served.
    pub(super) refused: Count,
}

impl ConnStatus {
    /// Allocates the status of a connection that is being accepted.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    // Not inlined, as it is too large for the stack of the function that accepts a connection.
    #[inline(never)]
    pub(super) fn new(
        peer: SockAddr,
        device: DeviceName,
        sizes: Sizes,
        agreed: Private,
    ) -> Result<Arc<Self>> {
        let status = ConnStatus {
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            traffic: Traffic::new(peer, device),
            sizes,
            agreed,
            state: Atomic::new(ConnState::Accepted as u32),
            announced: Atomic::new(agreed.receive.0),
            peer_receive: Atomic::new(agreed.send.0),
            peer_calls: Atomic::new(true),
            receives: Atomic::new(0),
            queue_free: Atomic::new(sizes.sends),
            queue_waits: Count::new(),
            queue_resumed: Count::new(),
            spare_pages: Atomic::new(0),
            refused: Count::new(),
        };
        Ok(Arc::new(status, GFP_KERNEL)?)
    }

    /// Sets the state of the connection.
    pub(super) fn set_state(&self, state: ConnState) {
        self.state.store(state as u32, Relaxed);
    }

    /// Returns whether the client has sent nothing yet. False once the connection is detached.
    pub(super) fn is_silent(&self) -> bool {
        self.state.load(Relaxed) == ConnState::Accepted as u32
    }

    /// Counts the message of a Receive.
    pub(super) fn note_received(&self, wc: &RecvWc) {
        if self.is_silent() {
            self.set_state(ConnState::Connected);
        }
        self.traffic.note_received(wc);
    }
}

impl Status for ConnStatus {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = STATES.get(self.state.load(Relaxed) as usize);
        let in_process = self.traffic.received_less_sent();
        let depth = self.sizes.sends;
        let used = depth.saturating_sub(self.queue_free.load(Relaxed));
        self.traffic.show_peer(f, state.unwrap_or(&"unknown"))?;
        writeln!(f, "send_threshold: {}", self.agreed.send.0)?;
        writeln!(f, "receive_threshold: {}", self.agreed.receive.0)?;
        let invalidation = u8::from(self.agreed.remote_invalidation);
        writeln!(f, "remote_invalidation: {invalidation}")?;
        writeln!(f, "receive_size: {}", self.announced.load(Relaxed))?;
        writeln!(f, "peer_receive_size: {}", self.peer_receive.load(Relaxed))?;
        let calls = u8::from(self.peer_calls.load(Relaxed));
        writeln!(f, "peer_takes_calls: {calls}")?;
        writeln!(f, "credits_granted: {}", self.sizes.credits)?;
        writeln!(f, "credits_used: {in_process}")?;
        writeln!(f, "receives_posted: {}", self.receives.load(Relaxed))?;
        writeln!(f, "send_queue_depth: {depth}")?;
        writeln!(f, "send_queue_used: {used}")?;
        // Read first, so that the difference is not too small.
        let resumed = self.queue_resumed.get();
        let waits = self.queue_waits.get();
        writeln!(f, "send_queue_waits: {waits}")?;
        let waiting = waits.saturating_sub(resumed);
        writeln!(f, "send_queue_waiting: {waiting}")?;
        writeln!(f, "pages_spare: {}", self.spare_pages.load(Relaxed))?;
        writeln!(f, "refused: {}", self.refused.get())?;
        self.traffic.show_counts(f)
    }
}
