// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: arrays of pages, and their page references.

use super::*;
use crate::kapi::fixture::{
    page,
    pages,
    pattern,
    references, //
};

/// Reads a byte of an array's pages.
fn byte(pages: &PageVec, at: usize) -> Option<u8> {
    let run = pages.runs(at..at + 1).next()?;
    // SAFETY: The byte is in a page of the array.
    Some(unsafe { run.address().read() })
}

#[kunit_tests(rpcrdma_pages)]
mod tests {
    use super::*;

    #[test]
    fn each_reference_is_dropped_once() -> Result {
        let mut array = PageVec::new();
        array.reserve(3, GFP_KERNEL)?;
        let held = [page()?, page()?, page()?];
        for page in held {
            // SAFETY: The page has two references now: the array gets one, the test keeps the
            // other.
            unsafe {
                bindings::rpcrdma_shim_get_page(page.as_ptr());
                array.push(page)?;
            }
            assert_eq!(references(page), 2);
        }
        array.truncate(5);
        assert_eq!(array.len(), 3);
        array.truncate(2);
        assert_eq!(array.len(), 2);
        assert_eq!(held.map(references), [2, 2, 1]);
        array.truncate(2);
        assert_eq!(held.map(references), [2, 2, 1]);
        drop(array);
        assert_eq!(held.map(references), [1, 1, 1]);
        for page in held {
            // SAFETY: The test owns the reference.
            unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
        }
        Ok(())
    }

    #[test]
    fn pages_with_another_user_are_shared() -> Result {
        let array = pages(3 * PAGE_SIZE, 1)?;
        assert!(PageVec::new().are_unshared() && array.are_unshared());
        for at in 0..3 {
            let page = array.pages[at];
            // SAFETY: The array keeps the page valid, and the reference is dropped below.
            unsafe { bindings::rpcrdma_shim_get_page(page.as_ptr()) };
            assert!(!array.are_unshared());
            // SAFETY: The reference was taken above.
            unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
            assert!(array.are_unshared());
        }
        Ok(())
    }

    #[test]
    fn push_fails_without_capacity() -> Result {
        let mut array = PageVec::new();
        let page = page()?;
        // SAFETY: The test owns the reference, and keeps it because of the error.
        let result = unsafe { array.push(page) };
        assert!(result == Err(ENOMEM));
        assert_eq!(array.len(), 0);
        assert_eq!(references(page), 1);
        // SAFETY: The test owns the reference.
        unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
        // `reserve` is about the capacity in all, not in addition to the pages.
        let mut array = pages(2 * PAGE_SIZE, 0)?;
        array.reserve(1, GFP_KERNEL)?;
        assert_eq!(array.len(), 2);
        Ok(())
    }

    #[test]
    fn copies_end_up_at_their_offsets() -> Result {
        let mut array = pages(2 * PAGE_SIZE, 3)?;
        let marks = [
            0,
            PAGE_SIZE - 3,
            // Across the boundary of two pages.
            PAGE_SIZE - 1,
            PAGE_SIZE + 17,
            2 * PAGE_SIZE - 2,
        ];
        for at in marks {
            array.copy_in(at, &[0xd1, 0xd2])?;
        }
        for at in 0..2 * PAGE_SIZE {
            let expected = marks.iter().find_map(|mark| {
                let marked = (*mark..*mark + 2).contains(&at);
                marked.then(|| 0xd1 + (at - *mark) as u8)
            });
            assert_eq!(byte(&array, at), Some(expected.unwrap_or(pattern(at, 3))));
        }
        for at in marks {
            let mut copy = [0; 2];
            array.copy_out(at, &mut copy)?;
            assert_eq!(copy, [0xd1, 0xd2]);
        }
        Ok(())
    }

    #[test]
    fn ranges_outside_the_pages_are_refused() -> Result {
        let mut array = pages(2 * PAGE_SIZE, 3)?;
        let mut long = KVec::from_elem(0_u8, 2 * PAGE_SIZE + 1, GFP_KERNEL)?;
        for (at, len) in [
            (2 * PAGE_SIZE, 1),
            (2 * PAGE_SIZE - 1, 2),
            (2 * PAGE_SIZE + 1, 0),
            (0, 2 * PAGE_SIZE + 1),
            (1, 2 * PAGE_SIZE),
            (usize::MAX, 1),
            (usize::MAX, 0),
        ] {
            assert!(array.copy_in(at, &long[..len]) == Err(EINVAL));
            assert!(array.copy_out(at, &mut long[..len]) == Err(EINVAL));
        }
        // An empty range at the end is inside.
        assert!(array.copy_in(2 * PAGE_SIZE, &[]).is_ok());
        for at in 0..2 * PAGE_SIZE {
            assert_eq!(byte(&array, at), Some(pattern(at, 3)));
        }
        Ok(())
    }

    #[test]
    fn runs_cover_all_octets_of_a_range() -> Result {
        let array = pages(5 * PAGE_SIZE, 0)?;
        let all = 5 * PAGE_SIZE;
        let ends = [
            0,
            1,
            PAGE_SIZE - 1,
            PAGE_SIZE,
            3 * PAGE_SIZE + 5,
            all,
            all + 1,
            usize::MAX,
        ];
        for start in ends {
            for end in ends {
                let mut at = start;
                for run in array.runs(start..end) {
                    assert_eq!(run.offset(), at % PAGE_SIZE);
                    for i in [0, run.len() - 1] {
                        // SAFETY: The byte is in the run.
                        assert_eq!(unsafe { run.address().add(i).read() }, pattern(at + i, 0));
                    }
                    at += run.len();
                }
                assert_eq!(at - start, end.min(all).saturating_sub(start));
            }
        }
        assert!(PageVec::new().runs(0..usize::MAX).next().is_none());
        Ok(())
    }
}
