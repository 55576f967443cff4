// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Callbacks: Calls from the server to the client, over the client's connection (RFC 8167).
//!
//! Callbacks have their own credits, their own Receives for replies, and no chunks. They share the
//! Send Queue with forward replies. One that finds no room in it is queued behind them: sunrpc
//! would repeat it at intervals, and while replies keep the queue full it might never find room.

use super::{
    endpoint::{
        ChainCtx,
        Conn,
        Endpoint, //
    },
    limits::CALLBACK_CREDITS,
    Rdma, //
};
use crate::{
    kapi::{
        ext::noio::NoIo,
        sunrpc::{
            class::XprtClass,
            errno::{
                enobufs,
                enotconn, //
            },
            svc::SvcXprt,
            svc_bc::Callbacks,
            xdr_buf::XdrBuf, //
        }, //
    },
    xdr::{
        encode::{
            encode_plain,
            HeaderPrefix, //
        },
        header::Proc,
        message::{
            Direction,
            Parsed,
            Rejected, //
        },
        reply::{
            check,
            Outcome, //
        },
        units::{
            u32_to_usize,
            Credits,
            Xid, //
        }, //
    },
};
use kernel::prelude::*;

/// The class of the client transports for Calls of the reverse direction. Its number is
/// `XPRT_TRANSPORT_BC_RDMA`.
pub(super) static CLASS: XprtClass<Conn> = XprtClass::for_callbacks(c"rdma backchannel");

impl Callbacks for Conn {
    type Server = Rdma;

    const CREDITS: u32 = CALLBACK_CREDITS;

    fn class() -> &'static XprtClass<Self> {
        &CLASS
    }

    fn max_call(this: &SvcXprt<Self>) -> usize {
        this.ep().max_call()
    }

    fn send_call(this: &SvcXprt<Self>, xid: u32, call: &XdrBuf) -> Result {
        let sent = this.send_callback(xid, call);
        match sent {
            Err(ENOMEM) => Err(enobufs()),
            Err(e) => {
                if e != EMSGSIZE {
                    this.ep().fail();
                }
                Err(e)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Endpoint {
    /// Returns the length of the longest callback in octets. Returns 0 if the client's properties
    /// say that it receives no Calls. The service then finds that callbacks fail, and does not use
    /// them.
    fn max_call(&self) -> usize {
        if !self.negotiation.has_calls() {
            return 0;
        }
        let send = self.negotiation.send(self.params.receive_size);
        u32_to_usize(send.0).saturating_sub(self.negotiation.version().min_header_len())
    }
}

impl Conn {
    /// Posts or queues a callback. May sleep for memory, without I/O.
    fn send_callback(&self, xid: u32, call: &XdrBuf) -> Result {
        // Reclaim may be waiting for the worker that runs this function.
        let _no_io = NoIo::begin();
        let ep = self.ep();
        let len = call.len();
        if len > ep.max_call() {
            return Err(EMSGSIZE);
        }
        let mut ctx = ep.get_send_ctx(self.qp())?;
        let prefix = HeaderPrefix {
            version: ep.negotiation.version(),
            xid: Xid(xid),
            credits: Credits(Self::CREDITS),
            proc: Proc::Msg,
            direction: Direction::Call,
            invalidate: None,
        };
        let buffer = ctx.as_mut().buffer();
        let written = encode_plain(buffer, &prefix).map_err(|_| EINVAL);
        let written = written.and_then(|at| {
            let room = buffer.get_mut(at..).ok_or(EINVAL)?;
            if call.copy_to(0..len, room) == len {
                Ok(at + len)
            } else {
                Err(EINVAL)
            }
        });
        let written = written.and_then(|end| {
            ctx.as_mut().set_message(end, None)?;
            Ok(end)
        });
        match written {
            Ok(octets) => {
                let posted = ep.submit(self.qp(), ChainCtx::Reply(ctx));
                posted.map_err(|_| enotconn())?;
                ep.params.status.traffic.note_sent(octets);
                Ok(())
            }
            Err(e) => {
                ep.put_send_ctx(ctx);
                Err(e)
            }
        }
    }
}

/// Completes the callback that a message is the Reply to, if there is one. `bytes` is the message.
/// The callback fails if the message is an error report, or has chunks: none were offered.
pub(super) fn receive_reply(xprt: &SvcXprt<Conn>, message: &Parsed, bytes: &[u8]) {
    let reply = match check(message, bytes, || None, || None) {
        Ok(Outcome::Inline { payload, .. }) => Ok(payload),
        Ok(Outcome::ReplyChunk { .. } | Outcome::Failed(_)) | Err(_) => Err(EIO),
    };
    let requested = Credits(CALLBACK_CREDITS);
    let credits = message.grant().map(|grant| grant.usable(requested).0);
    xprt.complete_callback(message.header.xid.0, credits, reply);
}

/// Fails the callback that a malformed Reply is for, if there is one: no other Reply follows.
#[cold]
pub(super) fn receive_malformed(xprt: &SvcXprt<Conn>, rejected: &Rejected) {
    if let Some(header) = rejected.failed_rpc() {
        xprt.complete_callback(header.xid.0, None, Err(EIO));
    }
}
