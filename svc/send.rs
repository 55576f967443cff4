// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Replies: the Write list, the Reply chunk and the inline part (RFC 8166, sections 3.5 and 4.3).
//!
//! ```text
//!   reply --remove payloads that have a Write chunk--> message
//!     version 1, message fits the Reply chunk      in the Reply chunk, RDMA_NOMSG
//!     message fits behind its header               inline, RDMA_MSG
//!     version 2, message fits the Reply chunk      in the Reply chunk, RDMA2_NOMSG
//!     version 2, message fits the client's Receive inline, from a larger buffer
//!     otherwise                                    RDMA_ERROR, ERR_CHUNK
//! ```
//!
//! One chain with one completion has the RDMA Writes and the Send after them, because a device
//! executes a Send after the Writes that were posted before it. The completion releases the pages
//! of the reply; it wakes no service thread.
//!
//! # Copying
//!
//! The inline part is copied behind the header. It fits one Receive of the client. Copying it costs
//! less than mapping its page, allocating another page for the thread, and freeing the page later.

use super::{
    call::CallState,
    endpoint::{
        ChainCtx,
        Conn,
        Endpoint,
        SendCtx, //
    },
    fast_path::append,
    payloads::Payloads,
    tunables::STAT_WRITE, //
};
use crate::{
    kapi::{
        ext::atomic::Relaxed,
        rdma::{
            qp::Qp,
            rw::{
                Transfer,
                TransferDir, //
            }, //
        },
        sunrpc::{
            errno::enotconn,
            svc_reply::{
                Reply,
                ReplyMap,
                Taken, //
            },
            svc_rqst::CallRef, //
        },
        trace::{
            trace_svcrdma_err_chunk,
            trace_svcrdma_err_vers, //
        }, //
    },
    xdr::{
        chunk::{
            Lists,
            WriteChunk, //
        },
        encode::{
            encode_error,
            encode_reply, //
        },
        error::{
            EncodeError,
            ErrorBody,
            ErrorResponse, //
        },
        header::Header,
        message::Parsed,
        plan::{
            choose_response,
            ResponseMode, //
        },
        units::{
            len_to_u32,
            u32_to_usize,
            Credits,
            Handle,
            InlineSize, //
        },
        version::Version, //
    }, //
};
use core::ops::Range;
use kernel::prelude::*;

/// A reply that is being encoded.
struct Outgoing<'a> {
    call: &'a Parsed,
    lists: Lists<'a>,
    payloads: &'a Payloads,
    /// The handle that the reply invalidates.
    invalidate: Option<Handle>,
    /// Octets of the whole reply, payloads included.
    total: u32,
    /// Octets of the message: the reply without the payloads.
    message: u32,
}

impl Outgoing<'_> {
    /// Returns the smallest part of the reply that contains all octets for RDMA Writes, if there
    /// are any.
    fn placed(&self, reply_chunk: bool) -> Option<Range<usize>> {
        let part = if reply_chunk {
            0..self.total
        } else {
            self.payloads.span()?
        };
        Some(u32_to_usize(part.start)..u32_to_usize(part.end))
    }

    /// Adds the RDMA Writes of the payloads, and of the message if it is sent in `reply_chunk`.
    fn map(
        &self,
        qp: &Qp<Endpoint>,
        transfer: &mut Transfer,
        map: &ReplyMap,
        reply_chunk: Option<WriteChunk<'_>>,
    ) -> Result {
        for (chunk, payload) in self.lists.write.iter().zip(self.payloads.all()) {
            let from = payload.offset..payload.offset.saturating_add(payload.length);
            write(qp, transfer, map, from, &chunk, 0)?;
        }
        if let Some(chunk) = reply_chunk {
            let mut skip = 0;
            for region in self.payloads.regions(self.total) {
                let len = region.end - region.start;
                write(qp, transfer, map, region, &chunk, skip)?;
                skip += len;
            }
        }
        Ok(())
    }
}

