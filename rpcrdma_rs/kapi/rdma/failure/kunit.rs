// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the status of a request that failed is kept for the completion of its chain.

use super::*;
use kernel::prelude::*;

const ACCESS: bindings::ib_wc_status = bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR;
const FLUSHED: bindings::ib_wc_status = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
const SUCCESS: bindings::ib_wc_status = bindings::ib_wc_status_IB_WC_SUCCESS;

/// Completes a request with these codes, as ib_core does for a CQ whose context is `failure`.
fn complete(failure: &Failure, status: bindings::ib_wc_status, vendor_err: u32) -> Result {
    let mut cq = KBox::new(bindings::ib_cq::default(), GFP_KERNEL)?;
    cq.cq_context = core::ptr::from_ref(failure).cast_mut().cast();
    let mut wc = bindings::ib_wc {
        status,
        vendor_err,
        ..Default::default()
    };
    // SAFETY: The entry is a static variable.
    let done = unsafe { (**unsignaled().wr_cqe).done }.ok_or(EINVAL)?;
    // SAFETY: The context of the CQ is a `Failure`, and the completion is valid.
    unsafe { done(&mut *cq, &mut wc) };
    Ok(())
}

#[kunit_tests(rpcrdma_failure)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_kept_until_it_is_taken() -> Result {
        let failure = Failure::new();
        assert!(failure.take().is_none());
        complete(&failure, ACCESS, 0x8000_0005)?;
        complete(&failure, FLUSHED, 7)?;
        assert_eq!(failure.take(), Some((ACCESS, 0x8000_0005)));
        assert!(failure.take().is_none());
        Ok(())
    }

    #[test]
    fn what_was_flushed_or_succeeded_is_no_failure() -> Result {
        let failure = Failure::new();
        complete(&failure, FLUSHED, 7)?;
        complete(&failure, SUCCESS, 0)?;
        assert!(failure.take().is_none());
        Ok(())
    }
}
