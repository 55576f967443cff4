// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Posting of chains of Work Requests, at once or after they were queued for room in the Send
//! Queue.
//!
//! ```text
//!   submit --- room --------------------------> post --> completion --+
//!     \--- none --> queued --- room, resume ---> post                 |
//!                      ^                                              |
//!                      +--- the completion returns entries <----------+
//! ```
//!
//! While a chain is queued, sunrpc assigns no further service thread to the connection. Threads
//! that work for it already still queue replies, completions queue pulls, and nfsd's workers queue
//! callbacks. The backlog has room for a chain of each of the `Sizes::buffers` Receives and for
//! each callback; one more closes the connection.

use super::{
    endpoint::{
        ChainCtx,
        Endpoint,
        QueuedChain,
        Reservation,
        SqConn, //
    },
    sq::{
        SqOwner,
        Submitted, //
    },
    tunables::STAT_SQ_STARVE, //
};
use crate::kapi::{
    compat::smp_mb,
    ext::{
        atomic::Relaxed,
        ratelimit::limited, //
    },
    rdma::qp::Qp,
    sunrpc::errno::enotconn,
    trace::{
        trace_svcrdma_sq_full,
        trace_svcrdma_sq_post_err,
        trace_svcrdma_sq_retry, //
    }, //
};
use kernel::prelude::*;

impl ChainCtx {
    /// Returns the number of Send Queue entries that the chain needs.
    fn sqes(&self) -> u32 {
        match self {
            ChainCtx::Reply(ctx) => ctx.sqes(),
            ChainCtx::Pull(ctx) => ctx.sqes(),
        }
    }

    /// Returns the slot for the reservation of the chain.
    fn reservation(&mut self) -> &mut Option<Reservation> {
        match self {
            ChainCtx::Reply(ctx) => ctx.as_mut().project().reservation,
            ChainCtx::Pull(ctx) => ctx.as_mut().project().reservation,
        }
    }
}

impl SqOwner for SqConn {
    fn has_access(&self) -> bool {
        self.handle.has_access()
    }

    fn stalled(&self) {
        if !self.handle.is_closing() {
            limited!(pr_warn!(
                "server: client {} does not accept data or answer RDMA Reads; closing the \
                 connection\n",
                self.addr
            ));
        }
        self.handle.close();
    }

    fn note_free(&self, free: u32) {
        self.status.queue_free.store(free, Relaxed);
    }
}

impl Endpoint {
    /// Posts `chain`, or queues it until there is room for it. Does not sleep.
    ///
    /// # Errors
    ///
    /// The connection must be closed.
    #[inline(always)]
    pub(super) fn submit(&self, qp: &Qp<Endpoint>, mut chain: ChainCtx) -> Result {
        let sqes = chain.sqes();
        match self.sq.try_reserve(chain.reservation(), sqes) {
            Ok(()) => self.post(qp, chain),
            Err(_) => self.submit_or_wait(qp, chain),
        }
    }

    /// Posts `chain` if there is room for it and no other chain waits. Frees its resources
    /// otherwise. Does not sleep.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if there is no room; otherwise the connection must be closed.
    pub(super) fn try_submit(&self, qp: &Qp<Endpoint>, mut chain: ChainCtx) -> Result {
        let sqes = chain.sqes();
        match self.sq.try_reserve(chain.reservation(), sqes) {
            Ok(()) => self.post(qp, chain),
            Err(error) => {
                self.retract(qp, chain);
                Err(error)
            }
        }
    }

    /// Implements [`Self::submit`] for a chain for which there was no room.
    #[cold]
    fn submit_or_wait(&self, qp: &Qp<Endpoint>, mut chain: ChainCtx) -> Result {
        let sqes = chain.sqes();
        // The Send Queue owns the chains that it queues, so they must not own the Send Queue.
        *chain.reservation() = None;
        let wait = |chain| QueuedChain {
            chain,
            _backpressure: self.handle.apply_backpressure(),
        };
        match self.sq.submit(sqes, chain, wait) {
            Submitted::Granted(chain, reservation) => self.post_late(qp, chain, reservation),
            Submitted::Queued(free) => {
                STAT_SQ_STARVE.inc();
                self.params.status.queue_waits.add(1);
                trace_svcrdma_sq_full(sqes, free, self.sq.depth());
                Ok(())
            }
            Submitted::Refused(chain) => {
                self.retract(qp, chain);
                Err(enotconn())
            }
        }
    }

    /// Posts queued chains for which there is room now. Called after entries were returned.
    #[inline(always)]
    pub(super) fn resume(&self, qp: &Qp<Endpoint>) {
        if self.sq.has_waiting() {
            self.post_waiting(qp);
        }
    }

    /// Implements [`Self::resume`] if chains are queued.
    #[cold]
    fn post_waiting(&self, qp: &Qp<Endpoint>) {
        let mut resumed = false;
        while let Some((waiting, reservation)) = self.sq.next() {
            resumed = true;
            self.params.status.queue_resumed.add(1);
            let sqes = waiting.chain.sqes();
            trace_svcrdma_sq_retry(sqes, 0, self.sq.depth());
            if self.post_late(qp, waiting.chain, reservation).is_err() {
                self.fail();
            }
        }
        if resumed {
            // Pairs with the barrier in `queue_message`. Either this thread sees the received
            // message, or `queue_message` sees that no chain waits.
            smp_mb();
            self.handle.enqueue();
        }
    }

    /// Posts `chain`, which has its Send Queue entries. Does not sleep.
    ///
    /// # Errors
    ///
    /// Errors of posting, after which the connection must be closed.
    #[inline(always)]
    pub(super) fn post(&self, qp: &Qp<Endpoint>, chain: ChainCtx) -> Result {
        let posted = match chain {
            ChainCtx::Reply(ctx) => self.post_reply(qp, ctx),
            ChainCtx::Pull(ctx) => self.post_pull(qp, ctx),
        };
        posted.map_err(|(error, chain)| {
            trace_svcrdma_sq_post_err(&self.params.peer, error.to_errno());
            self.retract(qp, chain);
            error
        })
    }

    /// Implements [`Self::post`] for a chain that had to wait.
    #[cold]
    fn post_late(
        &self,
        qp: &Qp<Endpoint>,
        mut chain: ChainCtx,
        reservation: Reservation,
    ) -> Result {
        *chain.reservation() = Some(reservation);
        self.post(qp, chain)
    }

    /// Frees the resources of a chain that was not posted.
    fn retract(&self, qp: &Qp<Endpoint>, chain: ChainCtx) {
        match chain {
            ChainCtx::Reply(ctx) => self.put_send_ctx(ctx),
            ChainCtx::Pull(ctx) => self.drop_pull(qp, ctx),
        }
    }

    /// Frees the queued chains of a closed Send Queue.
    pub(super) fn clear_backlog(&self, qp: &Qp<Endpoint>) {
        while let Some(waiting) = self.sq.take_waiting() {
            self.retract(qp, waiting.chain);
        }
    }
}
