// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Events of a connection. During setup they wake the worker that takes the steps; afterwards they
//! make sunrpc close the transport.

use kernel::{
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies, //
};

use super::{
    state::{
        Action,
        DownReason,
        Event,
        Fsm,
        Step, //
    },
    transport::{
        ClntXprt,
        Ended, //
    }, //
};
use crate::{
    kapi::{
        ext::{
            spinlock::{
                new_spinlock,
                SpinLock, //
            },
            wait::{
                new_waitqueue,
                WaitQueue, //
            }, //
        },
        rdma::{
            client::Removal,
            cm, //
        },
        sunrpc::{
            errno::{
                eaddrinuse,
                econnaborted,
                econnrefused,
                ehostunreach,
                enetunreach,
                enotconn,
                eproto, //
            },
            link::XprtLink, //
        }, //
    },
    xdr::private::Private, //
};

/// The receiver of a connection's events.
#[pin_data]
pub(super) struct Events {
    #[pin]
    pub(super) fsm: SpinLock<Fsm>,
    /// The server's private data.
    #[pin]
    pub(super) peer: SpinLock<Private>,
    #[pin]
    wait: WaitQueue,
    link: XprtLink<ClntXprt>,
}

impl Events {
    /// Allocates the events of a connection before its first step.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(link: XprtLink<ClntXprt>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                fsm <- new_spinlock!(Fsm::new()),
                peer <- new_spinlock!(Private::DEFAULT),
                wait <- new_waitqueue!("rpcrdma_rs: connect"),
                link,
            }),
            GFP_KERNEL,
        )
    }

    /// Handles an event of the connection manager or of the device, or a response.
    pub(super) fn handle(&self, event: Event) {
        let why = match event {
            Event::Down(DownReason::DeviceGone) => Ended::Device,
            _ => Ended::Peer,
        };
        self.handle_as(event, why);
    }

    /// Ends the connection, which was found broken or is given up.
    pub(super) fn fail(&self, why: Ended) {
        self.handle_as(Event::Broken, why);
    }

    /// Handles an event. If an established connection ends, the reason is `why`.
    fn handle_as(&self, event: Event, why: Ended) {
        let mut fsm = self.fsm.lock();
        match fsm.event(event) {
            Action::None => (),
            Action::Wake => self.wait.wake_all(),
            Action::Disconnect => {
                if let Some(xprt) = self.link.get() {
                    xprt.note_end(why);
                }
                self.force_disconnect(&fsm);
            }
        }
    }

    /// Makes sunrpc close this connection. Cannot affect a later one: the next connection is set up
    /// only after this one was retired, under the lock that the caller holds.
    fn force_disconnect(&self, fsm: &Fsm) {
        if let (false, Some(xprt)) = (fsm.is_retired(), self.link.get()) {
            xprt.force_disconnect();
        }
    }

    /// Takes a step and waits up to `ms` milliseconds for its result. Sleeps.
    pub(super) fn step(
        &self,
        step: Step,
        ms: u32,
        start: impl FnOnce() -> Result,
    ) -> Result<(), ConnectError> {
        self.fsm.lock().begin(step)?;
        start().map_err(ConnectError::transient)?;
        let limit = msecs_to_jiffies(ms);
        let done = || self.fsm.lock().outcome();
        if !self.wait.wait_timeout(limit, || done().is_some()) {
            return Err(DownReason::TimedOut.into());
        }
        Ok(done().unwrap_or(Err(DownReason::TimedOut))?)
    }
}

#[vtable]
impl cm::Handler for Events {
    fn event(&self, event: cm::Event<'_>) {
        let event = match event {
            cm::Event::AddrResolved => Event::Done(Step::Address),
            cm::Event::RouteResolved => Event::Done(Step::Route),
            cm::Event::Established(info) => {
                *self.peer.lock() = Private::decode(info.private_data).unwrap_or(Private::DEFAULT);
                Event::Done(Step::Connect)
            }
            cm::Event::AddrError => Event::Down(DownReason::Address),
            cm::Event::RouteError => Event::Down(DownReason::Route),
            cm::Event::ConnectError => Event::Down(DownReason::Connect),
            cm::Event::Unreachable => Event::Down(DownReason::Unreachable),
            cm::Event::Rejected { reason, .. } => Event::Down(match reason {
                REJECT_STALE => DownReason::Stale,
                _ => DownReason::Refused,
            }),
            cm::Event::Disconnected => Event::Down(DownReason::Lost),
            cm::Event::DeviceRemoval | cm::Event::AddrChange => Event::Down(DownReason::DeviceGone),
            cm::Event::TimewaitExit | cm::Event::Other => return,
        };
        self.handle(event);
    }
}

/// The connection manager's number for "stale connection".
const REJECT_STALE: i32 = 10;

impl Removal for Events {
    fn removing(&self) {
        self.handle(Event::Down(DownReason::DeviceGone));
        // In any state, because device removal waits for this connection.
        self.force_disconnect(&self.fsm.lock());
    }
}

/// The error of a failed attempt to connect.
#[derive(Clone, Copy)]
pub(super) struct ConnectError {
    /// The reason, for the log.
    pub(super) cause: Error,
    /// The error for the RPC layer: one of those that it expects from connecting.
    pub(super) status: Error,
    /// Whether the server received the request for version 2, and did not respond in version 2.
    pub(super) unanswered: bool,
}

impl ConnectError {
    /// Returns the error for a device that cannot support the connection. It fails a mount. But if
    /// the transport `had_connection`, a suitable device was removed and may be added again, so the
    /// RPC layer retries.
    pub(super) fn unsuitable(error: Error, had_connection: bool) -> Self {
        if had_connection {
            Self::transient(error)
        } else {
            Self::unchanged(error)
        }
    }

    /// Returns the error that reports `error` unchanged: the RPC layer expects it, or a retry is
    /// pointless.
    pub(super) fn unchanged(error: Error) -> Self {
        Self {
            cause: error,
            status: error,
            unanswered: false,
        }
    }

    /// Returns the result of an attempt that failed with `error`, which a device or the kernel has
    /// returned. The next attempt may succeed, so the status makes the RPC layer fail a new mount
    /// at once, but retry the RPCs of an established mount after a delay. A device that is being
    /// removed, or is short of a resource, may return any error. A hard mount must not fail then.
    pub(super) fn transient(error: Error) -> Self {
        let retried = [
            eproto(),
            econnrefused(),
            enetunreach(),
            ehostunreach(),
            eaddrinuse(),
            ETIMEDOUT,
        ];
        let status = match error {
            ENODEV => eproto(),
            error if retried.contains(&error) => error,
            _ => econnaborted(),
        };
        Self {
            cause: error,
            status,
            unanswered: false,
        }
    }
}

impl From<DownReason> for ConnectError {
    fn from(failure: DownReason) -> Self {
        Self::unchanged(match failure {
            DownReason::Address => eproto(),
            // Not ENETUNREACH: a hard mount in a container fails after that error, as if its
            // network was lost, but a silent server may be restarting.
            DownReason::Route | DownReason::Unreachable => ehostunreach(),
            DownReason::Refused => econnrefused(),
            DownReason::Stale | DownReason::Connect => enotconn(),
            // The RPC layer retries after a pause, perhaps through another device.
            DownReason::DeviceGone | DownReason::Lost => econnaborted(),
            DownReason::TimedOut => ETIMEDOUT,
        })
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
