// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The callbacks of sunrpc for a connection, and its teardown.
//!
//! ```text
//!   accepted --ESTABLISHED--> open
//!   accepted, open --close(), from anywhere--> closing
//!       --detach()--> disconnected --last reference--> drained, freed
//! ```
//!
//! sunrpc detaches a closing connection once: on a service thread, for device removal, or when the
//! service ends. Messages may arrive before ESTABLISHED. They wait in the inbox until a service
//! thread has accepted the connection or ESTABLISHED arrives.

use super::{
    call::CallState,
    endpoint::{
        Conn,
        Endpoint,
        Pulled,
        FIRST_MESSAGE,
        LAST_CALLS,
        RETRY,
        TRIM, //
    },
    inbox::Incoming,
    payloads::Payload,
    receives::CallBox,
    status::ConnState, //
};
use crate::kapi::{
    ext::{
        atomic::Relaxed,
        work::cancel_delayed_sync, //
    },
    rdma::{
        cq::WcError,
        qp::{
            Qp,
            QpEvent,
            QpHandler, //
        },
        recv::RecvWc, //
    },
    sunrpc::{
        svc::SvcXprt,
        svc_ops::Connection,
        svc_reply::Reply,
        svc_rqst::{
            CallData,
            CallRef,
            Delivered,
            Receiver, //
        }, //
    },
    trace::{
        trace_svcrdma_send_err,
        trace_svcrdma_wc_recv,
        trace_svcrdma_wc_recv_err,
        trace_svcrdma_wc_recv_flush, //
    }, //
};
use kernel::prelude::*;

impl QpHandler for Endpoint {
    type Recv = CallData<CallState>;

    fn recv_done(&self, qp: &Qp<Self>, mut buf: CallBox, result: Result<RecvWc, WcError>) {
        match result {
            Ok(wc) => {
                trace_svcrdma_wc_recv(buf.cid(), wc.byte_len);
                self.params.status.note_received(&wc);
                self.received(qp, buf.capacity());
                // Forgets the header of the previous message.
                buf.data_mut().state.call = None;
                self.take_properties(&mut buf);
                if let Some(buf) = self.pull_at_once(qp, buf) {
                    self.queue_message(buf);
                }
            }
            Err(e) => {
                if e.flushed() {
                    trace_svcrdma_wc_recv_flush(e.cid(), e.status(), e.vendor());
                } else {
                    trace_svcrdma_wc_recv_err(e.cid(), e.status(), e.vendor());
                }
                self.put_failed_receive(buf);
                self.fail_completion("Receive", &e);
            }
        }
    }

    fn event(&self, event: QpEvent) {
        if let QpEvent::Fatal | QpEvent::Broken = event {
            self.handle.close();
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        cancel_delayed_sync(&self.ep.events);
        cancel_delayed_sync::<_, TRIM>(&self.ep);
        cancel_delayed_sync::<_, RETRY>(&self.ep);
        cancel_delayed_sync::<_, FIRST_MESSAGE>(&self.ep);
        cancel_delayed_sync::<_, LAST_CALLS>(&self.ep);
        self.ep.end_last_calls();
        self.ep.sq.close();
        // On return no completion runs, and the device does not access memory.
        self.qp.close();
        // A completion that was posting RDMA Reads may have started the timer until now.
        self.ep.sq.end();
        self.ep.clear_backlog(&self.qp);
        self.ep.clear_inbox();
    }
}

impl Conn {
    /// Adds or replaces Receives, and tells the client about their size.
    #[cold]
    fn more_receives(&self) {
        self.ep.add_receives(&self.qp);
        self.announce_receive_size();
        self.trim_later();
    }
}

#[vtable]
impl Connection for Conn {
    type Call = CallBox;
    type Incoming = Incoming<Pulled>;

    #[inline(always)]
    fn next(this: &SvcXprt<Self>) -> Option<Incoming<Pulled>> {
        this.ep.next_incoming(|| this.clear_data())
    }

    #[inline(always)]
    fn receive<'a>(
        this: &SvcXprt<Self>,
        receiver: Receiver<'a, Self::Call>,
        incoming: Incoming<Pulled>,
    ) -> Option<Delivered<'a>> {
        if this.ep.few_receives.load(Relaxed) {
            this.more_receives();
        }
        match incoming {
            Incoming::Message(message) => this.receive_message(this, receiver, message),
            Incoming::Pulled(ctx) => this.deliver_pulled(receiver, ctx),
        }
    }

    #[inline(always)]
    fn send(this: &SvcXprt<Self>, reply: &mut Reply<'_>, call: CallRef<'_, CallState>) -> Result {
        let bytes = call.bytes;
        this.send_reply(reply, call).inspect_err(|e| {
            let xid = bytes.first_chunk().copied();
            let xid = xid.map_or(0, u32::from_be_bytes);
            trace_svcrdma_send_err(&this.peer_addr(), xid, e.to_errno());
            this.ep.fail();
        })
    }

    fn result_payload(
        _this: &SvcXprt<Self>,
        call: CallRef<'_, CallState>,
        offset: u32,
        length: u32,
    ) -> Result {
        // A chunk that is too small is reported when the reply is sent, because the service's own
        // error would not fit the procedure.
        call.state.payloads.note(Payload { offset, length });
        Ok(())
    }

    /// Releases the Receive of a Call, and the pages that were held for it. If no Reply or error
    /// report was sent on the connection yet, the connection is closed after a while, unless one is
    /// sent by then.
    ///
    /// The service drops a Call without a Reply while it still processes the same Call of an
    /// earlier connection, and expects the client to retransmit it later. In version 1 a client has
    /// one credit before its first Reply (RFC 8166, section 3.3.1), so it could send no other Call
    /// until then; in version 2 it may have no other. Closing the connection makes the client
    /// retransmit sooner. It is not closed at once, because some clients retransmit without a
    /// pause.
    fn release(this: &SvcXprt<Self>, mut call: CallBox) {
        if let Some(array) = call.data_mut().release_pages() {
            this.ep.pages.lock().put_array(array);
        }
        this.ep.release_receive(&this.qp, call);
        if !this.ep.is_closing() {
            this.ep.events.note_dropped_call();
        }
    }

    fn detach(this: &SvcXprt<Self>) {
        this.ep.params.status.set_state(ConnState::Closing);
        // Fails if the connection was lost already.
        let _ = this.qp.disconnect();
        this.ep.sq.close();
        this.ep.clear_backlog(&this.qp);
        this.ep.clear_inbox();
        this.ep.order_last_calls();
    }
}
