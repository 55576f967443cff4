// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The reverse direction: Calls from the server, and their Replies (RFC 8167).
//!
//! These Calls are RDMA_MSG messages without chunks. Receives for them are posted in addition to
//! those of the forward direction. Their Replies use neither the credits nor the Sends of the
//! forward direction.

use core::pin::Pin;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    endpoint::Endpoint,
    marshal::marshal_bc_reply,
    pools::Report,
    sendctx::SendCtx,
    transport::{
        ClntXprt,
        Ended, //
    },
    BC_CREDITS,
    BC_MAX_CALLS, //
};
use crate::{
    kapi::{
        rdma::{
            qp::Qp,
            recv::RecvBox, //
        },
        sunrpc::{
            backchannel::BcRqst,
            errno::{
                enobufs,
                enotconn, //
            },
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_cb_call,
            Peer, //
        },
    },
    xdr::{
        encode::encode_error,
        error::{
            EncodeError,
            ErrorBody,
            ErrorResponse, //
        },
        header::Header,
        message::Parsed,
        props::{
            encode_connprop,
            encode_resprop,
            has_response,
            Message,
            PropSet,
            Properties, //
        },
        units::{
            Credits,
            InlineSize,
            Xid, //
        }, //
    },
};

/// The length of the shortest RPC Call: the fields from the XID to the procedure.
const MIN_CALL: usize = 24;

impl Endpoint {
    /// Delivers a Call of the reverse direction, `parsed` from `buffer`, to the callback service.
    pub(super) fn bc_receive_call(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Endpoint>,
        parsed: &Parsed,
        buffer: RecvBox<()>,
    ) {
        let header = &parsed.header;
        trace_xprtrdma_cb_call(Peer::of(xprt), header.xid.0);
        self.received_other(buffer.capacity());
        if let Some(report) = parsed.chunk_refusal() {
            self.refuse(qp, header, report);
        } else if !self.deliver(xprt, parsed, &buffer) {
            self.refuse(qp, header, ErrorBody::System);
        }
        self.put_receive(buffer);
        self.restore_receives(qp);
    }

    /// Passes a Call to the callback service, and returns whether it did. Does not pass on a Call
    /// that is cut short, is longer than a page, or far exceeds the credits granted. Passes on no
    /// Call if there is no service.
    fn deliver(&self, xprt: &Xprt<ClntXprt>, parsed: &Parsed, buffer: &RecvBox<()>) -> bool {
        let payload = parsed.payload(buffer.bytes());
        let Some(call) = payload.filter(|call| call.len() >= MIN_CALL) else {
            return false;
        };
        xprt.note_use();
        let xid = parsed.header.xid.0;
        xprt.deliver_bc(xid, call, self.number(), BC_MAX_CALLS as usize)
    }

    /// Sends an error report about a message of the server that cannot be served. A Call with
    /// chunks gets one too, because the client does not support chunks in the reverse direction
    /// (RFC 8167, section 5.3).
    ///
    /// If all Sends are in flight, the report waits for one. Its Call still uses a credit, so only
    /// a server that far exceeds the credits granted fills the queue of reports. That server loses
    /// its connection (RFC 8166, section 4.5.4).
    pub(super) fn refuse(self: &Arc<Self>, qp: &Qp<Endpoint>, header: &Header, body: ErrorBody) {
        let header = *header;
        if self.pools.lock().queue_report(Report { header, body }) {
            self.send_reports(qp);
        } else {
            self.fail(Ended::Protocol);
        }
    }

    /// Returns the credits for messages of the server. Before the server may call, it can use two
    /// spare Receives for messages about properties.
    fn bc_credits(&self) -> Credits {
        let may_call = self.pools.lock().is_bc_allowed();
        Credits(if may_call { BC_CREDITS } else { 1 })
    }

    /// Sends the error reports that wait, as long as there are Sends.
    pub(super) fn send_reports(self: &Arc<Self>, qp: &Qp<Endpoint>) {
        while let Some((ctx, report)) = self.take_report() {
            let credits = self.bc_credits();
            let sent = self.send_written(qp, ctx, |body| {
                encode_error(body, &report.header, credits, report.body)
            });
            if sent.is_err() {
                return self.fail(Ended::Local);
            }
        }
    }

    fn take_report(self: &Arc<Self>) -> Option<(Pin<KBox<SendCtx>>, Report)> {
        let mut pools = self.pools.lock();
        let taken = pools.take_report()?;
        self.watch(&mut pools);
        Some(taken)
    }

    /// Sends the message that `write` writes. It belongs to no RPC.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if no Send is free; `EINVAL` if it cannot be written; `ENOTCONN` if the connection
    /// is broken.
    pub(super) fn send_message(
        self: &Arc<Self>,
        qp: &Qp<Endpoint>,
        write: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>,
    ) -> Result {
        // A completion allocates nothing, see `restore_receives`.
        let ctx = self.take_bc_send(false).ok_or_else(enobufs)?;
        self.send_taken(qp, ctx, write)
    }

