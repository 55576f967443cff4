// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The send lock of a client transport, and the connection that it protects.
//!
//! sunrpc serialises connecting, sending and closing by one bit of the transport, `XPRT_LOCKED`.
//! Its holder has a [`SendLocked`], which gives access to the connection without another lock.
//! Other code takes a reference with [`Xprt::conn`].
//!
//! ```text
//!   ->send_request, ->close, ...     SendLocked for the length of the call
//!   ->connect ──lock handed over──▶ Connector ──SendLocked, finish_connect──▶ unlocked
//! ```
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use core::{
    cell::UnsafeCell,
    ops::Deref, //
};

use kernel::{
    ffi::c_ulong,
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    sync::Arc,
    time::Jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use super::{
    link::XprtLink,
    ops::XprtOps,
    xprt::Xprt,
    xprt_lock::lock_transport, //
};
use crate::kapi::{
    bindings,
    ext::{
        jiffies,
        noio::NoIo,
        spinlock::{
            new_spinlock,
            SpinLock, //
        },
        work::OwnQueue, //
    }, //
};

/// The connection of a transport, if there is one.
///
/// # Invariants
///
/// `conn` is written only with both `lock` and the transport's send lock held, so that either of
/// them is enough to read it.
#[pin_data]
pub(super) struct ConnCell<C> {
    #[pin]
    lock: SpinLock<()>,
    conn: UnsafeCell<Option<Arc<C>>>,
}

// SAFETY: A connection is reached by shared reference from any thread, and its last reference may
// be dropped by any.
unsafe impl<C: Send + Sync> Send for ConnCell<C> {}
// SAFETY: `conn` is accessed under the locks that the type's invariant names.
unsafe impl<C: Send + Sync> Sync for ConnCell<C> {}

impl<C> ConnCell<C> {
    /// Creates a cell without a connection.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            lock <- new_spinlock!(()),
            conn: UnsafeCell::new(None),
        })
    }

    /// Calls `f` with the connection, under the spin lock: `f` must not sleep.
    pub(super) fn with<R>(&self, f: impl FnOnce(Option<&Arc<C>>) -> R) -> R {
        let _guard = self.lock.lock();
        // SAFETY: Nobody writes it while we hold `lock`.
        f(unsafe { (*self.conn.get()).as_ref() })
    }

    /// Replaces the connection, and returns the previous one.
    ///
    /// # Safety
    ///
    /// The caller must hold the transport's send lock, and nobody may have borrowed the connection
    /// under it.
    unsafe fn replace(&self, new: Option<Arc<C>>) -> Option<Arc<C>> {
        let _guard = self.lock.lock();
        // SAFETY: We hold `lock`, and by this function's contract the send lock; no borrow under
        // either is left.
        unsafe { core::mem::replace(&mut *self.conn.get(), new) }
    }
}

/// The send lock of a transport, held by the caller.
///
/// # Invariants
///
/// `XPRT_LOCKED` of the transport is held during `'a`, and there is no other value of this type for
/// the transport that is in use.
pub(crate) struct SendLocked<'a, T: XprtOps> {
    xprt: &'a Xprt<T>,
}

impl<T: XprtOps> Deref for SendLocked<'_, T> {
    type Target = Xprt<T>;

    fn deref(&self) -> &Xprt<T> {
        self.xprt
    }
}

impl<'a, T: XprtOps> SendLocked<'a, T> {
    /// Wraps a transport whose send lock is held.
    ///
    /// # Safety
    ///
    /// The caller must hold the send lock of `xprt` during `'a`, and use no other value of this
    /// type for `xprt` meanwhile.
    pub(super) unsafe fn new(xprt: &'a Xprt<T>) -> Self {
        // INVARIANT: The caller holds the send lock by this function's contract.
        Self { xprt }
    }

    /// Returns the connection, if there is one. It cannot be closed while it is borrowed.
    pub(crate) fn conn(&self) -> Option<&T::Conn> {
        // SAFETY: By the type's invariant we hold the send lock, and `set_conn`, which takes
        // `&mut self`, is the only writer.
        unsafe { (*self.xprt.conn_cell().conn.get()).as_deref() }
    }

    /// Replaces the connection, and returns the previous one. Does not sleep.
    pub(crate) fn set_conn(&mut self, new: Option<Arc<T::Conn>>) -> Option<Arc<T::Conn>> {
        // SAFETY: By the type's invariant we hold the send lock; `&mut self` shows that nobody has
        // borrowed the connection under it.
        unsafe { self.xprt.conn_cell().replace(new) }
    }

    /// Closes the connection and reports it to sunrpc as disconnected. Sleeps.
    pub(crate) fn close(&mut self) {
        T::close(self);
        let xprt = self.as_ptr();
        // SAFETY: The transport is live; the cookie is written under the send lock only, which we
        // hold.
        unsafe {
            (*xprt).connect_cookie = (*xprt).connect_cookie.wrapping_add(1);
            bindings::xprt_disconnect_done(xprt);
        }
    }

