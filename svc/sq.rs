// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Room in the Send Queue, and the queue of chains that wait for it.
//!
//! A [`SqReservation`] is the right to post a number of Work Requests. It is a field of the owner
//! of the posted chain, and releasing or dropping it after the completion returns the entries. So
//! no entry is lost or returned twice. The owner keeps it for its next chain, so that a chain takes
//! no reference to the queue. [`super::sq_accounting`] does the accounting.
//!
//! No thread waits for room: it queues its chain and continues. Completions post queued chains. The
//! client decides how long a Send may stall (an RNR retry count of 7 means forever), so it could
//! block a waiting thread.
//!
//! # Progress
//!
//! While chains are admitted, a timer checks every [`CHECK_MS`] whether they complete. The
//! connection is closed if none completes for 30 s, or if one takes longer than 60 s. While the
//! client has not proved that it has access, a chain may take 10 s only. Each limit is exceeded by
//! up to one period, because chains are admitted between two checks. This bounds how long a client
//! can make the server hold pages.

use super::{
    pool::Ring,
    sq_accounting::{
        Admission,
        Progress,
        SqAccounting, //
    },
};
use crate::kapi::ext::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    spinlock::{
        new_spinlock,
        SpinLock, //
    },
    work::{
        cancel_delayed_sync,
        xprtiod, //
    }, //
};
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

/// The period of the timer in ms.
pub(super) const CHECK_MS: u32 = 5_000;

/// The owner of a Send Queue: its connection.
pub(super) trait SqOwner: Send + Sync + 'static {
    /// Returns whether the client has proved that it has access. Any context.
    fn has_access(&self) -> bool;

    /// Closes the connection, because chains do not complete in time. Process context.
    fn stalled(&self);

    /// Records the number of free entries. Called under a spin lock.
    fn note_free(&self, free: u32) {
        let _ = free;
    }
}

/// The Send Queue of one connection. The queued chains are `W`s.
#[pin_data]
pub(super) struct Sq<W: Send + 'static, C: SqOwner> {
    #[pin]
    state: SpinLock<SqState<W>>,
    /// Whether chains are queued. Written under the lock of `state`.
    waiting: Atomic<bool>,
    depth: u32,
    owner: C,
    period: Jiffies,
    #[pin]
    timer: DelayedWork<Self>,
}

struct SqState<W> {
    accounting: SqAccounting,
    backlog: Ring<(u32, W)>,
}

/// The right to post a number of Work Requests. Releasing or dropping it returns the entries.
pub(super) struct SqReservation<W: Send + 'static, C: SqOwner> {
    sq: Arc<Sq<W, C>>,
    /// The number of Work Requests; `None` after the release.
    count: Option<u32>,
}

/// The result of a request for entries.
pub(super) enum Submitted<T, R> {
    /// The chain can be posted now.
    Granted(T, R),
    /// The chain is queued. Contains the number of free entries.
    Queued(u32),
    /// The Send Queue is closed or too short, or too many chains are queued.
    Refused(T),
}

impl_has_delayed_work! {
    impl{W: Send + 'static, C: SqOwner} HasDelayedWork<Self> for Sq<W, C> { self.timer }
}

impl<W: Send + 'static, C: SqOwner> WorkItem for Sq<W, C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let progress = this.state.lock().accounting.check(this.owner.has_access());
        match progress {
            Progress::Idle => {}
            Progress::Active => this.start_timer(),
            Progress::Stalled => {
                this.owner.stalled();
                this.close();
            }
        }
    }
}

