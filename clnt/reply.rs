// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Received messages: Replies are matched with their request, fenced and completed (RFC 8166,
//! sections 4.3 to 4.5).
//!
//! ```text
//!   Receive ─decode─▶ Call of the reverse direction ──▶ backchannel
//!      │
//!      └─▶ XID known? ─no─▶ dropped
//!               │ pin
//!               ▼
//!          verdict: lists against what was offered
//!               │
//!               ▼
//!          regions all fenced by the server? ─no─▶ LOCAL_INV, then
//!               │                                    │
//!               ▼                                    ▼
//!          unmap, complete ◀────────────────── unmap, complete
//! ```
//!
//! A message that cannot be read is discarded, or fails the RPC that it names. A second Reply is
//! dropped. If LOCAL_INV fails, the connection is lost, and the request keeps its regions until
//! that is drained.

use core::ops::Range;

use kernel::prelude::*;

use super::{
    engine::Engine,
    frwr::{
        note_invalidated,
        segments,
        After,
        Chunks, //
    },
    xprt::ClntXprt, //
};
use crate::{
    kapi::{
        rdma::{
            mr::MrList,
            qp::Qp,
            recv::RecvBox, //
        },
        sunrpc::{
            rqst::Pinned,
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_err_chunk,
            trace_xprtrdma_err_unrecognized,
            trace_xprtrdma_err_vers,
            trace_xprtrdma_fixup,
            trace_xprtrdma_reply,
            trace_xprtrdma_reply_hdr_err,
            trace_xprtrdma_reply_rqst_err,
            trace_xprtrdma_reply_short_err,
            trace_xprtrdma_reply_vers_err,
            Peer,
            Task, //
        },
    },
    xdr::{
        chunk::ListLimits,
        error::{
            DecodeError,
            ErrorBody, //
        },
        message::{
            decode,
            Direction,
            Parsed,
            Rejected, //
        },
        reply::{
            check,
            Outcome, //
        },
        units::Credits,
        version::{
            Version,
            Versions, //
        }, //
    },
};

/// What is to become of an RPC.
enum Verdict {
    /// Its Reply is in the receive buffer at `message`, with `placed` bytes in the pages.
    Inline { message: Range<usize>, placed: u32 },
    /// Its Reply is where the Reply chunk was offered.
    Placed { len: u32 },
    /// It fails with `EIO`, whatever the server did: that is what the layers above know. Trace
    /// events tell more.
    Failed,
}

/// A Reply on its way to the RPC.
pub(super) struct Answer {
    rqst: Pinned<ClntXprt>,
    buffer: RecvBox<()>,
    verdict: Verdict,
}

/// The version that the server has to answer in.
const ACCEPTS: Versions = Versions::only(Version::One);

/// What the lists of a message may hold: more than a Reply to us ever has.
const LIMITS: ListLimits = ListLimits {
    segments: 64,
    read_octets: u32::MAX,
};

impl Engine {
    /// Takes in a message.
    pub(super) fn received(&self, xprt: &Xprt<ClntXprt>, qp: &Qp<Engine>, buffer: RecvBox<()>) {
        xprt.note_message();
        let (header, grant, may_be_call) = match decode(buffer.bytes(), &LIMITS, ACCEPTS) {
            Ok(message) if message.direction == Some(Direction::Call) => {
                let body = message.header_len..buffer.byte_len();
                let plain = message.has_no_chunks();
                return self.reverse_call(xprt, qp, &message.header, plain, body, buffer);
            }
            Ok(message) => (message.header, message.grant(), false),
            Err(rejected) => {
                trace_malformed(Peer::of(xprt), &rejected);
                match rejected.failed_rpc() {
                    Some(header) => (header, None, rejected.may_be_call()),
                    None => return self.put_receive(buffer),
                }
            }
        };
        match xprt.lookup(header.xid.0) {
            Some(rqst) => self.answer(xprt, qp, rqst, buffer, grant),
            None => {
                let (xid, version) = (header.xid.0, header.version);
                trace_xprtrdma_reply_rqst_err(Peer::of(xprt), xid, version, header.proc);
                if may_be_call {
                    self.refuse(qp, &header);
                }
                self.put_receive(buffer);
            }
        }
    }

