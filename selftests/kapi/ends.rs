// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Two ends of a connection that one thread creates and uses.

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    time::msecs_to_jiffies, //
};

use crate::kapi::{
    ext::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        pages::PageVec,
        wait::{
            new_waitqueue,
            WaitQueue, //
        }, //
    },
    fixture::{
        addr,
        net, //
    },
    rdma::{
        client::Removal,
        cm::{
            ConnParam,
            ConnectRequest,
            Event,
            Handler,
            Id, //
        },
        cq::{
            impl_has_cqe,
            Completion,
            Cqe,
            Wc,
            WcError, //
        },
        mr::Mr,
        pd::Pd,
        qp::{
            PostError,
            Qp,
            QpConfig,
            QpEvent,
            QpHandler,
            QpOwner, //
        },
        recv::{
            RecvBox,
            RecvList,
            RecvWc, //
        },
        rw::Transfer,
        send::SendBuf, //
    }, //
};

/// The port of the listener.
const PORT: u16 = 20050;
/// The number of SGEs that an end requests in a Send.
pub(super) const SEND_SGES: u32 = 4;
/// The number of Receives that an end posts.
pub(super) const RECEIVES: u32 = 16;

/// Fails a test and logs its name.
pub(super) fn check(ok: bool, what: &str) -> Result {
    if !ok {
        pr_err!("# failed: {what}\n");
        return Err(EIO);
    }
    Ok(())
}

pub(super) fn posted<P>(result: Result<(), PostError<P>>) -> Result {
    result.map_err(|e| e.error)
}

/// An owner that was returned, and the status of its chain.
type Completed = (Pin<KBox<Message>>, Result<Wc, WcError>);

/// The state of one end of the connection that its callbacks set.
#[pin_data]
pub(super) struct End {
    /// Private data of the peer, once established.
    #[pin]
    private: SpinLock<[u8; 4]>,
    /// The number of completed steps of connecting.
    #[pin]
    steps: SpinLock<u32>,
    #[pin]
    inbox: SpinLock<RecvList<u32>>,
    #[pin]
    pub(super) sent: SpinLock<Option<Completed>>,
    /// Whether a chain was posted in part.
    pub(super) broken: Atomic<bool>,
    /// The number of failed Receives.
    pub(super) failed: Atomic<u32>,
    #[pin]
    changed: WaitQueue,
}

impl End {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(End {
                private <- new_spinlock!([0; 4]),
                steps <- new_spinlock!(0),
                inbox <- new_spinlock!(RecvList::new()),
                sent <- new_spinlock!(None),
                broken: Atomic::new(false),
                failed: Atomic::new(0),
                changed <- new_waitqueue!("End::changed"),
            }),
            GFP_KERNEL,
        )
    }

    fn wait(&self, what: &str, condition: impl Fn() -> bool) -> Result {
        let limit = msecs_to_jiffies(10_000);
        check(self.changed.wait_timeout(limit, condition), what)
    }

    /// Waits for a step of connecting.
    fn step(&self, number: u32, what: &str) -> Result {
        self.wait(what, || *self.steps.lock() >= number)
    }

    /// Waits for the completion of the one message that is posted.
    pub(super) fn completion(&self) -> Result<Completed> {
        self.wait("a completion", || self.sent.lock().is_some())?;
        self.sent.lock().take().ok_or(EIO)
    }

    /// Waits for a message.
    pub(super) fn receive(&self) -> Result<RecvBox<u32>> {
        self.wait("a message", || !self.inbox.lock().is_empty())?;
        self.inbox.lock().pop().ok_or(EIO)
    }
}

#[vtable]
impl Handler for End {
    fn event(&self, event: Event<'_>) {
        if let Event::Established(info) = event {
            if let Some(data) = info.private_data.get(..4) {
                self.private.lock().copy_from_slice(data);
            }
        }
        if let Event::AddrResolved | Event::RouteResolved | Event::Established(_) = event {
            *self.steps.lock() += 1;
            self.changed.wake_all();
        }
    }
}

impl QpHandler for End {
    type Recv = u32;

    fn recv_done(&self, _qp: &Qp<Self>, buffer: RecvBox<u32>, result: Result<RecvWc, WcError>) {
        if result.is_err() {
            self.failed.fetch_add(1, Relaxed);
            return;
        }
        self.inbox.lock().push(buffer);
        self.changed.wake_all();
    }

    fn event(&self, event: QpEvent) {
        if event == QpEvent::Broken {
            self.broken.store(true, Relaxed);
        }
    }
}

impl Removal for End {
    fn removing(&self) {}
}

/// The owner of a chain.
#[pin_data]
pub(super) struct Message {
    #[pin]
    cqe: Cqe<Message>,
    pub(super) text: SendBuf,
    pub(super) transfer: Transfer,
}

impl_has_cqe! { impl HasCqe for Message { self.cqe } }

impl Completion for Message {
    type Handler = End;

    fn done(this: Pin<KBox<Self>>, qp: &Qp<End>, result: Result<Wc, WcError>) {
        *qp.handler().sent.lock() = Some((this, result));
        qp.handler().changed.wake_all();
    }
}

