// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory that the server may reach: regions, and those of a request (RFC 8166, section 3.4).
//!
//! ```text
//!   pool ──map──▶ Chunks of a request ──Send chain registers──▶ the server has the handles
//!    ▲                                                              │
//!    │  recycle    fenced:  Send With Invalidate names it, or ──────┤
//!    └──────────────────    a chain of LOCAL_INV completes, or ─────┤
//!                           the connection is drained ──────────────┘
//! ```
//!
//! An RPC completes, and a request gives its memory back, only when all of its regions are
//! fenced.

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::{
    kapi::{
        ext::{
            completion::Done,
            memory::{
                MemSeg,
                MemSegs, //
            }, //
        },
        rdma::{
            mr::{
                Mr,
                MrList, //
            },
            pd::Pd,
            qp::Unposted,
            recv::Invalidated,
            Access, //
        },
        trace::{
            trace_xprtrdma_frwr_alloc,
            trace_xprtrdma_mr_map,
            trace_xprtrdma_mr_reminv,
            trace_xprtrdma_mr_unmap, //
        },
    },
    xdr::{
        limits::ClientLimits,
        segment::Segment,
        units::{
            Handle,
            Offset, //
        }, //
    },
};

/// Where a request is on its way.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// No Call of it is with the server, as far as this connection goes.
    #[default]
    Idle,
    /// The Call has been sent, and no Reply has come.
    Outstanding,
}

/// The chunks of a request, each a list of registrations in the order of the header.
#[derive(Default)]
pub(super) struct Chunks {
    stage: Stage,
    /// What the server reads.
    pub(super) read: MrList,
    /// Where the server puts the payload of the Reply.
    pub(super) write: MrList,
    /// Where the server puts the whole Reply.
    pub(super) reply: MrList,
    /// Regions of a Call that was answered, and that could not be invalidated: the connection is
    /// lost, and they are fenced once it is drained.
    unfenced: MrList,
}

impl Chunks {
    /// The Call has been sent: from here on a Reply is for it.
    pub(super) fn set_outstanding(&mut self) {
        self.stage = Stage::Outstanding;
    }

    /// Whether a Reply is due. One that comes otherwise is not for this Call.
    pub(super) fn is_outstanding(&self) -> bool {
        self.stage == Stage::Outstanding
    }

    /// Takes all registrations. No Reply is due then.
    pub(super) fn take(&mut self) -> MrList {
        self.stage = Stage::Idle;
        let mut all = core::mem::take(&mut self.unfenced);
        all.append(&mut self.read);
        all.append(&mut self.write);
        all.append(&mut self.reply);
        all
    }

    /// Keeps regions until the connection is drained.
    pub(super) fn keep_unfenced(&mut self, mut list: MrList) {
        self.unfenced.append(&mut list);
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
pub(super) fn note_invalidated(list: &mut MrList, invalidated: Invalidated<'_>) {
    // Only one of them can have that handle; a handle of none is not ours to care about.
    let _ = list.try_for_each(|mr| {
        if mr.invalidated_by(invalidated) {
            trace_xprtrdma_mr_reminv(mr);
        }
        Ok(())
    });
}

/// The regions of a connection, and which of them are idle.
#[pin_data]
pub(super) struct MrPool {
    #[pin]
    regions: SpinLock<Regions>,
    pages_per_segment: u32,
    segments: usize,
    /// The most regions of one request.
    per_request: usize,
    /// The most regions there may be.
    most: usize,
    pd: Arc<Pd>,
}

struct Regions {
    idle: MrList,
    /// How many there are, idle or not.
    total: usize,
}

impl MrPool {
    /// An empty pool.
    pub(super) fn new(pd: Arc<Pd>, limits: &ClientLimits) -> impl PinInit<Self> {
        let per_request = limits.registrations() as usize;
        let segments = limits.segments as usize;
        let pages_per_segment = limits.pages_per_segment;
        let most = limits.requests as usize * 2 + per_request;
        pin_init!(Self {
            regions <- new_spinlock!(Regions { idle: MrList::new(), total: 0 }),
            pages_per_segment,
            segments,
            per_request,
            most,
            pd,
        })
    }

    /// The most regions that one request takes.
    pub(super) fn per_request(&self) -> usize {
        self.per_request
    }

    /// Registers nothing yet, but makes `segs` into a chunk: takes idle regions, as many as it
    /// needs, and maps.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when there are not enough idle regions. `EMSGSIZE` when a chunk would have more
    /// segments than a header has room for. `ENOMEM` when there is no room in the IOMMU, `EIO` when
    /// the device cannot. What was mapped is in `chunk`.
    pub(super) fn map_chunk<'a>(
        &self,
        segs: impl Iterator<Item = MemSeg<'a>>,
        access: Access,
        tag: u32,
        chunk: &mut MrList,
    ) -> Result {
        let mut segs = MemSegs::new(segs);
        while segs.front().is_some() {
            if chunk.len() >= self.segments {
                return Err(EMSGSIZE);
            }
            let mut mr = self.regions.lock().idle.pop().ok_or(EAGAIN)?;
            let mapped = mr.map(&mut segs, access, tag);
            trace_xprtrdma_mr_map(&mr);
            chunk.push(mr);
            mapped?;
        }
        Ok(())
    }

    /// Unmaps the regions in `list` that are fenced, and puts them in the pool. The others are
    /// left.
    pub(super) fn recycle(&self, list: &mut MrList) {
        let mut idle = MrList::new();
        for _ in 0..list.len() {
            let Some(mut mr) = list.pop() else {
                break;
            };
            match mr.unmap() {
                Ok(()) => {
                    trace_xprtrdma_mr_unmap(&mr);
                    idle.push(mr);
                }
                Err(_) => list.push(mr),
            }
        }
        if !idle.is_empty() {
            self.regions.lock().idle.append(&mut idle);
        }
    }

    /// Whether there are idle regions for any request there can be.
    pub(super) fn has_idle(&self) -> bool {
        self.regions.lock().idle.len() >= self.per_request
    }

    /// Makes regions until there are `idle` idle ones; returns how many it made. May sleep.
    ///
    /// # Errors
    ///
    /// What the device says, or `ENOMEM`; those made before are in the pool.
    pub(super) fn fill(&self, idle: usize) -> Result<usize> {
        let mut made = 0;
        loop {
            {
                let regions = self.regions.lock();
                if regions.idle.len() >= idle || regions.total >= self.most {
                    return Ok(made);
                }
            }
            let mr = Mr::new(&self.pd, self.pages_per_segment)?;
            trace_xprtrdma_frwr_alloc(&mr);
            let mut regions = self.regions.lock();
            regions.idle.push(mr);
            regions.total += 1;
            made += 1;
        }
    }
}

/// Where the task that gives an RPC up waits until its regions are fenced.
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

    /// Makes it ready to be waited for. The task that waits is the only one to call this.
    pub(super) fn restart(&self) {
        self.done.reset();
    }

    /// Lets the task go on; `left` are the regions that could not be fenced.
    pub(super) fn finish(&self, left: MrList) {
        *self.left.lock() = left;
        self.done.complete();
    }

    /// Waits; returns the regions that could not be fenced. Sleeps.
    pub(super) fn wait(&self) -> MrList {
        self.done.wait();
        core::mem::take(&mut *self.left.lock())
    }
}
