// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Client transports: sunrpc's `rpc_xprt` with our part behind it.
//!
//! sunrpc allocates an `rpc_xprt` with room for more and frees it after a grace period. An
//! [`Xprt`] is that allocation: C's part first, then what every transport of ours has, then
//! the transport's own. All but C's part is made in `->setup` and dropped in `->destroy`.
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
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
    types::Opaque, //
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
    }, //
};
use crate::kapi::{
    bindings,
    compat::{
        pin_init_at,
        this_module, //
    },
    ext::{
        jiffies,
        work::cancel_delayed_sync, //
    },
};

/// What C's `IPPROTO_TCP` is.
const IPPROTO_TCP: c_int = 6;
/// How long a request waits for its server's port.
const BIND_TIMEOUT_MS: u32 = 60_000;
/// How long a connection without requests is kept.
const IDLE_TIMEOUT_MS: u32 = 300_000;
/// How long a request may take before the connection is tried afresh.
const RPC_TIMEOUT_MS: u32 = 60_000;
/// What the first timeout of a request is at least, if a mount sets a shorter one for connecting.
const LEAST_TIMEOUT_MS: u32 = 10_000;
/// The longest pause between attempts to connect, and so the time that a server may be back before
/// it is noticed.
const LONGEST_RECONNECT_MS: u32 = 15_000;

