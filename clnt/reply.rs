// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Received messages: Replies are matched with their request, fenced and completed (RFC 8166,
//! sections 4.3 to 4.5).
//!
//! ```text
//!   Receive ─decode─▶ Call of the reverse direction ──▶ backchannel
//!      │
//!      └─▶ XID known? ─no─▶ dropped
//!               │ pin
//!               ▼
//!          delivery: compare the lists with those offered
//!               │
//!               ▼
//!          regions all fenced by the server? ─no─▶ LOCAL_INV
//!               │ yes                                │ done
//!               ▼                                    │
//!          unmap, complete ◀─────────────────────────┘
//! ```
//!
//! A malformed message is discarded, or fails the RPC with its XID. A second Reply is dropped. If
//! LOCAL_INV fails, the connection is lost, and the request keeps its regions until the connection
//! is drained.

use core::pin::Pin;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    chunks::{
        split_fenced,
        take_fenced,
        unmap_fenced,
        ChunkKind,
        Chunks, //
    },
    endpoint::Endpoint,
    invalidate::{
        After,
        Delivery,
        InvCtx,
        PendingReply, //
    },
    pools::MessageKind,
    state::{
        Event,
        Step, //
    },
    status::ConnStatus,
    transport::{
        ClntXprt,
        Ended, //
    }, //
};
use crate::{
    kapi::{
        rdma::{
            cq::{
                Completion,
                Wc,
                WcError, //
            },
            mr::MrList,
            qp::{
                Qp,
                QpEvent,
                QpHandler, //
            },
            recv::{
                RecvBox,
                RecvWc, //
            }, //
        },
        sunrpc::{
            rqst::Pinned,
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_err_chunk,
            trace_xprtrdma_err_unrecognized,
            trace_xprtrdma_err_vers,
            trace_xprtrdma_fixup,
            trace_xprtrdma_reply,
            trace_xprtrdma_reply_hdr_err,
            trace_xprtrdma_reply_rqst_err,
            trace_xprtrdma_reply_short_err,
            trace_xprtrdma_reply_vers_err,
            trace_xprtrdma_wc_li_done,
            trace_xprtrdma_wc_receive,
            Peer,
            Task, //
        },
    },
    xdr::{
        chunk::ListLimits,
        error::{
            DecodeError,
            ErrorBody, //
        },
        header::Header,
        message::{
            decode,
            Body,
            Direction,
            Parsed,
            Rejected, //
        },
        negotiate::is_only_outcome,
        reply::{
            check,
            Outcome, //
        },
        units::Credits, //
    },
};

/// The limits on the chunk lists of a message, which exceed those of any Reply to this client.
const LIMITS: ListLimits = ListLimits {
    segments: 64,
    read_octets: u32::MAX,
};

impl QpHandler for Endpoint {
    type Recv = ();

    fn recv_done(&self, qp: &Qp<Self>, buffer: RecvBox<()>, result: Result<RecvWc, WcError>) {
        match &result {
            Ok(wc) => {
                trace_xprtrdma_wc_receive(buffer.cid(), 0, 0, wc.byte_len);
                self.status.traffic.note_received(wc);
            }
            Err(e) => {
                trace_xprtrdma_wc_receive(e.cid(), e.status(), e.vendor(), 0);
                self.status.traffic.failed_completions.add(1);
            }
        }
        if result.is_err() {
            self.fail(Ended::Completion);
        } else if let Some(xprt) = self.xprt() {
            return qp.handler().handle_message(&xprt, qp, buffer);
        }
        self.drop_message(buffer, MessageKind::Other);
    }

    fn event(&self, event: QpEvent) {
        match event {
            QpEvent::Broken => self.fail(Ended::Completion),
            // This may be an interrupt, in which sunrpc's locks must not be taken. After `Fatal`
            // the QP is in its error state, so the flushed Receives report the loss.
            QpEvent::Fatal | QpEvent::Other => (),
        }
    }
}

impl Completion for InvCtx {
    type Handler = Endpoint;

    fn done(mut this: Pin<KBox<Self>>, qp: &Qp<Endpoint>, result: Result<Wc, WcError>) {
        let ep = qp.handler();
        let (mut list, after) = this.as_mut().take();
        let mut idle = MrList::new();
        match result {
            Ok(wc) => {
                trace_xprtrdma_wc_li_done(wc.cid(), 0, 0);
                let _ = list.try_for_each(|mr| {
                    mr.completed_by(&wc);
                    Ok(())
                });
                idle = take_fenced(&mut list);
            }
            Err(e) => {
                trace_xprtrdma_wc_li_done(e.cid(), e.status(), e.vendor());
                ep.status.traffic.failed_completions.add(1);
                ep.fail(Ended::Completion);
            }
        }
        ep.return_to_pools(|pools| {
            pools.inv_done(this);
            pools.recycled(&mut idle);
        });
        match after {
            Some(After::Complete(pending)) => ep.fenced(pending, list),
            Some(After::Wake(fence)) => fence.finish(list),
            None => (),
        }
    }
}

