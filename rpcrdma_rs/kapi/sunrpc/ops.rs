// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The operations of a client transport: [`XprtOps`], and the `rpc_xprt_ops` that call it.
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use core::marker::PhantomData;

use kernel::{
    ffi::{
        c_char,
        c_int,
        c_uint,
        c_ulong,
        c_ushort, //
    },
    prelude::*,
    seq_file::SeqFile,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::Jiffies,
};

use super::{
    addr::SockAddr,
    backchannel::BcRqst,
    class::XprtClass,
    errno::{
        ebadslt,
        enobufs,
        enotconn, //
    },
    link::XprtLink,
    rqst::Slot,
    send_lock::{
        self,
        SendLocked, //
    },
    text::Text,
    xprt::Xprt, //
};
use crate::kapi::bindings;

/// Returns whether sunrpc retries the request after this error of [`XprtOps::send_request`].
fn is_transient(error: Error) -> bool {
    [enotconn(), EAGAIN, enobufs(), ENOMEM, ebadslt()].contains(&error)
}

/// Returns what `->send_request` reports for `rqst`: zero, or an errno after which sunrpc sends it
/// again. Any other error ends the RPC.
///
/// # Safety
///
/// `rqst` must be a request that sunrpc is sending.
#[inline]
pub(super) unsafe fn report_sent(rqst: *mut bindings::rpc_rqst, sent: Result) -> c_int {
    match sent {
        Ok(()) => 0,
        Err(error) if is_transient(error) => error.to_errno(),
        Err(error) => {
            // sunrpc would report an error to the task that holds the send lock, which also
            // sends the requests of other tasks. So this fails the task of the request itself,
            // and reports the request to sunrpc as sent.
            // SAFETY: A request that is sent has its task.
            unsafe { bindings::rpcrdma_shim_rpc_task_fail((*rqst).rq_task, error.to_errno()) };
            0
        }
    }
}

/// Returns whether a request is one of the backchannel.
///
/// # Safety
///
/// `rqst` must be a live request.
#[inline]
unsafe fn is_backchannel(rqst: *const bindings::rpc_rqst) -> bool {
    // SAFETY: The request is live by this function's contract. The flags are a word that is read
    // atomically.
    let flags = unsafe { (&raw const (*rqst).rq_bc_pa_state).read_volatile() };
    flags & (1 << bindings::RPC_BC_PA_IN_USE) != 0
}