    /// Takes in the Reply to a request.
    fn answer(
        &self,
        xprt: &Xprt<ClntXprt>,
        qp: &Qp<Engine>,
        rqst: Pinned<ClntXprt>,
        buffer: RecvBox<()>,
        grant: Option<Credits>,
    ) {
        let mut chunks = rqst.chunks.lock();
        if !chunks.awaits_reply {
            // A second one, or to a Call that has not been sent.
            drop(chunks);
            xprt.stats.bad_replies.add(1);
            return self.put_receive(buffer);
        }
        let verdict = judge(Task::of(&rqst), buffer.bytes(), &chunks);
        let mut list = chunks.take();
        drop(chunks);
        if let Some(grant) = grant {
            let requested = Credits(self.limits().requests);
            let usable = grant.usable(requested);
            trace_xprtrdma_reply(Task::of(&rqst), rqst.xid(), usable.0);
            self.set_credits(xprt, usable);
        }
        // Else a peer that sends anything at all before it hangs up would be connected to without a
        // pause.
        if !matches!(verdict, Verdict::Failed) {
            xprt.note_use();
        }
        if let Some(invalidated) = buffer.invalidated() {
            note_invalidated(&mut list, invalidated);
        }
        let freed = list.len();
        self.recycle_mrs(&mut list);
        if freed != list.len() {
            xprt.write_space();
        }
        let answer = Answer {
            rqst,
            buffer,
            verdict,
        };
        if list.is_empty() {
            return self.complete(xprt, answer);
        }
        xprt.stats.local_invs.add(list.len());
        if let Err((list, after)) = self.invalidate(qp, list, After::Complete(answer)) {
            if let Some(After::Complete(answer)) = after {
                self.fenced(answer, list);
            }
        }
    }

    /// Goes on with an answer after the attempt to fence its regions; `left` are those that
    /// could not be.
    pub(super) fn fenced(&self, answer: Answer, left: MrList) {
        let Some(xprt) = self.xprt() else {
            return;
        };
        if left.is_empty() {
            xprt.write_space();
            return self.complete(&xprt, answer);
        }
        // The connection is broken, and when it is drained the regions are fenced. Until then
        // they stay with the request, which will be sent again on the next connection.
        let mut left = left;
        answer.rqst.chunks.lock().read.append(&mut left);
        self.lost();
        self.put_receive(answer.buffer);
    }

    /// Completes an RPC, nothing of which the server reaches any more.
    fn complete(&self, xprt: &Xprt<ClntXprt>, answer: Answer) {
        let Answer {
            rqst,
            buffer,
            verdict,
        } = answer;
        let stats = &xprt.stats;
        match verdict {
            Verdict::Inline { message, placed } => {
                let xid = rqst.xid();
                let bytes = buffer.bytes().get(message).unwrap_or_default();
                match rqst.complete_inline(bytes, placed as usize) {
                    Ok(copied) => {
                        if copied != 0 {
                            trace_xprtrdma_fixup(xid, copied);
                        }
                        stats.placed_bytes.add(placed as usize);
                        stats.fixup_bytes.add(copied);
                    }
                    Err(_) => stats.bad_replies.add(1),
                }
            }
            Verdict::Placed { len } => {
                stats.placed_bytes.add(len as usize);
                rqst.complete(Ok(len as usize));
            }
            Verdict::Failed => {
                stats.bad_replies.add(1);
                rqst.complete(Err(EIO));
            }
        }
        self.put_receive(buffer);
    }
}

/// Tells trace events about a malformed message.
fn trace_malformed(peer: Peer<'_>, rejected: &Rejected) {
    let Some(header) = rejected.header else {
        return trace_xprtrdma_reply_short_err(peer, 0, 0, 0);
    };
    let (xid, version, proc) = (header.xid.0, header.version, header.proc);
    match rejected.error {
        DecodeError::Version(_) => trace_xprtrdma_reply_vers_err(peer, xid, version, proc),
        _ => trace_xprtrdma_reply_hdr_err(peer, xid, version, proc),
    }
}

/// Tells trace events about an error report.
fn trace_report(task: Task<'_>, xid: u32, body: ErrorBody) {
    match body {
        ErrorBody::Version { low, high } => trace_xprtrdma_err_vers(task, xid, low, high),
        ErrorBody::Chunk => trace_xprtrdma_err_chunk(task, xid),
        ErrorBody::Unknown(code) => trace_xprtrdma_err_unrecognized(task, xid, code),
    }
}

/// Compares a Reply with what its Call offered.
fn judge(task: Task<'_>, buffer: &[u8], chunks: &Chunks) -> Verdict {
    let message = match decode(buffer, &LIMITS, ACCEPTS) {
        Ok(message) => message,
        Err(_) => return Verdict::Failed,
    };
    match check(
        &message,
        buffer,
        segments(&chunks.write),
        segments(&chunks.reply),
    ) {
        Ok(Outcome::Inline { written, .. }) => inline(&message, buffer.len(), written),
        Ok(Outcome::ReplyChunk { written }) => Verdict::Placed { len: written },
        Ok(Outcome::Failed(body)) => {
            trace_report(task, message.header.xid.0, body);
            Verdict::Failed
        }
        Err(_) => Verdict::Failed,
    }
}

fn inline(message: &Parsed, len: usize, written: u32) -> Verdict {
    match message.direction {
        Some(Direction::Reply) => Verdict::Inline {
            message: message.header_len..len,
            placed: written,
        },
        _ => Verdict::Failed,
    }
}
