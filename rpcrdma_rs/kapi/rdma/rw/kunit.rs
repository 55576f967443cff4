// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: runs of physically contiguous bytes, out of pieces of pages.

use super::*;
use crate::kapi::fixture::pages;

/// Pages to cut pieces of.
const PAGES: usize = 8;

fn segment() -> Result<KBox<Segment>> {
    Ok(KBox::new(
        Segment {
            context: UnsafeCell::new(bindings::rdma_rw_ctx::default()),
            bvecs: KVec::new(),
            direction: None,
        },
        GFP_KERNEL,
    )?)
}

fn piece(index: usize, offset: usize, len: usize) -> Piece {
    Piece { index, offset, len }
}

/// The physical address of a piece.
fn address(pages: &PageVec, piece: Piece) -> Result<usize> {
    let page = pages.piece_page(piece).ok_or(EINVAL)?;
    // SAFETY: The page is valid.
    let pfn = unsafe { bindings::rpcrdma_shim_page_to_pfn(page.as_ptr()) };
    Ok(pfn * PAGE_SIZE + piece.offset)
}

/// What is mapped as it is.
const RUNS: Elements = Elements {
    longest: LONGEST_RUN,
    most: usize::MAX,
};

/// What goes to regions, of any size.
const EACH: Elements = Elements { longest: 0, ..RUNS };

/// Offset in the first page, and length.
type Run = (u32, u32);

/// The parts that `pieces` are mapped in, each with the runs that `gather` makes of it.
fn parts(pages: &PageVec, pieces: &[Piece], elements: Elements) -> Result<KVec<KVec<Run>>> {
    let mut segment = segment()?;
    let mut pieces = pieces.iter().copied().peekable();
    let mut parts = KVec::new();
    while pieces.peek().is_some() {
        let length = segment.gather(pages, &mut pieces, u32::MAX, elements)?;
        let mut runs = KVec::new();
        for bvec in &segment.bvecs {
            runs.push((bvec.bv_offset, bvec.bv_len), GFP_KERNEL)?;
        }
        assert_eq!(runs.iter().map(|(_, len)| len).sum::<u32>(), length);
        parts.push(runs, GFP_KERNEL)?;
    }
    Ok(parts)
}

#[kunit_tests(rpcrdma_rw)]
mod tests {
    use super::*;

    #[test]
    fn what_is_contiguous_is_one_run() -> Result {
        let pages = pages(PAGE_SIZE, 0)?;
        let whole = PAGE_SIZE as u32;
        // One run to a part: none of them ends where its page does and has one behind it.
        let cases: [(&[Piece], &[Run]); 5] = [
            (&[piece(0, 0, PAGE_SIZE)], &[(0, whole)]),
            (&[piece(0, 3, 7), piece(0, 10, 90)], &[(3, 97)]),
            // A gap, and the way back.
            (&[piece(0, 3, 7), piece(0, 11, 9)], &[(3, 7), (11, 9)]),
            (&[piece(0, 10, 5), piece(0, 3, 7)], &[(10, 5), (3, 7)]),
            // The same bytes twice are not one run.
            (&[piece(0, 5, 5), piece(0, 5, 5)], &[(5, 5), (5, 5)]),
        ];
        for (pieces, expected) in cases {
            let parts = parts(&pages, pieces, RUNS)?;
            assert_eq!(parts.len(), expected.len());
            for (part, run) in parts.iter().zip(expected) {
                assert_eq!(part.as_slice(), [*run]);
            }
        }
        Ok(())
    }

    /// As `dma_iova_link` demands: of what is joined, only the first run starts inside of a page
    /// and only the last one ends there.
    #[test]
    fn runs_of_a_part_join_at_the_ends_of_pages() -> Result {
        let pages = pages(PAGES * PAGE_SIZE, 0)?;
        let all = PAGE_SIZE;
        let cases: [(&[Piece], &[usize]); 6] = [
            (
                &[piece(0, 0, all), piece(2, 0, all), piece(4, 0, all)],
                &[3],
            ),
            (
                &[piece(0, 100, all - 100), piece(2, 0, all), piece(4, 0, 9)],
                &[3],
            ),
            // A head, pages, a tail: as a reply is.
            (
                &[piece(0, 0, 120), piece(2, 0, all), piece(4, 0, all)],
                &[1, 2],
            ),
            (
                &[piece(0, 0, all), piece(2, 0, all), piece(4, 8, 4)],
                &[2, 1],
            ),
            (
                &[piece(0, 8, 8), piece(2, 8, 8), piece(4, 8, 8)],
                &[1, 1, 1],
            ),
            (
                &[piece(0, 8, all - 8), piece(2, 0, 8), piece(4, 0, all)],
                &[2, 1],
            ),
        ];
        for (pieces, expected) in cases {
            let parts = parts(&pages, pieces, EACH)?;
            let lengths = parts.iter().map(|part| part.len());
            assert!(lengths.eq(expected.iter().copied()));
        }
        Ok(())
    }

