// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What a connection has received, until a service thread takes it.
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
//! The pages that Read chunks go to are the client's to hold: it answers RDMA Reads when it likes.
//! So a client that has not shown yet that it has access gets one pull at a time, and its other
//! messages wait until that has been delivered; and all such clients together get
//! [`UNPROVEN_PAGES`]. A client has one credit before its first answer anyway (RFC 8166, section
//! 3.3.1). When the pages are not available, or a device is short of the memory regions that RDMA
//! Reads go through, the Call is held back, without a thread, and tried again.
//!
//! Messages that came after a Call with Kerberos is pulled wait until that is done, on whichever
//! connection of its client, see [`super::order`].
//!
//! # Threads
//!
//! sunrpc is told that there is something (XPT_DATA) only as long as a thread would find it, and
//! the RDMA Reads of a Call are posted by the completion of its Receive, see [`super::read`]. So a
//! thread wakes up once for each Call.

use super::{
    chan::{
        Chan,
        Pulled, //
    },
    client::PATIENCE_MS,
    inbox::{
        Gate,
        Incoming,
        Leave, //
    },
    pool::Budget,
    receives::CallBox, //
};
use crate::kapi::{
    compat::smp_mb,
    ext::work::xprtiod, //
};
use kernel::{
    impl_has_delayed_work,
    page::PAGE_SIZE,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

/// Pages that RDMA Reads for clients without proven access go to, over all connections: 32 MiB.
const UNPROVEN_PAGES: usize = (32 << 20) / PAGE_SIZE;

static UNPROVEN: Budget = Budget::new(UNPROVEN_PAGES);

/// After how many ms a Call that was held back is tried again.
const RETRY_MS: u32 = 500;

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for Chan { self.retry }
}

impl WorkItem<1> for Chan {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.open_gate(Gate::Short);
        this.look_again();
    }
}

impl Chan {
    /// Takes what was received next; `None` if nothing was, or nothing is taken now. Calls `clear`,
    /// which has sunrpc send no thread until there is more, together with the last.
    pub(super) fn next_incoming(
        self: &Arc<Self>,
        clear: impl FnOnce(),
    ) -> Option<Incoming<Pulled>> {
        let mut inbox = self.inbox.lock();
        let proven = self.handle.has_access();
        let next = inbox.next(proven, &self.member);
        if !inbox.has_next(proven, &self.member) {
            clear();
            // The pull that it waits for may have ended before that.
            if inbox.has_next(proven, &self.member) {
                self.handle.set_data();
            } else if inbox.waits() {
                drop(inbox);
                // If the timer runs already, it is set again then.
                let delay = msecs_to_jiffies(PATIENCE_MS);
                let _ = xprtiod().enqueue_delayed::<_, 1>(self.clone(), delay);
            }
        }
        next
    }

    /// Leave to pull the Read chunks of a Call before any thread looks at it: for a client that has
    /// shown that it has access, as long as nothing is held back.
    pub(super) fn leave_at_once(&self) -> Option<Leave> {
        let inbox = self.inbox.lock();
        let free = inbox.gate == Gate::Open && inbox.held.is_empty();
        (free && self.handle.has_access()).then_some(Leave { share: None })
    }

    /// Keeps a Call whose Read chunks are here for a service thread, and calls one. It is dropped
    /// if the connection is being closed.
    pub(super) fn queue_pulled(&self, ctx: Pulled) {
        if self.is_closing() {
            return;
        }
        let mut inbox = self.inbox.lock();
        let full = inbox.pulled.push(ctx);
        if inbox.gate == Gate::Short {
            // The memory regions of this one are available.
            inbox.gate = Gate::Open;
        }
        self.handle.set_data();
        drop(inbox);
        // There is room for each context that exists.
        drop(full);
        // Pairs with the look at the transport when a thread that has crowded it is done.
        smp_mb();
        self.handle.enqueue();
    }

    /// Keeps a message for a service thread, and calls one.
    pub(super) fn queue_message(&self, mut message: CallBox) {
        message.data_mut().state.place = self.member.place();
        let mut inbox = self.inbox.lock();
        inbox.messages.push(message);
        self.handle.set_data();
        drop(inbox);
        // Pairs with the exchange in `Events::step`: one of the two sees the other.
        smp_mb();
        if self.events.is_open() {
            self.handle.enqueue();
        }
    }

    /// Asks for leave to pull the Read chunks of the Call `buf` into so many `pages`. Without it
    /// the Call is held back, and comes out of the inbox again.
    pub(super) fn admit_pull(
        self: &Arc<Self>,
        mut buf: CallBox,
        pages: usize,
    ) -> Option<(CallBox, Leave)> {
        if self.handle.has_access() {
            return Some((buf, Leave { share: None }));
        }
        let mut inbox = self.inbox.lock();
        if inbox.gate == Gate::Pulling {
            buf.data_mut().state.place = self.member.place();
            inbox.held.push(buf);
            return None;
        }
        if let Some(share) = UNPROVEN.take_all(pages) {
            inbox.gate = Gate::Pulling;
            let share = Some(share);
            return Some((buf, Leave { share }));
        }
        drop(inbox);
        self.hold(buf);
        None
    }

    /// Holds a Call back whose Read chunks cannot be pulled now. It is tried again when Read chunks
    /// of another one have been pulled, or after a while.
    pub(super) fn hold(self: &Arc<Self>, mut buf: CallBox) {
        buf.data_mut().state.place = self.member.place();
        let mut inbox = self.inbox.lock();
        inbox.held.push(buf);
        inbox.gate = Gate::Short;
        drop(inbox);
        // The timer may run already.
        let _ = xprtiod().enqueue_delayed::<_, 1>(self.clone(), msecs_to_jiffies(RETRY_MS));
    }

    /// A Call's Read chunks have been pulled, or are not pulled after all.
    pub(super) fn pull_ended(&self, leave: Leave) {
        let counted = leave.share.is_some();
        drop(leave);
        if counted {
            self.open_gate(Gate::Pulling);
        }
    }

    /// Opens the gate if it is closed in this way.
    fn open_gate(&self, closed: Gate) {
        let mut inbox = self.inbox.lock();
        if inbox.gate != closed {
            return;
        }
        inbox.gate = Gate::Open;
        if !inbox.has_messages() {
            return;
        }
        self.handle.set_data();
        drop(inbox);
        // As for `queue_pulled`.
        smp_mb();
        self.handle.enqueue();
    }

    /// Has a service thread look at what waits for older pulls.
    fn look_again(&self) {
        let inbox = self.inbox.lock();
        if !inbox.waits() {
            return;
        }
        self.handle.set_data();
        drop(inbox);
        // As for `queue_pulled`.
        smp_mb();
        self.handle.enqueue();
    }

    /// Lets go of everything. For when no service thread looks into the inbox any more.
    pub(super) fn clear_inbox(&self) {
        loop {
            let mut inbox = self.inbox.lock();
            let message = inbox.pop_message();
            let pulled = inbox.pulled.pop();
            drop(inbox);
            if message.is_none() && pulled.is_none() {
                break;
            }
        }
    }
}