/// A client transport. `Self` is the transport's own data, which is stored next to sunrpc's
/// `rpc_xprt`, see [`Xprt`].
///
/// All functions are called in process context and may sleep, unless documented otherwise. Those
/// that take a [`SendLocked`] never run concurrently for one transport.
#[vtable]
pub(crate) trait XprtOps: Sized + Send + Sync + 'static {
    /// The transport's data in each request slot.
    type Slot: Send + Sync;

    /// A connection.
    type Conn: Send + Sync + 'static;

    /// Returns the class of the transport.
    fn class() -> &'static XprtClass<Self>;

    /// Creates a transport. The link can be used once its setup is complete.
    fn new(link: XprtLink<Self>) -> impl PinInit<Self, Error>;

    /// Creates the transport's part of a slot.
    fn new_slot() -> impl PinInit<Self::Slot, Error>;

    /// Returns the largest number of concurrent requests. Called once per transport.
    fn slots() -> u32;

    /// Returns the largest payload of a request in bytes. Called once per transport.
    fn max_payload() -> usize;

    /// Returns the delay in jiffies before the next attempt to connect. Must not sleep.
    fn reconnect_pause(xprt: &SendLocked<'_, Self>) -> Jiffies;

    /// Establishes a connection.
    ///
    /// # Errors
    ///
    /// One of the errors that sunrpc expects from connecting. Tasks that wait for a connection get
    /// it.
    fn establish(xprt: &SendLocked<'_, Self>) -> Result<Arc<Self::Conn>>;

    /// Closes the connection, if there is one.
    fn close(xprt: &mut SendLocked<'_, Self>);

    /// Destroys the transport. No request is left. On return nothing may refer to the transport.
    fn destroy(xprt: &mut SendLocked<'_, Self>);

    /// Sends the Call in `slot`.
    ///
    /// # Errors
    ///
    /// * `ENOTCONN`: the caller reconnects and calls again.
    /// * `EAGAIN`: the caller calls again, after [`Xprt::write_space`] if
    ///   [`SendLocked::wait_for_buffer_space`] was called.
    /// * `ENOBUFS`, `ENOMEM`: the caller calls again after a delay.
    /// * `EBADSLT`: the congestion window has no room.
    /// * Any other error fails the RPC.
    fn send_request(xprt: &mut SendLocked<'_, Self>, slot: &Slot<Self>) -> Result;

    /// Returns whether the Call in a slot, which its task is about to release, may have been sent
    /// and have no Reply yet. Called under the transport lock: must not sleep.
    ///
    /// The function gets only the transport's own data of the slot: the task may have failed before
    /// sunrpc completed the request, which has no credential then.
    fn may_be_unanswered(slot: &Self::Slot) -> bool;

    /// Called when the RPC task releases the memory of the request in `slot`, whether or not a
    /// Reply has arrived. On return the peer must not be able to access that memory.
    fn release_buffers(xprt: &Xprt<Self>, slot: &Slot<Self>);

    /// Called when `bytes` bytes were allocated for a request that is larger than the buffers of
    /// its slot.
    fn note_grown(xprt: &Xprt<Self>, bytes: usize);

    /// Returns the local address of the connection; `None` if there is none.
    fn local_addr(xprt: &Xprt<Self>) -> Option<SockAddr>;

    /// Prints the transport's line of `/proc/self/mountstats`.
    fn print_stats(xprt: &Xprt<Self>, seq: &SeqFile);

    /// Breaks the connection as if the peer had disconnected. The caller may not have the send
    /// lock.
    fn inject_disconnect(xprt: &Xprt<Self>);

    /// Prepares for up to `min_reqs` concurrent Calls of the reverse direction.
    fn bc_setup(xprt: &Xprt<Self>, min_reqs: u32) -> Result;

    /// Returns the largest message of the reverse direction in bytes. Under RCU: must not sleep.
    fn bc_max_payload(xprt: &Xprt<Self>) -> usize;

    /// Returns the largest number of concurrent Calls of the reverse direction. Under RCU: must not
    /// sleep.
    fn bc_slots(xprt: &Xprt<Self>) -> u32;

    /// Sends the Reply in `rqst`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::send_request`].
    fn bc_send_reply(xprt: &mut SendLocked<'_, Self>, rqst: &BcRqst<Self>) -> Result;
}

/// The `rpc_xprt_ops` that call the functions of `T`.
pub(super) struct OpsTable<T: XprtOps>(PhantomData<T>);

impl<T: XprtOps> OpsTable<T> {
    pub(super) const TABLE: bindings::rpc_xprt_ops = bindings::rpc_xprt_ops {
        set_buffer_size: None,
        reserve_xprt: Some(bindings::xprt_reserve_xprt_cong),
        release_xprt: Some(bindings::xprt_release_xprt_cong),
        alloc_slot: Some(Self::alloc_slot),
        free_slot: Some(Self::free_slot),
        rpcbind: Some(bindings::rpcb_getport_async),
        set_port: Some(Self::set_port),
        connect: Some(Self::connect),
        get_srcaddr: Some(Self::get_srcaddr),
        get_srcport: Some(Self::get_srcport),
        buf_alloc: Some(Self::buf_alloc),
        buf_free: Some(Self::buf_free),
        prepare_request: None,
        send_request: Some(Self::send_request),
        abort_send_request: None,
        wait_for_reply_request: Some(bindings::xprt_wait_for_reply_request_def),
        timer: Some(Self::timer),
        release_request: Some(Self::release_request),
        close: Some(Self::close),
        destroy: Some(Self::destroy),
        set_connect_timeout: Some(Self::set_connect_timeout),
        print_stats: Some(Self::print_stats),
        enable_swap: Some(Self::enable_swap),
        disable_swap: Some(Self::disable_swap),
        inject_disconnect: Some(Self::inject_disconnect),
        bc_setup: Some(Self::bc_setup),
        bc_maxpayload: Some(Self::bc_maxpayload),
        bc_num_slots: Some(Self::bc_num_slots),
        bc_free_rqst: Some(Self::bc_free_rqst),
        bc_destroy: Some(Self::bc_destroy),
    };

    /// # Safety
    ///
    /// `task` must be done with its request, and the caller must hold the transport lock.
    unsafe extern "C" fn release_request(task: *mut bindings::rpc_task) {
        // SAFETY: The task has a request, by this function's contract, which stays until it is
        // released. `rq_cong` is written under the transport lock, which sunrpc holds.
        unsafe {
            let rqst = (*task).tk_rqstp;
            if is_backchannel(rqst) {
                // Its `rq_cong` does not stand for a place in the window, see `deliver_bc`.
                (*rqst).rq_cong = 0;
            } else if !T::may_be_unanswered(Slot::<T>::from_rqst(rqst)) {
                bindings::xprt_release_rqst_cong(task);
            }
            // Otherwise `buf_free` returns the place: the next sender must not get it before the
            // transport knows that the peer still has this Call.
        }
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made, and `task` a task that runs and has no
    /// request.
    unsafe extern "C" fn alloc_slot(xprt: *mut bindings::rpc_xprt, task: *mut bindings::rpc_task) {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        let this = unsafe { Xprt::<T>::from_raw(xprt) };
        if let Some(slot) = this.slots().pop() {
            // SAFETY: sunrpc calls for `task`, whose fields are that thread's to write.
            unsafe {
                (*task).tk_rqstp = slot.as_rqst();
                (*task).tk_status = 0;
            }
            return;
        }
        // SAFETY: sunrpc calls for `task`, whose fields are that thread's to write; the
        // transport is live, and a task without a request may wait on its backlog.
        unsafe {
            (*task).tk_status = EAGAIN.to_errno();
            bindings::xprt_add_backlog_noncongested(xprt, task);
        }
        // A slot that was freed before the task was on the backlog has not woken the task.
        if let Some(slot) = this.slots().pop() {
            // SAFETY: The slot is one of this transport, and not in use: it came from the pool
            // just now.
            unsafe { this.free_slot(slot) };
        }
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made. `rqst` must be a request of it that is
    /// not one of the backchannel, and its task must be done with it.
    unsafe extern "C" fn free_slot(xprt: *mut bindings::rpc_xprt, rqst: *mut bindings::rpc_rqst) {
        // SAFETY: `xprt` is ours, and so is `rqst`, by this function's contract. A request that is
        // not one of the backchannel is embedded in a slot.
        let (this, slot) = unsafe { (Xprt::<T>::from_raw(xprt), Slot::<T>::from_rqst(rqst)) };
        // SAFETY: The slot is one of this transport. Nobody uses it: its task is done with it,
        // by this function's contract.
        unsafe { this.free_slot(slot) };
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made. Nobody else sets its port.
    unsafe extern "C" fn set_port(xprt: *mut bindings::rpc_xprt, port: c_ushort) {
        // SAFETY: `xprt` is a transport of ours whose port nobody else sets, by this function's
        // contract.
        unsafe { Xprt::<T>::from_raw(xprt).set_port(port) };
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made. `task` has the send lock.
    unsafe extern "C" fn connect(xprt: *mut bindings::rpc_xprt, task: *mut bindings::rpc_task) {
        // SAFETY: `xprt` is ours and `task` has its send lock, by the safety requirement.
        unsafe { send_lock::connect::<T>(xprt, task) };
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made. `buf` must be valid
    /// for writes of `len` bytes.
    unsafe extern "C" fn get_srcaddr(
        xprt: *mut bindings::rpc_xprt,
        buf: *mut c_char,
        len: usize,
    ) -> c_int {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        let Some(addr) = T::local_addr(unsafe { Xprt::from_raw(xprt) }) else {
            return enotconn().to_errno();
        };
        let mut text = Text::<64>::new();
        text.set(format_args!("{}", addr.display_ip()));
        let text = text.with_nul();
        if text.len() > len {
            return EINVAL.to_errno();
        }
        // SAFETY: `buf` has `len` bytes, by this function's contract, which is no less than the
        // text; the text is on our stack.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), text.len()) };
        // CAST: At most 64.
        (text.len() - 1) as c_int
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn get_srcport(xprt: *mut bindings::rpc_xprt) -> c_ushort {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        T::local_addr(unsafe { Xprt::from_raw(xprt) }).map_or(0, |addr| addr.port())
    }

    /// # Safety
    ///
    /// `task` must run, and have a request of a transport of ours, not one of the backchannel.
    unsafe extern "C" fn buf_alloc(task: *mut bindings::rpc_task) -> c_int {
        // SAFETY: The task runs, and has a request of ours, by this function's contract.
        let (this, slot) = unsafe { Self::of_task(task) };
        // SAFETY: This is `->buf_alloc` of the task that owns the slot.
        match unsafe { slot.alloc_buffers() } {
            Ok(0) => 0,
            Ok(grown) => {
                T::note_grown(this, grown);
                0
            }
            Err(error) => error.to_errno(),
        }
    }

    /// Ends the access of the server and the device to the buffers of the request of `task`.
    ///
    /// # Safety
    ///
    /// `task` must run, and have a request of a transport of ours.
    unsafe extern "C" fn buf_free(task: *mut bindings::rpc_task) {
        // SAFETY: The task runs, and has a request of ours, by this function's contract. One
        // that is not of the backchannel is in a slot.
        unsafe {
            // The memory of a Reply of the reverse direction belongs to its `BcRqst`.
            if !is_backchannel((*task).tk_rqstp) {
                let (this, slot) = Self::of_task(task);
                T::release_buffers(this, slot);
                slot.put_cong();
                slot.wait_returned();
            }
        }
    }

    /// Sends a Call, or a Reply of the reverse direction. Returns zero or an errno.
    ///
    /// # Safety
    ///
    /// `rqst` must be a request of a transport of ours, and the caller have the send lock.
    unsafe extern "C" fn send_request(rqst: *mut bindings::rpc_rqst) -> c_int {
        // SAFETY: By this function's contract the request is of a transport of ours, whose send
        // lock the caller holds. It is in a `BcRqst` if it is marked as one of the backchannel, and
        // in a slot otherwise.
        unsafe {
            let mut locked = SendLocked::new(Xprt::<T>::from_raw((*rqst).rq_xprt));
            let sent = if is_backchannel(rqst) {
                T::bc_send_reply(&mut locked, BcRqst::from_rqst(rqst))
            } else {
                T::send_request(&mut locked, Slot::from_rqst(rqst))
            };
            report_sent(rqst, sent)
        }
    }

    /// # Safety
    ///
    /// `task` must run, have a request of a transport of ours, not one of the backchannel, and have
    /// waited for its Reply.
    unsafe extern "C" fn timer(_xprt: *mut bindings::rpc_xprt, task: *mut bindings::rpc_task) {
        // SAFETY: The task runs, and has a request of ours, by this function's contract.
        let (this, slot) = unsafe { Self::of_task(task) };
        // A connection has no keep-alive, so a timeout may be the only sign that it is lost.
        if this.should_close_on_timeout(slot) {
            this.force_disconnect();
        }
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made. The caller has the send lock.
    unsafe extern "C" fn close(xprt: *mut bindings::rpc_xprt) {
        // SAFETY: `xprt` is ours, and the caller has its send lock, by the safety requirement.
        unsafe { SendLocked::new(Xprt::<T>::from_raw(xprt)) }.close();
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made. This is the last call for it,
    /// and nobody else uses it.
    unsafe extern "C" fn destroy(xprt: *mut bindings::rpc_xprt) {
        // SAFETY: `xprt` is a transport of ours that nobody uses any more, by this function's
        // contract.
        unsafe { Xprt::<T>::destroy(xprt) };
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn set_connect_timeout(
        xprt: *mut bindings::rpc_xprt,
        connect_timeout: c_ulong,
        reconnect_timeout: c_ulong,
    ) {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        unsafe { Xprt::<T>::from_raw(xprt) }.set_timeouts(connect_timeout, reconnect_timeout);
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made. `seq` must be a live
    /// sequence file.
    unsafe extern "C" fn print_stats(xprt: *mut bindings::rpc_xprt, seq: *mut bindings::seq_file) {
        // SAFETY: `xprt` is a transport of ours, and `seq` a live file, by this function's
        // contract.
        unsafe { T::print_stats(Xprt::from_raw(xprt), SeqFile::from_raw(seq)) };
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn enable_swap(xprt: *mut bindings::rpc_xprt) -> c_int {
        // From now on senders and workers may use the memory reserves, see `reclaim_scope`.
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        unsafe { Xprt::<T>::from_raw(xprt) }
            .swappers()
            .fetch_add(1, Relaxed);
        0
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn disable_swap(xprt: *mut bindings::rpc_xprt) {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        let swappers = unsafe { Xprt::<T>::from_raw(xprt) }.swappers();
        let mut now = swappers.load(Relaxed);
        // sunrpc does not call `enable_swap` for a transport that is added to a mount already used
        // for swap.
        while now > 0 {
            match swappers.cmpxchg(now, now - 1, Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn inject_disconnect(xprt: *mut bindings::rpc_xprt) {
        // `xprt_end_transmit` calls this for a task whose request another task has sent, too. Such
        // a task does not have the send lock.
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        T::inject_disconnect(unsafe { Xprt::from_raw(xprt) });
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn bc_setup(xprt: *mut bindings::rpc_xprt, min_reqs: c_uint) -> c_int {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        match T::bc_setup(unsafe { Xprt::from_raw(xprt) }, min_reqs) {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn bc_maxpayload(xprt: *mut bindings::rpc_xprt) -> usize {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        T::bc_max_payload(unsafe { Xprt::from_raw(xprt) })
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn bc_num_slots(xprt: *mut bindings::rpc_xprt) -> c_uint {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        T::bc_slots(unsafe { Xprt::from_raw(xprt) })
    }

    /// # Safety
    ///
    /// `rqst` must be one of ours that the callback service is done with.
    unsafe extern "C" fn bc_free_rqst(rqst: *mut bindings::rpc_rqst) {
        // SAFETY: The request is in a `BcRqst` of ours, which the service is done with, by this
        // function's contract.
        unsafe { BcRqst::<T>::free(rqst) };
    }

    /// # Safety
    ///
    /// `xprt` must be a transport that [`Xprt::setup`] made.
    unsafe extern "C" fn bc_destroy(xprt: *mut bindings::rpc_xprt, _max_reqs: c_uint) {
        // SAFETY: `xprt` is a transport of ours, by this function's contract.
        unsafe { Xprt::<T>::from_raw(xprt) }.bc_pool().clear();
    }

    /// # Safety
    ///
    /// `task` must run, and have a request of a transport of ours, not one of the backchannel.
    unsafe fn of_task<'a>(task: *mut bindings::rpc_task) -> (&'a Xprt<T>, &'a Slot<T>) {
        // SAFETY: By this function's contract the task's request is of a transport of ours, and not
        // one of the backchannel. So it is in a slot, and stays as long as the task has it.
        unsafe {
            let rqst = (*task).tk_rqstp;
            (Xprt::from_raw((*rqst).rq_xprt), Slot::from_rqst(rqst))
        }
    }
}
