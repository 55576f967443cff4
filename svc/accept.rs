// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Accepting a connection request, and negotiation by private data (RFC 8797, section 5).
//!
//! The CM's callback only adopts the new id. A service thread computes the limits, creates the
//! queues, posts Receives, and accepts the request last. If any of this fails, the id is dropped,
//! which refuses the request.

use super::{
    client::Clients,
    endpoint::{
        list_limits,
        Conn,
        Endpoint,
        Params, //
    },
    events::Events,
    limits::{
        Bounds,
        Sizes,
        CALLBACK_CREDITS, //
    },
    negotiation::Negotiation,
    status::ConnStatus,
    tunables::{
        MAX_OUTBOUND_READ_REQUESTS,
        MAX_REQUESTS,
        MAX_REQ_SIZE,
        MAX_VERSION, //
    }, //
};
use crate::{
    kapi::{
        ext::ratelimit::limited,
        rdma::{
            client::{
                Removal,
                RemovalGuard, //
            },
            cm::{
                ConnParam,
                ConnectRequest,
                Id, //
            },
            device::{
                DeviceAttrs,
                Port, //
            },
            pd::Pd,
            qp::{
                QpConfig,
                QpOwner, //
            }, //
        },
        sunrpc::{
            addr::SockAddr,
            svc::{
                Handle,
                NewXprt,
                NewXprtArgs,
                SvcXprt, //
            }, //
        },
        trace::{
            trace_svcrdma_accept_err,
            trace_svcrdma_initdepth_err,
            trace_svcrdma_pd_err,
            trace_svcrdma_qp_err, //
        }, //
    },
    xdr::{
        private::Private,
        units::InlineSize,
        version::Version, //
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// SGEs of one RDMA Read or Write, if the device supports as many.
const RW_SGES: u32 = 16;
/// A number of SGEs that suffices if the device cannot create long queues otherwise. A large
/// payload needs more Work Requests then.
const MIN_RW_SGES: u32 = 5;

/// A request that was adopted and waits for a service thread. Dropping it refuses the request.
pub(super) struct Pending {
    id: Id<Events<Conn>>,
    /// The private data of the client; the defaults if it sent none that can be read.
    client: Private,
    /// The number of RDMA Reads that the client's device executes concurrently.
    read_depth: u32,
    /// Delays removal of the device until the id is destroyed.
    _removal: RemovalGuard,
}

impl Pending {
    /// Returns the handler of the id's events.
    pub(super) fn events(&self) -> &Arc<Events<Conn>> {
        self.id.handler()
    }
}

/// Adopts a connection request, in the CM's callback. `removal` converts the id's handler into the
/// callback for device removal. That callback drops the [`Pending`] if it still waits for a service
/// thread.
///
/// # Errors
///
/// The request is refused: `ENOMEM`, or `ENODEV` if the device is being removed.
pub(super) fn adopt<R: Removal>(
    request: ConnectRequest<'_>,
    removal: impl FnOnce(Arc<Events<Conn>>) -> R,
) -> Result<Pending> {
    let events = Events::new()?;
    let removal = Arc::new(removal(events.clone()), GFP_KERNEL)?;
    let _removal = RemovalGuard::new(request.device().ok_or(ENODEV)?, removal)?;
    let info = request.info();
    let client = Private::decode(info.private_data).unwrap_or(Private::DEFAULT);
    let read_depth = u32::from(info.initiator_depth);
    Ok(Pending {
        id: request.adopt(events)?,
        client,
        read_depth,
        _removal,
    })
}

/// Creates a connection from `pending` and accepts it. Logs a failure and returns `None`.
pub(super) fn accept<'a>(
    args: NewXprtArgs<'a, Conn>,
    clients: &Arc<Clients>,
    pending: Pending,
) -> Option<NewXprt<'a, Conn>> {
    let peer = pending.id.peer_addr();
    match connection(args, clients, pending) {
        Ok(xprt) => Some(xprt),
        Err(e) => {
            limited!(pr_warn!("server: connection from {peer} refused: {e:?}\n"));
            None
        }
    }
}

fn connection<'a>(
    args: NewXprtArgs<'a, Conn>,
    clients: &Arc<Clients>,
    pending: Pending,
) -> Result<NewXprt<'a, Conn>> {
    let local = pending.id.local_addr();
    let peer = pending.id.peer_addr();

    SvcXprt::new_connection(args, &local, &peer, |handle, args| {
        let (conn, ours) = build(args, handle, clients, pending)?;
        let private = ours.private.encode();
        conn.accept(&ConnParam {
            private_data: &private,
            // Linux clients before 5.4, and illumos, send all pending Calls after they reconnect,
            // however many credits they have. Where the device can, it makes them wait until a
            // Receive is posted.
            rnr_retry_count: 7,
            initiator_depth: ours.read_depth,
            ..ConnParam::default()
        })
        .inspect_err(|e| trace_svcrdma_accept_err(&peer, e.to_errno()))?;
        conn.expect_first_message();
        Ok(conn)
    })
}

/// What the server tells the client when it accepts the connection.
struct AcceptParams {
    private: Private,
    read_depth: u8,
}

