// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A fast path for Replies of the most common forms (RFC 8166, sections 3.5 and 4.3): inline to a
//! Call without Write chunks and Reply chunk, and with one payload to a Call whose only chunk is a
//! Write chunk of one segment.
//!
//! [`super::send`] sends Replies of any form.

use super::{
    call::CallState,
    endpoint::{
        Conn,
        SendCtx, //
    },
    payloads::Payload, //
};
use crate::{
    kapi::{
        rdma::rw::TransferDir,
        sunrpc::{
            svc_reply::{
                HeldPart,
                Reply, //
            },
            svc_rqst::CallRef, //
        }, //
    },
    xdr::{
        fast_reply::{
            encode_no_chunk,
            encode_sole_write,
            no_chunk_len,
            sole_write_len, //
        },
        message::Parsed,
        plan::fits,
        segment::Segment,
        units::{
            u32_to_usize,
            InlineSize, //
        }, //
    },
};
use core::ops::Range;
use kernel::prelude::*;

/// The only payload of a reply, and its location.
struct Placed {
    payload: Payload,
    /// The offset of the reply after the payload and its roundup.
    end: u32,
    /// The part of the segment that the payload is written to.
    segment: Segment,
    /// The location of the payload in the pages.
    part: HeldPart,
}

/// Copies the octets `region` of the reply to `buffer`, at `at`. Returns the offset after them.
#[inline]
pub(super) fn append(
    reply: &Reply<'_>,
    region: Range<u32>,
    buffer: &mut [u8],
    at: usize,
) -> Result<usize> {
    let region = u32_to_usize(region.start)..u32_to_usize(region.end);
    let len = region.len();
    let room = buffer.get_mut(at..).ok_or(EINVAL)?;
    if reply.message().copy_to(region, room) == len {
        Ok(at + len)
    } else {
        Err(EINVAL)
    }
}

impl Conn {
    /// Sends a reply of `total` octets to `call` if it has one of the most common forms, in a
    /// message of at most `send` octets. Returns `None` otherwise.
    ///
    /// # Errors
    ///
    /// Those of `send_out`.
    #[inline(always)]
    pub(super) fn send_fast(
        &self,
        reply: &mut Reply<'_>,
        call: &CallRef<'_, CallState>,
        total: u32,
        send: InlineSize,
    ) -> Option<Result> {
        let state = &*call.state;
        let received = state.call.as_ref()?;
        if received.has_no_results() {
            if !fits(send, no_chunk_len(received.version), u32_to_usize(total)) {
                return None;
            }
            return Some(self.send_filled(state.invalidate, |ctx| {
                let buffer = ctx.buffer();
                let at = encode_no_chunk(buffer, received, self.credits()).map_err(|_| EINVAL)?;
                append(reply, 0..total, buffer, at)
            }));
        }
        let segment = received.sole_write(call.bytes)?;
        let (payload, end) = state.payloads.sole(total)?;
        let message = total.checked_sub(end.checked_sub(payload.offset)?)?;
        let header = sole_write_len(received.version);
        if payload.length > segment.length || !fits(send, header, u32_to_usize(message)) {
            return None;
        }
        let start = u32_to_usize(payload.offset);
        let placed = Placed {
            payload,
            end,
            segment: segment.with_length(payload.length),
            part: reply.locate_held(start..start + u32_to_usize(payload.length))?,
        };
        Some(self.send_filled(state.invalidate, |ctx| {
            self.fill_placed(ctx, reply, received, &placed, total)
        }))
    }

    /// Writes the header and the inline part, and maps the payload. Returns the length of the
    /// message.
    #[inline(always)]
    fn fill_placed(
        &self,
        mut ctx: Pin<&mut SendCtx>,
        reply: &mut Reply<'_>,
        received: &Parsed,
        placed: &Placed,
        total: u32,
    ) -> Result<usize> {
        let Placed {
            payload,
            end,
            segment,
            part,
        } = placed;
        let buffer = ctx.as_mut().buffer();
        let at =
            encode_sole_write(buffer, received, self.credits(), *segment).map_err(|_| EINVAL)?;
        let mut len = append(reply, 0..payload.offset, buffer, at)?;
        if *end != total {
            len = append(reply, *end..total, buffer, len)?;
        }
        let pages = ctx.as_mut().project().transfer.unmap();
        let own = reply.take_held_part(pages, part);
        self.map_taken(ctx, reply, own, false, |transfer| {
            let octets = part.octets();
            transfer.add(self.qp(), TransferDir::Write, octets, (*segment).into())
        })?;
        self.ep().count_write(payload.length);
        Ok(len)
    }
}
