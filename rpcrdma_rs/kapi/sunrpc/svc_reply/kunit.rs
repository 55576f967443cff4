// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the pages of a service thread, of replies being sent, and of files.
//!
//! The tests create the `svc_rqst` of the thread, in the state in which sunrpc passes it to a
//! transport.

use super::*;
use crate::kapi::fixture::{
    page,
    references, //
};

/// The number of slots in the thread's reply array.
const SLOTS: usize = 8;

/// A service thread, the pages that it had at first, and pages of a file.
struct Thread {
    rqst: KBox<bindings::svc_rqst>,
    slots: KVec<*mut bindings::page>,
    own: [NonNull<bindings::page>; SLOTS],
    file: [NonNull<bindings::page>; 3],
}

impl Thread {
    fn new() -> Result<Self> {
        let mut rqst = KBox::<bindings::svc_rqst>::new_uninit(GFP_KERNEL)?;
        // SAFETY: Zero is valid for all of its fields.
        let mut rqst = unsafe {
            rqst.as_mut_ptr().write_bytes(0, 1);
            rqst.assume_init()
        };
        let mut own = [page()?; SLOTS];
        for slot in own.iter_mut().skip(1) {
            *slot = page()?;
        }
        let mut slots = KVec::new();
        for page in own {
            slots.push(page.as_ptr(), GFP_KERNEL)?;
        }
        // One more slot, as in sunrpc.
        slots.push(null_mut(), GFP_KERNEL)?;
        rqst.rq_maxpages = SLOTS as _;
        rqst.rq_respages = slots.as_mut_ptr();
        rqst.rq_next_page = rqst.rq_respages;
        rqst.rq_page_end = rqst.rq_respages.wrapping_add(SLOTS);
        let file = [page()?, page()?, page()?];
        Ok(Thread {
            rqst,
            slots,
            own,
            file,
        })
    }

    /// Holds the pages in `slots`, as a received Call does.
    fn hold(&mut self, slots: Range<usize>) -> HeldPages {
        let mut held = HeldPages::default();
        // SAFETY: The `svc_rqst` is in the state that `xpo_recvfrom` finds.
        unsafe { held.begin(&raw mut *self.rqst, slots) };
        held
    }

    /// Creates a reply as a service does: 100 bytes of head, and `count` pages from slot 1 on, the
    /// last of them without its last 50 bytes.
    fn make(&mut self, count: usize) {
        let base = self.rqst.rq_respages;
        self.rqst.rq_next_page = base.wrapping_add(1 + count);
        // SAFETY: The page belongs to the thread.
        let head = unsafe { bindings::rpcrdma_shim_page_address(self.own[0].as_ptr()) };
        self.rqst.rq_res.head[0] = bindings::kvec {
            iov_base: head,
            iov_len: 100,
        };
        self.rqst.rq_res.tail[0] = bindings::kvec::default();
        self.rqst.rq_res.pages = base.wrapping_add(1);
        self.rqst.rq_res.page_base = 0;
        self.rqst.rq_res.page_len = (count * PAGE_SIZE).saturating_sub(50) as _;
    }

    /// Like `make`, with pages of the file in the slots, as `svc_rqst_replace_page` puts them
    /// there.
    fn splice(&mut self, count: usize) {
        for at in 0..count {
            // SAFETY: The slot owns a reference to its page, and gets one to the page of the file.
            unsafe {
                bindings::rpcrdma_shim_put_page(self.slots[1 + at]);
                bindings::rpcrdma_shim_get_page(self.file[at].as_ptr());
            }
            self.slots[1 + at] = self.file[at].as_ptr();
        }
        self.make(count);
    }

    fn reply<'a>(&mut self, held: &'a mut HeldPages) -> Reply<'a> {
        // SAFETY: The `svc_rqst` is in the state that `xpo_sendto` finds, and outlives the reply.
        unsafe { Reply::new(&raw mut *self.rqst, held) }
    }

    /// Returns the number of pages that sunrpc considers used and will replace.
    fn missing(&self) -> usize {
        (self.rqst.rq_next_page as usize - self.rqst.rq_respages as usize)
            / size_of::<*mut bindings::page>()
    }

    /// Returns whether the thread has its first pages again, each with one reference.
    fn is_whole(&self) -> bool {
        let pages = self.slots.iter().take(SLOTS).zip(self.own);
        self.missing() == 0
            && pages.into_iter().all(|(slot, own)| *slot == own.as_ptr())
            && self.own.iter().all(|page| references(*page) == 1)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        for page in self.slots.iter().filter(|page| !page.is_null()) {
            // SAFETY: The slot owns the reference.
            unsafe { bindings::rpcrdma_shim_put_page(*page) };
        }
        for page in self.file {
            // SAFETY: The test owns the reference.
            unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
        }
    }
}

