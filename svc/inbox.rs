// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Received messages that wait for a service thread, in the order in which threads take them.
//! [`super::gate`] decides when.

use super::{
    call::CallState,
    client::Member,
    order::{
        ArrivalSeq,
        PullSeq, //
    },
    pool::{
        Ring,
        Share, //
    },
    receives::CallBox, //
};
use crate::kapi::{
    rdma::recv::RecvList,
    sunrpc::svc_rqst::CallData, //
};
use kernel::{
    prelude::*,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    }, //
};

/// How long, in ms, a Call waits for resources of the device.
const SHORT_MS: u32 = 30_000;
/// A shortage has ended if no pull has lacked resources for this time in ms. It is longer than the
/// interval at which a waiting Call is tried again.
const LULL_MS: u32 = 10_000;

/// A pulled Call, which may have to wait for its turn.
pub(super) trait Ordered {
    /// Returns the number of its pull; `None` if its order does not matter.
    fn seq(&self) -> Option<PullSeq>;

    /// Returns the arrival number of the Call on its connection.
    fn arrival(&self) -> ArrivalSeq;

    /// Returns whether a service thread may take it now.
    fn is_next(&self, member: &Member) -> bool {
        self.seq().is_none_or(|seq| member.allows(seq))
    }
}

/// The received messages of a connection.
pub(super) struct Inbox<P> {
    pub(super) messages: RecvList<CallData<CallState>>,
    /// The next message, if it has to wait for its turn.
    pub(super) first: Option<CallBox>,
    /// Calls with their own pull number. A service thread may take them at any time to begin their
    /// pulls; they wait for their turn once they are pulled. So they are not queued behind
    /// messages, which may have to wait for them.
    pulls: RecvList<CallData<CallState>>,
    /// Other Calls whose RDMA Reads had to wait. They are older than `messages`.
    pub(super) held: RecvList<CallData<CallState>>,
    /// Calls whose Read chunks have been pulled. A pull may begin when the Call arrives, while
    /// older messages wait for a service thread.
    pub(super) pulled: Ring<P>,
    pub(super) gate: InboxGate,
    /// The arrival number of the last message.
    last: ArrivalSeq,
    /// The number after the last pull that a service thread has begun. Messages that arrived after
    /// the pull's Call, but before the pull began, have lower numbers. They get this one when they
    /// are taken.
    after_pull: PullSeq,
    /// The shortage of resources for pulls, if there is one.
    short: Option<DeviceShortage>,
}

/// Whether messages may be taken out of the inbox. Pulled Calls may always be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InboxGate {
    Open,
    /// Closed while a pull is in progress, until the client has proved that it has access.
    Pulling,
    /// Closed until the resources for RDMA Reads may be available again.
    NoResources,
}

/// An entry of the inbox.
pub(super) enum Incoming<P> {
    /// A message, as it was received.
    Message(CallBox),
    /// A Call whose Read chunks have been pulled.
    Pulled(P),
}

/// A shortage of resources of the device.
struct DeviceShortage {
    /// The first Call that lacked them.
    first: ArrivalSeq,
    /// When that was.
    since: Jiffies,
    /// When a Call last lacked them.
    last: Jiffies,
}

impl DeviceShortage {
    /// Returns whether the shortage has lasted for so long that no Call should wait for its end.
    fn is_long(&self, now: Jiffies) -> bool {
        now.wrapping_sub(self.since) >= msecs_to_jiffies(SHORT_MS)
    }
}

