// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A connection: made step by step, ended in one order (RFC 8166, section 3; RFC 8797).
//!
//! ```text
//!   resolve address ─▶ resolve route ─▶ limits, PD, pools, QP, first Receives and regions
//!        ─▶ connect, with private data ─▶ agreed sizes ─▶ in use
//!        ─▶ shutdown: disconnect, drain ─▶ dropped, field by field
//! ```
//!
//! The connection manager's events only feed [`Fsm`] and wake whoever takes the steps, or have
//! sunrpc close the transport.

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    time::msecs_to_jiffies, //
};

use super::{
    conn::Conn,
    state::{
        Action,
        Event,
        Failure,
        Fsm,
        Step, //
    },
    transport::ClntXprt,
    tunables,
    REVERSE_CALLS, //
};
use crate::{
    kapi::{
        ext::wait::{
            new_waitqueue,
            WaitQueue, //
        },
        rdma::{
            client::{
                Removal,
                RemovalGuard, //
            },
            cm,
            device::Device,
            pd::Pd,
            qp::{
                Qp,
                QpConfig,
                QpOwner, //
            }, //
        },
        sunrpc::{
            addr::SockAddr,
            errno::{
                eaddrinuse,
                econnaborted,
                econnrefused,
                ehostunreach,
                enetunreach,
                enotconn,
                eproto, //
            },
            link::XprtLink,
            send_lock::SendLocked,
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_inline_thresh,
            Peer, //
        },
    },
    xdr::{
        limits::{
            ClientLimits,
            DeviceLimits,
            Refusal, //
        },
        private::Private,
        units::InlineSize, //
    },
};

/// How long address and route may take to resolve, each.
const RESOLVE_MS: u32 = 5_000;
/// How long connecting may take. The connection manager gives up before.
const CONNECT_MS: u32 = 120_000;

/// Who hears of a connection's events.
#[pin_data]
struct Events {
    #[pin]
    fsm: SpinLock<Fsm>,
    #[pin]
    peer: SpinLock<Private>,
    #[pin]
    wait: WaitQueue,
    link: XprtLink<ClntXprt>,
}

impl Events {
    fn feed(&self, event: Event) {
        let mut fsm = self.fsm.lock();
        match fsm.event(event) {
            Action::None => (),
            Action::Wake => self.wait.wake_all(),
            Action::Disconnect => self.force_disconnect(&fsm),
        }
    }

    /// Has sunrpc close this connection, and no later one: that comes after it has been retired,
    /// under the lock that the caller holds.
    fn force_disconnect(&self, fsm: &Fsm) {
        if let (false, Some(xprt)) = (fsm.is_retired(), self.link.get()) {
            xprt.force_disconnect();
        }
    }

    /// Takes a step and waits for it.
    fn step(&self, step: Step, ms: u32, start: impl FnOnce() -> Result) -> Result<(), Failed> {
        self.fsm.lock().begin(step)?;
        start().map_err(Failed::passing)?;
        let limit = msecs_to_jiffies(ms);
        let done = || self.fsm.lock().outcome();
        if !self.wait.wait_timeout(limit, || done().is_some()) {
            return Err(Failure::TimedOut.into());
        }
        Ok(done().unwrap_or(Err(Failure::TimedOut))?)
    }
}

impl cm::Handler for Events {
    fn event(&self, event: cm::Event<'_>) {
        let event = match event {
            cm::Event::AddrResolved => Event::Done(Step::Address),
            cm::Event::RouteResolved => Event::Done(Step::Route),
            cm::Event::Established(info) => {
                *self.peer.lock() = Private::decode(info.private_data).unwrap_or(Private::DEFAULT);
                Event::Done(Step::Connect)
            }
            cm::Event::AddrError => Event::Down(Failure::Address),
            cm::Event::RouteError => Event::Down(Failure::Route),
            cm::Event::ConnectError => Event::Down(Failure::Connect),
            cm::Event::Unreachable => Event::Down(Failure::Unreachable),
            cm::Event::Rejected { reason, .. } => Event::Down(match reason {
                REJECT_STALE => Failure::Stale,
                _ => Failure::Refused,
            }),
            cm::Event::Disconnected => Event::Down(Failure::Lost),
            cm::Event::DeviceRemoval | cm::Event::AddrChange => Event::Down(Failure::DeviceGone),
            cm::Event::TimewaitExit | cm::Event::Other => return,
        };
        self.feed(event);
    }
}

/// The connection manager's number for "stale connection".
const REJECT_STALE: i32 = 10;

