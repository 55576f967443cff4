// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RPC requests of a client transport: slots, and the Replies to their Calls.
//!
//! A [`Slot`] embeds sunrpc's `rpc_rqst` and lives as long as its transport. sunrpc clears the
//! `rpc_rqst` whenever the slot gets a new owner. The transport's data of a request is stored next
//! to the `rpc_rqst`.
//!
//! ```text
//!   pool ──alloc_slot──▶ owned by an RPC task ──free_slot──▶ pool, or the next task waiting
//!                              │      ▲
//!                       lookup │      │ drop, complete
//!                              ▼      │
//!                        pinned by a Reply: task, slot and transport stay
//! ```
//!
//! C headers: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h),
//! [`include/linux/sunrpc/sched.h`](srctree/include/linux/sunrpc/sched.h)

use core::{
    cell::UnsafeCell,
    mem::ManuallyDrop,
    ops::{
        Deref,
        Range, //
    },
    ptr::NonNull, //
};

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Jiffies,
        NSEC_PER_MSEC, //
    },
    types::Opaque, //
};

pub(super) use self::pool::SlotPool;
use self::rpc_buf::RpcBuf;
use super::{
    clock::time_before,
    ops::XprtOps,
    send_lock::SendLocked,
    xdr_buf::{
        arrived,
        PageSegs,
        Segs,
        XdrBuf,
        XdrParts, //
    },
    xprt_lock::{
        lock_queue,
        lock_transport, //
    }, //
};
use crate::kapi::{
    bindings,
    ext::{
        jiffies,
        lend::{
            Access,
            Lender,
            LentSegs, //
        },
        memory::copy_bytes,
    }, //
};

/// Identifies one encoding of a Call. sunrpc encodes a Call again, with the same XID, before it
/// sends it on another connection. A Reply to one encoding cannot be decoded as a Reply to another
/// if the sequence number of its RPCSEC_GSS credential or the layout of the buffers for the Reply
/// differs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Encoding {
    sequence: u32,
    /// The bytes before the pages of the Reply.
    reply_head: usize,
}

impl Encoding {
    /// Creates the encoding with the RPCSEC_GSS sequence number `sequence` and `reply_head` bytes
    /// before the pages of the Reply.
    pub(crate) fn new(sequence: u32, reply_head: usize) -> Self {
        Encoding {
            sequence,
            reply_head,
        }
    }
}

/// A request slot: sunrpc's `rpc_rqst` and the transport's data of the request.
///
/// # Invariants
///
/// * `rqst` belongs to sunrpc. Of the other fields, only `data` and `lender`, which are `Sync`, are
///   used by several threads at a time.
/// * `call` and `reply` change in `->buf_alloc`, when the task that owns the slot has no message
///   in them yet, and while the slot is free. [`Pinned::complete_inline`] writes to the memory of
///   `reply`, which belongs to the task before the Call is sent and after the RPC completes.
/// * `pinned` tells whether a [`Pinned`] of the slot exists; there is at most one. It changes under
///   the transport's queue lock.
/// * `next` belongs to the pool.
#[repr(C)]
#[pin_data]
pub(crate) struct Slot<T: XprtOps> {
    rqst: Opaque<bindings::rpc_rqst>,
    next: UnsafeCell<Option<NonNull<Slot<T>>>>,
    call: UnsafeCell<RpcBuf>,
    reply: UnsafeCell<RpcBuf>,
    pinned: UnsafeCell<bool>,
    lender: Lender,
    #[pin]
    data: T::Slot,
}

// SAFETY: By the invariants the fields that are not `Sync` are used by one thread at a time;
// `T::Slot` is `Send` and `Sync`.
unsafe impl<T: XprtOps> Send for Slot<T> {}
// SAFETY: By the invariants only `data` and `lender`, which are `Sync`, are used by several threads
// at a time.
unsafe impl<T: XprtOps> Sync for Slot<T> {}

