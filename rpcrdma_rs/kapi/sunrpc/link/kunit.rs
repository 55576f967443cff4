// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: borrows of a transport that is being destroyed. The tests have no transport and never
//! access what they borrow.

use kernel::{
    prelude::*,
    seq_file::SeqFile,
    time::Jiffies, //
};

use super::*;
use crate::kapi::{
    ext::atomic::Relaxed,
    fixture::{
        long_pause,
        pause,
        spawn, //
    },
    sunrpc::{
        addr::SockAddr,
        backchannel::BcRqst,
        class::XprtClass,
        rqst::Slot,
        send_lock::SendLocked, //
    }, //
};

/// A transport type that is never instantiated.
#[pin_data]
struct Nothing {}

static CLASS: XprtClass<Nothing> = XprtClass::new(c"rpcrdma-kunit", 9999, [c"none", c"none6"]);

#[vtable]
impl XprtOps for Nothing {
    type Slot = Nothing;
    type Conn = ();

    fn class() -> &'static XprtClass<Self> {
        &CLASS
    }

    fn new(_link: XprtLink<Self>) -> impl PinInit<Self, Error> {
        pin_init!(Nothing {}? Error)
    }

    fn new_slot() -> impl PinInit<Nothing, Error> {
        pin_init!(Nothing {}? Error)
    }

    fn slots() -> u32 {
        0
    }

    fn max_payload() -> usize {
        0
    }

    fn reconnect_pause(_: &SendLocked<'_, Self>) -> Jiffies {
        0
    }

    fn establish(_: &SendLocked<'_, Self>) -> Result<Arc<()>> {
        Err(EINVAL)
    }

    fn close(_: &mut SendLocked<'_, Self>) {}

    fn destroy(_: &mut SendLocked<'_, Self>) {}

    fn send_request(_: &mut SendLocked<'_, Self>, _: &Slot<Self>) -> Result {
        Err(EINVAL)
    }

    fn may_be_unanswered(_: &Self::Slot) -> bool {
        false
    }

    fn release_buffers(_: &Xprt<Self>, _: &Slot<Self>) {}

    fn note_grown(_: &Xprt<Self>, _: usize) {}

    fn local_addr(_: &Xprt<Self>) -> Option<SockAddr> {
        None
    }

    fn print_stats(_: &Xprt<Self>, _: &SeqFile) {}

    fn inject_disconnect(_: &Xprt<Self>) {}

    fn bc_setup(_: &Xprt<Self>, _: u32) -> Result {
        Err(EINVAL)
    }

    fn bc_max_payload(_: &Xprt<Self>) -> usize {
        0
    }

    fn bc_slots(_: &Xprt<Self>) -> u32 {
        0
    }

    fn bc_send_reply(_: &mut SendLocked<'_, Self>, _: &BcRqst<Self>) -> Result {
        Err(EINVAL)
    }
}

/// Creates a closed link without a transport.
fn link() -> Result<XprtLink<Nothing>> {
    let shared = Arc::pin_init(Shared::new(core::ptr::dangling_mut()), GFP_KERNEL)?;
    Ok(XprtLink(shared))
}

/// Opens the link.
fn open(link: &XprtLink<Nothing>) {
    // SAFETY: The tests do not access what they borrow, and close the link.
    unsafe { link.0.open() };
}

/// What the threads of a test observe.
struct Observed {
    closed: Atomic<u32>,
    borrows: Atomic<u32>,
    bad: Atomic<u32>,
    ended: Atomic<u32>,
}

fn observed() -> Result<Arc<Observed>> {
    Ok(Arc::new(
        Observed {
            closed: Atomic::new(0),
            borrows: Atomic::new(0),
            bad: Atomic::new(0),
            ended: Atomic::new(0),
        },
        GFP_KERNEL,
    )?)
}

#[kunit_tests(rpcrdma_link)]
mod tests {
    use super::*;

    #[test]
    fn an_open_link_can_be_borrowed() -> Result {
        let link = link()?;
        assert!(link.get().is_none());
        open(&link);
        let other = link.clone();
        let borrows = [link.get(), other.get(), link.get()];
        assert!(borrows.iter().all(|borrow| borrow.is_some()));
        drop(borrows);
        link.0.close();
        assert!(link.get().is_none() && other.get().is_none());
        Ok(())
    }

    #[test]
    fn closing_waits_for_a_borrow() -> Result {
        let (link, observed) = (link()?, observed()?);
        open(&link);
        let (theirs, seen) = (link.clone(), observed.clone());
        spawn(move || {
            let borrow = theirs.get();
            seen.borrows.add(1, Relaxed);
            long_pause();
            // Closing has begun, so a new borrow fails.
            seen.bad.add(u32::from(theirs.get().is_some()), Relaxed);
            seen.ended.add(1, Relaxed);
            drop(borrow);
        })?;
        while observed.borrows.load(Relaxed) == 0 {
            pause();
        }
        link.0.close();
        assert_eq!(observed.ended.load(Relaxed), 1);
        assert_eq!(observed.bad.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_closed_link_cannot_be_borrowed() -> Result {
        for round in 0..10 {
            let (link, observed) = (link()?, observed()?);
            open(&link);
            for _ in 0..4 {
                let (theirs, seen) = (link.clone(), observed.clone());
                spawn(move || {
                    while let Some(borrow) = theirs.get() {
                        seen.borrows.add(1, Relaxed);
                        pause();
                        seen.bad.add(seen.closed.load(Relaxed), Relaxed);
                        drop(borrow);
                    }
                    seen.ended.add(1, Relaxed);
                })?;
            }
            while observed.borrows.load(Relaxed) < 8 + round {
                pause();
            }
            link.0.close();
            observed.closed.store(1, Relaxed);
            while observed.ended.load(Relaxed) < 4 {
                pause();
            }
            assert_eq!(observed.bad.load(Relaxed), 0);
        }
        Ok(())
    }
}
