// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The Receives of a connection: how many there are, and of which size.

use super::call::CallState;
use crate::kapi::{
    rdma::recv::{
        RecvBox,
        RecvPool, //
    },
    sunrpc::svc_rqst::CallData, //
};
use crate::xdr::growth::Growth;

/// A received message, and what is remembered about the Call in it.
pub(super) type CallBox = RecvBox<CallData<CallState>>;

/// The Receives of a connection.
///
/// One is posted for each credit that was granted, and some more. A Call keeps its Receive until
/// it is answered and released, and counts as long against the client's credits, so that there is
/// always one posted for the next. Receives are added when the client uses more than half of those
/// posted, and only then more credits are granted.
pub(super) struct Receives {
    pub(super) pool: RecvPool<CallData<CallState>>,
    /// Receives that are posted while no Call is in process.
    pub(super) target: u32,
    /// Receives that exist.
    pub(super) total: u32,
    /// Their size.
    pub(super) growth: Growth,
}

impl Receives {
    /// Without any; they will have room for `size` octets each.
    pub(super) const fn new(size: u32) -> Self {
        Receives {
            pool: RecvPool::new(),
            target: 0,
            total: 0,
            growth: Growth::new(size),
        }
    }

    /// A buffer is free again. Returns it to be dropped if it has been replaced.
    pub(super) fn put(&mut self, buf: CallBox) -> Option<CallBox> {
        if self.growth.keeps(buf.capacity()) {
            self.pool.put(buf);
            return None;
        }
        self.total = self.total.saturating_sub(1);
        Some(buf)
    }

    /// A posted buffer of `capacity` octets has got a message, or has failed.
    pub(super) fn landed(&mut self, capacity: usize) {
        self.pool.landed();
        self.growth.landed(capacity, 1);
    }
}
