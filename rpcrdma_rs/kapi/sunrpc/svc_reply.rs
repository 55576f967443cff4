// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The reply of a service thread (`struct svc_rqst`), and its pages.
//!
//! The pages of a reply are the entries of `rq_respages` before `rq_next_page`. A service fills
//! pages of the thread or, with a splice read, replaces them by pages of the page cache. A
//! transport has to take those pages out of the array that it is still sending when `xpo_sendto`
//! returns. sunrpc then allocates other pages for the thread, and Debian's kernel clears them.
//!
//! # Held pages
//!
//! A transport that expects a long reply holds its own references to the pages that the service
//! will use ([`HeldPages`]), so that the service cannot free them:
//!
//! ```text
//!                    slot of the array      HeldPages       Transfer
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
//! So no slot has a page that is still being sent, or a page of a file, when the next Call is
//! received.
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

/// The largest capacity of an array that is kept in the context of the Call: enough for the reply
/// to a READ of 64 KiB, in 256 bytes.
pub(crate) const KEPT: usize = 32;

/// References to pages of a thread's reply array, held from the delivery of a Call until its
/// reply is made.
///
/// # Invariants
///
/// There are no pages, or page `k` was entry `first + k` of `rq_respages` of `thread` when a Call
/// with this object in its context was delivered to that thread.
pub(crate) struct HeldPages {
    pages: PageVec,
    first: usize,
    /// Compared only, never dereferenced.
    thread: *const bindings::svc_rqst,
}

// SAFETY: The array may be sent, and the pointer is not followed.
unsafe impl Send for HeldPages {}

// SAFETY: Shared access only reads.
unsafe impl Sync for HeldPages {}

impl Default for HeldPages {
    fn default() -> Self {
        // INVARIANT: There are no pages.
        HeldPages {
            pages: PageVec::new(),
            first: 0,
            thread: core::ptr::null(),
        }
    }
}

impl HeldPages {
    /// Drops the references, and takes others to the entries `slots` of the reply array of a
    /// thread, as far as there are that many. Holds nothing if memory is short.
    ///
    /// # Safety
    ///
    /// `rqstp` is a thread that is in `xpo_recvfrom`.
    #[inline]
    pub(super) unsafe fn begin(&mut self, rqstp: *mut bindings::svc_rqst, slots: Range<usize>) {
        let pages = &mut self.pages;
        pages.truncate(0);
        // SAFETY: The thread is valid by the requirement, its array has `rq_maxpages` entries,
        // and nobody else uses it.
        let array =
            unsafe { core::slice::from_raw_parts((*rqstp).rq_respages, (*rqstp).rq_maxpages) };
        let end = slots.end.min(array.len());
        let entries = array.get(slots.start..end).unwrap_or_default();
        let room = pages.reserve(entries.len(), GFP_NOWAIT | __GFP_NOWARN);
        if room.is_ok() {
            // SAFETY: The thread has a reference to each page.
            unsafe { pages.share(entries) };
        }
        // INVARIANT: These are the pages of the thread, which is about to receive a Call.
        self.first = slots.start;
        self.thread = rqstp;
    }

    /// Drops the references. Returns the empty array if it is too large to be kept, see [`KEPT`].
    pub(crate) fn release_pages(&mut self) -> Option<PageVec> {
        self.pages.truncate(0);
        (self.pages.capacity() > KEPT).then(|| core::mem::take(&mut self.pages))
    }

    /// Returns the number of pages that can be held without an allocation.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.pages.capacity()
    }

    /// Drops the references, and replaces the array by `array`, which is empty.
    pub(super) fn set_array(&mut self, mut array: PageVec) {
        array.truncate(0);
        // INVARIANT: There are no pages.
        self.pages = array;
    }

    /// Returns the slots whose pages are held.
    fn slots(&self) -> Range<usize> {
        self.first..self.first + self.pages.len()
    }
}

