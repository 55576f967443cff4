// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The reply of a service thread (`struct svc_rqst`), and the pages it is made of.
//!
//! The pages of a reply are the entries of `rq_respages` before `rq_next_page`. A service fills
//! pages of the thread, or, with a splice read, puts pages of the page cache in their place. What
//! a transport still sends when `xpo_sendto` returns, it has to take out of the array; sunrpc
//! then allocates the thread other pages, which Debian's kernel clears.
//!
//! # Lending
//!
//! A transport that expects a long reply holds a reference of its own to the pages that the
//! service will use ([`Lent`]), so that the service cannot free them:
//!
//! ```text
//!                    slot of the array      Lent            Transfer
//!   Call delivered   page of the thread     same page
//!   reply made       page of a file         page of thread
//!   reply taken      page of the thread     -               page of the file
//! ```
//!
//! or, if the service filled the thread's own page,
//!
//! ```text
//!   reply made       page of the thread     same page
//!   reply taken      a spare page           -               page of the thread
//!   sent             ...                                    spare
//! ```
//!
//! A page that is being sent to a client is thus in no slot until it was sent, and a page of a
//! file is never in a slot when the next Call is received.
//!
//! C header: [`include/linux/sunrpc/svc.h`](srctree/include/linux/sunrpc/svc.h)

use super::{
    super::{
        bindings,
        ext::{
            memory::page_address,
            pages::{
                PageVec,
                SparePages, //
            }, //
        }, //
    },
    xdr_buf::XdrBuf, //
};
use core::{
    marker::PhantomData,
    ops::Range,
    ptr::{
        addr_of_mut,
        null_mut,
        NonNull, //
    }, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    page::PAGE_SIZE,
    prelude::*, //
};

/// References to pages of a thread's reply array, held from the delivery of a Call until its
/// reply is made.
///
/// # Invariants
///
/// Without pages, or page `k` was entry `first + k` of `rq_respages` of `thread` when a Call was
/// delivered to that thread with this.
pub(crate) struct Lent {
    pages: PageVec,
    first: usize,
    /// Is compared only.
    thread: *const bindings::svc_rqst,
}

// SAFETY: The array may be sent, and the pointer is not followed.
unsafe impl Send for Lent {}

// SAFETY: Shared access does nothing.
unsafe impl Sync for Lent {}

impl Default for Lent {
    fn default() -> Self {
        // INVARIANT: There are no pages.
        Lent {
            pages: PageVec::new(),
            first: 0,
            thread: core::ptr::null(),
        }
    }
}

impl Lent {
    /// Takes references to the entries `slots` of the reply array of a thread, as far as there are
    /// that many. `pages` is empty and gives its room. Without memory nothing is lent.
    ///
    /// # Safety
    ///
    /// `rqstp` is a thread that is in `xpo_recvfrom`.
    pub(super) unsafe fn new(
        rqstp: *mut bindings::svc_rqst,
        mut pages: PageVec,
        slots: Range<usize>,
    ) -> Self {
        pages.truncate(0);
        // SAFETY: The thread is valid by the requirement, its array has `rq_maxpages` entries,
        // and nobody else uses it.
        let array =
            unsafe { core::slice::from_raw_parts((*rqstp).rq_respages, (*rqstp).rq_maxpages) };
        let end = slots.end.min(array.len());
        let entries = array.get(slots.start..end).unwrap_or_default();
        let room = pages.reserve(entries.len(), GFP_NOWAIT | __GFP_NOWARN);
        if room.is_ok() {
            for page in entries {
                let Some(page) = NonNull::new(*page) else {
                    break;
                };
                // SAFETY: The thread has a reference to the page. The new one is the array's,
                // which has the room.
                let _ = unsafe {
                    bindings::rpcrdma_shim_get_page(page.as_ptr());
                    pages.push(page)
                };
            }
        }
        // INVARIANT: These are the pages of the thread, which is about to receive a Call.
        Lent {
            pages,
            first: slots.start,
            thread: rqstp,
        }
    }

    /// Gives the references back; returns the empty array, for the next [`Lent::new`].
    pub(crate) fn recall(&mut self) -> PageVec {
        self.pages.truncate(0);
        core::mem::take(&mut self.pages)
    }

