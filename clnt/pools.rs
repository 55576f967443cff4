// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The resources of a connection that messages use: Sends, regions, Receives (RFC 8166, section
//! 3.3.1), Send Queue entries.
//!
//! One lock protects all of them, because they are taken and returned together: a Call takes a
//! Send, its regions, and Send Queue entries; a Reply returns regions and a Receive. A resource is
//! allocated when it is first needed, up to the limits of the connection. When a busy connection
//! has become quiet, its surplus resources are freed.
//!
//! A Receive is posted for each outstanding Reply, and two for each credit of the reverse
//! direction, see [`BC_MAX_CALLS`]. A Call is not sent before the Receive for its Reply is posted.
//! So if memory is short, a Call waits, and the connection is not lost.

use core::pin::Pin;

use kernel::{prelude::*, sync::Arc};

use super::{
    credits::ReservedCredits,
    invalidate::InvCtx,
    send_queue::{
        Progress,
        SendQueue, //
    },
    sendctx::SendCtx,
    status::ConnStatus,
    BC_CREDITS,
    BC_MAX_CALLS, //
};
use crate::{
    kapi::{
        ext::atomic::Relaxed,
        rdma::{
            mr::{
                Mr,
                MrList, //
            },
            recv::{
                RecvBox,
                RecvList, //
            }, //
        }, //
    },
    xdr::{
        error::ErrorBody,
        header::Header,
        limits::ClientLimits,
        resize::Resize,
        units::{
            u32_to_usize,
            InlineSize, //
        }, //
    }, //
};

/// The number of Sends that a quiet connection keeps.
const SENDS_KEPT: usize = 4;
/// The number of Sends of the reverse direction that are always kept. A completion that sends an
/// error report cannot allocate one.
pub(super) const BC_SENDS_KEPT: usize = 2;
/// The number of Receives that are posted together.
const RECEIVE_BATCH: u32 = 16;
/// The largest number of idle regions after a refill, unless a single request may need more.
const REFILL: usize = 32;

type Pool<T> = KVec<Pin<KBox<T>>>;

/// The resource that is short.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortage {
    /// Sends, and another one may be allocated.
    Send,
    /// Sends or idle regions, and their number has reached its limit; or Send Queue entries.
    Room,
    /// Idle regions, and more may be allocated.
    Regions,
    /// Posted Receives.
    Receives,
}

/// What the sender does when a resource is short.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// It retries at once: the resource is available by now.
    Needless,
    /// It waits, and is woken when a resource is returned.
    Woken,
    /// It retries after a delay: memory is short, and nothing in flight returns the resource.
    Delay,
}

/// An error report about a message of the server, which waits for a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The fixed words of that message.
    pub(super) header: Header,
    /// What is reported.
    pub(super) body: ErrorBody,
}

/// What a received message is, as far as the number of outstanding Replies is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// The Reply to a Call whose task waits for it.
    Reply,
    /// The Reply to a Call that was given up.
    LateReply,
    /// Not a Reply, or a flushed Receive.
    Other,
}

/// The resources of a connection.
pub(super) struct Pools {
    limits: ClientLimits,
    status: Arc<ConnStatus>,
    sends: Pool<SendCtx>,
    sends_made: usize,
    bc_sends: Pool<SendCtx>,
    bc_sends_made: usize,
    /// The error reports that wait for a Send, in the order of the messages.
    reports: KVec<Report>,
    /// One for each region, including regions in use.
    invs: Pool<InvCtx>,
    idle: MrList,
    regions_made: usize,
    /// Receive buffers that are not posted.
    free: RecvList<()>,
    /// The number of posted Receives, and of those that are still being posted.
    posted: u32,
    posting: u32,
    /// The size of the posted Receives and of those in `free`.
    pub(super) resize: Resize,
    /// The number of outstanding Replies.
    owed: u32,
    /// Credits that Calls may not use.
    pub(super) reserve: ReservedCredits,
    /// Whether the server may call.
    bc_allowed: bool,
    queue: SendQueue,
    /// Whether the sender waits for a resource.
    starved: bool,
    /// Whether the watchdog is queued.
    watched: bool,
    retired: bool,
}

