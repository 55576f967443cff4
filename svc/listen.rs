// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The listener: connection requests, and the listening id.
//!
//! ```text
//!   connection request   --(CM, adopts the new id)--> waiting --(service thread)--> accept
//!                                                        \---(device removal)------> destroyed
//!   address, device gone --(CM, work)--> id destroyed --(service thread)--> a new listening id
//!                                             ^                                 |
//!                                             +-------(timer)--- later <--------+ no such address
//! ```
//!
//! The CM's callbacks neither sleep long nor destroy a connection id. Waiting requests and
//! listening ids hold the device. When it is removed, they are destroyed without a service thread,
//! because all threads may be busy forever.

use super::{
    accept::{
        self,
        Pending, //
    },
    client::Clients,
    endpoint::Conn,
    events::Events, //
};
use crate::kapi::{
    ext::work::{
        cancel_delayed_sync,
        xprtiod, //
    },
    rdma::{
        client::Removal,
        cm::{
            ConnectRequest,
            Event,
            Handler,
            Id, //
        }, //
    },
    sunrpc::{
        addr::SockAddr,
        errno::eafnosupport,
        net::Net,
        svc::{
            Handle,
            NewXprt,
            NewXprtArgs,
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

/// The largest number of requests that wait for a service thread. Further requests are refused, and
/// clients retry.
const MAX_WAITING: usize = 256;

/// The first pause, in ms, before the next attempt to listen at an address that no device has. Each
/// pause is twice as long as the one before; the last is repeated.
const FIRST_PAUSE_MS: u32 = 10;
const PAUSES: u32 = 8;

/// A listener.
pub(super) struct Listen {
    events: Arc<ListenEvents>,
    addr: SockAddr,
    clients: Arc<Clients>,
}

/// The listening id. The lock is held while ids are made and destroyed; the CM's callbacks do not
/// take it.
#[derive(Default)]
struct Current {
    /// `None` while no device has the address, and once detached.
    id: Option<Id<ListenHandler>>,
    /// Failed attempts since the last id existed.
    tries: u32,
}

/// The callbacks of the CM, of device removal and of the timer.
///
/// The object holds a reference to itself through the listening id, until [`Listener::detach`].
#[pin_data]
pub(super) struct ListenEvents {
    handle: Handle<Listen>,
    #[pin]
    state: Mutex<ListenState>,
    #[pin]
    current: Mutex<Current>,
    #[pin]
    later: DelayedWork<ListenEvents>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for ListenEvents { self.later }
}

impl WorkItem for ListenEvents {
    type Pointer = Arc<Self>;

    /// Destroys an id that no longer receives requests, and makes a service thread create a new
    /// one.
    fn run(this: Arc<Self>) {
        let mut current = this.current.lock();
        drop(current.id.take());
        drop(current);
        this.state.lock().stale = true;
        this.handle.set_conn();
        this.handle.enqueue();
    }
}

#[derive(Default)]
struct ListenState {
    requests: KVec<Pending>,
    /// Records that a listening id has to be created.
    stale: bool,
}

/// The device removal callback of a waiting request.
struct Request {
    listen: Arc<ListenEvents>,
    events: Arc<Events<Conn>>,
}

impl Removal for Request {
    fn removing(&self) {
        self.listen.refuse(&self.events);
    }
}

/// Creates a listener at `addr`.
///
/// # Errors
///
/// `EAFNOSUPPORT` unless the address is IPv4 or IPv6; `ENOMEM`; those of the CM, such as
/// `EADDRINUSE`.
pub(super) fn create<'a>(
    args: NewXprtArgs<'a, Listen>,
    net: &Net,
    addr: &SockAddr,
) -> Result<NewXprt<'a, Listen>> {
    if addr.ip().is_none() {
        return Err(eafnosupport());
    }
    SvcXprt::new_listener(args, c"listener", |handle| {
        let events = Arc::pin_init(
            pin_init!(ListenEvents {
                handle: handle.clone(),
                state <- new_mutex!(ListenState::default()),
                current <- new_mutex!(Current::default()),
                later <- new_delayed_work!("rpcrdma_rs: listen"),
            }),
            GFP_KERNEL,
        )?;
        let clients = Clients::new()?;
        let id = listening_id(net, addr, &events).inspect_err(|_| {
            // An event of the id, which is destroyed, may have queued the work.
            cancel_delayed_sync(&events);
        })?;
        // The service may have asked for any port.
        let bound = id.local_addr();
        // Store the id last: from here on the object refers to itself, and only `detach` ends that.
        events.current.lock().id = Some(id);
        let listen = Listen {
            events,
            addr: bound,
            clients,
        };
        Ok((bound, listen))
    })
}

/// Creates an id that listens at `addr` for its own address family only, because IPv4 and IPv6
/// listeners may share a port.
fn listening_id(
    net: &Net,
    addr: &SockAddr,
    events: &Arc<ListenEvents>,
) -> Result<Id<ListenHandler>> {
    let handler = Arc::new(ListenHandler(events.clone()), GFP_KERNEL)?;
    let mut id = Id::create(net, handler)?;
    id.set_afonly(true)?;
    id.bind(addr)?;
    id.listen(BACKLOG)?;
    Ok(id)
}

impl ListenEvents {
    /// Removes the oldest request that waits to be accepted. Drops older ones that their clients
    /// have withdrawn: accepting one would cost the only accepting thread more than the request
    /// cost its client. Sleeps.
    fn next_request(&self) -> Option<Pending> {
        loop {
            let pending = self.state.lock().requests.remove(0).ok()?;
            if !pending.events().is_lost() {
                return Some(pending);
            }
        }
    }

    /// Drops a waiting request whose device is being removed. Sleeps.
    fn refuse(&self, events: &Arc<Events<Conn>>) {
        let mut state = self.state.lock();
        let is_it = |pending: &Pending| Arc::ptr_eq(pending.events(), events);
        let index = state.requests.iter().position(is_it);
        let pending = index.and_then(|index| state.requests.remove(index).ok());
        drop(state);
        // Dropping it waits for the id's handler, which may be waiting for the lock in
        // `connect_request`.
        drop(pending);
    }
}

/// The callbacks of the CM for a listening id.
struct ListenHandler(Arc<ListenEvents>);

#[vtable]
impl Handler for ListenHandler {
    fn event(&self, event: Event<'_>) {
        if let Event::AddrChange | Event::DeviceRemoval = event {
            // The work may be queued already.
            let _ = xprtiod().enqueue_delayed(self.0.clone(), 0);
        }
    }

    fn connect_request(&self, request: ConnectRequest<'_>) {
        let listen = &self.0;
        let mut state = listen.state.lock();
        if listen.handle.is_closing() || state.requests.len() >= MAX_WAITING {
            return;
        }
        // Reserve room first, because an adopted request must not be dropped in this callback.
        if state.requests.reserve(1, GFP_KERNEL).is_err() {
            return;
        }
        let removal = |events| Request {
            listen: listen.clone(),
            events,
        };
        if let Ok(pending) = accept::adopt(request, removal) {
            if let Err(full) = state.requests.push_within_capacity(pending) {
                // Not reached. Destroying the id in its own callback would deadlock.
                core::mem::forget(full);
            }
        }
        drop(state);
        listen.handle.set_conn();
        listen.handle.enqueue();
    }
}

impl Listen {
    /// Creates a new id. The address may be missing for a moment, because the device gets it only
    /// after the CM has reported the move, or until a device with it is added. After a failure this
    /// is called again after a pause.
    fn renew(&self, net: &Net) {
        let mut current = self.events.current.lock();
        // The address is free only after the old id was destroyed.
        drop(current.id.take());
        let error = match listening_id(net, &self.addr, &self.events) {
            Ok(new) => {
                if current.tries > PAUSES {
                    pr_info!("server: listening on {} again\n", self.addr);
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
                "server: can no longer listen on {}: {:?}; retrying\n",
                self.addr,
                error
            );
        }
        let pause = FIRST_PAUSE_MS << tries.min(PAUSES).saturating_sub(1);
        // The work is not queued: it has run and called this function, and no id existed that could
        // have queued it since.
        let _ = xprtiod().enqueue_delayed(self.events.clone(), msecs_to_jiffies(pause));
    }
}

#[vtable]
impl Listener for Listen {
    type Connection = Conn;

    fn accept<'a>(this: &SvcXprt<Self>, args: NewXprtArgs<'a, Conn>) -> Option<NewXprt<'a, Conn>> {
        this.clear_conn();
        let pending = this.events.next_request();
        let stale = {
            let mut state = this.events.state.lock();
            if !state.requests.is_empty() {
                this.set_conn();
            }
            core::mem::take(&mut state.stale)
        };
        if stale {
            this.renew(this.net());
        }
        accept::accept(args, &this.clients, pending?)
    }

    fn detach(this: &SvcXprt<Self>) {
        // No callback runs once the id is destroyed, so nothing queues the work again.
        drop(this.events.current.lock().id.take());
        cancel_delayed_sync(&this.events);
        let waiting = core::mem::take(&mut this.events.state.lock().requests);
        drop(waiting);
    }
}
