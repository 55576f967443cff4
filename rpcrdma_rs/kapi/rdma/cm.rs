// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Connection management: ids and their events, listening, connecting.
//!
//! ```text
//!   active:   create ─► resolve_addr ─► resolve_route ─► (Pd, Qp) ─► connect ─► Established
//!   passive:  create ─► bind ─► listen ─► connect_request: adopt ─► (Pd, Qp) ─► accept
//!                                                                       └─► Established
//!   both:     Established ─► Disconnected | DeviceRemoval | AddrChange (active) ─► drop
//! ```
//!
//! The CM calls a handler under the handler mutex of its id, one event at a time. The handler may
//! sleep. One exception: a listener on all devices may get several connection requests at the same
//! time, one for each device. A handler must not drop its own [`Id`], nor the last reference to a
//! QP or PD on it, because the drop waits for the handler.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use core::{
    cell::Cell,
    ffi::{
        c_int,
        c_void, //
    },
    ptr::NonNull, //
};

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        MutexGuard,
        UniqueArc, //
    },
};

use super::{
    device::{
        Device,
        Port, //
    },
    owner_name, //
};
use crate::kapi::{
    bindings,
    ext::{
        addr::SockAddr,
        atomic::{
            Atomic,
            Full, //
        },
        net::Net, //
    }, //
};

/// Handles the events of an id.
#[vtable]
pub(crate) trait Handler: Send + Sync + 'static {
    /// Handles an event. Called in process context with the id's handler mutex held; may sleep.
    fn event(&self, event: Event<'_>);

    /// Adopts or refuses a new connection. Only listening ids get this call, in the context of
    /// [`Handler::event`] and with the handler mutexes of both ids held. A request that is not
    /// adopted is refused.
    fn connect_request(&self, request: ConnectRequest<'_>) {
        let _refused = request;
    }
}

/// An event of an id.
pub(crate) enum Event<'a> {
    /// The peer's address is resolved and the id bound to a device.
    AddrResolved,
    /// The peer's address cannot be resolved.
    AddrError,
    /// The path to the peer is resolved.
    RouteResolved,
    /// The path to the peer cannot be resolved.
    RouteError,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer rejected the connection request.
    Rejected {
        /// The reason, as a code that depends on the RDMA transport.
        reason: i32,
    },
    /// The connection is established.
    Established(ConnInfo<'a>),
    /// The connection has ended.
    Disconnected,
    /// The device is being removed. The id must be dropped soon.
    DeviceRemoval,
    /// The address moved to another device.
    AddrChange,
    /// The QP may be used for a new connection. Not needed here, as a QP is used once.
    TimewaitExit,
    /// An event that does not concern a connection.
    Other,
}

/// The parameters in the peer's connection request or reply.
#[derive(Clone, Copy)]
pub(crate) struct ConnInfo<'a> {
    /// The private data. The RDMA transport may have padded it with zeroes.
    pub(crate) private_data: &'a [u8],
    /// The number of RDMA Reads that the peer allows us to have outstanding.
    pub(crate) initiator_depth: u8,
}

/// The parameters of our connection request or reply.
#[derive(Clone, Copy, Default)]
pub(crate) struct ConnParam<'a> {
    /// The private data. Every RDMA transport can carry 56 bytes.
    pub(crate) private_data: &'a [u8],
    /// The number of RDMA Reads that the peer may have outstanding.
    pub(crate) responder_resources: u8,
    /// The number of RDMA Reads that we may have outstanding.
    pub(crate) initiator_depth: u8,
    /// The number of transport retries. Ignored when accepting.
    pub(crate) retry_count: u8,
    /// The number of retries when the peer has no Receive posted; 7 means no limit.
    pub(crate) rnr_retry_count: u8,
}

impl ConnParam<'_> {
    fn to_raw(self) -> Result<bindings::rdma_conn_param> {
        Ok(bindings::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len())?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ..pin_init::zeroed()
        })
    }
}

