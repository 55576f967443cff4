// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A service thread (`struct svc_rqst`) as a transport sees it: receiving a Call into it, and
//! sending the reply out of it.
//!
//! A thread has two arrays of pages. `rq_pages` is where a Call's pages go; all are present
//! when the transport is asked to receive. `rq_respages` is what the reply is made of: the
//! first page holds the head, later ones the payload, and with a splice read these are pages
//! of the page cache.
//!
//! C header: [`include/linux/sunrpc/svc.h`](srctree/include/linux/sunrpc/svc.h)

use super::{
    super::{
        bindings,
        ext::pages::{
            PageVec,
            Piece, //
        },
        rdma::recv::{
            RecvBox,
            RecvBuf, //
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
    ffi,
    page::PAGE_SIZE,
    prelude::*, //
};

/// What stands for a Call from its reception to its release, in `rq_xprt_ctxt`.
///
/// # Safety
///
/// [`Self::bytes`] gives the same memory from [`Self::into_ptr`] to [`Self::from_ptr`] and in
/// between, and [`Self::state_mut`] does not reach that memory. What is in it changes only while
/// nobody borrows it, and only from where the RPC message begins: the service decrypts a Call of
/// krb5p in its place. Nothing is to be read again from there.
pub(crate) unsafe trait CallContext: Sized + Send + 'static {
    /// What the transport remembers about the Call.
    type State;

    /// Gives the context to sunrpc.
    fn into_ptr(self) -> *mut ffi::c_void;

    /// Takes it back.
    ///
    /// # Safety
    ///
    /// `ptr` is from [`Self::into_ptr`] and not used by anyone else.
    unsafe fn from_ptr(ptr: *mut ffi::c_void) -> Self;

    /// The message as received, transport header included.
    fn bytes(&self) -> &[u8];

    /// What the transport remembers.
    fn state_mut(&mut self) -> &mut Self::State;
}

// SAFETY: The buffer is an allocation of its own, apart from the box and its data, and is written
// by Receives, and by the service that has the Call; a Receive is posted no earlier than the box
// is taken back.
unsafe impl<T: Send + 'static> CallContext for RecvBox<T> {
    type State = T;

    fn into_ptr(self) -> *mut ffi::c_void {
        self.into_raw().cast()
    }

    unsafe fn from_ptr(ptr: *mut ffi::c_void) -> Self {
        // SAFETY: From `into_ptr`, which gives no null, and taken back once by the requirement.
        unsafe { RecvBox::from_raw(NonNull::new_unchecked(ptr.cast::<RecvBuf<T>>())) }
    }

    fn bytes(&self) -> &[u8] {
        RecvBuf::bytes(self)
    }

    fn state_mut(&mut self) -> &mut T {
        self.data_mut()
    }
}

/// The context of a Call that the service works on.
pub(crate) struct CallRef<'a, S> {
    /// The message as received, transport header included.
    pub(crate) bytes: &'a [u8],
    /// What the transport remembers about it.
    pub(crate) state: &'a mut S,
}

impl<'a, S> CallRef<'a, S> {
    pub(super) fn new<C: CallContext<State = S>>(call: &'a mut C) -> Self {
        let bytes: *const [u8] = call.bytes();
        CallRef {
            // SAFETY: The bytes are stable and apart from the state, see `CallContext`; both
            // are borrowed for as long as the context is.
            bytes: unsafe { &*bytes },
            state: call.state_mut(),
        }
    }
}

/// A thread that is to receive a Call whose context is a `C`.
///
/// # Invariants
///
/// The thread is in the transport's `xpo_recvfrom`, and the first `nfree` entries of
/// `rq_pages` are null, the others are pages, `rq_maxpages` in all.
pub(crate) struct Receiver<'a, C> {
    rqstp: NonNull<bindings::svc_rqst>,
    _thread: PhantomData<(&'a mut bindings::svc_rqst, C)>,
}

