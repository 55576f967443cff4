// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What a posted Send owns: the bytes it takes, until the device is done with them.
//!
//! The transport header and what lies in a Call's head and tail are copied into the Send's own
//! buffer, so that a request may be given up, and its slot be used for another, while its Send
//! is still under way. Only pages are sent from where they are, and the map of them keeps
//! them.
//!
//! ```text
//!   body:  | header | head |····| tail |          SGEs: lead, pages..., trail
//!          └──── lead ────┘    └ trail ┘
//! ```

use core::pin::Pin;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::kapi::rdma::{
    cq::{
        impl_has_cqe,
        Cqe, //
    },
    pd::Pd,
    send::SendBuf, //
};

/// What one Send owns.
#[pin_data]
pub(super) struct SendCtx {
    #[pin]
    cqe: Cqe<Self>,
    message: SendBuf,
    reverse: bool,
    registered: usize,
}

impl_has_cqe! {
    impl HasCqe for SendCtx { self.cqe }
}

impl SendCtx {
    /// Makes what a Send of up to `len` bytes and `sges` elements needs. May sleep.
    pub(super) fn new(
        pd: &Arc<Pd>,
        len: usize,
        sges: usize,
        reverse: bool,
    ) -> Result<Pin<KBox<Self>>> {
        // One each for lead and trail.
        let message = SendBuf::new(pd, len, sges.max(2))?;
        KBox::pin_init(
            pin_init!(Self {
                cqe <- Cqe::new(),
                message,
                reverse,
                registered: 0,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether it is for messages of the reverse direction.
    pub(super) fn is_reverse(&self) -> bool {
        self.reverse
    }

    /// Returns the message, for a chain.
    pub(super) fn message(&self) -> &SendBuf {
        &self.message
    }

    /// Returns the message, to be put together.
    pub(super) fn message_mut(self: Pin<&mut Self>) -> &mut SendBuf {
        self.project().message
    }

    /// Returns the buffer, to be filled in from the front.
    pub(super) fn body(self: Pin<&mut Self>) -> &mut [u8] {
        self.message_mut().body_mut()
    }

    /// Says how many regions are registered ahead of the message, in the same chain.
    pub(super) fn set_registered(self: Pin<&mut Self>, count: usize) {
        *self.project().registered = count;
    }

    /// Makes the message empty, and releases its pages; returns how many regions were registered
    /// ahead of it.
    pub(super) fn clear(self: Pin<&mut Self>) -> usize {
        let this = self.project();
        this.message.clear();
        core::mem::take(this.registered)
    }
}
