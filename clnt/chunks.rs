// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The regions of a request: memory that the server can access (RFC 8166, section 3.4).
//!
//! ```text
//!   pool ──map──▶ Chunks of a request ──Send chain registers──▶ the server has the handles
//!    ▲                                                              │
//!    │  unmap      fenced:  Send With Invalidate names it, or ──────┤
//!    └──────────────────    a chain of LOCAL_INV completes, or ─────┤
//!                           the connection is drained ──────────────┘
//! ```
//!
//! An RPC completes, and a request releases its memory, only when all of its regions are fenced.

use core::ops::{
    Deref,
    DerefMut, //
};

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        lock::{
            mutex::MutexBackend,
            Guard, //
        },
        Mutex, //
    },
};

use super::backoff::Losses;
use crate::{
    kapi::{
        ext::{
            atomic::{
                Acquire,
                Atomic,
                Relaxed,
                Release, //
            },
            lend::LentSegs,
            memory::MemSeg,
            spinlock::{
                new_spinlock,
                SpinLock, //
            },
            wait::{
                new_waitqueue,
                WaitQueue, //
            }, //
        },
        rdma::{
            mr::{
                Mr,
                MrList, //
            },
            qp::Unposted,
            recv::Invalidated, //
        },
        sunrpc::rqst::Encoding,
        trace::{
            trace_xprtrdma_mr_map,
            trace_xprtrdma_mr_reminv,
            trace_xprtrdma_mr_unmap, //
        }, //
    },
    xdr::{
        segment::Segment,
        units::{
            Handle,
            Offset, //
        }, //
    }, //
};

/// The progress of a request.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// No Call of the request was sent on this connection, or its Reply has arrived.
    #[default]
    Idle,
    /// The Call was sent, and no Reply has arrived.
    Outstanding,
}

/// The lists of a header that a region may be in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkKind {
    /// The Read chunk: memory that the server reads.
    Read,
    /// The Write chunk: memory for the payload of the Reply.
    Write,
    /// The Reply chunk: memory for the whole Reply.
    Reply,
}

/// The chunks of a request: a Read chunk, and a Write chunk or a Reply chunk.
#[derive(Default)]
pub(super) struct Chunks {
    stage: Stage,
    /// The regions of all chunks in the order of the header.
    list: MrList,
    /// The number of regions in the Read chunk, which are the first of the list.
    reads: usize,
    /// Whether the other regions are the Reply chunk. Otherwise they are the Write chunk.
    is_reply: bool,
    /// Regions that could not be invalidated when the Reply arrived. The connection is lost, and
    /// they are fenced once it is drained.
    unfenced: MrList,
    /// The XID of the Call that was sent last.
    xid: u32,
    /// The encoding of that Call.
    encoding: Encoding,
    losses: Losses,
}

impl Chunks {
    /// Records that the Call `xid` was sent in this encoding, so that a Reply may arrive.
    pub(super) fn set_outstanding(&mut self, xid: u32, encoding: Encoding) {
        self.stage = Stage::Outstanding;
        self.xid = xid;
        self.encoding = encoding;
    }

    /// Returns whether the Call was sent in this encoding. sunrpc encodes a Call again once it has
    /// asked for a new connection, and a Reply may arrive before the old one is closed. That Reply
    /// matches neither the new sequence number of Kerberos nor a new layout of the buffers.
    pub(super) fn is_encoded_as(&self, encoding: Encoding) -> bool {
        self.encoding == encoding
    }

    /// Returns whether a Reply is due. Otherwise a Reply that arrives is a second one, or the Call
    /// was not sent on this connection.
    pub(super) fn is_outstanding(&self) -> bool {
        self.stage == Stage::Outstanding
    }