/// Proof that a Call was delivered to the thread.
pub(crate) struct Delivered<'a> {
    rqstp: NonNull<bindings::svc_rqst>,
    len: ffi::c_int,
    _thread: PhantomData<&'a mut bindings::svc_rqst>,
}

impl<'a, C: CallContext> Receiver<'a, C> {
    /// # Safety
    ///
    /// `rqstp` is a thread that is in `xpo_recvfrom` for the lifetime of the result.
    pub(super) unsafe fn new(rqstp: *mut bindings::svc_rqst) -> Self {
        // SAFETY: By the requirement.
        unsafe {
            // Nothing of the reply array is in use yet, whatever happens.
            (*rqstp).rq_next_page = (*rqstp).rq_respages;
            (*rqstp).rq_xprt_ctxt = null_mut();
        }
        // INVARIANT: sunrpc has filled the array before it calls the transport.
        Receiver {
            // SAFETY: By the requirement it is not null.
            rqstp: unsafe { NonNull::new_unchecked(rqstp) },
            _thread: PhantomData,
        }
    }

    /// The pages that are still there.
    fn pages(&mut self) -> &mut [*mut bindings::page] {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: By the invariants; the array is the thread's own.
        unsafe {
            core::slice::from_raw_parts_mut(
                (*rqstp).rq_pages.add((*rqstp).rq_pages_nfree),
                (*rqstp).rq_maxpages - (*rqstp).rq_pages_nfree,
            )
        }
    }

    /// The thread's pages, unless some were taken: a Call in pages begins at the first.
    fn untaken_pages(&mut self) -> Option<&mut [*mut bindings::page]> {
        // SAFETY: The thread is valid.
        match unsafe { (*self.rqstp.as_ptr()).rq_pages_nfree } {
            0 => Some(self.pages()),
            _ => None,
        }
    }

    /// Moves pages of the thread to the end of `sink` until that has `count`.
    ///
    /// sunrpc buys the thread new ones. `sink` must have the room, see [`PageVec::reserve`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if the thread has too few pages, `ENOMEM` if `sink` has too little room.
    pub(crate) fn take_pages(&mut self, sink: &mut PageVec, count: usize) -> Result {
        while sink.len() < count {
            let first = self.pages().first_mut().ok_or(EINVAL)?;
            let page = NonNull::new(*first).ok_or(EINVAL)?;
            // SAFETY: The thread has a reference to the page, which it gives up below.
            unsafe { sink.push(page) }?;
            *first = null_mut();
            // INVARIANT: The next entry is the first that is a page.
            // SAFETY: The thread is valid.
            unsafe { (*self.rqstp.as_ptr()).rq_pages_nfree += 1 };
        }
        Ok(())
    }

    /// Exchanges the first `count` pages of `sink` with the first of the thread.
    ///
    /// # Errors
    ///
    /// `EINVAL` if either has not that many, or pages were taken.
    pub(crate) fn exchange_pages(&mut self, sink: &mut PageVec, count: usize) -> Result {
        let ours = self.untaken_pages().ok_or(EINVAL)?;
        let ours = ours.get_mut(..count).ok_or(EINVAL)?;
        // SAFETY: Each page that goes is replaced by one that comes with its reference.
        let theirs = unsafe { sink.as_mut_slice() }
            .get_mut(..count)
            .ok_or(EINVAL)?;
        if ours.iter().any(|page| page.is_null()) {
            return Err(EINVAL);
        }
        for (ours, theirs) in ours.iter_mut().zip(theirs) {
            // SAFETY: None is null, as just checked.
            let page = unsafe { NonNull::new_unchecked(*ours) };
            *ours = core::mem::replace(theirs, page).as_ptr();
        }
        Ok(())
    }