/// A service thread whose reply is complete.
///
/// # Invariants
///
/// The thread is in the transport's `xpo_sendto`. The pages of the reply are the entries of
/// `rq_respages` before `rq_next_page`; an entry is null only if this object emptied it.
/// The held pages are those that the thread had when it received the Call.
pub(crate) struct Reply<'a> {
    rqstp: NonNull<bindings::svc_rqst>,
    held: &'a mut HeldPages,
    /// Slots to which the thread's own pages return, unless they are empty.
    restored: Range<usize>,
    /// Slots that are empty.
    empty: usize,
    _thread: PhantomData<&'a mut bindings::svc_rqst>,
}

/// The result of [`Reply::take_pages`].
pub(crate) struct Taken {
    /// The location of the reply in the pages.
    pub(crate) map: ReplyMap,
    /// Whether all of the pages were the thread's own. They can become spare pages once they have
    /// been sent.
    pub(crate) own: bool,
}

impl<'a> Reply<'a> {
    /// # Safety
    ///
    /// `rqstp` is a thread that is in `xpo_sendto` for `'a`, and `held` is that of the context of
    /// its Call.
    pub(super) unsafe fn new(rqstp: *mut bindings::svc_rqst, held: &'a mut HeldPages) -> Self {
        // The reply to a deferred Call is made later, perhaps by another thread. By then the held
        // pages are used for other replies.
        // SAFETY: The thread is valid.
        if held.thread != rqstp.cast_const() || !unsafe { (*rqstp).rq_deferred }.is_null() {
            held.pages.truncate(0);
        }
        // INVARIANT: No page is held, or the Call was delivered to this thread, which has received
        // nothing since.
        let mut reply = Reply {
            // SAFETY: It is not null, by this function's contract.
            rqstp: unsafe { NonNull::new_unchecked(rqstp) },
            restored: held.slots(),
            empty: 0,
            held,
            _thread: PhantomData,
        };
        reply.count_pages();
        reply
    }

    /// Moves `rq_next_page` past the page part.
    ///
    /// A service that continues from the head into the pages may not have done that, for instance
    /// GETACL of NFSv3.
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

    /// Returns the slots `range` of the reply array, and the held pages.
    fn slots(&mut self, range: Range<usize>) -> (&mut [*mut bindings::page], &mut PageVec) {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid and ours, and its array has that many entries.
        let array =
            unsafe { core::slice::from_raw_parts_mut((*rqstp).rq_respages, (*rqstp).rq_maxpages) };
        let slots = array.get_mut(range).unwrap_or_default();
        (slots, &mut self.held.pages)
    }

    /// Moves the pages that hold the bytes `part` of the reply, and perhaps others, to `pages`,
    /// which must be empty. The rest of the reply cannot be read afterwards. Sleeps for memory if
    /// `pages` has too little capacity.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `pages` is not empty, or a part of the reply that `part` overlaps is not in its
    /// pages; `ENOMEM`. Nothing is moved then. Bytes of `part` beyond the reply are ignored.
    pub(crate) fn take_pages(&mut self, pages: &mut PageVec, part: Range<usize>) -> Result<Taken> {
        let count = self.page_count()?;
        if pages.len() != 0 {
            return Err(EINVAL);
        }
        let message: *mut bindings::xdr_buf = self.message().as_ptr();
        let (slots, _) = self.slots(0..count);
        // SAFETY: The thread has this message, and it is not changed while it is being sent.
        let map = ReplyMap::new(unsafe { XdrBuf::from_raw(message) }, slots, &part)?;
        let used = map.span(part);
        let held = self.held.slots();
        let taken = if held.start <= used.start && used.end <= held.end {
            let own = self.take_held(pages, used.end - held.start);
            let map = map.after(held.start);
            Taken { map, own }
        } else {
            self.take_all(pages, count)?;
            Taken { map, own: false }
        };
        self.forget_message();
        Ok(taken)
    }

