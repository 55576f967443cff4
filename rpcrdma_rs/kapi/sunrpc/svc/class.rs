// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Classes of server transports, and what a new transport of a class is made of.
//!
//! C header: [`include/linux/sunrpc/svc_xprt.h`](srctree/include/linux/sunrpc/svc_xprt.h)

use super::{
    bindings,
    create_thunk,
    Listener,
    Net,
    NewXprt,
    SockAddr,
    SvcXprt,
    NO_OPS, //
};
use crate::kapi::{
    compat::this_module,
    ext::atomic::{
        Acquire,
        Atomic,
        Release, //
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
    error::to_result,
    prelude::*,
    types::Opaque, //
};

/// A server transport class, by which sunrpc finds a transport by name and creates a listener.
pub(crate) trait Class: Sized + 'static {
    /// The name of the class, for instance in `/proc/fs/nfsd/portlist`.
    const NAME: &'static CStr;
    /// The identifier of the class, `XPRT_TRANSPORT_*`.
    const IDENT: i32;
    /// The largest payload of one RPC in bytes.
    const MAX_PAYLOAD: u32;
    /// The type of the listeners of the class.
    type Listener: Listener;

    /// Returns the memory of the class.
    fn cell() -> &'static ClassCell<Self>;

    /// Creates a listener at `addr`. May sleep.
    ///
    /// # Errors
    ///
    /// The error is returned to the program that adds the listener.
    fn create<'a>(
        args: NewXprtArgs<'a, Self::Listener>,
        net: &Net,
        addr: &SockAddr,
    ) -> Result<NewXprt<'a, Self::Listener>>;
}

/// The static memory of the class `C`, and of no other.
///
/// A transport refers to its class until it is freed, even if the class is no longer registered. So
/// the class never changes, and may be registered again at any time.
///
/// # Invariants
///
/// `class` is complete, and does not change, except for its list head, which belongs to the
/// registration while `in_use` is set.
pub(crate) struct ClassCell<C> {
    class: Opaque<bindings::svc_xprt_class>,
    in_use: Atomic<bool>,
    _class: PhantomData<fn() -> C>,
}

// SAFETY: By the type's invariants only the list head changes. The one registration does not use it
// concurrently with sunrpc, which has a lock for it.
unsafe impl<C> Sync for ClassCell<C> {}

impl<C: Class> ClassCell<C> {
    /// Creates a class that is not registered.
    pub(crate) const fn new() -> Self {
        // INVARIANT: The class is complete.
        ClassCell {
            class: Opaque::new(bindings::svc_xprt_class {
                // CAST: `c_char` may be signed.
                xcl_name: C::NAME.to_bytes_with_nul().as_ptr().cast(),
                xcl_owner: this_module(),
                xcl_ops: ClassTable::<C>::OPS,
                xcl_list: bindings::list_head {
                    next: null_mut(),
                    prev: null_mut(),
                },
                xcl_max_payload: C::MAX_PAYLOAD,
                xcl_ident: C::IDENT,
            }),
            in_use: Atomic::new(false),
            _class: PhantomData,
        }
    }
}

/// A registered class. Dropping it unregisters the class.
pub(crate) struct ClassRegistration<C: Class>(&'static ClassCell<C>);

impl<C: Class> ClassRegistration<C> {
    /// Registers `C`.
    ///
    /// # Errors
    ///
    /// `EBUSY` if `C` is registered. `EEXIST` if another class of this name is registered, so the C
    /// module and this one cannot be loaded at the same time.
    pub(crate) fn new() -> Result<Self> {
        let cell = C::cell();
        if cell.in_use.cmpxchg(false, true, Acquire).is_err() {
            return Err(EBUSY);
        }
        // SAFETY: The class is static and complete. It was not in use, so it is on no list.
        let ret = to_result(unsafe { bindings::svc_reg_xprt_class(cell.class.get()) });
        if ret.is_err() {
            cell.in_use.store(false, Release);
        }
        ret.map(|()| ClassRegistration(cell))
    }
}

impl<C: Class> Drop for ClassRegistration<C> {
    fn drop(&mut self) {
        // SAFETY: The class is registered. It is static, so transports may still refer to it.
        unsafe { bindings::svc_unreg_xprt_class(self.0.class.get()) };
        self.0.in_use.store(false, Release);
    }
}

/// The operations of a class, by which sunrpc creates a listener.
struct ClassTable<C>(PhantomData<C>);

impl<C: Class> ClassTable<C> {
    const OPS: &'static bindings::svc_xprt_ops = &bindings::svc_xprt_ops {
        xpo_create: Some(create_thunk::<C>),
        ..NO_OPS
    };
}