impl Endpoint {
    /// Handles a received message.
    fn handle_message(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Endpoint>,
        buffer: RecvBox<()>,
    ) {
        xprt.note_message();
        let decoded = decode(buffer.bytes(), &LIMITS, self.negotiation.accepts());
        let parsed = match &decoded {
            Ok(parsed)
                if self.negotiation.is_pending()
                    && self.handle_response(xprt, parsed, buffer.bytes()) =>
            {
                return self.drop_other(qp, buffer);
            }
            Ok(parsed) if matches!(parsed.body, Body::Property(_) | Body::Optional(_)) => {
                return self.handle_property(qp, parsed, buffer);
            }
            Ok(parsed) if parsed.direction == Some(Direction::Call) => {
                return self.bc_receive_call(xprt, qp, parsed, buffer);
            }
            Ok(parsed) => Ok(parsed),
            Err(rejected) => {
                trace_malformed(Peer::of(xprt), rejected);
                self.status.traffic.malformed.add(1);
                if self.negotiation.is_pending() {
                    // Send no error report: it could arrive before the request for version 2, and
                    // only one message may be sent before the response to that.
                    return self.drop_other(qp, buffer);
                }
                Err(rejected)
            }
        };
        let header = match parsed {
            Ok(parsed) => parsed.header,
            Err(rejected) => match rejected.failed_rpc() {
                Some(header) => header,
                None => {
                    self.refuse_call(qp, rejected);
                    return self.drop_other(qp, buffer);
                }
            },
        };
        match xprt.lookup(header.xid.0) {
            Some(rqst) => self.handle_reply(xprt, qp, rqst, buffer, parsed.ok()),
            None => self.handle_stray(xprt, qp, &header, buffer, parsed),
        }
    }

    /// Handles a message whose XID matches no RPC.
    #[cold]
    fn handle_stray(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Endpoint>,
        header: &Header,
        buffer: RecvBox<()>,
        parsed: Result<&Parsed, &Rejected>,
    ) {
        let (xid, version) = (header.xid.0, header.version);
        trace_xprtrdma_reply_rqst_err(Peer::of(xprt), xid, version, header.proc);
        self.status.stray_replies.add(1);
        let is_reply = match parsed {
            // Version 1: the RPC message is missing, or is neither a Call nor a Reply.
            Ok(parsed) if parsed.direction.is_none() && self.may_be_called() => {
                self.refuse(qp, header, ErrorBody::Chunk);
                false
            }
            Ok(parsed) => {
                self.note_refused_property(parsed);
                parsed.direction == Some(Direction::Reply) || self.is_late_reply(None)
            }
            // The direction of a malformed message of version 1 or an unknown version is unknown.
            Err(rejected) if rejected.refusal().is_some() && self.may_be_called() => {
                self.refuse_call(qp, rejected);
                false
            }
            Err(rejected) => self.is_late_reply(rejected.direction),
        };
        // The Reply to an RPC that was given up, or the response to a message about properties.
        if is_reply && !self.is_property_xid(header.xid) {
            self.drop_message(buffer, MessageKind::LateReply);
            self.update_window(xprt);
        } else {
            self.drop_message(buffer, MessageKind::Other);
        }
        self.restore_receives(qp);
    }

    /// Returns whether the server may call, so that a malformed message may be a Call.
    fn may_be_called(&self) -> bool {
        self.pools.lock().is_bc_allowed()
    }

    /// Returns whether a malformed message is the Reply to a Call that was given up. It is if such
    /// a Reply is due, and the message is no Call by its `direction`, or the server may not call.
    fn is_late_reply(&self, direction: Option<Direction>) -> bool {
        let pools = self.pools.lock();
        let is_reply = direction == Some(Direction::Reply) || !pools.is_bc_allowed();
        is_reply && pools.has_given_up()
    }

    /// Discards a message, or a flushed Receive, and returns its buffer to the pool. `kind` is what
    /// it counts as.
    fn drop_message(&self, buffer: RecvBox<()>, kind: MessageKind) {
        self.return_to_pools(|pools| {
            pools.received(kind, buffer.capacity());
            pools.put_receive(buffer);
        });
    }

