// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Setup of a connection in steps, and its teardown in a fixed order (RFC 8166, section 3; RFC
//! 8797).
//!
//! ```text
//!   resolve address ─▶ resolve route ─▶ limits, PD, pools, QP, first Receives and regions
//!        ─▶ connect, with private data ─▶ agreed version and sizes ─▶ in use
//!        ─▶ shutdown: disconnect, drain ─▶ dropped, field by field
//! ```
//!
//! The connection manager's events only change the state in [`Events`]. They wake the worker that
//! takes the steps, or make sunrpc close the transport.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    endpoint::Endpoint,
    events::{
        ConnectError,
        Events, //
    },
    state::{
        Event,
        Step, //
    },
    status::ConnStatus,
    transport::ClntXprt,
    tunables,
    BC_MAX_CALLS, //
};
use crate::{
    kapi::{
        ext::{
            debugfs::StatusDir,
            errno::eproto, //
        },
        rdma::{
            client::RemovalGuard,
            cm,
            device::Device,
            pd::Pd,
            qp::{
                Qp,
                QpConfig,
                QpOwner, //
            }, //
        },
        status::CLIENT,
        sunrpc::{
            addr::SockAddr,
            errno::econnrefused,
            send_lock::SendLocked,
            xprt::Xprt, //
        },
        trace::{
            trace_xprtrdma_inline_thresh,
            trace_xprtrdma_version,
            Peer,
            VersionReason, //
        },
    },
    xdr::{
        limits::{
            ClientLimits,
            DeviceLimits,
            Refusal, //
        },
        negotiate::Negotiated,
        private::Private,
        units::InlineSize,
        version::Version, //
    },
};

/// How long the address may take to resolve, twice.
///
/// ib_core does not notice that a neighbour has failed. If the probing has begun while the link was
/// down, it may end right after this connection has begun to wait for it, and nothing more happens
/// until the timeout.
const ADDRESS_TIMEOUT_MS: u32 = 2_500;
/// How long the route may take to resolve.
const ROUTE_TIMEOUT_MS: u32 = 5_000;
/// How long the worker waits for the result. The connection manager reports why it failed after the
/// timeout, on a busy machine some time later.
const RESOLVE_WAIT_MS: u32 = 10_000;
/// How long connecting may take. The connection manager normally reports a failure earlier.
const CONNECT_MS: u32 = 120_000;
/// How long a server may take to respond to the request for version 2. It needs a free service
/// thread for that.
const VERSION_MS: u32 = 10_000;

/// A connection, from its first setup step on.
///
/// The fields are dropped in the order they are written: the QP is drained before its buffers
/// are freed, the id is destroyed when nothing is left on the device, and the removal of the device
/// is delayed until then.
pub(crate) struct Conn {
    _status_dir: StatusDir<ConnStatus>,
    qp: QpOwner<Endpoint>,
    ep: Arc<Endpoint>,
    id: cm::Id<Events>,
    _removal: RemovalGuard,
}

impl Conn {
    /// Connects `xprt`. Sleeps.
    ///
    /// # Errors
    ///
    /// The cause, and the error for the RPC layer: `EPROTO` if no device leads to the server,
    /// `EINVAL` and `ENOMEM` if the device cannot support the connection and there was none before,
    /// `ECONNREFUSED`, `ENETUNREACH`, `EHOSTUNREACH`, `EADDRINUSE`, `ENOTCONN`, `ETIMEDOUT`, and
    /// `ECONNABORTED` if the device or the transport is removed meanwhile, or memory or a resource
    /// of the device is short.
    pub(super) fn establish(xprt: &SendLocked<'_, ClntXprt>) -> Result<Arc<Self>, ConnectError> {
        if tunables::MAX_VERSION.get() < Version::Two.to_u32() || xprt.avoids_version_2() {
            return Self::attempt(xprt, false);
        }
        match Self::attempt(xprt, true) {
            Err(failed) if failed.unanswered => {
                let (one, why) = (Version::One.to_u32(), VersionReason::Unanswered);
                trace_xprtrdma_version(Peer::of(xprt), one, why as u32);
                let conn = Self::attempt(xprt, false);
                // If the server cannot be reached in version 1 either, the link or the server was
                // down, which says nothing about version 2.
                if conn.is_ok() {
                    xprt.avoid_version_2("does not answer version 2 of RPC-over-RDMA");
                }
                conn
            }
            other => other,
        }
    }

    /// Connects `xprt`, and requests version 2 if `request_v2`. Sleeps.
    fn attempt(
        xprt: &SendLocked<'_, ClntXprt>,
        request_v2: bool,
    ) -> Result<Arc<Self>, ConnectError> {
        xprt.note_begin();
        let (id, events) = Self::resolve_addr(xprt).or_else(|failed| match failed.cause {
            // A timeout makes ib_core probe the neighbour again, so this may succeed at once.
            cause if cause == eproto() => Self::resolve_addr(xprt),
            _ => Err(failed),
        })?;
        let conn = Self::steps(xprt, id, &events, request_v2);
        conn.inspect_err(|_| events.fsm.lock().retire())
    }

