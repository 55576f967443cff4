// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The wait for a client's first message over iWARP.
//!
//! MPA lets the side that connected send first (RFC 5044, section 7.1), and a client connects in
//! order to send a message. siw may lose a message that arrives while the connection is being
//! accepted (`Documentation/known-issues.rst`). Neither side would close such a connection before
//! the client's RPC timer, which takes a minute or more. So the server closes a connection over
//! iWARP on which no message has arrived for a while. The client reconnects and retransmits.

use super::endpoint::{
    Conn,
    Endpoint,
    FIRST_MESSAGE, //
};
use crate::kapi::ext::{
    ratelimit::limited,
    work::xprtiod, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

/// How long the server waits for the first message, in ms.
const FIRST_MESSAGE_MS: u32 = 10_000;

impl WorkItem<FIRST_MESSAGE> for Endpoint {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if !this.params.status.is_silent() || this.is_closing() {
            return;
        }
        limited!(pr_warn!(
            "server: no message from {} within {} s over iWARP; closing the connection\n",
            this.params.peer,
            FIRST_MESSAGE_MS / 1_000
        ));
        this.handle.close();
    }
}

impl Conn {
    /// Starts the wait for the first message if the connection uses iWARP. Called once, when the
    /// connection has been accepted.
    pub(super) fn expect_first_message(&self) {
        if self.id.port().is_some_and(|port| port.iwarp()) {
            let pause = msecs_to_jiffies(FIRST_MESSAGE_MS);
            let _ = xprtiod().enqueue_delayed::<_, FIRST_MESSAGE>(self.shared_ep().clone(), pause);
        }
    }
}