    /// Locates the bytes `part` of the reply. Returns `None` unless all of them are in the page
    /// part, and all pages with them are held.
    #[inline(always)]
    pub(crate) fn locate_held(&self, part: Range<usize>) -> Option<HeldPart> {
        let message = self.message();
        let len = part.end.checked_sub(part.start)?;
        let skip = part.start.checked_sub(message.head_len())?;
        if skip.checked_add(len)? > message.page_len() {
            return None;
        }
        // SAFETY: A view has a valid `xdr_buf`, and the thread is valid.
        let (pages, array) = unsafe {
            (
                (*message.as_ptr()).pages,
                (*self.rqstp.as_ptr()).rq_respages,
            )
        };
        let slot = pages.addr().checked_sub(array.addr())? / size_of::<*mut bindings::page>();
        let slot = slot.checked_sub(self.held.first)?;
        if slot >= self.held.pages.len() {
            return None;
        }
        let start = slot * PAGE_SIZE + message.page_base() + skip;
        let end = start.checked_add(len)?;
        (end <= self.held.pages.len() * PAGE_SIZE).then_some(HeldPart { start, end })
    }

    /// Replaces `pages` by the pages that hold `part`, and perhaps others before them. Returns
    /// whether all of them were the thread's own, see [`Taken::own`]. The rest of the reply cannot
    /// be read afterwards. Does not sleep.
    #[inline]
    pub(crate) fn take_held_part(&mut self, pages: &mut PageVec, part: &HeldPart) -> bool {
        pages.truncate(0);
        let own = self.take_held(pages, part.end.div_ceil(PAGE_SIZE));
        self.forget_message();
        own
    }

    /// Makes the reply empty: its bytes are not in pages of the thread any more. sunrpc reads its
    /// length only.
    #[inline]
    fn forget_message(&mut self) {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid, and nobody else reads its reply.
        unsafe {
            let message = addr_of_mut!((*rqstp).rq_res);
            (*message).page_len = 0;
            for part in [&mut (*message).head[0], &mut (*message).tail[0]] {
                // Not `default`, which would be a function call.
                (part.iov_base, part.iov_len) = (null_mut(), 0);
            }
        }
    }

    /// Moves the pages in the first `count` of the held slots to `pages`, which must be empty. Each
    /// held slot whose page was replaced gets the held page back; a slot whose own page was moved
    /// is left empty. Returns whether all moved pages were the thread's own.
    fn take_held(&mut self, pages: &mut PageVec, count: usize) -> bool {
        core::mem::swap(pages, &mut self.held.pages);
        let first = self.held.first;
        let (slots, _) = self.slots(first..first + pages.len());
        // SAFETY: Each page that leaves this array is replaced by one that comes with the
        // reference that the slot had.
        let taken = unsafe { pages.as_mut_slice() };
        let mut own = 0;
        // Indexes both: an iterator over both takes twice as many instructions.
        let len = slots.len().min(taken.len());
        let (slots, taken) = (&mut slots[..len], &mut taken[..len]);
        for at in 0..len {
            let Some(other) = NonNull::new(slots[at]) else {
                continue;
            };
            if other != taken[at] {
                slots[at] = core::mem::replace(&mut taken[at], other).as_ptr();
            } else if at < count {
                own += 1;
                slots[at] = null_mut();
                // SAFETY: The reference was that of the slot.
                unsafe { bindings::rpcrdma_shim_put_page(other.as_ptr()) };
            }
        }
        pages.truncate(count);
        self.empty = own;
        own == count
    }

    /// Takes the first `count` slots, whose pages are not held. They are empty then.
    fn take_all(&mut self, pages: &mut PageVec, count: usize) -> Result {
        if self.slots(0..count).0.iter().any(|page| page.is_null()) {
            return Err(EINVAL);
        }
        pages.reserve(count, GFP_KERNEL)?;
        self.restored = 0..count;
        self.empty = count;
        let (slots, held) = self.slots(0..count);
        held.truncate(0);
        for slot in slots {
            let page = core::mem::replace(slot, null_mut());
            // SAFETY: None is null, as checked above. The reference changes hands; there is room.
            unsafe { pages.push(NonNull::new_unchecked(page)) }?;
        }
        Ok(())
    }

