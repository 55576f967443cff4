// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: `xdr_buf`s with real pages.

use super::*;
use crate::kapi::{
    ext::memory::{
        page_address,
        MAX_RUN_PAGES, //
    },
    fixture::{
        page,
        pattern, //
    }, //
};

/// The value of the bytes around a message.
const FOREIGN: u8 = 0xee;

/// The shapes of messages: head, offset of the page part, its length, tail.
const SHAPES: [[usize; 4]; 10] = [
    [0, 0, 0, 0],
    [1, 0, 0, 0],
    [0, 0, 0, 1],
    [40, 0, 0, 12],
    [100, 0, PAGE_SIZE, 4],
    [100, 1, PAGE_SIZE, 4],
    [0, PAGE_SIZE - 1, 2, 0],
    [28, PAGE_SIZE + 17, 2 * PAGE_SIZE - 17, 3],
    [PAGE_SIZE + 700, 5, 3 * PAGE_SIZE - 10, PAGE_SIZE + 1],
    [7, 2 * PAGE_SIZE, 1, 9],
];

/// A message and its memory. Byte `i` of the message is `pattern(i, 1)`.
struct Message {
    head: KVec<u8>,
    tail: KVec<u8>,
    pages: KVec<*mut bindings::page>,
    raw: KBox<bindings::xdr_buf>,
}

impl Message {
    /// Creates a message with parts of these lengths; its pages begin at offset `base`.
    fn new([head_len, base, page_len, tail_len]: [usize; 4]) -> Result<Self> {
        let mut pages = KVec::new();
        for _ in 0..(base + page_len).div_ceil(PAGE_SIZE) {
            pages.push(page()?.as_ptr(), GFP_KERNEL)?;
        }
        let mut this = Message {
            head: KVec::from_elem(0, head_len, GFP_KERNEL)?,
            tail: KVec::from_elem(0, tail_len, GFP_KERNEL)?,
            pages,
            raw: KBox::new(bindings::xdr_buf::default(), GFP_KERNEL)?,
        };
        for (i, byte) in this.head.iter_mut().enumerate() {
            *byte = pattern(i, 1);
        }
        for (i, byte) in this.tail.iter_mut().enumerate() {
            *byte = pattern(head_len + page_len + i, 1);
        }
        for at in 0..this.pages.len() * PAGE_SIZE {
            let inside = (base..base + page_len).contains(&at);
            let byte = if inside {
                pattern(head_len + at - base, 1)
            } else {
                FOREIGN
            };
            this.set(at, byte);
        }
        this.raw.head[0].iov_base = this.head.as_mut_ptr().cast();
        this.raw.head[0].iov_len = head_len;
        this.raw.tail[0].iov_base = this.tail.as_mut_ptr().cast();
        this.raw.tail[0].iov_len = tail_len;
        this.raw.pages = this.pages.as_mut_ptr();
        this.raw.page_base = base as u32;
        this.raw.page_len = page_len as u32;
        this.raw.len = (head_len + page_len + tail_len) as u32;
        Ok(this)
    }

    /// Returns the address of byte `at` of the pages.
    fn address(&self, at: usize) -> *mut u8 {
        // SAFETY: The page belongs to the message.
        let base = unsafe { page_address(self.pages[at / PAGE_SIZE]) };
        base.wrapping_add(at % PAGE_SIZE)
    }

    fn set(&mut self, at: usize, byte: u8) {
        // SAFETY: The byte is in a page of the message.
        unsafe { self.address(at).write(byte) };
    }

    fn get(&self, at: usize) -> u8 {
        // SAFETY: The byte is in a page of the message.
        unsafe { self.address(at).read() }
    }

    fn buf(&mut self) -> &XdrBuf {
        // SAFETY: `new` has set up the `xdr_buf`, and the message is borrowed.
        unsafe { XdrBuf::from_raw(&raw mut *self.raw) }
    }

    /// Removes a page from the array and frees it.
    fn lose(&mut self, index: usize) {
        let page = core::mem::replace(&mut self.pages[index], core::ptr::null_mut());
        // SAFETY: The array owned the reference.
        unsafe { bindings::rpcrdma_shim_put_page(page) };
        self.raw.flags |= bindings::XDRBUF_SPARSE_PAGES;
    }