    /// Maps `segs` into a chunk of at most `max` segments. Each segment takes a region from `idle`,
    /// which is registered later. Returns the number of regions and of bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a chunk other than this one and the Read chunk already has regions; `EMSGSIZE`
    /// if `max` or the number of idle regions is too small; `ENOMEM` if the IOMMU has no room or
    /// the driver no memory; `EIO` if the device cannot map the memory. The chunk contains the
    /// regions that were mapped.
    pub(super) fn map<'a>(
        &mut self,
        kind: ChunkKind,
        mut segs: LentSegs<'a, impl Iterator<Item = MemSeg<'a>>>,
        tag: u32,
        max: u32,
        idle: &mut MrList,
    ) -> Result<(usize, usize)> {
        let others = match kind {
            ChunkKind::Read => 0,
            ChunkKind::Write | ChunkKind::Reply => self.reads,
        };
        let (before, mut bytes) = (self.list.len(), 0);
        if before > others && self.last_kind() != kind {
            return Err(EINVAL);
        }
        while !segs.is_empty() {
            if self.list.len() - others >= max as usize {
                return Err(EMSGSIZE);
            }
            let mut mr = idle.pop().ok_or(EMSGSIZE)?;
            let mapped = mr.map(&mut segs, tag);
            trace_xprtrdma_mr_map(&mr);
            self.list.push(mr);
            match kind {
                ChunkKind::Read => self.reads += 1,
                ChunkKind::Write => self.is_reply = false,
                ChunkKind::Reply => self.is_reply = true,
            }
            bytes += mapped?;
        }
        Ok((self.list.len() - before, bytes))
    }

    /// Returns the chunk of the last region, if there is one.
    fn last_kind(&self) -> ChunkKind {
        if self.list.len() == self.reads {
            ChunkKind::Read
        } else if self.is_reply {
            ChunkKind::Reply
        } else {
            ChunkKind::Write
        }
    }

    /// Returns the number of regions in a chunk.
    pub(super) fn len(&self, kind: ChunkKind) -> usize {
        match kind {
            ChunkKind::Read => self.reads,
            ChunkKind::Write | ChunkKind::Reply if self.is_reply == (kind == ChunkKind::Reply) => {
                self.list.len() - self.reads
            }
            ChunkKind::Write | ChunkKind::Reply => 0,
        }
    }

    /// Returns the regions of a chunk, in order.
    pub(super) fn regions(&self, kind: ChunkKind) -> impl Iterator<Item = &Mr> {
        let others = match kind {
            ChunkKind::Read => 0,
            ChunkKind::Write | ChunkKind::Reply => self.reads,
        };
        self.list.iter().skip(others).take(self.len(kind))
    }

    /// Returns the segments of a chunk for the transport header.
    pub(super) fn segments(&self, kind: ChunkKind) -> impl Iterator<Item = Segment> + '_ {
        self.regions(kind).map(segment)
    }

    /// Returns the region, and its chunk, if there is only one.
    pub(super) fn only(&self) -> Option<(ChunkKind, &Mr)> {
        let mr = self.first().filter(|_| self.list.len() == 1)?;
        Some((self.last_kind(), mr))
    }

    /// Returns the first region of the header.
    pub(super) fn first(&self) -> Option<&Mr> {
        self.list.iter().next()
    }

    /// Returns the length of the Read chunk in bytes.
    pub(super) fn read_len(&self) -> usize {
        match self.reads {
            0 => 0,
            _ => self
                .regions(ChunkKind::Read)
                .map(|mr| mr.length() as usize)
                .sum(),
        }
    }

    /// Removes all regions and returns them. No Reply is due afterwards.
    fn take(&mut self) -> MrList {
        self.stage = Stage::Idle;
        self.reads = 0;
        if self.list.is_empty() && self.unfenced.is_empty() {
            return MrList::new();
        }
        let mut all = core::mem::take(&mut self.list);
        if !self.unfenced.is_empty() {
            all.append(&mut self.unfenced);
        }
        all
    }

    /// Returns the number of regions in the chunks.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// Keeps regions until the connection is drained.
    pub(super) fn keep_unfenced(&mut self, mut list: MrList) {
        self.unfenced.append(&mut list);
    }

    /// Calls `f` with each region, until it fails.
    pub(super) fn try_for_each(&mut self, f: impl FnMut(&mut Mr) -> Result) -> Result {
        self.list.try_for_each(f)
    }

    /// Undoes the registrations that a chain recorded, because that chain was not posted.
    pub(super) fn retract(&mut self, unposted: Unposted) {
        self.list.retract(unposted);
    }
}

/// The chunks of the request in a slot, behind a lock.
#[pin_data]
pub(super) struct SlotChunks {
    #[pin]
    chunks: Mutex<Chunks>,
    /// Whether the chunks may contain regions. Set when the lock is taken, and cleared by
    /// [`LockedChunks::take`] and [`LockedChunks::connection_lost`]. Written under the lock.
    used: Atomic<bool>,
}

