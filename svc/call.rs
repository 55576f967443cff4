// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The state of a Call, kept in its Receive buffer from the completion of the Receive until sunrpc
//! releases the Call: its decoded header, its pull number, and the results that are placed
//! directly.

use super::{
    client::OrderedPull,
    order::{
        ArrivalSeq,
        PullSeq, //
    },
    payloads::Payloads, //
};
use crate::xdr::{
    message::Parsed,
    units::Handle, //
};

/// The state of a Call.
#[derive(Default)]
pub(super) struct CallState {
    /// The transport header of the Call, or of another message; `None` before a message was
    /// decoded.
    pub(super) call: Option<Parsed>,
    /// The handle that the reply may invalidate.
    pub(super) invalidate: Option<Handle>,
    /// The arrival number of the message on its connection.
    pub(super) arrival: ArrivalSeq,
    /// The pull number of the message in the order of its client's messages.
    pub(super) seq: PullSeq,
    /// The pull of the Call, if it was numbered before a service thread begins it. `None` in a
    /// buffer without such a Call.
    pub(super) ordered: Option<OrderedPull>,
    /// The results of the reply that are placed directly.
    pub(super) payloads: Payloads,
}

impl CallState {
    /// Assigns the pull number of the message: that of its own pull, or `last` if it has none.
    #[inline]
    pub(super) fn assign_seq(&mut self, last: impl FnOnce() -> PullSeq) {
        self.seq = match &self.ordered {
            Some(pull) => pull.seq,
            None => last(),
        };
    }

    /// Initialises the state for the Call whose transport header is in [`Self::call`].
    /// `invalidation` is whether the client supports remote invalidation.
    #[inline]
    pub(super) fn begin(&mut self, invalidation: bool) {
        let handle = self.call.as_ref().and_then(|call| call.invalidate);
        self.invalidate = handle.filter(|_| invalidation);
        self.payloads.clear();
    }
}
