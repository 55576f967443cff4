// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: transfers that are not mapped.

use super::*;
use crate::kapi::fixture::pages;
use kernel::page::PAGE_SIZE;

#[kunit_tests(rpcrdma_rw)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_keeps_its_pages() -> Result {
        let mut transfer = Transfer::new();
        assert_eq!(transfer.unmap().len(), 0);
        *transfer.unmap() = pages(2 * PAGE_SIZE, 0)?;
        assert_eq!(transfer.sqes(), 0);
        assert_eq!(transfer.unmap().len(), 2);
        transfer.unmap().truncate(1);
        assert_eq!(transfer.unmap().len(), 1);
        Ok(())
    }

    #[test]
    fn a_transfer_enters_a_chain_once() {
        let transfer = Transfer::new();
        let qp = core::ptr::dangling_mut();
        let ticket = |post| Ticket { qp: 1, post };
        assert!(transfer.enter_chain(qp, ticket(1)));
        assert!(!transfer.enter_chain(qp, ticket(1)));
        assert!(transfer.enter_chain(qp, ticket(2)));
        assert!(!transfer.enter_chain(qp, ticket(2)));
    }
}
