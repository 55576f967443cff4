// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! When service threads take received messages, and when Read chunks may be pulled.
//!
//! ```text
//!   message --queue_message--> messages --next--> thread --admit_pull--> RDMA Reads posted
//!                                 ^                 |                        |
//!                                 |                 +-- not now --> held     | completion
//!                                 |                                  |       v
//!                                 +------- the gate opens -----------+     pulled --next--> thread
//! ```
//!
//! # The gate
//!
//! A client decides how long a pull takes, because its device executes the RDMA Reads, and the pull
//! holds pages of the server meanwhile. So a client that has not proved that it has access gets one
//! pull at a time. Its other messages wait until that Call was delivered. Before its first Reply a
//! client has only one credit anyway (RFC 8166, section 3.3.1). The pull may use [`FIRST_PAGES`]
//! pages. A larger pull takes the rest from [`NO_ACCESS_PAGES`], which all such clients share. So
//! these clients cannot delay one that reconnects and repeats a WRITE of up to [`FIRST_PAGES`]. If
//! the pages are not available, or the device is short of memory regions for RDMA Reads, the Call
//! is held back without a thread, and is tried again later.
//!
//! While a Call with Kerberos is pulled, messages that arrive after it wait, on all connections of
//! the client, see [`super::order`]. Messages about properties do not wait for
//! pulls of other connections.
//!
//! # Threads
//!
//! XPT_DATA is set only while a service thread would find a message that it may take, and the
//! completion of a Receive posts the RDMA Reads of its Call, see [`super::read`]. So one thread
//! wakes up for each Call.

use super::{
    client::OLDEST_PULL_MS,
    endpoint::{
        Endpoint,
        Pulled,
        RETRY, //
    },
    inbox::{
        Inbox,
        InboxGate,
        Incoming,
        PullPermit, //
    },
    pool::Budget,
    receives::CallBox,
    tunables::STAT_RECV, //
};
use crate::{
    kapi::{
        compat::smp_mb,
        ext::{
            spinlock::SpinLockGuard,
            work::xprtiod, //
        }, //
    },
    xdr::message::Parsed, //
};
use kernel::{
    page::PAGE_SIZE,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

/// Pages for RDMA Reads from a client that has not proved that it has access: 1 MiB, the largest
/// WRITE of Linux clients.
const FIRST_PAGES: usize = (1 << 20) / PAGE_SIZE;

/// Further pages for RDMA Reads from all these clients: 32 MiB.
const NO_ACCESS_PAGES: usize = (32 << 20) / PAGE_SIZE;

static NO_ACCESS: Budget = Budget::new(NO_ACCESS_PAGES);

/// Milliseconds after which a Call that was held back is tried again.
const RETRY_MS: u32 = 500;

impl WorkItem<RETRY> for Endpoint {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.open_gate(InboxGate::NoResources);
        this.wake_waiting();
    }
}

impl Endpoint {
    /// Returns the next message; `None` if there is none, or if none may be taken now.
    ///
    /// If no further message may be taken, it calls `clear`, which clears XPT_DATA.
    #[inline(always)]
    pub(super) fn next_incoming(
        self: &Arc<Self>,
        clear: impl FnOnce(),
    ) -> Option<Incoming<Pulled>> {
        let mut inbox = self.inbox.lock();
        if inbox.is_plain() && self.member.is_open() {
            // Nothing waits, so only `queue_message` and `queue_pulled` make another entry
            // available, and both take the lock.
            let next = inbox.messages.pop();
            if inbox.messages.is_empty() {
                clear();
            }
            return next.map(Incoming::Message);
        }
        self.next_ordered(inbox, clear)
    }

    /// Returns the next message as `next_incoming` does, whatever the inbox contains.
    #[inline(never)]
    fn next_ordered(
        self: &Arc<Self>,
        mut inbox: SpinLockGuard<'_, Inbox<Pulled>>,
        clear: impl FnOnce(),
    ) -> Option<Incoming<Pulled>> {
        if let Some(call) = inbox.pop_only_pulled(&self.member) {
            clear();
            return Some(Incoming::Pulled(call));
        }
        let has_access = self.handle.has_access();
        let next = inbox.next(has_access, &self.member);
        if !inbox.has_next(has_access, &self.member) {
            clear();
            // The pull that the message waits for may have ended before `clear`.
            if inbox.has_next(has_access, &self.member) {
                self.handle.set_data();
            } else if inbox.waits() {
                drop(inbox);
                // If the work is already scheduled, it runs earlier than this, and wakes a thread
                // that gets here again.
                let delay = msecs_to_jiffies(OLDEST_PULL_MS);
                let _ = xprtiod().enqueue_delayed::<_, RETRY>(self.clone(), delay);
            }
        }
        next
    }

    /// Returns permission to pull the Read chunks of `message`, which has just arrived, without a
    /// service thread; `None` if the gate is closed or a Call is held back. The caller must have
    /// checked that the client has proved that it has access.
    pub(super) fn permit_at_once(&self, message: &mut CallBox) -> Option<PullPermit> {
        let mut inbox = self.inbox.lock();
        if inbox.gate != InboxGate::Open || inbox.has_held() {
            return None;
        }
        message.data_mut().state.arrival = inbox.arrive();
        Some(PullPermit::Free)
    }

