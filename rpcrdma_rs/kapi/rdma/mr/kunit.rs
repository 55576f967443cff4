// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: memory regions of a device, and when they are fenced. Nothing is posted; the tests record
//! registrations and invalidations as a post does.

use super::*;
use kernel::ffi::{
    c_int,
    c_uint, //
};

use crate::kapi::{
    ext::lend::Lender,
    fixture::{
        lent,
        page,
        pd,
        references, //
    }, //
};

/// The number of pages of a region.
const MAX_PAGES: u32 = 4;

/// The driver's operation that takes the mapped runs of a region.
type MapMrSg = unsafe extern "C" fn(
    *mut bindings::ib_mr,
    *mut bindings::scatterlist,
    c_int,
    *mut c_uint,
) -> c_int;

/// A page that is freed on drop.
struct Page(NonNull<bindings::page>);

impl Page {
    /// Returns the run of `len` bytes from `offset` on.
    fn run(&self, offset: usize, len: usize) -> Option<MemSeg<'_>> {
        // SAFETY: `self` owns a reference to the page and is borrowed.
        unsafe { MemSeg::from_page(self.0, offset, len) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `self` owns the reference.
        unsafe { bindings::rpcrdma_shim_put_page(self.0.as_ptr()) };
    }
}

/// Returns a region with one mapped page, to which a peer may write.
fn mapped(pd: &Arc<Pd>, page: &Page) -> Result<Mr> {
    let lender = Lender::new(None)?;
    let mut mr = Mr::new(pd, MAX_PAGES)?;
    let mut runs = lent(
        &lender,
        page.run(0, PAGE_SIZE).into_iter(),
        Access::RemoteWrite,
    );
    mr.map(&mut runs, 0)?;
    Ok(mr)
}

/// Returns the ticket of a post on QP 1.
fn ticket(post: u64) -> Ticket {
    Ticket { qp: 1, post }
}

/// Returns whether a message that invalidated `handle` fences the region. The message was received
/// after all posts.
fn invalidated(mr: &mut Mr, handle: u32) -> bool {
    mr.invalidated_by(Invalidated::of_handle(handle, ticket(u64::MAX)))
}

fn completed(mr: &mut Mr, post: u64) -> bool {
    mr.completed_by(&Wc::with_ticket(ticket(post)))
}

/// Returns the key and the access flags in the region's registration request.
fn registration(mr: &Mr) -> (u32, i32) {
    // SAFETY: The request is not in a chain.
    unsafe {
        let wr = mr.inner().reg.get();
        assert!(core::ptr::eq((*wr).mr, mr.as_raw()));
        ((*wr).key, (*wr).access)
    }
}

/// Returns the key in the region's invalidation request.
fn invalidation(mr: &Mr) -> u32 {
    // SAFETY: The request is not in a chain.
    unsafe { *(*mr.inner().inv.get()).ex.invalidate_rkey }
}

/// An offset and a length.
type Run = (usize, usize);

/// Returns how many runs of `shape` one registration takes, and how many bytes these have.
fn taken(pd: &Arc<Pd>, page: &Page, shape: &[Run]) -> Result<(usize, usize)> {
    let lender = Lender::new(None)?;
    let mut mr = Mr::new(pd, MAX_PAGES)?;
    let runs = shape.iter().map_while(|(at, len)| page.run(*at, *len));
    let mut runs = lent(&lender, runs, Access::RemoteRead);
    let bytes = mr.map(&mut runs, 0)?;
    let told = mr.length() as usize;
    mr.unmap()?;
    if told != bytes {
        return Err(EIO);
    }
    let mut left = 0;
    while runs.segs().take(1).is_some() {
        left += 1;
    }
    Ok((shape.len() - left, bytes))
}

