// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What the messages of a connection take, and give back.
//!
//! All of it is behind one lock, for it is taken and given back together: a Call takes a Send, its
//! regions, and entries of the Send Queue; a Reply gives back regions and a Receive. Everything is
//! made when it is first needed, up to what the connection was sized for, and what a busy connection
//! has made is destroyed when it has been quiet.
//!
//! There is always a Receive posted for each Reply that the server owes, and for each Call of the
//! reverse direction that it has a credit for: a Call is not sent before its Receive is posted. So
//! for want of memory a Call waits, and no connection is lost.

use core::pin::Pin;

use kernel::{prelude::*, sync::Arc};

use super::{
    invalidate::InvCtx,
    live::Live,
    send_queue::{
        Progress,
        SendQueue, //
    },
    sendctx::SendCtx,
    REVERSE_CALLS,
    REVERSE_REQUESTS, //
};
use crate::kapi::ext::atomic::Relaxed;
use crate::{
    kapi::rdma::{
        mr::{
            Mr,
            MrList, //
        },
        recv::{
            RecvBox,
            RecvList, //
        },
    },
    xdr::{
        growth::Growth,
        limits::ClientLimits,
        units::{
            host_len,
            InlineSize, //
        }, //
    },
};

/// How many Sends a quiet connection keeps.
const SENDS_KEPT: usize = 4;
/// How many Sends of the reverse direction there are at least, so that one is never out of reach.
pub(super) const REVERSE_KEPT: usize = 2;
/// How many Receives are posted at a time.
const RECEIVE_BATCH: u32 = 16;
/// How many regions a refill makes idle at most.
const REFILL: usize = 32;

type Pool<T> = KVec<Pin<KBox<T>>>;

/// What a Call is sent with.
pub(super) struct Taken {
    /// The buffers of the Send.
    pub(super) ctx: Pin<KBox<SendCtx>>,
    /// Idle regions, as many as were asked for.
    pub(super) regions: MrList,
}

/// What there is too little of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortage {
    /// Sends, and one may be made.
    Send,
    /// Sends, and there are as many as there may be; or entries of the Send Queue.
    Room,
    /// Idle regions.
    Regions,
    /// Posted Receives.
    Receives,
}

/// See the module's documentation.
pub(super) struct Pools {
    limits: ClientLimits,
    live: Arc<Live>,
    sends: Pool<SendCtx>,
    sends_made: usize,
    reverse_sends: Pool<SendCtx>,
    reverse_made: usize,
    /// As many as there are regions, those in use included.
    invs: Pool<InvCtx>,
    idle: MrList,
    regions_made: usize,
    /// Receive buffers that are not posted.
    free: RecvList<()>,
    /// How many Receives are posted.
    posted: u32,
    /// The size of them and of those in `free`.
    pub(super) growth: Growth,
    /// Replies to Calls that were sent.
    owed: u32,
    /// Whether the server may call.
    reverse: bool,
    queue: SendQueue,
    /// The sender waits for something to be given back.
    starved: bool,
    /// The watchdog is queued.
    watched: bool,
    retired: bool,
}

