// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Server transports (`struct svc_xprt`) and their classes.
//!
//! A transport is a listening endpoint or a connection. sunrpc counts references to it and
//! calls it through a table of operations; the two kinds have a trait and a table each, in
//! [`super::svc_ops`].
//!
//! # Life of a transport
//!
//! ```text
//!  new_*()            BUSY; only its creator and its callbacks know it
//!    | given to sunrpc by Class::create or Listener::accept
//!  live               service threads call it, one receiver at a time (BUSY)
//!    | XPT_CLOSE, then detach() by a service thread or by the closer: BUSY stays set
//!  dead               references remain: service threads, callbacks, deferred Calls
//!    | last reference
//!  free               the data is dropped, which ends all callbacks; then the memory is freed
//! ```
//!
//! The last reference to a connection may be dropped under a spin lock: nfsd does so for an NFSv4
//! session. Dropping the data of a connection waits for the device, so a work item does it.
//!
//! # References of callbacks
//!
//! Completions and connection events need the transport, which owns the Queue Pair and the id that
//! call them. A counted reference would form a cycle. So they hold a [`Handle`], which keeps the
//! memory of `struct svc_xprt` allocated, but not the transport alive. It allows operations that
//! are safe at any time: marking, enqueueing and closing. On a dead transport they do nothing.
//!
//! C header: [`include/linux/sunrpc/svc_xprt.h`](srctree/include/linux/sunrpc/svc_xprt.h)

mod addrs;
mod class;

pub(in crate::kapi::sunrpc) use class::is_connection_of;
pub(crate) use class::{
    Class,
    ClassCell,
    ClassRegistration,
    NewXprtArgs, //
};

use super::{
    super::{
        bindings,
        ext::work::OwnQueue, //
    },
    addr::SockAddr,
    net::Net,
    svc_ops::{
        create_thunk,
        Connection,
        ConnectionOps,
        Listener,
        ListenerOps,
        NO_OPS, //
    }, //
};
use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::Deref,
    ptr::{
        addr_of_mut,
        NonNull, //
    }, //
};
use kernel::{
    ffi,
    prelude::*,
    sync::{
        aref::ARef,
        aref::AlwaysRefCounted,
        Arc, //
    },
    types::Opaque,
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    },
};

/// The memory of a transport. sunrpc uses its first field.
#[repr(C)]
#[pin_data]
struct Inner<T> {
    xprt: Opaque<bindings::svc_xprt>,
    /// The number of [`Backpressure`] objects. It is not part of the data, because handles call
    /// `xpo_has_wspace` as well, when the data may have been dropped.
    backpressure: Atomic<u32>,
    /// `Some` from construction until after `xpo_free`.
    data: UnsafeCell<Option<T>>,
    /// Enqueued once, by `xpo_free` of a connection.
    #[pin]
    freeing: Work<Inner<T>>,
}

// SAFETY: The data is changed by one thread, before there is a reference or when none is left; the
// rest may be used from any thread.
unsafe impl<T: Send + Sync> Send for Inner<T> {}

// SAFETY: Shared fields are atomic, or belong to sunrpc, or are the data, which is `Sync`.
unsafe impl<T: Send + Sync> Sync for Inner<T> {}

impl_has_work! {
    impl{T} HasWork<Self> for Inner<T> { self.freeing }
}

impl<T: Send + Sync + 'static> WorkItem for Inner<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: Only `free_later_thunk` enqueues the work, once, when no reference is left.
        unsafe { this.free() };
    }
}

impl<T> Inner<T> {
    /// Drops the data.
    ///
    /// # Safety
    ///
    /// No reference to the transport may be left.
    unsafe fn free(&self) {
        // SAFETY: No reference is left, by this function's contract. Handles may be in use while
        // the data is dropped, but do not access it.
        drop(unsafe { (*self.data.get()).take() });
    }

