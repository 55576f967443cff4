// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Sending a Call, and completions of Sends. The Call takes a Send and its regions from the pools,
//! and one post passes all its Work Requests to the device: the registrations first, the Send last
//! (RFC 8166, section 4.3).

use core::pin::Pin;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    chunks::Chunks,
    connect::Conn,
    endpoint::Endpoint,
    marshal::{
        marshal,
        plan,
        Marshal,
        Plan, //
    },
    pools::{
        Shortage,
        Wait, //
    },
    sendctx::SendCtx,
    stats::Sending,
    transport::{
        ClntXprt,
        Ended, //
    }, //
};
use crate::kapi::{
    rdma::{
        cq::{
            Completion,
            Wc,
            WcError, //
        },
        mr::MrList,
        qp::Qp, //
    },
    sunrpc::{
        errno::{
            enobufs,
            enotconn, //
        },
        rqst::Slot,
        send_lock::SendLocked, //
    },
    trace::{
        trace_xprtrdma_marshal_failed,
        trace_xprtrdma_mr_fastreg,
        trace_xprtrdma_post_send,
        trace_xprtrdma_post_send_err,
        trace_xprtrdma_wc_send,
        Task, //
    },
};

/// Sends the Call in `slot` on `conn`. May sleep.
///
/// # Errors
///
/// * `EAGAIN`: a Send, a region, a Receive or room in the Send Queue is short; the sender is woken
///   when one is returned.
/// * `ENOBUFS`, `ENOMEM`: memory or room in the IOMMU is short; the sender retries after a delay.
/// * `ENOTCONN`: the connection is broken.
/// * Anything else: the Call cannot be sent at all.
// Its only caller is the operation of sunrpc.
#[inline(always)]
pub(super) fn send_call(
    xprt: &SendLocked<'_, ClntXprt>,
    conn: &Conn,
    slot: &Slot<ClntXprt>,
) -> Result {
    let ep = conn.ep();
    let mut regions = MrList::new();
    let (plan, ctx) = loop {
        let limits = ep.thresholds();
        let pages = ep.limits().pages_per_segment;
        let roundup = || ep.negotiation.expects_roundup();
        let plan = plan(xprt, limits, pages, roundup, slot)
            .inspect_err(|error| marshal_failed(xprt, slot, *error))?;
        let shortage = match ep.try_take(plan.regions, &mut regions) {
            Ok(ctx) => break (plan, ctx),
            Err(shortage) => shortage,
        };
        let ctx = ep
            .take_more(xprt, conn.qp(), plan.regions, &mut regions, shortage)
            .map_err(retried)?;
        // `take_more` may have requested smaller Receives from the server. Plan the Call again if
        // it may be too long for them.
        if ep.thresholds().send >= limits.send {
            break (plan, ctx);
        }
        ep.return_to_pools(|pools| pools.return_unused(ctx, 0, &mut regions));
    };
    let mut chunks = slot.chunks.lock();
    let result = send(xprt, conn, slot, &plan, &mut regions, &mut chunks, ctx);
    let Err((error, ctx)) = result else {
        chunks.set_outstanding(slot.xid(), slot.encoding());
        drop(chunks);
        if !regions.is_empty() {
            ep.return_to_pools(|pools| pools.unused(&mut regions));
        }
        return Ok(());
    };
    let registered = chunks.count();
    let mut list = chunks.take();
    ep.return_to_pools(|pools| pools.return_unused(ctx, registered, &mut regions));
    ep.recycle(&mut list);
    Err(error)
}

impl Endpoint {
    /// Takes the resources of a Call from the pools: a Send, and `count` regions, which it appends
    /// to `regions`. If a resource is short, takes nothing and returns which one. Does not sleep.
    #[inline(always)]
    fn try_take(
        self: &Arc<Self>,
        count: usize,
        regions: &mut MrList,
    ) -> Result<Pin<KBox<SendCtx>>, Shortage> {
        let mut pools = self.pools.lock();
        let ctx = pools.take(count, regions)?;
        self.watch(&mut pools);
        Ok(ctx)
    }

