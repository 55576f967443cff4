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
//! At most [`MAX_OVERTAKING`] messages are taken while a Call that came before them is pulled.
//!
//! # Threads
//!
//! sunrpc is told that there is something (XPT_DATA) only as long as a thread would find it, and
//! the RDMA Reads of a Call are posted by the completion of its Receive, see [`super::read`]. So a
//! thread wakes up once for each Call.

use super::{
    call::CallState,
    conn::{
        CallBox,
        Chan, //
    },
    pool::{
        Budget,
        Ring,
        Share, //
    },
    read::ReadCtx, //
};
use crate::kapi::{
    compat::smp_mb,
    ext::atomic::Acquire,
    ext::work::xprtiod,
    rdma::recv::RecvList,
    sunrpc::svc_rqst::CallData, //
};
use kernel::{
    impl_has_delayed_work,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

/// Pages that RDMA Reads for clients without proven access go to, over all connections: 32 MiB.
const UNPROVEN_PAGES: usize = (32 << 20) / PAGE_SIZE;

static UNPROVEN: Budget = Budget::new(UNPROVEN_PAGES);

/// After how many ms a Call that was held back is tried again.
const RETRY_MS: u32 = 500;

/// What was received and waits for a service thread.
pub(super) struct Inbox {
    messages: RecvList<CallData<CallState>>,
    /// Calls whose RDMA Reads had to wait. They are older than `messages`.
    held: RecvList<CallData<CallState>>,
    /// Calls whose Read chunks have been pulled. They are older still.
    pulled: Ring<Pin<KBox<ReadCtx>>>,
    gate: Gate,
    order: Order,
}

/// Messages that may overtake a Call whose Read chunks are being pulled.
///
/// A service with Kerberos drops a Call whose sequence number is 128 or more behind that of
/// another (RFC 2203, section 5.3.3.1), and the client's connection with it.
const MAX_OVERTAKING: u32 = 64;

/// Counts what overtakes the Calls that are being pulled.
pub(super) struct Order {
    /// Messages that a service thread has taken.
    taken: u32,
    /// What `taken` was when the RDMA Reads of a Call were posted. They complete in that order.
    pulls: Ring<u32>,
}

impl Order {
    /// With room for so many pulls.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Order {
            taken: 0,
            pulls: Ring::new(contexts, GFP_KERNEL)?,
        })
    }

    /// Whether another message may be taken.
    pub(super) fn allows(&self) -> bool {
        let first = self.pulls.first();
        first.is_none_or(|first| self.taken.wrapping_sub(*first) < MAX_OVERTAKING)
    }

    /// A message is taken.
    pub(super) fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// RDMA Reads of a Call are posted.
    pub(super) fn pull(&mut self) {
        // There is room for each context that exists.
        let _ = self.pulls.push(self.taken);
    }

    /// The oldest pull has completed.
    pub(super) fn pulled(&mut self) {
        self.pulls.pop();
    }
}

/// Whether messages are taken out of the inbox. Pulled Calls always are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// Not as long as the client has not shown that it has access: it has a pull under way.
    Pulling,
    /// Not until something that RDMA Reads need may be available again.
    Short,
}

/// One thing that was received.
pub(super) enum Incoming {
    /// A message, as it came.
    Message(CallBox),
    /// A Call whose Read chunks are here.
    Pulled(Pin<KBox<ReadCtx>>),
}

/// Leave to pull the Read chunks of a Call.
pub(super) struct Leave {
    /// Of [`UNPROVEN`].
    share: Option<Share>,
}

impl Inbox {
    /// An empty one, with room for as many pulled Calls as there are `contexts`.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Inbox {
            messages: RecvList::new(),
            held: RecvList::new(),
            pulled: Ring::new(contexts, GFP_KERNEL)?,
            gate: Gate::Open,
            order: Order::new(contexts)?,
        })
    }

    fn has_messages(&self) -> bool {
        !self.held.is_empty() || !self.messages.is_empty()
    }

    /// Whether a message may be taken; `proven` says whether the client has shown that it has
    /// access.
    fn is_open(&self, proven: bool) -> bool {
        match self.gate {
            Gate::Short => false,
            Gate::Pulling => proven && self.order.allows(),
            Gate::Open => self.order.allows(),
        }
    }

    /// Whether there is something to be taken.
    fn has_next(&self, proven: bool) -> bool {
        self.pulled.first().is_some() || (self.is_open(proven) && self.has_messages())
    }

    /// Takes what is next.
    fn next(&mut self, proven: bool) -> Option<Incoming> {
        if let Some(ctx) = self.pulled.pop() {
            return Some(Incoming::Pulled(ctx));
        }
        if !self.is_open(proven) {
            return None;
        }
        let message = self.held.pop().or_else(|| self.messages.pop())?;
        self.order.take();
        Some(Incoming::Message(message))
    }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for Chan { self.retry }
}

impl WorkItem<1> for Chan {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.open_gate(Gate::Short);
    }
}

impl Chan {
    /// Takes what was received next; `None` if nothing was, or nothing is taken now. Calls `clear`,
    /// which has sunrpc send no thread until there is more, together with the last.
    pub(super) fn next_incoming(&self, clear: impl FnOnce()) -> Option<Incoming> {
        let mut inbox = self.inbox.lock();
        let proven = self.handle.has_access();
        let next = inbox.next(proven);
        if !inbox.has_next(proven) {
            clear();
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

    /// The RDMA Reads of a Call are about to be posted.
    pub(super) fn note_pull(&self) {
        self.inbox.lock().order.pull();
    }

    /// Keeps a Call whose Read chunks are here for a service thread, and calls one. It is dropped
    /// if the connection is being closed.
    pub(super) fn queue_pulled(&self, ctx: Pin<KBox<ReadCtx>>) {
        if self.is_closing() {
            return;
        }
        let mut inbox = self.inbox.lock();
        inbox.order.pulled();
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
    pub(super) fn queue_message(&self, message: CallBox) {
        let mut inbox = self.inbox.lock();
        inbox.messages.push(message);
        self.handle.set_data();
        drop(inbox);
        // Pairs with the exchange in `ConnEvents::event`: one of the two sees the other.
        smp_mb();
        if self.events.established.load(Acquire) {
            self.handle.enqueue();
        }
    }

    /// Asks for leave to pull the Read chunks of the Call `buf` into so many `pages`. Without it
    /// the Call is held back, and comes out of the inbox again.
    pub(super) fn admit_pull(
        self: &Arc<Self>,
        buf: CallBox,
        pages: usize,
    ) -> Option<(CallBox, Leave)> {
        if self.handle.has_access() {
            return Some((buf, Leave { share: None }));
        }
        let mut inbox = self.inbox.lock();
        if inbox.gate == Gate::Pulling {
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
    pub(super) fn hold(self: &Arc<Self>, buf: CallBox) {
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

    /// Lets go of everything. For when no service thread looks into the inbox any more.
    pub(super) fn clear_inbox(&self) {
        loop {
            let mut inbox = self.inbox.lock();
            let message = inbox.held.pop().or_else(|| inbox.messages.pop());
            let pulled = inbox.pulled.pop();
            drop(inbox);
            if message.is_none() && pulled.is_none() {
                break;
            }
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
