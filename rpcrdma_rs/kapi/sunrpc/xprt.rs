// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Client transports: sunrpc's `rpc_xprt`, followed by the data of this module.
//!
//! ```text
//!   ->setup ──> live: sunrpc calls `XprtOps` ──->destroy──> data dropped ──grace period──> freed
//! ```
//!
//! sunrpc allocates an `rpc_xprt` with the size of an [`Xprt`]: the C struct comes first, then the
//! fields of this file, then the data of the transport, which implements [`XprtOps`].
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use core::{
    cell::UnsafeCell,
    ops::Deref, //
};

use kernel::{
    ffi::{
        c_char,
        c_int,
        c_ulong, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::msecs_to_jiffies,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

use super::{
    addr::SockAddr,
    backchannel::BcPool,
    class::check_open,
    clock::{
        since,
        LastHeard, //
    },
    link::{
        Shared,
        XprtLink, //
    },
    net::Net,
    ops::{
        OpsTable,
        XprtOps, //
    },
    rqst::{
        Pinned,
        Slot,
        SlotPool, //
    },
    send_lock::{
        ConnCell,
        Connector,
        SendLocked, //
    },
    text::{
        Strings,
        Text, //
    },
    xprt_lock::{
        lock_transport,
        set_window, //
    }, //
};
use crate::kapi::{
    bindings,
    compat::{
        pin_init_at,
        smp_mb,
        this_module, //
    },
    ext::{
        jiffies,
        work::cancel_delayed_sync, //
    },
};

/// `IPPROTO_TCP`.
const IPPROTO_TCP: c_int = 6;
/// How long a request waits for its server's port.
const BIND_TIMEOUT_MS: u32 = 60_000;
/// How long a connection without requests is kept.
const IDLE_TIMEOUT_MS: u32 = 300_000;
/// The timeout of a Call, after which a silent connection is closed.
const RPC_TIMEOUT_MS: u32 = 60_000;
/// The shortest first timeout of a request, even if a mount sets a shorter timeout for connecting.
const MIN_TIMEOUT_MS: u32 = 10_000;
/// The longest pause between attempts to connect: how late a client may notice that its server is
/// available again.
const MAX_RECONNECT_MS: u32 = 15_000;

/// A client transport.
///
/// # Invariants
///
/// `base` is an `rpc_xprt` from `xprt_alloc`, which is live while the `Xprt` is borrowed. The other
/// fields are initialised from `->setup` to `->destroy`.
/// `strings` and `timeout` are written under C's own rules for the fields that point there.
#[repr(C)]
pub(crate) struct Xprt<T: XprtOps> {
    base: Opaque<bindings::rpc_xprt>,
    shared: Arc<Shared<T>>,
    strings: UnsafeCell<Strings>,
    timeout: UnsafeCell<bindings::rpc_timeout>,
    last_heard: LastHeard,
    slots: core::pin::Pin<KBox<SlotPool<T>>>,
    bc: core::pin::Pin<KBox<BcPool<T>>>,
    conn: core::pin::Pin<KBox<ConnCell<T::Conn>>>,
    connector: Arc<Connector<T>>,
    data: T,
}

// SAFETY: sunrpc uses a transport from any thread; our fields are `Send` and `Sync` or follow
// C's locking.
unsafe impl<T: XprtOps> Send for Xprt<T> {}
// SAFETY: All fields are `Sync`, or change under C's locks.
unsafe impl<T: XprtOps> Sync for Xprt<T> {}

impl<T: XprtOps> Deref for Xprt<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

/// Reads a field that C changes concurrently.
macro_rules! read_once {
    ($this:expr, $($field:tt)+) => {
        // SAFETY: The field is live and of a type that is read atomically.
        unsafe { (&raw const (*$this.as_ptr()).$($field)+).read_volatile() }
    };
}

impl<T: XprtOps> Xprt<T> {
    /// Borrows the transport at `xprt`.
    ///
    /// # Safety
    ///
    /// `xprt` must be one that [`Self::setup`] made, alive for `'a`.
    pub(super) unsafe fn from_raw<'a>(xprt: *mut bindings::rpc_xprt) -> &'a Self {
        // CAST: C's part is first, and the layout is C's.
        // SAFETY: By this function's contract it is alive for `'a`, and was initialised by
        // `setup`.
        unsafe { &*xprt.cast() }
    }

    pub(in crate::kapi) fn as_ptr(&self) -> *mut bindings::rpc_xprt {
        self.base.get()
    }

    pub(super) fn slots(&self) -> &SlotPool<T> {
        &self.slots
    }

    pub(super) fn bc_pool(&self) -> &BcPool<T> {
        &self.bc
    }

    pub(super) fn conn_cell(&self) -> &ConnCell<T::Conn> {
        &self.conn
    }

    pub(super) fn connector(&self) -> &Arc<Connector<T>> {
        &self.connector
    }

    pub(super) fn last_heard(&self) -> &LastHeard {
        &self.last_heard
    }

    /// Returns a reference to the connection, if there is one. Not from interrupts. Dropping the
    /// last reference sleeps.
    pub(crate) fn conn(&self) -> Option<Arc<T::Conn>> {
        self.conn.with(|conn| conn.cloned())
    }

    /// Calls `f` with the connection, if there is one. Not from interrupts; `f` must not sleep.
    pub(crate) fn with_conn<R>(&self, f: impl FnOnce(Option<&T::Conn>) -> R) -> R {
        self.conn.with(|conn| f(conn.map(|conn| &**conn)))
    }

    /// Passes a slot to the next task that waits for one, or returns it to the pool.
    ///
    /// # Safety
    ///
    /// `slot` must be of this transport, and must not be in use.
    pub(super) unsafe fn free_slot(&self, slot: &Slot<T>) {
        // SAFETY: The slot is of our pool and not in use, by this function's contract;
        // `xprt_wake_up_backlog` gives it to a task, and clears its request.
        unsafe {
            self.slots.push_unless(slot, || {
                bindings::xprt_wake_up_backlog(self.as_ptr(), slot.as_rqst())
            });
        }
    }

    /// Returns the network namespace of the transport.
    pub(crate) fn net(&self) -> &Net {
        // SAFETY: The transport holds a reference to its namespace.
        unsafe { Net::from_raw((*self.as_ptr()).xprt_net) }
    }

    /// Returns the server's address.
    pub(crate) fn server(&self) -> SockAddr {
        // Copied, because sunrpc may set the port at the same time, and memory that changes must
        // not be borrowed.
        // SAFETY: The transport is live. Every value of the bytes is an address.
        let addr = unsafe { (&raw const (*self.as_ptr()).addr).read_volatile() };
        SockAddr::from_storage(&addr)
    }

    /// Returns the largest number of concurrent requests.
    pub(crate) fn max_reqs(&self) -> u32 {
        read_once!(self, max_reqs)
    }

    /// Returns the number of RPC clients that use this transport for swap.
    pub(super) fn swappers(&self) -> &Atomic<i32> {
        // SAFETY: It is part of the transport, and only changed atomically.
        unsafe { Atomic::from_ptr(&raw mut (*self.as_ptr()).swapper.counter) }
    }

    /// Returns whether the transport is connected.
    pub(crate) fn is_connected(&self) -> bool {
        read_once!(self, state) & (1 << bindings::XPRT_CONNECTED) != 0
    }

    /// Marks the transport as not connected.
    pub(crate) fn clear_connected(&self) {
        // SAFETY: The transport is live.
        unsafe { bindings::rpcrdma_shim_xprt_clear_connected(self.as_ptr()) }
    }

    /// Returns whether a Call that timed out is a reason to close the connection. The Call must
    /// have been sent on this connection. In addition, the Call must have been in flight, or the
    /// connection silent, for at least half of the first timeout of the Call's mount: a Call of a
    /// soft mount may have spent most of its time waiting for the connection or for a credit.
    pub(super) fn should_close_on_timeout(&self, slot: &Slot<T>) -> bool {
        let enough = slot.first_timeout() / 2;
        slot.connect_cookie() == self.connect_cookie()
            && (slot.time_in_flight() >= enough || self.last_heard.silence(jiffies()) >= enough)
    }

    /// Makes sunrpc close the connection soon. Does not sleep.
    pub(crate) fn force_disconnect(&self) {
        // SAFETY: The transport is live, and the function takes the locks it needs.
        unsafe { bindings::xprt_force_disconnect(self.as_ptr()) };
    }

    /// Wakes the sender that waits for buffer space. Does not sleep.
    pub(crate) fn write_space(&self) {
        let xprt = self.as_ptr();
        // SAFETY: The transport is live, and the function takes the locks it needs.
        if unsafe { bindings::xprt_write_space(xprt) } {
            // sunrpc took the send lock, and released it if there was no sender, without waking the
            // thread that waits for the lock in order to destroy the transport.
            // The lock must be released before the waiter is looked for.
            smp_mb();
            // SAFETY: The transport is live, and any of its bits may be waited for.
            // CAST: The number of a bit in a word.
            unsafe {
                bindings::wake_up_bit(&raw mut (*xprt).state, bindings::XPRT_LOCKED as c_int)
            };
        }
    }

    /// Returns the number of the connection, for comparison with [`Slot::connect_cookie`].
    pub(crate) fn connect_cookie(&self) -> u32 {
        read_once!(self, connect_cookie)
    }

    /// Records that a message of any kind has arrived. Any context.
    pub(crate) fn note_message(&self) {
        self.last_heard.heard(jiffies());
    }

    /// Sets the congestion window to `credits` requests. Wakes the sender that waits for room in
    /// the window, if there is room now. Takes the transport lock; does not sleep.
    ///
    /// sunrpc itself wakes a sender only when a request returns its place.
    pub(crate) fn set_credits(&self, credits: u32) {
        let xprt = self.as_ptr();
        // SAFETY: The transport is live while it is borrowed, longer than the guard.
        let guard = unsafe { set_window(xprt, credits) };
        // SAFETY: We hold the transport lock, and the flag that a sender waits for a place is
        // atomic.
        let waits = unsafe {
            (*xprt).cong < (*xprt).cwnd && bindings::rpcrdma_shim_xprt_clear_cwnd_wait(xprt)
        };
        drop(guard);
        if waits {
            // Begins and ends a wait for buffer space, because the end of one wakes the next
            // sender. A sender that really waits for buffer space checks again.
            // SAFETY: The transport is live, and the function sets an atomic flag.
            unsafe { bindings::xprt_wait_for_buffer_space(xprt) };
            self.write_space();
        }
    }

    /// Lets allocations of the current thread use the memory reserves until the result is dropped,
    /// if the transport is used for swap: such allocations serve to free memory.
    pub(crate) fn reclaim_scope(&self) -> ReclaimScope {
        ReclaimScope(
            match self.swappers().load(Relaxed) {
                0 => None,
                // SAFETY: Undone by the drop, on the same thread as the result is not `Send`.
                _ => Some(unsafe { bindings::rpcrdma_shim_memalloc_noreclaim_save() }),
            },
            NotThreadSafe,
        )
    }

    /// Frees the message buffers of slots that are not in use. Does not sleep; not from interrupts.
    pub(crate) fn trim_slots(&self) {
        self.slots.trim();
    }

    /// Returns the transport's part of every slot, in use or not.
    pub(crate) fn slot_data(&self) -> impl Iterator<Item = &T::Slot> {
        self.slots.iter().map(Deref::deref)
    }

    /// Finds and pins the request `xid` (host order) that waits for a Reply. Takes the queue lock;
    /// does not sleep.
    pub(crate) fn lookup(&self, xid: u32) -> Option<Pinned<T>> {
        // SAFETY: The transport is live, its slots are of that type.
        unsafe { Pinned::lookup(self.as_ptr(), xid) }
    }

    pub(super) fn has_bc_service(&self) -> bool {
        !read_once!(self, bc_serv).is_null()
    }

    /// Returns sunrpc's own counters of the transport.
    pub(crate) fn counters(&self) -> Counters {
        let hz = msecs_to_jiffies(1000);
        let idle = if self.is_connected() {
            since(jiffies(), read_once!(self, last_used))
                .checked_div(hz)
                .unwrap_or(0)
        } else {
            0
        };
        Counters {
            binds: read_once!(self, stat.bind_count),
            connects: read_once!(self, stat.connect_count),
            connect_secs: read_once!(self, stat.connect_time)
                .checked_div(hz)
                .unwrap_or(0),
            idle_secs: idle,
            sends: read_once!(self, stat.sends),
            recvs: read_once!(self, stat.recvs),
            bad_xids: read_once!(self, stat.bad_xids),
            requests: read_once!(self, stat.req_u),
            backlog: read_once!(self, stat.bklog_u),
        }
    }

    /// `->set_port`: sets the port in the address and in its texts.
    ///
    /// # Safety
    ///
    /// Nobody else may set the port at the same time, as sunrpc ensures by `XPRT_BINDING`.
    pub(super) unsafe fn set_port(&self, port: u16) {
        // SAFETY: Nobody else sets the port, by this function's contract. `server` may read the
        // address at the same time, and sysfs may replace it, so no reference to it is made. The
        // strings are rewritten in place, and their last byte stays zero, so a concurrent reader
        // sees a terminated string.
        unsafe {
            let addr = (&raw mut (*self.as_ptr()).addr).cast::<bindings::sockaddr>();
            bindings::rpcrdma_shim_rpc_set_port(addr, port);
            (*self.strings.get()).set_port(port);
        }
    }

    /// `->set_connect_timeout`: lowers the time limit of a connection attempt to `connect` jiffies,
    /// and the longest pause before reconnecting to `reconnect` jiffies. A value that is already
    /// lower stays. The transport's own RPC timeout is lowered with the time limit, but not below
    /// [`MIN_TIMEOUT_MS`].
    pub(super) fn set_timeouts(&self, connect: c_ulong, reconnect: c_ulong) {
        let xprt = self.as_ptr();
        // SAFETY: The transport is live while it is borrowed.
        let _guard = unsafe { lock_transport(xprt) };
        // SAFETY: All these fields, including `timeout`, are written under the transport lock,
        // which we hold.
        unsafe {
            if connect < (*xprt).connect_timeout {
                let mut timeout = *(*xprt).timeout;
                timeout.to_initval = connect.max(msecs_to_jiffies(MIN_TIMEOUT_MS));
                timeout.to_maxval = timeout.to_initval;
                *self.timeout.get() = timeout;
                (*xprt).connect_timeout = connect;
            }
            (*xprt).max_reconnect_timeout = (*xprt).max_reconnect_timeout.min(reconnect);
        }
    }

    /// `->setup` of the class.
    ///
    /// # Safety
    ///
    /// `args` must be the argument that sunrpc passes to `->setup`.
    pub(super) unsafe extern "C" fn setup(
        args: *mut bindings::xprt_create,
    ) -> *mut bindings::rpc_xprt {
        // SAFETY: `args` comes from sunrpc by this function's contract, so it is valid during the
        // call.
        match check_open().and_then(|()| unsafe { Self::create(&*args) }) {
            Ok(xprt) => xprt,
            Err(error) => error.to_ptr(),
        }
    }

    /// # Safety
    ///
    /// `args` must be what sunrpc passes to `->setup`.
    unsafe fn create(args: &bindings::xprt_create) -> Result<*mut bindings::rpc_xprt> {
        // SAFETY: sunrpc passes an address of that length.
        let server = unsafe { SockAddr::from_raw(args.dstaddr, args.addrlen)? };
        let requests = T::slots();
        // SAFETY: sunrpc holds a reference to the module during the call.
        unsafe { bindings::__module_get(this_module()) };
        // SAFETY: The namespace is live.
        let xprt = unsafe { bindings::xprt_alloc(args.net, size_of::<Self>(), 0, requests) };
        if xprt.is_null() {
            // SAFETY: Taken above.
            unsafe { bindings::module_put(this_module()) };
            return Err(ENOMEM);
        }
        // SAFETY: Just allocated with room for all of `Self`.
        if let Err(error) = unsafe { Self::init(xprt, server, requests) } {
            // SAFETY: sunrpc does not know the transport yet.
            unsafe {
                kfree_string(
                    (*xprt).address_strings
                        [bindings::rpc_display_format_t_RPC_DISPLAY_ADDR as usize],
                );
                bindings::xprt_free(xprt);
                bindings::module_put(this_module());
            }
            return Err(error);
        }
        Ok(xprt)
    }

    /// Initialises a new transport for up to `requests` concurrent requests.
    ///
    /// # Safety
    ///
    /// `xprt` must be fresh from `xprt_alloc` with the size of `Self`.
    unsafe fn init(xprt: *mut bindings::rpc_xprt, server: SockAddr, requests: u32) -> Result {
        const { assert!(align_of::<Self>() <= 8) };
        // CAST: The allocation has the size of `Self`.
        let this = xprt.cast::<Self>();
        let shared = Arc::pin_init(Shared::new(this), GFP_KERNEL)?;
        let shared: Arc<Shared<T>> = shared;
        let slots = KBox::pin_init(SlotPool::new(requests as usize), GFP_KERNEL)?;
        let bc = KBox::pin_init(BcPool::new(xprt), GFP_KERNEL)?;
        let conn = KBox::pin_init(ConnCell::new(), GFP_KERNEL)?;
        let connector = Connector::new(XprtLink(shared.clone()))?;
        // SAFETY: `xprt` is fresh from `xprt_alloc`, by this function's contract.
        unsafe { Self::init_base(xprt, &server)? };
        let data = T::new(XprtLink(shared.clone()));
        // SAFETY: `this` has room for all fields, none of which is initialised yet. `data` does not
        // move until it is dropped in place. Only its initialisation can fail, so it comes first.
        unsafe {
            pin_init_at(&raw mut (*this).data, data)?;
            (&raw mut (*this).shared).write(shared);
            (&raw mut (*this).strings).write(UnsafeCell::new(Strings::new(&server)));
            (&raw mut (*this).timeout).write(UnsafeCell::new(default_timeout()));
            (&raw mut (*this).last_heard).write(LastHeard::new(jiffies()));
            (&raw mut (*this).slots).write(slots);
            (&raw mut (*this).bc).write(bc);
            (&raw mut (*this).conn).write(conn);
            (&raw mut (*this).connector).write(connector);
            (*xprt).timeout = (*this).timeout.get();
            (*this).point_at_strings();
            (*this).shared.open();
        }
        Ok(())
    }

    /// Initialises the C struct.
    ///
    /// # Safety
    ///
    /// `xprt` must be fresh from `xprt_alloc`, and nobody else may use it.
    unsafe fn init_base(xprt: *mut bindings::rpc_xprt, server: &SockAddr) -> Result {
        let mut text = Text::<64>::new();
        text.set(format_args!("{}", server.display_ip()));
        // SAFETY: The transport is the caller's alone, by this function's contract. The string
        // is freed when sysfs replaces it, or by `destroy`.
        unsafe {
            (*xprt).connect_timeout = msecs_to_jiffies(RPC_TIMEOUT_MS);
            (*xprt).max_reconnect_timeout = msecs_to_jiffies(MAX_RECONNECT_MS);
            (*xprt).bind_timeout = msecs_to_jiffies(BIND_TIMEOUT_MS);
            (*xprt).idle_timeout = msecs_to_jiffies(IDLE_TIMEOUT_MS);
            (*xprt).ops = &OpsTable::<T>::TABLE;
            // Side protocols, which use the value of this field, run over TCP.
            (*xprt).prot = IPPROTO_TCP;
            (*xprt).xprt_class = T::class().as_ptr();
            (*xprt).addr = *server.storage();
            (*xprt).addrlen = server.len();
            (*xprt).max_payload = T::max_payload();
            if server.port() != 0 {
                bindings::rpcrdma_shim_xprt_set_bound(xprt);
            }
            let addr = bindings::kstrdup(text.as_ptr(), bindings::GFP_KERNEL);
            if addr.is_null() {
                return Err(ENOMEM);
            }
            (*xprt).address_strings[bindings::rpc_display_format_t_RPC_DISPLAY_ADDR as usize] =
                addr;
        }
        Ok(())
    }

    /// Publishes the strings other than the address itself, which sysfs may replace.
    ///
    /// # Safety
    ///
    /// Nobody else may have the transport yet; `strings` must be initialised.
    unsafe fn point_at_strings(&self) {
        // SAFETY: Nobody else has the transport, by this function's contract. The strings live
        // as long as the allocation that has both, and constants permanently.
        unsafe {
            (*self.strings.get()).publish(
                &mut (*self.as_ptr()).address_strings,
                self.server().is_ipv6(),
            );
        }
    }

    /// `->destroy`.
    ///
    /// # Safety
    ///
    /// `xprt` must come from [`Self::setup`], and must not be used afterwards.
    pub(super) unsafe fn destroy(xprt: *mut bindings::rpc_xprt) {
        let this = xprt.cast::<Self>();
        // SAFETY: The transport is initialised until it is dropped below. sunrpc holds the send
        // lock and does not release it, so no attempt to connect is in progress.
        let shared = unsafe {
            cancel_delayed_sync(&(*this).connector);
            T::destroy(&mut SendLocked::new(&*this));
            (*this).shared.clone()
        };
        shared.close();
        // SAFETY: No borrow is left: sunrpc has none when it calls `->destroy`, and links have none
        // after `close`. The strings stay as they are until the memory is freed.
        unsafe {
            core::ptr::drop_in_place(&raw mut (*this).data);
            core::ptr::drop_in_place(&raw mut (*this).connector);
            core::ptr::drop_in_place(&raw mut (*this).conn);
            core::ptr::drop_in_place(&raw mut (*this).bc);
            core::ptr::drop_in_place(&raw mut (*this).slots);
            core::ptr::drop_in_place(&raw mut (*this).shared);
            kfree_string(
                (*xprt).address_strings[bindings::rpc_display_format_t_RPC_DISPLAY_ADDR as usize],
            );
            bindings::xprt_free(xprt);
        }
        // Before the reference to the module, because dropping it runs code of the module.
        drop(shared);
        // SAFETY: Taken in `create`.
        unsafe { bindings::module_put(this_module()) };
    }
}

/// # Safety
///
/// `string` must be null or a `kmalloc` allocation that is not in use.
unsafe fn kfree_string(string: *const c_char) {
    // SAFETY: Null, or an allocation that nobody uses, by this function's contract.
    unsafe { bindings::kfree(string.cast()) };
}

fn default_timeout() -> bindings::rpc_timeout {
    bindings::rpc_timeout {
        to_initval: msecs_to_jiffies(RPC_TIMEOUT_MS),
        to_maxval: msecs_to_jiffies(RPC_TIMEOUT_MS),
        ..Default::default()
    }
}

/// A scope in which allocations may use the memory reserves, see [`Xprt::reclaim_scope`].
#[must_use]
pub(crate) struct ReclaimScope(Option<u32>, NotThreadSafe);

impl Drop for ReclaimScope {
    fn drop(&mut self) {
        if let Some(flags) = self.0 {
            // SAFETY: Saved by `reclaim_scope` on this thread.
            unsafe { bindings::rpcrdma_shim_memalloc_noreclaim_restore(flags) };
        }
    }
}

/// Counters that sunrpc keeps for a transport.
pub(crate) struct Counters {
    /// How often sunrpc has bound the transport to a port of the server.
    pub(crate) binds: c_ulong,
    /// Connections that were made.
    pub(crate) connects: c_ulong,
    /// Seconds spent on connecting.
    pub(crate) connect_secs: c_ulong,
    /// Seconds since the last use; 0 while there is no connection.
    pub(crate) idle_secs: c_ulong,
    /// Calls that were sent.
    pub(crate) sends: c_ulong,
    /// Replies that were received.
    pub(crate) recvs: c_ulong,
    /// Replies that match no Call.
    pub(crate) bad_xids: c_ulong,
    /// The number of Calls in flight, summed over all sends.
    pub(crate) requests: u64,
    /// The number of Calls in the backlog, summed over all sends.
    pub(crate) backlog: u64,
}
