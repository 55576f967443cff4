// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The operations of server transports: a trait each for listeners and connections, and the
//! `svc_xprt_ops` that call them.
//!
//! C header: [`include/linux/sunrpc/svc_xprt.h`](srctree/include/linux/sunrpc/svc_xprt.h)

use super::{
    super::bindings,
    addr::SockAddr,
    net::Net,
    svc::{
        Class,
        NewXprt,
        NewXprtArgs,
        SvcXprt, //
    },
    svc_reply::{
        HeldPages,
        Reply, //
    },
    svc_rqst::{
        CallContext,
        CallRef,
        Delivered,
        Receiver, //
    }, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::null_mut, //
};
use kernel::{
    error::from_result,
    ffi,
    page::PAGE_SIZE,
    prelude::*, //
};

/// A listening endpoint.
#[vtable]
pub(crate) trait Listener: Sized + Send + Sync + 'static {
    /// The type of the connections that it accepts.
    type Connection: Connection;

    /// Accepts a waiting connection, if there is one, and creates it with `args`. Called on a
    /// service thread; may sleep.
    ///
    /// Called repeatedly until [`SvcXprt::clear_conn`], never concurrently.
    fn accept<'a>(
        this: &SvcXprt<Self>,
        args: NewXprtArgs<'a, Self::Connection>,
    ) -> Option<NewXprt<'a, Self::Connection>>;

    /// Called when the listener is closed. No connection is accepted afterwards. May sleep.
    fn detach(this: &SvcXprt<Self>);
}

/// The transport's state of a Call of `T`.
type CallState<T> = <<T as Connection>::Call as CallContext>::State;

/// A connection. All functions run on service threads and may sleep, unless documented otherwise.
#[vtable]
pub(crate) trait Connection: Sized + Send + Sync + 'static {
    /// The context of a Call, from its reception until its release.
    type Call: CallContext;
    /// A received message, from [`Self::next`] to [`Self::receive`].
    type Incoming;

    /// Returns the next received message; `None`, after [`SvcXprt::clear_data`], if there is none.
    ///
    /// Never called concurrently for one connection.
    fn next(this: &SvcXprt<Self>) -> Option<Self::Incoming>;

    /// Delivers a received message to the service as a Call. Returns `None` if it is not a Call, or
    /// cannot be delivered yet.
    ///
    /// May run on several threads concurrently.
    fn receive<'a>(
        this: &SvcXprt<Self>,
        receiver: Receiver<'a, Self::Call>,
        incoming: Self::Incoming,
    ) -> Option<Delivered<'a>>;

    /// Sends the reply to `call`. If it needs pages of the reply after it returns, it has to take
    /// them, see [`Reply::take_pages`].
    ///
    /// # Errors
    ///
    /// Errors are only traced. If no reply is sent, this function has to close the connection.
    fn send(
        this: &SvcXprt<Self>,
        reply: &mut Reply<'_>,
        call: CallRef<'_, CallState<Self>>,
    ) -> Result;

    /// Records that the reply to `call` will have a payload of `length` bytes at `offset` that is
    /// eligible for direct placement. Not called if the security service protects the reply as a
    /// whole (krb5i, krb5p), because then no part of the reply may be placed directly.
    ///
    /// # Errors
    ///
    /// An error fails the Call. A payload that is too long for its chunk is no error here; it is
    /// reported when the Reply is sent.
    fn result_payload(
        this: &SvcXprt<Self>,
        call: CallRef<'_, CallState<Self>>,
        offset: u32,
        length: u32,
    ) -> Result;

    /// Called when the service has finished `call`, whether or not it sent a reply. Process
    /// context, possibly after the connection was closed. Must not wait for other Calls.
    fn release(this: &SvcXprt<Self>, call: Self::Call);

    /// Called once when the connection is closed, not always on a service thread. Calls may still
    /// be in progress.
    fn detach(this: &SvcXprt<Self>);
}

/// Returns whether the data that a READ has just added to `reply`, `length` bytes at `offset`,
/// begins in a page that holds results of other operations. nfsd reads into the page behind those
/// results, which is another page, so the operation has to fail. Data at the beginning of a page,
/// or behind words of the READ itself, is in the right page. A READ of no octets, as at the end of
/// the file, may be anywhere.
fn begins_in_used_page(reply: &bindings::xdr_buf, offset: u32, length: u32) -> bool {
    /// The words of a READ before its data: operation, status, end of file, length.
    const WORDS: u64 = 16;
    let (offset, length) = (u64::from(offset), u64::from(length).next_multiple_of(4));
    // The first payload follows the head. That of a READLINK, which may be anywhere, does not end
    // with the reply as it is now.
    // CAST: A `usize` has at most 64 bits.
    let behind_head = offset.saturating_sub(reply.head[0].iov_len as u64);
    length != 0
        && behind_head != 0
        && offset + length == u64::from(reply.len)
        && behind_head % PAGE_SIZE as u64 > WORDS
}

