// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: Receive buffers of a device, and what they record about a message.

use super::*;
use crate::kapi::fixture::pd;

impl Invalidated<'static> {
    /// Returns the invalidation of `handle` by a message that was received before the post with the
    /// ticket `before`.
    pub(in crate::kapi::rdma) fn of_handle(handle: u32, before: Ticket) -> Self {
        Invalidated {
            handle,
            before,
            _message: PhantomData,
        }
    }
}

/// The ticket of the next post.
const NEXT: Ticket = Ticket { qp: 3, post: 4 };

/// The capacity of a buffer.
const ROOM: usize = 100;

/// Returns the completion of a Receive of `len` bytes, which invalidated `handle`.
fn wc(len: u32, handle: Option<u32>) -> bindings::ib_wc {
    let mut wc = bindings::ib_wc {
        byte_len: len,
        ..Default::default()
    };
    // The field is only valid with the flag.
    wc.ex.invalidate_rkey = ManuallyDrop::new(handle.unwrap_or(0xdead));
    if handle.is_some() {
        wc.wc_flags = bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as c_int;
    }
    wc
}

/// Creates a list of buffers with these numbers.
fn list(pd: &Arc<Pd>, numbers: core::ops::Range<u32>) -> Result<RecvList<u32>> {
    let mut list = RecvList::new();
    for number in numbers {
        list.push(RecvBox::new(pd, ROOM, number)?);
    }
    Ok(list)
}

/// Empties the list, and returns whether its buffers had these numbers.
fn holds(list: &mut RecvList<u32>, numbers: core::ops::Range<u32>) -> bool {
    let mut same = list.len() == numbers.len();
    for number in numbers {
        same &= list.pop().is_some_and(|mut b| *b.data_mut() == number);
    }
    same && list.is_empty() && list.pop().is_none()
}

#[kunit_tests(rpcrdma_recv)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_request_describes_its_buffer() -> Result {
        let pd = pd()?;
        let buffer = RecvBox::new(&pd, ROOM, 1_u32)?;
        assert_eq!(buffer.capacity(), ROOM);
        assert!(buffer.bytes().is_empty() && buffer.invalidated().is_none());
        // SAFETY: The test owns the buffer, which is not posted.
        let wr = unsafe { RecvBuf::request(buffer.0.as_ptr()) };
        assert!(wr.next.is_null());
        assert!(core::ptr::eq(wr.sg_list, &raw const buffer.sge));
        assert_eq!(wr.num_sge, 1);
        // SAFETY: Receives have a completion entry, not a number.
        let cqe = unsafe { *wr.__bindgen_anon_1.wr_cqe };
        assert!(core::ptr::eq(cqe.cast(), &raw const buffer.entry));
        assert_eq!(buffer.sge.length as usize, ROOM);
        let other = RecvBox::new(&pd, ROOM, 2_u32)?;
        assert!(buffer.cid().completion != other.cid().completion);
        assert!(RecvBox::new(&pd, 0, 3_u32).is_err());
        Ok(())
    }

    #[test]
    fn no_message_is_longer_than_its_buffer() -> Result {
        let mut buffer = RecvBox::new(&pd()?, ROOM, 1_u32)?;
        for (told, len) in [
            (5, 5),
            (0, 0),
            (ROOM as u32, ROOM),
            (ROOM as u32 + 1, ROOM),
            (u32::MAX, ROOM),
            (1, 1),
        ] {
            assert_eq!(buffer.received(&wc(told, None), || NEXT).byte_len, told);
            assert_eq!(buffer.byte_len(), len);
            assert_eq!(buffer.bytes().len(), len);
        }
        Ok(())
    }

    #[test]
    fn only_the_last_message_reports_an_invalidation() -> Result {
        let mut buffer = RecvBox::new(&pd()?, ROOM, 1_u32)?;
        for handle in [None, Some(0x1234), Some(0), None] {
            buffer.received(&wc(1, handle), || NEXT);
            assert_eq!(buffer.invalidated().map(|i| i.handle()), handle);
            assert!(buffer.invalidated().is_none_or(|i| i.before() == NEXT));
        }
        Ok(())
    }

    #[test]
    fn a_pool_returns_the_missing_receives() -> Result {
        let pd = pd()?;
        let mut pool = RecvPool::new();
        for number in 0..6 {
            pool.put(RecvBox::new(&pd, ROOM, number)?);
        }
        assert_eq!((pool.missing(4, 2).len(), pool.posted()), (4, 4));
        // Fewer than a batch are missing.
        pool.note_completed();
        assert_eq!((pool.missing(4, 2).len(), pool.posted()), (0, 3));
        pool.note_completed();
        let mut list = pool.missing(4, 2);
        assert!(holds(&mut list, 4..6));
        assert_eq!(pool.posted(), 4);
        // No buffer is free, so fewer are posted.
        pool.note_completed();
        pool.note_completed();
        assert_eq!((pool.missing(4, 2).len(), pool.posted()), (0, 2));
        pool.put(RecvBox::new(&pd, ROOM, 8)?);
        let mut rest = pool.missing(4, 2);
        assert_eq!((rest.len(), pool.posted()), (1, 3));
        rest.push(RecvBox::new(&pd, ROOM, 9)?);
        pool.unposted(rest);
        assert_eq!((pool.missing(4, 2).len(), pool.posted()), (2, 3));
        Ok(())
    }

    #[test]
    fn a_list_is_first_in_first_out() -> Result {
        let pd = pd()?;
        assert!(holds(&mut RecvList::new(), 0..0));
        assert!(holds(&mut list(&pd, 0..5)?, 0..5));
        // A list that was emptied can be used again.
        let mut list = list(&pd, 0..1)?;
        assert!(list.pop().is_some() && list.pop().is_none());
        list.push(RecvBox::new(&pd, ROOM, 7)?);
        list.push(RecvBox::new(&pd, ROOM, 8)?);
        assert!(holds(&mut list, 7..9));
        Ok(())
    }

    #[test]
    fn lists_are_joined_in_order() -> Result {
        let pd = pd()?;
        for (ours, theirs) in [(0, 0), (0, 3), (3, 0), (1, 1), (3, 4)] {
            let mut first = list(&pd, 0..ours)?;
            let mut second = list(&pd, ours..ours + theirs)?;
            first.append(&mut second);
            assert!(holds(&mut second, 0..0));
            // The next buffer is appended at the end.
            let next = ours + theirs;
            first.push(RecvBox::new(&pd, ROOM, next)?);
            assert!(holds(&mut first, 0..next + 1));
        }
        Ok(())
    }

    #[test]
    fn buffers_are_freed_with_their_list() -> Result {
        let pd = pd()?;
        drop(list(&pd, 0..4)?);
        let mut first = list(&pd, 0..2)?;
        first.append(&mut list(&pd, 2..4)?);
        drop(first);
        // Each buffer held a reference to the PD.
        assert!(Arc::into_unique_or_drop(pd).is_some());
        Ok(())
    }
}