impl<W: Send + 'static, C: SqOwner> Sq<W, C> {
    /// Creates a Send Queue of `depth` entries that queues at most `max_queued` chains.
    pub(super) fn new(
        depth: u32,
        max_queued: usize,
        owner: C,
        period_ms: u32,
    ) -> Result<Arc<Self>> {
        let backlog = Ring::new(max_queued, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                state <- new_spinlock!(SqState {
                    accounting: SqAccounting::new(depth),
                    backlog,
                }),
                waiting: Atomic::new(false),
                depth,
                owner,
                period: msecs_to_jiffies(period_ms),
                timer <- new_delayed_work!("rpcrdma_rs: Send Queue"),
            }),
            GFP_KERNEL,
        )
    }

    fn start_timer(self: &Arc<Self>) {
        // The work may be queued already, if a chain was admitted while it ran.
        let _ = xprtiod().enqueue_delayed(self.clone(), self.period);
    }

    /// Takes `count` entries for `chain`, or queues the chain as `wait` converts it. Does not
    /// sleep; `wait` is called under a spin lock.
    pub(super) fn submit<T>(
        self: &Arc<Self>,
        count: u32,
        chain: T,
        wait: impl FnOnce(T) -> W,
    ) -> Submitted<T, SqReservation<W, C>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !state.accounting.has_room(count) && state.backlog.is_full() {
            return Submitted::Refused(chain);
        }
        let submitted = match state.accounting.admit(count) {
            Admission::Refused => return Submitted::Refused(chain),
            Admission::Granted => Submitted::Granted(
                chain,
                SqReservation {
                    sq: self.clone(),
                    count: Some(count),
                },
            ),
            Admission::Queued => {
                // There is room, which was checked above.
                let _ = state.backlog.push((count, wait(chain)));
                self.waiting.store(true, Relaxed);
                Submitted::Queued(state.accounting.free())
            }
        };
        self.owner.note_free(state.accounting.free());
        let start = state.accounting.start_watch();
        drop(guard);
        if start {
            self.start_timer();
        }
        submitted
    }

    /// Takes `count` entries if they are free and no chain waits, and stores the reservation in
    /// `slot`. Reuses a released reservation in the slot. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if too few are free or a chain waits; `ENOTCONN` if the queue is closed or does not
    /// have that many entries.
    #[inline(always)]
    pub(super) fn try_reserve(
        self: &Arc<Self>,
        slot: &mut Option<SqReservation<W, C>>,
        count: u32,
    ) -> Result {
        let mut state = self.state.lock();
        if !state.accounting.take(count) {
            return Err(if state.accounting.has_to_wait(count) {
                EAGAIN
            } else {
                crate::kapi::sunrpc::errno::enotconn()
            });
        }
        self.owner.note_free(state.accounting.free());
        let start = state.accounting.start_watch();
        drop(state);
        if start {
            self.start_timer();
        }
        match slot {
            Some(kept) if kept.count.is_none() && Arc::ptr_eq(&kept.sq, self) => {
                kept.count = Some(count);
            }
            _ => {
                let (sq, count) = (self.clone(), Some(count));
                *slot = Some(SqReservation { sq, count });
            }
        }
        Ok(())
    }

    /// Returns whether chains are queued. A caller that has returned entries sees each chain that
    /// waited for them: a chain is queued only if entries are in use, which is checked under the
    /// lock.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Relaxed)
    }

    /// Removes the first queued chain if there is room for it. Must be called after a reservation
    /// was dropped, until it returns `None`. Does not sleep.
    pub(super) fn next(self: &Arc<Self>) -> Option<(W, SqReservation<W, C>)> {
        if !self.has_waiting() {
            return None;
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let count = state.backlog.first()?.0;
        if !state.accounting.advance(count) {
            return None;
        }
        self.owner.note_free(state.accounting.free());
        let (_, chain) = state.backlog.pop()?;
        self.waiting.store(state.backlog.first().is_some(), Relaxed);
        let (sq, count) = (self.clone(), Some(count));
        Some((chain, SqReservation { sq, count }))
    }

    /// Refuses all further chains. Must not be called from an interrupt, as it takes the spin lock
    /// of the queue.
    pub(super) fn close(&self) {
        self.state.lock().accounting.close();
    }

    /// Removes a queued chain of a closed Send Queue; `None` if there is none.
    pub(super) fn take_waiting(&self) -> Option<W> {
        let (_, chain) = self.state.lock().backlog.pop()?;
        Some(chain)
    }

    /// Closes the queue and stops its timer. Sleeps.
    pub(super) fn end(self: &Arc<Self>) {
        self.close();
        cancel_delayed_sync(self);
    }

    /// Returns whether a chain is posted or queued.
    pub(super) fn is_busy(&self) -> bool {
        !self.state.lock().accounting.is_idle()
    }

    /// Returns the number of entries, free or not: no chain can be longer.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }
}

impl<W: Send + 'static, C: SqOwner> SqReservation<W, C> {
    /// Returns the entries, unless they were already returned. Takes the spin lock of the queue.
    #[inline]
    pub(super) fn release(&mut self) {
        if let Some(count) = self.count.take() {
            let mut state = self.sq.state.lock();
            state.accounting.give(count);
            self.sq.owner.note_free(state.accounting.free());
        }
    }
}

impl<W: Send + 'static, C: SqOwner> Drop for SqReservation<W, C> {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
