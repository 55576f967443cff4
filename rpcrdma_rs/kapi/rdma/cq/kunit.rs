// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: statuses of completions.

use super::*;

impl Wc {
    /// Returns the completion of the chain with this ticket.
    pub(in crate::kapi::rdma) fn with_ticket(ticket: Ticket) -> Self {
        let cid = Cid {
            queue: 0,
            completion: 0,
        };
        Wc { ticket, cid }
    }
}

#[kunit_tests(rpcrdma_cq)]
mod tests {
    use super::*;

    #[test]
    fn success_errors_and_flushes_are_distinguished() -> Result {
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