impl<P: Ordered> Inbox<P> {
    /// Creates an empty inbox with room for `contexts` pulled Calls.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Inbox {
            messages: RecvList::new(),
            first: None,
            pulls: RecvList::new(),
            held: RecvList::new(),
            pulled: Ring::new(contexts, GFP_KERNEL)?,
            gate: InboxGate::Open,
            last: ArrivalSeq::default(),
            after_pull: PullSeq::default(),
            short: None,
        })
    }

    /// Returns the arrival number of a message that arrives now.
    #[inline]
    pub(super) fn arrive(&mut self) -> ArrivalSeq {
        self.last = self.last.next();
        self.last
    }

    /// Returns whether the gate is open and only `messages` has entries. Then a message can wait
    /// only because of the order of the client's Calls.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.gate == InboxGate::Open
            && self.first.is_none()
            && self.pulls.is_empty()
            && self.held.is_empty()
            && self.pulled.len() == 0
    }

    /// Removes the only entry, if it is a pulled Call that may be taken now.
    #[inline]
    pub(super) fn pop_only_pulled(&mut self, member: &Member) -> Option<P> {
        if self.pulled.len() != 1 || self.has_messages() {
            return None;
        }
        self.pulled.pop_if(|call| call.is_next(member))
    }

    /// Returns whether there is a received message, whether or not it may be taken.
    pub(super) fn has_messages(&self) -> bool {
        let is_held = !self.pulls.is_empty() || !self.held.is_empty();
        self.first.is_some() || is_held || !self.messages.is_empty()
    }

    /// Returns whether a Call is held back until resources are available or the client has access.
    pub(super) fn has_held(&self) -> bool {
        self.short.is_some() || !self.held.is_empty()
    }

    /// Adds a message that has just arrived.
    #[inline]
    pub(super) fn push(&mut self, mut message: CallBox) {
        if message.data_mut().state.ordered.is_some() {
            self.pulls.push(message);
        } else {
            self.messages.push(message);
        }
    }

    /// Returns whether an entry may have to wait for its turn.
    pub(super) fn waits(&self) -> bool {
        self.first.is_some() || self.pulled.first().is_some()
    }

    /// Adds a pulled Call, before those that it precedes: threads may post pulls in another order
    /// than they begin them. Returns the Call if there are too many.
    pub(super) fn push_pulled(&mut self, call: P) -> Result<(), P> {
        if call.seq().is_none() {
            return self.pulled.push(call);
        }
        self.pulled
            .insert(call, |call, other| Some(call.seq()?.precedes(other.seq()?)))
    }

    /// Makes the messages in the inbox wait for the pull `seq`, which a service thread begins. They
    /// are younger than the Call of the pull, which the thread has taken before them.
    pub(super) fn begin_pull(&mut self, seq: PullSeq) {
        let after = seq.after();
        // Another thread may have begun a later pull meanwhile.
        if !after.precedes(self.after_pull) {
            self.after_pull = after;
        }
    }

    /// Holds back a Call whose Read chunks cannot be pulled now, and closes the gate until they can
    /// be. While the client has not proved that it has access, a pull in progress keeps the gate
    /// closed: the next one must not begin before it has ended.
    pub(super) fn hold(&mut self, message: CallBox, has_access: bool) {
        self.push_held(message);
        if has_access || self.gate != InboxGate::Pulling {
            self.gate = InboxGate::NoResources;
        }
    }

    /// Adds a Call that cannot be pulled now.
    pub(super) fn push_held(&mut self, mut message: CallBox) {
        if message.data_mut().state.ordered.is_some() {
            self.pulls.push(message);
        } else {
            self.held.push(message);
        }
    }

    /// Records that resources for the pull of a Call are short. Returns whether they have been
    /// short for so long that the Call should not wait: a mapping may fail forever, and other Calls
    /// of the connection wait as well.
    pub(super) fn note_short(&mut self, call: ArrivalSeq, now: Jiffies) -> bool {
        let lull = msecs_to_jiffies(LULL_MS);
        self.short
            .take_if(|short| now.wrapping_sub(short.last) >= lull);
        let short = self.short.get_or_insert(DeviceShortage {
            first: call,
            since: now,
            last: now,
        });
        short.last = now;
        short.is_long(now)
    }

    /// Records that the pull of `call` begins. This ends the shortage if `call` was the first that
    /// lacked resources. Another Call may need less, so its pull ends the shortage only if that has
    /// lasted too long.
    pub(super) fn note_mapped(&mut self, call: ArrivalSeq, now: Jiffies) {
        self.short
            .take_if(|short| short.first == call || short.is_long(now));
    }

    /// Removes any message, whether or not it may be taken.
    pub(super) fn pop_any(&mut self) -> Option<CallBox> {
        self.pulls.pop().or_else(|| self.pop_message())
    }

    /// Removes the first message that has no pull of its own, whether or not it may be taken.
    fn pop_message(&mut self) -> Option<CallBox> {
        let first = self.first.take().or_else(|| self.held.pop());
        let mut message = first.or_else(|| self.messages.pop())?;
        let state = &mut message.data_mut().state;
        if state.seq.precedes(self.after_pull) {
            state.seq = self.after_pull;
        }
        Some(message)
    }

    /// Returns whether messages may be taken. `has_access` is whether the client has proved that it
    /// has access.
    pub(super) fn is_open(&self, has_access: bool) -> bool {
        match self.gate {
            InboxGate::NoResources => false,
            InboxGate::Pulling => has_access,
            InboxGate::Open => true,
        }
    }

    /// Returns whether an entry may be taken now. If one has to wait for its turn, a service thread
    /// is woken when its turn comes.
    #[inline]
    pub(super) fn has_next(&mut self, has_access: bool, member: &Member) -> bool {
        if self.pulled.first().is_some_and(|ctx| ctx.is_next(member)) {
            return true;
        }
        if !self.has_messages() || !self.is_open(has_access) {
            return false;
        }
        if member.is_open() || !self.pulls.is_empty() {
            return true;
        }
        self.first = self.pop_message();
        let first = self.first.as_mut();
        first.is_some_and(|first| member.allows(first.data_mut().state.seq))
    }

    /// Removes the next entry that may be taken. Calls with their own pull number come first,
    /// because their pulls take a while. Otherwise it is the older one of the first message and the
    /// first pulled Call. If pulled Calls were always taken first, they would starve messages while
    /// the client keeps sending WRITEs.
    pub(super) fn next(&mut self, has_access: bool, member: &Member) -> Option<Incoming<P>> {
        let pulled = self.pulled.first().filter(|call| call.is_next(member));
        let pulled = pulled.map(P::arrival);
        if self.is_open(has_access) {
            if let Some(call) = self.pulls.pop() {
                return Some(Incoming::Message(call));
            }
            if let Some(mut message) = self.pop_message() {
                let state = &message.data_mut().state;
                let is_older = pulled.is_none_or(|pulled| state.arrival.precedes(pulled));
                if is_older && member.allows(state.seq) {
                    return Some(Incoming::Message(message));
                }
                self.first = Some(message);
            }
        }
        pulled.and_then(|_| self.pulled.pop().map(Incoming::Pulled))
    }
}

/// Permission to pull the Read chunks of a Call.
pub(super) enum PullPermit {
    /// The client has proved that it has access.
    Free,
    /// The client has not. This is its only pull, and has closed the gate.
    Only {
        /// The share of the budget of all such clients.
        _share: Share,
    },
}

#[cfg(rpcrdma_kunit)]
mod kunit;
