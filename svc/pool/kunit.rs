// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: queues of a fixed size, a limit that threads share, and the pages of a connection.

use super::*;
use crate::kapi::fixture::{
    contend,
    pages,
    pause, //
};
use kernel::sync::Arc;

/// What the tests of the limit share.
static BUDGET: Budget = Budget::new(100);

/// The sum of the shares of [`BUDGET`], as their owners count them.
static TAKEN: Atomic<usize> = Atomic::new(0);

/// Counts how many of it were dropped.
struct Item(u32, Arc<Atomic<u32>>);

impl Drop for Item {
    fn drop(&mut self) {
        self.1.add(1, Relaxed);
    }
}

#[kunit_tests(rpcrdma_pool)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_first_in_first_out() -> Result {
        let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let item = |number| Item(number, dropped.clone());
        let mut ring = Ring::new(3, GFP_KERNEL)?;
        assert!(ring.pop().is_none());
        // Wraps around several times, with one to three items in the queue.
        let (mut pushed, mut popped) = (0, 0);
        for fill in [1, 3, 2, 3, 3, 1, 2] {
            while pushed - popped < fill {
                assert!(ring.push(item(pushed)).is_ok());
                pushed += 1;
            }
            if fill == 3 {
                assert!(ring.push(item(99)).is_err_and(|back| back.0 == 99));
            }
            while pushed > popped {
                assert!(ring.pop().is_some_and(|item| item.0 == popped));
                popped += 1;
            }
            assert!(ring.pop().is_none());
        }
        assert_eq!(dropped.load(Relaxed), pushed + 3);
        assert!(ring.push(item(1)).is_ok() && ring.push(item(2)).is_ok());
        drop(ring);
        assert_eq!(dropped.load(Relaxed), pushed + 5);
        Ok(())
    }

    #[test]
    fn an_item_is_inserted_before_later_ones() -> Result {
        // Zero is an item whose order does not matter.
        let precedes = |a: &u32, b: &u32| (*a != 0 && *b != 0).then_some(a < b);
        let mut ring = Ring::new(5, GFP_KERNEL)?;
        for _ in 0..7 {
            for item in [2, 0, 4, 3, 1] {
                assert!(ring.insert(item, precedes).is_ok());
            }
            assert_eq!(ring.insert(5, precedes), Err(5));
            for expected in [1, 0, 2, 3, 4] {
                assert_eq!(ring.pop(), Some(expected));
            }
            // The next round begins in another slot.
            assert!(ring.push(9).is_ok() && ring.pop().is_some());
        }
        Ok(())
    }

    #[test]
    fn without_room_nothing_is_kept() -> Result {
        let mut ring = Ring::new(0, GFP_KERNEL)?;
        assert_eq!(ring.push(7), Err(7));
        assert!(ring.pop().is_none());
        Ok(())
    }

    /// A share of `want`, or of what is left.
    fn take(want: usize) -> Share {
        let mut share = BUDGET.share();
        share.grow(want);
        share
    }

    #[test]
    fn at_most_the_limit_is_taken() {
        {
            let mut most = take(90);
            let rest = take(30);
            let none = take(1);
            assert_eq!((most.count, rest.count, none.count), (90, 10, 0));
            most.shrink(95);
            assert_eq!(most.count, 90);
            most.shrink(40);
            assert_eq!(take(91).count, 50);
            most.grow(60);
            assert_eq!(most.count, 90);
            drop(most);
            assert_eq!(take(91).count, 90);
            assert_eq!(take(0).count, 0);
        }
        assert_eq!(BUDGET.used.load(Relaxed), 0);
        assert_eq!(take(100).count, 100);
    }

    #[test]
    fn threads_together_take_at_most_the_limit() -> Result {
        let bad = Arc::new(Atomic::new(0_u32), GFP_KERNEL)?;
        let theirs = bad.clone();
        contend(6, move |number| {
            for i in 0..100 {
                let want = (number * 13 + i * 7) % 60;
                let share = take(want);
                let sum = TAKEN.fetch_add(share.count, Relaxed) + share.count;
                theirs.add(u32::from(sum > 100 || share.count > want), Relaxed);
                if i % 3 == 0 {
                    pause();
                }
                TAKEN.fetch_sub(share.count, Relaxed);
            }
        })?;
        assert_eq!(bad.load(Relaxed), 0);
        assert_eq!(BUDGET.used.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_pool_keeps_pages_until_they_are_not_used() -> Result {
        let mut pool = PagePool::new();
        let mut used = pages(5 * PAGE_SIZE, 1)?;
        pool.put(&mut used);
        assert_eq!((used.len(), pool.spare.len()), (0, 5));
        // No page was used, but the pages were not in the pool all the time either.
        let (excess, _, left) = pool.trim();
        assert_eq!((excess.len(), left), (0, 5));
        pool.fill(&mut used, 2)?;
        assert_eq!((used.len(), pool.spare.len()), (2, 3));
        pool.put(&mut used);
        let (excess, _, left) = pool.trim();
        assert_eq!((excess.len(), left), (3, 2));
        let (excess, _, left) = pool.trim();
        assert_eq!((excess.len(), left), (2, 0));
        assert_eq!(pool.share.count, 0);
        // There is no room for more than an array can hold.
        assert!(pool.fill(&mut PageVec::new(), 1) == Err(ENOMEM));
        Ok(())
    }

    #[test]
    fn a_pool_keeps_a_limited_number() -> Result {
        let mut pool = PagePool::new();
        for _ in 0..MAX_PAGES / 512 {
            pool.put(&mut pages(512 * PAGE_SIZE, 1)?);
        }
        let mut more = pages(PAGE_SIZE, 1)?;
        pool.put(&mut more);
        assert_eq!((more.len(), pool.spare.len()), (1, MAX_PAGES));
        assert_eq!(pool.share.count, MAX_PAGES);
        Ok(())
    }
}