    /// Returns whether slots that [`Self::take_pages`] has emptied are still empty.
    pub(crate) fn lacks_pages(&self) -> bool {
        self.empty != 0
    }

    /// Fills the slots that [`Self::take_pages`] emptied, as far as there are spare pages.
    pub(crate) fn refill(&mut self, spare: &mut SparePages) {
        let end = self.page_count().unwrap_or(0);
        let mut filled = 0;
        for slot in self.slots(0..end).0 {
            if slot.is_null() {
                match spare.pop() {
                    Some(page) => *slot = page.as_ptr(),
                    None => break,
                }
                filled += 1;
            }
        }
        self.empty = self.empty.saturating_sub(filled);
    }

    /// Called when the reply was sent or copied, or when there is none. Returns the held pages to
    /// their slots. sunrpc releases and allocates the missing pages.
    pub(super) fn finish(mut self) {
        if self.held.pages.len() != 0 {
            self.put_back();
        }
        // The first page, if it is present, belongs to the thread: services put pages of a file
        // only into later slots. Those slots that were not held may contain pages of a file.
        let end = self.page_count().unwrap_or(0);
        let Range { start, end: known } = self.restored;
        let missing = if self.empty == 0 && (end <= 1 || (start <= 1 && end <= known)) {
            0
        } else {
            self.collect_missing(end)
        };
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid, and the array has more entries than that.
        unsafe { (*rqstp).rq_next_page = (*rqstp).rq_respages.add(missing) };
    }

    /// Returns the held pages to their slots.
    fn put_back(&mut self) {
        let (slots, pages) = self.slots(self.held.slots());
        // SAFETY: Each page that leaves this array is replaced by a page that comes with the
        // reference of its slot.
        for (slot, page) in slots.iter_mut().zip(unsafe { pages.as_mut_slice() }) {
            if let Some(other) = NonNull::new(*slot).filter(|other| other != page) {
                *slot = core::mem::replace(page, other).as_ptr();
            }
        }
        pages.truncate(0);
    }

    /// Moves the slots before `end` that are empty or may have a page of a file to the front, since
    /// sunrpc releases and allocates one range from the first slot on; returns how many.
    fn collect_missing(&mut self, end: usize) -> usize {
        let restored = self.restored.clone();
        let foreign = |at: usize| at != 0 && !restored.contains(&at);
        let (slots, _) = self.slots(0..end);
        let mut missing = 0;
        for at in 0..slots.len() {
            if slots[at].is_null() || foreign(at) {
                slots.swap(missing, at);
                missing += 1;
            }
        }
        missing
    }
}

/// A part of a reply whose pages are held: its octets in these pages.
pub(crate) struct HeldPart {
    start: usize,
    end: usize,
}

impl HeldPart {
    /// Returns the octets of the pages that [`Reply::take_held_part`] has taken.
    #[inline]
    pub(crate) fn octets(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// A part of a reply: the bytes `start..end` of the reply are at octet `place` of the pages.
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    end: usize,
    place: usize,
}

impl Part {
    const NONE: Self = Part {
        start: 0,
        end: 0,
        place: 0,
    };