    /// Returns whether the bytes around the page part are unchanged.
    fn surroundings_are_whole(&self) -> bool {
        let base = self.raw.page_base as usize;
        let part = base..base + self.raw.page_len as usize;
        (0..self.pages.len() * PAGE_SIZE)
            .filter(|at| !part.contains(at))
            .all(|at| self.get(at) == FOREIGN)
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        for page in self.pages.iter().filter(|page| !page.is_null()) {
            // SAFETY: The array owns the reference.
            unsafe { bindings::rpcrdma_shim_put_page(*page) };
        }
    }
}

/// Returns offsets at and next to all boundaries of a message, and far beyond its end.
fn offsets([head, base, pages, _]: [usize; 4], total: usize) -> [usize; 16] {
    let next_page = head + (PAGE_SIZE - base % PAGE_SIZE);
    [
        0,
        1,
        head.saturating_sub(1),
        head,
        head + 1,
        next_page - 1,
        next_page,
        next_page + 1,
        head + pages,
        (head + pages).saturating_sub(1),
        head + pages + 1,
        total.saturating_sub(1),
        total,
        total + 1,
        isize::MAX as usize,
        usize::MAX,
    ]
}

/// Compares the bytes of runs with those of the message from `at` on. Returns whether they are
/// equal, and their number.
fn compare_runs<'a>(runs: impl Iterator<Item = MemSeg<'a>>, mut at: usize) -> (bool, usize) {
    let (start, mut same) = (at, true);
    for run in runs {
        same &= run.len() > 0 && run.page_count() <= MAX_RUN_PAGES;
        for (index, page) in run.pages().enumerate() {
            // SAFETY: The pages of a run are valid. Contiguous pages have contiguous addresses.
            let base = unsafe { bindings::rpcrdma_shim_page_address(page.as_ptr()) };
            let in_run = index * PAGE_SIZE;
            same &= core::ptr::eq(
                base.cast::<u8>(),
                run.address()
                    .wrapping_sub(run.offset())
                    .wrapping_add(in_run),
            );
        }
        for i in 0..run.len() {
            // SAFETY: The byte is in the run.
            same &= unsafe { run.address().add(i).read() } == pattern(at, 1);
            at += 1;
        }
    }
    (same, at - start)
}

#[kunit_tests(rpcrdma_xdr_buf)]
mod tests {
    use super::*;

