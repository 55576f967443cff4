// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The listening endpoint.
//!
//! ```text
//!   connection request --(CM, adopts the new id)--> waiting --(service thread)--> accept
//!   address moved      --(CM, marks)--> stale      --(service thread)--> a new listening id
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
    ext::patience::patiently,
    rdma::cm::{
        ConnectRequest,
        Event,
        Handler,
        Id, //
    },
    sunrpc::{
        addr::SockAddr,
        errno::{
            eaddrnotavail,
            eafnosupport, //
        },
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
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

/// Length of the CM's own queue.
const BACKLOG: i32 = 10;

/// Requests that may wait for a service thread; more are refused and come again.
const MAX_WAITING: usize = 256;

/// How often to try to listen again at an address that no device has, some 10 ms apart.
const ADDRESS_TRIES: u32 = 1000;

/// A listening endpoint.
pub(super) struct Listen {
    events: Arc<ListenEvents>,
    id: Pin<KBox<ListenId>>,
}

/// The id, `None` once detached. The lock is held while ids are made and destroyed; the CM's
/// callbacks do not take it.
#[pin_data]
struct ListenId {
    #[pin]
    id: Mutex<Option<Id<ListenEvents>>>,
}

/// What the CM calls.
#[pin_data]
pub(super) struct ListenEvents {
    handle: Handle<Listen>,
    #[pin]
    state: Mutex<Waiting>,
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
            }),
            GFP_KERNEL,
        )?;
        let id = listening_id(net, addr, &events)?;
        // The service may have asked for any port.
        bound = id.local_addr();
        let id = KBox::pin_init(
            pin_init!(ListenId { id <- new_mutex!(Some(id)) }),
            GFP_KERNEL,
        )?;
        Ok(Listen { events, id })
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

impl Handler for ListenEvents {
    fn event(&self, event: Event<'_>) {
        if let Event::AddrChange | Event::DeviceRemoval = event {
            self.state.lock().stale = true;
            self.handle.set_conn();
            self.handle.enqueue();
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
    /// Replaces an id that does not hear of requests any more; waits for memory and, for some
    /// time, for the address: its device has it a moment after the move was told.
    fn renew(&self, xprt: &SvcXprt<Self>) {
        let mut id = self.id.id.lock();
        let Some(old) = id.take() else {
            return;
        };
        let addr = old.local_addr();
        // The address is free only when the old id is gone.
        drop(old);
        let mut tries = ADDRESS_TRIES;
        let new = patiently(
            || xprt.is_closing(),
            || match listening_id(xprt.net(), &addr, &self.events) {
                Err(e) if tries > 0 && (e == ENODEV || e == eaddrnotavail()) => {
                    tries -= 1;
                    Err(EAGAIN)
                }
                other => other,
            },
        );
        match new {
            Ok(new) => *id = Some(new),
            Err(_) if xprt.is_closing() => (),
            Err(e) => pr_err!(
                "server: cannot listen at {addr} again after the address moved (error {}); \
                 write the port to /proc/fs/nfsd/portlist again\n",
                e.to_errno()
            ),
        }
    }
}

impl Listener for Listen {
    type Connection = Conn;

    fn accept(this: &SvcXprt<Self>) -> Option<ARef<SvcXprt<Conn>>> {
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
            this.renew(this);
        }
        accept::accept(this.origin(), pending?)
    }

    fn detach(this: &SvcXprt<Self>) {
        // No callback runs once the id is gone.
        drop(this.id.id.lock().take());
        let waiting = core::mem::take(&mut this.events.state.lock().requests);
        drop(waiting);
    }
}
