// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Connection management: ids, their events, listening, connecting.
//!
//! ```text
//!   active:   create ─► resolve_addr ─► resolve_route ─► (Pd, Qp) ─► connect ─► Established
//!   passive:  create ─► bind ─► listen ─► connect_request: adopt ─► (Pd, Qp) ─► accept
//!                                                                       └─► Established
//!   both:     Established ─► Disconnected | DeviceRemoval | AddrChange (active) ─► drop
//! ```
//!
//! A handler is called under the handler mutex of its id, one event at a time, and may sleep;
//! only the requests to a listener on all devices come at the same time, one for each device. It
//! must not drop its own [`Id`], nor the last reference to a QP or PD on it: that waits for
//! the handler.
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
    prelude::*,
    sync::{
        Arc,
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
use crate::kapi::ext::atomic::{
    Atomic,
    Full, //
};
use crate::kapi::{
    bindings,
    ext::{
        addr::SockAddr,
        net::Net, //
    },
};

/// What happens to an id.
#[vtable]
pub(crate) trait Handler: Send + Sync + 'static {
    /// Handles an event. Process context, may sleep; the id's handler mutex is held.
    fn event(&self, event: Event<'_>);

    /// Takes or refuses a new connection; for ids that listen. Context as [`Handler::event`],
    /// with the handler mutexes of both ids held. A request that is not adopted is refused.
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
    /// There is a path to the peer.
    RouteResolved,
    /// There is no path to the peer.
    RouteError,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer refused.
    Rejected {
        /// The transport's number of the reason.
        reason: i32,
    },
    /// The connection is established.
    Established(ConnInfo<'a>),
    /// The connection is gone.
    Disconnected,
    /// The device is being removed: the id must be dropped soon.
    DeviceRemoval,
    /// The address moved to another device.
    AddrChange,
    /// The QP may be used again; not needed here.
    TimewaitExit,
    /// Something that concerns no connection of ours.
    Other,
}

/// What the peer said in its request or its answer.
#[derive(Clone, Copy)]
pub(crate) struct ConnInfo<'a> {
    /// The private data; transports may pad it with zeroes.
    pub(crate) private_data: &'a [u8],
    /// RDMA Reads that the peer lets us start at a time.
    pub(crate) initiator_depth: u8,
}

/// What we say in our request or our answer.
#[derive(Clone, Copy, Default)]
pub(crate) struct ConnParam<'a> {
    /// Up to 56 bytes fit on every transport.
    pub(crate) private_data: &'a [u8],
    /// RDMA Reads that we answer at a time.
    pub(crate) responder_resources: u8,
    /// RDMA Reads that we start at a time.
    pub(crate) initiator_depth: u8,
    /// Transport retries; without meaning when accepting.
    pub(crate) retry_count: u8,
    /// Retries when the peer has no Receive posted; 7 is forever.
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

/// The C id, kept by everything made on it.
///
/// # Invariants
///
/// `0` is an id of ours. Its context is what the handler of the [`Id`] points to, and is not used
/// any more when that is gone.
pub(super) struct IdInner {
    raw: NonNull<bindings::rdma_cm_id>,
    has_qp: Atomic<bool>,
}

// SAFETY: Ids are used from every thread.
unsafe impl Send for IdInner {}
// SAFETY: The CM's own locks guard an id; what is ours in it is atomic or constant.
unsafe impl Sync for IdInner {}

impl IdInner {
    fn new(raw: NonNull<bindings::rdma_cm_id>) -> Self {
        IdInner {
            raw,
            has_qp: Atomic::new(false),
        }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Claims the place of the one QP.
    pub(super) fn claim(&self) -> Result {
        if self.has_qp.xchg(true, Full) {
            return Err(EBUSY);
        }
        Ok(())
    }

    pub(super) fn port(&self) -> u32 {
        // SAFETY: The id is valid; the port is written before the id is bound to a device.
        unsafe { (*self.as_raw()).port_num }
    }
}

impl Drop for IdInner {
    /// Sleeps: waits for a handler that runs.
    fn drop(&mut self) {
        // SAFETY: The id is ours and nothing uses it any more.
        unsafe { bindings::rdma_destroy_id(self.as_raw()) };
    }
}

/// An RDMA identifier and who handles its events.
///
/// Once this is dropped, no event is handled any more; the C id itself lives until its PD and
/// its QP are gone as well.
///
/// # Examples
///
/// ```ignore
/// let id = Id::create(net, handler)?;
/// id.resolve_addr(&peer, 5000)?;
/// // When the handler has got `Event::AddrResolved`:
/// id.resolve_route(5000)?;
/// // When it has got `Event::RouteResolved`:
/// let pd = Pd::new(&id)?;
/// let qp = QpOwner::new(&id, &pd, &config, qp_handler)?;
/// id.connect(&ConnParam::default())?;
/// ```
///
/// # Invariants
///
/// The C id's context is what `handler` points to.
pub(crate) struct Id<H: Handler> {
    /// Goes first: connection requests to a listener on all devices are reported under the mutex
    /// of an id of the CM's own. Such a listener has no PD and no QP, so this destroys it, which
    /// waits for them.
    inner: Arc<IdInner>,
    handler: Arc<H>,
}

impl<H: Handler> Drop for Id<H> {
    /// Sleeps: waits for a handler that runs.
    fn drop(&mut self) {
        let raw = self.as_raw();
        // SAFETY: The id is valid. Under its handler mutex the field may be changed; whoever
        // reads it without (see `inner`) finds a handler that fits the context. Nobody else uses
        // the context afterwards.
        unsafe {
            bindings::rdma_lock_handler(raw);
            (*raw).event_handler = Some(ignore_event);
            bindings::rdma_unlock_handler(raw);
        }
    }
}

impl<H: Handler> Id<H> {
    /// Makes an id for reliable connections. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn create(net: &Net, handler: Arc<H>) -> Result<Id<H>> {
        let context = Arc::as_ptr(&handler).cast::<c_void>();
        // SAFETY: The namespace is valid and C takes a reference. The thunk expects an `H`
        // as context, which it is until the `Id` is dropped.
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
        // INVARIANT: The context is what `handler` points to. Without memory the drop of the
        // value destroys the id.
        let inner = Arc::new(IdInner::new(NonNull::new(raw).ok_or(ENOMEM)?), GFP_KERNEL)?;
        Ok(Id { inner, handler })
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

    /// Restricts a listener to the address family it is bound to.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it listens already.
    pub(crate) fn set_afonly(&self, on: bool) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_set_afonly(self.as_raw(), c_int::from(on)) })
    }

    /// Binds to a local address.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `ENODEV` and what else rdma_cm says.
    pub(crate) fn bind(&self, addr: &SockAddr) -> Result {
        let addr = addr.as_ptr().cast_mut();
        // SAFETY: The id and the address, which C does not change, are valid.
        to_result(unsafe { bindings::rdma_bind_addr(self.as_raw(), addr) })
    }

    /// Listens on the address bound to.
    ///
    /// # Errors
    ///
    /// What rdma_cm says.
    pub(crate) fn listen(&self, backlog: i32) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_listen(self.as_raw(), backlog) })
    }

    /// Starts to resolve the peer's address; an event reports the end.
    ///
    /// # Errors
    ///
    /// What rdma_cm says.
    pub(crate) fn resolve_addr(&self, peer: &SockAddr, timeout_ms: u32) -> Result {
        let (any, timeout) = (core::ptr::null_mut(), timeout_ms as usize);
        // SAFETY: The id is valid, and so is the address, which C copies. It finds our own.
        to_result(unsafe {
            bindings::rdma_resolve_addr(self.as_raw(), any, peer.as_ptr(), timeout)
        })
    }

    /// Starts to resolve the path to the peer; an event reports the end.
    ///
    /// # Errors
    ///
    /// What rdma_cm says.
    pub(crate) fn resolve_route(&self, timeout_ms: u32) -> Result {
        // SAFETY: The id is valid.
        to_result(unsafe { bindings::rdma_resolve_route(self.as_raw(), timeout_ms as usize) })
    }

    /// Starts to connect; an event reports the end.
    ///
    /// # Errors
    ///
    /// What rdma_cm says.
    pub(crate) fn connect(&self, param: &ConnParam<'_>) -> Result {
        let mut raw = param.to_raw()?;
        // SAFETY: The id and the parameters are valid; C copies the private data.
        to_result(unsafe { bindings::rdma_connect(self.as_raw(), &mut raw) })
    }

    /// Accepts the connection of an id that was adopted; an event reports the end.
    ///
    /// # Errors
    ///
    /// What rdma_cm says. It has then already rejected the connection.
    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result {
        let mut raw = param.to_raw()?;
        // rdma_cm insists on the handler mutex here.
        // SAFETY: The id is valid.
        unsafe { bindings::rdma_lock_handler(self.as_raw()) };
        // SAFETY: The id and the parameters are valid; C copies the private data.
        let ret = unsafe { bindings::rdma_accept(self.as_raw(), &mut raw) };
        // SAFETY: Locked above.
        unsafe { bindings::rdma_unlock_handler(self.as_raw()) };
        to_result(ret)
    }

    /// Our address, once bound or resolved.
    pub(crate) fn local_addr(&self) -> SockAddr {
        // SAFETY: The id is valid.
        SockAddr::from_storage(unsafe { &(*self.as_raw()).route.addr.src_addr })
    }

    /// Returns the peer's address, once resolved or adopted.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        // SAFETY: The id is valid.
        SockAddr::from_storage(unsafe { &(*self.as_raw()).route.addr.dst_addr })
    }

    /// Returns the device, once bound to one.
    pub(crate) fn device(&self) -> Option<&Device> {
        // SAFETY: The id is valid. An id that is bound to a device keeps it.
        let device = NonNull::new(unsafe { (*self.as_raw()).device })?;
        // SAFETY: The id keeps the device that it is bound to, and is borrowed.
        Some(unsafe { Device::from_raw(device.as_ptr()) })
    }

    /// Returns the device's port, once bound to one.
    pub(crate) fn port(&self) -> Option<Port<'_>> {
        let device = self.device()?;
        // SAFETY: The id is bound to the device.
        Some(unsafe { Port::new(device, self.inner.port()) })
    }
}

