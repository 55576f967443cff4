// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: memory that is mapped for a device.

use super::*;
use crate::kapi::fixture::{
    page,
    pd,
    references, //
};
use kernel::page::PAGE_SIZE;

/// Bytes of a page that is valid as long as the caller keeps it.
fn run<'a>(page: NonNull<bindings::page>, offset: usize, len: usize) -> Result<MemSeg<'a>> {
    // SAFETY: The callers keep the page.
    unsafe { MemSeg::from_page(page, offset, len) }.ok_or(EINVAL)
}

fn put(page: NonNull<bindings::page>) {
    // SAFETY: The reference is ours.
    unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
}

#[kunit_tests(rpcrdma_dma)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zero_and_has_its_length() -> Result {
        let pd = pd()?;
        for len in [1, 63, PAGE_SIZE, PAGE_SIZE + 1, 4 * PAGE_SIZE] {
            let mut buf = DmaBuf::new(&pd, len, Direction::ToDevice)?;
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_slice().len(), len);
            assert!(buf.as_slice().iter().all(|b| *b == 0));
            buf.as_mut_slice().fill(0x5a);
            assert!(buf.as_slice().iter().all(|b| *b == 0x5a));
        }
        let none = DmaBuf::new(&pd, 0, Direction::ToDevice);
        assert!(none.is_err_and(|e| e == EINVAL));
        Ok(())
    }

    #[test]
    fn only_what_is_inside_is_described() -> Result {
        let pd = pd()?;
        let buf = DmaBuf::new(&pd, 100, Direction::FromDevice)?;
        for (start, end) in [(0, 0), (0, 1), (0, 100), (99, 100), (100, 100), (30, 31)] {
            let sge = buf.sge(start..end)?.raw();
            assert_eq!(sge.addr, buf.addr + start as u64);
            assert_eq!(sge.length as usize, end - start);
            assert_eq!(sge.lkey, pd.lkey());
        }
        #[expect(clippy::reversed_empty_ranges, reason = "nor is that inside")]
        let outside = [
            0..101,
            100..101,
            101..101,
            50..49,
            1..0,
            0..usize::MAX,
            usize::MAX..usize::MAX,
            usize::MAX..0,
        ];
        for range in outside {
            assert!(buf.sge(range.clone()).is_err_and(|e| e == EINVAL));
            // Left alone.
            buf.sync_for_device(range.clone());
            buf.sync_for_cpu(range);
        }
        Ok(())
    }

    #[test]
    fn a_run_keeps_its_page_while_it_is_mapped() -> Result {
        let pages = [page()?, page()?];
        let mut map = SendMap::new(&pd()?, 3)?;
        for _ in 0..2 {
            map.push(run(pages[0], 0, PAGE_SIZE)?)?;
            map.push(run(pages[1], 7, 100)?)?;
            map.push(run(pages[1], PAGE_SIZE - 1, 1)?)?;
            assert_eq!(pages.map(references), [2, 3]);
            let lens = [PAGE_SIZE as u32, 100, 1];
            assert!(map.sges().map(|s| s.len()).eq(lens));
            // A second run of the same page is where it is in the page.
            let addrs = map.sges().skip(1).map(|s| s.raw().addr);
            let offsets = addrs.map(|a| a % PAGE_SIZE as u64);
            assert!(offsets.eq([7, PAGE_SIZE as u64 - 1]));
            map.clear();
            assert_eq!(pages.map(references), [1, 1]);
            assert_eq!(map.sges().count(), 0);
        }
        map.push(run(pages[0], 0, 1)?)?;
        drop(map);
        assert_eq!(pages.map(references), [1, 1]);
        pages.map(put);
        Ok(())
    }

    #[test]
    fn there_is_no_more_room_than_was_asked_for() -> Result {
        let page = page()?;
        let mut map = SendMap::new(&pd()?, 2)?;
        // The allocator may give more than that.
        let room = map.mapped.capacity();
        for _ in 0..room {
            map.push(run(page, 0, 1)?)?;
        }
        assert!(map.push(run(page, 0, 1)?) == Err(ENOSPC));
        assert_eq!(references(page) as usize, 1 + room);
        assert_eq!(map.sges().count(), room);
        drop(map);
        assert_eq!(references(page), 1);
        let mut none = SendMap::new(&pd()?, 0)?;
        assert!(none.push(run(page, 0, 1)?) == Err(ENOSPC));
        put(page);
        Ok(())
    }

    #[test]
    fn memory_of_the_heap_has_no_references() -> Result {
        let memory = KVec::from_elem(0x33_u8, 64, GFP_KERNEL)?;
        // SAFETY: The memory outlives the run, and is of the heap.
        let seg = unsafe { MemSeg::from_virt(memory.as_ptr(), memory.len()) }.ok_or(EINVAL)?;
        let mut map = SendMap::new(&pd()?, 1)?;
        let before = references(seg.page);
        map.push(seg)?;
        assert_eq!(references(seg.page), before);
        assert!(map.mapped.iter().all(|run| run._page.is_none()));
        drop(map);
        assert_eq!(references(seg.page), before);
        Ok(())
    }

    #[test]
    fn runs_stay_inside_their_page() -> Result {
        let page = page()?;
        // SAFETY: The page is ours.
        let of = |offset, len| unsafe { MemSeg::from_page(page, offset, len) };
        for (offset, len) in [(0, 1), (0, PAGE_SIZE), (PAGE_SIZE - 1, 1), (17, 18)] {
            let run = of(offset, len).ok_or(EINVAL)?;
            assert_eq!((run.offset(), run.len()), (offset, len));
            assert_eq!(run.ends_page(), offset + len == PAGE_SIZE);
        }
        for (offset, len) in [
            (0, 0),
            (PAGE_SIZE, 0),
            (PAGE_SIZE, 1),
            (0, PAGE_SIZE + 1),
            (PAGE_SIZE - 1, 2),
            (1, usize::MAX),
            (usize::MAX, 1),
        ] {
            assert!(of(offset, len).is_none());
        }
        put(page);
        // What is in several pages is taken page by page.
        let memory = KVec::from_elem(0_u8, 3 * PAGE_SIZE, GFP_KERNEL)?;
        let mut rest = &memory[5..];
        let mut lens = [0; 3];
        for len in &mut lens {
            // SAFETY: The memory outlives the run, and is of the heap.
            let run = unsafe { MemSeg::from_virt(rest.as_ptr(), rest.len()) }.ok_or(EINVAL)?;
            *len = run.len();
            rest = &rest[run.len()..];
        }
        assert_eq!(lens, [PAGE_SIZE - 5, PAGE_SIZE, PAGE_SIZE]);
        // SAFETY: As above.
        assert!(unsafe { MemSeg::from_virt(rest.as_ptr(), rest.len()) }.is_none());
        Ok(())
    }
}
