// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Callbacks of a server to its client: a client transport (`struct rpc_xprt`) over the connection
//! of a server transport (RFC 8167).
//!
//! The client transport has no connection of its own and creates none. It lives no longer than its
//! users, which hold the server transport. A Call is encoded in its own memory and copied when it
//! is sent. The Reply arrives as a message of the server transport and is matched here.
//!
//! C header: [`include/linux/sunrpc/bc_xprt.h`](srctree/include/linux/sunrpc/bc_xprt.h)

use super::{
    super::{
        bindings,
        compat::this_module, //
    },
    addr::SockAddr,
    class::XprtClass,
    errno::{
        ebadslt,
        enotconn, //
    },
    ops::report_sent,
    svc::{
        is_connection_of,
        Class,
        SvcXprt, //
    },
    svc_ops::{
        Connection,
        Listener, //
    },
    text::{
        Strings,
        Text, //
    },
    xdr_buf::XdrBuf,
    xprt_lock::{
        lock_queue,
        set_window, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr::{
        addr_of_mut,
        null_mut, //
    }, //
};
use kernel::{
    ffi::c_int,
    prelude::*,
    sync::atomic::{
        Atomic,
        Full, //
    },
    time::msecs_to_jiffies, //
};

/// How long a callback waits for its reply.
const TIMEOUT_MS: u32 = 60_000;

/// A connection over which the server can call its client.
pub(crate) trait Callbacks: Connection {
    /// The class of the server transports.
    type Server: Class<Listener: Listener<Connection = Self>>;

    /// The largest number of concurrent callbacks.
    const CREDITS: u32;

    /// Returns the class of the client transports.
    fn class() -> &'static XprtClass<Self>;

    /// Returns the longest Call in bytes.
    fn max_call(this: &SvcXprt<Self>) -> usize;

    /// Sends the Call `xid`, in host order. Called by an RPC task with the send lock held. May
    /// sleep for memory, but must not wait for forward replies.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the connection is lost; `ENOBUFS` if the caller should retry after a delay.
    /// Any other error ends the callback.
    fn send_call(this: &SvcXprt<Self>, xid: u32, call: &XdrBuf) -> Result;
}

/// The client transport. sunrpc allocates it with this size.
#[repr(C)]
struct CallbackXprt {
    base: bindings::rpc_xprt,
    timeout: bindings::rpc_timeout,
    addr: Text<64>,
    strings: Strings,
}

impl<T: Callbacks> XprtClass<T> {
    /// Returns the class of the client transports over the connections of `T::Server`. Its
    /// identifier is that of the server's class with `XPRT_TRANSPORT_BC`.
    pub(crate) const fn for_callbacks(name: &'static CStr) -> Self {
        // The bit that stands for the backchannel is the sign bit.
        let ident = T::Server::IDENT | c_int::MIN;
        Self::with_setup(name, ident, setup::<T>, [c"", c""])
    }
}

impl<T: Callbacks> SvcXprt<T> {
    fn callback_xprt(&self) -> Option<*mut bindings::rpc_xprt> {
        // SAFETY: The field is written once, by `setup`; the transport has a reference to it.
        let xprt = unsafe { addr_of_mut!((*self.as_raw()).xpt_bc_xprt).read_volatile() };
        (!xprt.is_null()).then_some(xprt)
    }

    /// Completes the callback `xid`, in host order, with `reply`, or with an error if it has
    /// failed. `credits` is the number of concurrent callbacks that the message grants, if any.
    /// Does nothing if there is no such callback. Does not sleep.
    pub(crate) fn complete_callback(&self, xid: u32, credits: Option<u32>, reply: Result<&[u8]>) {
        let Some(xprt) = self.callback_xprt() else {
            return;
        };
        // SAFETY: The server transport holds a reference to the client transport. The window is set
        // before the request is completed, because completion passes its place to the next request.
        // Setting it takes the transport lock, which must not be taken under the queue lock. So the
        // request is looked up twice. The second lookup, the copy and the completion are one
        // critical section, because the client may reply twice.
        unsafe {
            let guard = lock_queue(xprt);
            let known = !bindings::xprt_lookup_rqst(xprt, xid.to_be()).is_null();
            drop(guard);
            if !known {
                return;
            }
            if let Some(credits) = credits {
                drop(set_window(xprt, credits));
            }
            let _guard = lock_queue(xprt);
            let rqst = bindings::xprt_lookup_rqst(xprt, xid.to_be());
            if !rqst.is_null() {
                let task = (*rqst).rq_task;
                let copied = reply
                    .and_then(|reply| fill(rqst, reply))
                    .unwrap_or_else(|error| {
                        bindings::rpcrdma_shim_rpc_task_fail(task, error.to_errno());
                        0
                    });
                bindings::xprt_complete_rqst(task, copied);
            }
        }
    }
}

/// Copies a reply to the buffer that the caller decodes. Returns its length in bytes.
///
/// # Errors
///
/// `EIO` if the reply is longer than the buffer.
///
/// # Safety
///
/// `rqst` waits for its reply, and the queue lock is held.
unsafe fn fill(rqst: *mut bindings::rpc_rqst, reply: &[u8]) -> Result<c_int> {
    // SAFETY: The request waits for its reply, by this function's contract, so both buffers are
    // initialised, and the head of the receive buffer is valid for its length.
    unsafe {
        addr_of_mut!((*rqst).rq_private_buf).copy_from(addr_of_mut!((*rqst).rq_rcv_buf), 1);
        let head = addr_of_mut!((*rqst).rq_private_buf.head[0]);
        if (*head).iov_len < reply.len() {
            return Err(EIO);
        }
        core::ptr::copy_nonoverlapping(reply.as_ptr(), (*head).iov_base.cast(), reply.len());
    }
    // CAST: A Receive buffer is much shorter than 2 GiB.
    Ok(reply.len() as c_int)
}

/// `->setup` of the class.
///
/// # Safety
///
/// Called by sunrpc; the server transport is live.
unsafe extern "C" fn setup<T: Callbacks>(
    args: *mut bindings::xprt_create,
) -> *mut bindings::rpc_xprt {
    // SAFETY: sunrpc passes its arguments, valid during the call, for a live server transport.
    match unsafe { create::<T>(&*args) } {
        Ok(xprt) => xprt,
        Err(e) => e.to_ptr(),
    }
}

/// # Errors
///
/// `EINVAL` if the server transport is no connection of `T`: sunrpc finds this class by the number
/// of the server's class, which another class may have as well.
///
/// # Safety
///
/// Called by sunrpc; the server transport is live.
unsafe fn create<T: Callbacks>(args: &bindings::xprt_create) -> Result<*mut bindings::rpc_xprt> {
    // SAFETY: The server transport is live, by this function's contract.
    if args.bc_xprt.is_null() || !unsafe { is_connection_of::<T::Server>(args.bc_xprt) } {
        return Err(EINVAL);
    }
    let module = this_module();
    // SAFETY: The address has that length.
    let addr = unsafe { SockAddr::from_raw(args.dstaddr, args.addrlen) }?;
    // SAFETY: The namespace is valid.
    let xprt = unsafe {
        bindings::xprt_alloc(args.net, size_of::<CallbackXprt>(), T::CREDITS, T::CREDITS)
    };
    if xprt.is_null() {
        return Err(ENOMEM);
    }
    let this = xprt.cast::<CallbackXprt>();
    // SAFETY: The memory is ours and has the size; the strings are part of it or static. The
    // server transport is live, and one of `T`, see above.
    unsafe {
        addr_of_mut!((*this).timeout).write(bindings::rpc_timeout {
            to_initval: msecs_to_jiffies(TIMEOUT_MS),
            to_maxval: msecs_to_jiffies(TIMEOUT_MS),
            ..Default::default()
        });
        addr_of_mut!((*this).addr).write(Text::new());
        (*this).addr.set(format_args!("{}", addr.display_ip()));
        addr_of_mut!((*this).strings).write(Strings::new(&addr));
        (*xprt).timeout = addr_of_mut!((*this).timeout);
        bindings::rpcrdma_shim_xprt_set_bound(xprt);
        bindings::rpcrdma_shim_xprt_set_connected(xprt);
        (*xprt).prot = (*T::class().as_ptr()).ident;
        (*xprt).xprt_class = T::class().as_ptr();
        (*xprt).ops = &CallbackOps::<T>::OPS;
        (*xprt).addr = *addr.storage();
        (*xprt).addrlen = addr.len();
        let server = SvcXprt::<T>::from_raw(args.bc_xprt);
        (*xprt).max_payload = T::max_call(server);
        let text = &mut (*xprt).address_strings;
        text[bindings::rpc_display_format_t_RPC_DISPLAY_ADDR as usize] = (*this).addr.as_ptr();
        (*this).strings.publish(text, addr.is_ipv6());
        // `destroy` drops this reference.
        bindings::__module_get(module);
        // The server transport owns this reference, and drops it when it is freed. The caller owns
        // the first reference.
        bindings::xprt_get(xprt);
        (*xprt).bc_xprt = args.bc_xprt;
        // Two RPC clients on one connection, or a write to `add_xprt` in sysfs, may create client
        // transports at the same time. Callbacks use the first one.
        let published = Atomic::from_ptr(addr_of_mut!((*args.bc_xprt).xpt_bc_xprt));
        if published.cmpxchg(null_mut(), xprt, Full).is_err() {
            // The new transport is not shared yet.
            CallbackOps::<T>::destroy(xprt);
            return Err(EEXIST);
        }
    }
    Ok(xprt)
}

/// The table of the client transports over connections of type `T`.
struct CallbackOps<T>(PhantomData<T>);

impl<T: Callbacks> CallbackOps<T> {
    const OPS: bindings::rpc_xprt_ops = bindings::rpc_xprt_ops {
        set_buffer_size: None,
        reserve_xprt: Some(bindings::xprt_reserve_xprt_cong),
        release_xprt: Some(bindings::xprt_release_xprt_cong),
        alloc_slot: Some(bindings::xprt_alloc_slot),
        free_slot: Some(bindings::xprt_free_slot),
        rpcbind: None,
        set_port: None,
        connect: Some(Self::connect),
        get_srcaddr: None,
        get_srcport: None,
        buf_alloc: Some(Self::buf_alloc),
        buf_free: Some(Self::buf_free),
        prepare_request: None,
        send_request: Some(Self::send_request),
        abort_send_request: None,
        wait_for_reply_request: Some(bindings::xprt_wait_for_reply_request_def),
        timer: None,
        release_request: Some(bindings::xprt_release_rqst_cong),
        close: Some(Self::close),
        destroy: Some(Self::destroy),
        set_connect_timeout: None,
        print_stats: None,
        enable_swap: None,
        disable_swap: None,
        inject_disconnect: Some(Self::inject_disconnect),
        bc_setup: None,
        bc_maxpayload: None,
        bc_num_slots: None,
        bc_free_rqst: None,
        bc_destroy: None,
    };

    /// Reports that there is no connection: only the client can connect.
    ///
    /// # Safety
    ///
    /// Called by sunrpc; `xprt` is live.
    unsafe extern "C" fn connect(xprt: *mut bindings::rpc_xprt, _task: *mut bindings::rpc_task) {
        // SAFETY: `xprt` is live, by this function's contract.
        unsafe {
            bindings::rpcrdma_shim_xprt_clear_connecting(xprt);
            bindings::xprt_wake_pending_tasks(xprt, enotconn().to_errno());
        }
    }

    /// # Safety
    ///
    /// Called by sunrpc, on the thread that runs `task`, which has a request.
    unsafe extern "C" fn buf_alloc(task: *mut bindings::rpc_task) -> c_int {
        // SAFETY: The running task has a request, by this function's contract.
        unsafe {
            let rqst = (*task).tk_rqstp;
            let call = (*rqst).rq_callsize;
            let Some(size) = call.checked_add((*rqst).rq_rcvsize) else {
                return EINVAL.to_errno();
            };
            let buffer = bindings::rpcrdma_shim_kmalloc_task(size).cast::<u8>();
            if buffer.is_null() {
                return ENOMEM.to_errno();
            }
            (*rqst).rq_buffer = buffer.cast();
            (*rqst).rq_rbuffer = buffer.add(call).cast();
        }
        0
    }

    /// # Safety
    ///
    /// Called by sunrpc; the request of `task` has ended.
    unsafe extern "C" fn buf_free(task: *mut bindings::rpc_task) {
        // SAFETY: The request has ended, by this function's contract; `buf_alloc` made one buffer
        // of both.
        unsafe { bindings::kfree((*(*task).tk_rqstp).rq_buffer) };
    }

    /// Sends a callback if the client's grant permits it. Returns zero or an errno.
    ///
    /// # Safety
    ///
    /// Called by sunrpc; the sender has the transport's send lock.
    unsafe extern "C" fn send_request(rqst: *mut bindings::rpc_rqst) -> c_int {
        // SAFETY: The sender has the send lock, by this function's contract; the users of the
        // client transport hold the server's.
        unsafe {
            // The window permits one Call before the first grant.
            if !bindings::xprt_request_get_cong((*rqst).rq_xprt, rqst) {
                return ebadslt().to_errno();
            }
            let server = SvcXprt::<T>::from_raw((*(*rqst).rq_xprt).bc_xprt);
            (*rqst).rq_xtime = bindings::ktime_get();
            let call = XdrBuf::from_raw(addr_of_mut!((*rqst).rq_snd_buf));
            let sent = if server.is_closing() {
                // Until sunrpc closes this transport, the sender would retry without a pause.
                bindings::xprt_disconnect_done((*rqst).rq_xprt);
                Err(enotconn())
            } else {
                T::send_call(server, u32::from_be((*rqst).rq_xid), call)
            };
            report_sent(rqst, sent)
        }
    }

    /// # Safety
    ///
    /// Called by sunrpc, also when the server transport is detached; `xprt` is live.
    unsafe extern "C" fn close(xprt: *mut bindings::rpc_xprt) {
        // SAFETY: `xprt` is live, by this function's contract.
        unsafe {
            bindings::xprt_disconnect_done(xprt);
            drop(set_window(xprt, 1));
        }
    }

    /// # Safety
    ///
    /// Called by sunrpc; `xprt` is live.
    unsafe extern "C" fn inject_disconnect(xprt: *mut bindings::rpc_xprt) {
        // SAFETY: `xprt` is live, by this function's contract; the users of the client transport
        // hold the server's.
        unsafe { bindings::svc_xprt_deferred_close((*xprt).bc_xprt) };
    }

    /// # Safety
    ///
    /// Called by sunrpc; nobody uses `xprt` any more.
    unsafe extern "C" fn destroy(xprt: *mut bindings::rpc_xprt) {
        // SAFETY: Nobody uses `xprt` any more, by this function's contract. The memory is freed
        // after a grace period, the strings in it with it.
        unsafe {
            bindings::xprt_free(xprt);
            bindings::module_put(this_module());
        }
    }
}
