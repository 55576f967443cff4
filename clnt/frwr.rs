// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory that the server may reach: registrations, and their end (RFC 8166, section 3.4).
//!
//! ```text
//!   pool ──map──▶ Chunks of a request ──Send chain registers──▶ the server has the handles
//!    ▲                                                              │
//!    │  unmap      fenced:  Send With Invalidate names it, or ──────┤
//!    └──────────────────    a chain of LOCAL_INV completes, or ─────┤
//!                           the connection is drained ──────────────┘
//! ```
//!
//! An RPC completes, and a request gives its memory back, only when all of its regions are
//! fenced.

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
    engine::Engine,
    reply::Answer, //
};
use crate::{
    kapi::{
        ext::completion::Done,
        rdma::{
            cq::{
                impl_has_cqe,
                Completion,
                Cqe,
                Wc,
                WcError, //
            },
            mr::{
                Mr,
                MrList, //
            },
            qp::{
                Qp,
                Unposted, //
            },
            recv::Invalidated,
            wr::Chain,
            Access,
            MemSeg, //
        },
        trace::{
            trace_xprtrdma_frwr_alloc,
            trace_xprtrdma_mr_localinv,
            trace_xprtrdma_mr_map,
            trace_xprtrdma_mr_reminv,
            trace_xprtrdma_mr_unmap,
            trace_xprtrdma_post_linv_err,
            trace_xprtrdma_wc_li_done, //
        },
    },
    xdr::{
        limits::{
            CHUNKS_PER_RPC,
            CLIENT_SEND_SGES,
            MAX_CHUNK_SEGMENTS, //
        },
        segment::Segment,
        units::{
            Handle,
            Offset, //
        }, //
    },
};

// What an RPC is planned with fits the chain that registers and sends it.
const _: () = assert!((MAX_CHUNK_SEGMENTS * CHUNKS_PER_RPC) as usize <= Chain::MAX_MR);
const _: () = assert!(CLIENT_SEND_SGES as usize <= Chain::MAX_SGE);

/// The chunks of a request, each a list of registrations in the order of the header.
#[derive(Default)]
pub(super) struct Chunks {
    /// Whether the Call has been sent and no Reply has come. Any other is not for this Call.
    pub(super) awaits_reply: bool,
    /// What the server reads.
    pub(super) read: MrList,
    /// Where the server puts the payload of the Reply.
    pub(super) write: MrList,
    /// Where the server puts the whole Reply.
    pub(super) reply: MrList,
}

impl Chunks {
    /// Takes all registrations. No Reply is awaited then.
    pub(super) fn take(&mut self) -> MrList {
        self.awaits_reply = false;
        let mut all = MrList::new();
        all.append(&mut self.read);
        all.append(&mut self.write);
        all.append(&mut self.reply);
        all
    }

    /// Calls `f` with every registration, until one fails.
    pub(super) fn try_for_each(&mut self, mut f: impl FnMut(&mut Mr) -> Result) -> Result {
        self.read.try_for_each(&mut f)?;
        self.write.try_for_each(&mut f)?;
        self.reply.try_for_each(&mut f)
    }

    /// Takes back that a chain, which was not posted, was to register them.
    pub(super) fn retract(&mut self, unposted: Unposted) {
        for list in [&mut self.read, &mut self.write, &mut self.reply] {
            list.retract(unposted);
        }
    }
}

/// The segments of a chunk as they are in the header.
pub(super) fn segments(list: &MrList) -> impl Iterator<Item = Segment> + '_ {
    list.iter().map(|mr| Segment {
        handle: Handle(mr.handle()),
        length: mr.length(),
        offset: Offset(mr.offset()),
    })
}

/// The length of a chunk in bytes.
pub(super) fn chunk_len(list: &MrList) -> usize {
    list.iter().map(|mr| mr.length() as usize).sum()
}

/// Notes in `list` what the server invalidated.
pub(super) fn note_invalidated(list: &mut MrList, invalidated: Invalidated) {
    // Only one of them can have that handle; a handle of none is not ours to care about.
    let _ = list.try_for_each(|mr| {
        if mr.invalidated_by(invalidated) {
            trace_xprtrdma_mr_reminv(mr);
        }
        Ok(())
    });
}

/// Memory regions that are in no request.
pub(super) struct MrPool {
    idle: MrList,
    /// How many there are, in the pool or not.
    total: usize,
}

impl MrPool {
    /// An empty pool.
    pub(super) const fn new() -> Self {
        Self {
            idle: MrList::new(),
            total: 0,
        }
    }
}