impl<T: XprtOps> Slot<T> {
    fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            rqst: Opaque::zeroed(),
            next: UnsafeCell::new(None),
            call: UnsafeCell::new(RpcBuf::EMPTY),
            reply: UnsafeCell::new(RpcBuf::EMPTY),
            pinned: UnsafeCell::new(false),
            lender: Lender::new(None)?,
            data <- T::new_slot(),
        })
    }

    /// Borrows the slot that embeds `rqst`.
    ///
    /// # Safety
    ///
    /// `rqst` must be embedded in a `Slot<T>` that lives for `'a`.
    pub(super) unsafe fn from_rqst<'a>(rqst: *mut bindings::rpc_rqst) -> &'a Self {
        // CAST: It is the first field, and the layout is C's.
        // SAFETY: By this function's contract it is in a slot that lives for `'a`.
        unsafe { &*rqst.cast() }
    }

    pub(in crate::kapi) fn as_rqst(&self) -> *mut bindings::rpc_rqst {
        self.rqst.get()
    }

    /// Implements `->buf_alloc`. Returns the number of bytes that were allocated for messages of
    /// unusual size.
    ///
    /// # Safety
    ///
    /// May only be called from `->buf_alloc` for this slot.
    pub(super) unsafe fn alloc_buffers(&self) -> Result<usize> {
        let rqst = self.as_rqst();
        // SAFETY: The request belongs to the task that calls, which has set the sizes.
        let (call_size, reply_size) = unsafe { ((*rqst).rq_callsize, (*rqst).rq_rcvsize) };
        // SAFETY: `call` and `reply` belong to the task that owns the request. Neither contains a
        // message yet.
        let (call, reply) = unsafe { (&mut *self.call.get(), &mut *self.reply.get()) };
        let fit = call.len() >= call_size && reply.len() >= reply_size;
        let grown = if fit {
            0
        } else {
            RpcBuf::reserve_both(call, call_size, reply, reply_size)?
        };
        // SAFETY: The request belongs to the task that calls.
        unsafe {
            (*rqst).rq_buffer = call.as_ptr().cast();
            (*rqst).rq_rbuffer = reply.as_ptr().cast();
        }
        Ok(grown)
    }

    /// Returns the transaction id, in host order.
    pub(crate) fn xid(&self) -> u32 {
        // SAFETY: sunrpc sets the XID before it passes a request to the transport, and does not
        // change it.
        u32::from_be(unsafe { (*self.as_rqst()).rq_xid })
    }

    /// Returns the Call.
    pub(crate) fn call(&self) -> &XdrBuf {
        // SAFETY: A slot that the transport sees is owned by a task or pinned. Its Call does not
        // change during that time.
        unsafe { XdrBuf::from_raw(&raw mut (*self.as_rqst()).rq_snd_buf) }
    }

    /// Returns the buffers for the Reply, without access to their bytes: a device may write to
    /// them.
    pub(crate) fn reply_buf(&self) -> &XdrParts {
        // SAFETY: A slot that the transport sees is owned by a task or pinned. The buffers for its
        // Reply stay until the RPC completes or releases them; only `deliver` changes them, under
        // the pin.
        unsafe { XdrParts::from_raw(&raw mut (*self.as_rqst()).rq_rcv_buf) }
    }

    /// Returns the encoding of the Call, which differs from that of an earlier or a later one.
    pub(crate) fn encoding(&self) -> Encoding {
        // SAFETY: The task of the request writes these fields while it encodes the Call, for which
        // it waits until nobody sends the Call and the slot is not pinned.
        unsafe {
            let rqst = self.as_rqst();
            Encoding::new((*rqst).rq_seqnos[0], (*rqst).rq_rcv_buf.head[0].iov_len)
        }
    }

    /// Returns whether `sender` has the send lock of the transport of this request.
    fn is_sent_by(&self, sender: &SendLocked<'_, T>) -> bool {
        // SAFETY: The transport of a request that is in use does not change.
        core::ptr::eq(unsafe { (*self.as_rqst()).rq_xprt }, sender.as_ptr())
    }

    /// Allocates the missing pages of the buffers for the Reply. Does not sleep.
    ///
    /// The pages belong to the upper layer, which frees all pages in its array.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `sender` has the send lock of another transport. `ENOBUFS` if memory is short;
    /// the pages that were allocated stay in the array.
    pub(crate) fn fill_reply_buf(&self, sender: &SendLocked<'_, T>) -> Result {
        if !self.is_sent_by(sender) {
            return Err(EINVAL);
        }
        // SAFETY: The upper layer and the transport only read the array of a request that is being
        // sent, and only the holder of the send lock writes it.
        unsafe { self.reply_buf().fill_sparse() }
    }

    /// Returns the access that a peer gets to the Call.
    fn call_access(&self) -> Access {
        if self.owns_pages() {
            Access::SharedRead
        } else {
            Access::RemoteRead
        }
    }

    /// Lends the bytes `range` of the Call to a device, for a peer to read.
    pub(crate) fn lend_call(&self, range: Range<usize>) -> LentSegs<'_, Segs<'_>> {
        // SAFETY: The RPC neither completes nor releases its memory while a loan exists, see
        // `Pinned::complete` and `wait_returned`; if sunrpc may free the pages before, the access
        // says so. A Call does not change while the transport has it.
        unsafe { LentSegs::new(self.call().segs(range), &self.lender, self.call_access()) }
    }

    /// Lends the bytes `range` of the buffers for the Reply to a device, for a peer to write.
    pub(crate) fn lend_reply_buf(&self, range: Range<usize>) -> LentSegs<'_, Segs<'_>> {
        // SAFETY: The RPC neither completes nor releases its memory while a loan exists, see
        // `Pinned::complete` and `wait_returned`. `XdrParts` lends none of its bytes as a
        // reference.
        unsafe {
            LentSegs::new(
                self.reply_buf().segs(range),
                &self.lender,
                Access::RemoteWrite,
            )
        }
    }

    /// Lends the pages of the Call to a device, for a peer to read.
    pub(crate) fn lend_call_pages(&self) -> LentSegs<'_, PageSegs<'_>> {
        // SAFETY: As in `lend_call`: the memory stays, and does not change.
        unsafe { LentSegs::new(self.call().page_segs(), &self.lender, self.call_access()) }
    }

    /// Lends the pages for the Reply to a device, for a peer to write.
    pub(crate) fn lend_reply_pages(&self) -> LentSegs<'_, PageSegs<'_>> {
        // SAFETY: As in `lend_reply_buf`: the memory stays, and nobody refers to its bytes.
        unsafe {
            LentSegs::new(
                self.reply_buf().page_segs(),
                &self.lender,
                Access::RemoteWrite,
            )
        }
    }

    /// Waits until no memory of the request is lent. Sleeps, with a warning, only if a loan exists,
    /// which is a bug.
    pub(super) fn wait_returned(&self) {
        if kernel::warn_on!(!self.lender.has_all()) {
            while !self.lender.has_all() {
                fsleep(Delta::from_millis(10));
            }
        }
    }

    /// Returns whether data items may be placed directly. They may not if the security flavor
    /// protects the content of the message.
    pub(crate) fn placement_allowed(&self) -> bool {
        // SAFETY: sunrpc passes a request to the transport only with a credential, which has an
        // authenticator. The flags are a word that is read atomically.
        let flags = unsafe {
            let auth = (*(*self.as_rqst()).rq_cred).cr_auth;
            (&raw const (*auth).au_flags).read_volatile()
        };
        flags & (1 << bindings::RPCAUTH_AUTH_DATATOUCH) == 0
    }

    /// Returns whether the pages of the Call belong to the request. They are encrypted copies,
    /// which sunrpc frees without notice when the Call is encoded again.
    fn owns_pages(&self) -> bool {
        // SAFETY: Only the task of the request writes the field, while it encodes the Call.
        unsafe { (*self.as_rqst()).rq_release_snd_buf.is_some() }
    }

    /// Returns whether the task waits for a Reply.
    pub(crate) fn reply_expected(&self) -> bool {
        // SAFETY: The request has a task while the transport sees it. The procedure of a task does
        // not change.
        unsafe {
            let proc = (*(*self.as_rqst()).rq_task).tk_msg.rpc_proc;
            !proc.is_null() && (*proc).p_decode.is_some()
        }
    }

    /// Returns the number of the connection on which the Call was last sent.
    pub(crate) fn connect_cookie(&self) -> u32 {
        // SAFETY: The field is an aligned word. The task that owns the slot writes it when it gets
        // the slot or waits for a connection; the holder of the send lock, when it sends the Call.
        unsafe { (&raw const (*self.as_rqst()).rq_connect_cookie).read_volatile() }
    }

    /// Records that the whole Call is about to be sent, and extends its deadline to at least the
    /// first timeout of its mount from now. Does nothing if `sender` has the send lock of another
    /// transport. Does not sleep.
    ///
    /// sunrpc counts the time without a connection as well. A Call that has waited for longer than
    /// its timeout would time out as soon as it is sent, and close the connection, and then the
    /// next one. The deadline of a Call of a soft mount does not change, see
    /// [`Xprt::should_close_on_timeout`].
    ///
    /// [`Xprt::should_close_on_timeout`]: super::xprt::Xprt::should_close_on_timeout
    pub(crate) fn note_sent(&self, sender: &SendLocked<'_, T>) {
        if !self.is_sent_by(sender) {
            return;
        }
        let rqst = self.as_rqst();
        // SAFETY: Only the holder of the send lock, which the caller is, writes these fields.
        unsafe {
            (*rqst).rq_xtime = bindings::ktime_get();
            (*rqst).rq_xmit_bytes_sent += (*rqst).rq_snd_buf.len as usize;
        }
        // SAFETY: A request that is sent has its task.
        let flags = unsafe { (&raw const (*(*rqst).rq_task).tk_flags).read_volatile() };
        if u32::from(flags) & (bindings::RPC_TASK_SOFT | bindings::RPC_TASK_TIMEOUT) != 0 {
            return;
        }
        let earliest = jiffies().wrapping_add(self.first_timeout());
        // SAFETY: An aligned word is accessed. If another task sends this Call, the task of the
        // Call may extend its deadline at the same time; a lost race costs one connection.
        unsafe {
            let deadline = &raw mut (*rqst).rq_majortimeo;
            if time_before(deadline.read_volatile(), earliest) {
                deadline.write_volatile(earliest);
            }
        }
    }

    /// Returns the first timeout of the mount in jiffies: the time until a Call is retransmitted.
    pub(super) fn first_timeout(&self) -> Jiffies {
        // SAFETY: As long as the transport sees a request, it has a task, and the task has a
        // client.
        unsafe { (*(*(*(*self.as_rqst()).rq_task).tk_client).cl_timeout).to_initval }
    }

    /// Returns how long ago the Call was sent, in jiffies.
    pub(super) fn time_in_flight(&self) -> Jiffies {
        // SAFETY: The field was written when the Call was sent. The clock may be read in any
        // context.
        let since = unsafe { bindings::ktime_get().saturating_sub((*self.as_rqst()).rq_xtime) };
        // CAST: The value was clamped to the range of both types.
        msecs_to_jiffies((since / NSEC_PER_MSEC).clamp(0, i64::from(i32::MAX)) as u32)
    }

    /// Takes a place in the congestion window, unless the request has one. Returns `false` if the
    /// window is full. Takes the transport lock; does not sleep.
    pub(crate) fn get_cong(&self) -> bool {
        let rqst = self.as_rqst();
        // SAFETY: The request and its transport are live.
        unsafe { bindings::xprt_request_get_cong((*rqst).rq_xprt, rqst) }
    }

    /// Releases the place in the congestion window, if the request has one. Takes the transport
    /// lock; does not sleep.
    pub(super) fn put_cong(&self) {
        let rqst = self.as_rqst();
        // SAFETY: A request that is in use has its task and its transport. The field is a word that
        // is read atomically; only the caller, and a new connection, clear it.
        let (task, has_place) = unsafe {
            let has_place = (&raw const (*rqst).rq_cong).read_volatile() != 0;
            ((*rqst).rq_task, has_place)
        };
        if has_place {
            // SAFETY: The task has the request, and the function requires the transport lock.
            unsafe {
                let _guard = lock_transport((*rqst).rq_xprt);
                bindings::xprt_release_rqst_cong(task);
            }
        }
    }

    /// Releases the place in the congestion window when the Reply has arrived, if the task runs in
    /// a process. sunrpc releases it only when that process runs, and the process may be frozen.
    fn put_cong_of_process(&self) {
        // SAFETY: A request that is being answered has its task. The flags are a word that is read
        // atomically.
        let flags = unsafe { (&raw const (*(*self.as_rqst()).rq_task).tk_flags).read_volatile() };
        if u32::from(flags) & bindings::RPC_TASK_ASYNC == 0 {
            self.put_cong();
        }
    }
}

