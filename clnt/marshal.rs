// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Marshalling of Calls: transfer modes, header and Send (RFC 8166, sections 3.5 and 4.3).
//!
//! `xdr::plan` chooses the modes. This module maps the memory and writes the header. It posts
//! nothing, and needs no connection.

use core::pin::Pin;

use kernel::prelude::*;

use super::{
    chunks::{
        segment,
        ChunkKind,
        Chunks, //
    },
    sendctx::SendCtx,
    stats::Sending, //
};
use crate::{
    kapi::{
        ext::scratch::ScratchPage,
        rdma::mr::{
            Mr,
            MrList, //
        },
        sunrpc::{
            ops::XprtOps,
            rqst::Slot,
            send_lock::SendLocked,
            xdr_buf::{
                XdrBuf,
                XdrParts, //
            }, //
        },
        trace::{
            trace_xprtrdma_chunk_read,
            trace_xprtrdma_chunk_reply,
            trace_xprtrdma_chunk_write,
            trace_xprtrdma_marshal,
            Lazy,
            Task,
            TransferMode, //
        },
    },
    xdr::{
        encode::{
            encode_error,
            encode_one,
            encode_plain,
            Encoder,
            HeaderPrefix,
            SoleSegment, //
        },
        error::{
            EncodeError,
            ErrorBody, //
        },
        header::{
            Header,
            Proc, //
        },
        message::Direction,
        plan::{
            choose,
            is_plain,
            is_plain_read,
            CallMode,
            CallShape,
            ReplyMode,
            ReplyShape,
            Thresholds, //
        },
        segment::ReadSegment,
        units::{
            len_to_u32,
            Credits,
            Handle,
            Position,
            Xid,
            WORD, //
        },
        version::Version, //
    },
};

/// The room for a Reply that may be longer than the caller's memory for it: the largest extended
/// attribute, 64 KiB, and the XDR around it.
const MAX_OPEN_ENDED: usize = 68 << 10;

/// A Call up to this length is copied into one buffer. The pages of a longer one are sent in place.
const COPY_LIMIT: u32 = 2048;

/// The parameters for marshalling a Call.
pub(super) struct Marshal<'a> {
    /// The credits to request.
    pub(super) credits: u32,
    /// The page to which the server writes the part of a Reply that exceeds the caller's memory.
    pub(super) scratch: &'a ScratchPage,
    /// The counters of the transport.
    pub(super) stats: &'a Sending,
}

/// The transfer modes of a Call and its Reply.
pub(super) struct Plan {
    version: Version,
    call: CallMode,
    reply: ReplyMode,
    /// The largest number of segments of a chunk.
    segments: u32,
    /// Bytes that the chunk of the Reply offers in addition to the caller's memory.
    scratch: usize,
    /// The largest number of regions that the plan needs.
    pub(super) regions: usize,
}

/// Chooses the transfer modes of the Call in `slot` and of its Reply. `pages_per_segment` is the
/// length of a region in pages; `expects_roundup` is whether a Write chunk needs room for the
/// roundup of its payload.
///
/// # Errors
///
/// `ENOBUFS` if no pages for the Reply are available.
pub(super) fn plan<T: XprtOps>(
    xprt: &SendLocked<'_, T>,
    mut thresholds: Thresholds,
    pages_per_segment: u32,
    expects_roundup: impl FnOnce() -> bool,
    slot: &Slot<T>,
) -> Result<Plan> {
    // Pages have no gaps between them; head and tail take a region each at most.
    let each = pages_per_segment.max(1) as usize;
    if let Some(plan) = usual_plan(&thresholds, each, slot) {
        return Ok(plan);
    }
    let (call, reply) = (slot.call(), slot.reply_buf());
    if reply.is_sparse() {
        slot.fill_reply_buf(xprt)?;
    }
    let open_ended = is_open_ended(reply);
    let roundup = reply.is_read() && reply.page_len() % WORD != 0 && expects_roundup();
    // One region for the scratch page.
    thresholds.segments += u32::from(open_ended || roundup);
    let (call_mode, reply_mode) = choose(
        &thresholds,
        &call_shape(call),
        &reply_shape(reply, open_ended),
        slot.placement_allowed(),
    );
    let pages = |buf: &XdrParts| page_regions(buf, each);
    let whole = |buf: &XdrParts| pages(buf) + edge(buf.head_len()) + edge(buf.tail_len());
    let for_call = match call_mode {
        CallMode::Copy | CallMode::Gather => 0,
        CallMode::ReadChunk { .. } => pages(call),
        CallMode::PositionZero => whole(call),
    };
    let (for_reply, scratch) = match reply_mode {
        ReplyMode::Inline => (0, 0),
        ReplyMode::WriteChunk => (pages(reply), if roundup { WORD } else { 0 }),
        ReplyMode::ReplyChunk if open_ended => (whole(reply), MAX_OPEN_ENDED - reply.total()),
        ReplyMode::ReplyChunk => (whole(reply), 0),
    };
    let for_reply = for_reply + usize::from(scratch != 0);
    let max = thresholds.segments as usize;
    Ok(Plan {
        version: thresholds.version,
        call: call_mode,
        reply: reply_mode,
        segments: thresholds.segments,
        scratch,
        regions: for_call.min(max) + for_reply.min(max),
    })
}