impl Engine {
    /// Registers nothing yet, but makes `segs` into a chunk: takes idle regions, as many as it
    /// needs, and maps.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when there are not enough idle regions: more are on their way. `EMSGSIZE` when
    /// a chunk would have more segments than a header has room for. `ENOMEM` when there is no
    /// room in the IOMMU, `EIO` when the device cannot. What was mapped is in `chunk`.
    pub(super) fn map_chunk<'a>(
        self: &Arc<Self>,
        segs: impl Iterator<Item = MemSeg<'a>>,
        access: Access,
        tag: u32,
        chunk: &mut MrList,
    ) -> Result {
        let mut segs = segs.peekable();
        while segs.peek().is_some() {
            if chunk.len() >= self.limits().segments as usize {
                return Err(EMSGSIZE);
            }
            let Some(mut mr) = self.mrs().lock().idle.pop() else {
                self.refill_mrs();
                return Err(EAGAIN);
            };
            let mapped = mr.map(&mut segs, access, tag);
            trace_xprtrdma_mr_map(&mr);
            chunk.push(mr);
            mapped?;
        }
        Ok(())
    }

    /// Unmaps the regions in `list` that are fenced, and puts them in the pool. The others are
    /// left.
    pub(super) fn recycle_mrs(&self, list: &mut MrList) {
        for _ in 0..list.len() {
            let Some(mut mr) = list.pop() else {
                break;
            };
            match mr.unmap() {
                Ok(()) => {
                    trace_xprtrdma_mr_unmap(&mr);
                    self.mrs().lock().idle.push(mr);
                }
                Err(_) => list.push(mr),
            }
        }
    }

    /// Whether there are idle regions for any request there can be.
    pub(super) fn has_idle_mrs(&self) -> bool {
        self.mrs().lock().idle.len() >= self.limits().registrations() as usize
    }

    /// Makes regions until there are `idle` idle ones; returns how many it made. May sleep.
    ///
    /// # Errors
    ///
    /// What the device says, or `ENOMEM`; those made before are there.
    pub(super) fn make_mrs(&self, idle: usize) -> Result<usize> {
        let most = self.limits().requests as usize * 2 + self.limits().registrations() as usize;
        let mut made = 0;
        loop {
            {
                let pool = self.mrs().lock();
                if pool.idle.len() >= idle || pool.total >= most {
                    return Ok(made);
                }
            }
            let mr = Mr::new(self.pd(), self.limits().pages_per_segment)?;
            trace_xprtrdma_frwr_alloc(&mr);
            let mut pool = self.mrs().lock();
            pool.idle.push(mr);
            pool.total += 1;
            made += 1;
        }
    }

    /// Ends the server's access to the regions in `list`, however long that takes. Sleeps.
    ///
    /// For a request that is given up without a Reply. `fence` is the request's.
    pub(super) fn fence(self: &Arc<Self>, qp: &Qp<Engine>, mut list: MrList, fence: &Arc<Fence>) {
        self.recycle_mrs(&mut list);
        if list.is_empty() {
            return;
        }
        if let Some(xprt) = self.xprt() {
            xprt.stats.local_invs.add(list.len());
        }
        fence.done.reset();
        let mut list = match self.invalidate(qp, list, After::Wake(fence.clone())) {
            Ok(()) => {
                fence.done.wait();
                core::mem::take(&mut *fence.left.lock())
            }
            Err((list, _)) => list,
        };
        self.recycle_mrs(&mut list);
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
        &self,
        qp: &Qp<Engine>,
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
        let mut list = core::mem::take(&mut *ctx.mrs.lock());
        list.retract(unposted);
        let after = ctx.as_mut().project().after.take();
        self.put_inv(ctx);
        Err((list, after))
    }
}

/// Where one who waits for a fence waits.
#[pin_data]
pub(super) struct Fence {
    #[pin]
    done: Done,
    /// Regions that could not be fenced.
    #[pin]
    left: SpinLock<MrList>,
}

impl Fence {
    /// One that nobody waits for.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            done <- Done::new(),
            left <- new_spinlock!(MrList::new()),
        })
    }
}

/// What happens when regions are fenced.
pub(super) enum After {
    /// The RPC completes.
    Complete(Answer),
    /// Somebody goes on.
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
}

impl Completion for InvCtx {
    type Handler = Engine;

    fn done(mut this: Pin<KBox<Self>>, qp: &Qp<Engine>, result: Result<Wc, WcError>) {
        let engine = qp.handler();
        let mut list = core::mem::take(&mut *this.mrs.lock());
        let after = this.as_mut().project().after.take();
        engine.put_inv(this);
        match result {
            Ok(wc) => {
                trace_xprtrdma_wc_li_done(wc.cid(), 0, 0);
                let _ = list.try_for_each(|mr| {
                    mr.completed_by(&wc);
                    Ok(())
                });
                engine.recycle_mrs(&mut list);
            }
            Err(e) => {
                trace_xprtrdma_wc_li_done(e.cid(), e.status(), e.vendor());
                engine.lost();
            }
        }
        match after {
            Some(After::Complete(answer)) => engine.fenced(answer, list),
            Some(After::Wake(fence)) => {
                *fence.left.lock() = list;
                fence.done.complete();
            }
            None => (),
        }
    }
}