    fn test(&self, bit: ffi::c_uint) -> bool {
        // SAFETY: The transport is initialised; sunrpc changes the word by atomic operations.
        let flags = unsafe { addr_of_mut!((*self.xprt.get()).xpt_flags).read_volatile() };
        flags & (1 << bit) != 0
    }

    fn set(&self, bit: ffi::c_uint) {
        // SAFETY: The transport is initialised; the operation is atomic.
        unsafe {
            bindings::set_bit(
                bit as ffi::c_ulong,
                addr_of_mut!((*self.xprt.get()).xpt_flags),
            )
        };
    }

    fn clear(&self, bit: ffi::c_uint) {
        // SAFETY: The transport is initialised; the operation is atomic.
        unsafe {
            bindings::clear_bit(
                bit as ffi::c_ulong,
                addr_of_mut!((*self.xprt.get()).xpt_flags),
            )
        };
    }

    /// Returns whether the transport is open: neither closed nor being closed. [`Self::enqueue`]
    /// and [`Self::close`] check it before they call functions of sunrpc that have trace events.
    ///
    /// The trace events read the number of the transport's network namespace. The last reference to
    /// the transport releases the namespace, but handles remain in use until the data is dropped,
    /// which is later. XPT_CLOSE is set long before the last reference is dropped. So while this
    /// function returns `true`, the namespace exists. It could be freed between this check and the
    /// trace event only if transport, nfsd and namespace were all torn down within these few
    /// instructions. A handle cannot hold a reference to the namespace instead: any reference that
    /// a module can take keeps the namespace from exiting.
    fn is_open(&self) -> bool {
        !self.test(bindings::XPT_CLOSE)
    }

    fn enqueue(&self) {
        if self.is_open() {
            // SAFETY: The memory is a `struct svc_xprt`. Before sunrpc knows the transport, and
            // after it is dead, it is BUSY, and the call reads nothing else, except for its trace
            // event, see `is_open`.
            unsafe { bindings::svc_xprt_enqueue(self.xprt.get()) };
        }
    }

    fn close(&self) {
        if self.is_open() {
            // SAFETY: The memory is a `struct svc_xprt`, which is BUSY while sunrpc does not know
            // it. For its trace event see `is_open`.
            unsafe { bindings::svc_xprt_deferred_close(self.xprt.get()) };
        }
    }
}

/// A server transport with its data `T`. sunrpc counts the references.
///
/// # Invariants
///
/// `data` is `Some` while a reference exists.
#[repr(transparent)]
pub(crate) struct SvcXprt<T>(Inner<T>);

// SAFETY: sunrpc's part may be used from any thread; the data is only shared.
unsafe impl<T: Send + Sync> Send for SvcXprt<T> {}

// SAFETY: sunrpc's part may be used from any thread, and the data is `Sync`.
unsafe impl<T: Send + Sync> Sync for SvcXprt<T> {}

