// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Receives: kept posted, and turned into Calls.
//!
//! ```text
//!   free --refill--> posted --completion--> inbox --service thread--> decoded
//!    ^                                                                  |
//!    |                   not to be used: answered or dropped ----------+
//!    |                   a reply to a callback: handed over -----------+
//!    +------------------ released with its Call <----------------------+
//! ```
//!
//! There are as many buffers as credits twice over: one posted for each message the client may
//! send, one for each Call in process; and some for replies to callbacks, and a batch. A client
//! that sends more than it was granted is served as long as there are buffers. Then it finds no
//! Receive posted, and loses its connection for that.

use super::{
    backchannel,
    call::CallState,
    conn::{
        Chan,
        Conn, //
    },
};
use crate::{
    kapi::{
        rdma::{
            pd::Pd,
            qp::Qp,
            recv::RecvBox, //
        },
        sunrpc::{
            svc::SvcXprt,
            svc_rqst::{
                Delivered,
                Receiver, //
            }, //
        },
        trace::{
            trace_svcrdma_decode_badproc_err,
            trace_svcrdma_decode_badvers_err,
            trace_svcrdma_decode_drop_err,
            trace_svcrdma_decode_parse_err,
            trace_svcrdma_decode_rqst,
            trace_svcrdma_decode_short_err,
            Cid, //
        }, //
    },
    xdr::{
        error::{
            Answer,
            DecodeError,
            ErrorBody, //
        },
        header::{
            Header,
            Proc, //
        },
        message::{
            self,
            Body,
            Direction,
            Parsed, //
        },
        pcl::ReadChunks,
        units::wire_len,
        version::{
            Version,
            Versions, //
        }, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Chan {
    /// Makes all Receive buffers and posts the first ones.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and those of posting.
    pub(super) fn post_first_receives(&self, qp: &Qp<Chan>, pd: &Arc<Pd>) -> Result {
        for _ in 0..self.params.sizes.contexts {
            let state = CallState::default();
            let buf = RecvBox::new(pd, self.params.receive_size, state)?;
            self.recvs.lock().put(buf);
        }
        self.refill(qp)
    }

    /// Posts Receives if a batch of them is missing.
    fn refill(&self, qp: &Qp<Chan>) -> Result {
        let sizes = &self.params.sizes;
        let list = self.recvs.lock().missing(sizes.receives, sizes.batch);
        if list.is_empty() {
            return Ok(());
        }
        qp.post_recvs(list).map_err(|(error, rest)| {
            self.recvs.lock().unposted(rest);
            error
        })
    }

    /// A posted Receive has got a message: the next ones are posted.
    pub(super) fn received(&self, qp: &Qp<Chan>) {
        self.recvs.lock().landed();
        if self.refill(qp).is_err() {
            self.fail();
        }
    }

    /// A posted Receive has failed. Nothing is posted any more.
    pub(super) fn keep_receive(&self, buf: RecvBox<CallState>) {
        let mut recvs = self.recvs.lock();
        recvs.landed();
        recvs.put(buf);
    }

    /// A message is done with.
    pub(super) fn release_receive(&self, qp: &Qp<Chan>, buf: RecvBox<CallState>) {
        self.recvs.lock().put(buf);
        // This posts something only after a client has used more than its credits.
        if !self.is_closing() && self.refill(qp).is_err() {
            self.fail();
        }
    }
}

/// The version that a client may call in.
pub(super) const ACCEPTS: Versions = Versions::only(Version::One);

/// What is to be done with a message.
enum Verdict {
    /// Deliver it: the Call is the received octets from here on.
    Inline(usize),
    /// Pull its Read chunks first; the header has the given length.
    Read(ReadChunks, Header, usize),
    /// It answers a callback, perhaps.
    Answered,
    /// Answer, or not, and forget it.
    Refuse(Option<Header>, Answer),
}

/// Decides about a message that was received; `bytes` is the message.
fn judge(message: &Parsed, bytes: &[u8], chan: &Chan, state: &mut CallState) -> Verdict {
    let refuse = |error: DecodeError| Verdict::Refuse(Some(message.header), error.answer());
    match message.direction {
        Some(Direction::Call) => {}
        // The answer to a callback, none of which offers a chunk to put it in.
        Some(Direction::Reply) if message.body == Body::NoMsg => {
            return refuse(DecodeError::PayloadPlace)
        }
        Some(Direction::Reply) => return Verdict::Answered,
        None => return refuse(DecodeError::RpcHeader),
    }
    let lists = message.lists(bytes);
    let payload = message.payload(bytes);
    let inline_len = payload.and_then(|payload| wire_len(payload.len()));
    let chunks = match ReadChunks::parse(&lists.read, inline_len, chan.params.max_stream()) {
        Ok(chunks) => chunks,
        Err(e) => return refuse(e),
    };
    *state = CallState::default();
    if chan.params.remote_invalidation {
        state.invalidate = message.invalidate;
    }
    match chunks.is_empty() {
        true => Verdict::Inline(message.header_len),
        false => Verdict::Read(chunks, message.header, message.header_len),
    }
}

/// Tells trace events why a message of `len` octets is not delivered.
fn trace_refusal(cid: Cid, len: usize, header: Option<&Header>, answer: Answer) {
    let Some(h) = header else {
        return trace_svcrdma_decode_short_err(cid, len);
    };
    let (xid, vers, credits) = (h.xid.0, h.version, h.credits.0);
    match (answer, Proc::from_wire(h.proc)) {
        (Answer::Drop, _) => trace_svcrdma_decode_drop_err(cid, xid, vers, credits, h.proc),
        (Answer::Report(ErrorBody::Version { .. }), _) => {
            trace_svcrdma_decode_badvers_err(cid, xid, vers, credits, h.proc)
        }
        (_, Some(_)) => trace_svcrdma_decode_parse_err(cid, xid, vers, credits, h.proc),
        (_, None) => trace_svcrdma_decode_badproc_err(cid, xid, vers, credits, h.proc),
    }
}

impl Conn {
    /// Takes a message on its way: delivers it, or starts to pull its Read chunks, or answers
    /// it with an error.
    pub(super) fn receive_message<'a>(
        &self,
        xprt: &SvcXprt<Conn>,
        receiver: Receiver<'a, RecvBox<CallState>>,
        mut buf: RecvBox<CallState>,
    ) -> Option<Delivered<'a>> {
        super::tunables::STAT_RECV.inc();
        let mut state = CallState::default();
        let len = buf.byte_len();
        let limits = self.chan().params.list_limits();
        let verdict = match message::decode(buf.bytes(), &limits, ACCEPTS) {
            Ok(message) => {
                let h = &message.header;
                let (xid, vers, credits) = (h.xid.0, h.version, h.credits.0);
                trace_svcrdma_decode_rqst(
                    buf.cid(),
                    xid,
                    vers,
                    credits,
                    h.proc,
                    message.header_len,
                );
                let verdict = judge(&message, buf.bytes(), self.chan(), &mut state);
                if let Verdict::Answered = verdict {
                    backchannel::receive_reply(xprt, &message, buf.bytes());
                }
                verdict
            }
            Err(rejected) => Verdict::Refuse(rejected.header, rejected.answer()),
        };
        *buf.data_mut() = state;
        match verdict {
            Verdict::Inline(start) => match receiver.deliver_inline(buf, start..len) {
                Ok(delivered) => return Some(delivered),
                Err(buf) => self.forget(buf),
            },
            Verdict::Read(chunks, header, header_len) => {
                self.start_pull(receiver, buf, chunks, &header, header_len);
            }
            Verdict::Answered => self.forget(buf),
            Verdict::Refuse(header, answer) => {
                trace_refusal(buf.cid(), len, header.as_ref(), answer);
                self.forget(buf);
                if let Some(header) = header {
                    self.send_refusal(&header, answer);
                }
            }
        }
        None
    }

    /// Answers a Call whose chunks cannot be served, and forgets it.
    pub(super) fn refuse(&self, buf: RecvBox<CallState>, header: &Header) {
        self.forget(buf);
        self.send_refusal(header, Answer::Report(ErrorBody::Chunk));
    }

    /// Gives a buffer back whose message is of no use any more.
    pub(super) fn forget(&self, buf: RecvBox<CallState>) {
        self.chan().release_receive(self.qp(), buf);
    }
}