/// A connection that a peer asks for.
///
/// # Invariants
///
/// `id` is the new id, bound to a device, which the CM destroys after the callback unless `adopted` is
/// set.
pub(crate) struct ConnectRequest<'a> {
    id: NonNull<bindings::rdma_cm_id>,
    info: ConnInfo<'a>,
    adopted: &'a Cell<bool>,
}

impl<'a> ConnectRequest<'a> {
    /// Returns what the peer said.
    pub(crate) fn info(&self) -> ConnInfo<'a> {
        self.info
    }

    /// Returns the device that it came by.
    pub(crate) fn device(&self) -> Option<&Device> {
        // SAFETY: The id is valid during the callback. The CM binds it before it calls.
        let device = NonNull::new(unsafe { (*self.id.as_ptr()).device })?;
        // SAFETY: An id that is bound to a device keeps it.
        Some(unsafe { Device::from_raw(device.as_ptr()) })
    }

    /// Takes the new id over: from now on its events go to `handler`, the first of them after
    /// the callback returns. May sleep.
    ///
    /// The id must not be dropped before the callback returns either, so do first what can
    /// fail.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the request is then refused.
    pub(crate) fn adopt<H: Handler>(self, handler: Arc<H>) -> Result<Id<H>> {
        let room = UniqueArc::<IdInner>::new_uninit(GFP_KERNEL)?;
        let context = Arc::as_ptr(&handler).cast::<c_void>();
        // SAFETY: The CM holds the handler mutex of the id, so that nobody else reads or writes
        // these fields; the id was the listener's, whose handler it will not call again for it.
        unsafe {
            (*self.id.as_ptr()).event_handler = Some(handle_event::<H>);
            (*self.id.as_ptr()).context = context.cast_mut();
        }
        self.adopted.set(true);
        // INVARIANT: The callback returns zero now, which makes the id ours.
        let inner = room.write(IdInner::new(self.id));
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
    // SAFETY: Not null, so by this function's contract there are as many bytes.
    unsafe { core::slice::from_raw_parts(ptr.cast(), usize::from(len)) }
}

