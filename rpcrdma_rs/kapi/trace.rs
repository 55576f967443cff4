// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Trace events: system `rpcrdma`, with the event names of the C module, and most field names
//! (`Documentation/tracing.rst` has the others).
//!
//! For each event of `c/trace_{clnt,svc,device}.h` there is a function `trace_<event>`, safe to
//! call in any context. While an event is disabled the call is one no-op instruction in the caller:
//! the static key of the tracepoint is tested inline, and only an enabled event calls C. Arguments
//! are always evaluated. A [`Task`], a [`Peer`] and an [`Mr`] are read only for an enabled
//! event, and so is a [`Lazy`] argument.
//!
//! C headers: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h),
//! `c/trace_{clnt,svc,device}.h`
//!
//! `kernel::declare_trace!` does the same for events that the kernel's own bindings know;
//! ours are known to the bindings of this crate only.

pub(crate) use super::rdma::Cid;
use super::{
    bindings,
    ext::addr::SockAddr,
    rdma::{
        client::DeviceEvents,
        mr::Mr, //
    },
    sunrpc::{
        ops::XprtOps,
        rqst::Slot,
        xprt::Xprt, //
    }, //
};
use core::marker::PhantomData;
use kernel::{
    ffi::{
        c_char,
        c_int,
        c_ulong, //
    },
    prelude::*,
};

/// The RPC task of an event: the task that uses a slot.
///
/// # Invariants
///
/// The request, its task and the task's client are valid during `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a>(*mut bindings::rpc_rqst, PhantomData<&'a ()>);

impl<'a> Task<'a> {
    /// Returns the task whose request is in `slot`.
    pub(crate) fn of<T: XprtOps>(slot: &'a Slot<T>) -> Self {
        // INVARIANT: The holder of a slot owns it for a task, or pins it.
        Self(slot.as_rqst(), PhantomData)
    }
}

/// The peer of an event: the server of a client transport.
///
/// # Invariants
///
/// The pointer is valid during `'a` for reads of a `sockaddr_storage`.
#[derive(Clone, Copy)]
pub(crate) struct Peer<'a>(*const bindings::sockaddr, PhantomData<&'a ()>);

impl<'a> Peer<'a> {
    /// Returns the server of `xprt`.
    pub(crate) fn of<T: XprtOps>(xprt: &'a Xprt<T>) -> Self {
        // INVARIANT: The transport is valid during `'a`.
        // SAFETY: The transport is valid as long as it is borrowed; no reference is made.
        let addr = unsafe { &raw const (*xprt.as_ptr()).addr };
        Self(addr.cast(), PhantomData)
    }
}

/// Why a version was chosen, as `xprtrdma_version` shows it.
///
/// The order is that of `rpcrdma_show_version_why` in `c/trace_clnt.h`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum VersionReason {
    /// The administrator has not enabled version 2.
    NotAsked,
    /// The server has answered in version 2.
    Agreed,
    /// The server has answered with ERR_VERS.
    Refused,
    /// The server did not answer, or disconnected. The connection is closed.
    Unanswered,
    /// Version 2 is not requested, because the server recently failed to handle the request.
    Avoided,
}

/// The transfer mode of the arguments or of the results, as `xprtrdma_marshal` shows it.
///
/// The order is that of `rpcrdma_show_transfer_mode` in `c/trace_clnt.h`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum TransferMode {
    /// Inline results, or inline arguments without pages.
    Inline,
    /// Arguments copied into one buffer.
    PullUp,
    /// Arguments whose pages are sent in place.
    Mapped,
    /// Read chunk.
    ReadList,
    /// Position-Zero Read chunk.
    PositionZero,
    /// Write chunk.
    WriteList,
    /// Reply chunk.
    ReplyChunk,
}

/// An argument of a trace event, and its C type.
///
/// # Safety
///
/// A pointer that `into_c` returns must be valid for as long as `self` is, for reading as its C
/// type: an address of either family, a C string or a memory region.
unsafe trait Argument: Copy {
    type C;