/// A C id. The [`Id`] and each PD on it hold a reference.
///
/// # Invariants
///
/// `raw` is a valid id, which only the drop of this object destroys. Its context points to the
/// handler of the [`Id`], and C does not use it after the drop of the `Id`.
#[pin_data(PinnedDrop)]
pub(super) struct IdInner {
    raw: NonNull<bindings::rdma_cm_id>,
    has_qp: Atomic<bool>,
    #[pin]
    calls: Mutex<()>,
}

// SAFETY: The CM allows the use of an id on any thread.
unsafe impl Send for IdInner {}
// SAFETY: The CM's locks protect the C id. The other fields are atomic, or a lock.
unsafe impl Sync for IdInner {}

impl IdInner {
    fn new(raw: NonNull<bindings::rdma_cm_id>) -> impl PinInit<Self> {
        pin_init!(IdInner {
            raw,
            has_qp: Atomic::new(false),
            calls <- new_mutex!((), "IdInner::calls"),
        })
    }

    /// Begins a call that connects, accepts or disconnects. rdma_cm relies on its users not to run
    /// these concurrently for one id. Sleeps.
    ///
    /// The handler mutex of the id is taken inside this lock, so a handler of the id must not call
    /// this.
    pub(super) fn begin_call(&self) -> MutexGuard<'_, ()> {
        self.calls.lock()
    }

    pub(super) fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Claims the id for its only QP; `EBUSY` if it has one already.
    pub(super) fn claim(&self) -> Result {
        if self.has_qp.xchg(true, Full) {
            return Err(EBUSY);
        }
        Ok(())
    }

    pub(super) fn port(&self) -> u32 {
        // SAFETY: The id is valid by the invariants. Callers have an id that is bound to a device,
        // and the port does not change after that.
        unsafe { (*self.as_raw()).port_num }
    }
}

#[pinned_drop]
impl PinnedDrop for IdInner {
    /// Sleeps until no handler runs.
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The id is valid by the invariants, and this was the last reference to it.
        unsafe { bindings::rdma_destroy_id(self.as_raw()) };
    }
}

/// An RDMA identifier, and the handler of its events.
///
/// After the drop of this object no event is handled. The C id itself exists until its PD and QP
/// are dropped as well. The methods that call rdma_cm need process context and may sleep. They must
/// not be called with a lock held that a handler of the id takes.
///
/// # Examples
///
/// ```ignore
/// let mut id = Id::create(net, handler)?;
/// id.resolve_addr(&peer, 5000)?;
/// // After the handler was called with `Event::AddrResolved`:
/// id.resolve_route(5000)?;
/// // After it was called with `Event::RouteResolved`:
/// let pd = Pd::new(&id)?;
/// let qp = QpOwner::new(&id, &pd, &config, qp_handler)?;
/// id.connect(&ConnParam::default())?;
/// ```
///
/// # Invariants
///
/// The C id's context points to what `handler` points to.
pub(crate) struct Id<H: Handler> {
    /// Dropped before `handler`. A listener on all devices gets its connection requests under the
    /// handler mutexes of internal ids of the CM, so the drop of the `Id` does not wait for them.
    /// Such a listener is bound to no device, so it has no PD and no QP: dropping this field
    /// destroys its C id, and that waits for them.
    inner: Arc<IdInner>,
    handler: Arc<H>,
}

impl<H: Handler> Drop for Id<H> {
    /// Sleeps until no handler runs.
    fn drop(&mut self) {
        let raw = self.as_raw();
        // SAFETY: The id is valid. Its handler mutex permits changing the field. A reader without
        // that mutex (see `inner`) finds either handler; `handle_event` uses the context, which is
        // valid until the C id is destroyed in that case, and `ignore_event` does not use it.
        unsafe {
            bindings::rdma_lock_handler(raw);
            (*raw).event_handler = Some(ignore_event);
            bindings::rdma_unlock_handler(raw);
        }
    }
}

