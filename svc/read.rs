// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Read chunks. The server pulls them from the client by RDMA Read before it delivers the Call (RFC
//! 8166, section 3.5), because the service decodes a Call from memory. The *pull* of a Call is the
//! chain of RDMA Reads for all of its Read chunks:
//!
//! ```text
//!   Receive completes:    RDMA Reads posted, into spare pages of the connection
//!     too few spare pages: receive(message) posts them, with pages of the service thread
//!   RDMA Reads complete:  Call queued as pulled
//!   receive(pulled):      pages exchanged with the thread's, Call delivered
//! ```
//!
//! # Placement
//!
//! With one Read chunk in an inline message, the payload starts at the first octet of the first
//! page, and the inline parts before and after it stay in the Receive buffer. For any other
//! combination the whole Call is assembled in pages.
//!
//! # Pages
//!
//! RDMA Reads write to spare pages of the connection, see [`PagePool`], or to pages of the service
//! thread if there are too few. Delivering a Call exchanges these pages for pages of the thread.
//! The thread is done with the Call that was in its pages, so nobody uses them, and they become
//! spare pages. A single page stays in the context, see [`ReadPool`]. No page is allocated or freed
//! while a connection is busy.
//!
//! [`PagePool`]: super::pool::PagePool
//! [`ReadPool`]: super::endpoint::ReadPool

use super::{
    client::OrderedPull,
    endpoint::{
        ChainCtx,
        Conn,
        Endpoint,
        PullCall,
        Pulled,
        ReadCtx, //
    },
    inbox::{
        Ordered,
        PullPermit, //
    },
    layout::Layout,
    order::{
        ArrivalSeq,
        PullSeq, //
    },
    receives::{
        decoded,
        CallBox, //
    },
    recv::reply_slots,
    tunables::STAT_RECV, //
};
use crate::{
    kapi::{
        ext::{
            jiffies,
            noio::NoIo,
            pages::PageVec, //
        },
        rdma::{
            cq::{
                Completion,
                Cqe,
                Wc,
                WcError, //
            },
            qp::Qp,
            rw::Transfer, //
        },
        sunrpc::svc_rqst::{
            CallRef,
            Delivered,
            Receiver, //
        },
        trace::{
            trace_svcrdma_post_read_chunk,
            trace_svcrdma_read_finished,
            trace_svcrdma_wc_read,
            trace_svcrdma_wc_read_err,
            trace_svcrdma_wc_read_flush, //
        }, //
    },
    xdr::{
        error::ErrorBody,
        message::Parsed,
        units::u32_to_usize, //
    },
};
use kernel::prelude::*;