/// A table without any operation.
pub(super) const NO_OPS: bindings::svc_xprt_ops = bindings::svc_xprt_ops {
    xpo_create: None,
    xpo_accept: None,
    xpo_has_wspace: None,
    xpo_recvfrom: None,
    xpo_sendto: None,
    xpo_result_payload: None,
    xpo_release_ctxt: None,
    xpo_detach: None,
    xpo_free: None,
    xpo_kill_temp_xprt: None,
    xpo_handshake: None,
};

/// `xpo_create`.
///
/// # Safety
///
/// Called by sunrpc only, which holds a reference to the module for the new transport.
pub(super) unsafe extern "C" fn create_thunk<C: Class>(
    serv: *mut bindings::svc_serv,
    net: *mut bindings::net,
    sa: *mut bindings::sockaddr,
    salen: ffi::c_int,
    _flags: ffi::c_int,
) -> *mut bindings::svc_xprt {
    // SAFETY: sunrpc calls through a registered class, with valid arguments.
    let args = unsafe { NewXprtArgs::new::<C>(serv, net) };
    // SAFETY: sunrpc passes the namespace, which is valid during the call.
    let net = unsafe { Net::from_raw(net) };
    let create = || -> Result<_> {
        // SAFETY: sunrpc passes an address of `salen` bytes.
        let addr = unsafe { SockAddr::from_raw(sa, usize::try_from(salen)?) }?;
        C::create(args, net, &addr)
    };
    match create() {
        Ok(xprt) => xprt.into_raw(),
        Err(e) => e.to_ptr(),
    }
}

/// The table of the listeners of type `T`.
pub(super) struct ListenerOps<T>(PhantomData<T>);

impl<T: Listener> ListenerOps<T> {
    /// The table.
    pub(super) const OPS: bindings::svc_xprt_ops = bindings::svc_xprt_ops {
        xpo_accept: Some(Self::accept),
        xpo_has_wspace: Some(Self::has_wspace),
        xpo_release_ctxt: Some(Self::release_ctxt),
        xpo_detach: Some(Self::detach),
        xpo_free: Some(SvcXprt::<T>::free_thunk),
        xpo_kill_temp_xprt: Some(kill_temp_xprt),
        ..NO_OPS
    };

    /// # Safety
    ///
    /// Called by sunrpc; `xprt` is a live listener.
    unsafe extern "C" fn accept(xprt: *mut bindings::svc_xprt) -> *mut bindings::svc_xprt {
        // SAFETY: `xprt` is a live listener, by this function's contract, and only listeners of
        // this type have this table.
        let this = unsafe { SvcXprt::<T>::from_raw(xprt) };
        // SAFETY: It is live, and stays so during the call.
        let args = unsafe { this.connection_args() };
        T::accept(this, args).map_or(null_mut(), NewXprt::into_raw)
    }

    /// # Safety
    ///
    /// Called by sunrpc.
    unsafe extern "C" fn has_wspace(_xprt: *mut bindings::svc_xprt) -> ffi::c_int {
        1
    }

    /// # Safety
    ///
    /// Called by sunrpc, for every transport; a listener has no contexts.
    unsafe extern "C" fn release_ctxt(_: *mut bindings::svc_xprt, _: *mut ffi::c_void) {}

    /// # Safety
    ///
    /// Called by sunrpc; `xprt` is a live listener.
    unsafe extern "C" fn detach(xprt: *mut bindings::svc_xprt) {
        // SAFETY: `xprt` is a live listener, by this function's contract, and only listeners of
        // this type have this table.
        T::detach(unsafe { SvcXprt::<T>::from_raw(xprt) });
    }
}

/// The table of the connections of type `T`.
pub(super) struct ConnectionOps<T>(PhantomData<T>);

impl<T: Connection> ConnectionOps<T> {
    /// The table.
    pub(super) const OPS: bindings::svc_xprt_ops = bindings::svc_xprt_ops {
        xpo_has_wspace: Some(SvcXprt::<T>::has_wspace_thunk),
        xpo_recvfrom: Some(Self::recvfrom),
        xpo_sendto: Some(Self::sendto),
        xpo_result_payload: Some(Self::result_payload),
        xpo_release_ctxt: Some(Self::release_ctxt),
        xpo_detach: Some(Self::detach),
        xpo_free: Some(SvcXprt::<T>::free_later_thunk),
        xpo_kill_temp_xprt: Some(kill_temp_xprt),
        ..NO_OPS
    };

    /// # Safety
    ///
    /// Called by sunrpc, on the thread of `rqstp`, which holds its transport and the BUSY bit.
    unsafe extern "C" fn recvfrom(rqstp: *mut bindings::svc_rqst) -> ffi::c_int {
        // SAFETY: We are on the thread of `rqstp`, by this function's contract.
        let xprt = unsafe { (*rqstp).rq_xprt };
        // SAFETY: The thread holds its transport, by this function's contract, and only connections
        // of this type have this table.
        let this = unsafe { SvcXprt::<T>::from_raw(xprt) };
        let incoming = T::next(this);
        // SAFETY: The thread has the BUSY bit, and gives it up with this call.
        unsafe { bindings::svc_xprt_received(xprt) };
        // SAFETY: We are on the thread of `rqstp`, by this function's contract.
        let receiver = unsafe { Receiver::new(rqstp) };
        incoming
            .and_then(|incoming| T::receive(this, receiver, incoming))
            .map_or(0, |delivered| delivered.finish(xprt))
    }

