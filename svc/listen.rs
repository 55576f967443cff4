// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The listening endpoint.
//!
//! ```text
//!   connection request   --(CM, adopts the new id)--> waiting --(service thread)--> accept
//!   address, device gone --(CM, marks)--> stale    --(service thread)--> a new listening id
//!                                           ^                                 |
//!                                           +-------(timer)---- later <-------+ no such address
//! ```
//!
//! What may sleep long, or destroys a connection id, is not done where the CM calls.

use super::{
    accept::{
        self,
        Pending, //
    },
    conn::Conn, //
};
use crate::kapi::{
    ext::work::{
        cancel_delayed_sync,
        xprtiod, //
    },
    rdma::cm::{
        ConnectRequest,
        Event,
        Handler,
        Id, //
    },
    sunrpc::{
        addr::SockAddr,
        errno::eafnosupport,
        net::Net,
        svc::{
            Handle,
            Origin,
            SvcXprt, //
        },
        svc_ops::Listener, //
    }, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

/// Length of the CM's own queue.
const BACKLOG: i32 = 10;

/// Requests that may wait for a service thread; more are refused and come again.
const MAX_WAITING: usize = 256;

/// After how many ms to try again to listen at an address that no device has. Each further pause
/// is twice as long, but for the last, which is repeated.
const FIRST_PAUSE_MS: u32 = 10;
const PAUSES: u32 = 8;

/// A listening endpoint.
pub(super) struct Listen {
    events: Arc<ListenEvents>,
    addr: SockAddr,
    /// The lock is held while ids are made and destroyed; the CM's callbacks do not take it.
    current: Pin<KBox<Mutex<Current>>>,
}

struct Current {
    /// `None` while no device has the address, and once detached.
    id: Option<Id<ListenEvents>>,
    /// How often the address was not to be had since there was an id.
    tries: u32,
}

/// What the CM calls, and the timer.
#[pin_data]
pub(super) struct ListenEvents {
    handle: Handle<Listen>,
    #[pin]
    state: Mutex<Waiting>,
    #[pin]
    later: DelayedWork<ListenEvents>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for ListenEvents { self.later }
}

impl WorkItem for ListenEvents {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.mark_stale();
    }
}

#[derive(Default)]
struct Waiting {
    requests: KVec<Pending>,
    /// The id does not hear of requests any more.
    stale: bool,
}

/// Makes a listening endpoint at `addr`.
///
/// # Errors
///
/// `EAFNOSUPPORT` unless the address is IPv4 or IPv6; `ENOMEM`; those of the CM, such as
/// `EADDRINUSE`.
pub(super) fn create(
    origin: Origin<'_>,
    net: &Net,
    addr: &SockAddr,
) -> Result<ARef<SvcXprt<Listen>>> {
    if addr.ip().is_none() {
        return Err(eafnosupport());
    }
    let mut bound = *addr;
    let xprt = SvcXprt::new_listener(origin, |handle| {
        let events = Arc::pin_init(
            pin_init!(ListenEvents {
                handle: handle.clone(),
                state <- new_mutex!(Waiting::default()),
                later <- new_delayed_work!("rpcrdma_rs: listen"),
            }),
            GFP_KERNEL,
        )?;
        let id = listening_id(net, addr, &events)?;
        // The service may have asked for any port.
        bound = id.local_addr();
        let current = Current {
            id: Some(id),
            tries: 0,
        };
        let current = KBox::pin_init(new_mutex!(current), GFP_KERNEL)?;
        Ok(Listen {
            events,
            addr: bound,
            current,
        })
    })?;
    xprt.set_local_addr(&bound);
    xprt.set_remote_name(c"listener");
    Ok(xprt)
}

/// Makes an id that listens at `addr`, for its own address family only: IPv4 and IPv6 share a
/// port.
fn listening_id(
    net: &Net,
    addr: &SockAddr,
    events: &Arc<ListenEvents>,
) -> Result<Id<ListenEvents>> {
    let id = Id::create(net, events.clone())?;
    id.set_afonly(true)?;
    id.bind(addr)?;
    id.listen(BACKLOG)?;
    Ok(id)
}

impl ListenEvents {
    /// Has a service thread make a new id.
    fn mark_stale(&self) {
        self.state.lock().stale = true;
        self.handle.set_conn();
        self.handle.enqueue();
    }
}

impl Handler for ListenEvents {
    fn event(&self, event: Event<'_>) {
        if let Event::AddrChange | Event::DeviceRemoval = event {
            self.mark_stale();
        }
    }

    fn connect_request(&self, request: ConnectRequest<'_>) {
        let mut state = self.state.lock();
        if self.handle.is_closing() || state.requests.len() >= MAX_WAITING {
            return;
        }
        // Room first: what was adopted must not be dropped in here.
        if state.requests.reserve(1, GFP_KERNEL).is_err() {
            return;
        }
        if let Ok(pending) = accept::adopt(request) {
            if let Err(full) = state.requests.push_within_capacity(pending) {
                // Not reached. To destroy the id in here would never end.
                core::mem::forget(full);
            }
        }
        drop(state);
        self.handle.set_conn();
        self.handle.enqueue();
    }
}

impl Listen {
    /// Replaces an id that does not hear of requests any more. The address may be gone for a moment,
    /// its device having it only after the move was told, or until a device is there again: without
    /// success this comes again later.
    fn renew(&self, net: &Net) {
        let mut current = self.current.lock();
        // The address is free only when the old id is gone.
        drop(current.id.take());
        let error = match listening_id(net, &self.addr, &self.events) {
            Ok(new) => {
                if current.tries > PAUSES {
                    pr_info!("server: listening at {} again\n", self.addr);
                }
                current.tries = 0;
                current.id = Some(new);
                return;
            }
            Err(e) => e,
        };
        let tries = current.tries.saturating_add(1);
        current.tries = tries;
        if tries == PAUSES.saturating_add(1) {
            pr_warn!(
                "server: cannot listen at {} since the address moved: {:?}; trying again \
                 until a device has it\n",
                self.addr,
                error
            );
        }
        let pause = FIRST_PAUSE_MS << tries.min(PAUSES).saturating_sub(1);
        // It cannot be queued already: it came to this, or the id had gone stale.
        let _ = xprtiod().enqueue_delayed(self.events.clone(), msecs_to_jiffies(pause));
    }
}

impl Listener for Listen {
    type Connection = Conn;

    fn accept(this: &SvcXprt<Self>, origin: Origin<'_>) -> Option<ARef<SvcXprt<Conn>>> {
        this.clear_conn();
        let (pending, stale) = {
            let mut state = this.events.state.lock();
            let pending = state.requests.remove(0).ok();
            if !state.requests.is_empty() {
                this.set_conn();
            }
            (pending, core::mem::take(&mut state.stale))
        };
        if stale {
            this.renew(this.net());
        }
        accept::accept(origin, pending?)
    }

    fn detach(this: &SvcXprt<Self>) {
        cancel_delayed_sync(&this.events);
        // No callback runs once the id is gone.
        drop(this.current.lock().id.take());
        let waiting = core::mem::take(&mut this.events.state.lock().requests);
        drop(waiting);
    }
}