/// The class, the service and the network namespace of one new transport with the data `T`.
///
/// # Invariants
///
/// The class is that of a [`ClassCell`], and the others are valid during `'a`. `T` is the listener
/// of the class, or the connection of that listener.
pub(crate) struct NewXprtArgs<'a, T> {
    pub(super) class: *mut bindings::svc_xprt_class,
    pub(super) serv: *mut bindings::svc_serv,
    pub(super) net: *mut bindings::net,
    // Invariant in 'a: the transport is for the call that got the arguments, see `NewXprt`.
    _call: PhantomData<fn(&'a ()) -> &'a ()>,
    _data: PhantomData<fn() -> T>,
}

impl<T: Listener> NewXprtArgs<'_, T> {
    /// # Safety
    ///
    /// `serv` and `net` are valid for the lifetime of the result.
    pub(in crate::kapi::sunrpc) unsafe fn new<C: Class<Listener = T>>(
        serv: *mut bindings::svc_serv,
        net: *mut bindings::net,
    ) -> Self {
        // INVARIANT: The class is in the cell of `C`. The pointers are valid by this function's
        // contract.
        NewXprtArgs {
            class: C::cell().class.get(),
            serv,
            net,
            _call: PhantomData,
            _data: PhantomData,
        }
    }
}

impl<T> NewXprtArgs<'_, T> {
    /// Returns the largest payload in bytes that the service wants in one RPC.
    pub(crate) fn max_payload(&self) -> u32 {
        // SAFETY: The service is valid by the invariants.
        unsafe { (*self.serv).sv_max_payload }
    }

    /// Returns the largest number of pages of a Call or a reply.
    pub(crate) fn max_pages(&self) -> usize {
        // SAFETY: The service is valid by the invariants.
        unsafe { bindings::rpcrdma_shim_svc_serv_maxpages(self.serv) }
    }
}

impl<T: Listener> SvcXprt<T> {
    /// Returns the arguments for connections that this listener accepts.
    ///
    /// # Safety
    ///
    /// The transport must be live: one that is dead may outlive its service.
    pub(in crate::kapi::sunrpc) unsafe fn connection_args(&self) -> NewXprtArgs<'_, T::Connection> {
        let xprt = self.0.xprt.get();
        // SAFETY: The fields are set once, before anyone sees the transport.
        let (class, serv, net) =
            unsafe { ((*xprt).xpt_class, (*xprt).xpt_server, (*xprt).xpt_net) };
        // INVARIANT: The transport is live, by this function's contract. sunrpc ends a service
        // after its live transports. This listener was created with arguments for a listener, so
        // their class is in a cell, and this is the listener of that class.
        NewXprtArgs {
            class,
            serv,
            net,
            _call: PhantomData,
            _data: PhantomData,
        }
    }
}

/// Returns whether `xprt` is a connection of the class `C`, and so a `SvcXprt` whose data is
/// `<C::Listener as Listener>::Connection`.
///
/// # Safety
///
/// `xprt` must be a live server transport.
pub(in crate::kapi::sunrpc) unsafe fn is_connection_of<C: Class>(
    xprt: *mut bindings::svc_xprt,
) -> bool {
    // SAFETY: The transport is live by this function's contract. The class does not change, nor
    // does this flag of a live transport.
    unsafe {
        let flags = addr_of_mut!((*xprt).xpt_flags).read_volatile();
        core::ptr::eq((*xprt).xpt_class, C::cell().class.get())
            && flags & (1 << bindings::XPT_LISTENER) == 0
    }
}