/// A client transport.
///
/// # Invariants
///
/// `base` is an `rpc_xprt` made by `xprt_alloc`; whoever has a reference to an `Xprt` has the
/// `rpc_xprt` alive. The other fields are initialised from `->setup` to `->destroy`.
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
// SAFETY: What is shared is `Sync`, or changes under C's locks.
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

    /// Returns a reference to the connection, if there is one. Any context. Dropping the last
    /// reference sleeps.
    pub(crate) fn conn(&self) -> Option<Arc<T::Conn>> {
        self.conn.with(|conn| conn.cloned())
    }

    /// Calls `f` with the connection, if there is one. Any context; `f` must not sleep.
    pub(crate) fn with_conn<R>(&self, f: impl FnOnce(Option<&T::Conn>) -> R) -> R {
        self.conn.with(|conn| f(conn.map(|conn| &**conn)))
    }

    /// Gives a slot to the next task that waits for one, or back to the pool.
    ///
    /// # Safety
    ///
    /// `slot` must be of this transport, and must not be in use.
    pub(super) unsafe fn hand_on(&self, slot: &Slot<T>) {
        // SAFETY: The slot is of our pool and not in use, by this function's contract;
        // `xprt_wake_up_backlog` gives it to a task, and clears its request.
        unsafe {
            self.slots.push_unless(slot, || {
                bindings::xprt_wake_up_backlog(self.as_ptr(), slot.as_rqst())
            });
        }
    }

    /// Returns the namespace the transport lives in.
    pub(crate) fn net(&self) -> &Net {
        // SAFETY: The transport holds a reference to its namespace.
        unsafe { Net::from_raw((*self.as_ptr()).xprt_net) }
    }

    /// Returns the server's address.
    pub(crate) fn server(&self) -> SockAddr {
        // Copied first: sunrpc may set the port meanwhile, and no reference may be to memory that
        // changes.
        // SAFETY: The transport is live. Every value of the bytes is an address.
        let addr = unsafe { (&raw const (*self.as_ptr()).addr).read_volatile() };
        SockAddr::from_storage(&addr)
    }

    /// Returns how many requests there may be at a time.
    pub(crate) fn max_reqs(&self) -> u32 {
        read_once!(self, max_reqs)
    }

    /// Returns how many of sunrpc's clients swap memory out over this transport.
    pub(super) fn swappers(&self) -> &Atomic<i32> {
        // SAFETY: It is part of the transport, and changed atomically alone.
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

    /// Returns whether a Call that timed out is a reason to break the connection: it was sent on
    /// this one, and either has been under way for half of its mount's first timeout, or as long
    /// has nothing come on the connection. A Call of a soft mount may have waited for the
    /// connection, or for a credit, most of the time it had.
    pub(super) fn is_to_blame(&self, slot: &Slot<T>) -> bool {
        let enough = slot.first_timeout() / 2;
        slot.connect_cookie() == self.connect_cookie()
            && (slot.under_way() >= enough || self.last_heard.silence(jiffies()) >= enough)
    }

    /// Has sunrpc close the connection soon. Does not sleep.
    pub(crate) fn force_disconnect(&self) {
        // SAFETY: The transport is live, and the function takes the locks it needs.
        unsafe { bindings::xprt_force_disconnect(self.as_ptr()) };
    }

    /// Lets the sender that waits for buffer space go on. Does not sleep.
    pub(crate) fn write_space(&self) {
        // SAFETY: The transport is live, and the function takes the locks it needs.
        unsafe { bindings::xprt_write_space(self.as_ptr()) };
    }

    /// Returns the number of the connection, as [`Slot::connect_cookie`] has it.
    pub(crate) fn connect_cookie(&self) -> u32 {
        read_once!(self, connect_cookie)
    }

    /// A message came, of whatever kind: the peer is there.
    pub(crate) fn note_message(&self) {
        self.last_heard.heard(jiffies());
    }

    /// Sets the congestion window to `credits` requests.
    pub(crate) fn set_credits(&self, credits: u32) {
        let xprt = self.as_ptr();
        // CAST: A C `unsigned long` has at least 32 bits.
        // SAFETY: The window is written under the transport lock.
        unsafe {
            bindings::spin_lock(&raw mut (*xprt).transport_lock);
            (*xprt).cwnd = (credits as c_ulong) << bindings::RPC_CWNDSHIFT;
            bindings::spin_unlock(&raw mut (*xprt).transport_lock);
        }
    }

    /// While the result exists, and memory is swapped out over this transport, the running
    /// thread may use the reserves: what it allocates serves to free memory.
    pub(crate) fn reclaim_scope(&self) -> ReclaimScope {
        ReclaimScope(
            match self.swappers().load(Relaxed) {
                0 => None,
                // SAFETY: Undone by the drop, on the same thread as the result is not `Send`.
                _ => Some(unsafe { bindings::rpcrdma_shim_memalloc_noreclaim_save() }),
            },
            PhantomData,
        )
    }

    /// Frees the message buffers of slots that are not in use. Any context.
    pub(crate) fn trim_slots(&self) {
        self.slots.trim();
    }

    /// Returns the transport's part of every slot, in use or not.
    pub(crate) fn slot_data(&self) -> impl Iterator<Item = &T::Slot> {
        self.slots.iter().map(Deref::deref)
    }

    /// Finds the request `xid` (host order) among those that wait for a Reply.
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

    pub(super) fn set_port(&self, port: u16) {
        // SAFETY: sunrpc sets a port while nothing else uses the address; the strings are
        // rewritten in place, and a reader at the same time sees a string in any case.
        unsafe {
            let addr = (&raw mut (*self.as_ptr()).addr).cast::<bindings::sockaddr>();
            bindings::rpcrdma_shim_rpc_set_port(addr, port);
            (*self.strings.get()).set_port(port);
        }
    }

    pub(super) fn set_timeouts(&self, connect: c_ulong, reconnect: c_ulong) {
        let xprt = self.as_ptr();
        // SAFETY: All these fields, `timeout` with them, are written under the transport lock.
        unsafe {
            bindings::spin_lock(&raw mut (*xprt).transport_lock);
            if connect < (*xprt).connect_timeout {
                let mut timeout = *(*xprt).timeout;
                timeout.to_initval = connect.max(msecs_to_jiffies(LEAST_TIMEOUT_MS));
                timeout.to_maxval = timeout.to_initval;
                *self.timeout.get() = timeout;
                (*xprt).connect_timeout = connect;
            }
            (*xprt).max_reconnect_timeout = (*xprt).max_reconnect_timeout.min(reconnect);
            bindings::spin_unlock(&raw mut (*xprt).transport_lock);
        }
    }

    /// `->setup` of the class.
    ///
    /// # Safety
    ///
    /// `args` must be what sunrpc passes there.
    pub(super) unsafe extern "C" fn setup(
        args: *mut bindings::xprt_create,
    ) -> *mut bindings::rpc_xprt {
        // SAFETY: `args` is what sunrpc passes, by this function's contract: valid during the
        // call.
        match check_open().and_then(|()| unsafe { Self::create(&*args) }) {
            Ok(xprt) => xprt,
            // CAST: Error codes as pointers, as `ERR_PTR` makes them.
            Err(error) => error.to_errno() as isize as *mut bindings::rpc_xprt,
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
            // SAFETY: Nobody has it yet.
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

    /// Fills in a new transport for so many `requests`.
    ///
    /// # Safety
    ///
    /// `xprt` must be fresh from `xprt_alloc` with the size of `Self`.
    unsafe fn init(xprt: *mut bindings::rpc_xprt, server: SockAddr, requests: u32) -> Result {
        const { assert!(align_of::<Self>() <= 8) };
        // CAST: The room is that of `Self`.
        let this = xprt.cast::<Self>();
        let shared = Arc::pin_init(Shared::new(this), GFP_KERNEL)?;
        let shared: Arc<Shared<T>> = shared;
        let slots = KBox::pin_init(SlotPool::new(requests as usize), GFP_KERNEL)?;
        let bc = KBox::pin_init(BcPool::new(), GFP_KERNEL)?;
        let conn = KBox::pin_init(ConnCell::new(), GFP_KERNEL)?;
        let connector = Connector::new(XprtLink(shared.clone()))?;
        // SAFETY: `xprt` is ours alone for now.
        unsafe { Self::init_base(xprt, &server)? };
        let data = T::new(XprtLink(shared.clone()));
        // SAFETY: `this` has room for all of it, and what is there needs no drop. `data` stays
        // where it is until it is dropped in place. The first thing that can fail comes first.
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

    /// Fills in C's part.
    ///
    /// # Safety
    ///
    /// `xprt` must be fresh from `xprt_alloc`, and the caller's alone.
    unsafe fn init_base(xprt: *mut bindings::rpc_xprt, server: &SockAddr) -> Result {
        let mut text = Text::<64>::new();
        text.set(format_args!("{}", server.display_ip()));
        // SAFETY: The transport is the caller's alone, by this function's contract. The string
        // is freed by whoever replaces it, and in `destroy`.
        unsafe {
            (*xprt).connect_timeout = msecs_to_jiffies(RPC_TIMEOUT_MS);
            (*xprt).max_reconnect_timeout = msecs_to_jiffies(LONGEST_RECONNECT_MS);
            (*xprt).bind_timeout = msecs_to_jiffies(BIND_TIMEOUT_MS);
            (*xprt).idle_timeout = msecs_to_jiffies(IDLE_TIMEOUT_MS);
            (*xprt).ops = &OpsTable::<T>::TABLE;
            // Side protocols that look here go over TCP.
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
    /// `xprt` must be one that [`Self::setup`] made; nobody uses it afterwards.
    pub(super) unsafe fn destroy(xprt: *mut bindings::rpc_xprt) {
        let this = xprt.cast::<Self>();
        // SAFETY: It is initialised until below, and sunrpc calls with the send lock held and
        // does not release it: no attempt to connect is under way.
        let shared = unsafe {
            cancel_delayed_sync(&(*this).connector);
            T::destroy(&mut SendLocked::new(&*this));
            (*this).shared.clone()
        };
        shared.close();
        // SAFETY: No borrow is left: sunrpc has none by its contract, links have none after `close`. The
        // strings stay as they are until the memory is freed.
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
        // Last of all what takes our code to be dropped.
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

/// See [`Xprt::reclaim_scope`].
pub(crate) struct ReclaimScope(Option<u32>, PhantomData<*mut ()>);

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
    pub(crate) binds: c_ulong,
    pub(crate) connects: c_ulong,
    pub(crate) connect_secs: c_ulong,
    pub(crate) idle_secs: c_ulong,
    pub(crate) sends: c_ulong,
    pub(crate) recvs: c_ulong,
    pub(crate) bad_xids: c_ulong,
    pub(crate) requests: u64,
    pub(crate) backlog: u64,
}
