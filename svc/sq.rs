// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Room in the Send Queue, and the line of chains that wait for it.
//!
//! A [`SqReservation`] is the right to post a number of Work Requests. It moves into what owns
//! the posted chain; dropping it, when that has completed, gives the entries back. So none is lost
//! or given back twice. The accounts are in [`super::ledger`].
//!
//! No thread waits for room: it leaves its chain in line and does other work. Completions post
//! from the line. A client chooses how long its Sends may stall (an RNR retry count of 7 means for
//! ever), so a thread that waited would be the client's.
//!
//! # Progress
//!
//! While chains are admitted, a timer looks every [`LOOK_MS`] whether they complete. The
//! connection ends if none does for 30 s, or if one takes longer than 60 s; 10 s as long as the
//! client has not shown that it has access (one period more, as chains are admitted between two
//! looks). That bounds the time for which a client can have the server hold pages.

use super::{
    ledger::{
        Admission,
        Ledger,
        Progress, //
    },
    pool::Ring,
};
use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};
use crate::kapi::ext::work::{
    cancel_delayed_sync,
    xprtiod, //
};
use kernel::{
    impl_has_delayed_work, new_delayed_work, new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    },
};

/// The period of the timer in ms.
pub(super) const LOOK_MS: u32 = 5_000;

/// Whom the Send Queue is of.
pub(super) trait Client: Send + Sync + 'static {
    /// Returns whether the client has shown that it has access. Any context.
    fn proven(&self) -> bool;

    /// Chains do not complete in time: closes the connection. Process context.
    fn stalled(&self);

    /// So many entries are free by now. Under a spin lock.
    fn note_free(&self, free: u32) {
        let _ = free;
    }
}

/// The Send Queue of one connection. In line are `W`s.
#[pin_data]
pub(super) struct Sq<W: Send + 'static, C: Client> {
    #[pin]
    state: SpinLock<State<W>>,
    /// Whether the line is not empty. Written under the lock of `state`.
    waiting: Atomic<bool>,
    depth: u32,
    client: C,
    period: Jiffies,
    #[pin]
    timer: DelayedWork<Self>,
}

struct State<W> {
    ledger: Ledger,
    line: Ring<(u32, W)>,
}

/// The right to post a number of Work Requests. Dropping it gives them back.
pub(super) struct SqReservation<W: Send + 'static, C: Client> {
    sq: Arc<Sq<W, C>>,
    count: u32,
}

/// What came of a chain.
pub(super) enum Submitted<T, R> {
    /// It can be posted now.
    Granted(T, R),
    /// It is in line. Says how many entries are free.
    InLine(u32),
    /// The queue is closed or too short, or the line is full.
    Refused(T),
}

impl_has_delayed_work! {
    impl{W: Send + 'static, C: Client} HasDelayedWork<Self> for Sq<W, C> { self.timer }
}

impl<W: Send + 'static, C: Client> WorkItem for Sq<W, C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let progress = this.state.lock().ledger.look(this.client.proven());
        match progress {
            Progress::Idle => {}
            Progress::Moving => this.start_timer(),
            Progress::Stalled => {
                this.client.stalled();
                this.close();
            }
        }
    }
}

impl<W: Send + 'static, C: Client> Sq<W, C> {
    /// A queue of `depth` entries with a line of at most `longest` chains.
    pub(super) fn new(depth: u32, longest: usize, client: C, period_ms: u32) -> Result<Arc<Self>> {
        let line = Ring::new(longest, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                state <- new_spinlock!(State {
                    ledger: Ledger::new(depth),
                    line,
                }),
                waiting: Atomic::new(false),
                depth,
                client,
                period: msecs_to_jiffies(period_ms),
                timer <- new_delayed_work!("rpcrdma_rs: Send Queue"),
            }),
            GFP_KERNEL,
        )
    }

    fn start_timer(self: &Arc<Self>) {
        // It may be queued already: a chain was admitted while it ran.
        let _ = xprtiod().enqueue_delayed(self.clone(), self.period);
    }

    /// Takes `count` entries for `chain`, or leaves what `wait` makes of it in line. Does not
    /// sleep; `wait` is called under a spin lock.
    pub(super) fn submit<T>(
        self: &Arc<Self>,
        count: u32,
        chain: T,
        wait: impl FnOnce(T) -> W,
    ) -> Submitted<T, SqReservation<W, C>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !state.ledger.has_room(count) && state.line.is_full() {
            return Submitted::Refused(chain);
        }
        let submitted = match state.ledger.admit(count) {
            Admission::Refused => return Submitted::Refused(chain),
            Admission::Granted => Submitted::Granted(
                chain,
                SqReservation {
                    sq: self.clone(),
                    count,
                },
            ),
            Admission::InLine => {
                // There is room, as just seen.
                let _ = state.line.push((count, wait(chain)));
                self.waiting.store(true, Relaxed);
                Submitted::InLine(state.ledger.entries().0)
            }
        };
        self.client.note_free(state.ledger.entries().0);
        let start = state.ledger.start_watch();
        drop(guard);
        if start {
            self.start_timer();
        }
        submitted
    }

    /// Takes `count` entries if they are free and no chain waits. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if not; `ENOTCONN` if the queue is closed or has not that many entries.
    pub(super) fn try_reserve(self: &Arc<Self>, count: u32) -> Result<SqReservation<W, C>> {
        let mut state = self.state.lock();
        if state.ledger.has_to_wait(count) {
            return Err(EAGAIN);
        }
        if state.ledger.admit(count) != Admission::Granted {
            return Err(crate::kapi::sunrpc::errno::enotconn());
        }
        self.client.note_free(state.ledger.entries().0);
        let start = state.ledger.start_watch();
        drop(state);
        if start {
            self.start_timer();
        }
        Ok(SqReservation {
            sq: self.clone(),
            count,
        })
    }

    /// Takes the first chain in line if there is room for it. To be called after a reservation
    /// was dropped, until there is none. Does not sleep.
    pub(super) fn next(self: &Arc<Self>) -> Option<(W, SqReservation<W, C>)> {
        // Whoever puts a chain in line has seen, under the lock, that entries are in use. So one
        // of those that give entries back later sees the chain.
        if !self.waiting.load(Relaxed) {
            return None;
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let count = state.line.first()?.0;
        if !state.ledger.advance(count) {
            return None;
        }
        self.client.note_free(state.ledger.entries().0);
        let (_, chain) = state.line.pop()?;
        self.waiting.store(state.line.first().is_some(), Relaxed);
        let sq = self.clone();
        Some((chain, SqReservation { sq, count }))
    }

    /// Refuses every chain from now on. Not from an interrupt.
    pub(super) fn close(&self) {
        self.state.lock().ledger.close();
    }

    /// Takes a chain out of the line of a closed queue. May be called until there is none.
    pub(super) fn take_waiting(&self) -> Option<W> {
        let (_, chain) = self.state.lock().line.pop()?;
        Some(chain)
    }

    /// Closes the queue and stops its timer. Sleeps.
    pub(super) fn end(self: &Arc<Self>) {
        self.close();
        cancel_delayed_sync(self);
    }

    /// Returns the number of entries, free or not: no chain can be longer.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }
}

impl<W: Send + 'static, C: Client> Drop for SqReservation<W, C> {
    fn drop(&mut self) {
        let mut state = self.sq.state.lock();
        state.ledger.give(self.count);
        self.sq.client.note_free(state.ledger.entries().0);
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
