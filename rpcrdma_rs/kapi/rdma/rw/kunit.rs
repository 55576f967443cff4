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

/// Offset in the first page, and length.
type Run = (u32, u32);

/// What `gather` makes of these pieces.
fn runs(pages: &PageVec, pieces: &[Piece]) -> Result<KVec<Run>> {
    let mut segment = segment()?;
    let total: usize = pieces.iter().map(|piece| piece.len).sum();
    segment.gather(
        pages,
        pieces.iter().copied(),
        u32::try_from(total)?,
        LONGEST_RUN,
    )?;
    let mut runs = KVec::new();
    for bvec in &segment.bvecs {
        runs.push((bvec.bv_offset, bvec.bv_len), GFP_KERNEL)?;
    }
    Ok(runs)
}

#[kunit_tests(rpcrdma_rw)]
mod tests {
    use super::*;

    #[test]
    fn what_is_contiguous_is_one_run() -> Result {
        let pages = pages(PAGE_SIZE, 0)?;
        let cases: [(&[Piece], &[Run]); 6] = [
            (&[piece(0, 0, PAGE_SIZE)], &[(0, PAGE_SIZE as u32)]),
            (&[piece(0, 3, 7), piece(0, 10, 90)], &[(3, 97)]),
            // A gap, and the way back.
            (&[piece(0, 3, 7), piece(0, 11, 9)], &[(3, 7), (11, 9)]),
            (&[piece(0, 10, 5), piece(0, 3, 7)], &[(10, 5), (3, 7)]),
            // The same bytes twice are not one run.
            (&[piece(0, 5, 5), piece(0, 5, 5)], &[(5, 5), (5, 5)]),
            // Nothing is nowhere.
            (
                &[piece(0, 3, 7), piece(0, 99, 0), piece(0, 10, 1)],
                &[(3, 8)],
            ),
        ];
        for (pieces, expected) in cases {
            assert_eq!(runs(&pages, pieces)?.as_slice(), expected);
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
        let total = pieces.iter().map(|piece| piece.len).sum::<usize>() as u32;
        // What an earlier use left is gone.
        for _ in 0..2 {
            segment.gather(&pages, pieces.iter().copied(), total, LONGEST_RUN)?;
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
        let mut segment = segment()?;
        for (longest, runs) in [(0, 3), (15, 3), (16, 2), (23, 2), (24, 1), (u32::MAX, 1)] {
            segment.gather(&pages, pieces.into_iter(), 24, longest)?;
            assert_eq!(segment.bvecs.len(), runs);
        }
        Ok(())
    }

    #[test]
    fn pieces_must_exist_and_have_the_length() -> Result {
        let pages = pages(2 * PAGE_SIZE, 0)?;
        let mut segment = segment()?;
        let cases: [(&[Piece], u32); 9] = [
            (&[], 0),
            (&[piece(0, 5, 0)], 0),
            (&[], 1),
            (&[piece(0, 0, 10)], 9),
            (&[piece(0, 0, 10)], 11),
            (&[piece(2, 0, 1)], 1),
            (&[piece(1, PAGE_SIZE - 1, 2)], 2),
            (&[piece(0, 0, 1), piece(usize::MAX, 0, 1)], 2),
            (&[piece(0, usize::MAX, 1)], 1),
        ];
        for (pieces, length) in cases {
            let result = segment.gather(&pages, pieces.iter().copied(), length, LONGEST_RUN);
            assert!(result == Err(EINVAL));
        }
        segment.gather(&pages, [piece(1, PAGE_SIZE - 1, 1)].into_iter(), 1, 0)
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
        assert!(transfer.enter_chain(qp, 1));
        assert!(!transfer.enter_chain(qp, 1));
        assert!(transfer.enter_chain(qp, 2));
        assert!(!transfer.enter_chain(qp, 2));
    }
}