    #[test]
    fn any_range_is_copied_up_to_the_end() -> Result {
        let mut to = KVec::from_elem(0_u8, 8 * PAGE_SIZE, GFP_KERNEL)?;
        for shape in SHAPES {
            let mut message = Message::new(shape)?;
            let buf = message.buf();
            let total = buf.total();
            assert_eq!(total, buf.len());
            for start in offsets(shape, total) {
                for end in offsets(shape, total) {
                    let expected = end.min(total).saturating_sub(start);
                    to[..=expected].fill(FOREIGN);
                    assert_eq!(buf.copy_to(start..end, &mut to), expected);
                    assert!((0..expected).all(|i| to[i] == pattern(start + i, 1)));
                    assert_eq!(to[expected], FOREIGN);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_copy_ends_where_its_buffer_ends() -> Result {
        for shape in SHAPES {
            let mut message = Message::new(shape)?;
            let buf = message.buf();
            let total = buf.total();
            for room in offsets(shape, total).into_iter().filter(|n| *n <= total) {
                let mut to = KVec::from_elem(FOREIGN, room, GFP_KERNEL)?;
                assert_eq!(buf.copy_to(0..usize::MAX, &mut to), room);
                assert!((0..room).all(|i| to[i] == pattern(i, 1)));
            }
        }
        Ok(())
    }

    #[test]
    fn contiguous_pages_are_one_run() -> Result {
        let (order, count) = (2, 4);
        // SAFETY: Allocates new pages, which are contiguous.
        let block = unsafe { bindings::alloc_pages(bindings::GFP_KERNEL, order) };
        let block = NonNull::new(block).ok_or(ENOMEM)?;
        // SAFETY: The callers pass the index of a page in the block.
        let page = |i: usize| unsafe { block.as_ptr().add(i) };
        let whole = PAGE_SIZE;
        // The pages, the offset in the first one, and the lengths of the runs.
        let cases: [(&[usize], usize, &[usize]); 5] = [
            (&[0, 1, 2, 3], 0, &[4 * whole]),
            (&[0, 1, 2, 3], 100, &[4 * whole - 100]),
            (&[0, 1, 3], 0, &[2 * whole, whole]),
            (&[1, 0, 2, 3], 5, &[whole - 5, whole, 2 * whole]),
            (&[0, 0], 0, &[whole, whole]),
        ];
        for (indices, base, lengths) in cases {
            let mut pages = KVec::new();
            for index in indices {
                pages.push(page(*index), GFP_KERNEL)?;
            }
            let mut raw = KBox::new(bindings::xdr_buf::default(), GFP_KERNEL)?;
            raw.pages = pages.as_mut_ptr();
            raw.page_base = base as u32;
            raw.page_len = (indices.len() * whole - base) as u32;
            raw.len = raw.page_len;
            // SAFETY: The `xdr_buf` was set up above.
            let buf = unsafe { XdrBuf::from_raw(&raw mut *raw) };
            let found = buf.segs(0..usize::MAX).map(|run| run.len());
            assert!(found.eq(lengths.iter().copied()));
            // A run does not exceed the requested range.
            assert!(buf.segs(0..1).map(|run| run.len()).eq([1]));
        }
        // SAFETY: The pages were allocated above with this order.
        unsafe { bindings::__free_pages(block.as_ptr(), order) };
        assert_eq!(count, 1 << order);
        Ok(())
    }

    #[test]
    fn runs_cover_the_bytes_of_the_range() -> Result {
        for shape in SHAPES {
            let mut message = Message::new(shape)?;
            let buf = message.buf();
            let total = buf.total();
            for start in offsets(shape, total) {
                for end in offsets(shape, total) {
                    let runs = compare_runs(buf.segs(start..end), start);
                    assert_eq!(runs, (true, end.min(total).saturating_sub(start)));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn only_the_page_part_is_filled() -> Result {
        let source = KVec::from_elem(0xaa_u8, 8 * PAGE_SIZE, GFP_KERNEL)?;
        for shape in SHAPES {
            let [head, base, len, _] = shape;
            for offset in [0, 1, PAGE_SIZE - 1, PAGE_SIZE, len, len + 1, usize::MAX] {
                for count in [0, 1, PAGE_SIZE, source.len()] {
                    let mut message = Message::new(shape)?;
                    let filled = message.buf().fill_pages(offset, &source[..count]);
                    assert_eq!(filled, len.saturating_sub(offset).min(count));
                    for i in 0..len {
                        let new = i >= offset && i - offset < filled;
                        let byte = if new { 0xaa } else { pattern(head + i, 1) };
                        assert_eq!(message.get(base + i), byte);
                    }
                    assert!(message.surroundings_are_whole());
                    let (head, tail) = (message.head.iter(), message.tail.iter());
                    assert!(head.enumerate().all(|(i, b)| *b == pattern(i, 1)));
                    let start = message.head.len() + len;
                    assert!(tail.enumerate().all(|(i, b)| *b == pattern(start + i, 1)));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn redirect_replaces_head_and_tail() -> Result {
        let (head, tail) = ([1_u8; 40], [2_u8; 5]);
        for shape in SHAPES {
            for (head, tail) in [
                (&head[..], Some(&tail[..])),
                (&head[..4], Some(&tail[..0])),
                (&head[..], None),
            ] {
                let mut message = Message::new(shape)?;
                // SAFETY: The message belongs to the test, and the parts outlive it.
                unsafe { XdrBuf::redirect(&raw mut *message.raw, head, tail) };
                let left = tail.map_or(shape[3], |tail| tail.len());
                assert_eq!(message.raw.buflen as usize, head.len() + shape[2] + left);
                let buf = message.buf();
                assert_eq!(buf.head(), head);
                assert_eq!(buf.tail_len(), left);
                assert!(tail.is_none_or(|tail| buf.tail() == tail));
            }
        }
        Ok(())
    }

    #[test]
    fn the_tail_is_filled_completely_or_not_at_all() -> Result {
        let source = [0xaa_u8; 9];
        for shape in SHAPES {
            let [head, _, len, tail] = shape;
            for count in [0, 1, 3, 4, 5, 9] {
                let mut message = Message::new(shape)?;
                let filled = message.buf().fill_tail(&source[..count]);
                assert_eq!(filled, count <= tail);
                let new = if filled { count } else { 0 };
                assert!(message.tail[..new].iter().all(|b| *b == 0xaa));
                let mut left = message.tail.iter().enumerate().skip(new);
                assert!(left.all(|(i, b)| *b == pattern(head + len + i, 1)));
            }
        }
        Ok(())
    }

    #[test]
    fn a_claimed_length_does_not_reach_beyond_what_arrived() {
        for (claimed, placed, length) in [
            (8, 8, 8),
            (5, 5, 8),
            (4, 5, 8),
            (0, 5, 8),
            (6, 5, 4),
            (8, 5, 4),
            (u32::MAX, 7, 4),
            (u32::MAX, 8, 8),
            (3, 2, 0),
        ] {
            let before = [7, claimed].map(u32::to_be_bytes);
            assert_eq!(arrived(before.as_flattened(), placed), length);
        }
        assert_eq!(arrived(&[], 5), 8);
    }

    #[test]
    fn pages_are_counted() -> Result {
        let cases = [
            (0, 0, 0),
            (PAGE_SIZE - 1, 0, 0),
            (0, 1, 1),
            (0, PAGE_SIZE, 1),
            (1, PAGE_SIZE, 2),
            (PAGE_SIZE - 1, 2, 2),
            (PAGE_SIZE, PAGE_SIZE, 1),
            (3 * PAGE_SIZE + 1, 2 * PAGE_SIZE, 3),
        ];
        for (base, len, count) in cases {
            let mut message = Message::new([8, base, len, 0])?;
            assert_eq!(message.buf().page_count(), count);
        }
        Ok(())
    }

    #[test]
    fn a_walk_ends_at_a_missing_page() -> Result {
        let shape = [20, 100, 3 * PAGE_SIZE, 8];
        let mut to = KVec::from_elem(0_u8, 8 * PAGE_SIZE, GFP_KERNEL)?;
        for (lost, there) in [
            (0, 20),
            (1, 20 + PAGE_SIZE - 100),
            (3, 20 + 3 * PAGE_SIZE - 100),
        ] {
            let mut message = Message::new(shape)?;
            message.lose(lost);
            let buf = message.buf();
            assert!(buf.is_sparse());
            assert_eq!(buf.copy_to(0..usize::MAX, &mut to), there);
            assert_eq!(compare_runs(buf.segs(0..usize::MAX), 0), (true, there));
            assert_eq!(buf.fill_pages(0, &to), there - 20);
        }
        Ok(())
    }

    #[test]
    fn fill_sparse_allocates_only_missing_pages() -> Result {
        let mut message = Message::new([20, PAGE_SIZE + 100, 3 * PAGE_SIZE, 8])?;
        let before = [message.pages[1], message.pages[3]];
        // The first page is outside the page part, and must not be allocated.
        for index in [0, 2, 4] {
            message.lose(index);
        }
        // SAFETY: Only this test uses the array.
        unsafe { message.buf().fill_sparse()? };
        assert!(message.pages[0].is_null());
        assert!([message.pages[1], message.pages[3]] == before);
        for index in [2, 4] {
            assert!(!message.pages[index].is_null());
        }
        let buf = message.buf();
        let mut to = KVec::from_elem(0_u8, 8 * PAGE_SIZE, GFP_KERNEL)?;
        assert_eq!(buf.copy_to(0..usize::MAX, &mut to), buf.total());
        Ok(())
    }

    #[test]
    fn an_empty_message_needs_no_memory() -> Result {
        let mut raw = KBox::new(bindings::xdr_buf::default(), GFP_KERNEL)?;
        // SAFETY: All lengths are zero.
        let buf = unsafe { XdrBuf::from_raw(&raw mut *raw) };
        assert!(buf.head().is_empty() && buf.tail().is_empty());
        assert!(buf.segs(0..usize::MAX).next().is_none());
        assert!(buf.segs(0..1).next().is_none());
        assert_eq!(buf.page_count(), 0);
        assert_eq!(buf.fill_pages(0, b"bytes"), 0);
        assert_eq!(buf.page_range(), 0..0);
        assert_eq!(buf.tail_range(), 0..0);
        // SAFETY: The array is empty.
        unsafe { buf.fill_sparse() }
    }
}
