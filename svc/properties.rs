// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Messages of version 2 about properties, in both directions
//! (draft-cel-nfsv4-rpcrdma-version-two-04, sections 5 and 7).

use super::{
    endpoint::{
        Conn,
        Endpoint, //
    },
    limits::CALLBACK_CREDITS,
    receives::CallBox,
    tunables::MAX_REQ_SIZE, //
};
use crate::{
    kapi::{
        ext::atomic::Relaxed,
        sunrpc::svc_rqst::CallRef,
        trace::trace_svcrdma_property, //
    },
    xdr::{
        header::Proc,
        message::{
            self,
            Parsed, //
        },
        peek,
        props::{
            encode_connprop,
            encode_receive,
            encode_resprop,
            has_response,
            Message,
            Properties, //
        },
        resize::ResizeResult,
        units::{
            Credits,
            InlineSize,
            Xid, //
        },
        version::Version, //
    }, //
};
use kernel::prelude::*;

impl Endpoint {
    /// Records the client's properties if the message in `buf` is RDMA2_UPDPROP, or the first
    /// RDMA2_CONNPROP. Called by the completion, for one message at a time and in the order of
    /// their arrival, because the reply to a later Call may be as long as the client permits here,
    /// and a service thread may take that Call first.
    pub(super) fn take_properties(&self, buf: &mut CallBox) {
        let CallRef { bytes, state } = CallRef::of(buf);
        let accepts = self.negotiation.accepts();
        if accepts.high() == Version::One || !peek::may_have_properties(bytes) {
            return;
        }
        let limits = &self.params.list_limits;
        let Ok(message) = message::decode_other_into(&mut state.call, bytes, limits, accepts)
        else {
            return;
        };
        match message.properties(bytes) {
            Some(Message::Update { now }) => {
                self.negotiation.update(&now);
                self.show_properties(Proc::UpdProp);
            }
            Some(Message::Connect { start })
                if self.negotiation.note_connected(message.header.xid) =>
            {
                self.negotiation.begin(&start);
                self.show_properties(Proc::ConnProp);
            }
            _ => {}
        }
    }

    /// Shows the properties that the client has sent in a message of procedure `proc`.
    fn show_properties(&self, proc: Proc) {
        let now = self.negotiation.receive.load(Relaxed);
        self.params.status.peer_receive.store(now, Relaxed);
        let callbacks = self.negotiation.calls.load(Relaxed);
        self.params.status.peer_calls.store(callbacks, Relaxed);
        trace_svcrdma_property(&self.params.peer, proc.to_u32(), now);
    }

    /// Returns the largest permitted size of Receives in octets. Returns 0, which leaves the size
    /// as it is, until the client has sent its properties: a client without properties need not
    /// support changes.
    pub(super) fn max_receive_size(&self) -> u32 {
        if self.negotiation.announced.load(Relaxed) {
            InlineSize::representable(MAX_REQ_SIZE.get()).0
        } else {
            0
        }
    }
}

impl Conn {
    /// Announces the size of the Receives, if they are larger than the client knows. May sleep.
    pub(super) fn announce_receive_size(&self) {
        let due = self.ep().recvs.lock().resize.take_due();
        let Some(size) = due else {
            return;
        };
        // The message is not a response: its credit word is no grant, and its XID is not looked up.
        let (xid, credits) = (Xid(0), Credits(CALLBACK_CREDITS));
        // Posted at once or not at all, so that later messages follow it.
        let sent = self.submit_message(
            |buffer| encode_receive(buffer, Proc::UpdProp, xid, credits, size),
            Endpoint::try_submit,
        );
        self.ep().recvs.lock().resize.end_announcement(sent.is_ok());
        match sent {
            Ok(()) => self.show_receive_size(Proc::UpdProp, size),
            // A service thread tries again with the next batch of Receives.
            Err(EAGAIN) => (),
            Err(_) => self.ep().fail(),
        }
    }

    /// Records that a message of procedure `proc` has announced Receives of `octets` to the client.
    fn show_receive_size(&self, proc: Proc, octets: u32) {
        let params = &self.ep().params;
        params.status.announced.store(octets, Relaxed);
        trace_svcrdma_property(&params.peer, proc.to_u32(), octets);
    }

    /// Sends the server's properties in response to the message `xid`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::send_message`].
    fn send_properties(&self, xid: Xid) -> Result {
        // Another thread may handle a request for a smaller size, whose response must not precede
        // this message.
        let mut recvs = self.ep().recvs.lock();
        recvs.resize.hold();
        let ours = Properties {
            receive: InlineSize(recvs.resize.announced()),
            ..Properties::DEFAULT
        };
        drop(recvs);
        let sent = self.send_message(|buffer| encode_connprop(buffer, xid, self.credits(), &ours));
        self.ep().recvs.lock().resize.end_hold();
        sent
    }

    /// Handles a message about properties, and sends the response if one is due.
    pub(super) fn receive_properties(&self, buf: CallBox, message: &Parsed) {
        let negotiation = &self.ep().negotiation;
        let (xid, credits) = (message.header.xid, self.credits());
        let answered = match message.properties(buf.bytes()) {
            // The client sends all of its properties once.
            Some(Message::Connect { .. }) if negotiation.announce(xid) => self.send_properties(xid),
            // A size up to that of the posted Receives can be granted at once.
            Some(Message::Request { want }) => {
                let mut max = 0;
                let fits = has_response(&want, negotiation.send(self.ep().params.receive_size));
                if let Some(octets) = want.receive().filter(|_| fits) {
                    // Use the result of `request`, because another request may change the size at
                    // the same time.
                    let mut recvs = self.ep().recvs.lock();
                    if recvs.resize.request(octets) == ResizeResult::Granted {
                        // Another thread may send the response to another request.
                        recvs.resize.hold();
                        max = octets;
                    }
                    drop(recvs);
                    if max != 0 {
                        self.show_receive_size(Proc::RespProp, octets);
                    }
                    self.ep().few_receives.store(true, Relaxed);
                }
                let sizes = fits.then_some(Version::Two.default_inline().0..=max);
                let sent = self.send_message(|buffer| {
                    encode_resprop(buffer, xid, credits, &want, sizes.as_ref())
                });
                if max != 0 {
                    self.ep().recvs.lock().resize.end_hold();
                }
                sent
            }
            // `take_properties` has recorded them, and the server makes no request that could have
            // a response.
            Some(Message::Update { .. } | Message::Connect { .. } | Message::Response { .. })
            | None => Ok(()),
        };
        self.release_message(buf);
        if answered.is_err() {
            self.ep().fail();
        }
    }
}
