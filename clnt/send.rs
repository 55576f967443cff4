// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A Call on its way out: its Send and its regions are taken, and all of it is handed to the device
//! in one post, registrations first, the Send last.

use core::pin::Pin;

use kernel::prelude::*;

use super::{
    connect::Connection,
    marshal::{
        marshal,
        Marshal, //
    },
    mr_pool::Chunks,
    sendctx::SendCtx,
    transport::ClntXprt, //
};
use crate::kapi::{
    sunrpc::{
        errno::enotconn,
        rqst::Slot,
        send_lock::SendLocked, //
    },
    trace::{
        trace_xprtrdma_marshal_failed,
        trace_xprtrdma_mr_fastreg,
        trace_xprtrdma_post_send,
        trace_xprtrdma_post_send_err,
        Task, //
    },
};

/// Sends the Call in `slot` on `connection`.
///
/// # Errors
///
/// * `EAGAIN`: out of Sends or regions; the sender is woken when there are some.
/// * `ENOBUFS`, `ENOMEM`: out of something else.
/// * `ENOTCONN`: the connection is broken.
/// * Anything else: the Call cannot be sent at all.
pub(super) fn send_call(
    xprt: &SendLocked<'_, ClntXprt>,
    connection: &Connection,
    slot: &Slot<ClntXprt>,
) -> Result {
    let conn = connection.conn();
    let Some(ctx) = conn.take_send() else {
        xprt.stats.send_waits.add(1);
        return wait_for(xprt, || conn.has_send());
    };
    let mut chunks = slot.chunks.lock();
    let Err((error, ctx)) = send(xprt, connection, slot, &mut chunks, ctx) else {
        chunks.set_outstanding();
        return Ok(());
    };
    conn.put_send(ctx);
    let mut list = chunks.take();
    drop(chunks);
    conn.mrs.recycle(&mut list);
    if error == EAGAIN {
        conn.refill_mrs();
        return wait_for(xprt, || conn.mrs.has_idle());
    }
    Err(error)
}

/// Has the sender come again when something is given back, or at once if it is there already.
fn wait_for(xprt: &SendLocked<'_, ClntXprt>, there: impl Fn() -> bool) -> Result {
    xprt.wait_for_buffer_space();
    // What came back before the line above has woken nobody.
    if there() {
        xprt.write_space();
    }
    Err(EAGAIN)
}

/// Sends the Call in `slot`, from `ctx`, with its chunks in `chunks`, which is empty.
///
/// # Errors
///
/// As for [`send_call`]; `ctx` is handed back, and `chunks` may have regions to be recycled.
fn send(
    xprt: &SendLocked<'_, ClntXprt>,
    connection: &Connection,
    slot: &Slot<ClntXprt>,
    chunks: &mut Chunks,
    mut ctx: Pin<KBox<SendCtx>>,
) -> Result<(), (Error, Pin<KBox<SendCtx>>)> {
    let (conn, stats) = (connection.conn(), &xprt.stats);
    let with = Marshal {
        thresholds: conn.thresholds(),
        credits: conn.limits().requests,
        mrs: &conn.mrs,
        stats,
    };
    if let Err(error) = marshal(&with, slot, chunks, ctx.as_mut()) {
        ctx.as_mut().clear();
        stats.failed_marshal.add(1);
        trace_xprtrdma_marshal_failed(Task::of(slot), slot.xid(), error.to_errno());
        return Err((error, ctx));
    }
    slot.note_sent();
    let posted = connection.qp().post::<SendCtx>(ctx, |ctx, chain| {
        chunks.try_for_each(|mr| {
            trace_xprtrdma_mr_fastreg(mr);
            chain.reg_mr(mr)
        })?;
        chain.send(ctx.message())?;
        trace_xprtrdma_post_send(Task::of(slot), chain.cid(), chain.wrs());
        Ok(())
    });
    posted.map_err(|failed| {
        trace_xprtrdma_post_send_err(Task::of(slot), failed.error.to_errno());
        chunks.retract(failed.unposted());
        let mut ctx = failed.owner;
        ctx.as_mut().clear();
        (enotconn(), ctx)
    })
}