impl<T: XprtOps> Deref for Slot<T> {
    type Target = T::Slot;

    fn deref(&self) -> &T::Slot {
        &self.data
    }
}

/// A request whose Reply has arrived.
///
/// The task, the slot and the transport stay as long as this object exists. Dropping it leaves the
/// RPC without a Reply: the RPC will be sent again, or time out.
///
/// # Invariants
///
/// The request is pinned, and was in the receive queue when it was pinned.
#[must_use]
pub(crate) struct Pinned<T: XprtOps>(NonNull<Slot<T>>);

// SAFETY: A pin is a count, which any thread may decrement.
unsafe impl<T: XprtOps> Send for Pinned<T> {}
// SAFETY: Shared access gives `&Slot`, which is `Sync`.
unsafe impl<T: XprtOps> Sync for Pinned<T> {}

impl<T: XprtOps> Deref for Pinned<T> {
    type Target = Slot<T>;

    fn deref(&self) -> &Slot<T> {
        // SAFETY: Pinned by the invariants.
        unsafe { self.0.as_ref() }
    }
}

impl<T: XprtOps> Pinned<T> {
    /// Finds and pins the request `xid` (host order), unless it is pinned already. Takes the queue
    /// lock; does not sleep.
    ///
    /// # Safety
    ///
    /// `xprt` must be a live transport whose slots are `Slot<T>`.
    pub(super) unsafe fn lookup(xprt: *mut bindings::rpc_xprt, xid: u32) -> Option<Self> {
        // SAFETY: The transport is live, by this function's contract.
        let guard = unsafe { lock_queue(xprt) };
        // SAFETY: The function requires the queue lock, which is held.
        let rqst = unsafe { bindings::xprt_lookup_rqst(xprt, xid.to_be()) };
        // CAST: The first field of a slot.
        let slot = NonNull::new(rqst.cast::<Slot<T>>())
            // SAFETY: A request in the queue is live. `pinned` changes under the lock that is held.
            .filter(|slot| !unsafe { slot.as_ref().pinned.get().replace(true) });
        if slot.is_some() {
            // SAFETY: The request is in the queue, whose lock we hold.
            unsafe { bindings::xprt_pin_rqst(rqst) };
        }
        drop(guard);
        // INVARIANT: The request was pinned above, and had no other pin.
        slot.map(Self)
    }

