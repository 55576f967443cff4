// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: what a Send would be of. None is posted.

use super::*;
use crate::kapi::fixture::{
    pages,
    pd,
    segs, //
};
use kernel::page::PAGE_SIZE;

/// The size of a buffer.
const LEN: usize = 300;

/// The lengths of the elements of a Send.
fn lengths(ctx: &SendCtx) -> Result<KVec<usize>> {
    let mut lengths = KVec::new();
    for sge in ctx.sges()? {
        lengths.push(sge.len() as usize, GFP_KERNEL)?;
    }
    Ok(lengths)
}

#[kunit_tests(rpcrdma_sendctx)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_between_the_parts_of_the_buffer() -> Result {
        let mut ctx = SendCtx::new(&pd()?, LEN, 5, true)?;
        assert!(ctx.is_reverse());
        assert_eq!(ctx.as_mut().body().len(), LEN);
        assert_eq!(lengths(&ctx)?.as_slice(), &[0, 0]);
        let pages = pages(2 * PAGE_SIZE, 0)?;
        for _ in 0..2 {
            ctx.as_mut().set_parts(100, 100..109);
            ctx.as_mut().add_pages(segs(&pages))?;
            let expected = [100, PAGE_SIZE, PAGE_SIZE, 9];
            assert_eq!(lengths(&ctx)?.as_slice(), &expected);
            ctx.as_mut().clear();
            assert_eq!(lengths(&ctx)?.as_slice(), &[0, 0]);
        }
        Ok(())
    }

    #[test]
    fn parts_are_parts_of_the_buffer() -> Result {
        let mut ctx = SendCtx::new(&pd()?, LEN, 2, false)?;
        assert!(!ctx.is_reverse());
        for (lead, trail) in [(0, 0..LEN), (LEN, LEN..LEN), (LEN, 0..1)] {
            let expected = [lead, trail.len()];
            ctx.as_mut().set_parts(lead, trail);
            assert_eq!(lengths(&ctx)?.as_slice(), &expected);
        }
        for (lead, trail) in [
            (LEN + 1, 0..0),
            (0, 0..LEN + 1),
            (0, LEN + 1..LEN + 1),
            (usize::MAX, 0..0),
            (0, 1..usize::MAX),
        ] {
            ctx.as_mut().set_parts(lead, trail);
            assert!(lengths(&ctx).is_err_and(|e| e == EINVAL));
        }
        Ok(())
    }

    #[test]
    fn there_are_no_more_elements_than_the_device_takes() -> Result {
        let pd = pd()?;
        let many = pages(4 * PAGE_SIZE, 0)?;
        for sges in [0, 2, 3, 5] {
            let mut ctx = SendCtx::new(&pd, LEN, sges, false)?;
            ctx.as_mut().set_parts(1, 1..2);
            assert!(ctx.as_mut().add_pages(segs(&many)) == Err(ENOSPC));
            assert_eq!(lengths(&ctx)?.len(), sges.max(2));
            // With these it could not be sent; it can be used again.
            ctx.as_mut().clear();
            let few = pages(sges.saturating_sub(2) * PAGE_SIZE, 0)?;
            ctx.as_mut().add_pages(segs(&few))?;
        }
        assert!(SendCtx::new(&pd, 0, 2, false).is_err_and(|e| e == EINVAL));
        Ok(())
    }
}
