// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the parts that iWARP Reads register. Their elements are at most a page long.

use super::*;
use crate::kapi::fixture::{
    pages,
    pattern, //
};
use kernel::page::PAGE_SIZE;

/// The number of pages of a transfer.
const PAGES: usize = 8;

/// An offset in a page, and a length.
type Run = (u32, u32);

/// Returns the parts in which octets are registered, each with its elements.
fn parts(pages: &PageVec, octets: &[Range<usize>], most: usize) -> Result<KVec<KVec<Run>>> {
    let mut segment = Segment::new();
    let runs = octets.iter().cloned().flat_map(|range| pages.runs(range));
    let mut runs = MemSegs::new(runs);
    let mut bytes = octets.iter().cloned().flatten();
    let mut parts = KVec::new();
    while runs.front().is_some() {
        let length = segment.gather(&mut runs, u32::MAX, most)?;
        let mut elements = KVec::new();
        for bvec in &segment.bvecs {
            elements.push((bvec.bv_offset, bvec.bv_len), GFP_KERNEL)?;
            for i in bvec.bv_offset..bvec.bv_offset + bvec.bv_len {
                let at = bytes.next().ok_or(EINVAL)?;
                // SAFETY: The element is in a page of `pages`.
                let byte = unsafe {
                    let page = bindings::rpcrdma_shim_page_address(bvec.bv_page);
                    page.cast::<u8>().add(i as usize).read()
                };
                assert_eq!(byte, pattern(at, 0));
            }
        }
        assert_eq!(elements.iter().map(|(_, len)| len).sum::<u32>(), length);
        parts.push(elements, GFP_KERNEL)?;
    }
    assert!(bytes.next().is_none());
    Ok(parts)
}

#[kunit_tests(rpcrdma_rw_registered)]
mod tests {
    use super::*;

    /// `dma_iova_link` requires that of joined runs only the first starts inside a page, and only
    /// the last ends inside one.
    #[test]
    fn elements_of_a_part_join_at_the_ends_of_pages() -> Result {
        let pages = pages(PAGES * PAGE_SIZE, 0)?;
        let all = PAGE_SIZE;
        let cases: [(&[Range<usize>], &[usize]); 6] = [
            (&[0..3 * all], &[3]),
            (&[100..2 * all + 9], &[3]),
            // A head, then pages: like the parts of a Call.
            (&[0..120, 2 * all..4 * all], &[1, 2]),
            (&[0..2 * all, 4 * all + 8..4 * all + 12], &[2, 1]),
            (
                &[8..16, 2 * all + 8..2 * all + 16, 4 * all + 8..4 * all + 16],
                &[1, 1, 1],
            ),
            (&[8..all, 2 * all..2 * all + 8, 4 * all..5 * all], &[2, 1]),
        ];
        for (octets, expected) in cases {
            let parts = parts(&pages, octets, usize::MAX)?;
            let lengths = parts.iter().map(|part| part.len());
            assert!(lengths.eq(expected.iter().copied()));
        }
        Ok(())
    }

    #[test]
    fn a_part_has_at_most_the_allowed_elements() -> Result {
        let pages = pages(5 * PAGE_SIZE, 0)?;
        let cases: [(usize, &[usize]); 4] = [
            (1, &[1, 1, 1, 1, 1]),
            (2, &[2, 2, 1]),
            (4, &[4, 1]),
            (5, &[5]),
        ];
        for (most, lengths) in cases {
            let parts = parts(&pages, &[0..5 * PAGE_SIZE], most)?;
            assert!(parts
                .iter()
                .map(|part| part.len())
                .eq(lengths.iter().copied()));
        }
        Ok(())
    }

    #[test]
    fn ranges_longer_than_the_segment_are_refused() -> Result {
        let pages = pages(2 * PAGE_SIZE, 0)?;
        let mut segment = Segment::new();
        for (octets, longest) in [(0..10, 9), (PAGE_SIZE - 1..PAGE_SIZE + 1, 1)] {
            let mut runs = MemSegs::new(pages.runs(octets));
            assert!(segment.gather(&mut runs, longest, usize::MAX) == Err(EINVAL));
        }
        let mut runs = MemSegs::new(pages.runs(PAGE_SIZE - 1..PAGE_SIZE + 1));
        assert!(segment.gather(&mut runs, 2, usize::MAX) == Ok(2));
        Ok(())
    }
}