    /// Discards a message that does not count as a Reply, and posts Receives if too few are posted.
    #[cold]
    fn drop_other(self: &Arc<Self>, qp: &Qp<Endpoint>, buffer: RecvBox<()>) {
        self.drop_message(buffer, MessageKind::Other);
        self.restore_receives(qp);
    }

    /// Handles a message while the response to the request for version 2 is pending. `parsed` was
    /// decoded from `bytes`. Returns whether the caller has to drop the message. It has to if the
    /// message is not the response, has no other purpose, or arrived before the request was sent.
    #[cold]
    fn handle_response(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        parsed: &Parsed,
        bytes: &[u8],
    ) -> bool {
        let requested = Credits(self.limits().requests);
        let Some(window) = self.negotiation.handle_response(parsed, bytes, requested) else {
            return true;
        };
        self.set_credits(xprt, window);
        self.events.handle(Event::Done(Step::Version));
        // Nothing is sent before the request, not even to a server that does not wait for it.
        is_only_outcome(parsed) || !self.negotiation.is_connprop_sent()
    }

    /// Sends an error report about a malformed message that may be a Call or another request.
    fn refuse_call(self: &Arc<Self>, qp: &Qp<Endpoint>, rejected: &Rejected) {
        if let (Some(header), Some(report)) = (rejected.header, rejected.refusal()) {
            self.refuse(qp, &header, report);
        }
    }

    /// Handles the Reply to a request. `parsed` is `None` if the Reply is malformed.
    fn handle_reply(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Endpoint>,
        rqst: Pinned<ClntXprt>,
        buffer: RecvBox<()>,
        parsed: Option<&Parsed>,
    ) {
        let chunks = rqst.chunks.lock();
        if !chunks.is_outstanding() {
            // This is a second Reply, or the Call was not sent on this connection.
            drop(chunks);
            return self.drop_bad_reply(xprt, qp, buffer);
        }
        let is_stale = !chunks.is_encoded_as(rqst.encoding());
        if is_stale || parsed.is_some_and(Parsed::refuses_version) && self.negotiation.revoke() {
            // The Call is sent again on the next connection. A server that refuses the version has
            // not executed it.
            drop(chunks);
            self.fail(if is_stale {
                Ended::Local
            } else {
                Ended::Protocol
            });
            return self.drop_bad_reply(xprt, qp, buffer);
        }
        let delivery = parsed.map_or(Delivery::Failed, |parsed| {
            check_delivery(Task::of(&rqst), parsed, buffer.bytes(), &chunks)
        });
        if parsed.is_some_and(Parsed::lacks_room) && chunks.len(ChunkKind::Reply) == 0 {
            let _pools = self.pools.lock();
            self.negotiation.reset_receive_threshold();
        }
        let mut list = chunks.take();
        if let Some(grant) = parsed.and_then(Parsed::grant) {
            let requested = Credits(self.limits().requests);
            let usable = grant.usable(requested);
            trace_xprtrdma_reply(Task::of(&rqst), rqst.xid(), usable.0);
            self.set_credits(xprt, usable);
        }
        // A Reply that fails its RPC does not count as a good Reply. Otherwise the client would
        // reconnect without a pause to a peer that sends garbage and disconnects.
        if !matches!(delivery, Delivery::Failed) {
            xprt.note_use();
            self.negotiation.note_reply();
        }
        if !list.is_empty() && !unmap_fenced(&mut list, buffer.invalidated()) {
            let mut idle = split_fenced(&mut list);
            if !list.is_empty() {
                let pending = PendingReply {
                    rqst,
                    buffer,
                    delivery,
                };
                return self.fence_rest(xprt, qp, pending, list, idle);
            }
            list.append(&mut idle);
        }
        complete(&self.status, xprt, rqst, buffer.bytes(), delivery);
        self.return_to_pools(|pools| {
            pools.received(MessageKind::Reply, buffer.capacity());
            pools.put_receive(buffer);
            pools.recycled(&mut list);
        });
    }

    /// Drops a Reply that completes no RPC.
    #[cold]
    fn drop_bad_reply(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Endpoint>,
        buffer: RecvBox<()>,
    ) {
        xprt.stats.bad_replies.add(1);
        self.status.bad_replies.add(1);
        self.drop_other(qp, buffer);
    }

    /// Fences the regions in `list`, which the server did not invalidate, before the RPC of a Reply
    /// completes. `idle` are the other regions of the request.
    #[cold]
    fn fence_rest(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Endpoint>,
        pending: PendingReply,
        list: MrList,
        mut idle: MrList,
    ) {
        self.return_to_pools(|pools| {
            pools.received(MessageKind::Reply, pending.buffer.capacity());
            pools.recycled(&mut idle);
        });
        xprt.stats.local_invs.add(list.len());
        if let Err((list, after)) = self.invalidate(qp, list, After::Complete(pending)) {
            if let Some(After::Complete(pending)) = after {
                self.fenced(pending, list);
            }
        }
    }

