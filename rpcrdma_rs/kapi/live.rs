// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What the live views of both sides have in common.
//!
//! `Documentation/live.rst` explains each line.

use core::fmt;

use kernel::time::Jiffies;

use super::{
    ext::{
        addr::SockAddr,
        count::Count,
        debugfs::{
            Parent,
            Registration, //
        },
        jiffies,
        msecs_since, //
    },
    rdma::device::DeviceName,
};
use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};

/// The folder of connections to servers.
pub(crate) static CLIENT: Parent = Parent::new(c"client");
/// The folder of connections of clients.
pub(crate) static SERVER: Parent = Parent::new(c"server");

static PARENTS: [&Parent; 2] = [&CLIENT, &SERVER];

/// Makes the folders of both sides, until the result is dropped. May sleep.
pub(crate) fn register() -> Registration {
    Registration::new(c"rpcrdma_rs", &PARENTS)
}

/// The peer of a connection, and what was exchanged with it. Any context.
pub(crate) struct Traffic {
    peer: SockAddr,
    device: DeviceName,
    /// Version of the protocol; 0 before it is known.
    pub(crate) version: Atomic<u32>,
    sent: Count,
    received: Count,
    /// Octets of these messages.
    sent_octets: Count,
    received_octets: Count,
    /// Octets that the server has read, and written.
    pub(crate) read: Count,
    pub(crate) written: Count,
    /// Messages that could not be used.
    pub(crate) malformed: Count,
    /// Work Requests that failed.
    pub(crate) failed_completions: Count,
    /// When the last message was sent or received.
    last: Atomic<Jiffies>,
}

impl Traffic {
    /// That of a connection to `peer` through `device`, without a message yet.
    pub(crate) fn new(peer: SockAddr, device: DeviceName) -> Self {
        Traffic {
            peer,
            device,
            version: Atomic::new(0),
            sent: Count::new(),
            received: Count::new(),
            sent_octets: Count::new(),
            received_octets: Count::new(),
            read: Count::new(),
            written: Count::new(),
            malformed: Count::new(),
            failed_completions: Count::new(),
            last: Atomic::new(jiffies()),
        }
    }

    /// A message of `octets` was sent.
    pub(crate) fn note_sent(&self, octets: usize) {
        self.sent.add(1);
        self.sent_octets.add(octets);
        self.last.store(jiffies(), Relaxed);
    }

    /// A message of `octets` was received.
    pub(crate) fn note_received(&self, octets: u32) {
        self.received.add(1);
        // CAST: `usize` has 64 bits.
        self.received_octets.add(octets as usize);
        self.last.store(jiffies(), Relaxed);
    }

    /// Messages received less those sent.
    pub(crate) fn received_less_sent(&self) -> u64 {
        self.received.get().saturating_sub(self.sent.get())
    }

    /// Writes the lines that come first.
    pub(crate) fn show_peer(&self, f: &mut fmt::Formatter<'_>, state: &str) -> fmt::Result {
        writeln!(f, "peer: {}", self.peer)?;
        writeln!(f, "device: {}", self.device.to_str().unwrap_or("-"))?;
        writeln!(f, "state: {state}")?;
        writeln!(f, "version: {}", self.version.load(Relaxed))
    }

    /// Writes the lines of what is counted.
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