impl Pools {
    /// Creates empty pools.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(
        limits: &ClientLimits,
        receive: InlineSize,
        status: Arc<ConnStatus>,
    ) -> Result<Self> {
        let regions = Self::max_regions(limits);
        Ok(Self {
            limits: *limits,
            status,
            sends: KVec::with_capacity(limits.requests as usize, GFP_KERNEL)?,
            sends_made: 0,
            bc_sends: KVec::with_capacity(BC_CREDITS as usize, GFP_KERNEL)?,
            bc_sends_made: 0,
            reports: KVec::with_capacity(BC_MAX_CALLS as usize, GFP_KERNEL)?,
            invs: KVec::with_capacity(regions, GFP_KERNEL)?,
            idle: MrList::new(),
            regions_made: 0,
            free: RecvList::new(),
            posted: 0,
            posting: 0,
            resize: Resize::new(receive.0),
            owed: 0,
            reserve: ReservedCredits::new(),
            bc_allowed: false,
            queue: SendQueue::new(limits.send_wr.saturating_sub(BC_MAX_CALLS)),
            starved: false,
            watched: false,
            retired: false,
        })
    }

    fn max_regions(limits: &ClientLimits) -> usize {
        limits.requests as usize * 2 + Self::per_request(limits)
    }

    /// Returns the largest number of regions of one request: one more than the segments of its
    /// chunks, for the scratch page.
    fn per_request(limits: &ClientLimits) -> usize {
        limits.registrations() as usize + 1
    }

    /// Returns the number of Send Queue entries that a Call with `regions` regions claims: the
    /// Send, and for each region its registration and its invalidation.
    fn entries(regions: usize) -> u32 {
        // CAST: At most as many as the segments of two chunks.
        1 + 2 * regions as u32
    }

    /// Returns the number of Receives that must be posted while `owed` Replies are due: one for
    /// each Reply, and those for the server's Calls. A server that may not call gets two, for
    /// messages about properties.
    fn receives_needed(&self, owed: u32) -> u32 {
        let bc = if self.bc_allowed { BC_MAX_CALLS } else { 2 };
        owed.saturating_add(bc).min(self.limits.recv_wr)
    }

    /// Returns whether a Receive is posted for the Reply to another Call. A Receive does not count
    /// while it is being posted.
    #[inline(always)]
    fn has_receive(&self) -> bool {
        let ready = self.posted.saturating_sub(self.posting);
        ready >= self.receives_needed(self.owed.saturating_add(1))
    }

    /// Takes the resources of a Call: a Send, and `count` idle regions, which it appends to
    /// `regions`. Returns the Send. If a resource is short, takes nothing and returns which one.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        count: usize,
        regions: &mut MrList,
    ) -> Result<Pin<KBox<SendCtx>>, Shortage> {
        if !self.has_receive() {
            return Err(Shortage::Receives);
        }
        if self.idle.len() < count {
            return Err(self.region_shortage());
        }
        let entries = Self::entries(count);
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
        self.reserve.note_call();
        regions.append(&mut self.idle.take_front(count));
        self.status.owed.store(self.owed, Relaxed);
        self.status.idle.store(self.idle.len(), Relaxed);
        self.show_queue();
        Ok(ctx)
    }

    /// Returns the shortage if too few regions are idle. At the limit the sender waits for a Reply:
    /// a refill would allocate nothing, wake the sender, and be requested again at once.
    #[cold]
    fn region_shortage(&self) -> Shortage {
        match self.regions_missing() {
            0 => Shortage::Room,
            _ => Shortage::Regions,
        }
    }

    /// Updates the number of Receives and of Replies due in the debugfs status.
    fn show_receives(&self) {
        self.status.owed.store(self.owed, Relaxed);
        self.status.receives.store(self.posted, Relaxed);
    }

    /// Updates the number of regions in the debugfs status.
    fn show_regions(&self) {
        self.status.regions.store(self.regions_made, Relaxed);
        self.status.idle.store(self.idle.len(), Relaxed);
    }

    /// Updates the number of chains of LOCAL_INV in flight in the debugfs status.
    fn show_invalidations(&self) {
        let in_flight = self.regions_made.saturating_sub(self.invs.len());
        self.status.invalidations.store(in_flight, Relaxed);
    }

    /// Updates the room in the Send Queue in the debugfs status.
    fn show_queue(&self) {
        self.status.queue_room.store(self.queue.room(), Relaxed);
    }

    /// Takes back the resources of a Call that was not posted. `registered` is the number of
    /// regions in the chain; `unused` are the other regions.
    pub(super) fn return_unused(
        &mut self,
        ctx: Pin<KBox<SendCtx>>,
        registered: usize,
        unused: &mut MrList,
    ) {
        self.owed = self.owed.saturating_sub(1);
        self.reserve.end_call();
        self.show_receives();
        self.unused(unused);
        self.send_done(ctx, registered);
    }

    /// Takes back regions that a Call did not need.
    pub(super) fn unused(&mut self, unused: &mut MrList) {
        // Releases the entries of the registrations; `recycled` releases those of invalidations.
        // CAST: At most as many as were taken.
        self.queue.release(unused.len() as u32);
        self.recycled(unused);
    }

    /// Takes back a Send that has completed, and the entries of the `registered` registrations
    /// before it.
    pub(super) fn send_done(&mut self, ctx: Pin<KBox<SendCtx>>, registered: usize) {
        // CAST: At most as many as the segments of two chunks.
        self.queue.release(1 + registered as u32);
        self.queue.complete();
        self.show_queue();
        // There is room: `ctx` came from there.
        let _ = self.sends.push_within_capacity(ctx);
    }

    /// Takes the buffers of a Send of the reverse direction. If there is none, the error says
    /// whether one may be allocated.
    pub(super) fn take_bc_send(&mut self) -> Result<Pin<KBox<SendCtx>>, bool> {
        let may_make = self.bc_sends_made < BC_CREDITS as usize;
        let ctx = self.bc_sends.pop().ok_or(may_make)?;
        self.queue.post();
        Ok(ctx)
    }

    /// Takes back a Send of the reverse direction that has completed or was not posted.
    pub(super) fn bc_send_done(&mut self, ctx: Pin<KBox<SendCtx>>) {
        self.queue.complete();
        let _ = self.bc_sends.push_within_capacity(ctx);
    }

    /// Queues an error report until a Send of the reverse direction is free. Returns `false` if as
    /// many reports are queued as there are Receives for Calls of the server.
    pub(super) fn queue_report(&mut self, report: Report) -> bool {
        self.reports.len() < BC_MAX_CALLS as usize
            && self.reports.push_within_capacity(report).is_ok()
    }

    /// Takes the oldest queued error report, and the buffers of its Send.
    pub(super) fn take_report(&mut self) -> Option<(Pin<KBox<SendCtx>>, Report)> {
        let report = *self.reports.first()?;
        let ctx = self.take_bc_send().ok()?;
        // Cannot fail: the report was found above.
        let _ = self.reports.remove(0);
        Some((ctx, report))
    }

    /// Adds a new Send. Returns it if the limit was reached meanwhile.
    pub(super) fn add_send(&mut self, ctx: Pin<KBox<SendCtx>>) -> Result<(), Pin<KBox<SendCtx>>> {
        let (pool, made, max) = if ctx.is_bc() {
            (&mut self.bc_sends, &mut self.bc_sends_made, BC_CREDITS)
        } else {
            (&mut self.sends, &mut self.sends_made, self.limits.requests)
        };
        if *made >= max as usize {
            return Err(ctx);
        }
        *made += 1;
        // There is room: the capacity is the limit.
        let _ = pool.push_within_capacity(ctx);
        Ok(())
    }

    /// Returns whether any Send exists, idle or in flight.
    pub(super) fn has_sends(&self) -> bool {
        self.sends_made != 0
    }

    /// Takes the resources of a chain of LOCAL_INV.
    pub(super) fn take_inv(&mut self) -> Option<Pin<KBox<InvCtx>>> {
        let ctx = self.invs.pop()?;
        self.queue.post();
        self.show_invalidations();
        Some(ctx)
    }

    /// Takes back the resources of a chain of LOCAL_INV that has completed or was not posted.
    pub(super) fn inv_done(&mut self, ctx: Pin<KBox<InvCtx>>) {
        self.queue.complete();
        // There is room: `ctx` came from there.
        let _ = self.invs.push_within_capacity(ctx);
        self.show_invalidations();
    }

    /// Takes back regions that are idle again.
    pub(super) fn recycled(&mut self, list: &mut MrList) {
        if list.is_empty() {
            return;
        }
        // CAST: At most as many as there are.
        self.queue.release(list.len() as u32);
        self.idle.append(list);
        self.status.idle.store(self.idle.len(), Relaxed);
        self.show_queue();
    }

    /// Returns the number of regions to allocate for a refill; zero if the limit is reached.
    pub(super) fn regions_missing(&self) -> usize {
        let per_request = Self::per_request(&self.limits);
        let target = self
            .regions_made
            .clamp(per_request, REFILL.max(per_request));
        let room = Self::max_regions(&self.limits).saturating_sub(self.regions_made);
        target.saturating_sub(self.idle.len()).min(room)
    }

    /// Adds a new region, with the resources for its invalidation.
    pub(super) fn add_region(&mut self, mr: Mr, inv: Pin<KBox<InvCtx>>) {
        self.idle.push(mr);
        self.regions_made += 1;
        // There is room: the capacity is the limit.
        let _ = self.invs.push_within_capacity(inv);
        self.show_regions();
        self.show_queue();
    }

    /// Returns whether the server may call.
    pub(super) fn is_bc_allowed(&self) -> bool {
        self.bc_allowed
    }

    /// Allows Calls from the server.
    pub(super) fn allow_bc(&mut self) {
        self.bc_allowed = true;
    }

    /// Records that a Receive of `capacity` octets has completed or was flushed.
    pub(super) fn received(&mut self, kind: MessageKind, capacity: usize) {
        self.posted = self.posted.saturating_sub(1);
        self.resize.note_completed(capacity, 1);
        if kind != MessageKind::Other {
            self.owed = self.owed.saturating_sub(1);
            self.reserve.note_reply();
        }
        if kind == MessageKind::Reply {
            self.reserve.end_call();
        }
        self.show_receives();
    }

    /// Takes back a Receive buffer, and drops it if it was replaced meanwhile.
    pub(super) fn put_receive(&mut self, buffer: RecvBox<()>) {
        if self.resize.keeps(buffer.capacity()) {
            self.free.push(buffer);
        }
    }

    /// Returns the number of Receive buffers, without those of messages that are being handled.
    pub(super) fn receive_buffers(&self) -> u32 {
        // CAST: There are fewer buffers than a queue can have entries.
        self.posted.saturating_add(self.free.len() as u32)
    }

    /// Replaces the Receives by those in `list`, of `size` octets. Returns the free buffers that
    /// were replaced.
    pub(super) fn replace_receives(&mut self, size: u32, list: RecvList<()>) -> RecvList<()> {
        self.resize.begin(size, self.posted);
        core::mem::replace(&mut self.free, list)
    }

    /// Returns whether Receives must be posted for the server's own Calls.
    pub(super) fn lacks_receives(&self) -> bool {
        // The server has credits for half of the Receives for reverse Calls. One more is needed,
        // because a Call may be answered before the Receive that it used is posted again. A server
        // without such credits may still send messages about properties.
        let reserve = if self.bc_allowed { BC_CREDITS - 1 } else { 0 };
        self.posted.saturating_add(reserve) < self.receives_needed(self.owed)
    }

    /// Returns the free buffers to post, the number of buffers to allocate in addition, and their
    /// size. The number is zero unless the caller `allocates`. All of them count as posted. The
    /// caller posts them, and then calls [`Self::end_post`].
    pub(super) fn receives_to_post(&mut self, allocates: bool) -> (RecvList<()>, u32, u32) {
        let target = self
            .receives_needed(self.owed)
            .saturating_add(RECEIVE_BATCH)
            .min(self.limits.recv_wr);
        let missing = target.saturating_sub(self.posted);
        let list = self.free.take_front(u32_to_usize(missing));
        // CAST: At most `missing`.
        let free = list.len() as u32;
        let to_make = if allocates { missing - free } else { 0 };
        self.posted += free + to_make;
        self.posting += free + to_make;
        self.show_receives();
        (list, to_make, self.resize.size())
    }

    /// Ends the post of `count` Receives: takes back the buffers that could not be posted, and no
    /// longer counts the `missing` ones that could not be allocated. All are of `size` octets.
    pub(super) fn end_post(&mut self, count: u32, mut rest: RecvList<()>, missing: u32, size: u32) {
        self.posting = self.posting.saturating_sub(count);
        // CAST: They were counted as posted.
        let failed = rest.len() as u32 + missing;
        if failed == 0 {
            return;
        }
        self.posted = self.posted.saturating_sub(failed);
        let size = u32_to_usize(size);
        self.resize.note_completed(size, failed);
        if self.resize.keeps(size) {
            self.free.append(&mut rest);
        }
        self.show_receives();
    }

    /// See [`ReservedCredits::has_credit`].
    pub(super) fn has_credit(&mut self, granted: u32, requested: bool) -> bool {
        self.reserve.has_credit(granted, self.owed, requested)
    }

    /// See [`ReservedCredits::window`].
    pub(super) fn window(&mut self, granted: u32, requested: bool) -> Option<u32> {
        self.reserve.window(granted, self.owed, requested)
    }

    /// Returns whether the Reply to a Call that was given up is due.
    pub(super) fn has_given_up(&self) -> bool {
        self.reserve.given_up(self.owed) != 0
    }

    /// Returns the Receive size to announce to the server, if it is larger than the server knows
    /// and an announcement may be sent in addition to a Call. Counts as announced, see
    /// [`Resize::take_due`].
    pub(super) fn announcement(&mut self, granted: u32, requested: bool) -> Option<u32> {
        let may_send = self.resize.is_due()
            && !self.reserve.has_update()
            && self.has_credit(granted, requested);
        may_send.then(|| self.resize.take_due()).flatten()
    }

    /// Records that the announcement was posted or, if it was not `sent`, that it could not be.
    pub(super) fn end_announcement(&mut self, sent: bool) {
        self.resize.end_announcement(sent);
        if sent {
            self.reserve.note_update(self.owed);
        }
    }

    /// Returns the number of posted Receives.
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    /// Returns what the sender does when resources for a Call with `regions` regions are short, and
    /// records whether to wake it.
    pub(super) fn starve(&mut self, regions: usize) -> Wait {
        let has_receive = self.has_receive();
        let possible = has_receive
            && self.idle.len() >= regions
            && self.queue.has_room(Self::entries(regions))
            && !self.sends.is_empty();
        // A Reply frees only the Receive that it used. The end of a post may free more.
        let woken = has_receive || self.posting != 0;
        self.starved = !possible && woken;
        match (possible, woken) {
            (true, _) => Wait::Needless,
            (false, true) => Wait::Woken,
            (false, false) => Wait::Delay,
        }
    }

    /// Returns whether the sender waits. If so, the caller must wake it.
    pub(super) fn take_starved(&mut self) -> bool {
        core::mem::take(&mut self.starved)
    }

    /// Returns whether the caller has to queue the watchdog.
    pub(super) fn watch(&mut self) -> bool {
        !self.retired && !core::mem::replace(&mut self.watched, true)
    }

    /// Records that the connection is being closed. The watchdog is not queued again.
    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// Checks the progress of the Send Queue and of the credits. If the connection is quiet, it is
    /// no longer watched, and the result contains the resources that it does not need.
    pub(super) fn check_progress(&mut self) -> (Progress, Surplus) {
        let ends = self.reserve.check_blocked();
        let progress = match self.queue.check_progress() {
            Progress::Stalled => Progress::Stalled,
            _ if ends => Progress::Blocked,
            Progress::Idle if self.reserve.is_blocked() => Progress::Active,
            progress => progress,
        };
        let mut surplus = Surplus::default();
        // A connection that is stalled or blocked is not watched again: it is closed.
        self.watched = matches!(progress, Progress::Stalled | Progress::Blocked);
        if progress == Progress::Idle {
            self.trim(&mut surplus);
        }
        (progress, surplus)
    }

    /// Moves the idle Receives and regions that a quiet connection does not need to `surplus`.
    fn trim(&mut self, surplus: &mut Surplus) {
        // Keep the free Receives while they replace those of another size.
        if self.resize.outdated() == 0 {
            surplus.receives = core::mem::take(&mut self.free);
        }
        let kept = Self::per_request(&self.limits);
        while self.idle.len() > kept {
            let Some(mr) = self.idle.pop() else { break };
            self.regions_made -= 1;
            surplus.regions.push(mr);
        }
        self.show_regions();
    }

    /// Removes a surplus Send.
    pub(super) fn shrink_sends(&mut self) -> Option<Pin<KBox<SendCtx>>> {
        if self.sends.len() <= SENDS_KEPT {
            return None;
        }
        self.sends_made -= 1;
        self.sends.pop()
    }

    /// Removes the resources for a region that was freed.
    pub(super) fn shrink_invs(&mut self) -> Option<Pin<KBox<InvCtx>>> {
        if self.invs.len() <= self.regions_made {
            return None;
        }
        self.invs.pop()
    }
}

/// The resources that a quiet connection does not need.
#[derive(Default)]
pub(super) struct Surplus {
    /// Receive buffers that are not posted.
    pub(super) receives: RecvList<()>,
    /// Idle regions.
    pub(super) regions: MrList,
}

#[cfg(rpcrdma_kunit)]
mod kunit;