    /// Continues with a Reply when the attempt to fence its regions has ended. `left` are the
    /// regions that could not be fenced.
    fn fenced(&self, pending: PendingReply, left: MrList) {
        let Some(xprt) = self.xprt() else {
            return;
        };
        if left.is_empty() {
            return self.put_receive(complete_fenced(&self.status, &xprt, pending));
        }
        // The connection is broken, and the regions are fenced once it is drained. Until then the
        // request keeps them. It is sent again on the next connection.
        pending.rqst.chunks.lock().keep_unfenced(left);
        self.fail(Ended::Completion);
        self.put_receive(pending.buffer);
    }
}

/// Does what [`complete`] does, for a Reply whose regions the client had to fence.
#[inline(never)]
fn complete_fenced(status: &ConnStatus, xprt: &ClntXprt, pending: PendingReply) -> RecvBox<()> {
    let PendingReply {
        rqst,
        buffer,
        delivery,
    } = pending;
    complete(status, xprt, rqst, buffer.bytes(), delivery);
    buffer
}

/// Completes an RPC whose regions are all fenced, with the message `received`.
#[inline(always)]
fn complete(
    status: &ConnStatus,
    xprt: &ClntXprt,
    rqst: Pinned<ClntXprt>,
    received: &[u8],
    delivery: Delivery,
) {
    let stats = &xprt.stats;
    match delivery {
        Delivery::Inline { start, placed } => {
            let xid = rqst.xid();
            let bytes = received.get(start..).unwrap_or_default();
            match rqst.complete_inline(bytes, placed as usize) {
                Ok(copied) => {
                    if copied != 0 {
                        trace_xprtrdma_fixup(xid, copied);
                    }
                    stats.placed_bytes.add(placed as usize);
                    status.traffic.written.add(placed as usize);
                    stats.fixup_bytes.add(copied);
                }
                Err(_) => {
                    stats.bad_replies.add(1);
                    status.bad_replies.add(1);
                }
            }
        }
        Delivery::Placed { len } => {
            stats.placed_bytes.add(len as usize);
            status.traffic.written.add(len as usize);
            rqst.complete(Ok(len as usize));
        }
        Delivery::Failed => {
            stats.bad_replies.add(1);
            status.bad_replies.add(1);
            rqst.complete(Err(EIO));
        }
    }
}

/// Traces a malformed message.
fn trace_malformed(peer: Peer<'_>, rejected: &Rejected) {
    let Some(header) = rejected.header else {
        return trace_xprtrdma_reply_short_err(peer, 0, 0, 0);
    };
    let (xid, version, proc) = (header.xid.0, header.version, header.proc);
    match rejected.error {
        DecodeError::Version(_) => trace_xprtrdma_reply_vers_err(peer, xid, version, proc),
        _ => trace_xprtrdma_reply_hdr_err(peer, xid, version, proc),
    }
}

/// Traces an error report.
fn trace_report(task: Task<'_>, xid: u32, body: ErrorBody) {
    match body {
        ErrorBody::Version { low, high } => trace_xprtrdma_err_vers(task, xid, low, high),
        ErrorBody::Chunk => trace_xprtrdma_err_chunk(task, xid),
        other => trace_xprtrdma_err_unrecognized(task, xid, other.code()),
    }
}

/// Checks a Reply against the chunks that its Call offered, and returns how to complete the RPC.
fn check_delivery(task: Task<'_>, parsed: &Parsed, buffer: &[u8], chunks: &Chunks) -> Delivery {
    let outcome = check(
        parsed,
        buffer,
        || chunks.segments(ChunkKind::Write),
        || chunks.segments(ChunkKind::Reply),
    );
    match outcome {
        Ok(Outcome::Inline { written, .. }) => inline(parsed, written),
        Ok(Outcome::ReplyChunk { written }) => Delivery::Placed { len: written },
        Ok(Outcome::Failed(body)) => {
            trace_report(task, parsed.header.xid.0, body);
            Delivery::Failed
        }
        Err(_) => Delivery::Failed,
    }
}

/// Returns how to complete the RPC with an inline Reply that has `written` octets in its Write
/// chunk. A message that is not an RPC Reply fails the RPC.
fn inline(message: &Parsed, written: u32) -> Delivery {
    match message.direction {
        Some(Direction::Reply) => Delivery::Inline {
            start: message.header_len,
            placed: written,
        },
        _ => Delivery::Failed,
    }
}