    fn new(bytes: Range<usize>, place: usize) -> Self {
        Part {
            start: bytes.start,
            end: bytes.end,
            place,
        }
    }
}

/// The location of the page part, the head and the tail of a reply in its pages. A part that was
/// not requested is empty. Most payloads are in the page part.
///
/// # Invariants
///
/// Every byte of the parts is in a page of the array that the map was created for.
#[derive(Clone)]
pub(crate) struct ReplyMap {
    parts: [Part; 3],
}

impl ReplyMap {
    /// Locates the bytes `asked` of `message` in `pages`.
    fn new(message: &XdrBuf, pages: &[*mut bindings::page], asked: &Range<usize>) -> Result<Self> {
        let (paged, tail) = (message.page_range(), message.tail_range());
        let has = |start: usize, end: usize| start.max(asked.start) < end.min(asked.end);
        let mut parts = [Part::NONE; 3];
        if has(paged.start, paged.end) {
            parts[0] = Part::new(paged.clone(), locate_pages(message, pages)?);
        }
        if has(0, paged.start) {
            parts[1] = Part::new(0..paged.start, locate(message.head(), pages)?);
        }
        if has(tail.start, tail.end) {
            parts[2] = Part::new(tail, locate(message.tail(), pages)?);
        }
        Ok(ReplyMap { parts })
    }

    /// Returns the range of the array whose pages contain the bytes `range`.
    fn span(&self, range: Range<usize>) -> Range<usize> {
        let (mut first_page, mut end_page) = (usize::MAX, 0);
        for octets in self.octets(range) {
            first_page = first_page.min(octets.start / PAGE_SIZE);
            end_page = end_page.max(octets.end.div_ceil(PAGE_SIZE));
        }
        first_page.min(end_page)..end_page
    }

    /// Returns the map for the array without its first `count` pages, which contain no requested
    /// byte.
    fn after(mut self, count: usize) -> Self {
        for part in &mut self.parts {
            // Wraps around if the part begins in the omitted pages. The requested bytes begin
            // later.
            part.place = part.place.wrapping_sub(count * PAGE_SIZE);
        }
        self
    }

    /// Returns the octets of the pages that contain the bytes `range` of the reply. Ends early
    /// where the map ends.
    pub(crate) fn octets(&self, range: Range<usize>) -> Octets<'_> {
        Octets {
            map: self,
            at: range.start,
            end: range.end,
        }
    }
}

/// Iterator over bytes of a reply, see [`ReplyMap::octets`].
pub(crate) struct Octets<'a> {
    map: &'a ReplyMap,
    at: usize,
    end: usize,
}

impl Iterator for Octets<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let at = self.at;
        if at >= self.end {
            return None;
        }
        let mut parts = self.map.parts.iter();
        let part = parts.find(|part| part.start <= at && at < part.end)?;
        let start = part.place.wrapping_add(at - part.start);
        let len = part.end.min(self.end) - at;
        self.at += len;
        Some(start..start.wrapping_add(len))
    }
}

/// Returns the octet of the pages at which the page part of `message` begins.
fn locate_pages(message: &XdrBuf, pages: &[*mut bindings::page]) -> Result<usize> {
    // SAFETY: A view has a valid `xdr_buf`.
    let first_page = unsafe { (*message.as_ptr()).pages };
    let start = (first_page as usize)
        .checked_sub(pages.as_ptr() as usize)
        .ok_or(EINVAL)?;
    let index = start / size_of::<*mut bindings::page>();
    let start = index * PAGE_SIZE + message.page_base();
    let end = start.checked_add(message.page_len()).ok_or(EINVAL)?;
    if end.div_ceil(PAGE_SIZE) <= pages.len() {
        Ok(start)
    } else {
        Err(EINVAL)
    }
}

/// Returns the octet of the pages at which `bytes` begin.
fn locate(bytes: &[u8], pages: &[*mut bindings::page]) -> Result<usize> {
    let addr = bytes.as_ptr() as usize;
    for (index, &page) in pages.iter().enumerate() {
        if page.is_null() {
            continue;
        }
        // SAFETY: A page of the thread, which has a reference to it.
        let start = unsafe { page_address(page) } as usize;
        if addr >= start && addr - start < PAGE_SIZE {
            let offset = addr - start;
            // The head and the tail are each in one page.
            return if bytes.len() <= PAGE_SIZE - offset {
                Ok(index * PAGE_SIZE + offset)
            } else {
                Err(EINVAL)
            };
        }
    }
    Err(EINVAL)
}

#[cfg(rpcrdma_kunit)]
mod kunit;