    /// Releases the pin.
    ///
    /// # Safety
    ///
    /// The caller must hold the queue lock, and must not release the pin again.
    unsafe fn unpin(slot: &Slot<T>) {
        // SAFETY: By this function's contract we hold the queue lock, under which `pinned`
        // changes, and the request is pinned.
        unsafe {
            *slot.pinned.get() = false;
            bindings::xprt_unpin_rqst(slot.as_rqst());
        }
    }

    /// Copies the RPC message in `bytes` to the buffers that the upper layer decodes. The peer has
    /// already placed `placed` bytes in the page part.
    ///
    /// Head and tail are copied to the slot's own memory, the rest of the message to the pages. So
    /// the Receive buffer is free at once, and a slow task does not delay removal of the device.
    /// Returns the length of the whole message, and the number of bytes copied to the pages.
    ///
    /// The upper layer only estimates the length of the head. It splits a contiguous message by
    /// itself, so the parts keep their lengths, as over TCP. If a payload was placed, only this
    /// function knows what comes before the payload: everything, as a placed payload is the last
    /// item of its Reply. (Some peers send its pad, which is dropped: a message without a pad has a
    /// multiple of four bytes.)
    ///
    /// # Errors
    ///
    /// `EIO` if the head exceeds the memory for Replies; any other excess is truncated.
    #[inline(always)]
    fn deliver(&self, bytes: &[u8], placed: usize) -> Result<(usize, usize)> {
        let reply = self.reply_buf();
        if placed == 0 {
            if reply.fill_head(bytes) {
                return Ok((bytes.len(), 0));
            }
            let (head, rest) = bytes.split_at(reply.head_len());
            let copied = reply.fill_pages(0, rest);
            let rest = &rest[copied..];
            if reply.fill_tail(rest) && reply.fill_head(head) {
                return Ok((bytes.len(), copied));
            }
            // As over TCP, a message longer than the buffers is truncated.
            let kept = self.keep(head, Some(rest))?;
            return Ok((head.len() + copied + kept, copied));
        }
        let head = &bytes[..bytes.len() & !3];
        // A peer that was offered room for the roundup may have placed it. illumos returns the
        // length of the whole chunk if the READ has failed.
        let placed = placed.min(reply.page_len().next_multiple_of(4));
        let aligned = placed.next_multiple_of(4);
        // A pad that does not fit the pages is in the tail. A head that is longer than planned
        // overwrites the tail, so the pad is written again.
        let pad = aligned.saturating_sub(reply.page_len());
        let (len, room) = (head.len(), reply.head_len());
        let as_planned = len <= room && pad <= reply.tail_len();
        // The usual Reply has a head of the length that the upper layer has estimated.
        if !(as_planned && len == room && reply.fill_head(head)) {
            self.keep(head, (!as_planned).then_some(&[0; 3][..pad]))?;
        }
        Ok((len + arrived(head, placed), 0))
    }