impl Removal for Events {
    fn removed(&self) {
        self.feed(Event::Down(Failure::DeviceGone));
        // Whatever state it is in, the device waits for us.
        self.force_disconnect(&self.fsm.lock());
    }
}

/// Why an attempt to connect has failed.
#[derive(Clone, Copy)]
pub(super) struct Failed {
    /// What has happened, for people to read.
    pub(super) error: Error,
    /// What the RPC layer is told: one of the errors that it knows for connecting.
    pub(super) told: Error,
}

impl Failed {
    /// The RPC layer knows it, or nothing is gained by trying again.
    fn known(error: Error) -> Self {
        Self { error, told: error }
    }

    /// A device may be leaving, or be short of something, and say so by any number. A hard mount
    /// must not fail for that, so it has to be one after which the RPC layer tries again.
    fn passing(error: Error) -> Self {
        let retried = [
            eproto(),
            econnrefused(),
            econnaborted(),
            enetunreach(),
            ehostunreach(),
            eaddrinuse(),
            ETIMEDOUT,
        ];
        let told = match error {
            ENODEV => eproto(),
            error if retried.contains(&error) => error,
            _ => enotconn(),
        };
        Self { error, told }
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self::known(match failure {
            Failure::Address => eproto(),
            // Not ENETUNREACH: a server that is silent may only be restarting, and a hard mount
            // of a container takes that for the loss of its network, and fails.
            Failure::Route | Failure::Unreachable => ehostunreach(),
            Failure::Refused => econnrefused(),
            Failure::Stale | Failure::Connect => enotconn(),
            // The RPC layer tries again after a while, maybe on another device.
            Failure::DeviceGone | Failure::Lost => econnaborted(),
            Failure::TimedOut => ETIMEDOUT,
        })
    }
}

/// A connection, from its first step on.
///
/// The fields are dropped in the order they are written: the QP is drained before its buffers
/// go, the id goes when nothing is left on the device, and only then is the device let go.
pub(crate) struct Connection {
    qp: QpOwner<Conn>,
    conn: Arc<Conn>,
    id: cm::Id<Events>,
    _removal: RemovalGuard,
}

impl Connection {
    /// Connects `xprt`. Sleeps.
    ///
    /// # Errors
    ///
    /// What happened, and what the RPC layer is to be told: `EPROTO` without a device that leads
    /// to the server, `EINVAL` and `ENOMEM` with one that cannot do it, `ECONNREFUSED`,
    /// `ENETUNREACH`, `EHOSTUNREACH`, `EADDRINUSE`, `ENOTCONN`, `ETIMEDOUT`, and `ECONNABORTED` when
    /// the device or the transport goes meanwhile.
    pub(super) fn establish(xprt: &SendLocked<'_, ClntXprt>) -> Result<Arc<Self>, Failed> {
        let events = Arc::pin_init(
            pin_init!(Events {
                fsm <- new_spinlock!(Fsm::new()),
                peer <- new_spinlock!(Private::DEFAULT),
                wait <- new_waitqueue!("rpcrdma_rs: connect"),
                link: xprt.link(),
            }),
            GFP_KERNEL,
        )
        .map_err(Failed::passing)?;
        let conn = Self::steps(xprt, &events);
        conn.inspect_err(|_| events.fsm.lock().retire())
    }

    /// Takes the steps.
    fn steps(xprt: &SendLocked<'_, ClntXprt>, events: &Arc<Events>) -> Result<Arc<Self>, Failed> {
        let server = xprt.server();
        let id = cm::Id::create(xprt.net(), events.clone()).map_err(Failed::passing)?;
        events.step(Step::Address, RESOLVE_MS, || {
            id.resolve_addr(&server, RESOLVE_MS)
        })?;
        events.step(Step::Route, RESOLVE_MS, || id.resolve_route(RESOLVE_MS))?;
        let device = id.device().ok_or(Failed::passing(ENODEV))?;
        let limits = limits(device, xprt.max_reqs(), &server).map_err(Failed::known)?;
        let conn = Self::prepare(xprt, id, events.clone(), limits).map_err(Failed::passing)?;
        conn.connect(xprt, events)?;
        Ok(conn)
    }