/// Returns the number of RDMA Reads that may be outstanding: the smallest of the limits of client,
/// device and administrator.
///
/// # Errors
///
/// `EINVAL` if it is zero, because no Call with Read chunks could be served.
fn read_depth(client: u32, attrs: &DeviceAttrs, peer: &SockAddr) -> Result<u8> {
    let depth = client
        .min(attrs.max_qp_init_rd_atom)
        .min(MAX_OUTBOUND_READ_REQUESTS.get());
    match u8::try_from(depth) {
        Ok(0) => {
            trace_svcrdma_initdepth_err(peer, EINVAL.to_errno());
            Err(EINVAL)
        }
        other => Ok(other.unwrap_or(u8::MAX)),
    }
}

/// Returns the private data for the client, and the result of the negotiation with the client's
/// private data (RFC 8797, section 5).
fn private_data(client: &Private, attrs: &DeviceAttrs) -> (Private, Private) {
    let size = InlineSize::representable(MAX_REQ_SIZE.get());
    let private = Private {
        // Used only if both sides support it (RFC 8797, section 5.1).
        remote_invalidation: attrs.mem_mgt_extensions,
        send: size,
        receive: size,
    };
    (private, private.negotiate(client))
}

/// Returns the number of rdma_rw contexts, which determines the number of memory regions of the QP.
/// It is zero except over iWARP, where RDMA Reads need memory regions.
fn rdma_ctxs(port: Port<'_>, args: &NewXprtArgs<'_, Conn>, credits: u32) -> Result<u32> {
    if !port.iwarp() {
        return Ok(0);
    }
    let pages = u32::try_from((args.max_payload() as usize).div_ceil(PAGE_SIZE))?;
    let factor = port.rw_mr_factor(pages);
    credits.checked_mul(factor).ok_or(EOVERFLOW)
}

/// Creates the queues of a connection and posts its Receives.
// Not inlined: its stack is not needed while the request is accepted.
#[inline(never)]
fn build(
    args: &NewXprtArgs<'_, Conn>,
    handle: &Handle<Conn>,
    clients: &Arc<Clients>,
    pending: Pending,
) -> Result<(Conn, AcceptParams)> {
    let id = pending.id;
    let port = id.port().ok_or(ENODEV)?;
    let attrs = port.device().attrs();
    let peer = id.peer_addr();

    let read_depth = read_depth(pending.read_depth, &attrs, &peer)?;
    // Over iWARP a Read is into a region, which is one element for any number of pages.
    let read_sges = if port.iwarp() {
        u32::MAX
    } else {
        attrs.max_sge_rd
    };
    let rw_sges = RW_SGES.min(attrs.max_send_sge).min(read_sges).max(1);
    let sizes = Sizes::new(&Bounds {
        // Draining takes an entry of each queue.
        max_queue: attrs.max_qp_wr.saturating_sub(1),
        max_completions: attrs.max_cqe.saturating_sub(2),
        rw_sges,
        max_requests: MAX_REQUESTS.get(),
        callbacks: CALLBACK_CREDITS,
        max_pages: u32::try_from(args.max_pages())?,
    })
    .ok_or(ENODEV)?;

    let (private, agreed) = private_data(&pending.client, &attrs);
    let removal = RemovalGuard::new(port.device(), id.handler().clone())?;
    let pd = Pd::new(&id).inspect_err(|e| trace_svcrdma_pd_err(&peer, e.to_errno()))?;
    let device = port.device().name();
    let params = Params {
        peer,
        status: ConnStatus::new(peer, device, sizes, agreed)?,
        sizes,
        receive_size: private.receive.0 as usize,
        remote_invalidation: agreed.remote_invalidation,
        can_invalidate: attrs.mem_mgt_extensions,
        list_limits: list_limits(args.max_pages()),
        read_mrs: rdma_ctxs(port, args, sizes.credits)?,
    };
    let max = Version::from_u32(MAX_VERSION.get()).unwrap_or(Version::One);
    let negotiation = Negotiation::new(max, agreed.send);
    let wake = KBox::new(handle.clone(), GFP_KERNEL)?;
    let member = clients.join(&peer, params.status.number, wake)?;
    let ep = Endpoint::new(
        params,
        negotiation,
        handle.clone(),
        id.handler().clone(),
        member,
    )?;
    // Reports events that arrived before the transport existed.
    id.handler().attach(handle);
    let qp = QpOwner::new(
        &id,
        &pd,
        &QpConfig {
            max_send_wr: sizes.sends,
            max_recv_wr: sizes.receives,
            max_send_sge: rw_sges,
            min_send_sge: MIN_RW_SGES.min(rw_sges),
            max_recv_sge: 1,
            max_rdma_ctxs: ep.params.read_mrs,
        },
        ep.clone(),
    )
    .inspect_err(|e| trace_svcrdma_qp_err(&peer, e.to_errno()))?;
    let conn = Conn::new(qp, id, ep, removal);
    conn.ep().post_first_receives(conn.qp())?;
    Ok((
        conn,
        AcceptParams {
            private,
            read_depth,
        },
    ))
}