/// Returns the octets of the payload in a reply of `Thread::make`.
fn payload(count: usize) -> Range<usize> {
    100..100 + count * PAGE_SIZE - 50
}

/// Returns the pages of an array.
fn addresses(pages: &mut PageVec) -> KVec<*mut bindings::page> {
    let mut all = KVec::new();
    // SAFETY: No page is replaced.
    for page in unsafe { pages.as_mut_slice() } {
        let _ = all.push(page.as_ptr(), GFP_KERNEL);
    }
    all
}

#[kunit_tests(rpcrdma_svc_reply)]
mod tests {
    use super::*;

    #[test]
    fn spliced_pages_are_sent_and_lent_pages_return() -> Result {
        let mut thread = Thread::new()?;
        let mut held = thread.hold(1..5);
        assert!(thread.own[1..5].iter().all(|page| references(*page) == 2));
        thread.splice(3);
        let mut pages = PageVec::new();
        let mut reply = thread.reply(&mut held);
        let taken = reply.take_pages(&mut pages, payload(3))?;
        assert!(!taken.own);
        assert_eq!(
            taken
                .map
                .octets(100..200)
                .next()
                .map(|octets| octets.start / PAGE_SIZE),
            Some(0)
        );
        reply.finish();
        assert!(thread.is_whole());
        let file = thread.file.map(NonNull::as_ptr);
        assert!(addresses(&mut pages)[..] == file);
        assert_eq!(thread.file.map(references), [2; 3]);
        drop((pages, held));
        assert_eq!(thread.file.map(references), [1; 3]);
        assert!(thread.is_whole());
        Ok(())
    }

    #[test]
    fn a_located_part_is_taken_like_pages() -> Result {
        let mut thread = Thread::new()?;
        let mut held = thread.hold(1..5);
        thread.splice(3);
        let mut pages = PageVec::new();
        let mut reply = thread.reply(&mut held);
        // The head is not in held pages, and the reply ends before the last octets.
        assert!(reply.locate_held(99..200).is_none());
        assert!(reply.locate_held(100..payload(3).end + 1).is_none());
        let part = reply
            .locate_held(100 + PAGE_SIZE..200 + PAGE_SIZE)
            .ok_or(EINVAL)?;
        assert_eq!(part.octets(), PAGE_SIZE..PAGE_SIZE + 100);
        assert!(!reply.take_held_part(&mut pages, &part));
        assert_eq!(reply.message().total(), 0);
        reply.finish();
        assert!(thread.is_whole());
        let file = thread.file.map(NonNull::as_ptr);
        assert!(addresses(&mut pages)[..] == file[..2]);
        // The service has filled the thread's own pages.
        let mut held = thread.hold(1..5);
        thread.make(2);
        let mut reply = thread.reply(&mut held);
        let part = reply.locate_held(payload(2)).ok_or(EINVAL)?;
        assert_eq!(part.octets(), 0..2 * PAGE_SIZE - 50);
        assert!(reply.take_held_part(&mut pages, &part));
        reply.finish();
        assert_eq!((thread.missing(), pages.len()), (2, 2));
        // The reply uses more slots than were held.
        let mut thread = Thread::new()?;
        let mut held = thread.hold(1..3);
        thread.splice(3);
        let reply = thread.reply(&mut held);
        assert!(reply.locate_held(payload(2)).is_some());
        assert!(reply.locate_held(payload(3)).is_none());
        reply.finish();
        Ok(())
    }

