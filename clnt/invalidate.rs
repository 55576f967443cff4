// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Local invalidation of regions that the server did not invalidate (RFC 8166, section 3.4).
//!
//! ```text
//!   Reply ──▶ LOCAL_INV for what is left ──done──▶ After::Complete: the RPC completes
//!   RPC given up ──▶ LOCAL_INV for all   ──done──▶ After::Wake: the task continues
//!                          └──failed──▶ the connection is lost; once drained, all is fenced
//! ```

use core::pin::Pin;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    chunks::Fence,
    endpoint::Endpoint,
    transport::{
        ClntXprt,
        Ended, //
    }, //
};
use crate::kapi::{
    ext::spinlock::{
        new_spinlock,
        SpinLock, //
    },
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
    }, //
};

/// A Reply that is being delivered to its RPC.
pub(super) struct PendingReply {
    /// The RPC.
    pub(super) rqst: Pinned<ClntXprt>,
    /// The Receive buffer of the Reply.
    pub(super) buffer: RecvBox<()>,
    /// The outcome of the RPC.
    pub(super) delivery: Delivery,
}

/// The outcome of an RPC.
pub(super) enum Delivery {
    /// The Reply is in the Receive buffer, with `placed` bytes in the pages.
    Inline {
        /// Where the message starts in the Receive buffer.
        start: usize,
        /// The number of bytes that the server placed.
        placed: u32,
    },
    /// The Reply is in the memory of the Reply chunk.
    Placed {
        /// The length of the message.
        len: u32,
    },
    /// The RPC fails with `EIO`, whatever the server did, because the layers above expect that.
    /// Trace events have the reason.
    Failed,
}

/// The action when regions are fenced.
pub(super) enum After {
    /// Complete the RPC.
    Complete(PendingReply),
    /// Wake the task that gave up the RPC.
    Wake(Arc<Fence>),
}

/// The owner of a posted chain of LOCAL_INV.
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
    /// Allocates the owner of a chain. May sleep.
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

    /// Removes the regions and the action of the chain.
    pub(super) fn take(mut self: Pin<&mut Self>) -> (MrList, Option<After>) {
        let list = core::mem::take(&mut *self.mrs.lock());
        (list, self.as_mut().project().after.take())
    }
}

impl Endpoint {
    /// Ends the server's access to the regions in `list`, however long that takes. Sleeps.
    ///
    /// Called for a request that is given up without a Reply, with that request's `fence`.
    pub(super) fn fence(self: &Arc<Self>, qp: &Qp<Endpoint>, mut list: MrList, fence: &Arc<Fence>) {
        self.recycle(&mut list);
        if list.is_empty() {
            return;
        }
        if let Some(xprt) = self.xprt() {
            xprt.stats.local_invs.add(list.len());
        }
        let mut list = match self.invalidate(qp, list, After::Wake(fence.clone())) {
            Ok(()) => fence.wait(),
            Err((list, _)) => list,
        };
        self.recycle(&mut list);
        if !list.is_empty() {
            // The connection is broken. Once it is drained, the server cannot access the memory,
            // and if the device refuses to drain it, dropping the regions ends the access.
            self.fail(Ended::Completion);
            self.wait_closed();
        }
    }

    /// Posts a chain that invalidates the regions in `list`, and performs `after` when it
    /// completes.
    ///
    /// # Errors
    ///
    /// The chain was not posted, so the caller has to end the connection. The error contains both
    /// arguments.
    pub(super) fn invalidate(
        self: &Arc<Self>,
        qp: &Qp<Endpoint>,
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
        self.return_to_pools(|pools| pools.inv_done(ctx));
        Err((list, after))
    }
}