// SAFETY: The reference count is that of `struct svc_xprt`; `xpo_free` is the one place that
// gives up the memory.
unsafe impl<T: Send + Sync> AlwaysRefCounted for SvcXprt<T> {
    fn inc_ref(&self) {
        // SAFETY: The caller holds a reference.
        unsafe { bindings::rpcrdma_shim_svc_xprt_get(self.0.xprt.get()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up a reference. `xprt` is the first field.
        unsafe { bindings::svc_xprt_put(obj.as_ptr().cast()) };
    }
}

impl<T> Deref for SvcXprt<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariants this is `Some`, and it is not changed while anyone
        // holds a reference.
        unsafe { (*self.0.data.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T: Listener> SvcXprt<T> {
    /// Creates a listener with the local address and the data that `build` returns. `name` takes
    /// the place of the peer's address where sunrpc prints that. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and errors of `build`.
    pub(crate) fn new_listener<'a>(
        args: NewXprtArgs<'a, T>,
        name: &CStr,
        build: impl FnOnce(&Handle<T>) -> Result<(SockAddr, T)>,
    ) -> Result<NewXprt<'a, T>> {
        let this = Self::create(args, &ListenerOps::<T>::OPS, |handle, _| {
            let (local, data) = build(handle)?;
            // SAFETY: The transport has no reference yet, so sunrpc cannot see it.
            unsafe {
                handle.0.set_local_addr(&local);
                handle.0.set_remote_name(name);
            }
            Ok(data)
        })?;
        this.xprt.0.set(bindings::XPT_LISTENER);
        Ok(this)
    }
}

impl<T: Connection> SvcXprt<T> {
    /// The last step of a connection: `xpo_free`, in any context.
    ///
    /// # Safety
    ///
    /// Called once, when the reference count has come to zero.
    pub(super) unsafe extern "C" fn free_later_thunk(xprt: *mut bindings::svc_xprt) {
        // SAFETY: The count has come to zero, by this function's contract, and the work was not
        // enqueued before. sunrpc gives up the transport's reference to the module after this.
        let _ = OwnQueue::enqueue(unsafe { Self::take_inner(xprt) });
    }

    /// Creates a connection between these addresses with the data that `build` returns. May sleep.
    ///
    /// Everything that may fail belongs in `build`. When `build` fails, it drops the data, which
    /// ends the callbacks, before the transport releases its network namespace: handles read that.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and errors of `build`.
    pub(crate) fn new_connection<'a>(
        args: NewXprtArgs<'a, T>,
        local: &SockAddr,
        remote: &SockAddr,
        build: impl FnOnce(&Handle<T>, &NewXprtArgs<'a, T>) -> Result<T>,
    ) -> Result<NewXprt<'a, T>> {
        Self::create(args, &ConnectionOps::<T>::OPS, |handle, args| {
            // SAFETY: The transport has no reference yet, so sunrpc cannot see it.
            unsafe {
                handle.0.set_local_addr(local);
                handle.0.set_remote_addr(remote);
            }
            build(handle, args)
        })
    }

    /// `xpo_has_wspace`: returns whether sunrpc may assign a service thread to the connection.
    ///
    /// # Safety
    ///
    /// `xprt` is a transport made by [`Self::create`] with this `T`, live or dead.
    pub(super) unsafe extern "C" fn has_wspace_thunk(xprt: *mut bindings::svc_xprt) -> ffi::c_int {
        // SAFETY: `Self::create` made the transport, by this function's contract. The count is
        // atomic.
        let backpressure = unsafe { &(*xprt.cast::<Inner<T>>()).backpressure };
        (backpressure.load(Relaxed) == 0).into()
    }
}

impl<T: Send + Sync + 'static> SvcXprt<T> {
    fn create<'a>(
        args: NewXprtArgs<'a, T>,
        ops: &'static bindings::svc_xprt_ops,
        build: impl FnOnce(&Handle<T>, &NewXprtArgs<'a, T>) -> Result<T>,
    ) -> Result<NewXprt<'a, T>> {
        let inner = Arc::pin_init(
            pin_init!(Inner {
                xprt: Opaque::uninit(),
                backpressure: Atomic::new(0),
                data: UnsafeCell::new(None),
                freeing <- new_work!("rpcrdma_rs: free"),
            }),
            GFP_KERNEL,
        )?;
        let xprt = inner.xprt.get();
        // SAFETY: `args` is valid, the memory is ours and stays where it is.
        unsafe {
            bindings::svc_xprt_init(args.net, args.class, xprt, args.serv);
            (*xprt).xpt_ops = ops;
            // The last reference gives up a reference to the module as well.
            bindings::__module_get((*args.class).xcl_owner);
        }
        // The transport has congestion control, which NFSv4 requires.
        inner.set(bindings::XPT_CONG_CTRL);

