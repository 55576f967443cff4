// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Calls of the reverse direction: requests of the server to the client (RFC 8167).
//!
//! ```text
//!   pool ──deliver──▶ callback service: reads the copy of the Call in the request's page,
//!    ▲                encodes the Reply into another
//!    │                    │                │
//!    └────── free ◀── dropped      bc_send_reply, then free
//! ```
//!
//! A request holds nothing of the connection that its Call arrived on: the service may take long to
//! answer, and the device of the connection may be removed meanwhile.
//!
//! C header: [`include/linux/sunrpc/bc_xprt.h`](srctree/include/linux/sunrpc/bc_xprt.h)

use core::{
    marker::{
        PhantomData,
        PhantomPinned, //
    },
    pin::Pin, //
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    types::Opaque,
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

use super::{
    ops::XprtOps,
    xdr_buf::XdrBuf,
    xprt::Xprt, //
};
use crate::kapi::{
    bindings,
    ext::{
        spinlock::{
            new_spinlock,
            SpinLock, //
        },
        work::OwnQueue, //
    }, //
};

/// A request of the reverse direction.
///
/// # Invariants
///
/// * `rqst` belongs to sunrpc. While the request is in use, it is marked as one of the backchannel.
/// * A request in use is a leaked `Pin<KBox<Self>>`, which [`Self::free`] converts back. It has two
///   references to the transport: `deliver_bc` took one, and `xprt_enqueue_bc_request` the other.
#[repr(C)]
pub(crate) struct BcRqst<T: XprtOps> {
    rqst: Opaque<bindings::rpc_rqst>,
    call: KBox<[u8; PAGE_SIZE]>,
    reply: KBox<[u8; PAGE_SIZE]>,
    /// The number of the connection that the Call arrived on.
    connection: u64,
    _pin: PhantomPinned,
    _transport: PhantomData<fn(T)>,
}

// SAFETY: sunrpc passes a request from one thread to the next; only one uses it at a time.
unsafe impl<T: XprtOps> Send for BcRqst<T> {}
// SAFETY: Shared access only reads the Call and the Reply, which do not change during a borrow.
unsafe impl<T: XprtOps> Sync for BcRqst<T> {}

impl<T: XprtOps> BcRqst<T> {
    fn new() -> Result<Pin<KBox<Self>>> {
        let page = || KBox::init(pin_init::init_zeroed::<[u8; PAGE_SIZE]>(), GFP_KERNEL);
        let this = KBox::new(
            Self {
                rqst: Opaque::zeroed(),
                call: page()?,
                reply: page()?,
                connection: 0,
                _pin: PhantomPinned,
                _transport: PhantomData,
            },
            GFP_KERNEL,
        )?;
        Ok(this.into())
    }

    /// Borrows the request that embeds `rqst`.
    ///
    /// # Safety
    ///
    /// `rqst` must be embedded in a `BcRqst<T>` that lives for `'a`.
    pub(super) unsafe fn from_rqst<'a>(rqst: *mut bindings::rpc_rqst) -> &'a Self {
        // CAST: It is the first field, and the layout is C's.
        // SAFETY: `rqst` is in a `BcRqst` that lives for `'a`, by this function's contract.
        unsafe { &*rqst.cast() }
    }

    /// Returns the transaction id, in host order.
    pub(crate) fn xid(&self) -> u32 {
        // SAFETY: `deliver_bc` sets the XID, which does not change afterwards.
        u32::from_be(unsafe { (*self.rqst.get()).rq_xid })
    }

    /// Returns the Reply.
    pub(crate) fn reply(&self) -> &XdrBuf {
        // SAFETY: The Reply is complete when sunrpc passes the request to the transport again.
        unsafe { XdrBuf::from_raw(&raw mut (*self.rqst.get()).rq_snd_buf) }
    }

    /// Returns the number of the connection that the Call arrived on.
    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }

    /// Implements `->bc_free_rqst`: returns the request to the pool.
    ///
    /// # Safety
    ///
    /// `rqst` must have been enqueued by [`Xprt::deliver_bc`], and the service be done with it.
    pub(super) unsafe fn free(rqst: *mut bindings::rpc_rqst) {
        // SAFETY: The request is a leaked box by the invariants.
        // CAST: `rqst` is the first field.
        let this: Pin<KBox<Self>> =
            unsafe { Pin::new_unchecked(KBox::from_raw(rqst.cast::<Self>())) };
        // SAFETY: `deliver_bc` set the field, which does not change.
        let xprt = unsafe { (*rqst).rq_xprt };
        // SAFETY: A request that was enqueued is of a transport of ours. Its references keep the
        // transport alive.
        let transport = unsafe { Xprt::<T>::from_raw(xprt) };
        transport.bc_pool().put(this);
        // SAFETY: This drops the two references of the request, see the invariants.
        let is_last = unsafe {
            bindings::xprt_put(xprt);
            !bindings::rpcrdma_shim_xprt_put_unless_last(xprt)
        };
        if is_last {
            // The transport is live until the work drops this reference.
            let _ = OwnQueue::enqueue(transport.bc_pool().last_put.clone());
        }
    }
}

