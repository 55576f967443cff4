// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Room in the Send Queue, as values.
//!
//! A [`SqReservation`] is the right to post so many Work Requests. It moves into what owns the
//! posted chain and gives the entries back when that is completed and the reservation dropped,
//! so none can be lost or given back twice. The order of those who wait is in
//! [`super::ledger`].
//!
//! A client that takes nothing of what it is sent must not keep service threads: who waits
//! does so as long as entries are given back now and then.

use super::{
    ledger::{
        Answer,
        Ledger,
        Ticket, //
    },
    tunables::STAT_SQ_STARVE, //
};
use crate::kapi::{
    ext::wait::{
        new_waitqueue,
        WaitQueue, //
    },
    sunrpc::errno::enotconn,
    trace::{
        trace_svcrdma_sq_full,
        trace_svcrdma_sq_retry, //
    }, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    time::Jiffies, //
};

/// The Send Queue of one connection.
#[pin_data]
pub(super) struct Sq {
    #[pin]
    ledger: SpinLock<Ledger>,
    #[pin]
    room: WaitQueue,
    depth: u32,
    /// How long nothing may be given back while someone waits.
    patience: Jiffies,
}

/// The right to post a number of Work Requests. Dropping it gives them back.
pub(super) struct SqReservation {
    sq: Arc<Sq>,
    count: u32,
}

impl Sq {
    /// A queue of `depth` entries, which may all be in use for as long as `patience`.
    pub(super) fn new(depth: u32, patience: Jiffies) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ledger <- new_spinlock!(Ledger::new(depth)),
                room <- new_waitqueue!("rpcrdma_rs: Send Queue"),
                depth,
                patience,
            }),
            GFP_KERNEL,
        )
    }

    /// Takes `count` entries; sleeps until it is their turn and so many are free.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the queue is, or gets, closed, or has not that many entries at all;
    /// `ETIMEDOUT` if nothing was given back for as long as the queue waits: it is closed then.
    pub(super) fn reserve(self: &Arc<Self>, count: u32) -> Result<SqReservation> {
        let mut ledger = self.ledger.lock();
        let answer = ledger.take(count);
        let (free, depth) = ledger.entries();
        drop(ledger);
        let answer = match answer {
            Answer::Wait(ticket) => {
                STAT_SQ_STARVE.inc();
                trace_svcrdma_sq_full(count, free, depth);
                self.wait(ticket, count)?
            }
            other => other,
        };
        match answer {
            Answer::Taken => Ok(SqReservation {
                sq: self.clone(),
                count,
            }),
            _ => Err(enotconn()),
        }
    }

    /// Waits in line.
    fn wait(&self, ticket: Ticket, count: u32) -> Result<Answer> {
        let mut given = self.ledger.lock().given();
        loop {
            let mut answer = Answer::Wait(ticket);
            let settled = self.room.wait_timeout(self.patience, || {
                answer = self.ledger.lock().retry(ticket, count);
                answer != Answer::Wait(ticket)
            });
            let ledger = self.ledger.lock();
            let (free, depth) = ledger.entries();
            let (before, waiters) = (given, ledger.has_waiters());
            given = ledger.given();
            drop(ledger);
            if settled {
                trace_svcrdma_sq_retry(count, free, depth);
                // There may be enough for the next in line as well.
                if waiters {
                    self.room.wake_all();
                }
                return Ok(answer);
            }
            if given == before {
                self.close();
                return Err(ETIMEDOUT);
            }
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

    /// Refuses everyone from now on, also those who wait. Not from an interrupt.
    pub(super) fn close(&self) {
        self.ledger.lock().close();
        self.room.wake_all();
    }
}

impl Drop for SqReservation {
    fn drop(&mut self) {
        if self.sq.ledger.lock().give(self.count) {
            self.sq.room.wake_all();
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
