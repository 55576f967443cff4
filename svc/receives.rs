// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The Receives of a connection: their number and their size (RFC 8166, section 3.3).

use super::{
    call::CallState,
    limits::Sizes, //
};
use crate::{
    kapi::{
        rdma::recv::{
            RecvBox,
            RecvList,
            RecvPool, //
        },
        sunrpc::svc_rqst::{
            CallData,
            CallRef, //
        }, //
    },
    xdr::{
        message::Parsed,
        resize::Resize,
        units::u32_to_usize, //
    }, //
};

/// A Receive buffer, with the state of the Call that was received in it.
pub(super) type CallBox = RecvBox<CallData<CallState>>;

/// Returns the message in `buf`, and its transport header if it was decoded before.
#[inline]
pub(super) fn decoded(buf: &mut CallBox) -> (&[u8], Option<&Parsed>) {
    let CallRef { bytes, state } = CallRef::of(buf);
    (bytes, state.call.as_ref())
}

/// The Receives of a connection.
///
/// One Receive is posted for each credit granted, and some more. A Call uses a credit until its
/// Reply is sent, and its Receive until it is released a moment later. A Receive is posted for each
/// credit that the client has left, see [`Sizes::is_post_due`]. When the client uses more than half
/// of the posted Receives, a service thread adds more, and then more credits are granted. If more
/// Calls than a batch have a Reply but still hold their Receives, and no service thread has added
/// any, the completion does, see [`Sizes::addition`].
pub(super) struct Receives {
    pub(super) pool: RecvPool<CallData<CallState>>,
    /// The number of posted Receives while no Call is in process.
    pub(super) target: u32,
    /// The number of Receives that exist.
    pub(super) total: u32,
    /// The size of the Receives.
    pub(super) resize: Resize,
}

impl Receives {
    /// Creates an empty set of Receives of `size` octets.
    pub(super) const fn new(size: u32) -> Self {
        Receives {
            pool: RecvPool::new(),
            target: 0,
            total: 0,
            resize: Resize::new(size),
        }
    }

    /// Moves buffers from `list` to the pool, and raises the number of Receives to post by as many,
    /// up to `sizes.receives`. Returns the number of buffers moved. Buffers in excess of
    /// `sizes.buffers` stay in `list`: several threads may add some at the same time. All stay
    /// there if their size is not that of the Receives.
    pub(super) fn add(&mut self, list: &mut RecvList<CallData<CallState>>, sizes: &Sizes) -> u32 {
        if !list.iter().all(|buf| self.resize.keeps(buf.capacity())) {
            return 0;
        }
        let room = sizes.buffers.saturating_sub(self.total);
        let added = list.take_front(u32_to_usize(room));
        // CAST: There are fewer buffers than a queue can have entries.
        let made = added.len() as u32;
        self.pool.put_all(added);
        self.total = self.total.saturating_add(made);
        self.target = self.target.saturating_add(made).min(sizes.receives);
        made
    }

    /// Removes a free buffer, if enough Receives are posted or free without it. Posted Receives
    /// that are to be replaced do not count: free buffers will replace them.
    pub(super) fn take_spare(&mut self) -> Option<CallBox> {
        let lasting = self.pool.posted().saturating_sub(self.resize.outdated());
        // Free buffers count as well: while less than a batch is missing, they are not posted.
        if lasting.saturating_add(self.pool.free()) <= self.target {
            return None;
        }
        let spare = self.pool.take()?;
        self.total = self.total.saturating_sub(1);
        Some(spare)
    }

    /// Puts a buffer back into the pool. Returns it instead if it was replaced meanwhile; the
    /// caller drops it.
    pub(super) fn put(&mut self, buf: CallBox) -> Option<CallBox> {
        if self.resize.keeps(buf.capacity()) {
            self.pool.put(buf);
            return None;
        }
        self.total = self.total.saturating_sub(1);
        Some(buf)
    }

    /// Records that a posted Receive of `capacity` octets has completed.
    pub(super) fn note_completed(&mut self, capacity: usize) {
        self.pool.note_completed();
        self.resize.note_completed(capacity, 1);
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
