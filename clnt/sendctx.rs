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

use core::{
    ops::Range,
    pin::Pin, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    kapi::rdma::{
        cq::{
            impl_has_cqe,
            Cqe, //
        },
        dma::{
            DmaBuf,
            SendMap,
            Sge, //
        },
        pd::Pd,
        wr::Chain,
        Direction,
        MemSeg, //
    },
    xdr::limits::CLIENT_SEND_SGES,
};

// What a Send is planned with fits the chain.
const _: () = assert!(CLIENT_SEND_SGES as usize <= Chain::MAX_SGE);

/// The buffers of one Send.
#[pin_data]
pub(super) struct SendCtx {
    #[pin]
    cqe: Cqe<Self>,
    body: DmaBuf,
    pages: SendMap,
    lead: usize,
    trail: Range<usize>,
    reverse: bool,
}

impl_has_cqe! {
    impl HasCqe for SendCtx { self.cqe }
}

impl SendCtx {
    /// Makes the buffers of a Send of up to `len` bytes and `sges` elements. May sleep.
    pub(super) fn new(
        pd: &Arc<Pd>,
        len: usize,
        sges: usize,
        reverse: bool,
    ) -> Result<Pin<KBox<Self>>> {
        let body = DmaBuf::new(pd, len, Direction::ToDevice)?;
        // One each for lead and trail.
        let pages = SendMap::new(pd, sges.saturating_sub(2))?;
        KBox::pin_init(
            pin_init!(Self {
                cqe <- Cqe::new(),
                body,
                pages,
                lead: 0,
                trail: 0..0,
                reverse,
            }),
            GFP_KERNEL,
        )
    }

    /// Whether it is for messages of the reverse direction.
    pub(super) fn is_reverse(&self) -> bool {
        self.reverse
    }

    /// The buffer, to be filled in from the front.
    pub(super) fn body(self: Pin<&mut Self>) -> &mut [u8] {
        self.project().body.as_mut_slice()
    }

    /// Says what of the buffer is to be sent: its first `lead` bytes, and after the pages those
    /// of `trail`.
    pub(super) fn set_parts(self: Pin<&mut Self>, lead: usize, trail: Range<usize>) {
        let this = self.project();
        *this.lead = lead;
        *this.trail = trail;
    }

    /// Adds pages, to be sent between the two parts of the buffer.
    ///
    /// # Errors
    ///
    /// `ENOSPC` when there are too many runs; `ENOMEM` when one cannot be mapped for now.
    pub(super) fn add_pages<'a>(
        self: Pin<&mut Self>,
        segs: impl Iterator<Item = MemSeg<'a>>,
    ) -> Result {
        let this = self.project();
        for seg in segs {
            this.pages.push(seg)?;
        }
        Ok(())
    }

    /// The message.
    pub(super) fn sges(&self) -> Result<impl Iterator<Item = Sge<'_>>> {
        let lead = self.body.sge(0..self.lead)?;
        let trail = self.body.sge(self.trail.clone())?;
        let pages = Iterator::chain(core::iter::once(lead), self.pages.sges());
        Ok(Iterator::chain(pages, core::iter::once(trail)))
    }

    /// Lets go of what the last message was.
    pub(super) fn clear(self: Pin<&mut Self>) {
        let this = self.project();
        this.pages.clear();
        *this.lead = 0;
        *this.trail = 0..0;
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