impl Pools {
    /// Without anything in it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(limits: &ClientLimits, receive: InlineSize, live: Arc<Live>) -> Result<Self> {
        let regions = Self::most_regions(limits);
        Ok(Self {
            limits: *limits,
            live,
            sends: KVec::with_capacity(limits.requests as usize, GFP_KERNEL)?,
            sends_made: 0,
            reverse_sends: KVec::with_capacity(REVERSE_REQUESTS as usize, GFP_KERNEL)?,
            reverse_made: 0,
            invs: KVec::with_capacity(regions, GFP_KERNEL)?,
            idle: MrList::new(),
            regions_made: 0,
            free: RecvList::new(),
            posted: 0,
            growth: Growth::new(receive.0),
            owed: 0,
            reverse: false,
            queue: SendQueue::new(limits.send_wr.saturating_sub(REVERSE_CALLS)),
            starved: false,
            watched: false,
            retired: false,
        })
    }

    fn most_regions(limits: &ClientLimits) -> usize {
        limits.requests as usize * 2 + Self::per_request(limits)
    }

    /// Returns the most regions of one request: one more than the segments of its chunks, for spare
    /// room.
    fn per_request(limits: &ClientLimits) -> usize {
        limits.registrations() as usize + 1
    }

    /// Entries that a Call with so many regions claims: the Send, and for each region its
    /// registration and its invalidation.
    fn entries(regions: usize) -> u32 {
        // CAST: At most as many as the segments of two chunks.
        1 + 2 * regions as u32
    }

    /// Returns how many Receives have to be posted while `owed` Replies are due.
    fn receives_needed(&self, owed: u32) -> u32 {
        let reverse = if self.reverse { REVERSE_CALLS } else { 2 };
        owed.saturating_add(reverse).min(self.limits.recv_wr)
    }

    /// Takes what a Call with up to `regions` regions is sent with.
    pub(super) fn take(&mut self, regions: usize) -> Result<Taken, Shortage> {
        if self.posted < self.receives_needed(self.owed.saturating_add(1)) {
            return Err(Shortage::Receives);
        }
        if self.idle.len() < regions {
            return Err(Shortage::Regions);
        }
        let entries = Self::entries(regions);
        if !self.queue.has_room(entries) {
            return Err(Shortage::Room);
        }
        let Some(ctx) = self.sends.pop() else {
            return Err(if self.sends_made < self.limits.requests as usize {
                Shortage::Send
            } else {
                Shortage::Room
            });
        };
        self.queue.claim(entries);
        self.queue.post();
        self.owed += 1;
        let mut taken = MrList::new();
        for _ in 0..regions {
            if let Some(mr) = self.idle.pop() {
                taken.push(mr);
            }
        }
        self.publish();
        Ok(Taken {
            ctx,
            regions: taken,
        })
    }

    /// Tells the live view what there is.
    pub(super) fn publish(&self) {
        self.live.owed.store(self.owed, Relaxed);
        self.live.receives.store(self.posted, Relaxed);
        self.live.regions.store(self.regions_made, Relaxed);
        self.live.idle.store(self.idle.len(), Relaxed);
        self.live.queue_room.store(self.queue.room(), Relaxed);
    }

    /// Gives back what a Call was to be sent with: the device has seen nothing of it. `registered`
    /// is how many regions were to be registered, `unused` are those that were not.
    pub(super) fn untake(
        &mut self,
        ctx: Pin<KBox<SendCtx>>,
        registered: usize,
        unused: &mut MrList,
    ) {
        self.owed = self.owed.saturating_sub(1);
        self.unused(unused);
        self.send_done(ctx, registered);
    }

    /// Gives back regions that a Call did not need.
    pub(super) fn unused(&mut self, unused: &mut MrList) {
        // CAST: At most as many as were taken. The registration; `recycled` has the invalidation.
        self.queue.release(unused.len() as u32);
        self.recycled(unused);
    }

    /// A Send is done, and the `registered` registrations before it.
    pub(super) fn send_done(&mut self, ctx: Pin<KBox<SendCtx>>, registered: usize) {
        // CAST: At most as many as the segments of two chunks.
        self.queue.release(1 + registered as u32);
        self.queue.complete();
        // There is room: it came from there.
        let _ = self.sends.push_within_capacity(ctx);
    }

    /// Takes the buffers of a Send of the reverse direction; `Err` if there is none, with whether
    /// one may be made.
    pub(super) fn take_reverse(&mut self) -> Result<Pin<KBox<SendCtx>>, bool> {
        let may_make = self.reverse_made < REVERSE_REQUESTS as usize;
        let ctx = self.reverse_sends.pop().ok_or(may_make)?;
        self.queue.post();
        Ok(ctx)
    }

    /// A Send of the reverse direction is done, or was not posted.
    pub(super) fn reverse_done(&mut self, ctx: Pin<KBox<SendCtx>>) {
        self.queue.complete();
        let _ = self.reverse_sends.push_within_capacity(ctx);
    }

    /// Adds a new Send; hands it back if there are enough meanwhile.
    pub(super) fn add_send(&mut self, ctx: Pin<KBox<SendCtx>>) -> Result<(), Pin<KBox<SendCtx>>> {
        let (pool, made, most) = if ctx.is_reverse() {
            (
                &mut self.reverse_sends,
                &mut self.reverse_made,
                REVERSE_REQUESTS,
            )
        } else {
            (&mut self.sends, &mut self.sends_made, self.limits.requests)
        };
        if *made >= most as usize {
            return Err(ctx);
        }
        *made += 1;
        // There is room for as many as there may be.
        let _ = pool.push_within_capacity(ctx);
        Ok(())
    }

    /// Returns whether there is a Send, idle or in flight.
    pub(super) fn has_sends(&self) -> bool {
        self.sends_made != 0
    }

    /// Takes what a chain of LOCAL_INV needs.
    pub(super) fn take_inv(&mut self) -> Option<Pin<KBox<InvCtx>>> {
        let ctx = self.invs.pop()?;
        self.queue.post();
        Some(ctx)
    }

    /// A chain of LOCAL_INV is done, or was not posted.
    pub(super) fn inv_done(&mut self, ctx: Pin<KBox<InvCtx>>) {
        self.queue.complete();
        // There is room: it came from there.
        let _ = self.invs.push_within_capacity(ctx);
    }

    /// Gives regions back that are idle again.
    pub(super) fn recycled(&mut self, list: &mut MrList) {
        // CAST: At most as many as there are.
        self.queue.release(list.len() as u32);
        self.idle.append(list);
    }

    /// Returns how many regions have to be made for a refill, none if there are as many as there
    /// may be.
    pub(super) fn regions_missing(&self) -> usize {
        let per_request = Self::per_request(&self.limits);
        let target = self
            .regions_made
            .clamp(per_request, REFILL.max(per_request));
        let room = Self::most_regions(&self.limits).saturating_sub(self.regions_made);
        target.saturating_sub(self.idle.len()).min(room)
    }

    /// Adds a new region, with what its invalidation may need.
    pub(super) fn add_region(&mut self, mr: Mr, inv: Pin<KBox<InvCtx>>) {
        self.idle.push(mr);
        self.regions_made += 1;
        // There is room for as many as there may be.
        let _ = self.invs.push_within_capacity(inv);
        self.publish();
    }

    /// The server may call from here on.
    pub(super) fn allow_reverse(&mut self) {
        self.reverse = true;
    }

    /// A message came into a Receive of `capacity` octets, or that was flushed; `owed` is whether it
    /// was one that the server owed.
    pub(super) fn received(&mut self, owed: bool, capacity: usize) {
        self.posted = self.posted.saturating_sub(1);
        self.growth.landed(capacity, 1);
        if owed {
            self.owed = self.owed.saturating_sub(1);
        }
    }

    /// Gives a receive buffer back. It is dropped if it has been replaced.
    pub(super) fn put_receive(&mut self, buffer: RecvBox<()>) {
        if self.growth.keeps(buffer.capacity()) {
            self.free.push(buffer);
        }
    }

    /// How many Receive buffers there are, those of messages that are looked at left out.
    pub(super) fn receive_buffers(&self) -> u32 {
        // CAST: There are fewer buffers than a queue can have entries.
        self.posted.saturating_add(self.free.len() as u32)
    }

    /// Replaces the Receives by those in `list`, of `size` octets; returns what is not needed any
    /// more.
    pub(super) fn replace_receives(&mut self, size: u32, list: RecvList<()>) -> RecvList<()> {
        self.growth.begin(size, self.posted);
        core::mem::replace(&mut self.free, list)
    }

    /// Whether Receives have to be posted for the server's own Calls.
    pub(super) fn lacks_receives(&self) -> bool {
        // Half of them is what the server has credits for. Without any it may still send messages
        // about properties.
        let reserve = if self.reverse { REVERSE_REQUESTS } else { 0 };
        self.posted.saturating_add(reserve) < self.receives_needed(self.owed)
    }

    /// The free buffers of a batch to be posted, and how many have to be made, of what size. All of
    /// them count as posted.
    pub(super) fn receives_to_post(&mut self) -> (RecvList<()>, u32, u32) {
        let target = self
            .receives_needed(self.owed)
            .saturating_add(RECEIVE_BATCH)
            .min(self.limits.recv_wr);
        let mut list = RecvList::new();
        let missing = target.saturating_sub(self.posted);
        for _ in 0..missing {
            let Some(buffer) = self.free.pop() else { break };
            list.push(buffer);
        }
        self.posted += missing;
        // CAST: At most `missing`.
        let to_make = missing - list.len() as u32;
        self.publish();
        (list, to_make, self.growth.size())
    }

    /// Takes back what could not be posted, and `missing` that could not be made; all are of `size`
    /// octets.
    pub(super) fn receives_unposted(&mut self, mut rest: RecvList<()>, missing: u32, size: u32) {
        // CAST: They were counted as posted.
        let count = rest.len() as u32 + missing;
        self.posted = self.posted.saturating_sub(count);
        let size = host_len(size);
        self.growth.landed(size, count);
        if self.growth.keeps(size) {
            self.free.append(&mut rest);
        }
        self.publish();
    }

    /// Replies that are due.
    pub(super) fn owed(&self) -> u32 {
        self.owed
    }

    /// How many Receives are posted.
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    /// Notes that the sender waits, unless a Call with so many regions could be sent now.
    pub(super) fn starve(&mut self, regions: usize) -> bool {
        let possible = self.idle.len() >= regions
            && self.queue.has_room(Self::entries(regions))
            && !self.sends.is_empty();
        self.starved = !possible;
        self.starved
    }

    /// Returns whether the sender waits. It is woken by the caller, once.
    pub(super) fn take_starved(&mut self) -> bool {
        core::mem::take(&mut self.starved)
    }

    /// Returns whether the caller has to queue the watchdog.
    pub(super) fn watch(&mut self) -> bool {
        !self.retired && !core::mem::replace(&mut self.watched, true)
    }

    /// The connection is being closed: the watchdog is not queued again.
    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// Looks at the Send Queue. If all is quiet, the connection is not watched any longer, and the
    /// result has what it can do without.
    pub(super) fn look(&mut self) -> (Progress, Surplus) {
        let progress = self.queue.look();
        let mut surplus = Surplus::default();
        // A stalled connection is not watched again: it is closed.
        self.watched = progress == Progress::Stalled;
        if progress == Progress::Quiet {
            self.trim(&mut surplus);
        }
        (progress, surplus)
    }

    fn trim(&mut self, surplus: &mut Surplus) {
        surplus.receives = core::mem::take(&mut self.free);
        let kept = Self::per_request(&self.limits);
        while self.idle.len() > kept {
            let Some(mr) = self.idle.pop() else { break };
            self.regions_made -= 1;
            surplus.regions.push(mr);
        }
        self.publish();
    }

    /// Takes a Send out that is surplus.
    pub(super) fn shrink_sends(&mut self) -> Option<Pin<KBox<SendCtx>>> {
        if self.sends.len() <= SENDS_KEPT {
            return None;
        }
        self.sends_made -= 1;
        self.sends.pop()
    }

    /// Takes out what belongs to a region that is gone.
    pub(super) fn shrink_invs(&mut self) -> Option<Pin<KBox<InvCtx>>> {
        if self.invs.len() <= self.regions_made {
            return None;
        }
        self.invs.pop()
    }
}

/// What a quiet connection can do without.
#[derive(Default)]
pub(super) struct Surplus {
    /// Receive buffers that are not posted.
    pub(super) receives: RecvList<()>,
    /// Idle regions.
    pub(super) regions: MrList,
}
