// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The order of Calls over all connections of one client, see [`super::order`]. A *pull* fetches
//! the Read chunks of a Call, see [`super::read`].
//!
//! A client may use a security context on several connections (`nconnect`). So all connections from
//! one address share an order. Only Calls of a client that has proved that it has access are
//! ordered.
//!
//! A client decides when a pull ends, and other clients may have the same address, for example
//! behind one NAT. So Calls do not wait for a pull that has been the oldest for more than
//! [`OLDEST_PULL_MS`]. If Calls have waited too long for the pulls that were in progress at one
//! time (see [`Batch`]), Calls are delivered unordered for the next [`UNORDERED_MS`].
//!
//! A pull is ordered unless the inline part of the Call shows that the Call has no sequence number,
//! as that of a WRITE with AUTH_SYS does. While no ordered pull is in progress, a Call costs one or
//! two atomic loads.

use super::order::{
    Batch,
    Order,
    PullSeq, //
};
use crate::kapi::{
    compat::smp_mb,
    ext::{
        addr::SockAddr,
        atomic::{
            Atomic,
            Relaxed, //
        },
        jiffies,
        msecs_since,
        spinlock::{
            new_spinlock,
            SpinLock, //
        }, //
    },
    sunrpc::svc::Handle, //
};
use core::net::IpAddr;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::Jiffies, //
};

/// The longest time in ms that Calls wait for the oldest pull.
pub(super) const OLDEST_PULL_MS: u32 = 1000;

/// The time in ms for which Calls are delivered unordered after a batch was overdue.
const UNORDERED_MS: u64 = 30_000;

/// Wakes a connection whose messages may wait for their turn.
pub(super) trait Wake: Send + Sync {
    /// Wakes a service thread for the connection. Called under a spin lock.
    fn wake(&self);
}

impl<C> Wake for Handle<C> {
    fn wake(&self) {
        self.set_data();
        // Pairs with the same check as the barrier in `Endpoint::wake`.
        smp_mb();
        self.enqueue();
    }
}

/// The clients of one listener.
#[pin_data]
pub(super) struct Clients {
    #[pin]
    list: Mutex<KVVec<Arc<Client>>>,
}

/// A client: an address from which connections exist.
#[pin_data]
struct Client {
    ip: Option<IpAddr>,
    /// Ordered pulls in progress.
    pulls: Atomic<u32>,
    /// The pull number of a message that arrives now.
    next_seq: Atomic<u32>,
    #[pin]
    state: SpinLock<ClientState>,
}

#[derive(Default)]
struct ClientState {
    order: Order,
    /// When the oldest pull became the oldest.
    oldest_since: Jiffies,
    batch: Batch,
    /// The last time when the batch was found overdue.
    overdue_at: Option<Jiffies>,
    /// The connections. They change only while the mutex of the list of clients is held as well.
    members: KVVec<ClientConn>,
    /// Whether a member may wait.
    waits: bool,
}

/// A connection.
struct ClientConn {
    number: u64,
    connection: KBox<dyn Wake>,
    /// Whether the connection has messages that wait for their turn. Shared with its [`Member`],
    /// which sets it without a search: one address may have thousands of connections.
    waits: Arc<Atomic<bool>>,
}

/// The membership of a connection in its client. Dropping it may sleep.
pub(super) struct Member {
    clients: Arc<Clients>,
    client: Arc<Client>,
    number: u64,
    waits: Arc<Atomic<bool>>,
}

/// An ordered pull, which ends when this is dropped.
pub(super) struct OrderedPull {
    client: Arc<Client>,
    pub(super) seq: PullSeq,
}

/// The Calls of a lost connection that the service still processes. Until this is dropped, later
/// Calls wait as for a pull.
pub(super) struct LastCalls {
    /// Since when Calls wait.
    since: Jiffies,
    _pull: OrderedPull,
}

impl LastCalls {
    /// Returns whether Calls have waited long enough.
    pub(super) fn is_overdue(&self) -> bool {
        msecs_since(self.since) >= OLDEST_PULL_MS.into()
    }
}

impl Clients {
    /// Creates an empty list of clients.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Clients {
                list <- new_mutex!(KVVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds the connection with this `number` from `peer`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn join(
        self: &Arc<Self>,
        peer: &SockAddr,
        number: u64,
        connection: KBox<dyn Wake>,
    ) -> Result<Member> {
        let ip = peer.ip();
        let mut list = self.list.lock();
        list.reserve(1, GFP_KERNEL)?;
        let known = list.iter().find(|client| client.ip == ip).cloned();
        let client = match known {
            Some(client) => client,
            None => Client::new(ip)?,
        };
        let waits = Arc::new(Atomic::new(false), GFP_KERNEL)?;
        let conn = ClientConn {
            number,
            connection,
            waits: waits.clone(),
        };
        // Allocate before taking the spin lock: one address may have thousands of connections.
        let mut room = client.room_for_one()?;
        let mut state = client.state.lock();
        let first = state.members.is_empty();
        state.move_to(&mut room);
        let added = state.members.push_within_capacity(conn);
        drop(state);
        drop(room);
        added.map_err(|_| ENOMEM)?;
        if first {
            list.push_within_capacity(client.clone())
                .map_err(|_| ENOMEM)?;
        }
        drop(list);
        Ok(Member {
            clients: self.clone(),
            client,
            number,
            waits,
        })
    }
}

impl Client {
    fn new(ip: Option<IpAddr>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Client {
                ip,
                pulls: Atomic::new(0),
                next_seq: Atomic::new(0),
                state <- new_spinlock!(ClientState::default()),
            }),
            GFP_KERNEL,
        )
    }

    /// If there is no room for another connection, allocates room for more; otherwise allocates
    /// nothing. May sleep. The caller holds the mutex of the list of clients.
    fn room_for_one(&self) -> Result<KVVec<ClientConn>> {
        let state = self.state.lock();
        let (len, capacity) = (state.members.len(), state.members.capacity());
        drop(state);
        if len < capacity {
            return Ok(KVVec::new());
        }
        let room = len.saturating_mul(2).max(4);
        Ok(KVVec::with_capacity(room, GFP_KERNEL)?)
    }
}