    /// Makes all that a connection works with, on the device that was found.
    fn prepare(
        xprt: &Xprt<ClntXprt>,
        id: cm::Id<Events>,
        events: Arc<Events>,
        limits: ClientLimits,
    ) -> Result<Arc<Self>> {
        let removal = RemovalGuard::new(id.device().ok_or(ENODEV)?, events)?;
        let pd = Pd::new(&id)?;
        let conn = Conn::new(xprt.link(), pd.clone(), limits, our_sizes())?;
        let config = QpConfig {
            max_send_wr: limits.send_wr,
            max_recv_wr: limits.recv_wr,
            max_send_sge: limits.send_sges,
            least_send_sge: limits.send_sges,
            max_recv_sge: 1,
            max_rdma_ctxs: 0,
        };
        let qp = QpOwner::new(&id, &pd, &config, conn.clone())?;
        let this = Arc::new(
            Self {
                qp,
                conn,
                id,
                _removal: removal,
            },
            GFP_KERNEL,
        )?;
        this.conn.begin(xprt, &this.qp)?;
        Ok(this)
    }

    fn connect(&self, xprt: &SendLocked<'_, ClntXprt>, events: &Events) -> Result<(), Failed> {
        let ours = self.conn.offered();
        let private = ours.encode();
        let most = self.id.device().map_or(0, |d| d.attrs().max_qp_rd_atom);
        let param = cm::ConnParam {
            private_data: &private,
            // The server reads and writes; we do not.
            responder_resources: u8::try_from(most).unwrap_or(u8::MAX),
            initiator_depth: 0,
            // Soon enough for a server that has moved; the RPC layer tries again.
            retry_count: 6,
            // Credits leave no room for a message without a Receive.
            rnr_retry_count: 0,
        };
        xprt.restart_window();
        events.step(Step::Connect, CONNECT_MS, || self.id.connect(&param))?;
        self.conn.agree(&events.peer.lock());
        let agreed = self.conn.agreed();
        trace_xprtrdma_inline_thresh(
            &self.id.local_addr(),
            Peer::of(xprt),
            agreed.send.0,
            agreed.receive.0,
            ours.send.0,
            ours.receive.0,
        );
        Ok(())
    }

    /// The QP.
    pub(super) fn qp(&self) -> &Qp<Conn> {
        &self.qp
    }

    /// What the connection works with.
    pub(super) fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    /// Our address.
    pub(super) fn local_addr(&self) -> SockAddr {
        self.id.local_addr()
    }

    /// Tells the peer that the connection is over, and no more.
    pub(super) fn disconnect(&self) {
        // Without a connection there is nobody to tell.
        let _ = self.qp.disconnect();
    }

    /// Ends the connection: on return no completion runs any more, and the server reaches
    /// nothing of ours. Sleeps.
    pub(super) fn shutdown(&self) {
        self.id.handler().fsm.lock().retire();
        self.conn.retire();
        self.disconnect();
        self.qp.close();
        self.conn.set_closed();
    }
}

/// What we offer: the sizes an administrator set, and remote invalidation.
pub(super) fn our_sizes() -> Private {
    Private {
        remote_invalidation: true,
        send: InlineSize::tellable(tunables::MAX_INLINE_WRITE.get()),
        receive: InlineSize::tellable(tunables::MAX_INLINE_READ.get()),
    }
}

/// Fits the connection to the device.
fn limits(device: &Device, requests: u32, server: &SockAddr) -> Result<ClientLimits> {
    let attrs = device.attrs();
    let limits = DeviceLimits {
        max_qp_wr: attrs.max_qp_wr,
        max_cqe: attrs.max_cqe,
        max_send_sge: attrs.max_send_sge,
        max_fast_reg_pages: attrs.max_fast_reg_pages,
        mem_mgt_extensions: attrs.mem_mgt_extensions,
    };
    let mut limits = ClientLimits::new(&limits, requests, REVERSE_CALLS).map_err(|refusal| {
        let (why, error) = match refusal {
            Refusal::NoFastRegistration => ("has no fast registration of memory", EINVAL),
            Refusal::TooFewSges => ("takes too few elements in a Send", ENOMEM),
            Refusal::TooFewPages => ("registers too few pages at a time", ENOMEM),
            Refusal::QueuesTooShort => ("has too short queues", ENOMEM),
        };
        pr_err!("{}: device {} {}\n", server, device.name(), why);
        error
    })?;
    limits.send_sges = limits.send_sges.min(inline_sges(our_sizes().send));
    Ok(limits)
}

/// The most elements that `choose` counts for a message that is sent inline: header, head, tail, and
/// pages that begin anywhere.
fn inline_sges(send: InlineSize) -> u32 {
    // CAST: A page is not larger than `u32::MAX`.
    let page = kernel::page::PAGE_SIZE as u32;
    send.0.div_ceil(page).saturating_add(4)
}