impl<H: Handler> Id<H> {
    /// Creates an id for reliable connections. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn create(net: &Net, handler: Arc<H>) -> Result<Id<H>> {
        let room = UniqueArc::<IdInner>::new_uninit(GFP_KERNEL)?;
        let context = Arc::as_ptr(&handler).cast::<c_void>();
        // SAFETY: The namespace is valid, and C takes a reference. `handle_event` expects an `H` as
        // context; the context is one until the drop of the `Id`, which removes `handle_event`.
        let raw = from_err_ptr(unsafe {
            bindings::__rdma_create_kernel_id(
                net.as_ptr(),
                Some(handle_event::<H>),
                context.cast_mut(),
                bindings::rdma_ucm_port_space_RDMA_PS_TCP,
                bindings::ib_qp_type_IB_QPT_RC,
                owner_name(),
            )
        })?;
        let Ok(inner) = room.pin_init_with(IdInner::new(NonNull::new(raw).ok_or(ENOMEM)?));
        // INVARIANT: The context points to what `handler` points to.
        Ok(Id {
            inner: inner.into(),
            handler,
        })
    }

    pub(super) fn inner(&self) -> &Arc<IdInner> {
        &self.inner
    }

    fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.inner.as_raw()
    }

    /// Returns the handler of the id's events.
    pub(crate) fn handler(&self) -> &Arc<H> {
        &self.handler
    }

    /// Restricts a listener to the address family that it is bound to.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the id already listens or connects.
    pub(crate) fn set_afonly(&mut self, on: bool) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_set_afonly(self.as_raw(), c_int::from(on)) })
    }

    /// Binds to a local address.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `ENODEV` and other errors of rdma_cm.
    pub(crate) fn bind(&mut self, addr: &SockAddr) -> Result {
        let addr = addr.as_ptr().cast_mut();
        // SAFETY: The id and the address, which C does not change, are valid.
        to_result(unsafe { bindings::rdma_bind_addr(self.as_raw(), addr) })
    }

    /// Listens on the address that the id is bound to.
    ///
    /// # Errors
    ///
    /// Errors of rdma_cm.
    pub(crate) fn listen(&mut self, backlog: i32) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_listen(self.as_raw(), backlog) })
    }

    /// Starts to resolve the peer's address. An event reports the result.
    ///
    /// # Errors
    ///
    /// Errors of rdma_cm.
    pub(crate) fn resolve_addr(&mut self, peer: &SockAddr, timeout_ms: u32) -> Result {
        let (any, timeout) = (core::ptr::null_mut(), timeout_ms as usize);
        // SAFETY: The id is valid, and so is the peer's address, which C copies. Null as the local
        // address lets C choose one.
        to_result(unsafe {
            bindings::rdma_resolve_addr(self.as_raw(), any, peer.as_ptr(), timeout)
        })
    }

    /// Starts to resolve the path to the peer. An event reports the result.
    ///
    /// # Errors
    ///
    /// Errors of rdma_cm.
    pub(crate) fn resolve_route(&mut self, timeout_ms: u32) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_resolve_route(self.as_raw(), timeout_ms as usize) })
    }

    /// Starts to connect. An event reports the result. A handler of the id must not call this.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the private data is longer than 255 bytes; errors of rdma_cm.
    pub(crate) fn connect(&self, param: &ConnParam<'_>) -> Result {
        let mut raw = param.to_raw()?;
        let _call = self.inner.begin_call();
        // SAFETY: The id and the parameters are valid; C copies the private data.
        to_result(unsafe { bindings::rdma_connect(self.as_raw(), &mut raw) })
    }

    /// Accepts the connection of an adopted id. An event reports the result. A handler of the id
    /// must not call this.
    ///
    /// # Errors
    ///
    /// Those of [`Self::connect`]. After an error of rdma_cm the connection is already rejected.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        let mut raw = param.to_raw()?;
        let _call = self.inner.begin_call();
        // `rdma_accept` requires the handler mutex.
        // SAFETY: The id is valid.
        unsafe { bindings::rdma_lock_handler(self.as_raw()) };
        // SAFETY: The id and the parameters are valid; C copies the private data.
        let ret = unsafe { bindings::rdma_accept(self.as_raw(), &mut raw) };
        // SAFETY: Locked above.
        unsafe { bindings::rdma_unlock_handler(self.as_raw()) };
        to_result(ret)
    }

    /// Calls `f` with the C id under its handler mutex. Sleeps.
    ///
    /// Address, device and port change in the methods above, which borrow the id mutably, and under
    /// this mutex, when the CM resolves an address. A handler of the id must not call this.
    fn locked<R>(&self, f: impl FnOnce(*const bindings::rdma_cm_id) -> R) -> R {
        // SAFETY: The id is valid.
        unsafe { bindings::rdma_lock_handler(self.as_raw()) };
        let result = f(self.as_raw());
        // SAFETY: Locked above.
        unsafe { bindings::rdma_unlock_handler(self.as_raw()) };
        result
    }

    /// Returns the local address, once the id is bound or the peer's address resolved. Sleeps.
    pub(crate) fn local_addr(&self) -> SockAddr {
        // SAFETY: The id is valid, and nobody changes the address, see `locked`.
        self.locked(|id| SockAddr::from_storage(unsafe { &(*id).route.addr.src_addr }))
    }

    /// Returns the peer's address, once it is resolved or the id adopted. Sleeps.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        // SAFETY: The id is valid, and nobody changes the address, see `locked`.
        self.locked(|id| SockAddr::from_storage(unsafe { &(*id).route.addr.dst_addr }))
    }

    /// Returns the device, once the id is bound to one. Sleeps.
    pub(crate) fn device(&self) -> Option<&Device> {
        self.port().map(|port| port.device())
    }

    /// Returns the device's port, once the id is bound to a device. Sleeps.
    pub(crate) fn port(&self) -> Option<Port<'_>> {
        // SAFETY: The id is valid, and nobody changes these fields, see `locked`.
        let (device, number) = self.locked(|id| unsafe { ((*id).device, (*id).port_num) });
        let device = NonNull::new(device)?;
        // SAFETY: A bound id holds a reference to its device, and stays bound to it while the id is
        // borrowed. The port is one of this device.
        Some(unsafe { Port::new(Device::from_raw(device.as_ptr()), number) })
    }
}

