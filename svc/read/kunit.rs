// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the contexts for RDMA Reads that a connection keeps, and their pages.

use super::{
    super::endpoint::ReadPool,
    *, //
};
use crate::kapi::fixture::pages;
use kernel::page::PAGE_SIZE;

/// Creates a context with one page.
fn with_page() -> Result<Pulled> {
    let mut ctx = ReadCtx::new()?;
    *ctx.as_mut().project().transfer.unmap() = pages(PAGE_SIZE, 1)?;
    Ok(ctx)
}

/// Returns the number of pages of a context.
fn page_count(ctx: Option<Pulled>) -> Option<usize> {
    Some(ctx?.as_mut().project().transfer.unmap().len())
}

#[kunit_tests(rpcrdma_read_pool)]
mod tests {
    use super::*;

    #[test]
    fn contexts_keep_their_pages_until_they_are_not_used() -> Result {
        let mut pool = ReadPool::new(2 * ReadPool::WITH_PAGE)?;
        assert!(pool.may_keep_page());
        for _ in 0..3 {
            pool.push(with_page()?);
        }
        // No context was used, but the contexts were not in the pool all the time either.
        assert_eq!(pool.trim_pages(), 3);
        pool.end_period();
        let used = pool.pop().ok_or(ENOENT)?;
        pool.push(used);
        assert_eq!(pool.trim_pages(), 1);
        pool.end_period();
        assert_eq!(pool.trim_pages(), 0);
        pool.push(with_page()?);
        let counts = [(); 5].map(|()| page_count(pool.pop()));
        assert_eq!(counts, [Some(1), Some(0), Some(0), Some(0), None]);
        Ok(())
    }

    #[test]
    fn few_contexts_keep_a_page() -> Result {
        let mut pool = ReadPool::new(2 * ReadPool::WITH_PAGE)?;
        for _ in 0..ReadPool::WITH_PAGE {
            assert!(pool.may_keep_page());
            pool.push(with_page()?);
        }
        assert!(!pool.may_keep_page());
        pool.pop();
        assert!(pool.may_keep_page());
        Ok(())
    }
}