/// Returns the plan that [`plan`] makes for a Call without pages, if its Reply has no pages and
/// fits inline, or has the payload of a READ that does not fit inline. Returns `None` for any other
/// Call, and for a payload that may need room for roundup.
#[inline(always)]
fn usual_plan<T: XprtOps>(limits: &Thresholds, each: usize, slot: &Slot<T>) -> Option<Plan> {
    let (call, reply) = (slot.call(), slot.reply_buf());
    if call.page_len() != 0 {
        return None;
    }
    let edges = |buf: &XdrParts| buf.head_len().saturating_add(buf.tail_len());
    let (sent, back) = (edges(call), edges(reply));
    let (mode, regions) = match reply.page_len() {
        0 if is_plain(limits, sent, COPY_LIMIT, back) => (ReplyMode::Inline, 0),
        pages
            if reply.is_read()
                && !reply.is_sparse()
                && pages % WORD == 0
                && is_plain_read(limits, sent, COPY_LIMIT, back, pages)
                && slot.placement_allowed() =>
        {
            let regions = page_regions(reply, each).min(limits.segments as usize);
            (ReplyMode::WriteChunk, regions)
        }
        _ => return None,
    };
    Some(Plan {
        version: limits.version,
        call: CallMode::Copy,
        reply: mode,
        segments: limits.segments,
        scratch: 0,
        regions,
    })
}

/// Returns the number of regions of `each` pages for the pages of a message.
fn page_regions(buf: &XdrParts, each: usize) -> usize {
    match buf.page_count() {
        // The usual case, without a division.
        count if count <= each => count.min(1),
        count => count.div_ceil(each),
    }
}

/// Returns the number of regions for a head or a tail of `len` bytes.
fn edge(len: usize) -> usize {
    len.div_ceil(kernel::page::PAGE_SIZE).min(1)
}

/// Prepares a Call for posting: maps its memory, writes the header, and copies the inline part.
///
/// `chunks` must be empty, and `regions` must have as many regions as the plan needs. Regions that
/// are not used stay there. Returns the length of the message in octets.
///
/// # Errors
///
/// `ENOMEM` if memory is short or the IOMMU has no room. After any other error the Call cannot be
/// sent at all. In both cases `chunks` may contain regions, which the caller recycles.
pub(super) fn marshal<T: XprtOps>(
    with: &Marshal<'_>,
    plan: &Plan,
    slot: &Slot<T>,
    regions: &mut MrList,
    chunks: &mut Chunks,
    mut ctx: Pin<&mut SendCtx>,
) -> Result<usize> {
    map(with, plan, slot, regions, chunks)?;
    let header = encode(
        ctx.as_mut().body(),
        slot,
        plan.version,
        with.credits,
        plan.call,
        chunks,
    )?;
    trace(slot, plan.call, plan.reply, header);
    build_message(with.stats, slot.call(), plan.call, header, ctx)
}

