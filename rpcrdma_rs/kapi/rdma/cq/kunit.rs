// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completions that no device made, for KUnit.

use super::*;

impl Wc {
    /// The completion of the chain with this ticket.
    pub(in crate::kapi::rdma) fn with_ticket(ticket: u64) -> Self {
        let cid = Cid {
            queue: 0,
            completion: 0,
        };
        Wc { ticket, cid }
    }
}
