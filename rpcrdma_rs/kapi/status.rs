// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The debugfs directories of client and server, and the part of a connection's status that they
//! share.
//!
//! `Documentation/live.rst` explains each line.

use core::fmt;

use kernel::{
    prelude::*,
    time::Jiffies, //
};

use super::{
    ext::{
        addr::SockAddr,
        count::{
            Count,
            SerialCount, //
        },
        debugfs::{
            self,
            Parent, //
        },
        jiffies,
        msecs_since,
        work::OwnQueue, //
    },
    rdma::{
        device::DeviceName,
        recv::RecvWc, //
    },
};
use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};

/// The directory of this client's connections to servers.
pub(crate) static CLIENT: Parent = Parent::new(c"client");
/// The directory of this server's connections from clients.
pub(crate) static SERVER: Parent = Parent::new(c"server");

static PARENTS: [&Parent; 2] = [&CLIENT, &SERVER];

/// The module's own work queue, and the directories of client and server. Only this type creates
/// them, and only [`Root`](super::Root) this type.
///
/// Dropping it waits for all work on the queue, and destroys the queue, before it removes the
/// directories: some of that work removes directories in them.
#[must_use]
pub(super) struct Registration {
    // The fields are dropped in this order.
    _queue: OwnQueue,
    _dirs: debugfs::Registration,
}

impl Registration {
    /// Creates the queue and the directories. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the queue already exists; `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Registration {
            _queue: OwnQueue::new(c"rpcrdma_rs")?,
            _dirs: debugfs::Registration::new(c"rpcrdma_rs", &PARENTS),
        })
    }
}

/// The peer of a connection, and counters of the messages exchanged with it. Any context.
pub(crate) struct Traffic {
    peer: SockAddr,
    device: DeviceName,
    /// Version of RPC-over-RDMA that the connection uses; 0 while it is unknown.
    pub(crate) version: Atomic<u32>,
    sent: Count,
    received: SerialCount,
    /// Octets of the messages sent and received.
    sent_octets: Count,
    received_octets: SerialCount,
    /// Octets that the server has moved by RDMA Read, and by RDMA Write.
    pub(crate) read: Count,
    pub(crate) written: Count,
    /// Messages received that were malformed.
    pub(crate) malformed: Count,
    /// Work Requests that failed.
    pub(crate) failed_completions: Count,
    /// Time of the last message, sent or received.
    last: Atomic<Jiffies>,
}

impl Traffic {
    /// Creates the counters of a new connection to `peer` through `device`.
    pub(crate) fn new(peer: SockAddr, device: DeviceName) -> Self {
        Traffic {
            peer,
            device,
            version: Atomic::new(0),
            sent: Count::new(),
            received: SerialCount::new(),
            sent_octets: Count::new(),
            received_octets: SerialCount::new(),
            read: Count::new(),
            written: Count::new(),
            malformed: Count::new(),
            failed_completions: Count::new(),
            last: Atomic::new(jiffies()),
        }
    }

    /// Counts a message of `octets` that was sent.
    pub(crate) fn note_sent(&self, octets: usize) {
        self.sent.add(1);
        self.sent_octets.add(octets);
        self.last.store(jiffies(), Relaxed);
    }

    /// Counts the message of a Receive. The Receives of a connection complete one after the other.
    pub(crate) fn note_received(&self, wc: &RecvWc) {
        self.received.add(1);
        // CAST: `usize` has 64 bits.
        self.received_octets.add(wc.byte_len as usize);
        self.last.store(jiffies(), Relaxed);
    }

    /// Returns the number of messages received minus the number sent, or 0 if that is negative.
    pub(crate) fn received_less_sent(&self) -> u64 {
        self.received.get().saturating_sub(self.sent.get())
    }

    /// Writes the lines about the peer, the device, the `state` and the version.
    pub(crate) fn show_peer(&self, f: &mut fmt::Formatter<'_>, state: &str) -> fmt::Result {
        writeln!(f, "peer: {}", self.peer)?;
        writeln!(f, "device: {}", self.device.to_str().unwrap_or("-"))?;
        writeln!(f, "state: {state}")?;
        writeln!(f, "version: {}", self.version.load(Relaxed))
    }

    /// Writes the lines of the counters.
    pub(crate) fn show_counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "messages_sent: {}", self.sent.get())?;
        writeln!(f, "messages_received: {}", self.received.get())?;
        writeln!(f, "inline_sent: {}", self.sent_octets.get())?;
        writeln!(f, "inline_received: {}", self.received_octets.get())?;
        writeln!(f, "read_chunks: {}", self.read.get())?;
        writeln!(f, "write_chunks: {}", self.written.get())?;
        writeln!(f, "malformed: {}", self.malformed.get())?;
        writeln!(f, "failed_completions: {}", self.failed_completions.get())?;
        writeln!(f, "idle_ms: {}", msecs_since(self.last.load(Relaxed)))
    }
}
