// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The reverse direction: Calls that the server makes of us (RFC 8167).
//!
//! They come as plain RDMA_MSG, without chunks; Receives for them are posted beyond those of
//! the forward direction. Their Replies use neither its credits nor its Sends.

use core::pin::Pin;

use kernel::prelude::*;

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
        &self,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Conn>,
        parsed: &Parsed,
        buffer: RecvBox<()>,
    ) {
        let header = &parsed.header;
        trace_xprtrdma_cb_call(Peer::of(xprt), header.xid.0);
        if !parsed.has_no_chunks() {
            self.refuse(qp, header);
            return self.put_receive(buffer);
        }
        match parsed.payload(buffer.bytes()) {
            // If there are far more than the credits we granted, the Call is lost, and the
            // connection is not.
            Some(call) if call.len() >= MIN_CALL => {
                xprt.note_use();
                xprt.deliver_bc(header.xid.0, call, self.number(), REVERSE_CALLS as usize);
            }
            _ => (),
        }
        self.put_receive(buffer);
    }

    /// Answers a Call that has chunks, which the reverse direction does not (RFC 8167, section
    /// 5.3), unless too many answers are under way.
    pub(super) fn refuse(&self, qp: &Qp<Conn>, header: &Header) {
        let Some(mut ctx) = self.take_reverse_send() else {
            return;
        };
        let credits = Credits(REVERSE_REQUESTS);
        let body = ctx.as_mut().body();
        match encode_error(body, header, credits, ErrorBody::Chunk) {
            Ok(len) if ctx.as_mut().message_mut().add_part(0..len).is_ok() => (),
            _ => return self.put_send(ctx),
        }
        self.post_reverse(qp, ctx).unwrap_or_else(|_| self.lost());
    }

    /// Sends the Reply to a Call of the reverse direction.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when too many are under way; `EMSGSIZE` when it is too long; `ENOTCONN` when
    /// the connection is broken.
    pub(super) fn reverse_reply(&self, qp: &Qp<Conn>, rqst: &BcRqst<ClntXprt>) -> Result {
        let mut ctx = self.take_reverse_send().ok_or_else(enobufs)?;
        let threshold = self.agreed().send.0 as usize;
        let reply = rqst.reply();
        let marshalled =
            marshal_reverse(ctx.as_mut(), rqst.xid(), REVERSE_REQUESTS, threshold, reply);
        if let Err(error) = marshalled {
            ctx.as_mut().clear();
            self.put_send(ctx);
            return Err(error);
        }
        self.post_reverse(qp, ctx)
    }

    fn post_reverse(&self, qp: &Qp<Conn>, ctx: Pin<KBox<SendCtx>>) -> Result {
        let posted = qp.post::<SendCtx>(ctx, |ctx, chain| chain.send(ctx.message()));
        posted.map_err(|mut failed| {
            failed.owner.as_mut().clear();
            self.put_send(failed.owner);
            enotconn()
        })
    }
}
