// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Room in the Send Queue, as values.
//!
//! A [`SqReservation`] is the right to post so many Work Requests. It moves into what owns the
//! posted chain and gives the entries back when that is completed and the reservation dropped,
//! so none can be lost or given back twice. The order of those who wait is in
//! [`super::ledger`].

use super::{
    ledger::{
        Answer,
        Ledger, //
    },
    tunables::STAT_SQ_STARVE, //
};
use crate::kapi::{
    sunrpc::errno::enotconn,
    trace::{
        trace_svcrdma_sq_full,
        trace_svcrdma_sq_retry, //
    }, //
};
use kernel::{
    new_condvar,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        CondVar,
        SpinLock, //
    }, //
};

/// The Send Queue of one connection.
#[pin_data]
pub(super) struct Sq {
    #[pin]
    ledger: SpinLock<Ledger>,
    #[pin]
    room: CondVar,
    depth: u32,
    /// How many wait, for those who may not take the lock.
    waiting: Atomic<u32>,
}

/// The right to post a number of Work Requests. Dropping it gives them back.
pub(super) struct SqReservation {
    sq: Arc<Sq>,
    count: u32,
}

impl Sq {
    /// A queue of `depth` entries.
    pub(super) fn new(depth: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ledger <- new_spinlock!(Ledger::new(depth)),
                room <- new_condvar!(),
                depth,
                waiting: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes `count` entries; sleeps until it is their turn and so many are free.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the queue is, or gets, closed, or has not that many entries at all.
    pub(super) fn reserve(self: &Arc<Self>, count: u32) -> Result<SqReservation> {
        let mut ledger = self.ledger.lock();
        let mut answer = ledger.take(count);
        if let Answer::Wait(_) = answer {
            STAT_SQ_STARVE.inc();
            let (free, depth) = ledger.entries();
            trace_svcrdma_sq_full(count, free, depth);
            self.waiting.fetch_add(1, Relaxed);
            while let Answer::Wait(ticket) = answer {
                self.room.wait(&mut ledger);
                answer = ledger.retry(ticket, count);
            }
            self.waiting.fetch_sub(1, Relaxed);
            let (free, depth) = ledger.entries();
            trace_svcrdma_sq_retry(count, free, depth);
            // There may be enough for the next in line as well.
            if ledger.has_waiters() {
                self.room.notify_all();
            }
        }
        drop(ledger);
        match answer {
            Answer::Taken => Ok(SqReservation {
                sq: self.clone(),
                count,
            }),
            _ => Err(enotconn()),
        }
    }

    /// Takes `count` entries if they are free and nobody waits.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if not; `ENOTCONN` as for [`Self::reserve`].
    pub(super) fn try_reserve(self: &Arc<Self>, count: u32) -> Result<SqReservation> {
        match self.ledger.lock().try_take(count) {
            Some(Answer::Taken) => Ok(SqReservation {
                sq: self.clone(),
                count,
            }),
            Some(_) => Err(enotconn()),
            None => Err(EAGAIN),
        }
    }

    /// The number of entries, free or not: no chain can be longer.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether someone waits. From any context.
    pub(super) fn has_waiters(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Refuses everyone from now on, also those who wait. Not from an interrupt.
    pub(super) fn close(&self) {
        self.ledger.lock().close();
        self.room.notify_all();
    }
}

impl Drop for SqReservation {
    fn drop(&mut self) {
        if self.sq.ledger.lock().give(self.count) {
            self.sq.room.notify_all();
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