    /// Finds the device that leads to the server. Sleeps.
    fn resolve_addr(
        xprt: &SendLocked<'_, ClntXprt>,
    ) -> Result<(cm::Id<Events>, Arc<Events>), ConnectError> {
        let events = Events::new(xprt.link()).map_err(ConnectError::transient)?;
        let mut id = cm::Id::create(xprt.net(), events.clone()).map_err(ConnectError::transient)?;
        events
            .step(Step::Address, RESOLVE_WAIT_MS, || {
                id.resolve_addr(&xprt.server(), ADDRESS_TIMEOUT_MS)
            })
            .inspect_err(|_| events.fsm.lock().retire())?;
        Ok((id, events))
    }

    /// Takes the steps of connecting after the first one. Sleeps.
    fn steps(
        xprt: &SendLocked<'_, ClntXprt>,
        mut id: cm::Id<Events>,
        events: &Arc<Events>,
        request_v2: bool,
    ) -> Result<Arc<Self>, ConnectError> {
        events.step(Step::Route, RESOLVE_WAIT_MS, || {
            id.resolve_route(ROUTE_TIMEOUT_MS)
        })?;
        let device = id.device().ok_or(ConnectError::transient(ENODEV))?;
        let limits = limits(device, xprt.max_reqs(), &xprt.server())
            .map_err(|error| ConnectError::unsuitable(error, xprt.counters().connects != 0))?;
        let conn = Self::prepare(xprt, id, events.clone(), limits, request_v2)
            .map_err(ConnectError::transient)?;
        let made = conn
            .connect(xprt, events)
            .and_then(|()| conn.negotiate(xprt, events));
        if let Err(mut failed) = made {
            let lost = events.fsm.lock().is_lost();
            // The watchdog may be queued, and has a reference.
            conn.shutdown();
            // The queues are drained, so a response that arrived before the loss is known by now.
            failed.unanswered = lost && conn.ep.negotiation.is_unanswered();
            return Err(failed);
        }
        Ok(conn)
    }

    /// Allocates the resources of the connection on the device that was found.
    // Not inlined, because the stack frame of the caller is large.
    #[inline(never)]
    fn prepare(
        xprt: &Xprt<ClntXprt>,
        id: cm::Id<Events>,
        events: Arc<Events>,
        limits: ClientLimits,
        request_v2: bool,
    ) -> Result<Arc<Self>> {
        let removal = RemovalGuard::new(id.device().ok_or(ENODEV)?, events.clone())?;
        let pd = Pd::new(&id)?;
        let device = id.device().ok_or(ENODEV)?.name();
        let status = ConnStatus::new(xprt, device, &limits)?;
        let ep = Endpoint::new(
            xprt.link(),
            events,
            pd.clone(),
            limits,
            our_sizes(request_v2),
            request_v2,
            status.clone(),
        )?;
        let config = QpConfig {
            max_send_wr: limits.send_wr,
            max_recv_wr: limits.recv_wr,
            max_send_sge: limits.send_sges,
            min_send_sge: limits.send_sges,
            max_recv_sge: 1,
            max_rdma_ctxs: 0,
        };
        let qp = QpOwner::new(&id, &pd, &config, ep.clone())?;
        let this = Arc::new(
            Self {
                _status_dir: StatusDir::new(&CLIENT, ep.number(), status),
                qp,
                ep,
                id,
                _removal: removal,
            },
            GFP_KERNEL,
        )?;
        this.ep.begin(xprt, &this.qp)?;
        Ok(this)
    }

    fn connect(
        &self,
        xprt: &SendLocked<'_, ClntXprt>,
        events: &Events,
    ) -> Result<(), ConnectError> {
        let ours = self.ep.negotiation.ours();
        let private = ours.encode();
        let max = self.id.device().map_or(0, |d| d.attrs().max_qp_rd_atom);
        let param = cm::ConnParam {
            private_data: &private,
            // Only the server issues RDMA Reads.
            responder_resources: u8::try_from(max).unwrap_or(u8::MAX),
            initiator_depth: 0,
            // Few retries, to notice soon that a server has moved. The RPC layer reconnects.
            retry_count: 6,
            // Credits ensure that a Receive is posted for each message.
            rnr_retry_count: 0,
        };
        xprt.restart_window();
        events.step(Step::Connect, CONNECT_MS, || self.id.connect(&param))?;
        Ok(())
    }

