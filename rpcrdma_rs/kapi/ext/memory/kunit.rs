// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: contiguous runs of bytes, and parts of them.

use super::*;

/// Physically contiguous pages.
struct Block(NonNull<bindings::page>);

/// The order of a block's allocation.
const ORDER: u32 = 6;

/// The number of pages in a block: more than a run can have.
const COUNT: usize = 1 << ORDER;

impl Block {
    fn new() -> Result<Self> {
        // SAFETY: Allocates new pages.
        let block = unsafe { bindings::alloc_pages(bindings::GFP_KERNEL, ORDER) };
        NonNull::new(block).map(Block).ok_or(ENOMEM)
    }

    fn page(&self, index: usize) -> NonNull<bindings::page> {
        // SAFETY: The callers pass the index of a page in the block.
        unsafe { self.0.add(index) }
    }

    /// Returns the run of `len` bytes from `offset` of the first page on.
    fn run(&self, offset: usize, len: usize) -> Option<MemSeg<'_>> {
        // SAFETY: The block owns its contiguous pages, more than a run can have, and is borrowed.
        unsafe { MemSeg::from_page(self.0, offset, len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: The pages were allocated with this order.
        unsafe { bindings::__free_pages(self.0.as_ptr(), ORDER) };
    }
}

/// Returns the address that C computes for a page.
fn address(page: NonNull<bindings::page>) -> *mut u8 {
    // SAFETY: The callers pass a valid page.
    unsafe { bindings::rpcrdma_shim_page_address(page.as_ptr()) }.cast()
}

#[kunit_tests(rpcrdma_memory)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_c() -> Result {
        let block = Block::new()?;
        for index in 0..COUNT {
            let page = block.page(index);
            // SAFETY: The page is in the block.
            assert!(core::ptr::eq(
                unsafe { page_address(page.as_ptr()) },
                address(page)
            ));
        }
        Ok(())
    }

    #[test]
    fn only_the_next_page_is_next() -> Result {
        let block = Block::new()?;
        for index in 0..COUNT {
            for other in 0..COUNT {
                let (page, next) = (block.page(index), block.page(other));
                // SAFETY: Both pages are in the block.
                let is_next = unsafe { is_next(page.as_ptr(), next.as_ptr()) };
                assert_eq!(is_next, other == index + 1);
            }
        }
        Ok(())
    }

    #[test]
    fn a_run_has_its_bytes_and_no_others() -> Result {
        let block = Block::new()?;
        let most = MAX_RUN_PAGES * PAGE_SIZE;
        for (offset, len) in [
            (0, 1),
            (0, PAGE_SIZE),
            (PAGE_SIZE - 1, 1),
            (17, 18),
            (PAGE_SIZE - 1, 2),
            (5, 3 * PAGE_SIZE),
            (0, most),
            (PAGE_SIZE - 1, most - PAGE_SIZE + 1),
        ] {
            let run = block.run(offset, len).ok_or(EINVAL)?;
            assert_eq!((run.offset(), run.len()), (offset, len));
            assert_eq!(run.ends_page(), (offset + len) % PAGE_SIZE == 0);
            assert_eq!(run.page_count(), (offset + len).div_ceil(PAGE_SIZE));
            assert!(core::ptr::eq(
                run.address(),
                address(block.page(0)).wrapping_add(offset)
            ));
            let pages = (0..run.page_count()).map(|index| block.page(index));
            assert!(run.pages().eq(pages));
        }
        for (offset, len) in [
            (0, 0),
            (PAGE_SIZE, 0),
            (PAGE_SIZE, 1),
            (0, most + 1),
            (1, most),
            (1, usize::MAX),
            (usize::MAX, 1),
        ] {
            assert!(block.run(offset, len).is_none());
        }
        Ok(())
    }

    #[test]
    fn heap_memory_is_split_into_runs_of_the_longest_length() -> Result {
        let len = (MAX_RUN_PAGES + 2) * PAGE_SIZE;
        let memory = KVec::from_elem(0_u8, len, GFP_KERNEL)?;
        let mut rest = &memory[5..];
        let mut runs = 0;
        while !rest.is_empty() {
            // SAFETY: The memory is from the heap and outlives the run.
            let run = unsafe { MemSeg::from_virt(rest.as_ptr(), rest.len()) }.ok_or(EINVAL)?;
            assert!(core::ptr::eq(run.address(), rest.as_ptr()));
            assert!(run.page_count() <= MAX_RUN_PAGES);
            rest = &rest[run.len()..];
            assert!(rest.is_empty() || run.ends_page());
            runs += 1;
        }
        assert_eq!(runs, 2);
        // SAFETY: `len` is zero, so there are no bytes to be valid.
        assert!(unsafe { MemSeg::from_virt(rest.as_ptr(), rest.len()) }.is_none());
        Ok(())
    }

    #[test]
    fn an_array_is_measured_up_to_the_first_gap() -> Result {
        let block = Block::new()?;
        let mut pages = KVec::new();
        for index in [0, 1, 2, 9, 10] {
            pages.push(block.page(index).as_ptr(), GFP_KERNEL)?;
        }
        pages.push(core::ptr::null_mut(), GFP_KERNEL)?;
        let all = 6 * PAGE_SIZE;
        for (first, offset, max, len) in [
            (0, 0, all, 3 * PAGE_SIZE),
            (0, 7, all - 7, 3 * PAGE_SIZE - 7),
            (0, 0, 1, 1),
            (0, PAGE_SIZE - 1, 2, 2),
            (2, 0, 3 * PAGE_SIZE, PAGE_SIZE),
            (3, 1, 3 * PAGE_SIZE - 1, 2 * PAGE_SIZE - 1),
        ] {
            // SAFETY: The array is long enough, and its elements are valid pages or null.
            let measured = unsafe { measure(pages.as_ptr().add(first), offset, max) };
            assert_eq!(measured, len);
        }
        let mut many = KVec::new();
        for index in 0..COUNT {
            many.push(block.page(index).as_ptr(), GFP_KERNEL)?;
        }
        // A run that reaches the limit ends where a page ends.
        for offset in [0, 1, PAGE_SIZE - 1] {
            // SAFETY: The array has a valid page for each of these bytes.
            let measured = unsafe { measure(many.as_ptr(), offset, COUNT * PAGE_SIZE - offset) };
            assert_eq!(measured, MAX_RUN_PAGES * PAGE_SIZE - offset);
        }
        Ok(())
    }

    #[test]
    fn runs_are_taken_in_parts() -> Result {
        let block = Block::new()?;
        let runs = || [block.run(5, 3 * PAGE_SIZE), block.run(0, 9)];
        let mut segs = MemSegs::new(runs().into_iter().flatten());
        assert_eq!(segs.front().map(|run| run.len()), Some(3 * PAGE_SIZE));
        let mut taken = KVec::new();
        for pages in [1, 0, 2, 7] {
            let run = segs.take(pages).ok_or(EINVAL)?;
            taken.push((run.offset(), run.len()), GFP_KERNEL)?;
            assert!(taken.len() != 1 || run.page() == block.page(0));
            assert!(taken.len() != 2 || run.page() == block.page(1));
        }
        assert_eq!(
            taken.as_slice(),
            [
                (5, PAGE_SIZE - 5),
                (0, PAGE_SIZE),
                (0, PAGE_SIZE + 5),
                (0, 9)
            ]
        );
        assert!(segs.front().is_none() && segs.take(1).is_none());
        Ok(())
    }
}