    fn into_c(self) -> Self::C;
}

/// An argument that is computed only for an enabled event.
#[derive(Clone, Copy)]
pub(crate) struct Lazy<F>(pub(crate) F);

// SAFETY: `into_c` returns a number, and no pointer.
unsafe impl<F: Fn() -> TransferMode + Copy> Argument for Lazy<F> {
    type C = u32;

    #[inline(always)]
    fn into_c(self) -> u32 {
        (self.0)().into_c()
    }
}

macro_rules! impl_argument {
    ($($(#[$safety:meta])* $ty:ty => $c:ty, |$this:ident| $value:expr;)*) => {$(
        // SAFETY: The value is no pointer, or it points to an object that `self` borrows: a
        // `SockAddr` or a `sockaddr_storage`, which are initialised and larger than an address of
        // either family; a C string; or the region of an `Mr`.
        unsafe impl Argument for $ty {
            type C = $c;

            #[inline(always)]
            fn into_c(self) -> $c {
                let $this = self;
                $value
            }
        }
    )*};
}

impl_argument! {
    bool => bool, |this| this;
    u32 => u32, |this| this;
    u64 => u64, |this| this;
    usize => c_ulong, |this| this as c_ulong;
    c_int => c_int, |this| this;
    TransferMode => u32, |this| this as u32;
    Task<'_> => bindings::rpcrdma_trace_task, |this| this.numbers();
    Peer<'_> => *const bindings::sockaddr, |this| this.0;
    &Mr => *const bindings::ib_mr, |this| this.as_raw();
    Cid => bindings::rpcrdma_trace_cid, |this| bindings::rpcrdma_trace_cid {
        queue: this.queue,
        completion: this.completion,
    };
    &SockAddr => *const bindings::sockaddr, |this| this.as_ptr();
    &CStr => *const c_char, |this| this.as_char_ptr();
}

impl Task<'_> {
    /// Returns the numbers of the task and of its RPC client, as the trace events print them.
    fn numbers(self) -> bindings::rpcrdma_trace_task {
        // SAFETY: The request and its task are valid by the type's invariant, and so is the client,
        // if the task has one.
        unsafe {
            let task = (*self.0).rq_task;
            let client = (*task).tk_client;
            bindings::rpcrdma_trace_task {
                task: u32::from((*task).tk_pid),
                client: if client.is_null() {
                    u32::MAX
                } else {
                    (*client).cl_clid
                },
            }
        }
    }
}

/// Returns whether a tracepoint is enabled: a no-op instruction, which is patched to a jump while
/// it is.
///
/// `kernel::jump_label::static_branch_unlikely!` does the same, but lets the compiler believe that
/// the branch may change memory, so that values are read again after each event that an
/// RPC passes. The C macro makes no such claim either.
#[cfg(CONFIG_JUMP_LABEL)]
macro_rules! enabled {
    ($tracepoint:path) => {
        'enabled: {
            kernel::asm!(
                include!(concat!(
                    env!("OBJTREE"),
                    "/rust/kernel/generated_arch_static_branch_asm.rs"
                ));
                l_yes = label { break 'enabled true },
                symb = sym $tracepoint,
                off = const core::mem::offset_of!(bindings::tracepoint, key),
                branch = const 0,
                options(nomem, nostack, preserves_flags),
            );
            false
        }
    };
}

/// Returns whether a tracepoint is enabled.
#[cfg(not(CONFIG_JUMP_LABEL))]
macro_rules! enabled {
    ($tracepoint:path) => {
        kernel::jump_label::static_branch_unlikely!($tracepoint, bindings::tracepoint, key)
    };
}