    /// Copies `head` to the slot's memory, as the head of the Reply. If there is a `tail`, also
    /// copies as much of it as there is room for, as the tail. Returns the number of bytes of the
    /// tail that were copied.
    ///
    /// # Errors
    ///
    /// `EIO` if the head is longer than the slot's memory for Replies.
    fn keep(&self, head: &[u8], tail: Option<&[u8]>) -> Result<usize> {
        // SAFETY: By the invariants of `Slot` the field does not change while the request is
        // pinned.
        let memory = unsafe { &*self.reply.get() };
        let room = memory.len().checked_sub(head.len()).ok_or(EIO)?;
        let tail = tail.map(|tail| &tail[..tail.len().min(room)]);
        // SAFETY: While the request is pinned and the RPC has not completed, only the holder of the
        // pin writes to the memory. Its length was checked above.
        let copy = |bytes: &[u8], at: usize| unsafe {
            let place = memory.as_ptr().add(at);
            copy_bytes(bytes.as_ptr(), place, bytes.len());
            core::slice::from_raw_parts(place, bytes.len())
        };
        let (head, tail) = (copy(head, 0), tail.map(|tail| copy(tail, head.len())));
        let rqst = self.as_rqst();
        // SAFETY: While the request is pinned and the RPC has not completed, only the holder of the
        // pin writes to the buffers. The memory of both parts lives as long as the slot.
        unsafe {
            XdrBuf::redirect(&raw mut (*rqst).rq_rcv_buf, head, tail);
            XdrBuf::redirect(&raw mut (*rqst).rq_private_buf, head, tail);
        }
        Ok(tail.map_or(0, |tail| tail.len()))
    }

