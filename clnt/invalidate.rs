// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The end of the server's access to regions that it did not invalidate (RFC 8166, section 3.4).
//!
//! ```text
//!   Reply ──▶ LOCAL_INV for what is left ──done──▶ After::Complete: the RPC completes
//!   RPC given up ──▶ LOCAL_INV for all   ──done──▶ After::Wake: the task continues
//!                          └──failed──▶ the connection is lost; once drained, all is fenced
//! ```

use core::pin::Pin;

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use super::{
    chunks::Fence,
    conn::Conn,
    transport::ClntXprt, //
};
use crate::kapi::{
    rdma::{
        cq::{
            impl_has_cqe,
            Cqe, //
        },
        mr::MrList,
        qp::Qp,
        recv::RecvBox, //
    },
    sunrpc::rqst::Pinned,
    trace::{
        trace_xprtrdma_mr_localinv,
        trace_xprtrdma_post_linv_err, //
    },
};

/// A Reply that is being delivered to its RPC.
pub(super) struct PendingReply {
    /// The RPC.
    pub(super) rqst: Pinned<ClntXprt>,
    /// What was received.
    pub(super) buffer: RecvBox<()>,
    /// What becomes of the RPC.
    pub(super) delivery: Delivery,
}

/// What becomes of an RPC.
pub(super) enum Delivery {
    /// Its Reply is in the receive buffer at `message`, with `placed` bytes in the pages.
    Inline {
        /// Where the message is in the receive buffer.
        message: core::ops::Range<usize>,
        /// The length of what the server placed.
        placed: u32,
    },
    /// Its Reply is where the Reply chunk was offered.
    Placed {
        /// The length of the message.
        len: u32,
    },
    /// It fails with `EIO`, whatever the server did: that is what the layers above know. Trace
    /// events tell more.
    Failed,
}

/// What happens when regions are fenced.
pub(super) enum After {
    /// The RPC completes.
    Complete(PendingReply),
    /// The task that gave the RPC up continues.
    Wake(Arc<Fence>),
}

/// What a posted chain of LOCAL_INV owns.
#[pin_data]
pub(super) struct InvCtx {
    #[pin]
    cqe: Cqe<Self>,
    #[pin]
    mrs: SpinLock<MrList>,
    after: Option<After>,
}

impl_has_cqe! {
    impl HasCqe for InvCtx { self.cqe }
}

impl InvCtx {
    /// Makes one. May sleep.
    pub(super) fn new() -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                cqe <- Cqe::new(),
                mrs <- new_spinlock!(MrList::new()),
                after: None,
            }),
            GFP_KERNEL,
        )
    }

    /// Takes out what it held for the chain.
    pub(super) fn take(mut self: Pin<&mut Self>) -> (MrList, Option<After>) {
        let list = core::mem::take(&mut *self.mrs.lock());
        (list, self.as_mut().project().after.take())
    }
}

impl Conn {
    /// Ends the server's access to the regions in `list`, however long that takes. Sleeps.
    ///
    /// For a request that is given up without a Reply. `fence` is the request's.
    pub(super) fn fence(self: &Arc<Self>, qp: &Qp<Conn>, mut list: MrList, fence: &Arc<Fence>) {
        self.recycle(&mut list);
        if list.is_empty() {
            return;
        }
        if let Some(xprt) = self.xprt() {
            xprt.stats.local_invs.add(list.len());
        }
        fence.restart();
        let mut list = match self.invalidate(qp, list, After::Wake(fence.clone())) {
            Ok(()) => fence.wait(),
            Err((list, _)) => list,
        };
        self.recycle(&mut list);
        if !list.is_empty() {
            // The connection is broken. When it is drained, nobody reaches the memory.
            self.lost();
            self.wait_closed();
        }
    }

    /// Posts a chain that invalidates the regions in `list`; `after` happens when it is done.
    ///
    /// # Errors
    ///
    /// The connection is broken: both are handed back.
    pub(super) fn invalidate(
        self: &Arc<Self>,
        qp: &Qp<Conn>,
        list: MrList,
        after: After,
    ) -> Result<(), (MrList, Option<After>)> {
        let Some(mut ctx) = self.take_inv() else {
            return Err((list, Some(after)));
        };
        *ctx.as_mut().project().after = Some(after);
        *ctx.mrs.lock() = list;
        let posted = qp.post::<InvCtx>(ctx, |ctx, chain| {
            ctx.mrs.lock().try_for_each(|mr| {
                trace_xprtrdma_mr_localinv(mr);
                chain.local_inv(mr)
            })
        });
        let Err(failed) = posted else {
            return Ok(());
        };
        trace_xprtrdma_post_linv_err(failed.error.to_errno());
        let unposted = failed.unposted();
        let mut ctx = failed.owner;
        let (mut list, after) = ctx.as_mut().take();
        list.retract(unposted);
        self.give_back(|pools| pools.inv_done(ctx));
        Err((list, after))
    }
}