/// Traces a Call whose transport header has `header` octets.
fn trace<T: XprtOps>(slot: &Slot<T>, call_mode: CallMode, reply_mode: ReplyMode, header: usize) {
    let (task, call) = (Task::of(slot), slot.call());
    let arguments = Lazy(|| match call_mode {
        CallMode::Copy if call.page_len() == 0 => TransferMode::Inline,
        CallMode::Copy => TransferMode::PullUp,
        CallMode::Gather => TransferMode::Mapped,
        CallMode::ReadChunk { .. } => TransferMode::ReadList,
        CallMode::PositionZero => TransferMode::PositionZero,
    });
    let results = Lazy(|| match reply_mode {
        ReplyMode::Inline => TransferMode::Inline,
        ReplyMode::WriteChunk => TransferMode::WriteList,
        ReplyMode::ReplyChunk => TransferMode::ReplyChunk,
    });
    trace_xprtrdma_marshal(
        task,
        slot.xid(),
        header,
        call.head_len(),
        call.page_len(),
        call.tail_len(),
        arguments,
        results,
    );
}

/// Returns the lengths of the parts of a Call, from which its transfer mode is chosen.
fn call_shape(call: &XdrBuf) -> CallShape {
    CallShape {
        head: len32(call.head_len()),
        pages: len32(call.page_len()),
        page_offset: len32(call.page_base() % kernel::page::PAGE_SIZE),
        tail: len32(call.tail_len()),
        pages_eligible: call.is_write(),
        copy_room: COPY_LIMIT,
    }
}

/// Returns the maximum lengths of the parts of a Reply, from which its transfer mode is chosen.
/// `open_ended` is whether the Reply may be longer than that, see [`is_open_ended`].
fn reply_shape(reply: &XdrParts, open_ended: bool) -> ReplyShape {
    ReplyShape {
        head: len32(reply.head_len()),
        pages: len32(reply.page_len()),
        tail: len32(reply.tail_len()),
        pages_eligible: reply.is_read(),
        open_ended,
    }
}

/// Returns whether a Reply may be longer than the memory for it: its page part is not the payload
/// of a READ, whose length the Call limits, and it is shorter than the longest other result.
///
/// A server sends an extended attribute or an ACL completely, however short the caller's buffer is.
/// Over TCP the excess is dropped, and the caller gets an error that says so. Over RDMA a server
/// that finds too little room sends ERR_CHUNK, which the caller sees as EIO. So the client offers
/// such a Reply more room than the caller has.
fn is_open_ended(reply: &XdrParts) -> bool {
    reply.page_len() != 0 && !reply.is_read() && reply.total() < MAX_OPEN_ENDED
}

/// Returns `len` for the choice of the mode; `u32::MAX`, which no message has, if it is longer.
fn len32(len: usize) -> u32 {
    len_to_u32(len).unwrap_or(u32::MAX)
}

/// Maps the parts that are not sent inline into chunks, and counts them.
fn map<T: XprtOps>(
    with: &Marshal<'_>,
    plan: &Plan,
    slot: &Slot<T>,
    regions: &mut MrList,
    chunks: &mut Chunks,
) -> Result {
    let (call, reply, tag) = (slot.call(), slot.reply_buf(), slot.xid());
    let (max, stats) = (plan.segments, with.stats);
    let (count, _) = match plan.call {
        CallMode::Copy | CallMode::Gather => (0, 0),
        CallMode::ReadChunk { .. } => {
            let segs = slot.lend_call_pages();
            chunks.map(ChunkKind::Read, segs, tag, max, regions)?
        }
        CallMode::PositionZero => {
            let segs = slot.lend_call(0..call.total());
            let mapped = chunks.map(ChunkKind::Read, segs, tag, max, regions)?;
            stats.nomsg_calls.add(1);
            mapped
        }
    };
    stats.read_segments.add(count);
    let (kind, segments, (count, bytes)) = match plan.reply {
        ReplyMode::Inline => return Ok(()),
        ReplyMode::WriteChunk => {
            let segs = slot.lend_reply_pages();
            let mapped = chunks.map(ChunkKind::Write, segs, tag, max, regions)?;
            (ChunkKind::Write, &stats.write_segments, mapped)
        }
        ReplyMode::ReplyChunk => {
            let segs = slot.lend_reply_buf(0..reply.total());
            let mapped = chunks.map(ChunkKind::Reply, segs, tag, max, regions)?;
            (ChunkKind::Reply, &stats.reply_segments, mapped)
        }
    };
    segments.add(count);
    stats.offered_bytes.add(bytes);
    if plan.scratch != 0 {
        let scratch = with.scratch.segs(plan.scratch);
        let (count, bytes) = chunks.map(kind, scratch, tag, max, regions)?;
        segments.add(count);
        stats.offered_bytes.add(bytes);
    }
    Ok(())
}