    #[test]
    fn own_pages_leave_their_slots_until_the_send_completes() -> Result {
        let mut thread = Thread::new()?;
        let mut held = thread.hold(1..6);
        thread.make(3);
        let mut spare = SparePages::new();
        let mut one = PageVec::new();
        one.reserve(1, GFP_KERNEL)?;
        let added = page()?;
        // SAFETY: The test owns the reference, and gives it to the array.
        unsafe { one.push(added)? };
        spare.put(&mut one, 1);
        assert_eq!(spare.len(), 1);

        let mut pages = PageVec::new();
        let mut reply = thread.reply(&mut held);
        assert!(reply.take_pages(&mut pages, payload(3))?.own);
        reply.refill(&mut spare);
        reply.finish();
        // One slot got the spare page, and sunrpc has to fill the first two.
        assert_eq!((thread.missing(), spare.len()), (2, 0));
        assert!(thread.slots[..2].iter().all(|slot| slot.is_null()));
        assert!(thread.slots[2..SLOTS].iter().all(|slot| !slot.is_null()));
        assert!(thread.slots.contains(&added.as_ptr()));
        let sent = addresses(&mut pages);
        assert_eq!(sent.len(), 3);
        assert!(sent
            .iter()
            .all(|page| !thread.slots[2..SLOTS].contains(page)));
        assert!(thread.own.iter().all(|page| references(*page) == 1));
        // After the Send they are spare pages, except for one that has another reference.
        // SAFETY: The array's reference keeps the page valid.
        unsafe { bindings::rpcrdma_shim_get_page(sent[1]) };
        spare.put(&mut pages, 3);
        assert_eq!((spare.len(), pages.len()), (2, 1));
        assert!(addresses(&mut pages)[..] == sent[1..2]);
        // SAFETY: The reference was taken above.
        unsafe { bindings::rpcrdma_shim_put_page(sent[1]) };
        Ok(())
    }

    #[test]
    fn slots_of_unsent_pages_get_their_pages_back() -> Result {
        let mut thread = Thread::new()?;
        let mut held = thread.hold(1..5);
        thread.splice(2);
        // The service shortens the reply. The pages of the file are still in the slots.
        thread.make(0);
        thread.reply(&mut held).finish();
        assert!(thread.is_whole());
        assert_eq!(thread.file.map(references), [1; 3]);
        // Only a part of a reply is sent. The slots of the rest get their pages back as well.
        held = thread.hold(1..5);
        thread.splice(3);
        let mut pages = PageVec::new();
        let mut reply = thread.reply(&mut held);
        let _ = reply.take_pages(&mut pages, payload(1))?;
        reply.finish();
        assert!(thread.is_whole());
        assert_eq!(pages.len(), 1);
        Ok(())
    }

    #[test]
    fn a_reply_in_the_first_page_takes_it() -> Result {
        let mut thread = Thread::new()?;
        let mut held = thread.hold(0..3);
        thread.make(1);
        let mut pages = PageVec::new();
        let mut reply = thread.reply(&mut held);
        let taken = reply.take_pages(&mut pages, 0..100 + PAGE_SIZE - 50)?;
        assert!(taken.own);
        let octets = |at: usize| taken.map.octets(at..at + 1).next();
        let piece = |at: usize| octets(at).map(|octets| octets.start / PAGE_SIZE);
        assert_eq!((piece(0), piece(100)), (Some(0), Some(1)));
        reply.finish();
        assert_eq!((thread.missing(), pages.len()), (2, 2));
        Ok(())
    }

    #[test]
    fn without_a_loan_sunrpc_replaces_used_pages() -> Result {
        let mut thread = Thread::new()?;
        let mut held = HeldPages::default();
        thread.splice(3);
        thread.reply(&mut held).finish();
        // The head's page stays with the thread; sunrpc releases those of the file.
        assert_eq!(thread.missing(), 3);
        assert!(!thread.slots[..3].contains(&thread.own[0].as_ptr()));
        assert!(thread.slots.contains(&thread.own[0].as_ptr()));
        let file = thread.file.map(NonNull::as_ptr);
        assert!(file.iter().all(|page| thread.slots[..3].contains(page)));
        // The reply uses more slots than were held.
        let mut thread = Thread::new()?;
        let mut held = thread.hold(1..3);
        thread.splice(3);
        let mut pages = PageVec::new();
        let mut reply = thread.reply(&mut held);
        assert!(!reply.take_pages(&mut pages, payload(3))?.own);
        reply.finish();
        assert_eq!((thread.missing(), pages.len()), (4, 4));
        assert!(thread.slots[..4].iter().all(|slot| slot.is_null()));
        Ok(())
    }

    #[test]
    fn a_deferred_call_has_nothing_lent() -> Result {
        let mut thread = Thread::new()?;
        let mut other = Thread::new()?;
        // The pages were those of one thread, and another one replies.
        let mut held = thread.hold(1..5);
        other.splice(2);
        other.reply(&mut held).finish();
        assert_eq!(other.missing(), 2);
        assert!(thread.is_whole());
        // A deferred Call that the same thread happens to answer.
        let mut held = thread.hold(1..5);
        thread.splice(2);
        thread.rqst.rq_deferred = NonNull::dangling().as_ptr();
        thread.reply(&mut held).finish();
        assert_eq!(thread.missing(), 2);
        assert!(held.pages.len() == 0);
        Ok(())
    }
}