/// A connection request from a peer.
///
/// # Invariants
///
/// `id` is the new id, bound to a device. The CM destroys it after the callback unless `adopted` is
/// set.
pub(crate) struct ConnectRequest<'a> {
    id: NonNull<bindings::rdma_cm_id>,
    info: ConnInfo<'a>,
    adopted: &'a Cell<bool>,
}

impl<'a> ConnectRequest<'a> {
    /// Returns the parameters in the peer's request.
    pub(crate) fn info(&self) -> ConnInfo<'a> {
        self.info
    }

    /// Returns the device that received the request.
    pub(crate) fn device(&self) -> Option<&Device> {
        // SAFETY: The id is valid during the callback. The CM binds it before the callback.
        let device = NonNull::new(unsafe { (*self.id.as_ptr()).device })?;
        // SAFETY: A bound id holds a reference to its device.
        Some(unsafe { Device::from_raw(device.as_ptr()) })
    }

    /// Takes over the new id: from now on `handler` gets its events, the first of them after the
    /// callback has returned. May sleep.
    ///
    /// The caller must not drop the id before the callback returns, so it should first do
    /// everything that can fail.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. The request is then refused.
    pub(crate) fn adopt<H: Handler>(self, handler: Arc<H>) -> Result<Id<H>> {
        let room = UniqueArc::<IdInner>::new_uninit(GFP_KERNEL)?;
        let context = Arc::as_ptr(&handler).cast::<c_void>();
        // SAFETY: The CM holds the handler mutex of the new id, so nobody else reads or writes
        // these fields. Until now they were those of the listener.
        unsafe {
            (*self.id.as_ptr()).event_handler = Some(handle_event::<H>);
            (*self.id.as_ptr()).context = context.cast_mut();
        }
        self.adopted.set(true);
        // INVARIANT: `adopted` makes the callback return zero, so the CM does not destroy the id.
        let Ok(inner) = room.pin_init_with(IdInner::new(self.id));
        Ok(Id {
            inner: inner.into(),
            handler,
        })
    }
}