    /// Delivers a Call that is all in the received bytes, at `body`.
    ///
    /// # Errors
    ///
    /// Gives `call` back if `body` is not part of it or empty.
    pub(crate) fn deliver_inline(self, call: C, body: Range<usize>) -> Result<Delivered<'a>, C> {
        self.deliver(call, body, 0, 0..0)
    }

    /// Delivers a Call whose head and tail are in the received bytes and whose `page_len` bytes
    /// in between are in the thread's pages, from the first one on.
    ///
    /// # Errors
    ///
    /// Gives `call` back if the ranges are not part of it, the thread has too few pages, some were
    /// taken, or there is a tail after none.
    pub(crate) fn deliver(
        mut self,
        call: C,
        head: Range<usize>,
        page_len: usize,
        tail: Range<usize>,
    ) -> Result<Delivered<'a>, C> {
        let Some(lens) = Lens::new(head.len(), page_len, tail.len()) else {
            return Err(call);
        };
        let present = self.untaken_pages().map_or(0, |pages| pages.len());
        if page_len.div_ceil(PAGE_SIZE) > present {
            return Err(call);
        }
        let bytes = call.bytes();
        let (Some(head), Some(tail)) = (bytes.get(head), bytes.get(tail)) else {
            return Err(call);
        };
        let (head, tail) = (head.as_ptr().cast_mut(), tail.as_ptr().cast_mut());
        // SAFETY: The thread is valid. Head and tail stay valid as long as the context is the
        // thread's, which `CallContext` promises.
        Ok(unsafe { self.finish(call, head, tail, 0, lens) })
    }

    /// Delivers a Call whose `len` bytes are in the thread's pages, from the first one on.
    ///
    /// # Errors
    ///
    /// Gives `call` back if `len` is 0, the thread has too few pages, or some were taken.
    pub(crate) fn deliver_paged(mut self, call: C, len: usize) -> Result<Delivered<'a>, C> {
        let head_len = len.min(PAGE_SIZE);
        let Some(lens) = Lens::new(head_len, len - head_len, 0) else {
            return Err(call);
        };
        let pages = self.untaken_pages().unwrap_or_default();
        if len.div_ceil(PAGE_SIZE) > pages.len() {
            return Err(call);
        }
        let Some(first) = pages.first().copied() else {
            return Err(call);
        };
        // SAFETY: sunrpc allocates the pages of a thread such that they have an address.
        let head = unsafe { bindings::rpcrdma_shim_page_address(first) }.cast();
        // SAFETY: As for `deliver`; the head is the first page, which is the thread's.
        Ok(unsafe { self.finish(call, head, null_mut(), 1, lens) })
    }

    /// # Safety
    ///
    /// `head` and `tail` are valid for their lengths as long as the Call is the thread's, and
    /// from `first_page` on the thread has the pages for the page part.
    unsafe fn finish(
        self,
        call: C,
        head: *mut u8,
        tail: *mut u8,
        first_page: usize,
        lens: Lens,
    ) -> Delivered<'a> {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid and ours.
        unsafe {
            let arg = addr_of_mut!((*rqstp).rq_arg);
            (*arg).head[0].iov_base = head.cast();
            (*arg).head[0].iov_len = lens.head;
            (*arg).pages = (*rqstp).rq_pages.add(first_page);
            (*arg).page_base = 0;
            (*arg).page_len = lens.pages;
            (*arg).tail[0].iov_base = tail.cast();
            (*arg).tail[0].iov_len = lens.tail;
            (*arg).len = lens.total;
            (*arg).buflen = lens.total;
            (*rqstp).rq_xprt_ctxt = call.into_ptr();
        }
        Delivered {
            rqstp: self.rqstp,
            len: lens.result,
            _thread: PhantomData,
        }
    }
}

/// Checked lengths of the parts of a Call.
struct Lens {
    head: usize,
    pages: u32,
    tail: usize,
    total: u32,
    result: ffi::c_int,
}

impl Lens {
    /// `None` if the Call is empty or too large to be told, or has a tail and no pages: nfsd copies
    /// a deferred Call without pages as if it were in one piece.
    fn new(head: usize, pages: usize, tail: usize) -> Option<Self> {
        let total = head.checked_add(pages)?.checked_add(tail)?;
        let result = ffi::c_int::try_from(total).ok()?;
        (total != 0 && (pages != 0 || tail == 0)).then_some(Lens {
            head,
            pages: u32::try_from(pages).ok()?,
            tail,
            total: u32::try_from(total).ok()?,
            result,
        })
    }
}

