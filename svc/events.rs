// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Events of a connection: from the CM, from device removal, and from the timer for a client that
//! gets no Reply.
//!
//! An event may arrive before the transport exists. [`Events`] records it until then.

use super::phase::{
    Action,
    ConnEvent,
    Phase, //
};
use crate::kapi::{
    compat::smp_mb,
    ext::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        work::xprtiod, //
    },
    rdma::{
        client::Removal,
        cm::{
            Event,
            Handler, //
        }, //
    },
    sunrpc::svc::Handle, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

/// How long a connection stays open after a Call was dropped before the first Reply.
const UNANSWERED_MS: u32 = 2_000;

/// The callbacks of the CM, of device removal and of the timer.
#[pin_data]
pub(super) struct Events<C: 'static> {
    /// A [`Phase`], as a number.
    phase: Atomic<u32>,
    /// Whether a Reply or an error report was sent to the client.
    answered: Atomic<bool>,
    conn: SetOnce<Handle<C>>,
    #[pin]
    unanswered: DelayedWork<Events<C>>,
}

impl_has_delayed_work! {
    impl{C: 'static} HasDelayedWork<Self> for Events<C> { self.unanswered }
}

impl<C: 'static> WorkItem for Events<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if !this.answered.load(Relaxed) {
            this.handle(ConnEvent::Lost);
        }
    }
}

impl<C: 'static> Events<C> {
    /// Creates the events of a connection that has no transport yet.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Events {
                phase: Atomic::new(Phase::Accepted.to_u32()),
                answered: Atomic::new(false),
                conn: SetOnce::new(),
                unanswered <- new_delayed_work!("rpcrdma_rs: unanswered"),
            }),
            GFP_KERNEL,
        )
    }

    /// Records that a Reply or an error report is sent to the client.
    pub(super) fn note_answered(&self) {
        self.answered.store(true, Relaxed);
    }

    /// Records that a Call was dropped. The connection is closed after [`UNANSWERED_MS`] if neither
    /// a Reply nor an error report is sent by then.
    pub(super) fn note_dropped_call(self: &Arc<Self>) {
        if !self.answered.load(Relaxed) {
            // It may be queued already.
            let _ = xprtiod().enqueue_delayed(self.clone(), msecs_to_jiffies(UNANSWERED_MS));
        }
    }

    /// Sets the transport to report to, and closes it if the connection was lost already.
    pub(super) fn attach(&self, handle: &Handle<C>) {
        self.conn.populate(handle.clone());
        // Pairs with the exchange in `step`: one of the two sees the other.
        smp_mb();
        if self.is_lost() {
            handle.close();
        }
    }

    /// Returns whether the connection is established. Before that, an arriving message does not
    /// wake a service thread.
    pub(super) fn is_open(&self) -> bool {
        self.phase() == Phase::Open
    }

    /// Returns whether the connection is lost, or was withdrawn before it was accepted.
    pub(super) fn is_lost(&self) -> bool {
        self.phase() == Phase::Lost
    }

    fn phase(&self) -> Phase {
        Phase::from_u32(self.phase.load(Acquire))
    }

    /// Moves to the next phase, and returns the action for it.
    fn step(&self, event: ConnEvent) -> Action {
        let mut word = self.phase.load(Relaxed);
        loop {
            let phase = Phase::from_u32(word);
            let next = phase.after(event);
            match self.phase.cmpxchg(word, next.to_u32(), Full) {
                Ok(_) => return phase.action(next),
                Err(now) => word = now,
            }
        }
    }

    /// Moves to the next phase, and performs the action if the transport exists. If it does not
    /// exist yet, `attach` closes it later if the connection was lost.
    fn handle(&self, event: ConnEvent) {
        let action = self.step(event);
        let Some(handle) = self.conn.as_ref() else {
            return;
        };
        match action {
            Action::Nothing => {}
            Action::Wake => handle.enqueue(),
            Action::Close => handle.close(),
        }
    }
}

#[vtable]
impl<C: 'static> Handler for Events<C> {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Established(_) => self.handle(ConnEvent::Established),
            Event::Disconnected
            | Event::DeviceRemoval
            | Event::ConnectError
            | Event::Unreachable
            | Event::Rejected { .. } => self.handle(ConnEvent::Lost),
            // These do not occur on a server, or are harmless: if the address has moved and the
            // path is gone, the client reconnects.
            Event::AddrResolved
            | Event::AddrError
            | Event::RouteResolved
            | Event::RouteError
            | Event::AddrChange
            | Event::TimewaitExit
            | Event::Other => {}
        }
    }
}

impl<C: 'static> Removal for Events<C> {
    fn removing(&self) {
        let _ = self.step(ConnEvent::Lost);
        if let Some(handle) = self.conn.as_ref() {
            // All service threads may be busy, so do not leave it to one of them.
            handle.close_now();
        }
    }
}