impl SlotChunks {
    /// Creates chunks without regions.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            chunks <- new_mutex!(Chunks::default()),
            used: Atomic::new(false),
        })
    }

    /// Locks the chunks. Sleeps.
    pub(super) fn lock(&self) -> LockedChunks<'_> {
        let chunks = self.chunks.lock();
        self.used.store(true, Relaxed);
        LockedChunks {
            chunks,
            used: &self.used,
        }
    }

    /// Returns whether there are no regions, and no Reply is due. Only valid for the task
    /// that owns the request, while nobody sends it and no Reply to it is being handled.
    pub(super) fn is_unused(&self) -> bool {
        // Pairs with the release in `take` and in `connection_lost`.
        !self.used.load(Acquire)
    }
}

/// The chunks of a request, locked.
pub(super) struct LockedChunks<'a> {
    chunks: Guard<'a, Chunks, MutexBackend>,
    used: &'a Atomic<bool>,
}

impl LockedChunks<'_> {
    /// Removes and returns all regions, and unlocks the chunks. No Reply is due afterwards.
    pub(super) fn take(mut self) -> MrList {
        let list = self.chunks.take();
        self.used.store(false, Release);
        list
    }

    /// Drops all regions, whose connection is drained, and unlocks the chunks. No Reply is due
    /// afterwards. Returns the number of connections that were lost before the Reply to the Call;
    /// zero if no Reply was due. Sleeps.
    ///
    /// The regions are dropped first: a task that finds the chunks unused releases the memory of
    /// its request at once.
    pub(super) fn connection_lost(mut self) -> u32 {
        let losses = if self.is_outstanding() {
            let xid = self.xid;
            self.losses.add(xid)
        } else {
            0
        };
        drop(self.chunks.take());
        self.used.store(false, Release);
        losses
    }
}

impl Deref for LockedChunks<'_> {
    type Target = Chunks;

    fn deref(&self) -> &Chunks {
        &self.chunks
    }
}

impl DerefMut for LockedChunks<'_> {
    fn deref_mut(&mut self) -> &mut Chunks {
        &mut self.chunks
    }
}

/// Returns the segment of a region for the transport header.
pub(super) fn segment(mr: &Mr) -> Segment {
    Segment {
        handle: Handle(mr.handle()),
        length: mr.length(),
        offset: Offset(mr.offset()),
    }
}

/// Unmaps the regions in `list` that are fenced; returns whether all are. The region whose handle
/// the server has `invalidated` is fenced.
#[inline(always)]
pub(super) fn unmap_fenced(list: &mut MrList, invalidated: Option<Invalidated<'_>>) -> bool {
    let mut all = true;
    let _ = list.try_for_each(|mr| {
        // At most one region has that handle. An unknown handle is ignored.
        if invalidated.is_some_and(|invalidated| mr.invalidated_by(invalidated)) {
            trace_xprtrdma_mr_reminv(mr);
        }
        match mr.unmap() {
            Ok(()) => trace_xprtrdma_mr_unmap(mr),
            Err(_) => all = false,
        }
        Ok(())
    });
    all
}

/// Unmaps the regions in `list` that are fenced, and returns them. The others stay in `list`.
pub(super) fn take_fenced(list: &mut MrList) -> MrList {
    if unmap_fenced(list, None) {
        return core::mem::take(list);
    }
    split_fenced(list)
}

/// Removes the regions that [`unmap_fenced`] has unmapped from `list`, and returns them.
#[cold]
pub(super) fn split_fenced(list: &mut MrList) -> MrList {
    let mut idle = MrList::new();
    for _ in 0..list.len() {
        let Some(mut mr) = list.pop() else {
            break;
        };
        // Another region may be fenced by now.
        match mr.unmap() {
            Ok(()) => idle.push(mr),
            Err(_) => list.push(mr),
        }
    }
    idle
}

/// Makes the task that gives up an RPC wait until its regions are fenced.
#[pin_data]
pub(super) struct Fence {
    #[pin]
    finished: WaitQueue,
    /// Regions that could not be fenced; `None` until the attempt has ended, and once the task has
    /// taken them.
    #[pin]
    left: SpinLock<Option<MrList>>,
}

impl Fence {
    /// Creates a fence on which no task waits.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            finished <- new_waitqueue!("rpcrdma_rs: fence"),
            left <- new_spinlock!(None),
        })
    }

    /// Wakes the task. `left` are the regions that could not be fenced.
    pub(super) fn finish(&self, left: MrList) {
        *self.left.lock() = Some(left);
        self.finished.wake_all();
    }

    /// Waits for [`Self::finish`], and returns the regions that could not be fenced. Sleeps.
    pub(super) fn wait(&self) -> MrList {
        self.finished.wait_for(|| self.left.lock().take())
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