impl Delivered<'_> {
    /// Tells the thread where the Call is from; returns its length.
    pub(super) fn finish(self, xprt: *mut bindings::svc_xprt) -> ffi::c_int {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid and holds `xprt`.
        unsafe {
            // No IP protocol carries this.
            (*rqstp).rq_prot = bindings::RPCRDMA_SHIM_IPPROTO_MAX;
            bindings::svc_xprt_copy_addrs(rqstp, xprt);
            // What the thread did before may have been from this machine.
            bindings::clear_bit(
                bindings::RQ_LOCAL as ffi::c_ulong,
                addr_of_mut!((*rqstp).rq_flags),
            );
            // A peer needs privileges to open a queue pair; ports tell nothing.
            bindings::set_bit(
                bindings::RQ_SECURE as ffi::c_ulong,
                addr_of_mut!((*rqstp).rq_flags),
            );
        }
        self.len
    }
}

/// A thread whose reply is complete and to be sent.
///
/// # Invariants
///
/// The thread is in the transport's `xpo_sendto`. The pages of the reply are the entries of
/// `rq_respages` before `rq_next_page`.
pub(crate) struct Reply<'a> {
    rqstp: NonNull<bindings::svc_rqst>,
    _thread: PhantomData<&'a mut bindings::svc_rqst>,
}

impl Reply<'_> {
    /// # Safety
    ///
    /// `rqstp` is a thread that is in `xpo_sendto` for the lifetime of the result.
    pub(super) unsafe fn new(rqstp: *mut bindings::svc_rqst) -> Self {
        let mut reply = Reply {
            // SAFETY: By the requirement it is not null.
            rqstp: unsafe { NonNull::new_unchecked(rqstp) },
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
            // SAFETY: As above. `end` is in or one past the array that `next` is in.
            unsafe { (*rqstp).rq_next_page = end };
        }
    }

    /// The reply.
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

    /// Says that the reply was copied and its pages are not needed any more.
    ///
    /// If all of it was in the first page, the thread keeps that for its next reply, and none
    /// is bought. Others are not kept: they may be pages of a file.
    pub(crate) fn copied(&mut self) {
        if self.message().page_len() != 0 || self.page_count() != Ok(1) {
            return;
        }
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid. That nothing is to be released is allowed, unless the page
        // was taken: then sunrpc has to buy another.
        unsafe {
            if !(*(*rqstp).rq_respages).is_null() {
                (*rqstp).rq_next_page = (*rqstp).rq_respages;
            }
        }
    }

    /// Moves the pages of the reply to `pages`, which is empty, and returns where in them the
    /// reply is. May sleep for memory, if `pages` has not had as much room before.
    ///
    /// # Errors
    ///
    /// `EINVAL` if part of the reply is outside its pages; `ENOMEM`. Nothing is moved then.
    pub(crate) fn take_pages(&mut self, pages: &mut PageVec) -> Result<ReplyMap> {
        let rqstp = self.rqstp.as_ptr();
        let count = self.page_count()?;
        // SAFETY: By the invariants these are the pages of the reply.
        let respages = unsafe { core::slice::from_raw_parts_mut((*rqstp).rq_respages, count) };
        let map = ReplyMap::new(self.message(), respages)?;
        if pages.len() != 0 || respages.iter().any(|page| page.is_null()) {
            return Err(EINVAL);
        }
        pages.reserve(count, GFP_KERNEL)?;
        for page in respages {
            // SAFETY: Not null, as just checked. The reference changes hands; there is room.
            unsafe { pages.push(NonNull::new_unchecked(*page)) }?;
            *page = null_mut();
        }
        // SAFETY: The thread is valid. The reply is not in pages of its own any more, and nobody
        // is to look for it there; sunrpc reads its length only.
        unsafe {
            let xdr = addr_of_mut!((*rqstp).rq_res);
            (*xdr).page_len = 0;
            (*xdr).head[0] = bindings::kvec::default();
            (*xdr).tail[0] = bindings::kvec::default();
        }
        Ok(map)
    }
}