    /// Makes the sender wait for [`Xprt::write_space`].
    pub(crate) fn wait_for_buffer_space(&self) {
        // SAFETY: The transport is live, and the function only sets an atomic flag.
        unsafe { bindings::xprt_wait_for_buffer_space(self.as_ptr()) };
    }

    /// Begins a new congestion window of one request. Requests lose their place in the window of
    /// the previous connection. Takes the transport lock; does not sleep.
    pub(crate) fn restart_window(&self) {
        let xprt = self.as_ptr();
        // SAFETY: The transport is live while it is borrowed.
        let _guard = unsafe { lock_transport(xprt) };
        // CAST: A C `unsigned long` has at least 32 bits.
        // SAFETY: The transport and its slots are live. All these fields are written under the
        // transport lock, which we hold.
        unsafe {
            for slot in self.xprt.slots().iter() {
                (*slot.as_rqst()).rq_cong = 0;
            }
            (*xprt).cong = 0;
            (*xprt).cwnd = bindings::RPC_CWNDSCALE as c_ulong;
        }
    }

    /// Returns the longest pause between attempts to connect that the transport's users accept, in
    /// jiffies.
    pub(crate) fn max_reconnect_pause(&self) -> Jiffies {
        // SAFETY: The transport is live, and the field is read atomically.
        unsafe { (&raw const (*self.as_ptr()).max_reconnect_timeout).read_volatile() }
    }

    /// Ends an attempt to connect, and releases the send lock.
    fn finish_connect(mut self, result: Result<Arc<T::Conn>>) {
        let xprt = self.as_ptr();
        let result = result.map(|conn| self.set_conn(Some(conn)));
        // SAFETY: The transport is live, and we hold its send lock, under which all these fields
        // are written.
        let status = unsafe {
            bindings::rpcrdma_shim_xprt_clear_connecting(xprt);
            // Also after a failure: a task that learns of this attempt may ask for a disconnect of
            // the connection with this number when the next attempt is in progress.
            (*xprt).connect_cookie = (*xprt).connect_cookie.wrapping_add(1);
            match &result {
                Ok(_) => {
                    self.last_heard().heard(jiffies());
                    (*xprt).stat.connect_count += 1;
                    (*xprt).stat.connect_time += jiffies().wrapping_sub((*xprt).stat.connect_start);
                    bindings::rpcrdma_shim_xprt_set_connected(xprt);
                    EAGAIN
                }
                Err(error) => *error,
            }
        };
        // SAFETY: The transport is live. Tasks that wait for a connection are woken while the send
        // lock is held: a task that takes the lock next may soon wait for a Reply, and must not get
        // the status of this attempt. `connect` handed the lock over with the same cookie. `self`
        // is consumed, so the lock is not used after it is released here.
        unsafe {
            bindings::xprt_wake_pending_tasks(xprt, status.to_errno());
            bindings::xprt_unlock_connect(xprt, xprt.cast());
        }
    }
}

/// Connects a transport in the background. `->connect` passes the send lock to it.
#[pin_data]
pub(super) struct Connector<T: XprtOps> {
    #[pin]
    work: DelayedWork<Connector<T>>,
    link: XprtLink<T>,
}

impl_has_delayed_work! {
    impl{T: XprtOps} HasDelayedWork<Self> for Connector<T> { self.work }
}

impl<T: XprtOps> Connector<T> {
    /// Allocates the connector of the transport that `link` refers to. May sleep.
    pub(super) fn new(link: XprtLink<T>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                work <- new_delayed_work!("rpcrdma_rs: connect"),
                link,
            }),
            GFP_KERNEL,
        )
    }
}

impl<T: XprtOps> WorkItem for Connector<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // This work holds the send lock, so the transport cannot be in `->destroy`.
        let Some(xprt) = this.link.get() else {
            return;
        };
        // Reclaim may be waiting for this transport.
        let _no_io = NoIo::begin();
        let _scope = xprt.reclaim_scope();
        // SAFETY: `connect` handed the send lock over to this work, which releases it below.
        let locked = unsafe { SendLocked::new(&xprt) };
        xprt.clear_connected();
        let result = T::establish(&locked);
        locked.finish_connect(result);
    }
}

/// `->connect`: passes the send lock of `task` to the connector.
///
/// # Safety
///
/// `xprt` must be a live transport of type `Xprt<T>` whose send lock `task` holds.
pub(super) unsafe fn connect<T: XprtOps>(
    xprt: *mut bindings::rpc_xprt,
    task: *mut bindings::rpc_task,
) {
    // SAFETY: The transport is live and `task` holds its send lock, by this function's contract.
    // The cookie must be the same as in `finish_connect`.
    let xprt = unsafe {
        bindings::xprt_lock_connect(xprt, task, xprt.cast());
        Xprt::<T>::from_raw(xprt)
    };
    // SAFETY: The send lock now belongs to the connector, which is not queued yet.
    let locked = unsafe { SendLocked::new(xprt) };
    let pause = T::reconnect_pause(&locked);
    // It cannot be queued already: there is one attempt at a time.
    let _ = OwnQueue::enqueue_delayed(xprt.connector().clone(), pause);
}
