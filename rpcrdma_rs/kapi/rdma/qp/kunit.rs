// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Proofs, for KUnit, that chains were not posted.

use super::*;

impl Unposted {
    /// Returns the proof for the chain with this ticket.
    pub(in crate::kapi::rdma) fn with_ticket(ticket: Ticket) -> Self {
        Unposted(ticket)
    }
}