impl Message {
    pub(super) fn new(pd: &Arc<Pd>, text: &[u8], transfer: Transfer) -> Result<Pin<KBox<Self>>> {
        let mut buf = SendBuf::new(pd, text.len(), 1)?;
        buf.body_mut().copy_from_slice(text);
        buf.add_part(0..text.len())?;
        KBox::pin_init(
            pin_init!(Message { cqe <- Cqe::new(), text: buf, transfer }),
            GFP_KERNEL,
        )
    }

    pub(super) fn pages(self: Pin<&mut Self>) -> &mut PageVec {
        self.project().transfer.unmap()
    }
}

/// The listener: adopts the one request for `server`.
#[pin_data]
struct Listener {
    server: Arc<End>,
    #[pin]
    adopted: SpinLock<Option<Id<End>>>,
}

#[vtable]
impl Handler for Listener {
    fn event(&self, _event: Event<'_>) {}

    fn connect_request(&self, request: ConnectRequest<'_>) {
        if let Ok(id) = request.adopt(self.server.clone()) {
            *self.adopted.lock() = Some(id);
            self.server.changed.wake_all();
        }
    }
}

/// An end with its queues. The fields are dropped in this order.
pub(super) struct Side {
    pub(super) qp: QpOwner<End>,
    pub(super) pd: Arc<Pd>,
    pub(super) id: Id<End>,
    pub(super) end: Arc<End>,
}

impl Side {
    fn new(id: Id<End>, end: Arc<End>, max_send_wr: u32, max_rdma_ctxs: u32) -> Result<Self> {
        let pd = Pd::new(&id)?;
        let config = QpConfig {
            max_send_wr,
            max_recv_wr: RECEIVES,
            max_send_sge: SEND_SGES,
            min_send_sge: SEND_SGES / 4,
            max_recv_sge: 1,
            max_rdma_ctxs,
        };
        let qp = QpOwner::new(&id, &pd, &config, end.clone())?;
        for pd in [pd.clone(), Pd::new(&id)?] {
            let second = QpOwner::new(&id, &pd, &config, end.clone());
            check(
                second.err() == Some(EBUSY),
                "a second QP on an id is refused",
            )?;
        }
        let mut list = RecvList::new();
        for number in 0..RECEIVES {
            list.push(RecvBox::new(&pd, 1024, number)?);
        }
        qp.post_recvs(list).map_err(|(e, _)| e)?;
        Ok(Side { qp, pd, id, end })
    }

    /// Posts a received buffer again.
    pub(super) fn repost(&self, buffer: RecvBox<u32>) -> Result {
        let mut list = RecvList::new();
        list.push(buffer);
        self.qp.post_recvs(list).map_err(|(e, _)| e)
    }

    /// Sends a text together with the registration of `mr`, and returns the owner.
    pub(super) fn send(&self, text: &[u8], mr: Option<&mut Mr>) -> Result {
        let message = Message::new(&self.pd, text, Transfer::new())?;
        posted(self.qp.post::<Message>(message, |m, chain| {
            if let Some(mr) = mr {
                chain.reg_mr(mr)?;
            }
            chain.send(&m.text)
        }))?;
        let (message, result) = self.end.completion()?;
        check(message.text.body() == text, "the owner comes back")?;
        check(result.is_ok(), "a Send succeeds")
    }

    /// Takes a message, compares it and posts its buffer again.
    pub(super) fn expect(&self, text: &[u8]) -> Result {
        let buffer = self.end.receive()?;
        check(buffer.bytes() == text, "a message is received whole")?;
        check(buffer.invalidated().is_none(), "nothing is invalidated")?;
        self.repost(buffer)
    }
}

/// Connects two ends. Returns the client first, which has a Send Queue of that length.
pub(super) fn connect(address: u32, sends: u32) -> Result<(Side, Side)> {
    let net = net();
    let (client, server) = (End::new()?, End::new()?);
    let for_listener = server.clone();
    let listener = Arc::pin_init(
        pin_init!(Listener {
            server: for_listener,
            adopted <- new_spinlock!(None),
        }),
        GFP_KERNEL,
    )?;
    let mut listening = Id::create(net, listener.clone())?;
    listening.set_afonly(true)?;
    listening.bind(&addr(address, PORT)?)?;
    listening.listen(1)?;

    let mut id = Id::create(net, client.clone())?;
    check(id.device().is_none(), "no device before resolution")?;
    id.resolve_addr(&addr(address, PORT)?, 5000)?;
    client.step(1, "the address is resolved")?;
    id.resolve_route(5000)?;
    client.step(2, "the route is resolved")?;
    let client = Side::new(id, client, sends, 0)?;
    client.id.connect(&ConnParam {
        private_data: b"from",
        responder_resources: 16,
        retry_count: 6,
        ..ConnParam::default()
    })?;

    server.wait("the listener is asked", || {
        listener.adopted.lock().is_some()
    })?;
    let id = listener.adopted.lock().take().ok_or(EIO)?;
    check(
        id.peer_addr().ip() == client.id.local_addr().ip(),
        "the peer's address",
    )?;
    let server = Side::new(id, server, 64, 16)?;
    server.id.accept(&ConnParam {
        private_data: b"back",
        initiator_depth: 16,
        ..ConnParam::default()
    })?;
    client.end.step(3, "the client is connected")?;
    server.end.step(1, "the server is connected")?;
    check(
        *client.end.private.lock() == *b"back",
        "private data of the server",
    )?;
    Ok((client, server))
}
