// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What a transport keeps, whether it is connected or not, and what it keeps for a request.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};

use super::{
    mr_pool::{
        Chunks,
        Fence, //
    },
    stats::Stats,
};
use crate::kapi::sunrpc::link::XprtLink;

/// What a transport keeps.
pub(crate) struct ClntXprt {
    /// What it counts.
    pub(super) stats: Stats,
    link: XprtLink<Self>,
    /// Whether the last attempt to connect failed, and the log says so.
    failed: Atomic<bool>,
}

impl ClntXprt {
    /// A transport that has never been connected.
    pub(super) fn unconnected(link: XprtLink<Self>) -> Self {
        Self {
            stats: Stats::new(),
            link,
            failed: Atomic::new(false),
        }
    }

    /// A link to the transport.
    pub(super) fn link(&self) -> XprtLink<Self> {
        self.link.clone()
    }

    /// Notes whether an attempt to connect has failed; returns whether the one before had.
    pub(super) fn note_attempt(&self, failed: bool) -> bool {
        self.failed.xchg(failed, Relaxed)
    }
}

/// What a request slot keeps.
#[pin_data]
pub(crate) struct ClntSlot {
    /// Memory of the request that the server may reach. The lock is held while the Call is
    /// sent, so that a Reply finds all of it.
    #[pin]
    pub(super) chunks: Mutex<Chunks>,
    /// Where the task that gives the request up waits.
    pub(super) fence: Arc<Fence>,
}

impl ClntSlot {
    /// A slot without a request.
    pub(super) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            chunks <- new_mutex!(Chunks::default()),
            fence: Arc::pin_init(Fence::new(), GFP_KERNEL)?,
        }? Error)
    }
}