/// Writes the transport header to the front of `body`, and returns its length.
fn encode<T: XprtOps>(
    body: &mut [u8],
    slot: &Slot<T>,
    version: Version,
    credits: u32,
    call_mode: CallMode,
    chunks: &Chunks,
) -> Result<usize> {
    let (proc, position) = match call_mode {
        CallMode::Copy | CallMode::Gather => (Proc::Msg, Position::ZERO),
        CallMode::ReadChunk { position, .. } => (Proc::Msg, position),
        CallMode::PositionZero => (Proc::NoMsg, Position::ZERO),
    };
    let prefix = HeaderPrefix {
        version,
        xid: Xid(slot.xid()),
        credits: Credits(credits),
        proc,
        direction: Direction::Call,
        invalidate: match version {
            Version::One => None,
            Version::Two => first_handle(chunks),
        },
    };
    encode_lists(body, &prefix, Task::of(slot), position, chunks).map_err(|_| EMSGSIZE)
}

/// Returns the handle that the Reply should invalidate, which is that of the first region. If there
/// is only one region, which is the usual case, no local invalidation is needed. Zero means no
/// handle.
fn first_handle(chunks: &Chunks) -> Option<Handle> {
    let first = chunks.first().map(segment)?;
    Some(first.handle).filter(|handle| handle.0 != 0)
}

/// Writes the header of a Call, with its lists, and traces its segments. Returns the length of the
/// header.
fn encode_lists(
    body: &mut [u8],
    prefix: &HeaderPrefix,
    task: Task<'_>,
    position: Position,
    chunks: &Chunks,
) -> Result<usize, EncodeError> {
    let read = |mr: &Mr| {
        trace_xprtrdma_chunk_read(task, position.0, mr);
        let segment = segment(mr);
        ReadSegment { position, segment }
    };
    let write = |mr: &Mr| {
        trace_xprtrdma_chunk_write(task, mr);
        segment(mr)
    };
    let reply = |mr: &Mr| {
        trace_xprtrdma_chunk_reply(task, mr);
        segment(mr)
    };
    // The usual Call has one region at most.
    if chunks.count() == 0 {
        return encode_plain(body, prefix);
    }
    if let Some((kind, mr)) = chunks.only() {
        let sole = match kind {
            ChunkKind::Read => SoleSegment::Read(read(mr)),
            ChunkKind::Write => SoleSegment::Write(write(mr)),
            ChunkKind::Reply => SoleSegment::Reply(reply(mr)),
        };
        return encode_one(body, prefix, sole);
    }
    let mut reads = Encoder::new(body, prefix)?;
    for mr in chunks.regions(ChunkKind::Read) {
        reads.read_segment(read(mr))?;
    }
    let mut writes = reads.end_reads()?;
    if chunks.len(ChunkKind::Write) != 0 {
        writes.write_chunk(chunks.regions(ChunkKind::Write).map(write))?;
    }
    let end = writes.end_writes()?;
    if chunks.len(ChunkKind::Reply) == 0 {
        return end.no_reply_chunk();
    }
    end.reply_chunk(chunks.regions(ChunkKind::Reply).map(reply))
}

/// Does what [`build_message`] does, for the usual Call: one whose inline part is its head.
#[inline(always)]
fn build_head(call: &XdrBuf, header: usize, ctx: Pin<&mut SendCtx>) -> Result<usize> {
    let end = header.checked_add(call.head_len()).ok_or(EMSGSIZE)?;
    let message = ctx.message_mut();
    let room = message.body_mut().get_mut(header..end).ok_or(EMSGSIZE)?;
    call.copy_head_to(room);
    message.set_len(end)?;
    Ok(end)
}

