// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: entries that are in flight once at a time. Completions that no device made.

use super::*;
use crate::kapi::fixture::{
    contend,
    pause, //
};
use kernel::sync::atomic::Relaxed;

impl Wc {
    /// The completion of the chain with this ticket.
    pub(in crate::kapi::rdma) fn with_ticket(ticket: u64) -> Self {
        let cid = Cid {
            queue: 0,
            completion: 0,
        };
        Wc { ticket, cid }
    }
}

/// An entry and what threads tell of it.
struct Shared {
    entry: Opaque<RawCqe>,
    flights: Atomic<u32>,
    bad: Atomic<u32>,
}

// SAFETY: Threads use the entry only as its own rules allow, which is what is tested.
unsafe impl Send for Shared {}
// SAFETY: As above.
unsafe impl Sync for Shared {}

/// The status of the last completion that [`note`] was called for.
static STATUS: Atomic<u32> = Atomic::new(0);

/// Notes a completion.
///
/// # Safety
///
/// `wc` must be valid.
unsafe extern "C" fn note(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: By this function's contract.
    STATUS.store(unsafe { (*wc).status }, Relaxed);
}

fn shared() -> Result<Arc<Shared>> {
    Ok(Arc::new(
        Shared {
            entry: Opaque::new(RawCqe {
                cqe: bindings::ib_cqe { done: Some(note) },
                next: core::ptr::null_mut(),
                ticket: 0,
                busy: Atomic::new(false),
            }),
            flights: Atomic::new(0),
            bad: Atomic::new(0),
        },
        GFP_KERNEL,
    )?)
}

impl Shared {
    fn start(&self, ticket: u64) -> bool {
        // SAFETY: The entry is initialised.
        unsafe { RawCqe::start(self.entry.get(), ticket) }
    }

    /// Ends the flight that the caller started.
    fn end(&self) -> u64 {
        // SAFETY: It is in flight, and the flight the caller's.
        unsafe { RawCqe::end(self.entry.get()) }
    }
}

#[kunit_tests(rpcrdma_cq)]
mod tests {
    use super::*;

    #[test]
    fn one_flight_at_a_time() -> Result {
        let shared = shared()?;
        for ticket in [7, 8, u64::MAX] {
            assert!(shared.start(ticket));
            assert!(!shared.start(99));
            assert_eq!(shared.end(), ticket);
        }
        Ok(())
    }

    #[test]
    fn of_threads_that_start_one_flies() -> Result {
        let shared = shared()?;
        let theirs = shared.clone();
        contend(4, move |number| {
            for i in 0..200 {
                let ticket = (number * 1000 + i) as u64;
                if theirs.start(ticket) {
                    theirs.flights.add(1, Relaxed);
                    if i % 5 == 0 {
                        pause();
                    }
                    theirs.bad.add(u32::from(theirs.end() != ticket), Relaxed);
                } else {
                    pause();
                }
            }
        })?;
        assert_eq!(shared.bad.load(Relaxed), 0);
        assert!(shared.flights.load(Relaxed) > 0);
        assert!(shared.start(1));
        Ok(())
    }

    #[test]
    fn a_flush_is_told_as_such() -> Result {
        let shared = shared()?;
        assert!(shared.start(1));
        // SAFETY: It is in flight, and no device knows of it; `note` has no use for the queue.
        unsafe { RawCqe::flush(shared.entry.get(), core::ptr::null_mut()) };
        assert_eq!(
            STATUS.load(Relaxed),
            bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR
        );
        let cid = Cid {
            queue: 1,
            completion: 2,
        };
        let mut wc = bindings::ib_wc::default();
        assert!(WcError::of(&wc, cid).is_none());
        wc.status = bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR;
        wc.vendor_err = 5;
        let error = WcError::of(&wc, cid).ok_or(EINVAL)?;
        assert!(!error.flushed() && error.vendor() == 5);
        assert_eq!(error.text().to_bytes(), b"transport retry counter exceeded");
        wc.status = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
        assert!(WcError::of(&wc, cid).is_some_and(|e| e.flushed()));
        Ok(())
    }
}