    /// The slots whose pages are lent.
    fn slots(&self) -> Range<usize> {
        self.first..self.first + self.pages.len()
    }
}

/// A thread whose reply is complete and to be sent.
///
/// # Invariants
///
/// The thread is in the transport's `xpo_sendto`. The pages of the reply are the entries of
/// `rq_respages` before `rq_next_page`; an entry is null only if [`Reply::take_pages`] emptied it.
/// What is lent are pages that the thread had when it received the Call that this answers.
pub(crate) struct Reply<'a> {
    rqstp: NonNull<bindings::svc_rqst>,
    lent: &'a mut Lent,
    /// Slots that will hold pages of the thread again, unless they are empty.
    settled: Range<usize>,
    _thread: PhantomData<&'a mut bindings::svc_rqst>,
}

/// What [`Reply::take_pages`] took.
pub(crate) struct Taken {
    /// Where in the pages the reply is.
    pub(crate) map: ReplyMap,
    /// Whether all of them were the thread's own: once they were sent, they can be spare pages.
    pub(crate) own: bool,
}

impl<'a> Reply<'a> {
    /// # Safety
    ///
    /// `rqstp` is a thread that is in `xpo_sendto` for `'a`, and `lent` is that of the context of
    /// its Call.
    pub(super) unsafe fn new(rqstp: *mut bindings::svc_rqst, lent: &'a mut Lent) -> Self {
        // A Call that was deferred is answered by any thread, and later: what was lent is in use
        // for other replies then.
        // SAFETY: The thread is valid.
        if lent.thread != rqstp.cast_const() || !unsafe { (*rqstp).rq_deferred }.is_null() {
            lent.pages.truncate(0);
        }
        // INVARIANT: The context was delivered to this thread, and it has received nothing since.
        let mut reply = Reply {
            // SAFETY: By the requirement it is not null.
            rqstp: unsafe { NonNull::new_unchecked(rqstp) },
            settled: lent.slots(),
            lent,
            _thread: PhantomData,
        };
        reply.count_pages();
        reply
    }

    /// Moves `rq_next_page` past the page part.
    ///
    /// A service that writes on from the head into the pages need not have done that; NFSv3's
    /// GETACL does not.
    fn count_pages(&mut self) {
        let message = self.message();
        if message.page_len() == 0 {
            return;
        }
        let pages = message.page_base() / PAGE_SIZE + message.page_count();
        // SAFETY: A view has a valid `xdr_buf`.
        let end = unsafe { (*message.as_ptr()).pages }.wrapping_add(pages);
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid.
        let (next, limit) = unsafe { ((*rqstp).rq_next_page, (*rqstp).rq_page_end) };
        if next < end && end <= limit {
            // SAFETY: The thread is valid. `end` is in or one past the array that `next` is in.
            unsafe { (*rqstp).rq_next_page = end };
        }
    }

    /// Returns the reply.
    pub(crate) fn message(&self) -> &XdrBuf {
        // SAFETY: The thread is valid, and its reply is not changed while it is being sent.
        unsafe { XdrBuf::from_raw(addr_of_mut!((*self.rqstp.as_ptr()).rq_res)) }
    }

    fn page_count(&self) -> Result<usize> {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid; both point into or past the array.
        let (count, max) = unsafe {
            (
                (*rqstp).rq_next_page.offset_from((*rqstp).rq_respages),
                (*rqstp).rq_maxpages,
            )
        };
        match usize::try_from(count) {
            Ok(count) if count <= max => Ok(count),
            _ => Err(EINVAL),
        }
    }

    /// Returns the slots `range` of the reply array, and what is lent.
    fn slots(&mut self, range: Range<usize>) -> (&mut [*mut bindings::page], &mut PageVec) {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid and ours, and its array has that many entries.
        let array =
            unsafe { core::slice::from_raw_parts_mut((*rqstp).rq_respages, (*rqstp).rq_maxpages) };
        let slots = array.get_mut(range).unwrap_or_default();
        (slots, &mut self.lent.pages)
    }