impl ClientState {
    /// Moves the connections to `room`, if it has any capacity, and leaves their former memory
    /// there.
    fn move_to(&mut self, room: &mut KVVec<ClientConn>) {
        if room.capacity() <= self.members.len() {
            return;
        }
        for member in self.members.drain_all() {
            // There is room.
            let _ = room.push_within_capacity(member);
        }
        core::mem::swap(&mut self.members, room);
    }

    /// Returns whether the message with the number `seq` may be delivered.
    fn allows(&mut self, seq: PullSeq) -> bool {
        if self.order.allows(seq) {
            return true;
        }
        if self.batch.is_overdue(&self.order, self.oldest_waited()) {
            self.overdue_at = Some(jiffies());
        }
        self.oldest_waited() == u64::from(OLDEST_PULL_MS)
            || self
                .overdue_at
                .is_some_and(|then| msecs_since(then) < UNORDERED_MS)
    }

    /// Returns for how many ms Calls have waited for the oldest pull, at most [`OLDEST_PULL_MS`].
    fn oldest_waited(&self) -> u64 {
        msecs_since(self.oldest_since).min(u64::from(OLDEST_PULL_MS))
    }

    /// Wakes service threads for the connections whose messages wait.
    fn wake(&mut self) {
        if !core::mem::take(&mut self.waits) {
            return;
        }
        for member in &self.members {
            if member.waits.load(Relaxed) {
                member.waits.store(false, Relaxed);
                member.connection.wake();
            }
        }
    }
}

impl Member {
    /// Returns the pull number of a message that has just arrived.
    pub(super) fn next_seq(&self) -> PullSeq {
        PullSeq(self.client.next_seq.load(Relaxed))
    }

    /// Returns the pull number of a message that waits for no pull.
    pub(super) fn first_seq(&self) -> PullSeq {
        self.client.state.lock().order.first_seq()
    }

    /// Returns whether the message with the number `seq` may be delivered. If not, a service thread
    /// is woken when its turn comes. The caller must check again after [`OLDEST_PULL_MS`].
    pub(super) fn allows(&self, seq: PullSeq) -> bool {
        if self.is_open() {
            return true;
        }
        let mut state = self.client.state.lock();
        let allowed = state.allows(seq);
        if !allowed {
            state.waits = true;
            self.waits.store(true, Relaxed);
        }
        allowed
    }

    /// Returns whether no message has to wait.
    pub(super) fn is_open(&self) -> bool {
        self.client.pulls.load(Relaxed) == 0
    }

    /// Begins an ordered pull, which ends when the result is dropped. Returns `None` if there are
    /// too many already.
    pub(super) fn pull(&self) -> Option<OrderedPull> {
        let client = self.client.clone();
        let mut state = client.state.lock();
        let seq = state.order.begin()?;
        if self.is_open() {
            state.oldest_since = jiffies();
        }
        client.next_seq.store(state.order.next_seq().0, Relaxed);
        client.pulls.fetch_add(1, Relaxed);
        drop(state);
        Some(OrderedPull { client, seq })
    }

    /// Makes later Calls wait until the result is dropped, see [`super::last_calls`]. Returns
    /// `None` if there are too many pulls.
    pub(super) fn begin_last_calls(&self) -> Option<LastCalls> {
        Some(LastCalls {
            since: jiffies(),
            _pull: self.pull()?,
        })
    }
}

impl Drop for OrderedPull {
    fn drop(&mut self) {
        let mut state = self.client.state.lock();
        self.client.pulls.fetch_sub(1, Relaxed);
        if state.order.end(self.seq) {
            let used = state.oldest_waited();
            state.batch.pull_ended(used);
            state.oldest_since = jiffies();
            state.wake();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut list = self.clients.list.lock();
        let mut state = self.client.state.lock();
        let is_self = |member: &ClientConn| member.number == self.number;
        let index = state.members.iter().position(is_self);
        let gone = index.and_then(|index| state.members.remove(index).ok());
        let last = state.members.is_empty();
        // The last reference may be dropped where a large allocation must not be freed.
        let room = last.then(|| core::mem::take(&mut state.members));
        drop(state);
        if last {
            list.retain(|client| !Arc::ptr_eq(client, &self.client));
        }
        drop(list);
        drop((gone, room));
    }
}