/// Declares the function `trace_<event>` for each event.
macro_rules! events {
    ($($(#[$attr:meta])* $event:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        kernel::macros::paste! {
            $(#[$attr])*
            #[inline(always)]
            pub(crate) fn [<trace_ $event>]($($arg: $ty),*) {
                // SAFETY: `c/trace_{clnt,svc,device}.c` define the tracepoint, and with it its
                // static key.
                if unsafe { enabled!(bindings::[<__tracepoint_ $event>]) } {
                    // SAFETY: Arguments are valid by the trait `Argument` during this call,
                    // and the events keep copies of what they show.
                    unsafe { bindings::[<rust_do_trace_ $event>]($(Argument::into_c($arg)),*) };
                }
            }
        }
    )*};
}

// Devices.
events! {
    /// A device was added.
    rpcrdma_client_add_one(device: &CStr);
    /// A device is being removed, and its users are notified.
    rpcrdma_client_remove_one(device: &CStr);
    /// Device removal waits for the remaining users.
    rpcrdma_client_wait_on(device: &CStr);
    /// The device has no user left.
    rpcrdma_client_remove_one_done(device: &CStr);
}

// The client.
events! {
    /// A connect is due in `delay` jiffies.
    xprtrdma_op_connect(peer: Peer<'_>, delay: c_ulong);
    /// An attempt to connect has ended. `rc` is zero or an errno. `status` is 1 if the transport is
    /// connected, and `rc` otherwise.
    xprtrdma_connect(peer: Peer<'_>, rc: c_int, status: c_int);
    /// A connection was shut down.
    xprtrdma_disconnect(peer: Peer<'_>, rc: c_int, status: c_int);
    /// Inline thresholds in bytes: the agreed ones, and those that the client offered.
    xprtrdma_inline_thresh(
        src: &SockAddr,
        dst: Peer<'_>,
        inline_send: u32,
        inline_recv: u32,
        max_send: u32,
        max_recv: u32,
    );
    /// The version of RPC-over-RDMA was negotiated: `why` is a [`VersionReason`].
    xprtrdma_version(peer: Peer<'_>, vers: u32, why: u32);
    /// A message about properties tells a Receive size in octets: `proc` is its procedure.
    xprtrdma_property(peer: Peer<'_>, proc: u32, rbsiz: u32);
    /// `count` memory regions were allocated.
    xprtrdma_createmrs(peer: Peer<'_>, count: usize);
    /// The memory of an aborted request is being fenced.
    xprtrdma_mrs_zap(task: Task<'_>);

    /// A segment of a Read chunk was encoded.
    xprtrdma_chunk_read(task: Task<'_>, position: u32, mr: &Mr);
    /// A segment of a Write chunk was encoded.
    xprtrdma_chunk_write(task: Task<'_>, mr: &Mr);
    /// A segment of a Reply chunk was encoded.
    xprtrdma_chunk_reply(task: Task<'_>, mr: &Mr);
    /// A Call was marshalled: the lengths in bytes of its transport header and of the parts of its
    /// message, and the transfer modes of its arguments and its results.
    #[expect(clippy::too_many_arguments, reason = "the fields of the C module's event")]
    xprtrdma_marshal(
        task: Task<'_>,
        xid: u32,
        hdrlen: usize,
        headlen: usize,
        pagelen: usize,
        taillen: usize,
        arguments: Lazy<impl Fn() -> TransferMode + Copy>,
        results: Lazy<impl Fn() -> TransferMode + Copy>,
    );
    /// A Call could not be marshalled, for now (`EAGAIN`, `ENOBUFS`) or permanently.
    xprtrdma_marshal_failed(task: Task<'_>, xid: u32, ret: c_int);

    /// A chain that ends with a Send was posted.
    xprtrdma_post_send(task: Task<'_>, cid: Cid, wrs: u32);
    /// A chain that ends in a Send could not be posted.
    xprtrdma_post_send_err(task: Task<'_>, rc: c_int);
    /// A chain of LOCAL_INVs could not be posted.
    xprtrdma_post_linv_err(rc: c_int);
    /// `count` Receives were posted, so that `posted` are posted in all.
    xprtrdma_post_recvs(queue: u32, count: usize, posted: u32);
    /// Receives could not be posted.
    xprtrdma_post_recvs_err(queue: u32, rc: c_int);

    /// Memory was mapped for registration.
    xprtrdma_mr_map(mr: &Mr);
    /// A registration is part of the chain being posted.
    xprtrdma_mr_fastreg(mr: &Mr);
    /// A local invalidation is part of the chain being posted.
    xprtrdma_mr_localinv(mr: &Mr);
    /// The server has invalidated a memory region.
    xprtrdma_mr_reminv(mr: &Mr);
    /// A fenced memory region was unmapped.
    xprtrdma_mr_unmap(mr: &Mr);
    /// A memory region was allocated.
    xprtrdma_frwr_alloc(mr: &Mr);

    /// A Reply was matched to its Call. `credits` is its grant, limited to the credits requested.
    xprtrdma_reply(task: Task<'_>, xid: u32, credits: u32);
    /// A message of an unknown version was received.
    xprtrdma_reply_vers_err(peer: Peer<'_>, xid: u32, version: u32, proc: u32);
    /// A Reply to no Call of this connection was received.
    xprtrdma_reply_rqst_err(peer: Peer<'_>, xid: u32, version: u32, proc: u32);
    /// A message too short for the four fixed words was received.
    xprtrdma_reply_short_err(peer: Peer<'_>, xid: u32, version: u32, proc: u32);
    /// A Reply with a malformed transport header was received.
    xprtrdma_reply_hdr_err(peer: Peer<'_>, xid: u32, version: u32, proc: u32);
    /// The server answered ERR_VERS, with the versions that it speaks.
    xprtrdma_err_vers(task: Task<'_>, xid: u32, min: u32, max: u32);
    /// The server answered ERR_CHUNK.
    xprtrdma_err_chunk(task: Task<'_>, xid: u32);
    /// The server answered with an unknown error.
    xprtrdma_err_unrecognized(task: Task<'_>, xid: u32, code: u32);
    /// `fixup` bytes of an inline result were copied to the pages of the request.
    xprtrdma_fixup(xid: u32, fixup: usize);
    /// A reverse-direction Call was received.
    xprtrdma_cb_call(peer: Peer<'_>, xid: u32);
    /// A Reply in the reverse direction is being sent.
    xprtrdma_cb_reply(peer: Peer<'_>, xid: u32);

    /// A chain that ends with a Send completed.
    xprtrdma_wc_send(cid: Cid, status: u32, vendor_err: u32);
    /// A chain of LOCAL_INVs completed.
    xprtrdma_wc_li_done(cid: Cid, status: u32, vendor_err: u32);
    /// A Receive completed.
    xprtrdma_wc_receive(cid: Cid, status: u32, vendor_err: u32, received: u32);
}

// The server.
events! {
    /// A connection was refused: no Protection Domain.
    svcrdma_pd_err(peer: &SockAddr, status: c_int);
    /// A connection was refused: no Queue Pair.
    svcrdma_qp_err(peer: &SockAddr, status: c_int);
    /// A connection was refused: no RDMA Read could ever be outstanding.
    svcrdma_initdepth_err(peer: &SockAddr, status: c_int);
    /// A connection was refused by the connection manager.
    svcrdma_accept_err(peer: &SockAddr, status: c_int);

    /// A Receive completed.
    svcrdma_wc_recv(cid: Cid, received: u32);
    /// A Receive was flushed.
    svcrdma_wc_recv_flush(cid: Cid, status: u32, vendor_err: u32);
    /// A Receive failed.
    svcrdma_wc_recv_err(cid: Cid, status: u32, vendor_err: u32);
    /// A transport header is well-formed; `hdrlen` is its length.
    svcrdma_decode_rqst(cid: Cid, xid: u32, vers: u32, credits: u32, proc: u32, hdrlen: usize);
    /// A message is too short for the four fixed words.
    svcrdma_decode_short_err(cid: Cid, hdrlen: usize);
    /// A message has an unknown version.
    svcrdma_decode_badvers_err(cid: Cid, xid: u32, vers: u32, credits: u32, proc: u32);
    /// A message that needs no answer was dropped.
    svcrdma_decode_drop_err(cid: Cid, xid: u32, vers: u32, credits: u32, proc: u32);
    /// A message has an unknown or reserved procedure.
    svcrdma_decode_badproc_err(cid: Cid, xid: u32, vers: u32, credits: u32, proc: u32);
    /// A message has malformed chunk lists.
    svcrdma_decode_parse_err(cid: Cid, xid: u32, vers: u32, credits: u32, proc: u32);
    /// A segment of a Read chunk was decoded.
    svcrdma_decode_rseg(
        cid: Cid, segno: u32, position: u32, handle: u32, length: u32, offset: u64,
    );

    /// RDMA Reads of a Read list were posted.
    svcrdma_post_read_chunk(cid: Cid, sqecount: u32);
    /// RDMA Writes of a Write list were chained.
    svcrdma_post_write_chunk(cid: Cid, sqecount: u32);
    /// RDMA Writes of a Reply chunk were chained.
    svcrdma_post_reply_chunk(cid: Cid, sqecount: u32);
    /// The RDMA Reads of a Read list completed.
    svcrdma_wc_read(cid: Cid, totalbytes: usize);
    /// RDMA Reads were flushed.
    svcrdma_wc_read_flush(cid: Cid, status: u32, vendor_err: u32);
    /// RDMA Reads failed.
    svcrdma_wc_read_err(cid: Cid, status: u32, vendor_err: u32);
    /// A Call is complete with its Read chunks.
    svcrdma_read_finished(cid: Cid);

    /// A Send was posted; `inv_rkey` is the handle that it invalidates, or zero.
    svcrdma_post_send(cid: Cid, num_sge: u32, inv_rkey: u32);
    /// A Reply could not be sent.
    svcrdma_send_err(peer: &SockAddr, xid: u32, status: c_int);
    /// A message is answered with ERR_VERS.
    svcrdma_err_vers(xid: u32);
    /// A message is answered with ERR_CHUNK, or in version 2 with another error.
    svcrdma_err_chunk(xid: u32);
    /// A Send completed.
    svcrdma_wc_send(cid: Cid);
    /// A Send was flushed.
    svcrdma_wc_send_flush(cid: Cid, status: u32, vendor_err: u32);
    /// A Send failed.
    svcrdma_wc_send_err(cid: Cid, status: u32, vendor_err: u32);
    /// The client's first message has decided the version of RPC-over-RDMA.
    svcrdma_version(peer: &SockAddr, vers: u32);
    /// A message about properties tells a Receive size in octets: `proc` is its procedure.
    svcrdma_property(peer: &SockAddr, proc: u32, rbsiz: u32);
    /// A chain waits for `needed` entries of the Send Queue.
    svcrdma_sq_full(needed: u32, avail: u32, depth: u32);
    /// A chain that waited got its entries of the Send Queue.
    svcrdma_sq_retry(needed: u32, avail: u32, depth: u32);
    /// Posting to the Send Queue failed.
    svcrdma_sq_post_err(peer: &SockAddr, status: c_int);
}

/// Passes events of devices to trace events.
pub(crate) struct TraceDevices;

impl DeviceEvents for TraceDevices {
    fn added(&self, device: &CStr) {
        trace_rpcrdma_client_add_one(device);
    }

    fn removing(&self, device: &CStr) {
        trace_rpcrdma_client_remove_one(device);
    }

    fn waiting(&self, device: &CStr) {
        trace_rpcrdma_client_wait_on(device);
    }

    fn removed(&self, device: &CStr) {
        trace_rpcrdma_client_remove_one_done(device);
    }
}