    /// Sends the message that `write` writes, from `ctx`. If the message cannot be written, sends
    /// the reports that wait for a Send, since `ctx` is free again.
    ///
    /// # Errors
    ///
    /// Those of [`Self::send_written`].
    fn send_taken(
        self: &Arc<Self>,
        qp: &Qp<Endpoint>,
        ctx: Pin<KBox<SendCtx>>,
        write: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>,
    ) -> Result {
        let sent = self.send_written(qp, ctx, write);
        if sent == Err(EINVAL) {
            self.send_reports(qp);
        }
        sent
    }

    /// Sends the message that `write` writes, from `ctx`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it cannot be written; `ENOTCONN` if the connection is broken.
    fn send_written(
        self: &Arc<Self>,
        qp: &Qp<Endpoint>,
        mut ctx: Pin<KBox<SendCtx>>,
        write: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>,
    ) -> Result {
        match write(ctx.as_mut().body()) {
            Ok(len) => self.post_bc(qp, ctx, len),
            Err(_) => {
                self.put_send(ctx);
                Err(EINVAL)
            }
        }
    }

    /// Handles the server's request `xid` for the properties in `want`, and sends the response. If
    /// all Sends are in flight, ignores the request: the server would not learn what has changed.
    fn handle_reqprop(self: &Arc<Self>, qp: &Qp<Endpoint>, xid: Xid, want: &PropSet<'_>) {
        // A completion allocates nothing, see `restore_receives`.
        let Some(ctx) = self.take_bc_send(false) else {
            return;
        };
        let fits = has_response(want, self.thresholds().send);
        let sizes = fits.then(|| self.grant_receive_size(want));
        let credits = self.bc_credits();
        let sent = self.send_taken(qp, ctx, |body| {
            encode_resprop(body, xid, credits, want, sizes.as_ref())
        });
        if sent == Err(enotconn()) {
            self.fail(Ended::Local);
        }
    }

    /// Requests version 2 from the server by RDMA2_CONNPROP with the given `xid`. May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Self::send_message`].
    pub(super) fn send_connprop(self: &Arc<Self>, qp: &Qp<Endpoint>, xid: Xid) -> Result {
        // Nothing was sent before on this connection, so one of the preallocated Sends is free.
        let ctx = self.take_bc_send(true).ok_or_else(enobufs)?;
        let mut pools = self.pools.lock();
        // From here on the server may request another size. The response to that request must not
        // precede the size in this message.
        pools.resize.hold();
        let ours = Properties {
            receive: InlineSize(pools.resize.announced()),
            ..Properties::DEFAULT
        };
        drop(pools);
        let credits = Credits(self.limits().requests);
        self.negotiation.note_connprop_sent();
        let sent = self.send_taken(qp, ctx, |body| encode_connprop(body, xid, credits, &ours));
        self.pools.lock().resize.end_hold();
        sent
    }

    /// Handles a message about properties, or an optional operation.
    pub(super) fn handle_property(
        self: &Arc<Self>,
        qp: &Qp<Endpoint>,
        parsed: &Parsed,
        buffer: RecvBox<()>,
    ) {
        self.received_other(buffer.capacity());
        let header = &parsed.header;
        if let Some(ErrorResponse::Report(report)) = parsed.option_response() {
            self.refuse(qp, header, report);
        }
        match parsed.properties(buffer.bytes()) {
            Some(message @ (Message::Update { .. } | Message::Response { .. })) => {
                self.note_property(parsed, &message);
            }
            Some(Message::Request { want }) => self.handle_reqprop(qp, header.xid, &want),
            // The server has already sent its properties.
            Some(Message::Connect { .. }) | None => (),
        }
        self.put_receive(buffer);
        self.restore_receives(qp);
    }

    /// Sends the Reply to a Call of the reverse direction, or an error report if it is too long.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if memory is short or all Sends are in flight; `ENOTCONN` if the connection is
    /// broken, or must be closed because neither Reply nor report can be sent (RFC 8166, section
    /// 4.5.4).
    pub(super) fn bc_send_reply(
        self: &Arc<Self>,
        qp: &Qp<Endpoint>,
        rqst: &BcRqst<ClntXprt>,
    ) -> Result {
        let mut ctx = self.take_bc_send(true).ok_or_else(enobufs)?;
        let limits = self.thresholds();
        let reply = rqst.reply();
        let marshalled = marshal_bc_reply(ctx.as_mut(), rqst.xid(), BC_CREDITS, &limits, reply);
        match marshalled {
            Ok(len) => self.post_bc(qp, ctx, len).map_err(|_| enotconn()),
            Err(_) => {
                self.put_send(ctx);
                Err(enotconn())
            }
        }
    }

    /// Posts the message in the first `octets` of the buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the buffer is shorter; `ENOTCONN` if the connection is broken.
    fn post_bc(&self, qp: &Qp<Endpoint>, mut ctx: Pin<KBox<SendCtx>>, octets: usize) -> Result {
        if ctx.as_mut().message_mut().add_part(0..octets).is_err() {
            self.put_send(ctx);
            return Err(EINVAL);
        }
        let posted = qp.post::<SendCtx>(ctx, |ctx, chain| chain.send(ctx.message()));
        let sent = posted.map(|()| self.status.traffic.note_sent(octets));
        sent.map_err(|failed| {
            self.put_send(failed.owner);
            enotconn()
        })
    }
}