/// Copies the inline part of the Call behind the header, or adds its pages to the Send. Returns the
/// length of the message in octets.
fn build_message(
    stats: &Sending,
    call: &XdrBuf,
    call_mode: CallMode,
    header: usize,
    mut ctx: Pin<&mut SendCtx>,
) -> Result<usize> {
    let is_head_alone = match call_mode {
        CallMode::Copy => call.page_len() | call.tail_len() == 0,
        CallMode::ReadChunk { tail_skip, .. } => call.tail_len() == tail_skip as usize,
        CallMode::Gather | CallMode::PositionZero => false,
    };
    if is_head_alone {
        return build_head(call, header, ctx);
    }
    let tail = call.tail_range();
    let rest = match call_mode {
        CallMode::Copy => {
            stats.pullup_bytes.add(call.page_len() + call.tail_len());
            call.head_len()..tail.end
        }
        CallMode::Gather => tail,
        // `choose` requires that the tail begins with the pad.
        CallMode::ReadChunk { tail_skip, .. } => tail.start + tail_skip as usize..tail.end,
        CallMode::PositionZero => {
            ctx.message_mut().add_part(0..header)?;
            return Ok(header);
        }
    };
    let room = ctx.as_mut().body().get_mut(header..).ok_or(EMSGSIZE)?;
    let (head_len, rest_len) = (call.head_len(), rest.len());
    let Some((lead, room)) = room.split_at_mut_checked(head_len) else {
        return Err(EMSGSIZE);
    };
    call.copy_head_to(lead);
    if rest_len != 0 {
        let trail = room.get_mut(..rest_len).ok_or(EMSGSIZE)?;
        if call.copy_to(rest, trail) != rest_len {
            return Err(EIO);
        }
    }
    let lead_end = header + head_len;
    let end = lead_end + rest_len;
    let message = ctx.as_mut().message_mut();
    if call_mode == CallMode::Gather && call.page_len() != 0 {
        message.add_part(0..lead_end)?;
        match message.add_pages(call.page_segs()) {
            Ok(()) => message.add_part(lead_end..end)?,
            // Pages without a reference count. A message that may be gathered fits the buffer.
            Err(EINVAL) => {
                message.clear();
                return build_message(stats, call, CallMode::Copy, header, ctx);
            }
            Err(error) => return Err(error),
        }
        return Ok(end + call.page_len());
    }
    message.add_part(0..end)?;
    Ok(end)
}

/// Writes a Reply of the reverse direction inline into `ctx`. If it is too long for that, writes an
/// error report instead. Returns the length of the message in octets.
///
/// # Errors
///
/// `EMSGSIZE` if the buffer has no room for either.
pub(super) fn marshal_bc_reply(
    ctx: Pin<&mut SendCtx>,
    xid: u32,
    credits: u32,
    limits: &Thresholds,
    reply: &XdrBuf,
) -> Result<usize> {
    let body = ctx.body();
    let prefix = HeaderPrefix {
        version: limits.version,
        xid: Xid(xid),
        credits: Credits(credits),
        proc: Proc::Msg,
        direction: Direction::Reply,
        invalidate: None,
    };
    let written = match write_reply(body, &prefix, limits, reply) {
        Some(len) => Ok(len),
        None => write_too_long(body, &prefix, reply),
    };
    written.map_err(|_| EMSGSIZE)
}

/// Writes `reply` behind its header. Returns the length of the message; `None` if it does not fit.
fn write_reply(
    body: &mut [u8],
    prefix: &HeaderPrefix,
    limits: &Thresholds,
    reply: &XdrBuf,
) -> Option<usize> {
    let header = encode_plain(body, prefix).ok()?;
    let len = reply.len().min(reply.total());
    let end = header.checked_add(len)?;
    let room = body.get_mut(header..end)?;
    let fits = end <= limits.send.0 as usize && reply.copy_to(0..len, room) == len;
    fits.then_some(end)
}

/// Writes an error report with this `prefix` instead of `reply`, which does not fit inline. Returns
/// its length.
fn write_too_long(
    body: &mut [u8],
    prefix: &HeaderPrefix,
    reply: &XdrBuf,
) -> Result<usize, EncodeError> {
    let call = Header {
        xid: prefix.xid,
        version: prefix.version.to_u32(),
        credits: prefix.credits,
        proc: prefix.proc.to_u32(),
    };
    let needed = len_to_u32(reply.len()).unwrap_or(u32::MAX);
    encode_error(
        body,
        &call,
        prefix.credits,
        ErrorBody::ReplyResource { needed },
    )
}

#[cfg(rpcrdma_kunit)]
mod kunit;