/// Reads what the peer said.
///
/// # Safety
///
/// The event must be one that carries connection parameters, and be valid during `'a`.
unsafe fn conn_info<'a>(event: &'a bindings::rdma_cm_event) -> ConnInfo<'a> {
    // SAFETY: By this function's contract `conn` is the member in use.
    let conn = unsafe { &event.param.conn };
    ConnInfo {
        // SAFETY: The event owns its private data.
        private_data: unsafe { private_data(conn.private_data, conn.private_data_len) },
        initiator_depth: conn.initiator_depth,
    }
}

/// Called by rdma_cm for the events of an id whose [`Id`] is gone.
///
/// # Safety
///
/// `event` must be valid.
unsafe extern "C" fn ignore_event(
    _id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> c_int {
    // SAFETY: The event is the CM's local, lent to us.
    let number = unsafe { (*event).event };
    // A request nobody takes is refused.
    -c_int::from(number == bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST)
}

/// Reads an event; `None` if it is a connection request.
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
            // SAFETY: An establishment carries parameters.
            Event::Established(unsafe { conn_info(event) })
        }
        b::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
        b::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoval,
        b::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => Event::AddrChange,
        b::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimewaitExit,
        _ => Event::Other,
    })
}

/// Called by rdma_cm for every event of an id. A value that is not zero makes the CM destroy
/// the id.
///
/// # Safety
///
/// The id's context must be an `H`, and the event be valid.
unsafe extern "C" fn handle_event<H: Handler>(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> c_int {
    // SAFETY: The id is valid and its context an `H` by this function's contract.
    let handler = unsafe { &*(*id).context.cast::<H>() };
    // SAFETY: The event is the CM's local, lent to us; it owns its data.
    if let Some(event) = unsafe { read_event(&*event) } {
        handler.event(event);
        return 0;
    }
    let adopted = Cell::new(false);
    if let Some(id) = NonNull::new(id) {
        handler.connect_request(ConnectRequest {
            id,
            // SAFETY: A request carries parameters, valid during the call.
            info: unsafe { conn_info(&*event) },
            adopted: &adopted,
        });
    }
    // A request that is not adopted is the CM's to refuse.
    -c_int::from(!adopted.get())
}
