// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The contexts of the messages that a connection sends (RFC 8166, section 4.3), and their
//! completions.
//!
//! ```text
//!   cache ──▶ message written ──▶ chain posted ──▶ completion: pages released ──▶ cache
//! ```
//!
//! A message is longer than the connection's buffers only in version 2, see [`super::send`]. It has
//! a context of its own.

use super::endpoint::{
    ChainCtx,
    Endpoint,
    SendCtx, //
};
use crate::{
    kapi::{
        rdma::{
            cq::{
                Completion,
                Cqe,
                Wc,
                WcError, //
            },
            qp::Qp,
            rw::Transfer,
            send::SendBuf, //
        },
        trace::{
            trace_svcrdma_post_reply_chunk,
            trace_svcrdma_post_send,
            trace_svcrdma_post_write_chunk,
            trace_svcrdma_wc_send,
            trace_svcrdma_wc_send_err,
            trace_svcrdma_wc_send_flush, //
        }, //
    },
    xdr::units::Handle,
};
use kernel::prelude::*;

impl SendCtx {
    /// Allocates a context with a buffer of `len` octets. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(qp: &Qp<Endpoint>, len: usize) -> Result<Pin<KBox<Self>>> {
        let message = SendBuf::new(qp.pd(), len, 1)?;
        KBox::pin_init(
            pin_init!(SendCtx {
                cqe <- Cqe::new(),
                message,
                transfer: Transfer::new(),
                reservation: None,
                reply_chunk: false,
                invalidate: None,
                own_pages: false,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the buffer for the header and the inline part.
    pub(super) fn buffer(self: Pin<&mut Self>) -> &mut [u8] {
        self.project().message.body_mut()
    }

    /// Sets the message to the first `len` octets of the buffer, and the handle that it
    /// invalidates.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the buffer is shorter.
    #[inline]
    pub(super) fn set_message(
        self: Pin<&mut Self>,
        len: usize,
        invalidate: Option<Handle>,
    ) -> Result {
        let fields = self.project();
        *fields.invalidate = invalidate;
        fields.message.clear();
        fields.message.add_part(0..len)
    }

    /// Returns the number of Send Queue entries that the chain needs.
    pub(super) fn sqes(&self) -> u32 {
        self.transfer.sqes().saturating_add(1)
    }
}

impl Completion for SendCtx {
    type Handler = Endpoint;

    fn done(this: Pin<KBox<Self>>, qp: &Qp<Endpoint>, result: Result<Wc, WcError>) {
        let ep = qp.handler();
        // Twice the same call: `result` stays in registers, as it is not needed afterwards.
        match result {
            Ok(wc) => {
                trace_svcrdma_wc_send(wc.cid());
                ep.put_send_ctx(this);
                ep.resume(qp);
            }
            Err(e) => {
                ep.put_send_ctx(this);
                if e.flushed() {
                    trace_svcrdma_wc_send_flush(e.cid(), e.status(), e.vendor());
                } else {
                    trace_svcrdma_wc_send_err(e.cid(), e.status(), e.vendor());
                }
                ep.fail_completion("Send", &e);
            }
        }
    }
}

impl Endpoint {
    /// Returns a cached context.
    #[inline(always)]
    pub(super) fn cached_send_ctx(&self) -> Option<Pin<KBox<SendCtx>>> {
        self.sends.lock().pop()
    }

    /// Returns a cached context, or allocates one.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn get_send_ctx(&self, qp: &Qp<Endpoint>) -> Result<Pin<KBox<SendCtx>>> {
        match self.cached_send_ctx() {
            Some(ctx) => Ok(ctx),
            None => SendCtx::new(qp, self.params.receive_size),
        }
    }

    /// Caches a context for the next message, and releases its pages and Send Queue entries. Frees
    /// a context whose buffer is larger than others.
    pub(super) fn put_send_ctx(&self, mut ctx: Pin<KBox<SendCtx>>) {
        let fields = ctx.as_mut().project();
        let pages = fields.transfer.unmap();
        if core::mem::take(fields.own_pages) {
            self.pages.lock().put(pages);
        }
        pages.truncate(0);
        if let Some(reservation) = fields.reservation {
            reservation.release();
        }
        let left = if fields.message.body_mut().len() > self.params.receive_size {
            Some(ctx)
        } else {
            self.sends.lock().push(ctx)
        };
        drop(left);
    }

    /// Posts the chain of `ctx`, which has its entries of the Send Queue. Does not sleep.
    ///
    /// # Errors
    ///
    /// Errors of posting. The error contains the context.
    #[inline(always)]
    pub(super) fn post_reply(
        &self,
        qp: &Qp<Endpoint>,
        ctx: Pin<KBox<SendCtx>>,
    ) -> Result<(), (Error, ChainCtx)> {
        let posted = qp.post::<SendCtx>(ctx, |ctx, chain| {
            if ctx.transfer.sqes() != 0 {
                chain.transfer(&ctx.transfer)?;
                if ctx.reply_chunk {
                    trace_svcrdma_post_reply_chunk(chain.cid(), chain.wrs());
                } else {
                    trace_svcrdma_post_write_chunk(chain.cid(), chain.wrs());
                }
            }
            trace_svcrdma_post_send(chain.cid(), 1, ctx.invalidate.map_or(0, |handle| handle.0));
            match ctx.invalidate {
                Some(handle) => chain.send_with_invalidate(&ctx.message, handle.0),
                None => chain.send(&ctx.message),
            }
        });
        posted.map_err(|refused| (refused.error, ChainCtx::Reply(refused.owner)))
    }
}
