// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The server: the transport class "rdma" on which a service such as nfsd listens. It is the
//! Responder of RFC 8166, and the Requester of the reverse direction (RFC 8167).
//!
//! ```text
//!   listen         the listener: receives connection requests
//!   accept         accepts a request: limits, queues, first Receives
//!   conn           the callbacks of sunrpc and of completions; teardown
//!   read           pulls Read chunks before the Call is delivered
//!   recv           posts Receives; decodes messages, and delivers or refuses them
//!   send           sends Replies: inline, Write list, Reply chunk; sends error reports
//!   fast_path      sends Replies of the most common forms
//!   sendctx        the contexts of messages to send, and their completions
//!   properties     messages of version 2 about properties
//!   first_message  waits for a client's first message over iWARP
//!   last_calls     makes Calls wait for those of a lost connection
//!   trim           releases memory of a quiet connection
//!   backchannel    callbacks, in the reverse direction (RFC 8167)
//!   gate           decides when a service thread may take a message
//!   post           posts chains, or queues them while the Send Queue is full
//!   endpoint       the data of a connection and of its chains
//!   events         events of the CM and of device removal
//!   phase          the state of a connection
//!   inbox          messages that wait for a service thread
//!   layout         where the octets of Read chunks are placed
//!   receives       the number and the size of the Receives
//!   negotiation    the version that the connection uses
//!   status         the status of a connection in debugfs
//!   call           the state of a Call
//!   client         the order of Calls over all connections of one client
//!   order          the pure code of `client`
//!   payloads       the parts of a Reply that are written to the Write list
//!   sq             room in the Send Queue, waiting chains
//!   sq_accounting  entries of the Send Queue, and detection of stalls
//!   pool           pages that are reused between RPCs
//!   contexts       contexts of Sends and RDMA Reads that are not in use
//!   limits         the sizes of the queues
//!   tunables       the sysctls, and the counters
//! ```
//!
//! A file imports only files below it. `limits`, `order`, `payloads`, `phase` and `sq_accounting`
//! are pure: they use no kernel interface, and are tested on the host.
//!
//! # Locks
//!
//! The spin locks of [`endpoint::Endpoint`] and [`sq::Sq`] are held for a few lines, which do not
//! sleep. No other lock is taken inside them, with one exception: the lock of a [`client`] nests
//! inside the inbox's lock. It also nests inside the mutex of the list of clients. The listener's
//! mutexes are held while a connection request is adopted, and while listening ids are created and
//! destroyed.

#![deny(unsafe_code)]

mod accept;
mod backchannel;
mod call;
mod client;
mod conn;
mod contexts;
mod endpoint;
mod events;
mod fast_path;
mod first_message;
mod gate;
mod inbox;
mod last_calls;
mod layout;
mod limits;
mod listen;
mod negotiation;
mod order;
mod payloads;
mod phase;
mod pool;
mod post;
mod properties;
mod read;
mod receives;
mod recv;
mod send;
mod sendctx;
mod sq;
mod sq_accounting;
mod status;
mod trim;
pub(crate) mod tunables;

use crate::kapi::sunrpc::{
    addr::SockAddr,
    class,
    net::Net,
    svc::{
        Class,
        ClassCell,
        ClassRegistration,
        NewXprt,
        NewXprtArgs, //
    }, //
};
use kernel::prelude::*;

/// The transport class, which sunrpc finds by its name.
struct Rdma;

static CLASS: ClassCell<Rdma> = ClassCell::new();

impl Class for Rdma {
    const NAME: &'static CStr = c"rdma";
    // XPRT_TRANSPORT_RDMA
    const IDENT: i32 = 256;
    const MAX_PAYLOAD: u32 = 4 << 20;
    type Listener = listen::Listen;

    fn cell() -> &'static ClassCell<Self> {
        &CLASS
    }

    fn create<'a>(
        args: NewXprtArgs<'a, listen::Listen>,
        net: &Net,
        addr: &SockAddr,
    ) -> Result<NewXprt<'a, listen::Listen>> {
        listen::create(args, net, addr)
    }
}

/// The registration of the transport classes. Dropping it unregisters them.
pub(crate) struct Registration {
    _server: ClassRegistration<Rdma>,
    _callbacks: class::Registration,
}

/// Registers the server's class and that of its callbacks until the result is dropped.
///
/// # Errors
///
/// `EEXIST` if there is a class "rdma", that is, if the C module is loaded.
pub(crate) fn register() -> Result<Registration> {
    let callbacks = backchannel::CLASS.register()?;
    Ok(Registration {
        // The last step that may fail: from then on a service may create transports.
        _server: ClassRegistration::new()?,
        _callbacks: callbacks,
    })
}
