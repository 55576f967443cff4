// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tickets of the posts of a Queue Pair: which post began before which event.

use super::{
    Qp,
    QpHandler, //
};
use crate::kapi::{
    ext::atomic::{
        Atomic,
        Relaxed, //
    },
    rdma::wr::Ticket, //
};

/// The posts of a QP that the device has certainly executed.
///
/// Posts get their numbers when they begin. If two overlap, the device may execute the one with the
/// larger number first. So a completed chain proves something about smaller numbers only if no
/// other post was in progress when it began.
pub(super) struct Executed {
    /// All posts with smaller numbers were executed.
    below: Atomic<u64>,
    /// No post with this number or a larger one began while another was in progress.
    ordered_from: Atomic<u64>,
}

impl Executed {
    /// Creates the state of a QP without posts.
    pub(super) const fn new() -> Self {
        Self {
            below: Atomic::new(0),
            ordered_from: Atomic::new(0),
        }
    }

    /// Records that the post `number` has begun while another one was in progress. Must precede its
    /// post.
    #[cold]
    pub(super) fn note_overlap(&self, number: u64) {
        let from = number.wrapping_add(1);
        let mut seen = self.ordered_from.load(Relaxed);
        while seen < from {
            match self.ordered_from.cmpxchg(seen, from, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Records that the chain `number` has completed. Called by completions of chains, which run
    /// one at a time, in the order of execution.
    fn note_completed(&self, number: u64) {
        if number >= self.ordered_from.load(Relaxed) {
            self.below.store(number.wrapping_add(1), Relaxed);
        }
    }
}

impl<H: QpHandler> Qp<H> {
    /// Returns the ticket of the post with this number.
    pub(super) fn ticket(&self, post: u64) -> Ticket {
        Ticket {
            qp: self.number,
            post,
        }
    }

    /// Records that the device has executed a chain. Called by completions of chains, which run one
    /// at a time.
    pub(in crate::kapi::rdma) fn note_executed(&self, ticket: Ticket) {
        self.executed.note_completed(ticket.post);
    }

    /// Returns the upper bound for a Send With Invalidate that has just arrived: it can invalidate
    /// only a region whose registration precedes this ticket. Called by completions of Receives.
    ///
    /// Over InfiniBand and RoCE the device refuses such a Send unless it has executed the
    /// registration. siw accepts any handle, so the chain of the registration must have completed.
    /// Otherwise a server could invalidate a handle before the device makes it valid.
    pub(in crate::kapi::rdma) fn invalidated_before(&self) -> Ticket {
        self.ticket(if self.is_iwarp() {
            self.executed.below.load(Relaxed)
        } else {
            self.gate.next()
        })
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
