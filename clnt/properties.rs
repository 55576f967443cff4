// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Changes of the message sizes of a version 2 connection in use
//! (draft-cel-nfsv4-rpcrdma-version-two-04, sections 5.2.1 and 5.3).
//!
//! ```text
//!   rdma_max_inline_read raised    Receives of the client replaced ─▶ RDMA2_UPDPROP
//!   rdma_max_inline_write changed  RDMA2_REQPROP ─▶ RDMA2_RESPROP: granted, or
//!                                               ─▶ rejected; RDMA2_UPDPROP may follow
//! ```
//!
//! The sender checks the settings between two batches of Receives, so an idle connection does not
//! change. Send buffers keep their size, and the client requests no larger Receives than they hold.

use core::ops::RangeInclusive;

use kernel::sync::Arc;

use super::{
    endpoint::Endpoint,
    negotiation::Agreed,
    transport::ClntXprt,
    tunables, //
};
use crate::{
    kapi::{
        rdma::{
            qp::Qp,
            recv::RecvList, //
        },
        sunrpc::send_lock::SendLocked,
        trace::{
            trace_xprtrdma_property,
            Peer, //
        },
    },
    xdr::{
        header::Proc,
        message::{
            Body,
            Parsed, //
        },
        props::{
            encode_receive,
            granted,
            Message,
            PropSet, //
        },
        resize::ResizeResult,
        units::{
            Credits,
            InlineSize, //
        },
        version::Version, //
    },
};

/// Returns `octets`, a size that the administrator has set, but at least the default of version 2.
fn at_least_default(octets: u32) -> InlineSize {
    InlineSize::representable(octets).max(Version::Two.default_inline())
}

impl Endpoint {
    /// Adapts the sizes to the administrator's settings. May sleep.
    pub(super) fn update_sizes(
        self: &Arc<Self>,
        xprt: &SendLocked<'_, ClntXprt>,
        qp: &Qp<Endpoint>,
    ) {
        let Some(agreed) = self.negotiation.agreed() else {
            return;
        };
        if !agreed.changes() {
            return;
        }
        self.resize_receives();
        let mut pools = self.pools.lock();
        if let Some(octets) = self.negotiation.expire_request() {
            // The server may have granted the request, and have smaller Receives by now. Assume so.
            let smaller = agreed.peer().0.min(octets);
            agreed.note_peer(smaller, self.negotiation.ours().send);
            self.status.show_sizes(agreed);
        }
        pools.reserve.end_wait();
        drop(pools);
        self.announce_receive_size(xprt, qp, agreed);
        self.request_receive_size(xprt, qp, agreed);
        self.update_window(xprt);
    }

    /// Replaces the Receives if another size is wanted and memory for them is available.
    fn resize_receives(&self) {
        let max = at_least_default(tunables::MAX_INLINE_READ.get()).0;
        let mut pools = self.pools.lock();
        let count = pools.receive_buffers();
        let Some(size) = pools.resize.claim(max) else {
            return;
        };
        drop(pools);
        let mut list = RecvList::new();
        let made = self.alloc_receives(count, size, &mut list);
        let mut pools = self.pools.lock();
        pools.resize.release();
        if made < count {
            pools.resize.give_up(size);
        } else if pools.resize.wants(max) == Some(size) {
            list = pools.replace_receives(size, list);
        }
        drop(pools);
        drop(list);
    }

    /// Sends the size of the client's Receives to the server, if they are larger than it knows.
    fn announce_receive_size(
        self: &Arc<Self>,
        xprt: &SendLocked<'_, ClntXprt>,
        qp: &Qp<Endpoint>,
        agreed: &Agreed,
    ) {
        let (granted, requested) = (self.granted(), self.negotiation.has_request());
        let due = self.pools.lock().announcement(granted, requested);
        let Some(octets) = due else {
            return;
        };
        let (xid, credits) = (self.new_xid(), Credits(self.limits().requests));
        let sent = self.send_message(qp, |body| {
            encode_receive(body, Proc::UpdProp, xid, credits, octets)
        });
        let mut pools = self.pools.lock();
        pools.end_announcement(sent.is_ok());
        // The server handles the message before any Call that is sent later.
        agreed.note_announced(InlineSize(pools.resize.announced()));
        drop(pools);
        if sent.is_ok() {
            trace_xprtrdma_property(Peer::of(xprt), Proc::UpdProp.to_u32(), octets);
            self.status.show_sizes(agreed);
        }
    }

