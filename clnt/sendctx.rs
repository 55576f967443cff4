// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The owner of a posted Send. It keeps the bytes of the message until the device has read them.
//!
//! The transport header and a Call's head and tail are copied into the Send's own buffer. So a
//! request may be given up, and its slot reused, while its Send is in flight. Only pages are sent
//! in place; the Send holds references to them.
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

/// The buffers of one Send.
#[pin_data]
pub(super) struct SendCtx {
    #[pin]
    cqe: Cqe<Self>,
    message: SendBuf,
    is_bc: bool,
    registered: usize,
}

impl_has_cqe! {
    impl HasCqe for SendCtx { self.cqe }
}

impl SendCtx {
    /// Allocates the buffers of a Send of up to `len` bytes and `sges` elements. May sleep, but
    /// does not wait until memory is free: the caller may hold the transport's send lock, which
    /// WRITEs need to free memory.
    pub(super) fn new(
        pd: &Arc<Pd>,
        len: usize,
        sges: usize,
        is_bc: bool,
    ) -> Result<Pin<KBox<Self>>> {
        // One element each for lead and trail.
        let message = SendBuf::new(pd, len, sges.max(2))?;
        KBox::pin_init(
            pin_init!(Self {
                cqe <- Cqe::new(),
                message,
                is_bc,
                registered: 0,
            }),
            GFP_NOWAIT | __GFP_NOWARN,
        )
    }

    /// Returns whether the Send is for messages of the reverse direction.
    pub(super) fn is_bc(&self) -> bool {
        self.is_bc
    }

    /// Returns the message, for a chain.
    pub(super) fn message(&self) -> &SendBuf {
        &self.message
    }

    /// Returns the message, for building it.
    pub(super) fn message_mut(self: Pin<&mut Self>) -> &mut SendBuf {
        self.project().message
    }

    /// Returns the buffer, which the caller fills in from the front.
    pub(super) fn body(self: Pin<&mut Self>) -> &mut [u8] {
        self.message_mut().body_mut()
    }

    /// Sets the number of regions that the same chain registers before the message.
    pub(super) fn set_registered(self: Pin<&mut Self>, count: usize) {
        *self.project().registered = count;
    }

    /// Empties the message and releases its pages. Returns the number of regions that the chain
    /// registered.
    pub(super) fn clear(self: Pin<&mut Self>) -> usize {
        let this = self.project();
        this.message.clear();
        core::mem::take(this.registered)
    }
}