/// Drops the last reference to a transport. It is not queued twice, as nobody else can drop the
/// last reference while this one is left.
///
/// `xprt_put` waits for the send lock in this case, and the holder of the lock may wait for
/// completions. A completion returns a request if the callback service ends just when the Call
/// arrives, see [`Xprt::deliver_bc`].
#[pin_data]
struct LastPut {
    #[pin]
    work: Work<LastPut>,
    xprt: *mut bindings::rpc_xprt,
}

// SAFETY: The transport may be released on any thread.
unsafe impl Send for LastPut {}
// SAFETY: Shared access only reads the pointer.
unsafe impl Sync for LastPut {}

impl_has_work! {
    impl HasWork<Self> for LastPut { self.work }
}

impl LastPut {
    fn new(xprt: *mut bindings::rpc_xprt) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                work <- new_work!("rpcrdma_rs: last reference"),
                xprt,
            }),
            GFP_KERNEL,
        )
    }
}

impl WorkItem for LastPut {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: Only `BcRqst::free` enqueues the work, and leaves the reference to it.
        unsafe { bindings::xprt_put(this.xprt) };
    }
}

/// The requests of the reverse direction that are not in use. Only [`Xprt::alloc_bc_requests`]
/// allocates requests.
#[pin_data]
pub(crate) struct BcPool<T: XprtOps> {
    #[pin]
    inner: SpinLock<Inner<T>>,
    last_put: Arc<LastPut>,
}

struct Inner<T: XprtOps> {
    free: KVec<Pin<KBox<BcRqst<T>>>>,
    in_use: usize,
}

impl<T: XprtOps> BcPool<T> {
    /// Creates the pool of `xprt`, without requests.
    pub(super) fn new(xprt: *mut bindings::rpc_xprt) -> impl PinInit<Self, Error> {
        pin_init!(Self {
            inner <- new_spinlock!(Inner { free: KVec::new(), in_use: 0 }),
            last_put: LastPut::new(xprt)?,
        }? Error)
    }

    /// Takes a request, unless `limit` of them are in use.
    fn get(&self, limit: usize) -> Option<Pin<KBox<BcRqst<T>>>> {
        let mut inner = self.inner.lock();
        if inner.in_use >= limit {
            return None;
        }
        let rqst = inner.free.pop()?;
        inner.in_use += 1;
        Some(rqst)
    }

    /// Allocates requests until there are `count`. May sleep.
    fn fill(&self, count: usize) -> Result {
        let mut room = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut inner = self.inner.lock();
        if inner.free.capacity() < count {
            core::mem::swap(&mut inner.free, &mut room);
            while let Some(rqst) = room.pop() {
                // There is more room than before.
                let _ = inner.free.push_within_capacity(rqst);
            }
        }
        drop(inner);
        while self.count() < count {
            let rqst = BcRqst::new()?;
            let full = self.inner.lock().free.push_within_capacity(rqst);
            if full.is_err() {
                // The pool was cleared meanwhile, so no requests are needed.
                break;
            }
        }
        Ok(())
    }