    /// Requests Receives of another size from the server, if the administrator has changed the size
    /// of the client's messages.
    fn request_receive_size(
        self: &Arc<Self>,
        xprt: &SendLocked<'_, ClntXprt>,
        qp: &Qp<Endpoint>,
        agreed: &Agreed,
    ) {
        let max =
            at_least_default(tunables::MAX_INLINE_WRITE.get()).min(self.negotiation.ours().send);
        if !agreed.should_request(max) || self.negotiation.has_request() {
            return;
        }
        // The request uses a credit until its response arrives.
        if !self.pools.lock().has_credit(self.granted(), false) {
            return;
        }
        // From here on the client sends only messages that fit the requested size.
        let before = self.set_requested(agreed, max);
        let (xid, credits) = (self.new_xid(), Credits(self.limits().requests));
        self.negotiation.note_request(max, xid);
        let sent = self.send_message(qp, |body| {
            encode_receive(body, Proc::ReqProp, xid, credits, max.0)
        });
        match sent {
            Ok(()) => {
                trace_xprtrdma_property(Peer::of(xprt), Proc::ReqProp.to_u32(), max.0);
                self.status.show_sizes(agreed);
            }
            // The sender retries with the next batch of Receives.
            Err(_) => {
                self.negotiation.take_request();
                self.set_requested(agreed, before);
            }
        }
    }

    /// Records a request for Receives of `size`. Returns the size that was requested before.
    fn set_requested(&self, agreed: &Agreed, size: InlineSize) -> InlineSize {
        let _pools = self.pools.lock();
        agreed.set_requested(size, self.negotiation.ours().send)
    }

    /// Ends the outstanding request, if there is one, and frees its credit. Returns the size
    /// requested.
    fn end_request(self: &Arc<Self>) -> Option<u32> {
        let request = self.negotiation.take_request()?;
        if let Some(xprt) = self.xprt() {
            self.update_window(&xprt);
        }
        Some(request)
    }

    /// Handles an update of the server's properties, or its response to the client's request.
    pub(super) fn note_property(self: &Arc<Self>, parsed: &Parsed, message: &Message<'_>) {
        let Some(agreed) = self.negotiation.agreed() else {
            return;
        };
        let size = match message {
            Message::Update { now } => now.receive(),
            Message::Response {
                done,
                rejected,
                other,
            } if self.negotiation.has_requested_with(parsed.header.xid) => {
                if let Some(xprt) = self.xprt() {
                    let requested = Credits(self.limits().requests);
                    self.set_credits(&xprt, parsed.header.credits.usable(requested));
                }
                let request = self.end_request();
                request.and_then(|octets| granted(octets, done, rejected, other))
            }
            _ => None,
        };
        if let Some(octets) = size {
            let pools = self.pools.lock();
            agreed.note_peer(octets, self.negotiation.ours().send);
            self.status.show_sizes(agreed);
            drop(pools);
            if let Some(xprt) = self.xprt() {
                trace_xprtrdma_property(Peer::of(&xprt), parsed.header.proc, agreed.peer().0);
            }
        }
    }

    /// Handles a message that belongs to no RPC. If it is an error report, it may be the response
    /// to a message about sizes. Whatever it reports, no other response follows.
    pub(super) fn note_refused_property(self: &Arc<Self>, parsed: &Parsed) {
        let xid = parsed.header.xid;
        if !matches!(parsed.body, Body::Error(_)) || !self.is_property_xid(xid) {
            return;
        }
        if self.negotiation.has_requested_with(xid) {
            self.end_request();
            return;
        }
        // The server has not noted RDMA2_UPDPROP. Expect inline Replies of the default size only,
        // even if the former size was larger: the error may be a late response to RDMA2_REQPROP.
        // Unless properties are exchanged, the client has sent none.
        if let Some(agreed) = self.negotiation.agreed().filter(|agreed| agreed.changes()) {
            let _pools = self.pools.lock();
            self.negotiation.reset_receive_threshold();
            self.status.show_sizes(agreed);
        }
    }

    /// Handles the server's request for the properties in `want`. Returns the range of Receive
    /// sizes that is granted now. A larger size is announced when the Receives have it.
    pub(super) fn grant_receive_size(&self, want: &PropSet<'_>) -> RangeInclusive<u32> {
        let mut pools = self.pools.lock();
        let max = match want.receive() {
            Some(octets) if pools.resize.request(octets) == ResizeResult::Granted => octets,
            _ => 0,
        };
        if let (1.., Some(agreed)) = (max, self.negotiation.agreed()) {
            agreed.note_announced(InlineSize(max));
            self.status.show_sizes(agreed);
        }
        Version::Two.default_inline().0..=max
    }
}