        let handle = Handle(inner.clone());
        // INVARIANT: The reference count of `struct svc_xprt`, 1 now, stands for this `Arc`.
        let raw = Arc::into_raw(inner).cast_mut().cast::<Self>();
        match build(&handle, &args) {
            Ok(data) => {
                // SAFETY: Only handles refer to the transport, and they give no access to the data.
                // INVARIANT: The data is `Some` before the first `ARef`.
                unsafe { *(*raw).0.data.get() = Some(data) };
                Ok(NewXprt {
                    // SAFETY: The pointer is valid and comes with the first reference.
                    xprt: unsafe { ARef::from_raw(NonNull::new_unchecked(raw)) },
                    _args: PhantomData,
                })
            }
            Err(e) => {
                // The namespace is put with the transport. Handles may outlive it, and do nothing
                // from now on, as after `drop` of `NewXprt`.
                handle.0.set(bindings::XPT_CLOSE);
                handle.0.set(bindings::XPT_DEAD);
                // SAFETY: This is the only reference. `xpo_free` accepts a transport without data.
                unsafe { bindings::svc_xprt_put(xprt) };
                Err(e)
            }
        }
    }

    /// # Safety
    ///
    /// `xprt` is a live transport made by [`Self::create`] with this `T`, for the lifetime of the
    /// result.
    pub(super) unsafe fn from_raw<'a>(xprt: *mut bindings::svc_xprt) -> &'a Self {
        // SAFETY: `xprt` is the first field of a transparent wrapper, which is valid by this
        // function's contract.
        unsafe { &*xprt.cast() }
    }

    /// # Safety
    ///
    /// Called once, when the reference count has come to zero.
    unsafe fn take_inner(xprt: *mut bindings::svc_xprt) -> Arc<Inner<T>> {
        // SAFETY: The count stood for this reference, see `create`.
        unsafe { Arc::from_raw(xprt.cast::<Inner<T>>().cast_const()) }
    }

    /// The last step of a listener: `xpo_free`. May sleep.
    ///
    /// # Safety
    ///
    /// Called once, when the reference count has come to zero.
    pub(super) unsafe extern "C" fn free_thunk(xprt: *mut bindings::svc_xprt) {
        // SAFETY: The count has come to zero, by this function's contract.
        unsafe { Self::take_inner(xprt).free() };
    }

    /// Returns the network namespace.
    pub(crate) fn net(&self) -> &Net {
        // SAFETY: The transport holds a reference to its namespace, which it never changes.
        unsafe { Net::from_raw((*self.as_raw()).xpt_net) }
    }

    /// Clears XPT_DATA. The lock that protects [`Handle::set_data`] must be held.
    pub(crate) fn clear_data(&self) {
        self.0.clear(bindings::XPT_DATA);
    }

    /// Sets XPT_CONN: a connection waits to be accepted. See [`Self::clear_conn`].
    pub(crate) fn set_conn(&self) {
        self.0.set(bindings::XPT_CONN);
    }

    /// Clears XPT_CONN. Must be called before the check for a waiting connection.
    pub(crate) fn clear_conn(&self) {
        self.0.clear(bindings::XPT_CONN);
    }

    /// Returns whether the transport is closed or being closed.
    pub(crate) fn is_closing(&self) -> bool {
        !self.0.is_open()
    }

    /// Returns sunrpc's part of the transport.
    pub(in crate::kapi) fn as_raw(&self) -> *mut bindings::svc_xprt {
        self.0.xprt.get()
    }
}

/// A transport that sunrpc does not know yet, with its first reference. There is one for each
/// transport, so sunrpc gets each transport once. Dropping it closes the transport; it must be
/// dropped in process context, and may sleep.
///
/// It can be returned only from the call that got the arguments of which it was made: `'a` is
/// invariant, and the same as that of the arguments.
pub(crate) struct NewXprt<'a, T: Send + Sync> {
    xprt: ARef<SvcXprt<T>>,
    _args: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<T: Send + Sync> NewXprt<'_, T> {
    /// Passes the transport to sunrpc, which already holds a reference to the module for it.
    pub(super) fn into_raw(self) -> *mut bindings::svc_xprt {
        let this = ManuallyDrop::new(self);
        // The pointer takes over the reference.
        let xprt = this.xprt.0.xprt.get();
        // SAFETY: The transport is valid. This drops one of the two references to the module.
        unsafe { bindings::module_put((*(*xprt).xpt_class).xcl_owner) };
        xprt
    }
}

