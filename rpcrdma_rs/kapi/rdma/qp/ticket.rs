// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tickets of the posts of a Queue Pair: which post began before which event.

use super::{
    Qp,
    QpHandler, //
};
use crate::kapi::{
    ext::atomic::Relaxed,
    rdma::wr::Ticket, //
};

impl<H: QpHandler> Qp<H> {
    /// Returns the ticket of the post with this number.
    pub(super) fn ticket(&self, post: u64) -> Ticket {
        Ticket {
            qp: self.number,
            post,
        }
    }

    /// Records that the device has executed a chain. Called by completions of chains, which run one at a
    /// time.
    pub(in crate::kapi::rdma) fn note_executed(&self, ticket: Ticket) {
        self.executed.store(ticket.post.saturating_add(1), Relaxed);
    }

    /// Returns a ticket that follows those of the registrations which a Send With Invalidate that has
    /// just arrived may concern. Called by completions of Receives.
    ///
    /// Over InfiniBand and RoCE the device refuses such a Send unless it has executed the registration.
    /// siw accepts any handle, so the chain of the registration must have completed. Otherwise a server
    /// could invalidate a handle before the device makes it valid.
    pub(in crate::kapi::rdma) fn invalidated_before(&self) -> Ticket {
        self.ticket(if self.port().iwarp() {
            self.executed.load(Relaxed)
        } else {
            self.gate.next()
        })
    }
}