/// Borrows private data.
///
/// # Safety
///
/// `ptr` must be null or point to `len` bytes that are valid during `'a`.
unsafe fn private_data<'a>(ptr: *const c_void, len: u8) -> &'a [u8] {
    if ptr.is_null() {
        return &[];
    }
    // SAFETY: `ptr` is not null, so it points to `len` bytes that are valid during `'a`, by this
    // function's contract.
    unsafe { core::slice::from_raw_parts(ptr.cast(), usize::from(len)) }
}

/// Reads the peer's connection parameters.
///
/// # Safety
///
/// The event must carry connection parameters. Its private data must be valid during `'a`.
unsafe fn conn_info<'a>(event: &'a bindings::rdma_cm_event) -> ConnInfo<'a> {
    // SAFETY: The event carries connection parameters by this function's contract, so `conn` is the
    // union's active field.
    let conn = unsafe { &event.param.conn };
    ConnInfo {
        // SAFETY: The private data is valid during `'a`, by this function's contract.
        private_data: unsafe { private_data(conn.private_data, conn.private_data_len) },
        initiator_depth: conn.initiator_depth,
    }
}

/// Called by rdma_cm for the events of an id after the drop of its [`Id`].
///
/// # Safety
///
/// `event` must be valid.
unsafe extern "C" fn ignore_event(
    _id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> c_int {
    // SAFETY: `event` is valid by this function's contract.
    let number = unsafe { (*event).event };
    // Refuse a connection request: the listener has been dropped.
    -c_int::from(number == bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST)
}

/// Converts an event. Returns `None` if it is a connection request.
///
/// # Safety
///
/// The event's private data must be valid while the event is.
unsafe fn read_event(event: &bindings::rdma_cm_event) -> Option<Event<'_>> {
    use bindings as b;
    Some(match event.event {
        b::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST => return None,
        b::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddrResolved,
        b::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR => Event::AddrError,
        b::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
        b::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR => Event::RouteError,
        b::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR => Event::ConnectError,
        b::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE => Event::Unreachable,
        b::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => Event::Rejected {
            reason: event.status,
        },
        b::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => {
            // SAFETY: This event carries connection parameters, and its private data is valid by
            // this function's contract.
            Event::Established(unsafe { conn_info(event) })
        }
        b::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
        b::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoval,
        b::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => Event::AddrChange,
        b::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimewaitExit,
        _ => Event::Other,
    })
}

/// Called by rdma_cm for each event of an id. If this returns an error, the CM destroys the id.
///
/// # Safety
///
/// The id's context must be an `H`, and the event be valid.
unsafe extern "C" fn handle_event<H: Handler>(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> c_int {
    // SAFETY: The id is valid, and its context is an `H`, by this function's contract.
    let handler = unsafe { &*(*id).context.cast::<H>() };
    // SAFETY: The event is valid by this function's contract, and so is its private data, as long
    // as the event.
    if let Some(event) = unsafe { read_event(&*event) } {
        handler.event(event);
        return 0;
    }
    let adopted = Cell::new(false);
    if let Some(id) = NonNull::new(id) {
        handler.connect_request(ConnectRequest {
            id,
            // SAFETY: A connection request carries parameters, which are valid during the call.
            info: unsafe { conn_info(&*event) },
            adopted: &adopted,
        });
    }
    // The CM refuses a request that is not adopted.
    -c_int::from(!adopted.get())
}
