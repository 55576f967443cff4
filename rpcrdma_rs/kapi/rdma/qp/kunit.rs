// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Chains that were not posted, for KUnit.

use super::*;

impl Unposted {
    /// That of the chain with this ticket.
    pub(in crate::kapi::rdma) fn with_ticket(ticket: Ticket) -> Self {
        Unposted(ticket)
    }
}