    /// Moves the pages that hold the bytes `parts` of the reply, and perhaps others, to `pages`,
    /// which is empty. What remains of the reply can no longer be read. May sleep for memory, if
    /// `pages` has not had as much room before.
    ///
    /// # Errors
    ///
    /// `EINVAL` if part of the reply is outside its pages; `ENOMEM`. Nothing is moved then.
    pub(crate) fn take_pages(
        &mut self,
        pages: &mut PageVec,
        parts: impl Iterator<Item = Range<usize>>,
    ) -> Result<Taken> {
        let count = self.page_count()?;
        let message: *mut bindings::xdr_buf = self.message().as_ptr();
        let (slots, _) = self.slots(0..count);
        if pages.len() != 0 || slots.iter().any(|page| page.is_null()) {
            return Err(EINVAL);
        }
        // SAFETY: The thread has this message, and it is not changed while it is being sent.
        let map = ReplyMap::new(unsafe { XdrBuf::from_raw(message) }, slots)?;
        let used = map.span(parts);
        let lent = self.lent.slots();
        let taken = match lent.start <= used.start && used.end <= lent.end {
            true => {
                let own = self.take_lent(pages, used.end - lent.start);
                let map = map.after(lent.start);
                Taken { map, own }
            }
            false => {
                self.take_all(pages, count)?;
                Taken { map, own: false }
            }
        };
        // SAFETY: The thread is valid. The reply is not in pages of its own any more, and nobody
        // is to look for it there; sunrpc reads its length only.
        unsafe {
            (*message).page_len = 0;
            (*message).head[0] = bindings::kvec::default();
            (*message).tail[0] = bindings::kvec::default();
        }
        Ok(taken)
    }

    /// Takes what is in the first `count` slots of those whose pages are lent, and puts the lent
    /// pages into all of these slots again. Returns whether what it took are pages of the thread:
    /// their slots are empty then.
    fn take_lent(&mut self, pages: &mut PageVec, count: usize) -> bool {
        core::mem::swap(pages, &mut self.lent.pages);
        let first = self.lent.first;
        let (slots, _) = self.slots(first..first + pages.len());
        let mut own = 0;
        // SAFETY: Each page that leaves this array is replaced by one that comes with the
        // reference that the slot had.
        let taken = unsafe { pages.as_mut_slice() };
        for (at, (slot, page)) in slots.iter_mut().zip(taken).enumerate() {
            if let Some(other) = NonNull::new(*slot).filter(|other| other != page) {
                *slot = core::mem::replace(page, other).as_ptr();
            } else if at < count {
                own += 1;
                *slot = null_mut();
                // SAFETY: The reference was that of the slot.
                unsafe { bindings::rpcrdma_shim_put_page(page.as_ptr()) };
            }
        }
        pages.truncate(count);
        own == count
    }

    /// Takes the first `count` slots, whose pages are not lent. They are empty then.
    fn take_all(&mut self, pages: &mut PageVec, count: usize) -> Result {
        pages.reserve(count, GFP_KERNEL)?;
        self.settled = 0..count;
        let (slots, lent) = self.slots(0..count);
        lent.truncate(0);
        for slot in slots {
            let page = core::mem::replace(slot, null_mut());
            // SAFETY: The caller checked that none is null. The reference changes hands; there is
            // room.
            unsafe { pages.push(NonNull::new_unchecked(page)) }?;
        }
        Ok(())
    }

    /// Fills the slots that [`Self::take_pages`] emptied, as far as there are spare pages.
    pub(crate) fn refill(&mut self, spare: &mut SparePages) {
        let end = self.page_count().unwrap_or(0);
        for slot in self.slots(0..end).0 {
            if slot.is_null() {
                match spare.pop() {
                    Some(page) => *slot = page.as_ptr(),
                    None => break,
                }
            }
        }
    }

    /// The reply was sent, or copied, or there is none. Puts the pages that are lent into their
    /// slots, and leaves to sunrpc, to release and to allocate, what is missing.
    pub(super) fn settle(mut self) {
        let lent = self.lent.slots();
        let (slots, pages) = self.slots(lent);
        // SAFETY: As in `take_lent`.
        for (slot, page) in slots.iter_mut().zip(unsafe { pages.as_mut_slice() }) {
            if let Some(other) = NonNull::new(*slot).filter(|other| other != page) {
                *slot = core::mem::replace(page, other).as_ptr();
            }
        }
        pages.truncate(0);
        // The first page is the thread's as long as it is there: services put others only after
        // it. What is in the other slots that were not lent may be of a file.
        let end = self.page_count().unwrap_or(0);
        let settled = self.settled.clone();
        let foreign = |at: usize| at != 0 && !settled.contains(&at);
        let (slots, _) = self.slots(0..end);
        // sunrpc releases and allocates one range from the first slot on.
        let mut missing = 0;
        for at in 0..slots.len() {
            if slots[at].is_null() || foreign(at) {
                slots.swap(missing, at);
                missing += 1;
            }
        }
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid, and the array has more entries than that.
        unsafe { (*rqstp).rq_next_page = (*rqstp).rq_respages.add(missing) };
    }
}