    /// Completes the RPC with the message in `bytes`; the peer has already placed `placed` bytes of
    /// it in the pages. Returns the number of bytes copied to the pages. Takes the queue lock; does
    /// not sleep.
    ///
    /// # Errors
    ///
    /// `EIO` if the head of the message is longer than the slot's memory for Replies; the RPC
    /// completes with the same error. Any other message that is too long is truncated. `EIO` also
    /// if memory of the request is still lent, which is a bug; the RPC does not complete then.
    #[inline(always)]
    pub(crate) fn complete_inline(self, bytes: &[u8], placed: usize) -> Result<usize> {
        if kernel::warn_on!(!self.lender.has_all()) {
            return Err(EIO);
        }
        let delivered = self.deliver(bytes, placed);
        self.finish(delivered.map(|(len, _)| len));
        delivered.map(|(_, copied)| copied)
    }

    /// Completes the RPC with a message of `Ok` bytes that is in its buffers, or with an error.
    /// Takes the queue lock; does not sleep.
    ///
    /// If memory of the request is still lent, which is a bug, the RPC does not complete.
    #[inline(always)]
    pub(crate) fn complete(self, result: Result<usize>) {
        if !kernel::warn_on!(!self.lender.has_all()) {
            self.finish(result);
        }
    }

    /// Completes the RPC, none of whose memory is lent.
    #[inline(always)]
    fn finish(self, result: Result<usize>) {
        let this = ManuallyDrop::new(self);
        this.put_cong_of_process();
        let rqst = this.as_rqst();
        // SAFETY: The request, its task and its transport stay while it is pinned.
        let (task, xprt) = unsafe { ((*rqst).rq_task, (*rqst).rq_xprt) };
        let copied = match result {
            // As over TCP, a message longer than the buffers is truncated.
            // CAST: Messages are shorter than 2 GiB: their lengths are 32 bits in `xdr_buf`.
            Ok(len) => len.min(this.reply_buf().total()) as i32,
            Err(error) => {
                // Sets the error of the RPC and not `tk_status`, which a task that does not wait
                // yet writes itself.
                // SAFETY: The task stays while its request is pinned.
                unsafe { bindings::rpcrdma_shim_rpc_task_fail(task, error.to_errno()) };
                0
            }
        };
        // SAFETY: Task and transport stay while the request is pinned. The pin is released once, as
        // `self` is consumed.
        unsafe {
            let _guard = lock_queue(xprt);
            bindings::xprt_complete_rqst(task, copied);
            Self::unpin(&this);
        }
    }
}

impl<T: XprtOps> Drop for Pinned<T> {
    fn drop(&mut self) {
        let rqst = self.as_rqst();
        // SAFETY: The pin keeps the request and its transport, and is released once.
        unsafe {
            let _guard = lock_queue((*rqst).rq_xprt);
            Self::unpin(self);
        }
    }
}

mod pool;
mod rpc_buf;