/// Where in its pages a reply is.
///
/// # Invariants
///
/// Every byte of the reply is in a page of the array the map was made for.
#[derive(Clone, Copy)]
pub(crate) struct ReplyMap {
    head: Piece,
    /// First page and offset of the page part.
    page: Piece,
    tail: Piece,
}

impl ReplyMap {
    fn new(message: &XdrBuf, pages: &[*mut bindings::page]) -> Result<Self> {
        // SAFETY: A view has a valid `xdr_buf`.
        let first_page = unsafe { (*message.as_ptr()).pages };
        let page = if message.page_len() == 0 {
            Piece {
                index: 0,
                offset: 0,
                len: 0,
            }
        } else {
            let start = (first_page as usize)
                .checked_sub(pages.as_ptr() as usize)
                .ok_or(EINVAL)?;
            let index = start / size_of::<*mut bindings::page>() + message.page_base() / PAGE_SIZE;
            let end = index.checked_add(message.page_count()).ok_or(EINVAL)?;
            if end > pages.len() {
                return Err(EINVAL);
            }
            Piece {
                index,
                offset: message.page_base() % PAGE_SIZE,
                len: message.page_len(),
            }
        };
        Ok(ReplyMap {
            head: locate(message.head(), pages)?,
            page,
            tail: locate(message.tail(), pages)?,
        })
    }

    /// The length of the reply in bytes.
    pub(crate) fn len(&self) -> usize {
        self.head.len + self.page.len + self.tail.len
    }

    /// Walks the bytes `range` of the reply; ends early where the reply does.
    pub(crate) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = Piece> {
        let map = *self;
        let end = range.end.min(map.len());
        let mut pos = range.start;
        core::iter::from_fn(move || {
            let piece = (pos < end).then(|| map.piece(pos, end))?;
            pos += piece.len;
            Some(piece)
        })
    }

    /// The longest piece from `pos` on, which is less than `end`, up to `end`.
    fn piece(&self, pos: usize, end: usize) -> Piece {
        let pages_at = self.head.len;
        let tail_at = pages_at + self.page.len;
        if pos < pages_at {
            Piece {
                index: self.head.index,
                offset: self.head.offset + pos,
                len: end.min(pages_at) - pos,
            }
        } else if pos < tail_at {
            let at = self.page.offset + (pos - pages_at);
            let offset = at % PAGE_SIZE;
            Piece {
                index: self.page.index + at / PAGE_SIZE,
                offset,
                len: (end.min(tail_at) - pos).min(PAGE_SIZE - offset),
            }
        } else {
            Piece {
                index: self.tail.index,
                offset: self.tail.offset + (pos - tail_at),
                len: end - pos,
            }
        }
    }
}

/// Finds the page that `bytes` are in.
fn locate(bytes: &[u8], pages: &[*mut bindings::page]) -> Result<Piece> {
    if bytes.is_empty() {
        return Ok(Piece {
            index: 0,
            offset: 0,
            len: 0,
        });
    }
    let addr = bytes.as_ptr() as usize;
    for (index, &page) in pages.iter().enumerate() {
        // SAFETY: Asks for the address of a page of the thread, which has a reference to it.
        let start = unsafe { bindings::rpcrdma_shim_page_address(page) } as usize;
        if addr >= start && addr - start < PAGE_SIZE {
            let offset = addr - start;
            // Head and tail are each made in one page.
            return match bytes.len() <= PAGE_SIZE - offset {
                true => Ok(Piece {
                    index,
                    offset,
                    len: bytes.len(),
                }),
                false => Err(EINVAL),
            };
        }
    }
    Err(EINVAL)
}
