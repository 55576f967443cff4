// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Posting of Receives, and decoding of received messages (RFC 8166, sections 3.3.1 and 4).
//!
//! ```text
//!   free --refill--> posted --completion--> inbox --service thread--> decoded
//!    ^                                                                  |
//!    |                     malformed: reported or dropped -------------+
//!    |                     reply to a callback: delivered -------------+
//!    +-------------------- released with its Call <--------------------+
//! ```
//!
//! A buffer exists for each credit granted, for each reply to a callback, and for one more batch. A
//! buffer is posted, is free, or contains a Call in process, which also uses one of the client's
//! credits until its Reply is sent. More are allocated when the client uses many; see [`Receives`].
//! Service threads allocate them. When they are blocked, the completion of a Receive does, because
//! the client may have its credits back from Calls that still hold their buffers. A client that
//! exceeds its credits is served while buffers are available. After that no Receive is posted until
//! a Call is done: over InfiniBand and RoCE the client's device repeats its Sends meanwhile, over
//! iWARP the connection is lost.

use super::{
    backchannel,
    call::CallState,
    endpoint::{
        Conn,
        Endpoint, //
    },
    receives::{
        CallBox,
        Receives, //
    }, //
};
use crate::{
    kapi::{
        ext::{
            atomic::Relaxed,
            noio::NoIo,
            spinlock::SpinLockGuard, //
        },
        rdma::{
            qp::Qp,
            recv::{
                RecvBox,
                RecvList, //
            }, //
        },
        sunrpc::{
            svc::SvcXprt,
            svc_reply::KEPT,
            svc_rqst::{
                CallData,
                CallRef,
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
            DecodeError,
            ErrorBody,
            ErrorResponse, //
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
        peek,
        units::u32_to_usize,
        version::Version, //
    }, //
};
use core::ops::Range;
use kernel::{page::PAGE_SIZE, prelude::*};

/// The credits that a new connection grants. More are granted once the client uses these.
const FIRST_CREDITS: u32 = 32;

/// Allocates up to `count` buffers of `size` octets, fewer if memory is short. May sleep.
fn allocate(qp: &Qp<Endpoint>, size: usize, count: u32) -> RecvList<CallData<CallState>> {
    let mut list = RecvList::new();
    for _ in 0..count {
        let Ok(buf) = RecvBox::new(qp.pd(), size, CallData::default()) else {
            break;
        };
        list.push(buf);
    }
    list
}

impl Endpoint {
    /// Allocates and posts the first Receives.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and errors of posting.
    pub(super) fn post_first_receives(&self, qp: &Qp<Endpoint>) -> Result {
        let sizes = &self.params.sizes;
        let above = sizes.receives.saturating_sub(sizes.credits);
        let wanted = sizes.credits.min(FIRST_CREDITS).saturating_add(above);
        match self.grow_receives(qp, wanted)? {
            made if made == wanted => Ok(()),
            _ => Err(ENOMEM),
        }
    }

    /// Allocates up to `wanted` Receives, posts them, and grants credits for them. Returns the
    /// number added. May sleep.
    ///
    /// # Errors
    ///
    /// Errors of posting.
    fn grow_receives(&self, qp: &Qp<Endpoint>, wanted: u32) -> Result<u32> {
        let size = u32_to_usize(self.recvs.lock().resize.size());
        // Allocate before taking the lock, because that sleeps.
        let mut list = allocate(qp, size, wanted);
        let sizes = &self.params.sizes;
        let mut recvs = self.recvs.lock();
        // Another thread may have exchanged them meanwhile, or added some.
        let made = recvs.add(&mut list, sizes);
        let target = recvs.target;
        drop(recvs);
        self.refill(qp, |_| {})?;
        let above = sizes.receives.saturating_sub(sizes.credits);
        self.raise_grant(target.saturating_sub(above));
        Ok(made)
    }

    /// Grants at least `credits`. Another thread may have granted more meanwhile.
    fn raise_grant(&self, credits: u32) {
        let mut granted = self.granted.load(Relaxed);
        while granted < credits {
            match self.granted.cmpxchg(granted, credits, Relaxed) {
                Ok(_) => break,
                Err(now) => granted = now,
            }
        }
    }

    /// Replaces the Receives by others if another size is wanted and memory for them is available.
    /// May sleep.
    fn resize_receives(&self, qp: &Qp<Endpoint>) {
        let mut recvs = self.recvs.lock();
        let total = recvs.total;
        if !self.params.sizes.may_exchange(total) {
            return;
        }
        let Some(size) = recvs.resize.claim(self.max_receive_size()) else {
            return;
        };
        drop(recvs);
        let list = allocate(qp, u32_to_usize(size), total);
        let mut recvs = self.recvs.lock();
        recvs.resize.release();
        if list.len() < total as usize {
            recvs.resize.give_up(size);
            return;
        }
        if recvs.resize.wants(self.max_receive_size()) != Some(size) || recvs.total > total {
            // Another size is wanted meanwhile, or another thread has added some.
            return;
        }
        let posted = recvs.pool.posted();
        recvs.resize.begin(size, posted);
        let replaced = recvs.pool.replace(list);
        // CAST: There are fewer buffers than a queue can have entries.
        let gone = replaced.len() as u32;
        recvs.total = recvs.total.saturating_add(total).saturating_sub(gone);
        drop(recvs);
        drop(replaced);
    }

    /// Allocates more Receives if the client uses many, or replaces them if another size is wanted.
    /// May sleep.
    pub(super) fn add_receives(&self, qp: &Qp<Endpoint>) {
        if !self.few_receives.xchg(false, Relaxed) {
            return;
        }
        self.resize_receives(qp);
        let recvs = self.recvs.lock();
        let (target, total) = (recvs.target, recvs.total);
        drop(recvs);
        let sizes = &self.params.sizes;
        // Doubles the number of posted Receives, or replaces those of Calls in process.
        let wanted = match sizes.receives.saturating_sub(target) {
            0 => sizes.addition(total),
            missing => target.min(missing),
        };
        if self.grow_receives(qp, wanted).is_err() {
            self.fail();
        }
    }

    /// Calls `change` with the Receives, then posts Receives if a whole batch is missing and
    /// available, or fewer if few are posted.
    fn refill(&self, qp: &Qp<Endpoint>, change: impl FnOnce(&mut Receives)) -> Result {
        let sizes = &self.params.sizes;
        let mut guard = self.recvs.lock();
        let recvs = &mut *guard;
        change(recvs);
        if recvs.pool.posted() < recvs.target / 2 && recvs.total < sizes.buffers {
            self.few_receives.store(true, Relaxed);
        }
        if sizes.is_post_due(recvs.pool.free(), recvs.pool.posted()) {
            return self.post_missing(qp, guard);
        }
        let status = &self.params.status;
        status.receives.store(recvs.pool.posted(), Relaxed);
        Ok(())
    }

    /// Posts the Receives that are missing, if there is a batch of them.
    // Not inlined: it runs once for each batch, its callers run for each Call.
    #[inline(never)]
    fn post_missing(&self, qp: &Qp<Endpoint>, mut recvs: SpinLockGuard<'_, Receives>) -> Result {
        let target = recvs.target;
        let list = recvs.pool.missing(target, self.params.sizes.batch);
        let resize = &recvs.resize;
        if resize.is_due() || resize.wants(self.max_receive_size()).is_some() {
            self.few_receives.store(true, Relaxed);
        }
        let status = &self.params.status;
        status.receives.store(recvs.pool.posted(), Relaxed);
        drop(recvs);
        if list.is_empty() {
            return Ok(());
        }
        self.post_receives(qp, list)
    }

    fn post_receives(&self, qp: &Qp<Endpoint>, list: RecvList<CallData<CallState>>) -> Result {
        qp.post_recvs(list).map_err(|(error, rest)| {
            self.recvs.lock().pool.unposted(rest);
            error
        })
    }

    /// Records that a posted Receive of `capacity` octets has completed, and posts the next ones.
    pub(super) fn received(&self, qp: &Qp<Endpoint>, capacity: usize) {
        let refilled = self.refill(qp, |recvs| recvs.note_completed(capacity));
        let posted = self.params.status.receives.load(Relaxed);
        let refilled = match refilled {
            Ok(()) if self.params.sizes.is_nearly_dry(posted) => self.add_before_dry(qp),
            other => other,
        };
        if refilled.is_err() {
            self.fail();
        }
    }

    /// Adds a batch of Receives if none is free. Called by the completion, because all service
    /// threads may be blocked after they have returned the credits of their Calls, but not the
    /// Receives. If memory is short, the next completion tries again.
    ///
    /// # Errors
    ///
    /// Errors of posting.
    #[cold]
    #[inline(never)]
    fn add_before_dry(&self, qp: &Qp<Endpoint>) -> Result {
        let recvs = self.recvs.lock();
        let wanted = match recvs.pool.free() {
            0 => self.params.sizes.addition(recvs.total),
            _ => 0,
        };
        drop(recvs);
        if wanted == 0 {
            return Ok(());
        }
        // Reclaim may wait for work that is queued behind this completion.
        let _no_io = NoIo::begin();
        self.grow_receives(qp, wanted)?;
        // The service thread that sees this starts the timer that frees them.
        self.few_receives.store(true, Relaxed);
        Ok(())
    }

    /// Keeps the buffer of a failed Receive. No Receive is posted from now on.
    pub(super) fn put_failed_receive(&self, buf: CallBox) {
        let mut recvs = self.recvs.lock();
        recvs.note_completed(buf.capacity());
        let replaced = recvs.put(buf);
        drop(recvs);
        drop(replaced);
    }

    /// Releases the buffer of a message that is no longer needed.
    pub(super) fn release_receive(&self, qp: &Qp<Endpoint>, buf: CallBox) {
        if self.is_closing() {
            let replaced = self.recvs.lock().put(buf);
            return drop(replaced);
        }
        let mut replaced = None;
        let refilled = self.refill(qp, |recvs| replaced = recvs.put(buf));
        drop(replaced);
        if refilled.is_err() {
            self.fail();
        }
    }

    /// Frees unused buffers while enough Receives are posted. Returns whether more Receives are
    /// left than have to be posted, because Calls hold some of them.
    pub(super) fn trim_receives(&self) -> bool {
        loop {
            let mut recvs = self.recvs.lock();
            let Some(spare) = recvs.take_spare() else {
                return recvs.total > recvs.target;
            };
            drop(recvs);
            drop(spare);
        }
    }
}

/// The action for a message.
enum Disposition {
    /// Deliver it: it is a Call without Read chunks.
    Deliver,
    /// Pull its Read chunks first.
    Pull,
    /// Match it with a callback.
    CallbackReply,
    /// Handle properties of the client.
    Properties,
    /// Respond to an optional operation.
    Optional(ErrorResponse),
}

/// Chooses the action for a received message.
///
/// # Errors
///
/// The reason why the message cannot be used.
fn classify(message: &Parsed) -> Result<Disposition, DecodeError> {
    if let Some(response) = message.option_response() {
        return Ok(Disposition::Optional(response));
    }
    if let Body::Property(_) = message.body {
        return Ok(Disposition::Properties);
    }
    match (message.direction, message.version) {
        (Some(Direction::Call), _) => {}
        // In version 1 this is a malformed Call: no callback offers a Reply chunk.
        (Some(Direction::Reply), Version::One) if matches!(message.body, Body::NoMsg) => {
            return Err(DecodeError::PayloadLocation)
        }
        (Some(Direction::Reply), _) => return Ok(Disposition::CallbackReply),
        (None, _) => return Err(DecodeError::RpcHeader),
    }
    Ok(if is_inline_call(message) {
        Disposition::Deliver
    } else {
        Disposition::Pull
    })
}

/// Returns whether a message is a Call without Read chunks, which is delivered as it is.
#[inline]
fn is_inline_call(message: &Parsed) -> bool {
    matches!(message.body, Body::Msg)
        && message.direction == Some(Direction::Call)
        && message.has_no_reads()
}

/// Returns the slots of a thread's reply array that the service fills when it uses all chunks that
/// the client offers. The first slot is for the inline part. A payload need not start at a page
/// boundary.
#[inline]
pub(super) fn reply_slots(call: &Parsed) -> Range<usize> {
    let octets = call.room();
    if octets == 0 {
        return 0..0;
    }
    let pages = usize::try_from(octets).unwrap_or(usize::MAX);
    let pages = pages.saturating_add(PAGE_SIZE - 1).div_ceil(PAGE_SIZE);
    usize::from(!call.has_reply_chunk())..pages.saturating_add(1)
}

/// Traces a valid transport header.
fn trace_call(cid: Cid, message: &Parsed) {
    let h = &message.header;
    let (xid, vers, credits) = (h.xid.0, h.version, h.credits.0);
    trace_svcrdma_decode_rqst(cid, xid, vers, credits, h.proc, message.header_len);
}

/// Traces why a message of `len` octets is not delivered.
fn trace_refusal(cid: Cid, len: usize, header: Option<&Header>, response: ErrorResponse) {
    let Some(h) = header else {
        return trace_svcrdma_decode_short_err(cid, len);
    };
    let (xid, vers, credits) = (h.xid.0, h.version, h.credits.0);
    let version = Version::from_u32(vers).unwrap_or(Version::One);
    match (response, Proc::from_u32(version, h.proc)) {
        (ErrorResponse::Drop, _) => trace_svcrdma_decode_drop_err(cid, xid, vers, credits, h.proc),
        (ErrorResponse::Report(ErrorBody::Version { .. }), _) => {
            trace_svcrdma_decode_badvers_err(cid, xid, vers, credits, h.proc)
        }
        (_, Some(_)) => trace_svcrdma_decode_parse_err(cid, xid, vers, credits, h.proc),
        (_, None) => trace_svcrdma_decode_badproc_err(cid, xid, vers, credits, h.proc),
    }
}

impl Endpoint {
    /// Posts the RDMA Reads of a Call that was just received, if it has Read chunks and all
    /// resources are available. Returns any other message, which a service thread has to handle.
    /// Called from the completion, which must not wait.
    pub(super) fn pull_at_once(&self, qp: &Qp<Endpoint>, mut buf: CallBox) -> Option<CallBox> {
        if !peek::may_have_read_list(buf.bytes()) || !self.handle.has_access() {
            return Some(buf);
        }
        let limits = &self.params.list_limits;
        let CallRef { bytes, state } = CallRef::of(&mut buf);
        let accepts = self.negotiation.accepts();
        let Ok(call) = message::decode_other_into(&mut state.call, bytes, limits, accepts) else {
            return Some(buf);
        };
        let Ok(Disposition::Pull) = self.classify(call) else {
            return Some(buf);
        };
        let version = call.version;
        self.begin_call(state, version);
        let mut buf = match self.permit_at_once(&mut buf) {
            Some(permit) => self.start_pull_at_once(qp, buf, permit)?,
            None => buf,
        };
        self.order_before_pull(&mut buf);
        Some(buf)
    }

    /// Chooses the action for a message, and records the version of the message if it can be used.
    ///
    /// # Errors
    ///
    /// The reason why the message cannot be used.
    #[inline]
    fn classify(&self, message: &Parsed) -> Result<Disposition, DecodeError> {
        let disposition = classify(message)?;
        if !self.negotiation.has_decided(message.version) {
            self.note_version(message)?;
        }
        Ok(disposition)
    }

    /// Records the version of a message that may be the first.
    #[cold]
    fn note_version(&self, message: &Parsed) -> Result<(), DecodeError> {
        self.negotiation.note_version(&self.params.peer, message)?;
        if self.negotiation.has_decided(message.version) {
            let version = message.version.to_u32();
            self.params.status.traffic.version.store(version, Relaxed);
        }
        Ok(())
    }

    /// Initialises the state of a Call of `version` that was decoded just now.
    #[inline]
    pub(super) fn begin_call(&self, state: &mut CallState, version: Version) {
        state.begin(match version {
            Version::One => self.params.remote_invalidation,
            Version::Two => self.params.can_invalidate,
        });
    }
}

impl Conn {
    /// Processes a message: delivers it, starts to pull its Read chunks, or sends an error report
    /// about it. Returns the Call if it was delivered.
    #[inline(always)]
    pub(super) fn receive_message<'a>(
        &self,
        xprt: &SvcXprt<Conn>,
        receiver: Receiver<'a, CallBox>,
        mut buf: CallBox,
    ) -> Option<Delivered<'a>> {
        let ep = self.ep();
        let (limits, accepts) = (&ep.params.list_limits, ep.negotiation.accepts());
        let cid = buf.cid();
        let CallRef { bytes, state } = CallRef::of(&mut buf);
        let message = match message::decode_into(&mut state.call, bytes, limits, accepts) {
            Ok(message) => message,
            Err(rejected) => {
                if rejected.direction == Some(Direction::Reply) {
                    backchannel::receive_malformed(xprt, &rejected);
                }
                self.reject(buf, rejected.header, rejected.response());
                return None;
            }
        };
        trace_call(cid, message);
        if !ep.negotiation.has_decided(message.version) || !is_inline_call(message) {
            let message = *message;
            return self.receive_other(xprt, receiver, buf, &message);
        }
        let (version, header_len, slots) =
            (message.version, message.header_len, reply_slots(message));
        ep.begin_call(state, version);
        self.deliver_inline(receiver, buf, header_len, slots)
    }

    /// Processes `message`, which is in `buf` and may be of any kind. Returns the Call if it was
    /// delivered.
    // Not inlined: inline Calls, which most messages are, then need no stack for it.
    #[inline(never)]
    fn receive_other<'a>(
        &self,
        xprt: &SvcXprt<Conn>,
        receiver: Receiver<'a, CallBox>,
        mut buf: CallBox,
        message: &Parsed,
    ) -> Option<Delivered<'a>> {
        match self.ep().classify(message) {
            Ok(Disposition::Deliver) => {
                let state = CallRef::of(&mut buf).state;
                self.ep().begin_call(state, message.version);
                let slots = reply_slots(message);
                return self.deliver_inline(receiver, buf, message.header_len, slots);
            }
            Ok(Disposition::Pull) => return self.start_pull(receiver, buf, message),
            Ok(Disposition::CallbackReply) => {
                backchannel::receive_reply(xprt, message, buf.bytes());
                self.release_message(buf);
            }
            Ok(Disposition::Properties) => self.receive_properties(buf, message),
            Ok(Disposition::Optional(response)) => self.reject(buf, Some(message.header), response),
            Err(error) => {
                let response = error.response(message.version);
                self.reject(buf, Some(message.header), response);
            }
        }
        None
    }

    /// Delivers a Call that is completely in `buf`, after `header_len` octets. The reply may use
    /// the pages in `slots`, see [`Self::hold_pages`].
    #[inline(always)]
    pub(super) fn deliver_inline<'a>(
        &self,
        mut receiver: Receiver<'a, CallBox>,
        mut buf: CallBox,
        header_len: usize,
        slots: Range<usize>,
    ) -> Option<Delivered<'a>> {
        self.hold_pages(&mut receiver, &mut buf, slots);
        let len = buf.byte_len();
        match receiver.deliver_inline(buf, header_len.min(len)..len) {
            Ok(delivered) => Some(delivered),
            Err(buf) => {
                self.release_message(buf);
                None
            }
        }
    }

    /// Holds the pages in `slots` for the reply to the Call in `buf`.
    ///
    /// The service may defer a Call until an upcall returns, for instance to find out whether the
    /// client has access, and the Call keeps the pages meanwhile. So no page is held before the
    /// client has proved that it has access.
    #[inline(always)]
    pub(super) fn hold_pages(
        &self,
        receiver: &mut Receiver<'_, CallBox>,
        buf: &mut CallBox,
        slots: Range<usize>,
    ) {
        if slots.is_empty() || !self.ep().handle.has_access() {
            return;
        }
        if slots.len() > buf.data_mut().room().max(KEPT) {
            let array = self.ep().pages.lock().array();
            buf.data_mut().set_array(array);
            self.trim_later();
        }
        receiver.hold_pages(slots);
    }

    /// Sends the response to a message that cannot be used, if one is due, and releases the
    /// message.
    pub(super) fn reject(&self, buf: CallBox, header: Option<Header>, response: ErrorResponse) {
        trace_refusal(buf.cid(), buf.byte_len(), header.as_ref(), response);
        self.ep().params.status.traffic.malformed.add(1);
        self.release_message(buf);
        if let Some(header) = header {
            self.send_refusal(&header, response);
        }
    }

    /// Sends `report` about a Call that cannot be served, and releases the Call.
    pub(super) fn refuse(&self, buf: CallBox, header: &Header, report: ErrorBody) {
        self.ep().params.status.refused.add(1);
        self.release_message(buf);
        self.send_refusal(header, ErrorResponse::Report(report));
    }

    /// Releases the buffer of a message.
    pub(super) fn release_message(&self, mut buf: CallBox) {
        drop(buf.data_mut().state.ordered.take());
        if let Some(array) = buf.data_mut().release_pages() {
            self.ep().pages.lock().put_array(array);
        }
        self.ep().release_receive(self.qp(), buf);
    }
}