impl<T: Send + Sync> Drop for NewXprt<'_, T> {
    fn drop(&mut self) {
        let this = &self.xprt.0;
        // sunrpc does the same when it closes a transport. Afterwards handles do nothing, see
        // `is_open` and `close_now`.
        this.set(bindings::XPT_CLOSE);
        this.set(bindings::XPT_DEAD);
        let xprt = this.xprt.get();
        // SAFETY: `create` has set the operations. sunrpc does not know the transport, so this is
        // the only call of this one.
        unsafe {
            if let Some(detach) = (*(*xprt).xpt_ops).xpo_detach {
                detach(xprt);
            }
        }
    }
}

/// While an object of this type exists, sunrpc assigns no further threads to the transport.
#[must_use]
pub(crate) struct Backpressure<T>(Handle<T>);

impl<T> Drop for Backpressure<T> {
    fn drop(&mut self) {
        self.0 .0.backpressure.fetch_sub(1, Relaxed);
    }
}

/// A reference that keeps the memory of a transport, but not the transport: for callbacks, see the
/// module's documentation.
pub(crate) struct Handle<T>(Arc<Inner<T>>);

// SAFETY: A handle gives no access to the data; the rest may be used from any thread.
unsafe impl<T> Send for Handle<T> {}

// SAFETY: A handle gives no access to the data; the rest may be used from any thread.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Handle(self.0.clone())
    }
}

impl<T> Handle<T> {
    /// Sets XPT_DATA until [`SvcXprt::clear_data`]: a received message waits.
    pub(crate) fn set_data(&self) {
        self.0.set(bindings::XPT_DATA);
    }

    /// Sets XPT_CONN: a connection waits to be accepted.
    pub(crate) fn set_conn(&self) {
        self.0.set(bindings::XPT_CONN);
    }

    /// Enqueues the transport for a service thread. Any context.
    pub(crate) fn enqueue(&self) {
        self.0.enqueue();
    }

    /// Closes the transport. Idempotent, any context.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Closes the transport, and detaches it in this call unless a service thread is using it. May
    /// sleep.
    ///
    /// For device removal, which cannot wait for a free service thread.
    pub(crate) fn close_now(&self) {
        if self.0.test(bindings::XPT_DEAD) {
            // The transport is closed, and may have released its namespace.
            return;
        }
        // SAFETY: The memory is a `struct svc_xprt`; one that is dead or unknown to sunrpc is
        // BUSY, and then the call only marks it. Its trace event reads the namespace, which is
        // released after XPT_DEAD is set, as for `is_open`.
        unsafe { bindings::svc_xprt_close(self.0.xprt.get()) };
    }

    /// Makes sunrpc assign no further threads to the transport, see [`Backpressure`]. A caller that
    /// drops the result outside of a service thread must call [`Self::enqueue`].
    pub(crate) fn apply_backpressure(&self) -> Backpressure<T> {
        self.0.backpressure.fetch_add(1, Relaxed);
        Backpressure(self.clone())
    }

    /// Returns whether the peer has proved that it has access: nfsd has found an export for one of
    /// its file handles. sunrpc limits the number of connections without access.
    pub(crate) fn has_access(&self) -> bool {
        self.0.test(bindings::XPT_PEER_VALID)
    }

    /// Returns whether a service thread processes a message of the transport, or sends the Reply.
    pub(crate) fn is_processing(&self) -> bool {
        // SAFETY: The handle keeps the memory, and sunrpc changes the count atomically.
        let count =
            unsafe { (&raw const (*self.0.xprt.get()).xpt_nr_rqsts.counter).read_volatile() };
        count != 0
    }

    /// Returns whether the transport is closed or being closed.
    pub(crate) fn is_closing(&self) -> bool {
        !self.0.is_open()
    }
}
