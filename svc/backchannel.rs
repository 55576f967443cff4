// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Callbacks: Calls from the server to the client, over the client's connection (RFC 8167).
//!
//! They have credits, and Receives for their replies, of their own, and no chunks. The
//! Send Queue is shared with forward replies, but a callback never waits for room in it: it is
//! sent later instead.

use super::{
    chan::{
        Chan,
        Conn,
        Work, //
    },
    limits::CALLBACK_CREDITS, //
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
            Opening, //
        },
        header::Proc,
        message::{
            Direction,
            Parsed, //
        },
        reply::{
            check,
            Outcome, //
        },
        units::{
            host_len,
            Credits,
            Xid, //
        }, //
    },
};
use kernel::prelude::*;

/// The class of the client transports that Calls of the reverse direction go by; its number is
/// `XPRT_TRANSPORT_BC_RDMA`.
pub(super) static CLASS: XprtClass<Conn> =
    XprtClass::for_callbacks(c"rdma backchannel", 1 << 31 | 256);

impl Callbacks for Conn {
    const CREDITS: u32 = CALLBACK_CREDITS;

    fn class() -> &'static XprtClass<Self> {
        &CLASS
    }

    fn max_call(this: &SvcXprt<Self>) -> usize {
        this.chan().max_call()
    }

    fn send_call(this: &SvcXprt<Self>, xid: u32, call: &XdrBuf) -> Result {
        let sent = this.send_callback(xid, call);
        match sent {
            Err(e) if e == ENOMEM || e == EAGAIN => Err(enobufs()),
            Err(e) => {
                if e != EMSGSIZE {
                    this.chan().fail();
                }
                Err(e)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Chan {
    /// Octets of the longest callback. None fits if the client says that it receives none: the
    /// service finds that its callbacks fail, and uses none.
    fn max_call(&self) -> usize {
        if !self.negotiation.has_calls() {
            return 0;
        }
        let send = self.negotiation.send(self.params.receive_size);
        host_len(send.0).saturating_sub(self.negotiation.version().least_header())
    }
}

impl Conn {
    fn send_callback(&self, xid: u32, call: &XdrBuf) -> Result {
        // Reclaim may be waiting for the worker that we are on.
        let _no_io = NoIo::begin();
        let chan = self.chan();
        let len = call.len();
        if len > chan.max_call() {
            return Err(EMSGSIZE);
        }
        let mut ctx = chan.send_ctx(self.qp())?;
        let opening = Opening {
            version: chan.negotiation.version(),
            xid: Xid(xid),
            credits: Credits(Self::CREDITS),
            proc: Proc::Msg,
            direction: Direction::Call,
            invalidate: None,
        };
        let buffer = ctx.as_mut().buffer();
        let written = encode_plain(buffer, &opening).map_err(|_| EINVAL);
        let written = written.and_then(|at| {
            let room = buffer.get_mut(at..).ok_or(EINVAL)?;
            match call.copy_to(0..len, room) == len {
                true => Ok(at + len),
                false => Err(EINVAL),
            }
        });
        // Last: once entries are taken, only the completion may give them back.
        let reserved = written.and_then(|end| {
            ctx.as_mut().set_message(end, None)?;
            chan.sq.try_reserve(1)
        });
        match reserved {
            Ok(reservation) => {
                let work = Work::Reply(ctx);
                chan.post(self.qp(), work, reservation)
                    .map_err(|_| enotconn())
            }
            Err(e) => {
                chan.keep_send_ctx(ctx);
                Err(e)
            }
        }
    }
}

/// Completes the callback that a message answers, if there is one; `bytes` is the message. The
/// callback fails if the message is an error report, or has chunks: none were offered.
pub(super) fn receive_reply(xprt: &SvcXprt<Conn>, message: &Parsed, bytes: &[u8]) {
    let reply = match check(message, bytes, None, None) {
        Ok(Outcome::Inline { payload, .. }) => Ok(payload),
        Ok(Outcome::ReplyChunk { .. } | Outcome::Failed(_)) | Err(_) => Err(EIO),
    };
    let requested = Credits(CALLBACK_CREDITS);
    let credits = message.grant().map(|grant| grant.usable(requested).0);
    xprt.complete_callback(message.header.xid.0, credits, reply);
}
