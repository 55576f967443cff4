// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The client's messages about its properties, and what it is told
//! (draft-cel-nfsv4-rpcrdma-version-two-04, sections 5 and 7).

use super::{
    chan::{
        Chan,
        Conn, //
    },
    limits::CALLBACK_CREDITS,
    receives::CallBox,
    tunables::MAX_REQ_SIZE, //
};
use crate::kapi::{
    ext::atomic::Relaxed,
    trace::trace_svcrdma_property, //
};
use crate::xdr::{
    header::Proc,
    message::{
        self,
        Parsed, //
    },
    props::{
        encode_connprop,
        encode_receive,
        encode_resprop,
        Message,
        PropSet,
        Properties, //
    },
    resize::ResizeAnswer,
    units::{
        Credits,
        InlineSize,
        Xid, //
    },
    version::Version, //
};

impl Chan {
    /// Records what the client says of itself in RDMA2_UPDPROP, if the message `bytes` is that. Call it for one message at a time, in the order of their arrival: what a Call behind it
    /// is answered with may be as long as the client says here.
    pub(super) fn take_update(&self, bytes: &[u8]) {
        let accepts = self.negotiation.accepts();
        if accepts.high() == Version::One || !message::is_update(bytes) {
            return;
        }
        if let Ok(message) = message::decode(bytes, &self.params.list_limits(), accepts) {
            if let Some(Message::Update { now }) = message.properties(bytes) {
                self.hear_properties(Proc::UpdProp, &now);
            }
        }
    }

    /// The client tells the properties in `set`, in a message of procedure `proc`.
    fn hear_properties(&self, proc: Proc, set: &PropSet<'_>) {
        self.negotiation.update(set);
        let now = self.negotiation.receive.load(Relaxed);
        self.params.live.peer_receive.store(now, Relaxed);
        let callbacks = self.negotiation.calls.load(Relaxed);
        self.params.live.peer_calls.store(callbacks, Relaxed);
        trace_svcrdma_property(&self.params.peer, proc.to_wire(), now);
    }

    /// The size that Receives may have, in octets. That of a client's that has not told its
    /// properties does not change: it need not know what that is.
    pub(super) fn most_receive(&self) -> u32 {
        match self.negotiation.told.load(Relaxed) {
            true => InlineSize::representable(MAX_REQ_SIZE.get()).0,
            false => 0,
        }
    }
}

impl Conn {
    /// Tells the client the size of the Receives, if they are larger than it has been told. May
    /// sleep.
    pub(super) fn tell_receive_size(&self) {
        let due = self.chan().recvs.lock().resize.due();
        let Some(size) = due else {
            return;
        };
        // It answers nothing, so the credit word is no grant, and nobody looks for the XID.
        let (xid, credits) = (Xid(0), Credits(CALLBACK_CREDITS));
        let told =
            self.send_message(|buffer| encode_receive(buffer, Proc::UpdProp, xid, credits, size));
        if told.is_err() {
            self.chan().fail();
        }
        self.show_receive_size(Proc::UpdProp, size);
    }

    /// The client is told that Receives have room for `octets`, in a message of procedure `proc`.
    fn show_receive_size(&self, proc: Proc, octets: u32) {
        let params = &self.chan().params;
        params.live.told.store(octets, Relaxed);
        trace_svcrdma_property(&params.peer, proc.to_wire(), octets);
    }

    /// Takes in a message about properties and answers it, if it wants that.
    pub(super) fn receive_properties(&self, buf: CallBox, message: &Parsed) {
        let negotiation = &self.chan().negotiation;
        let receive = InlineSize(self.chan().recvs.lock().resize.told());
        let (xid, credits) = (message.header.xid, self.credits());
        let answered = match message.properties(buf.bytes()) {
            // The client tells all of itself once.
            Some(Message::Connect { start }) if !negotiation.told.xchg(true, Relaxed) => {
                self.chan().hear_properties(Proc::ConnProp, &start);
                let ours = Properties {
                    receive,
                    ..Properties::DEFAULT
                };
                self.send_message(|buffer| encode_connprop(buffer, xid, credits, &ours))
            }
            // A Receive size up to that of the Receives that are posted can be had at once.
            Some(Message::Request { want }) => {
                if let Some(octets) = want.receive() {
                    let answer = self.chan().recvs.lock().resize.ask(octets);
                    if answer == ResizeAnswer::Done {
                        self.show_receive_size(Proc::RespProp, octets);
                    }
                    self.chan().few_receives.store(true, Relaxed);
                }
                let sizes = Version::Two.default_inline().0..=receive.0;
                self.send_message(|buffer| encode_resprop(buffer, xid, credits, &want, &sizes))
            }
            // `take_update` has been here, and nothing was asked for that could be responded to.
            Some(Message::Update { .. } | Message::Connect { .. } | Message::Response { .. })
            | None => Ok(()),
        };
        self.forget(buf);
        if answered.is_err() {
            self.chan().fail();
        }
    }
}