    /// Calls `f` with the context of the Call of `rqstp`, if it has one.
    ///
    /// # Safety
    ///
    /// On the thread of `rqstp`, which holds its transport, one of this type.
    unsafe fn with_call<R>(
        rqstp: *mut bindings::svc_rqst,
        f: impl FnOnce(&SvcXprt<T>, CallRef<'_, CallState<T>>, &mut HeldPages) -> R,
    ) -> Option<R> {
        // SAFETY: We are on the thread of `rqstp`, by this function's contract.
        let (xprt, ctxt) = unsafe { ((*rqstp).rq_xprt, (*rqstp).rq_xprt_ctxt) };
        if ctxt.is_null() {
            return None;
        }
        // SAFETY: The thread holds its transport, which is of this type, by this function's
        // contract.
        let this = unsafe { SvcXprt::<T>::from_raw(xprt) };
        // SAFETY: The pointer was made by `Receiver::deliver` or went through deferral; it stays
        // the thread's, as `ManuallyDrop` says.
        let mut call = ManuallyDrop::new(unsafe { T::Call::from_ptr(ctxt) });
        let (call, held) = CallRef::new(&mut *call);
        Some(f(this, call, held))
    }

    /// # Safety
    ///
    /// Called by sunrpc, on the thread of `rqstp`, which holds its transport.
    unsafe extern "C" fn sendto(rqstp: *mut bindings::svc_rqst) -> ffi::c_int {
        let send = |this: &SvcXprt<T>, call: CallRef<'_, _>, held: &mut HeldPages| {
            // SAFETY: We are on the thread of `rqstp`, by this function's contract; this is what
            // was held with the Call.
            let mut reply = unsafe { Reply::new(rqstp, held) };
            let sent = T::send(this, &mut reply, call);
            reply.finish();
            sent
        };
        // SAFETY: We are on the thread of `rqstp`, which holds its transport, by this function's
        // contract; only connections of this type have this table.
        let sent = unsafe { Self::with_call(rqstp, send) };
        from_result(|| sent.unwrap_or(Err(EINVAL)).map(|()| 0))
    }

    /// # Safety
    ///
    /// Called by sunrpc, on the thread of `rqstp`, which holds its transport.
    unsafe extern "C" fn result_payload(
        rqstp: *mut bindings::svc_rqst,
        offset: ffi::c_uint,
        length: ffi::c_uint,
    ) -> ffi::c_int {
        // SAFETY: We are on the thread of `rqstp`, which is encoding the reply.
        if unsafe { begins_in_used_page(&(*rqstp).rq_res, offset, length) } {
            return EIO.to_errno();
        }
        // SAFETY: The thread is processing a Call, so its `rq_authop` is set.
        let flavor = unsafe { bindings::svc_auth_flavor(rqstp) };
        if [
            bindings::rpc_auth_flavors_RPC_AUTH_GSS_KRB5I,
            bindings::rpc_auth_flavors_RPC_AUTH_GSS_KRB5P,
        ]
        .contains(&flavor)
        {
            return 0;
        }
        // SAFETY: We are on the thread of `rqstp`, which holds its transport, by this function's
        // contract; only connections of this type have this table.
        let noted = unsafe {
            Self::with_call(rqstp, |this, call, _| {
                T::result_payload(this, call, offset, length)
            })
        };
        from_result(|| noted.unwrap_or(Ok(())).map(|()| 0))
    }

    /// # Safety
    ///
    /// Called by sunrpc; `xprt` is held by the caller, and `ctxt` is null or the context of a Call
    /// that was received on it.
    unsafe extern "C" fn release_ctxt(xprt: *mut bindings::svc_xprt, ctxt: *mut ffi::c_void) {
        if ctxt.is_null() {
            return;
        }
        // SAFETY: The caller holds the transport, by this function's contract, and only connections
        // of this type have this table.
        let this = unsafe { SvcXprt::<T>::from_raw(xprt) };
        // SAFETY: The pointer was made by `Receiver::deliver` and is given up by the caller.
        T::release(this, unsafe { T::Call::from_ptr(ctxt) });
    }

    /// # Safety
    ///
    /// Called by sunrpc; `xprt` is a live connection.
    unsafe extern "C" fn detach(xprt: *mut bindings::svc_xprt) {
        // SAFETY: `xprt` is a live connection, by this function's contract, and only connections of
        // this type have this table.
        T::detach(unsafe { SvcXprt::<T>::from_raw(xprt) });
    }
}

/// `xpo_kill_temp_xprt`: does nothing, as closing disconnects at once.
///
/// # Safety
///
/// Called by sunrpc.
unsafe extern "C" fn kill_temp_xprt(_xprt: *mut bindings::svc_xprt) {}
