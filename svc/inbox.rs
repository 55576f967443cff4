// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What was received, in the order in which it is taken. [`super::gate`] says when.

use super::{
    call::CallState,
    client::Member,
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
use kernel::prelude::*;

/// A pulled Call, which may have a turn.
pub(super) trait Ordered {
    /// Returns whether a service thread may take it now.
    fn is_next(&self, member: &Member) -> bool;
}

/// What was received and waits for a service thread.
pub(super) struct Inbox<P> {
    pub(super) messages: RecvList<CallData<CallState>>,
    /// The first message, when its turn comes later.
    pub(super) first: Option<CallBox>,
    /// Calls whose RDMA Reads had to wait. They are older than `messages`.
    pub(super) held: RecvList<CallData<CallState>>,
    /// Calls whose Read chunks have been pulled. They are older still.
    pub(super) pulled: Ring<P>,
    pub(super) gate: Gate,
}

/// Whether messages are taken out of the inbox. Pulled Calls always are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// Not as long as the client has not shown that it has access: it has a pull under way.
    Pulling,
    /// Not until something that RDMA Reads need may be available again.
    Short,
}

/// One thing that was received.
pub(super) enum Incoming<P> {
    /// A message, as it came.
    Message(CallBox),
    /// A Call whose Read chunks are here.
    Pulled(P),
}

impl<P: Ordered> Inbox<P> {
    /// An empty one, with room for as many pulled Calls as there are `contexts`.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Inbox {
            messages: RecvList::new(),
            first: None,
            held: RecvList::new(),
            pulled: Ring::new(contexts, GFP_KERNEL)?,
            gate: Gate::Open,
        })
    }

    pub(super) fn has_messages(&self) -> bool {
        self.first.is_some() || !self.held.is_empty() || !self.messages.is_empty()
    }

    /// Whether something may have to wait for its turn.
    pub(super) fn waits(&self) -> bool {
        self.first.is_some() || self.pulled.first().is_some()
    }

    /// Takes the first message, whether or not it may be taken.
    pub(super) fn pop_message(&mut self) -> Option<CallBox> {
        let first = self.first.take().or_else(|| self.held.pop());
        first.or_else(|| self.messages.pop())
    }

    /// Whether the gate lets messages out; `proven` says whether the client has shown that it has
    /// access.
    pub(super) fn is_open(&self, proven: bool) -> bool {
        match self.gate {
            Gate::Short => false,
            Gate::Pulling => proven,
            Gate::Open => true,
        }
    }

    /// Whether there is something to be taken. If its turn comes later, a service thread is called
    /// then.
    pub(super) fn has_next(&mut self, proven: bool, member: &Member) -> bool {
        if self.pulled.first().is_some_and(|ctx| ctx.is_next(member)) {
            return true;
        }
        if !self.has_messages() || !self.is_open(proven) {
            return false;
        }
        if member.is_open() {
            return true;
        }
        self.first = self.pop_message();
        let first = self.first.as_mut();
        first.is_some_and(|first| member.allows(first.data_mut().state.place))
    }

    /// Takes what is next.
    pub(super) fn next(&mut self, proven: bool, member: &Member) -> Option<Incoming<P>> {
        if self.pulled.first().is_some_and(|ctx| ctx.is_next(member)) {
            return self.pulled.pop().map(Incoming::Pulled);
        }
        if !self.is_open(proven) {
            return None;
        }
        let mut message = self.pop_message()?;
        if !member.allows(message.data_mut().state.place) {
            self.first = Some(message);
            return None;
        }
        Some(Incoming::Message(message))
    }
}

/// Leave to pull the Read chunks of a Call.
pub(super) struct Leave {
    /// Of what clients without proven access may have.
    pub(super) share: Option<Share>,
}