    /// Negotiates the version and the message sizes.
    fn negotiate(
        &self,
        xprt: &SendLocked<'_, ClntXprt>,
        events: &Events,
    ) -> Result<(), ConnectError> {
        let negotiation = &self.ep.negotiation;
        if let Some(xid) = negotiation.connprop_xid() {
            let send = || {
                self.ep.send_connprop(&self.qp, xid)?;
                if negotiation.outcome().is_some() {
                    // The server's properties may have arrived before this step began.
                    events.handle(Event::Done(Step::Version));
                }
                Ok(())
            };
            let responded = events.step(Step::Version, VERSION_MS, send);
            // The server may have disconnected right after its response.
            self.check_outcome(xprt)?;
            responded?;
        }
        events.fsm.lock().finish()?;
        negotiation.agree(&events.peer.lock());
        let ours = negotiation.ours();
        if let Some(agreed) = negotiation.agreed() {
            self.ep.status.agree(agreed);
            let why = match (negotiation.outcome(), agreed.version) {
                (_, Version::Two) => VersionReason::Agreed,
                (Some(_), Version::One) => VersionReason::Refused,
                (None, Version::One) if xprt.avoids_version_2() => VersionReason::Avoided,
                (None, Version::One) => VersionReason::NotAsked,
            };
            trace_xprtrdma_version(Peer::of(xprt), agreed.version.to_u32(), why as u32);
            trace_xprtrdma_inline_thresh(
                &self.id.local_addr(),
                Peer::of(xprt),
                agreed.send().0,
                agreed.receive().0,
                ours.send.0,
                ours.receive.0,
            );
        }
        Ok(())
    }

    /// Checks that the server has not refused all versions of the client.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`: a hard mount retries, because the server may be replaced.
    fn check_outcome(&self, xprt: &Xprt<ClntXprt>) -> Result<(), ConnectError> {
        let Some(Negotiated::Failed { low, high }) = self.ep.negotiation.outcome() else {
            return Ok(());
        };
        if xprt.note_refused() {
            pr_warn!(
                "server {} supports only RPC-over-RDMA versions {} to {}\n",
                xprt.server(),
                low,
                high
            );
        }
        Err(ConnectError::unchanged(econnrefused()))
    }

    /// Returns the QP.
    pub(super) fn qp(&self) -> &Qp<Endpoint> {
        &self.qp
    }

    /// Returns the endpoint, which is the data that completions share.
    pub(super) fn ep(&self) -> &Arc<Endpoint> {
        &self.ep
    }

    /// Returns the local address.
    pub(super) fn local_addr(&self) -> SockAddr {
        self.id.local_addr()
    }

    /// Disconnects from the peer. Does not drain the QP. Sleeps.
    pub(super) fn disconnect(&self) {
        // Fails if there is no connection, and then no peer has to be notified.
        let _ = self.qp.disconnect();
    }

    /// Shuts down the connection. On return no completion runs. The server can no longer access
    /// memory of the client, unless the device has refused to stop the QP: then dropping the
    /// regions ends the access. Sleeps.
    pub(super) fn shutdown(&self) {
        self.id.handler().fsm.lock().retire();
        self.ep.retire();
        self.disconnect();
        self.qp.close();
        self.ep.set_closed();
    }
}

/// Returns the client's offer: the sizes that the administrator has set, and remote invalidation. A
/// server from which version 2 is requested may send messages of that version's default size.
pub(super) fn our_sizes(request_v2: bool) -> Private {
    let receive = InlineSize::representable(tunables::MAX_INLINE_READ.get());
    Private {
        remote_invalidation: true,
        send: InlineSize::representable(tunables::MAX_INLINE_WRITE.get()),
        receive: if request_v2 {
            receive.max(Version::Two.default_inline())
        } else {
            receive
        },
    }
}

/// Chooses the sizes of the connection by the limits of the device.
fn limits(device: &Device, requests: u32, server: &SockAddr) -> Result<ClientLimits> {
    let attrs = device.attrs();
    let limits = DeviceLimits {
        max_qp_wr: attrs.max_qp_wr,
        max_cqe: attrs.max_cqe,
        max_send_sge: attrs.max_send_sge,
        max_fast_reg_pages: attrs.max_fast_reg_pages,
        mem_mgt_extensions: attrs.mem_mgt_extensions,
    };
    let mut limits = ClientLimits::new(&limits, requests, BC_MAX_CALLS).map_err(|refusal| {
        let (why, error) = match refusal {
            Refusal::NoFastRegistration => ("has no fast registration of memory", EINVAL),
            Refusal::TooFewSges => ("supports too few SGEs in a Send", ENOMEM),
            Refusal::TooFewPages => ("registers too few pages at a time", ENOMEM),
            Refusal::QueuesTooShort => ("has queues that are too short", ENOMEM),
        };
        pr_err!("{}: device {} {}\n", server, device.name(), why);
        error
    })?;
    limits.send_sges = limits.send_sges.min(inline_sges(our_sizes(false).send));
    Ok(limits)
}

/// Returns the largest number of elements that `choose` counts for an inline message: header, head,
/// tail, and pages that need not be aligned.
fn inline_sges(send: InlineSize) -> u32 {
    // CAST: A page is not larger than `u32::MAX`.
    let page = kernel::page::PAGE_SIZE as u32;
    send.0.div_ceil(page).saturating_add(4)
}
