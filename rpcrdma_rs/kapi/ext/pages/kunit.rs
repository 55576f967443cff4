// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: arrays of pages, and their references.

use super::*;
use crate::kapi::fixture::{
    page,
    pages,
    pattern,
    references, //
};

/// Reads a byte of an array.
fn byte(pages: &PageVec, index: usize, offset: usize) -> Option<u8> {
    let len = 1;
    let page = pages.piece_page(Piece { index, offset, len })?;
    let mut byte = 0_u8;
    // SAFETY: The page is ours, and the byte inside it.
    unsafe {
        bindings::rpcrdma_shim_memcpy_from_page((&raw mut byte).cast(), page.as_ptr(), offset, len)
    };
    Some(byte)
}

#[kunit_tests(rpcrdma_pages)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_one_reference_and_loses_it() -> Result {
        let mut array = PageVec::new();
        array.reserve(3, GFP_KERNEL)?;
        let held = [page()?, page()?, page()?];
        for page in held {
            // SAFETY: One reference is the array's, the other ours.
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
            // SAFETY: The reference is ours.
            unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
        }
        Ok(())
    }

    #[test]
    fn nothing_is_added_without_room() -> Result {
        let mut array = PageVec::new();
        let page = page()?;
        // SAFETY: The reference is ours, and stays ours on an error.
        let result = unsafe { array.push(page) };
        assert!(result == Err(ENOMEM));
        assert_eq!(array.len(), 0);
        assert_eq!(references(page), 1);
        // SAFETY: As above.
        unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
        // What is there counts.
        let mut array = pages(2 * PAGE_SIZE, 0)?;
        array.reserve(1, GFP_KERNEL)?;
        assert_eq!(array.len(), 2);
        Ok(())
    }

    #[test]
    fn bytes_are_copied_to_where_they_belong() -> Result {
        let mut array = pages(2 * PAGE_SIZE, 3)?;
        let marks = [
            (0, 0),
            (0, PAGE_SIZE - 2),
            (1, 0),
            (1, 17),
            (1, PAGE_SIZE - 2),
        ];
        for (index, offset) in marks {
            array.copy_in(index, offset, &[0xd1, 0xd2])?;
        }
        for index in 0..2 {
            for offset in 0..PAGE_SIZE {
                let expected = marks.iter().find_map(|mark| {
                    (mark.0 == index && (mark.1..mark.1 + 2).contains(&offset))
                        .then(|| 0xd1 + (offset - mark.1) as u8)
                });
                let there = pattern(index * PAGE_SIZE + offset, 3);
                assert_eq!(byte(&array, index, offset), Some(expected.unwrap_or(there)));
            }
        }
        for (index, offset) in marks {
            let mut copy = [0; 2];
            array.copy_out(index, offset, &mut copy)?;
            assert_eq!(copy, [0xd1, 0xd2]);
        }
        Ok(())
    }

    #[test]
    fn nothing_outside_of_a_page_is_touched() -> Result {
        let mut array = pages(2 * PAGE_SIZE, 3)?;
        let mut long = KVec::from_elem(0_u8, PAGE_SIZE + 1, GFP_KERNEL)?;
        for (index, offset, len) in [
            (0, PAGE_SIZE, 1),
            (0, PAGE_SIZE - 1, 2),
            (0, PAGE_SIZE + 1, 0),
            (1, 0, PAGE_SIZE + 1),
            (1, 1, PAGE_SIZE),
            (0, usize::MAX, 1),
            (0, usize::MAX, 0),
            (2, 0, 1),
            (usize::MAX, 0, 1),
        ] {
            assert!(array.copy_in(index, offset, &long[..len]) == Err(EINVAL));
            assert!(array.copy_out(index, offset, &mut long[..len]) == Err(EINVAL));
            assert!(array.piece_page(Piece { index, offset, len }).is_none());
        }
        assert!(array
            .piece_page(Piece {
                index: 0,
                offset: 1,
                len: usize::MAX
            })
            .is_none());
        // Nothing at the very end is inside.
        assert!(array.copy_in(1, PAGE_SIZE, &[]).is_ok());
        for at in 0..2 * PAGE_SIZE {
            let there = byte(&array, at / PAGE_SIZE, at % PAGE_SIZE);
            assert_eq!(there, Some(pattern(at, 3)));
        }
        Ok(())
    }
}
