// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: counting of loans.

use super::*;
use crate::kapi::{
    bindings,
    fixture::references, //
};
use core::ptr::NonNull;

#[kunit_tests(rpcrdma_lend)]
mod tests {
    use super::*;

    #[test]
    fn has_all_is_true_without_loans() -> Result {
        let lender = Lender::new(None)?;
        assert!(lender.has_all());
        // SAFETY: There are no runs.
        let segs = unsafe {
            LentSegs::new(
                core::iter::empty::<MemSeg<'_>>(),
                &lender,
                Access::RemoteRead,
            )
        };
        assert!(segs.is_empty() && lender.has_all());
        let (first, second) = (segs.loan(), segs.loan());
        assert!(!lender.has_all());
        drop(first);
        assert!(!lender.has_all());
        drop(second);
        assert!(lender.has_all());
        Ok(())
    }

    #[test]
    fn a_loan_keeps_the_page_allocated() -> Result {
        let page = Page::alloc_page(GFP_KERNEL)?;
        let raw = NonNull::new(page.as_ptr().cast()).ok_or(EINVAL)?;
        let lender = Lender::new(Some(page))?;
        let loan = Loan::new(&lender);
        // SAFETY: The page is valid. With a reference of its own the test can read its count.
        unsafe { bindings::rpcrdma_shim_get_page(raw.as_ptr()) };
        drop(lender);
        assert_eq!(references(raw), 2);
        drop(loan);
        assert_eq!(references(raw), 1);
        // SAFETY: The reference was taken above.
        unsafe { bindings::rpcrdma_shim_put_page(raw.as_ptr()) };
        Ok(())
    }
}