#[kunit_tests(rpcrdma_mr)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_has_no_gaps() -> Result {
        const PAGE: usize = PAGE_SIZE;
        let (pd, page) = (pd()?, Page(page()?));
        // Neither rxe nor siw supports gaps. A device that does would take all runs.
        assert!(!pd.device().attrs().sg_gaps);
        let shapes: [(&[Run], (usize, usize)); 10] = [
            (&[(0, PAGE)], (1, PAGE)),
            (&[(5, 1)], (1, 1)),
            (&[(5, PAGE - 5), (0, PAGE), (0, 1)], (3, 2 * PAGE - 4)),
            // The first run does not end where its page ends, so the second needs another
            // registration.
            (&[(5, PAGE - 6), (0, PAGE)], (1, PAGE - 6)),
            (&[(0, PAGE), (0, PAGE - 1), (0, 9)], (2, 2 * PAGE - 1)),
            // The second run does not start where its page starts, so it needs another
            // registration.
            (&[(0, PAGE), (1, PAGE - 1)], (1, PAGE)),
            (&[(0, PAGE), (0, PAGE), (8, 8)], (2, 2 * PAGE)),
            // At most as many runs as the region has pages.
            (&[(0, PAGE); 4], (4, 4 * PAGE)),
            (&[(0, PAGE); 5], (4, 4 * PAGE)),
            (&[(0, PAGE); 9], (4, 4 * PAGE)),
        ];
        for (shape, expected) in shapes {
            assert_eq!(taken(&pd, &page, shape)?, expected);
        }
        assert!(taken(&pd, &page, &[]).is_err_and(|e| e == EINVAL));
        Ok(())
    }

    #[test]
    fn shared_pages_are_held_until_they_are_unmapped() -> Result {
        let lender = Lender::new(None)?;
        let (pd, page) = (pd()?, Page(page()?));
        let mut mr = Mr::new(&pd, MAX_PAGES)?;
        for (access, held) in [
            (Access::RemoteRead, 0),
            (Access::RemoteWrite, 0),
            (Access::SharedRead, 2),
        ] {
            let whole = || page.run(0, PAGE_SIZE);
            let mut runs = lent(&lender, [whole(), whole()].into_iter().flatten(), access);
            mr.map(&mut runs, 0)?;
            assert_eq!(references(page.0), 1 + held);
            mr.unmap()?;
            assert_eq!(references(page.0), 1);
        }
        Ok(())
    }

    #[test]
    fn memory_is_lent_while_it_is_mapped() -> Result {
        let (pd, page, lender) = (pd()?, Page(page()?), Lender::new(None)?);
        let mut mr = Mr::new(&pd, MAX_PAGES)?;
        let mut runs = lent(&lender, page.run(0, 9).into_iter(), Access::RemoteWrite);
        mr.map(&mut runs, 0)?;
        assert!(!lender.has_all());
        // No run is left to map, and no loan is made.
        let mut other = Mr::new(&pd, MAX_PAGES)?;
        assert!(other.map(&mut runs, 0) == Err(EINVAL));
        mr.unmap()?;
        assert!(lender.has_all());
        let mut runs = lent(&lender, page.run(0, 9).into_iter(), Access::RemoteWrite);
        mr.map(&mut runs, 0)?;
        drop(mr);
        assert!(lender.has_all());
        Ok(())
    }

    #[test]
    fn a_mapped_region_is_not_mapped_again() -> Result {
        let lender = Lender::new(None)?;
        let (pd, page) = (pd()?, Page(page()?));
        let mut mr = mapped(&pd, &page)?;
        let mut runs = lent(&lender, page.run(0, 1).into_iter(), Access::RemoteRead);
        assert!(mr.map(&mut runs, 0) == Err(EBUSY));
        // The failure has not consumed the run.
        assert!(runs.segs().front().is_some());
        mr.unmap()?;
        mr.unmap()?;
        let mut runs = lent(&lender, page.run(0, 1).into_iter(), Access::RemoteRead);
        assert!(mr.map(&mut runs, 0) == Ok(1));
        mr.unmap()
    }

    #[test]
    fn each_mapping_has_a_new_handle_and_offset() -> Result {
        let lender = Lender::new(None)?;
        let (pd, page) = (pd()?, Page(page()?));
        let mut mr = Mr::new(&pd, MAX_PAGES)?;
        let mut last = mr.handle();
        // Only the low byte of the key changes. This is more often than it has values.
        for tag in 0..300 {
            let mut runs = lent(&lender, page.run(16, 4).into_iter(), Access::RemoteRead);
            mr.map(&mut runs, tag)?;
            assert!(mr.handle() != last);
            assert_eq!(mr.handle() >> 8, last >> 8);
            assert_eq!(mr.offset() >> 32, u64::from(tag));
            assert_eq!(mr.offset() % PAGE_SIZE as u64, 16);
            let flags = Access::RemoteRead.flags();
            assert_eq!(registration(&mr), (mr.handle(), flags));
            assert_eq!(invalidation(&mr), mr.handle());
            last = mr.handle();
            mr.unmap()?;
        }
        Ok(())
    }

    #[test]
    fn only_the_peer_or_a_completion_fences() -> Result {
        let (pd, page) = (pd()?, Page(page()?));
        let mut mr = mapped(&pd, &page)?;
        // The region is not registered, so there is nothing to invalidate.
        assert!(mr.is_fenced());
        assert!(mr.start_invalidation(ticket(1)).is_err_and(|e| e == EINVAL));
        let handle = mr.handle();
        assert!(!invalidated(&mut mr, handle));

        mr.start_registration(ticket(7))?;
        assert_eq!(registration(&mr), (handle, Access::RemoteWrite.flags()));
        assert!(!mr.is_fenced() && mr.unmap() == Err(EBUSY));
        assert!(mr.start_registration(ticket(8)).is_err_and(|e| e == EINVAL));
        // Neither another handle nor the completion of the registration fences it.
        assert!(!invalidated(&mut mr, handle ^ 1) && !completed(&mut mr, 7));
        assert!(!mr.is_fenced());
        // The right handle, but in a message that came before the post, or on another QP.
        for before in [ticket(6), ticket(7), Ticket { qp: 2, post: 8 }] {
            assert!(!mr.invalidated_by(Invalidated::of_handle(handle, before)));
        }
        assert!(!mr.is_fenced());
        assert!(invalidated(&mut mr, handle) && mr.is_fenced());
        assert!(!invalidated(&mut mr, handle));
        // It must be mapped again before it can be registered again.
        assert!(mr.start_registration(ticket(9)).is_err_and(|e| e == EINVAL));
        mr.unmap()?;

        let mut mr = mapped(&pd, &page)?;
        mr.start_registration(ticket(10))?;
        mr.start_invalidation(ticket(11))?;
        assert!(mr
            .start_invalidation(ticket(12))
            .is_err_and(|e| e == EINVAL));
        assert!(!completed(&mut mr, 10) && !completed(&mut mr, 12));
        // After a local invalidation was posted, only its completion fences: the request is in
        // use until then.
        let handle = mr.handle();
        assert!(!invalidated(&mut mr, handle));
        assert!(!mr.is_fenced() && mr.unmap() == Err(EBUSY));
        assert!(completed(&mut mr, 11) && mr.is_fenced());
        mr.unmap()
    }

    #[test]
    fn a_chain_that_is_not_posted_leaves_no_trace() -> Result {
        let (pd, page) = (pd()?, Page(page()?));
        let mut mr = mapped(&pd, &page)?;
        let not = |post| Unposted::with_ticket(ticket(post));
        mr.start_registration(ticket(1))?;
        mr.retract(not(2));
        assert!(!mr.is_fenced());
        mr.retract(not(1));
        assert!(mr.is_fenced() && mr.inner().state == State::Mapped);
        // Only the invalidation was not posted, so it is still registered.
        mr.start_registration(ticket(3))?;
        mr.start_invalidation(ticket(4))?;
        mr.retract(not(3));
        assert!(!mr.is_fenced());
        mr.retract(not(4));
        assert!(mr.inner().state == State::Registered { by: ticket(3) });
        mr.retract(not(3));
        // Both requests were in the same chain.
        mr.start_registration(ticket(5))?;
        mr.start_invalidation(ticket(5))?;
        mr.retract(not(5));
        assert!(mr.inner().state == State::Mapped);
        mr.unmap()
    }

    #[test]
    fn a_driver_without_memory_is_not_a_failure() -> Result {
        unsafe extern "C" fn none(
            _: *mut bindings::ib_mr,
            _: *mut bindings::scatterlist,
            _: c_int,
            _: *mut c_uint,
        ) -> c_int {
            0
        }
        unsafe extern "C" fn too_small(
            _: *mut bindings::ib_mr,
            _: *mut bindings::scatterlist,
            _: c_int,
            _: *mut c_uint,
        ) -> c_int {
            ENOMEM.to_errno()
        }
        let (pd, page) = (pd()?, Page(page()?));
        let device = pd.device().as_raw();
        for (refuse, error) in [(none as MapMrSg, ENOMEM), (too_small, EIO)] {
            // SAFETY: The device is valid, and nobody else maps regions of it during the test.
            let original = unsafe { (*device).ops.map_mr_sg.replace(refuse) };
            let refused = mapped(&pd, &page);
            // SAFETY: As for `replace`.
            unsafe { (*device).ops.map_mr_sg = original };
            assert!(refused.is_err_and(|e| e == error));
        }
        mapped(&pd, &page)?.unmap()
    }

    #[test]
    fn a_queue_pair_fences_only_if_it_was_stopped() -> Result {
        let page = Page(page()?);
        for stopped in [true, false] {
            let (pd, lender) = (pd()?, Lender::new(None)?);
            let mut mr = Mr::new(&pd, MAX_PAGES)?;
            let mut runs = lent(
                &lender,
                page.run(0, PAGE_SIZE).into_iter(),
                Access::RemoteWrite,
            );
            mr.map(&mut runs, 0)?;
            mr.start_registration(ticket(1))?;
            // SAFETY: There is no QP.
            unsafe { pd.set_closed(stopped) };
            assert!(mr.is_fenced() == stopped);
            assert!(mr.unmap() == if stopped { Ok(()) } else { Err(EBUSY) });
            assert!(lender.has_all() == stopped);
            // Deregisters it.
            drop(mr);
            assert!(lender.has_all());
        }
        Ok(())
    }

    #[test]
    fn lists_keep_the_order() -> Result {
        let pd = pd()?;
        let mut handles = KVec::new();
        let mut lists = [MrList::new(), MrList::new()];
        for i in 0..6 {
            let mr = Mr::new(&pd, 1)?;
            handles.push(mr.handle(), GFP_KERNEL)?;
            lists[i / 3].push(mr);
        }
        let [mut list, mut more] = lists;
        list.append(&mut more);
        assert!(more.is_empty() && list.len() == 6);
        assert!(list
            .iter()
            .map(|mr| mr.handle())
            .eq(handles.iter().copied()));
        // An error ends the iteration and does not change the order.
        let mut asked = 0;
        let result = list.try_for_each(|_| {
            asked += 1;
            if asked == 3 {
                Err(EIO)
            } else {
                Ok(())
            }
        });
        assert!(result == Err(EIO) && asked == 3);
        assert!(list
            .iter()
            .map(|mr| mr.handle())
            .eq(handles.iter().copied()));
        for handle in &handles {
            assert!(list.pop().is_some_and(|mr| mr.handle() == *handle));
        }
        assert!(list.pop().is_none() && list.is_empty());
        Ok(())
    }
}