    /// Locks the inbox; `None` if the connection is being closed. [`Self::clear_inbox`], which
    /// takes the lock later, drops what is added under the lock.
    fn open_inbox(&self) -> Option<SpinLockGuard<'_, Inbox<Pulled>>> {
        let inbox = self.inbox.lock();
        (!self.is_closing()).then_some(inbox)
    }

    /// Queues a Call whose Read chunks have been pulled, and wakes a service thread. Drops the Call
    /// if the connection is being closed.
    pub(super) fn queue_pulled(&self, ctx: Pulled) {
        let Some(mut inbox) = self.open_inbox() else {
            return;
        };
        let full = inbox.push_pulled(ctx);
        if inbox.gate == InboxGate::NoResources {
            // The memory regions of this Call are available again.
            inbox.gate = InboxGate::Open;
        }
        self.wake(inbox);
        // Only a client that exceeds its credits by far has more Calls than there are contexts.
        if full.is_err() {
            self.fail();
        }
        drop(full);
    }

    /// Sets XPT_DATA, which the lock of the inbox protects, and wakes a service thread.
    fn wake(&self, inbox: SpinLockGuard<'_, Inbox<Pulled>>) {
        self.handle.set_data();
        drop(inbox);
        // Pairs with sunrpc's check of the transport after a thread has released it.
        smp_mb();
        self.handle.enqueue();
    }

    /// Queues a message that has just arrived, and wakes a service thread if the connection is
    /// established. Drops the message if the connection is being closed.
    pub(super) fn queue_message(&self, mut message: CallBox) {
        STAT_RECV.inc();
        let state = &mut message.data_mut().state;
        // Such messages have no sequence number, and a client waits for the response to its
        // RDMA2_CONNPROP before it sends a Call.
        if state.call.as_ref().is_some_and(Parsed::is_property) {
            state.seq = self.member.first_seq();
        } else {
            state.assign_seq(|| self.member.next_seq());
        }
        let Some(mut inbox) = self.open_inbox() else {
            return;
        };
        message.data_mut().state.arrival = inbox.arrive();
        inbox.push(message);
        self.handle.set_data();
        drop(inbox);
        // Pairs with the exchange in `Events::step` and with the barrier in `post_waiting`: of each
        // pair, one sees the other.
        smp_mb();
        if self.events.is_open() {
            self.handle.enqueue();
        }
    }

    /// Returns permission to pull the Read chunks of the Call `buf` into `pages` pages. Without
    /// permission the Call is held back in the inbox, or dropped if the connection is being closed.
    pub(super) fn admit_pull(
        self: &Arc<Self>,
        mut buf: CallBox,
        pages: usize,
    ) -> Option<(CallBox, PullPermit)> {
        if self.handle.has_access() {
            return Some((buf, PullPermit::Free));
        }
        let mut inbox = self.open_inbox()?;
        if inbox.gate == InboxGate::Pulling {
            buf.data_mut().state.seq = self.member.next_seq();
            inbox.push_held(buf);
            return None;
        }
        if let Some(share) = NO_ACCESS.take_all(pages.saturating_sub(FIRST_PAGES)) {
            inbox.gate = InboxGate::Pulling;
            return Some((buf, PullPermit::Only { _share: share }));
        }
        drop(inbox);
        self.hold(buf);
        None
    }

    /// Holds back a Call whose Read chunks cannot be pulled now. It is tried again when another
    /// pull has completed, or after [`RETRY_MS`]. Drops the Call if the connection is being closed.
    pub(super) fn hold(self: &Arc<Self>, mut buf: CallBox) {
        let state = &mut buf.data_mut().state;
        state.assign_seq(|| self.member.next_seq());
        let Some(mut inbox) = self.open_inbox() else {
            return;
        };
        inbox.hold(buf, self.handle.has_access());
        drop(inbox);
        // The work may be scheduled already.
        let _ = xprtiod().enqueue_delayed::<_, RETRY>(self.clone(), msecs_to_jiffies(RETRY_MS));
    }

    /// Releases the permission of a pull that has completed or was abandoned.
    pub(super) fn pull_ended(&self, permit: PullPermit) {
        let is_only = matches!(permit, PullPermit::Only { .. });
        drop(permit);
        if is_only {
            self.open_gate(InboxGate::Pulling);
        }
    }

    /// Opens the gate if it is in the state `closed`.
    fn open_gate(&self, closed: InboxGate) {
        let mut inbox = self.inbox.lock();
        if inbox.gate != closed {
            return;
        }
        inbox.gate = InboxGate::Open;
        if inbox.has_messages() {
            self.wake(inbox);
        }
    }

    /// Wakes a service thread for messages that wait for older pulls.
    fn wake_waiting(&self) {
        let inbox = self.inbox.lock();
        if inbox.waits() {
            self.wake(inbox);
        }
    }

    /// Drops all messages. Called when the connection is detached, and again after the QP was
    /// drained, because completions may add messages in between.
    pub(super) fn clear_inbox(&self) {
        loop {
            let mut inbox = self.inbox.lock();
            let message = inbox.pop_any();
            let pulled = inbox.pulled.pop();
            drop(inbox);
            if message.is_none() && pulled.is_none() {
                break;
            }
        }
    }
}
