// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: messages in the form in which they would be sent. None is posted.

use super::*;
use crate::kapi::fixture::{
    page,
    pages,
    pd,
    references, //
};
use core::ptr::NonNull;
use kernel::page::PAGE_SIZE;

/// The size of a buffer.
const LEN: usize = 300;

/// Returns a run in a page that the caller keeps allocated.
fn run<'a>(page: NonNull<bindings::page>, offset: usize, len: usize) -> Result<MemSeg<'a>> {
    // SAFETY: The callers keep the page allocated.
    unsafe { MemSeg::from_page(page, offset, len) }.ok_or(EINVAL)
}

fn put(page: NonNull<bindings::page>) {
    // SAFETY: The test owns the reference.
    unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
}

/// Returns the SGEs in the request of a message.
fn elements(message: &SendBuf) -> &[bindings::ib_sge] {
    let wr = message.request(bindings::ib_wr_opcode_IB_WR_SEND, 0);
    // SAFETY: The message has that many SGEs.
    unsafe { core::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize) }
}

/// Returns the lengths of the SGEs.
fn lengths(message: &SendBuf) -> Result<KVec<usize>> {
    let mut lengths = KVec::new();
    for sge in elements(message) {
        lengths.push(sge.length as usize, GFP_KERNEL)?;
    }
    Ok(lengths)
}

#[kunit_tests(rpcrdma_send)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_between_the_parts_of_the_buffer() -> Result {
        let mut message = SendBuf::new(&pd()?, LEN, 5)?;
        assert_eq!(message.body_mut().len(), LEN);
        assert!(elements(&message).is_empty());
        let pages = pages(2 * PAGE_SIZE, 0)?;
        for _ in 0..2 {
            message.add_part(0..100)?;
            message.add_pages(pages.runs(0..2 * PAGE_SIZE))?;
            message.add_part(100..109)?;
            let sent: usize = lengths(&message)?.iter().sum();
            assert_eq!(sent, 100 + 2 * PAGE_SIZE + 9);
            let (first, last) = (elements(&message).first(), elements(&message).last());
            assert_eq!(first.map(|sge| sge.length), Some(100));
            assert_eq!(last.map(|sge| sge.length), Some(9));
            assert_eq!(
                last.zip(first).map(|(last, first)| last.addr - first.addr),
                Some(100)
            );
            message.clear();
            assert!(elements(&message).is_empty());
        }
        Ok(())
    }

    #[test]
    fn a_message_of_one_part_is_set_once() -> Result {
        let mut message = SendBuf::new(&pd()?, LEN, 2)?;
        for len in [1, LEN] {
            message.add_part(0..len)?;
            let added = elements(&message).first().map(|sge| (sge.addr, sge.lkey));
            message.clear();
            message.set_len(len)?;
            let set = elements(&message).first().map(|sge| (sge.addr, sge.lkey));
            assert!(set == added);
            assert_eq!(lengths(&message)?.as_slice(), &[len]);
            assert!(message.set_len(len) == Err(EINVAL));
            message.clear();
        }
        for len in [0, LEN + 1, usize::MAX] {
            assert!(message.set_len(len) == Err(EINVAL));
        }
        assert!(elements(&message).is_empty());
        Ok(())
    }

    #[test]
    fn parts_are_inside_the_buffer() -> Result {
        let mut message = SendBuf::new(&pd()?, LEN, 2)?;
        for part in [0..LEN, 0..1, LEN - 1..LEN] {
            message.add_part(part.clone())?;
            assert_eq!(lengths(&message)?.as_slice(), &[part.len()]);
            message.clear();
        }
        for part in [0..LEN + 1, LEN + 1..LEN + 1, 0..usize::MAX, 1..usize::MAX] {
            assert!(message.add_part(part) == Err(EINVAL));
        }
        // An empty part needs no SGE.
        message.add_part(0..0)?;
        message.add_part(LEN..LEN)?;
        assert!(elements(&message).is_empty());
        assert!(SendBuf::new(&pd()?, 0, 2).is_err_and(|e| e == EINVAL));
        Ok(())
    }

    #[test]
    fn a_message_has_at_most_the_requested_sges() -> Result {
        let (pd, page) = (pd()?, page()?);
        for most in [1, 2, 5] {
            let mut message = SendBuf::new(&pd, LEN, most)?;
            for _ in 0..most {
                message.add_part(0..1)?;
            }
            assert!(message.add_part(0..1) == Err(ENOSPC));
            assert_eq!(elements(&message).len(), most);
            message.clear();
            // These are not contiguous, so each needs an SGE.
            let runs = (0..=most).map_while(|i| run(page, 2 * i, 1).ok());
            assert!(message.add_pages(runs.clone()) == Err(ENOSPC));
            // The failure left no reference and no SGE.
            assert_eq!(references(page), 1);
            assert!(elements(&message).is_empty());
            message.add_pages(runs.take(most))?;
            assert_eq!(elements(&message).len(), most);
        }
        put(page);
        Ok(())
    }

    #[test]
    fn mapped_pages_are_referenced() -> Result {
        let pages = [page()?, page()?];
        let mut message = SendBuf::new(&pd()?, LEN, 3)?;
        let runs = [
            run(pages[0], 0, PAGE_SIZE)?,
            run(pages[1], 7, 100)?,
            run(pages[1], PAGE_SIZE - 1, 1)?,
        ];
        for _ in 0..2 {
            message.add_pages(runs.into_iter())?;
            assert!(pages.map(references).iter().all(|count| *count > 1));
            // The SGE starts at the offset of its run.
            let last = elements(&message).last().ok_or(EINVAL)?;
            assert_eq!(last.addr % PAGE_SIZE as u64, PAGE_SIZE as u64 - 1);
            assert!(message.add_pages(core::iter::once(runs[0])) == Err(EINVAL));
            message.clear();
            assert_eq!(pages.map(references), [1, 1]);
        }
        message.add_pages(core::iter::once(runs[0]))?;
        drop(message);
        assert_eq!(pages.map(references), [1, 1]);
        pages.map(put);
        Ok(())
    }

    #[test]
    fn slab_memory_is_refused() -> Result {
        let memory = KVec::from_elem(0x33_u8, 64, GFP_KERNEL)?;
        // SAFETY: The memory is from the heap and outlives the run.
        let seg = unsafe { MemSeg::from_virt(memory.as_ptr(), memory.len()) }.ok_or(EINVAL)?;
        let mut message = SendBuf::new(&pd()?, LEN, 3)?;
        message.add_part(0..9)?;
        assert!(message.add_pages(core::iter::once(seg)) == Err(EINVAL));
        // The earlier part is still there.
        assert_eq!(lengths(&message)?.as_slice(), &[9]);
        Ok(())
    }
}