    #[test]
    fn runs_cover_the_memory_of_the_pieces_in_order() -> Result {
        let pages = pages(PAGES * PAGE_SIZE, 0)?;
        let mut pieces = KVec::new();
        // In both orders, so that neighbours are met from either side.
        for index in Iterator::chain(0..PAGES, (0..PAGES).rev()) {
            for (offset, len) in [(0, 1), (1, PAGE_SIZE - 2), (PAGE_SIZE - 1, 1)] {
                pieces.push(piece(index, offset, len), GFP_KERNEL)?;
            }
        }
        let mut segment = segment()?;
        // What an earlier use left is gone.
        for _ in 0..2 {
            let mut pieces = pieces.iter().copied().peekable();
            segment.gather(&pages, &mut pieces, u32::MAX, RUNS)?;
            assert!(pieces.peek().is_none());
        }
        let mut next = pieces.iter();
        let mut end = None;
        for bvec in &segment.bvecs {
            // SAFETY: The page is valid.
            let pfn = unsafe { bindings::rpcrdma_shim_page_to_pfn(bvec.bv_page) };
            let mut at = pfn * PAGE_SIZE + bvec.bv_offset as usize;
            assert!(end != Some(at));
            let stop = at + bvec.bv_len as usize;
            while at < stop {
                let piece = *next.next().ok_or(EINVAL)?;
                assert_eq!(address(&pages, piece)?, at);
                at += piece.len;
            }
            assert_eq!(at, stop);
            end = Some(stop);
        }
        assert!(next.next().is_none());
        Ok(())
    }

    #[test]
    fn no_run_is_longer_than_allowed() -> Result {
        let pages = pages(PAGE_SIZE, 0)?;
        let pieces = [piece(0, 0, 8), piece(0, 8, 8), piece(0, 16, 8)];
        for (longest, runs) in [(0, 3), (15, 3), (16, 2), (23, 2), (24, 1), (u32::MAX, 1)] {
            let elements = Elements { longest, ..RUNS };
            assert_eq!(parts(&pages, &pieces, elements)?.len(), runs);
        }
        Ok(())
    }

    #[test]
    fn there_are_no_more_elements_than_allowed() -> Result {
        let pages = pages(5 * PAGE_SIZE, 0)?;
        let pieces = [0, 1, 2, 3, 4].map(|index| piece(index, 0, PAGE_SIZE));
        let cases: [(usize, &[usize]); 4] = [
            (1, &[1, 1, 1, 1, 1]),
            (2, &[2, 2, 1]),
            (4, &[4, 1]),
            (5, &[5]),
        ];
        for (most, lengths) in cases {
            let parts = parts(&pages, &pieces, Elements { most, ..EACH })?;
            assert!(parts
                .iter()
                .map(|part| part.len())
                .eq(lengths.iter().copied()));
        }
        Ok(())
    }

    #[test]
    fn pieces_must_exist_and_be_no_longer_than_the_segment() -> Result {
        let pages = pages(2 * PAGE_SIZE, 0)?;
        let mut segment = segment()?;
        let cases: [(&[Piece], u32); 6] = [
            (&[piece(0, 0, 10)], 9),
            (&[piece(0, 0, 8), piece(0, 8, 2)], 9),
            (&[piece(2, 0, 1)], 1),
            (&[piece(1, PAGE_SIZE - 1, 2)], 2),
            (&[piece(0, 0, PAGE_SIZE), piece(usize::MAX, 0, 1)], u32::MAX),
            (&[piece(0, usize::MAX, 1)], 1),
        ];
        for (pieces, longest) in cases {
            let mut pieces = pieces.iter().copied().peekable();
            let result = segment.gather(&pages, &mut pieces, longest, RUNS);
            assert!(result == Err(EINVAL));
        }
        let mut last = [piece(1, PAGE_SIZE - 1, 1)].into_iter().peekable();
        assert!(segment.gather(&pages, &mut last, 1, RUNS) == Ok(1));
        Ok(())
    }

    #[test]
    fn a_transfer_has_one_set_of_pages() -> Result {
        let mut transfer = Transfer::new();
        assert!(transfer.finish().is_none());
        assert!(transfer.set_pages(pages(2 * PAGE_SIZE, 0)?).is_ok());
        let refused = transfer.set_pages(pages(PAGE_SIZE, 0)?);
        assert!(refused.is_err_and(|pages| pages.len() == 1));
        assert_eq!((transfer.sqes(), transfer.contexts().count()), (0, 0));
        assert!(transfer.finish().is_some_and(|pages| pages.len() == 2));
        assert!(transfer.finish().is_none());
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