    fn count(&self) -> usize {
        let inner = self.inner.lock();
        inner.free.len() + inner.in_use
    }

    fn put(&self, rqst: Pin<KBox<BcRqst<T>>>) {
        let mut inner = self.inner.lock();
        inner.in_use -= 1;
        // There is room, unless the pool was cleared meanwhile. Then the request is freed.
        let _ = inner.free.push_within_capacity(rqst);
    }

    /// Frees the requests that are not in use.
    pub(super) fn clear(&self) {
        let free = core::mem::take(&mut self.inner.lock().free);
        drop(free);
    }
}

impl<T: XprtOps> Xprt<T> {
    /// Allocates the requests for `count` concurrent Calls of the reverse direction. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn alloc_bc_requests(&self, count: usize) -> Result {
        self.bc_pool().fill(count)
    }

    /// Passes a copy of the Call `message` to the callback service. `xid` is in host order. Returns
    /// `false` if the Call is not passed on: `limit` requests are in use, there is no service, the
    /// Call is longer than a page or shorter than two words, or sunrpc is about to destroy the
    /// transport. sunrpc never returns the request of a Call without two words. Does not sleep.
    #[must_use]
    pub(crate) fn deliver_bc(
        &self,
        xid: u32,
        message: &[u8],
        connection: u64,
        limit: usize,
    ) -> bool {
        if !self.has_bc_service() || !(8..=PAGE_SIZE).contains(&message.len()) {
            return false;
        }
        let Some(mut rqst) = self.bc_pool().get(limit) else {
            return false;
        };
        // `xprt_enqueue_bc_request` does not check whether it gets its reference. The request keeps
        // this one as well, so that its owner drops the last one. If the service ends just now,
        // `->bc_free_rqst` drops both here.
        // SAFETY: The memory of the transport stays while it is borrowed.
        if unsafe { bindings::xprt_get(self.as_ptr()) }.is_null() {
            self.bc_pool().put(rqst);
            return false;
        }
        // SAFETY: Nothing is moved out.
        let this = unsafe { rqst.as_mut().get_unchecked_mut() };
        let (call, _) = this.call.split_at_mut(message.len());
        call.copy_from_slice(message);
        let (call, reply) = (call.as_mut_ptr(), this.reply.as_mut_ptr());
        this.connection = connection;
        let raw = this.rqst.get();
        // SAFETY: The request is not in use. It owns the pages that its buffers point to.
        unsafe {
            raw.write_bytes(0, 1);
            (*raw).rq_xprt = self.as_ptr();
            (*raw).rq_xid = xid.to_be();
            // The Reply does not wait for credits of the forward direction: sunrpc treats it as if
            // it already had a place in the window.
            (*raw).rq_cong = 1;
            bindings::rpcrdma_shim_bc_set_in_use(raw);
            (*raw).rq_rcv_buf.head[0].iov_base = call.cast();
            (*raw).rq_rcv_buf.head[0].iov_len = message.len();
            // CAST: At most a page.
            (*raw).rq_rcv_buf.len = message.len() as u32;
            (*raw).rq_private_buf.len = message.len() as u32;
            (*raw).rq_snd_buf.head[0].iov_base = reply.cast();
            (*raw).rq_snd_buf.head[0].iov_len = PAGE_SIZE;
            (*raw).rq_snd_buf.buflen = PAGE_SIZE as u32;
        }
        // SAFETY: The request does not move until `free` pins it again.
        let leaked = KBox::into_raw(unsafe { Pin::into_inner_unchecked(rqst) });
        // SAFETY: The request is complete, and has a reference to the transport. If the service has
        // ended meanwhile, sunrpc returns the request by `->bc_free_rqst`.
        unsafe {
            bindings::rpcrdma_shim_bc_slot_inc(self.as_ptr());
            bindings::xprt_enqueue_bc_request(leaked.cast());
        }
        true
    }
}
