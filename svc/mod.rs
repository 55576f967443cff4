// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The server: the transport class "rdma" that a service such as nfsd listens on.
//!
//! ```text
//!   listen   waits for connection requests, hands them to
//!   accept   which makes a connection out of one: limits, queues, Receives
//!   conn     what sunrpc and completions call the connection for, closing, freeing
//!   recv     a received message becomes a Call, or is answered with an error
//!   read     Read chunks are pulled before the Call is delivered
//!   send     replies: inline, Write list, Reply chunk; error reports
//!   version  the client's messages about its properties
//!   trim     how a quiet connection gives back what it keeps
//!   backchannel  callbacks, in the reverse direction (RFC 8167)
//!   gate     when a service thread takes what was received
//!   post     chains go to the device, or wait in line for room
//!   chan     what all of these share: the data of a connection and of its chains
//!   events   what the CM and device removal report
//!   phase    how far a connection has come
//!   inbox    what was received and waits for a service thread
//!   layout   says where the octets of Read chunks land
//!   receives how many Receives there are, and of which size
//!   spoken   which version the connection speaks
//!   client   the order of Calls over all connections of one client, which
//!   order    has the limits of
//!   sq       room in the Send Queue, the line, and progress
//!   pool     pages that are kept between two RPCs
//! ```
//!
//! A file imports those further down only. `ledger`, `limits`, `order`, `phase` and `call` are pure.
//!
//! # Locks
//!
//! One at a time: the spin locks of [`chan::Chan`] and [`sq::Sq`] are held for a few lines, in
//! which no other is taken and nothing sleeps; only that of a [`client`] is taken inside the
//! inbox's, and inside the mutex of the list of clients. The listener's mutexes are held while a connection
//! request is adopted and while listening ids are made and destroyed.

#![deny(unsafe_code)]

mod accept;
mod backchannel;
mod call;
mod chan;
mod client;
mod conn;
mod events;
mod gate;
mod inbox;
mod layout;
mod ledger;
mod limits;
mod listen;
mod live;
mod order;
mod phase;
mod pool;
mod post;
mod read;
mod receives;
mod recv;
mod send;
mod spoken;
mod sq;
mod trim;
pub(crate) mod tunables;
mod version;

use crate::kapi::sunrpc::{
    addr::SockAddr,
    class,
    net::Net,
    svc::{
        Class,
        ClassCell,
        ClassRegistration,
        Origin,
        SvcXprt, //
    }, //
};
use kernel::{
    prelude::*,
    sync::aref::ARef, //
};

/// The class, known to sunrpc by its name.
struct Rdma;

static CLASS: ClassCell = ClassCell::new();

impl Class for Rdma {
    const NAME: &'static CStr = c"rdma";
    // XPRT_TRANSPORT_RDMA
    const IDENT: i32 = 256;
    const MAX_PAYLOAD: u32 = 4 << 20;
    type Listener = listen::Listen;

    fn cell() -> &'static ClassCell {
        &CLASS
    }

    fn create(
        origin: Origin<'_>,
        net: &Net,
        addr: &SockAddr,
    ) -> Result<ARef<SvcXprt<listen::Listen>>> {
        listen::create(origin, net, addr)
    }
}

/// The classes as sunrpc knows them. Dropping it unregisters them.
pub(crate) struct Registration {
    _server: ClassRegistration,
    _callbacks: class::Registration,
}

/// Registers the server's class and that of its callbacks until the result is dropped.
///
/// # Errors
///
/// `EEXIST` if there is a class "rdma", that is, if the C module is loaded.
pub(crate) fn register(module: &'static ThisModule) -> Result<Registration> {
    let server = ClassRegistration::new::<Rdma>(module)?;
    Ok(Registration {
        _server: server,
        _callbacks: backchannel::CLASS.register()?,
    })
}
