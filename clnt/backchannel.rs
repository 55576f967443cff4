// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The reverse direction: Calls that the server makes of us (RFC 8167).
//!
//! They come as plain RDMA_MSG, without chunks; Receives for them are posted beyond those of
//! the forward direction. Their Replies use neither its credits nor its Sends.

use core::pin::Pin;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    conn::Conn,
    marshal::marshal_reverse,
    sendctx::SendCtx,
    transport::ClntXprt,
    REVERSE_CALLS,
    REVERSE_REQUESTS, //
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
        error::ErrorBody,
        header::Header,
        message::Parsed,
        units::Credits, //
    },
};

/// The shortest RPC Call there is: XID, direction, and what follows up to the procedure.
const MIN_CALL: usize = 24;

impl Conn {
    /// Takes in a Call of the reverse direction, `parsed` from `buffer`.
    pub(super) fn reverse_call(
        self: &Arc<Self>,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Conn>,
        parsed: &Parsed,
        buffer: RecvBox<()>,
    ) {
        let header = &parsed.header;
        trace_xprtrdma_cb_call(Peer::of(xprt), header.xid.0);
        self.received(false);
        if !parsed.has_no_chunks() {
            self.refuse(qp, header);
        } else {
            self.deliver(xprt, parsed, &buffer);
        }
        self.put_receive(buffer);
        self.restore_receives(qp);
    }

    fn deliver(&self, xprt: &Xprt<ClntXprt>, parsed: &Parsed, buffer: &RecvBox<()>) {
        match parsed.payload(buffer.bytes()) {
            // If there are far more than the credits we granted, the Call is lost, and the
            // connection is not.
            Some(call) if call.len() >= MIN_CALL => {
                xprt.note_use();
                let xid = parsed.header.xid.0;
                xprt.deliver_bc(xid, call, self.number(), REVERSE_CALLS as usize);
            }
            _ => (),
        }
    }

    /// Answers a Call that has chunks, which the reverse direction does not (RFC 8167, section
    /// 5.3), unless too many answers are under way.
    pub(super) fn refuse(self: &Arc<Self>, qp: &Qp<Conn>, header: &Header) {
        let Some(mut ctx) = self.take_reverse_send() else {
            return;
        };
        let credits = Credits(REVERSE_REQUESTS);
        let body = ctx.as_mut().body();
        match encode_error(body, header, credits, ErrorBody::Chunk) {
            Ok(len) if ctx.as_mut().message_mut().add_part(0..len).is_ok() => (),
            _ => return self.put_reverse_send(ctx),
        }
        self.post_reverse(qp, ctx).unwrap_or_else(|_| self.lost());
    }

    /// Sends the Reply to a Call of the reverse direction.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when too many are under way; `EMSGSIZE` when it is too long; `ENOTCONN` when
    /// the connection is broken.
    pub(super) fn reverse_reply(
        self: &Arc<Self>,
        qp: &Qp<Conn>,
        rqst: &BcRqst<ClntXprt>,
    ) -> Result {
        let mut ctx = self.take_reverse_send().ok_or_else(enobufs)?;
        let threshold = self.agreed().send.0 as usize;
        let reply = rqst.reply();
        let marshalled =
            marshal_reverse(ctx.as_mut(), rqst.xid(), REVERSE_REQUESTS, threshold, reply);
        if let Err(error) = marshalled {
            self.put_reverse_send(ctx);
            return Err(error);
        }
        self.post_reverse(qp, ctx)
    }

    /// Gives the buffers of a Send back that was not posted.
    fn put_reverse_send(&self, mut ctx: Pin<KBox<SendCtx>>) {
        ctx.as_mut().clear();
        self.give_back(|pools| pools.reverse_done(ctx));
    }

    fn post_reverse(&self, qp: &Qp<Conn>, ctx: Pin<KBox<SendCtx>>) -> Result {
        let posted = qp.post::<SendCtx>(ctx, |ctx, chain| chain.send(ctx.message()));
        posted.map_err(|failed| {
            self.put_reverse_send(failed.owner);
            enotconn()
        })
    }
}