/// Adds RDMA Writes of the octets `from` of the reply to the octets of `chunk` after `skip`.
fn write(
    qp: &Qp<Endpoint>,
    transfer: &mut Transfer,
    map: &ReplyMap,
    from: Range<u32>,
    chunk: &WriteChunk<'_>,
    skip: u32,
) -> Result {
    let mut at = u32_to_usize(from.start);
    for segment in chunk.range(skip, from.end.saturating_sub(from.start)) {
        let end = at + u32_to_usize(segment.length);
        let octets = map.octets(at..end);
        transfer.add_parts(qp, TransferDir::Write, octets, segment.into())?;
        qp.handler().count_write(segment.length);
        at = end;
    }
    if at == u32_to_usize(from.end) {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

impl Endpoint {
    /// Counts an RDMA Write of `octets` octets.
    #[inline]
    pub(super) fn count_write(&self, octets: u32) {
        STAT_WRITE.inc();
        self.params.status.traffic.written.add(u32_to_usize(octets));
    }
}

impl Conn {
    /// Returns the credits that each reply grants.
    pub(super) fn credits(&self) -> Credits {
        Credits(self.ep().granted.load(Relaxed))
    }

    /// Sends the reply to a Call, or an error report instead.
    ///
    /// # Errors
    ///
    /// The connection must be closed.
    #[inline(always)]
    pub(super) fn send_reply(&self, reply: &mut Reply<'_>, call: CallRef<'_, CallState>) -> Result {
        if self.ep().is_closing() {
            return Err(enotconn());
        }
        let total = len_to_u32(reply.message().total()).ok_or(EINVAL)?;
        let send = self.ep().negotiation.send(self.ep().params.receive_size);
        match self.send_fast(reply, &call, total, send) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => self.report_unsent(&call, error),
            None => self.send_slow(reply, call, total, send),
        }
    }

    /// Sends an error report instead of a reply that was not sent because of `error`.
    ///
    /// # Errors
    ///
    /// The connection must be closed.
    #[cold]
    fn report_unsent(&self, call: &CallRef<'_, CallState>, error: Error) -> Result {
        match (error, &call.state.call) {
            // `EINVAL`: the form of the service's reply is not supported. Closing the connection
            // would make the client retransmit the Call forever.
            (E2BIG | EINVAL, Some(received)) => {
                self.send_error(&received.header, ErrorBody::System)
            }
            _ => Err(error),
        }
    }

    /// Implements `send_reply` for a reply of `total` octets in any form.
    #[inline(never)]
    fn send_slow(
        &self,
        reply: &mut Reply<'_>,
        mut call: CallRef<'_, CallState>,
        total: u32,
        send: InlineSize,
    ) -> Result {
        match self.send_any(reply, &mut call, total, send) {
            Err(error) => self.report_unsent(&call, error),
            sent => sent,
        }
    }

    /// Sends a reply of `total` octets in any form, or an error report if the client has not
    /// offered room for it.
    ///
    /// # Errors
    ///
    /// Those of `send_out`.
    fn send_any(
        &self,
        reply: &mut Reply<'_>,
        call: &mut CallRef<'_, CallState>,
        total: u32,
        send: InlineSize,
    ) -> Result {
        let CallState {
            call: received,
            invalidate,
            payloads,
            ..
        } = &mut *call.state;
        let received = received.as_ref().ok_or(EINVAL)?;
        let lists = received.lists(call.bytes);
        let rooms = lists.write.iter().map(|chunk| chunk.room());
        if let Err(report) = payloads.assign(total, rooms) {
            return self.send_error(&received.header, report);
        }
        payloads.locate(|at| {
            let mut word = [0; 4];
            let at = u32_to_usize(at);
            let copied = reply.message().copy_to(at..at.saturating_add(4), &mut word);
            (copied == word.len()).then(|| u32::from_be_bytes(word))
        });
        let message = payloads.finalize(total);
        let header_len = lists.reply_header_len(received.version);
        // Linux clients before 4.14 consider an inline reply malformed if it has a Reply chunk.
        let chunk_first = received.version == Version::One;
        let reply_chunk = lists.reply.as_ref();
        let response = choose_response(send, header_len, message, reply_chunk, chunk_first);
        let out = Outgoing {
            call: received,
            lists,
            payloads,
            invalidate: *invalidate,
            total,
            message,
        };
        match response {
            // No Reply chunk helps if the client cannot receive the lists alone.
            ResponseMode::TooLarge if header_len > u32_to_usize(send.0) => {
                self.send_error(&received.header, ErrorBody::System)
            }
            ResponseMode::TooLarge => match self.long_ctx(header_len, message) {
                Some(ctx) => self.send_ctx(ctx, out.invalidate, |ctx| {
                    self.fill_out(ctx, reply, &out, None)
                }),
                None => {
                    let needed = message;
                    let report = ErrorBody::ReplyResource { needed };
                    self.send_error(&received.header, report)
                }
            },
            ResponseMode::Inline => self.send_out(reply, &out, None),
            ResponseMode::ReplyChunk => self.send_out(reply, &out, lists.reply),
        }
    }

    /// Sends the reply that `out` describes, its message inline or in `reply_chunk`.
    ///
    /// # Errors
    ///
    /// `E2BIG` if the reply needs more RDMA Writes than the Send Queue has entries; `EINVAL` if its
    /// form is not supported. After any other error the connection must be closed.
    fn send_out(
        &self,
        reply: &mut Reply<'_>,
        out: &Outgoing<'_>,
        reply_chunk: Option<WriteChunk<'_>>,
    ) -> Result {
        self.send_filled(out.invalidate, |ctx| {
            self.fill_out(ctx, reply, out, reply_chunk)
        })
    }

    /// Returns a context for a reply of `message` octets behind a header of `header` octets, which
    /// is longer than the buffers of the connection. Returns `None` if the client cannot receive
    /// it, or memory is short. A client without access may not make the server allocate such a
    /// buffer.
    #[cold]
    fn long_ctx(&self, header: usize, message: u32) -> Option<Pin<KBox<SendCtx>>> {
        let ep = self.ep();
        if !ep.negotiation.may_send(header, message) || !ep.handle.has_access() {
            return None;
        }
        let len = header.saturating_add(u32_to_usize(message));
        // Shorter ones are cached for other messages.
        SendCtx::new(self.qp(), len.max(ep.params.receive_size)).ok()
    }

    /// Sends the reply that `fill` writes to a context. `fill` returns the length of the message.
    ///
    /// # Errors
    ///
    /// Those of `fill`. After any other error the connection must be closed.
    #[inline(always)]
    pub(super) fn send_filled(
        &self,
        invalidate: Option<Handle>,
        fill: impl FnOnce(Pin<&mut SendCtx>) -> Result<usize>,
    ) -> Result {
        let ctx = match self.ep().cached_send_ctx() {
            Some(ctx) => ctx,
            None => self.new_send_ctx()?,
        };
        self.send_ctx(ctx, invalidate, fill)
    }

    /// Sends the reply that `fill` writes to `ctx`, as [`Self::send_filled`] does.
    ///
    /// # Errors
    ///
    /// Those of `send_filled`.
    #[inline(always)]
    fn send_ctx(
        &self,
        mut ctx: Pin<KBox<SendCtx>>,
        invalidate: Option<Handle>,
        fill: impl FnOnce(Pin<&mut SendCtx>) -> Result<usize>,
    ) -> Result {
        match fill(ctx.as_mut()) {
            Ok(len) => {
                self.post_send(ctx, len, invalidate)?;
                self.ep().events.note_answered();
                Ok(())
            }
            Err(e) => {
                self.ep().put_send_ctx(ctx);
                Err(e)
            }
        }
    }

    /// Allocates a context. Waits for memory, for up to 30 s.
    #[cold]
    fn new_send_ctx(&self) -> Result<Pin<KBox<SendCtx>>> {
        self.trim_later();
        self.ep()
            .retry_while_short(|| self.ep().get_send_ctx(self.qp()))
    }

    /// Writes the header and the inline part, and maps the rest. Returns the length of the message.
    #[inline(always)]
    fn fill_out(
        &self,
        mut ctx: Pin<&mut SendCtx>,
        reply: &mut Reply<'_>,
        out: &Outgoing<'_>,
        reply_chunk: Option<WriteChunk<'_>>,
    ) -> Result<usize> {
        let buffer = ctx.as_mut().buffer();
        let mut len = encode_reply(
            buffer,
            out.call,
            self.credits(),
            &out.lists,
            out.payloads.all().iter().map(|payload| payload.length),
            reply_chunk.map(|_| out.message),
        )
        .map_err(|_| EINVAL)?;
        if reply_chunk.is_none() {
            for region in out.payloads.regions(out.total) {
                len = append(reply, region, buffer, len)?;
            }
        }
        let Some(part) = out.placed(reply_chunk.is_some()) else {
            return Ok(len);
        };
        let pages = ctx.as_mut().project().transfer.unmap();
        let Taken { map, own } = self
            .ep()
            .retry_while_short(|| reply.take_pages(pages, part.clone()))?;
        self.map_taken(ctx, reply, own, reply_chunk.is_some(), |transfer| {
            out.map(self.qp(), transfer, &map, reply_chunk)
        })?;
        Ok(len)
    }

    /// Calls `map` to map the pages that were taken from the reply into the context, and replaces
    /// those that were the thread's own. Waits for memory.
    ///
    /// # Errors
    ///
    /// `E2BIG` if the reply needs more RDMA Writes than the Send Queue has entries; errors of
    /// `map`.
    #[inline(always)]
    pub(super) fn map_taken(
        &self,
        ctx: Pin<&mut SendCtx>,
        reply: &mut Reply<'_>,
        own: bool,
        reply_chunk: bool,
        map: impl FnMut(&mut Transfer) -> Result,
    ) -> Result {
        let fields = ctx.project();
        *fields.reply_chunk = reply_chunk;
        *fields.own_pages = own;
        if reply.lacks_pages() {
            self.ep()
                .pages
                .lock()
                .with_spare(|spare| reply.refill(spare));
        }
        self.ep().map_with_retries(fields.transfer, map)?;
        if fields.transfer.sqes() >= self.ep().sq.depth() {
            Err(E2BIG)
        } else {
            Ok(())
        }
    }

    /// Posts the RDMA Writes of `ctx` and a Send of the first `len` octets of its buffer, at once
    /// or when there is room in the Send Queue.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`, and errors of posting.
    #[inline(never)]
    fn post_send(
        &self,
        mut ctx: Pin<KBox<SendCtx>>,
        len: usize,
        invalidate: Option<Handle>,
    ) -> Result {
        if let Err(error) = ctx.as_mut().set_message(len, invalidate) {
            self.ep().put_send_ctx(ctx);
            return Err(error);
        }
        let own = *ctx.as_mut().project().own_pages;
        self.ep().submit(self.qp(), ChainCtx::Reply(ctx))?;
        if own {
            // The chain returns the pages as spare pages. Start the timer only now: it stops when
            // it finds none.
            self.trim_later();
        }
        self.ep().params.status.traffic.note_sent(len);
        Ok(())
    }

    /// Sends the response to a message that could not be used. The connection stays open.
    pub(super) fn send_refusal(&self, header: &Header, response: ErrorResponse) {
        let body = match response {
            ErrorResponse::Drop => return,
            ErrorResponse::Report(body) => body,
        };
        if self.send_error(header, body).is_err() {
            self.ep().fail();
        }
    }

    /// Sends an error report about the message that had `header`. Invalidates nothing.
    fn send_error(&self, header: &Header, body: ErrorBody) -> Result {
        match body {
            ErrorBody::Version { .. } => trace_svcrdma_err_vers(header.xid.0),
            _ => trace_svcrdma_err_chunk(header.xid.0),
        }
        let credits = self.credits();
        self.send_message(|buffer| encode_error(buffer, header, credits, body))?;
        self.ep().events.note_answered();
        Ok(())
    }

    /// Sends the message that `write` writes. It is no reply, and invalidates nothing.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it cannot be written; otherwise the connection must be closed.
    pub(super) fn send_message(
        &self,
        write: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>,
    ) -> Result {
        self.submit_message(write, Endpoint::submit)
    }

    /// Passes the message that `write` writes to `submit`, as [`Self::send_message`] does.
    ///
    /// # Errors
    ///
    /// Those of `send_message` and of `submit`.
    pub(super) fn submit_message(
        &self,
        write: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>,
        submit: impl FnOnce(&Endpoint, &Qp<Endpoint>, ChainCtx) -> Result,
    ) -> Result {
        let ep = self.ep();
        let mut ctx = ep.retry_while_short(|| ep.get_send_ctx(self.qp()))?;
        let written = write(ctx.as_mut().buffer()).map_err(|_| EINVAL);
        match written.and_then(|len| ctx.as_mut().set_message(len, None).map(|()| len)) {
            Ok(len) => {
                submit(ep, self.qp(), ChainCtx::Reply(ctx))?;
                ep.params.status.traffic.note_sent(len);
                Ok(())
            }
            Err(error) => {
                ep.put_send_ctx(ctx);
                Err(error)
            }
        }
    }
}