    /// Allocates or waits for the resource that is short, and takes all of them as
    /// [`Self::try_take`] does. May sleep, and may send messages about the size of Receives.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the sender is woken as soon as resources are available; `ENOBUFS` or `ENOMEM` if
    /// it has to retry after a delay. Any other error means that the connection is broken.
    #[cold]
    fn take_more(
        self: &Arc<Self>,
        xprt: &SendLocked<'_, ClntXprt>,
        qp: &Qp<Endpoint>,
        count: usize,
        regions: &mut MrList,
        mut shortage: Shortage,
    ) -> Result<Pin<KBox<SendCtx>>> {
        // Each iteration allocates the resource that was short, or some of it.
        for _ in 0..4 {
            match shortage {
                Shortage::Receives => {
                    // Callbacks were allowed while this connection was being made.
                    if xprt.is_bc_allowed() {
                        self.allow_bc();
                    }
                    self.post_receives(qp, true)?;
                    self.update_sizes(xprt, qp);
                }
                Shortage::Send => match self.alloc_send(false) {
                    Ok(()) => (),
                    Err(_) if self.pools.lock().has_sends() => break,
                    Err(_) => return Err(enobufs()),
                },
                Shortage::Regions | Shortage::Room => break,
            }
            match self.try_take(count, regions) {
                Ok(ctx) => return Ok(ctx),
                Err(another) => shortage = another,
            }
        }
        if shortage == Shortage::Regions {
            self.refill_regions(0);
        }
        Sending::of(xprt).send_waits.add(1);
        xprt.wait_for_buffer_space();
        // A resource that was returned before the line above has not woken the sender.
        let wait = self.pools.lock().starve(count);
        if wait != Wait::Woken {
            xprt.write_space();
        }
        Err(match wait {
            Wait::Delay => enobufs(),
            Wait::Needless | Wait::Woken => EAGAIN,
        })
    }
}

/// Converts an error of [`Endpoint::take_more`] for sunrpc. After a shortage sunrpc retries the
/// Call on this connection. Any other error is one of the device. It becomes `ENOTCONN`: the
/// connection is closed, and the Call is sent on the next one.
fn retried(error: Error) -> Error {
    if [EAGAIN, ENOMEM, enobufs()].contains(&error) {
        error
    } else {
        enotconn()
    }
}

/// Counts and traces a Call that was not sent because of `error`.
fn marshal_failed(xprt: &SendLocked<'_, ClntXprt>, slot: &Slot<ClntXprt>, error: Error) {
    Sending::of(xprt).failed_marshal.add(1);
    trace_xprtrdma_marshal_failed(Task::of(slot), slot.xid(), error.to_errno());
}

/// Sends the Call in `slot` as planned, from `ctx`, with its chunks in `chunks`, which is empty.
///
/// # Errors
///
/// Those of [`send_call`]. The error contains `ctx`, and `chunks` may contain regions to be
/// recycled.
fn send(
    xprt: &SendLocked<'_, ClntXprt>,
    conn: &Conn,
    slot: &Slot<ClntXprt>,
    plan: &Plan,
    regions: &mut MrList,
    chunks: &mut Chunks,
    mut ctx: Pin<KBox<SendCtx>>,
) -> Result<(), (Error, Pin<KBox<SendCtx>>)> {
    let ep = conn.ep();
    let with = Marshal {
        credits: ep.limits().requests,
        scratch: ep.scratch(),
        stats: Sending::of(xprt),
    };
    let octets = match marshal(&with, plan, slot, regions, chunks, ctx.as_mut()) {
        Ok(octets) => octets,
        Err(error) => {
            ctx.as_mut().clear();
            marshal_failed(xprt, slot, error);
            return Err((error, ctx));
        }
    };
    slot.note_sent(xprt);
    ctx.as_mut().set_registered(chunks.count());
    let posted = conn.qp().post::<SendCtx>(ctx, |ctx, chain| {
        chunks.try_for_each(|mr| {
            trace_xprtrdma_mr_fastreg(mr);
            chain.reg_mr(mr)
        })?;
        chain.send(ctx.message())?;
        trace_xprtrdma_post_send(Task::of(slot), chain.cid(), chain.wrs());
        Ok(())
    });
    let sent = posted.map(|()| ep.status.note_sent(octets, chunks.read_len()));
    sent.map_err(|failed| {
        trace_xprtrdma_post_send_err(Task::of(slot), failed.error.to_errno());
        chunks.retract(failed.unposted());
        let mut ctx = failed.owner;
        ctx.as_mut().clear();
        (enotconn(), ctx)
    })
}

impl Endpoint {
    /// Puts a Send that has completed, or belongs to no RPC and was not posted, back into its pool.
    #[inline(always)]
    pub(super) fn put_send(&self, mut ctx: Pin<KBox<SendCtx>>) {
        let registered = ctx.as_mut().clear();
        self.return_to_pools(|pools| {
            if ctx.is_bc() {
                pools.bc_send_done(ctx);
            } else {
                pools.send_done(ctx, registered);
            }
        });
    }
}

impl Completion for SendCtx {
    type Handler = Endpoint;

    fn done(this: Pin<KBox<Self>>, qp: &Qp<Endpoint>, result: Result<Wc, WcError>) {
        let ep = qp.handler();
        let is_bc = this.is_bc();
        match result {
            Ok(wc) => {
                trace_xprtrdma_wc_send(wc.cid(), 0, 0);
                if is_bc {
                    ep.negotiation.note_delivered();
                }
                ep.put_send(this);
                if is_bc {
                    ep.send_reports(qp);
                }
            }
            Err(e) => {
                trace_xprtrdma_wc_send(e.cid(), e.status(), e.vendor());
                ep.put_send(this);
                ep.status.traffic.failed_completions.add(1);
                ep.fail(Ended::Completion);
            }
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