impl ReadCtx {
    fn new() -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(ReadCtx {
                cqe <- Cqe::new(),
                transfer: Transfer::new(),
                reservation: None,
                call: None,
                layout: Layout::EMPTY,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number of Send Queue entries that the chain needs.
    pub(super) fn sqes(&self) -> u32 {
        self.transfer.sqes()
    }
}

impl Ordered for Pulled {
    fn seq(&self) -> Option<PullSeq> {
        let call = self.call.as_ref()?;
        call.ordered.as_ref().map(|ordered| ordered.seq)
    }

    fn arrival(&self) -> ArrivalSeq {
        self.call
            .as_ref()
            .map(|call| call.arrival)
            .unwrap_or_default()
    }
}

impl Completion for ReadCtx {
    type Handler = Endpoint;

    fn done(mut this: Pin<KBox<Self>>, qp: &Qp<Endpoint>, result: Result<Wc, WcError>) {
        if let Some(reservation) = this.as_mut().project().reservation {
            reservation.release();
        }
        let ep = qp.handler();
        match result {
            Ok(wc) => {
                let len = this.layout.paged_len();
                trace_svcrdma_wc_read(wc.cid(), len);
                // Unmap now, because all service threads may be waiting for resources of a mapping.
                this.as_mut().project().transfer.unmap();
                ep.queue_pulled(this);
                ep.resume(qp);
            }
            Err(e) => {
                if e.flushed() {
                    trace_svcrdma_wc_read_flush(e.cid(), e.status(), e.vendor());
                } else {
                    trace_svcrdma_wc_read_err(e.cid(), e.status(), e.vendor());
                }
                ep.keep_failed(qp, this);
                ep.fail_completion("RDMA Read", &e);
            }
        }
    }
}

impl Endpoint {
    /// Returns a cached context, which may have a page, or allocates one.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn get_read_ctx(&self) -> Result<Pin<KBox<ReadCtx>>> {
        let kept = self.reads.lock().pop();
        kept.map_or_else(ReadCtx::new, Ok)
    }

    /// Posts the RDMA Reads of `ctx`, which has its entries of the Send Queue. Does not sleep.
    ///
    /// # Errors
    ///
    /// Errors of posting. The error contains the context.
    #[inline(always)]
    pub(super) fn post_pull(
        &self,
        qp: &Qp<Endpoint>,
        ctx: Pin<KBox<ReadCtx>>,
    ) -> Result<(), (Error, ChainCtx)> {
        let posted = qp.post::<ReadCtx>(ctx, |ctx, chain| {
            chain.transfer(&ctx.transfer)?;
            trace_svcrdma_post_read_chunk(chain.cid(), chain.wrs());
            Ok(())
        });
        posted.map_err(|refused| (refused.error, ChainCtx::Pull(refused.owner)))
    }

    /// Orders the pull of a Call among those of its client. Returns `None` if the Call has no
    /// sequence number, or the client has not proved that it has access.
    #[inline]
    fn order_pull(&self, layout: &Layout) -> Option<OrderedPull> {
        if layout.ordered && self.handle.has_access() {
            self.member.pull()
        } else {
            None
        }
    }

    /// Assigns the Call in `buf` its number in the order of its client's pulls. Its pull waits for
    /// a service thread, and pulls of later Calls may begin before it.
    // Not inlined: it needs much stack, and is rare.
    #[inline(never)]
    pub(super) fn order_before_pull(&self, buf: &mut CallBox) {
        let (bytes, call) = decoded(buf);
        let Some(call) = call else {
            return;
        };
        let mut layout = Layout::EMPTY;
        let known = layout.set(call, bytes, self.params.list_limits.read_octets);
        if known.is_ok() && !layout.chunks.is_empty() {
            buf.data_mut().state.ordered = self.order_pull(&layout);
        }
    }

    #[inline(always)]
    fn submit_pull(&self, qp: &Qp<Endpoint>, ctx: Pin<KBox<ReadCtx>>) {
        if self.submit(qp, ChainCtx::Pull(ctx)).is_err() {
            self.fail();
        }
    }

    /// Posts the RDMA Reads of a Call with the resources that are available. Returns the Call if
    /// they do not suffice. Called by completions, so it does not wait, and allocates no pages.
    pub(super) fn start_pull_at_once(
        &self,
        qp: &Qp<Endpoint>,
        mut buf: CallBox,
        permit: PullPermit,
    ) -> Option<CallBox> {
        // Reclaim may wait for work that is queued behind this completion.
        let _no_io = NoIo::begin();
        let Ok(mut ctx) = self.prepare_pull_at_once(qp, &mut buf) else {
            return Some(buf);
        };
        STAT_RECV.inc();
        let ordered = self.order_pull(&ctx.layout);
        let arrival = buf.data_mut().state.arrival;
        *ctx.as_mut().project().call = Some(PullCall {
            buf,
            arrival,
            permit,
            ordered,
        });
        self.submit_pull(qp, ctx);
        None
    }

    /// Maps spare pages for the RDMA Reads of the Call in `buf`. Waits for no resource, but may
    /// allocate the arrays of the transfer.
    ///
    /// # Errors
    ///
    /// `EAGAIN`, `ENOMEM` or `EINVAL`: a service thread has to handle the Call.
    fn prepare_pull_at_once(
        &self,
        qp: &Qp<Endpoint>,
        buf: &mut CallBox,
    ) -> Result<Pin<KBox<ReadCtx>>> {
        // Over iWARP memory regions may be short, and only a service thread can wait for them.
        if self.params.read_mrs != 0 {
            return Err(EAGAIN);
        }
        let mut ctx = self.reads.lock().pop().ok_or(ENOMEM)?;
        let prepared = self.map_at_once(qp, ctx.as_mut(), buf);
        if prepared.is_ok() && ctx.sqes() <= self.sq.depth() {
            return Ok(ctx);
        }
        self.put_read_ctx(ctx);
        Err(ENOMEM)
    }

    /// Maps spare pages for the RDMA Reads of a Call.
    ///
    /// # Errors
    ///
    /// A service thread has to handle the Call.
    fn map_at_once(&self, qp: &Qp<Endpoint>, ctx: Pin<&mut ReadCtx>, buf: &mut CallBox) -> Result {
        let cid = buf.cid();
        let (bytes, call) = decoded(buf);
        let call = call.ok_or(EINVAL)?;
        let fields = ctx.project();
        let layout = fields.layout;
        let known = layout.set(call, bytes, self.params.list_limits.read_octets);
        if known.is_err() || layout.chunks.is_empty() {
            return Err(EINVAL);
        }
        let pages = fields.transfer.unmap();
        let count = layout.page_count();
        if pages.len() != count {
            self.pages.lock().fill(pages, count)?;
        }
        if pages.len() == count {
            let traffic = &self.params.status.traffic;
            layout.map(qp, traffic, &call.lists(bytes), fields.transfer, cid)
        } else {
            Err(ENOMEM)
        }
    }

    /// Frees a Call whose pull was abandoned.
    pub(super) fn drop_pull(&self, qp: &Qp<Endpoint>, mut ctx: Pin<KBox<ReadCtx>>) {
        self.drop_call(qp, ctx.as_mut());
    }

    /// Frees a Call whose pull has failed. The connection is about to be closed. The context is
    /// kept until the connection is freed, and is not reused: if the device completes the chain a
    /// second time, the completion finds the context's entry idle.
    #[cold]
    fn keep_failed(&self, qp: &Qp<Endpoint>, mut ctx: Pin<KBox<ReadCtx>>) {
        self.drop_call(qp, ctx.as_mut());
        ctx.as_mut().project().transfer.unmap().truncate(0);
        let mut reads = self.reads.lock();
        reads.seal();
        let full = reads.push(ctx);
        drop(reads);
        drop(full);
    }

    /// Frees the Call of a context, and what is reserved for it in the Send Queue.
    fn drop_call(&self, qp: &Qp<Endpoint>, ctx: Pin<&mut ReadCtx>) {
        let fields = ctx.project();
        drop(fields.reservation.take());
        if let Some(call) = fields.call.take() {
            self.release_receive(qp, call.buf);
        }
    }

    /// Keeps a context for the next Call, and its pages as spare pages. A single page may stay in
    /// the context, because most Calls need only one.
    #[inline]
    fn put_read_ctx(&self, mut ctx: Pin<KBox<ReadCtx>>) {
        let pages = ctx.as_mut().project().transfer.unmap();
        if pages.len() <= 1 && pages.are_unshared() {
            let mut reads = self.reads.lock();
            if reads.may_keep_page() {
                // There is room.
                let _ = reads.push(ctx);
                return;
            }
        }
        let pages = ctx.as_mut().project().transfer.unmap();
        self.pages.lock().put(pages);
        pages.truncate(0);
        let full = self.reads.lock().push(ctx);
        drop(full);
    }
}

impl Conn {
    /// Posts the RDMA Reads of a Call. When they complete, the Call is queued as pulled. If they
    /// cannot be posted, the Call is refused, or the connection is closed. A Call whose Read chunks
    /// are all empty is delivered.
    // Not inlined: most Calls have no Read chunks, and do not need its stack.
    #[inline(never)]
    pub(super) fn start_pull<'a>(
        &self,
        receiver: Receiver<'a, CallBox>,
        mut buf: CallBox,
        call: &Parsed,
    ) -> Option<Delivered<'a>> {
        let mut layout = Layout::EMPTY;
        if let Err(error) = layout.set(call, buf.bytes(), self.ep().params.list_limits.read_octets)
        {
            self.reject(buf, Some(call.header), error.response(call.version));
            return None;
        }
        let state = CallRef::of(&mut buf).state;
        self.ep().begin_call(state, call.version);
        if layout.chunks.is_empty() {
            drop(state.ordered.take());
            return self.deliver_inline(receiver, buf, call.header_len, reply_slots(call));
        }
        self.pull(receiver, buf, layout, call);
        None
    }

    /// Posts the RDMA Reads of a Call. The Call returns to the inbox if it may not be pulled yet,
    /// or, for up to 30 s, if memory regions are in use. It is refused, or the connection closed,
    /// if the Reads cannot be posted at all. Waits for memory.
    fn pull(
        &self,
        mut receiver: Receiver<'_, CallBox>,
        buf: CallBox,
        layout: Layout,
        call: &Parsed,
    ) {
        let Some((mut buf, permit)) = self.shared_ep().admit_pull(buf, layout.page_count()) else {
            return;
        };
        // Number the pull before mapping its pages: mapping takes a while, and other threads take
        // the messages behind the Call meanwhile.
        let ordered = buf.data_mut().state.ordered.take().or_else(|| {
            let pull = self.ep().order_pull(&layout)?;
            self.ep().inbox.lock().begin_pull(pull.seq);
            Some(pull)
        });
        match self.prepare_pull(&mut receiver, &buf, &layout, call) {
            Ok(mut ctx) => {
                let arrival = buf.data_mut().state.arrival;
                self.ep().inbox.lock().note_mapped(arrival, jiffies());
                let fields = ctx.as_mut().project();
                *fields.call = Some(PullCall {
                    buf,
                    arrival,
                    permit,
                    ordered,
                });
                *fields.layout = layout;
                self.ep().submit_pull(self.qp(), ctx);
            }
            Err(EAGAIN) if !self.is_short_for_long(&mut buf) => {
                // The Call keeps its number.
                buf.data_mut().state.ordered = ordered;
                self.ep().pull_ended(permit);
                self.shared_ep().hold(buf);
            }
            Err(E2BIG | EAGAIN) => {
                self.refuse(buf, &call.header, ErrorBody::System);
                self.ep().pull_ended(permit);
            }
            Err(_) => {
                self.release_message(buf);
                self.ep().fail();
            }
        }
    }

    /// Records that resources for the pull of the Call in `buf` are short. Returns whether they
    /// have been short for so long that the Call should not wait.
    fn is_short_for_long(&self, buf: &mut CallBox) -> bool {
        let arrival = buf.data_mut().state.arrival;
        self.ep().inbox.lock().note_short(arrival, jiffies())
    }

    /// Maps the pages for the RDMA Reads. Waits for pages, but not for a mapping.
    ///
    /// # Errors
    ///
    /// `E2BIG` if there are more RDMA Reads than the Send Queue has entries, or than there are
    /// memory regions for; `EAGAIN` if these, or other resources of a mapping, are in use.
    // Not inlined, as its stack is not needed when the Reads are posted.
    #[inline(never)]
    fn prepare_pull(
        &self,
        receiver: &mut Receiver<'_, CallBox>,
        buf: &CallBox,
        layout: &Layout,
        call: &Parsed,
    ) -> Result<Pin<KBox<ReadCtx>>> {
        let ep = self.ep();
        let lists = call.lists(buf.bytes());
        let mrs = ep.params.read_mrs;
        if mrs != 0 && layout.read_mrs(self.qp(), &lists) > mrs {
            return Err(E2BIG);
        }
        let mut ctx = ep.retry_while_short(|| ep.get_read_ctx())?;
        let transfer = ctx.as_mut().project().transfer;
        let pages = transfer.unmap();
        let count = layout.page_count();
        ep.retry_while_short(|| pages.reserve(count, GFP_KERNEL))?;
        self.trim_later();
        ep.pages.lock().fill(pages, count)?;
        receiver.take_pages(pages, count)?;
        let traffic = &ep.params.status.traffic;
        if let Err(error) = layout.map(self.qp(), traffic, &lists, transfer, buf.cid()) {
            transfer.unmap();
            // Clients decide when memory regions and room in the IOMMU are released, so no thread
            // waits for them.
            return Err(if error == ENOMEM { EAGAIN } else { error });
        }
        if transfer.sqes() > ep.sq.depth() {
            Err(E2BIG)
        } else {
            Ok(ctx)
        }
    }

    /// Delivers a Call whose Read chunks have been pulled.
    // Not inlined: most Calls have no Read chunks, and do not need its stack.
    #[inline(never)]
    pub(super) fn deliver_pulled<'a>(
        &self,
        receiver: Receiver<'a, CallBox>,
        mut ctx: Pin<KBox<ReadCtx>>,
    ) -> Option<Delivered<'a>> {
        let fields = ctx.as_mut().project();
        let call = fields.call.take();
        let pages = fields.transfer.unmap();
        let delivered = match call {
            Some(call) => {
                trace_svcrdma_read_finished(call.buf.cid());
                self.assemble(receiver, call, fields.layout, pages)
            }
            None => None,
        };
        self.ep().put_read_ctx(ctx);
        // Not before: the timer stops when it finds no pages.
        self.trim_later();
        delivered
    }

    /// Delivers the pulled `call`, whose Read chunks are in `pages`. Returns `None` if it
    /// was refused.
    fn assemble<'a>(
        &self,
        mut receiver: Receiver<'a, CallBox>,
        call: PullCall,
        layout: &Layout,
        pages: &mut PageVec,
    ) -> Option<Delivered<'a>> {
        let PullCall {
            mut buf,
            permit,
            ordered,
            ..
        } = call;
        drop(ordered);
        self.ep().pull_ended(permit);
        let (bytes, call) = decoded(&mut buf);
        // It was decoded before the pull began.
        let Some(call) = call else {
            self.release_message(buf);
            return None;
        };
        if !layout.is_call(call.header.xid, pages) {
            let header = call.header;
            self.refuse(buf, &header, ErrorBody::Chunk);
            return None;
        }
        let (len, slots) = (bytes.len(), reply_slots(call));
        let start = layout.inline_start.min(len);
        let ready = match bytes.get(start..) {
            Some(inline) => layout
                .fill(inline, pages)
                .and_then(|()| receiver.exchange_pages(pages, layout.page_count())),
            None => Err(EINVAL),
        };
        self.hold_pages(&mut receiver, &mut buf, slots);
        let delivered = match (ready, layout.item) {
            (Err(_), _) => Err(buf),
            (Ok(()), Some(position)) => {
                let split = start + u32_to_usize(position);
                receiver.deliver(buf, start..split, layout.paged_len(), split..len)
            }
            (Ok(()), None) => receiver.deliver_paged(buf, layout.paged_len()),
        };
        match delivered {
            Ok(delivered) => Some(delivered),
            Err(buf) => {
                self.release_message(buf);
                self.ep().fail();
                None
            }
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