/// Where in its pages a reply is: which octets of them are its head, its page part and its tail.
///
/// # Invariants
///
/// Every byte of the reply is in a page of the array the map was made for.
#[derive(Clone)]
pub(crate) struct ReplyMap {
    head: Range<usize>,
    pages: Range<usize>,
    tail: Range<usize>,
}

impl ReplyMap {
    fn new(message: &XdrBuf, pages: &[*mut bindings::page]) -> Result<Self> {
        // SAFETY: A view has a valid `xdr_buf`.
        let first_page = unsafe { (*message.as_ptr()).pages };
        let in_pages = if message.page_len() == 0 {
            0..0
        } else {
            let start = (first_page as usize)
                .checked_sub(pages.as_ptr() as usize)
                .ok_or(EINVAL)?;
            let index = start / size_of::<*mut bindings::page>();
            let start = index * PAGE_SIZE + message.page_base();
            let end = start.checked_add(message.page_len()).ok_or(EINVAL)?;
            if end.div_ceil(PAGE_SIZE) > pages.len() {
                return Err(EINVAL);
            }
            start..end
        };
        Ok(ReplyMap {
            head: locate(message.head(), pages)?,
            pages: in_pages,
            tail: locate(message.tail(), pages)?,
        })
    }

    /// The pages that hold `parts`, as a range of the array.
    fn span(&self, parts: impl Iterator<Item = Range<usize>>) -> Range<usize> {
        let (mut first_page, mut end_page) = (usize::MAX, 0);
        for part in parts {
            for octets in self.octets(part) {
                first_page = first_page.min(octets.start / PAGE_SIZE);
                end_page = end_page.max(octets.end.div_ceil(PAGE_SIZE));
            }
        }
        first_page.min(end_page)..end_page
    }

    /// The map of the pages without the first `count`, in which nothing is asked for.
    fn after(self, count: usize) -> Self {
        let shift = |part: Range<usize>| {
            // One that is in the pages left out is out of any array.
            let start = part.start.checked_sub(count * PAGE_SIZE);
            let start = start.unwrap_or(usize::MAX / 2);
            start..start + part.len()
        };
        ReplyMap {
            head: shift(self.head),
            pages: shift(self.pages),
            tail: shift(self.tail),
        }
    }

    /// The octets of the pages that have the bytes `range` of the reply; ends early where the
    /// reply does.
    pub(crate) fn octets(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut before = 0;
        let parts = [&self.head, &self.pages, &self.tail].map(|part| {
            let from = range.start.saturating_sub(before).min(part.len());
            let to = range.end.saturating_sub(before).min(part.len());
            before += part.len();
            part.start + from..part.start + to
        });
        parts.into_iter().filter(|part| !part.is_empty())
    }
}

/// Finds the octets of the pages that `bytes` are.
fn locate(bytes: &[u8], pages: &[*mut bindings::page]) -> Result<Range<usize>> {
    if bytes.is_empty() {
        return Ok(0..0);
    }
    let addr = bytes.as_ptr() as usize;
    for (index, &page) in pages.iter().enumerate() {
        // SAFETY: A page of the thread, which has a reference to it.
        let start = unsafe { page_address(page) } as usize;
        if addr >= start && addr - start < PAGE_SIZE {
            let offset = addr - start;
            let at = index * PAGE_SIZE + offset;
            // Head and tail are each made in one page.
            return match bytes.len() <= PAGE_SIZE - offset {
                true => Ok(at..at + bytes.len()),
                false => Err(EINVAL),
            };
        }
    }
    Err(EINVAL)
}

#[cfg(rpcrdma_kunit)]
mod kunit;
