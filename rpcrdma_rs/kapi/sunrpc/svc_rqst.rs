// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A service thread (`struct svc_rqst`) that receives a Call.
//!
//! A thread has two arrays of pages. `rq_pages` is for the pages of a Call; all entries are present
//! when sunrpc calls `xpo_recvfrom`. `rq_respages` is for the reply, see [`super::svc_reply`].
//!
//! C header: [`include/linux/sunrpc/svc.h`](srctree/include/linux/sunrpc/svc.h)

use super::{
    super::{
        bindings,
        ext::{
            memory::page_address,
            pages::PageVec, //
        },
    },
    svc_reply::HeldPages, //
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

/// The context of a Call from its reception to its release, stored in `rq_xprt_ctxt`.
///
/// # Safety
///
/// [`Self::bytes`] must return the same memory until [`Self::from_ptr`], and [`Self::parts_mut`]
/// must not give access to that memory. The service decrypts a Call of krb5p in place. So the
/// memory from the start of the RPC message on changes while nobody borrows it, and must not be
/// read again.
pub(crate) unsafe trait CallContext: Sized + Send + 'static {
    /// The transport's state of the Call.
    type State;

    /// Converts the context into a pointer for sunrpc.
    fn into_ptr(self) -> *mut ffi::c_void;

    /// Converts the pointer back into the context.
    ///
    /// # Safety
    ///
    /// `ptr` must come from [`Self::into_ptr`], and must not be used afterwards.
    unsafe fn from_ptr(ptr: *mut ffi::c_void) -> Self;

    /// Returns the received message, including the transport header.
    fn bytes(&self) -> &[u8];

    /// Returns the pages held for the service thread, and the transport's state of the Call.
    fn parts_mut(&mut self) -> (&mut HeldPages, &mut Self::State);
}

/// The data in a Call's context in addition to the message.
#[derive(Default)]
pub(crate) struct CallData<S> {
    pub(in crate::kapi) held: HeldPages,
    /// The transport's state of the Call.
    pub(crate) state: S,
}

impl<S> CallData<S> {
    /// Releases the pages that are still held, if no reply was sent. Returns the empty array if it
    /// is too large to be kept here.
    pub(crate) fn release_pages(&mut self) -> Option<PageVec> {
        self.held.release_pages()
    }

    /// Returns the number of pages for which there is room, without an allocation, when the Call is
    /// delivered with [`Receiver::hold_pages`].
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.held.room()
    }

    /// Replaces the array for held pages by `array`, which is empty.
    pub(crate) fn set_array(&mut self, array: PageVec) {
        self.held.set_array(array);
    }
}

/// The context of a Call that the service is processing.
pub(crate) struct CallRef<'a, S> {
    /// The received message, including the transport header.
    pub(crate) bytes: &'a [u8],
    /// The transport's state of the Call.
    pub(crate) state: &'a mut S,
}

impl<'a, S> CallRef<'a, S> {
    /// Borrows the message and the transport's state of `call`.
    #[inline]
    pub(crate) fn of<C: CallContext<State = S>>(call: &'a mut C) -> Self {
        Self::new(call).0
    }

    /// Splits `call` into the held pages and the rest.
    pub(super) fn new<C: CallContext<State = S>>(call: &'a mut C) -> (Self, &'a mut HeldPages) {
        let bytes: *const [u8] = call.bytes();
        // SAFETY: The bytes are stable and apart from the other parts, see `CallContext`; all are
        // borrowed for as long as the context is.
        let bytes = unsafe { &*bytes };
        let (held, state) = call.parts_mut();
        (CallRef { bytes, state }, held)
    }
}

/// A service thread that receives a Call with a context of type `C`.
///
/// # Invariants
///
/// The thread is in the transport's `xpo_recvfrom`. `rq_pages` has `rq_maxpages` entries: the first
/// `rq_pages_nfree` are null, the others are pages.
pub(crate) struct Receiver<'a, C> {
    rqstp: NonNull<bindings::svc_rqst>,
    /// The entries of the reply array whose pages are held for the Call.
    pub(in crate::kapi) slots: Range<usize>,
    _thread: PhantomData<(&'a mut bindings::svc_rqst, C)>,
}

/// Proof that a Call was delivered to the thread.
pub(crate) struct Delivered<'a> {
    rqstp: NonNull<bindings::svc_rqst>,
    len: ffi::c_int,
    _thread: PhantomData<&'a mut bindings::svc_rqst>,
}

impl<'a, C: CallContext> Receiver<'a, C> {
    /// Returns the right to deliver one Call to a thread.
    ///
    /// # Safety
    ///
    /// `rqstp` is a thread that is in `xpo_recvfrom` for the lifetime of the result.
    pub(super) unsafe fn new(rqstp: *mut bindings::svc_rqst) -> Self {
        // SAFETY: `rqstp` is a thread in `xpo_recvfrom`, by this function's contract, which has
        // these fields to itself.
        unsafe {
            // No page of the reply array is in use yet.
            (*rqstp).rq_next_page = (*rqstp).rq_respages;
            (*rqstp).rq_xprt_ctxt = null_mut();
        }
        // INVARIANT: sunrpc has filled the array before it calls the transport.
        Receiver {
            // SAFETY: It is a thread, by this function's contract, and so not null.
            rqstp: unsafe { NonNull::new_unchecked(rqstp) },
            slots: 0..0,
            _thread: PhantomData,
        }
    }

    /// Makes delivery take references to the entries `slots` of the reply array until the reply is
    /// sent, so that the service does not free the pages. The references are stored in the context
    /// of the Call, see [`HeldPages`].
    #[inline]
    pub(crate) fn hold_pages(&mut self, slots: Range<usize>) {
        self.slots = slots;
    }

    /// Returns the pages that were not taken.
    fn pages(&mut self) -> &mut [*mut bindings::page] {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: By the type's invariant the array has `rq_maxpages` entries, and the thread is in
        // `xpo_recvfrom`, so nobody else uses them.
        unsafe {
            core::slice::from_raw_parts_mut(
                (*rqstp).rq_pages.add((*rqstp).rq_pages_nfree),
                (*rqstp).rq_maxpages - (*rqstp).rq_pages_nfree,
            )
        }
    }

    /// Returns the thread's pages, unless some were taken, because a Call starts in the first page.
    fn untaken_pages(&mut self) -> Option<&mut [*mut bindings::page]> {
        // SAFETY: The thread is valid.
        match unsafe { (*self.rqstp.as_ptr()).rq_pages_nfree } {
            0 => Some(self.pages()),
            _ => None,
        }
    }

    /// Moves pages of the thread to the end of `sink` until that has `count`.
    ///
    /// sunrpc allocates new pages for the thread. `sink` must have room, see [`PageVec::reserve`].
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
    /// `EINVAL` if either has fewer pages, or pages were taken from the thread.
    pub(crate) fn exchange_pages(&mut self, sink: &mut PageVec, count: usize) -> Result {
        let ours = self.untaken_pages().ok_or(EINVAL)?;
        let ours = ours.get_mut(..count).ok_or(EINVAL)?;
        // SAFETY: Each page that leaves the array is replaced by a page that comes with its
        // reference.
        let theirs = unsafe { sink.as_mut_slice() }
            .get_mut(..count)
            .ok_or(EINVAL)?;
        for (ours, theirs) in ours.iter_mut().zip(theirs) {
            // SAFETY: By the invariants none is null, as none was taken.
            let page = unsafe { NonNull::new_unchecked(*ours) };
            *ours = core::mem::replace(theirs, page).as_ptr();
        }
        Ok(())
    }

    /// Delivers a Call that is contained in the received message, at `body`.
    ///
    /// # Errors
    ///
    /// Returns `call` if `body` is empty or not part of it.
    pub(crate) fn deliver_inline(self, call: C, body: Range<usize>) -> Result<Delivered<'a>, C> {
        self.deliver(call, body, 0, 0..0)
    }

    /// Delivers a Call whose head and tail are in the received message, and whose `page_len` bytes
    /// in between are in the thread's pages, starting with the first.
    ///
    /// # Errors
    ///
    /// Returns `call` if the ranges are not part of it, the thread has too few pages, some were
    /// taken, or there is a tail but no page part.
    // Inlined, as most Calls have neither pages nor a tail.
    #[inline(always)]
    pub(crate) fn deliver(
        mut self,
        call: C,
        head: Range<usize>,
        page_len: usize,
        tail: Range<usize>,
    ) -> Result<Delivered<'a>, C> {
        let Some(lengths) = Lengths::new(head.len(), page_len, tail.len()) else {
            return Err(call);
        };
        if page_len != 0 {
            let present = self.untaken_pages().map_or(0, |pages| pages.len());
            if page_len.div_ceil(PAGE_SIZE) > present {
                return Err(call);
            }
        }
        let bytes = call.bytes();
        let (Some(head), Some(tail)) = (bytes.get(head), bytes.get(tail)) else {
            return Err(call);
        };
        let (head, tail) = (head.as_ptr().cast_mut(), tail.as_ptr().cast_mut());
        // SAFETY: The thread is valid. Head and tail stay valid as long as the context is the
        // thread's, which `CallContext` promises.
        Ok(unsafe { self.finish(call, head, tail, 0, lengths) })
    }

    /// Delivers a Call whose `len` bytes are in the thread's pages, starting with the first.
    ///
    /// # Errors
    ///
    /// Returns `call` if `len` is 0, the thread has too few pages, or some were taken.
    pub(crate) fn deliver_paged(mut self, call: C, len: usize) -> Result<Delivered<'a>, C> {
        let head_len = len.min(PAGE_SIZE);
        let Some(lengths) = Lengths::new(head_len, len - head_len, 0) else {
            return Err(call);
        };
        let pages = self.untaken_pages().unwrap_or_default();
        if len.div_ceil(PAGE_SIZE) > pages.len() {
            return Err(call);
        }
        let Some(first) = pages.first().copied() else {
            return Err(call);
        };
        // SAFETY: By the type's invariant the entry is a page, as none was taken.
        let head = unsafe { page_address(first) }.cast();
        // SAFETY: The head is the first page, which is the thread's; the lengths are those of its
        // pages.
        Ok(unsafe { self.finish(call, head, null_mut(), 1, lengths) })
    }

    /// Delivers `call` with these parts.
    ///
    /// # Safety
    ///
    /// `head` and `tail` are valid for their lengths as long as the Call is the thread's, and
    /// from `first_page` on the thread has the pages for the page part.
    #[inline(always)]
    unsafe fn finish(
        self,
        mut call: C,
        head: *mut u8,
        tail: *mut u8,
        first_page: usize,
        lengths: Lengths,
    ) -> Delivered<'a> {
        let rqstp = self.rqstp.as_ptr();
        if !self.slots.is_empty() {
            // SAFETY: By the type's invariant the thread is in `xpo_recvfrom`.
            unsafe { call.parts_mut().0.begin(rqstp, self.slots) };
        }
        // SAFETY: The thread is valid and ours.
        unsafe {
            let arg = addr_of_mut!((*rqstp).rq_arg);
            (*arg).head[0].iov_base = head.cast();
            (*arg).head[0].iov_len = lengths.head;
            (*arg).pages = (*rqstp).rq_pages.add(first_page);
            (*arg).page_base = 0;
            (*arg).page_len = lengths.pages;
            (*arg).tail[0].iov_base = tail.cast();
            (*arg).tail[0].iov_len = lengths.tail;
            (*arg).len = lengths.total;
            (*arg).buflen = lengths.total;
            (*rqstp).rq_xprt_ctxt = call.into_ptr();
        }
        Delivered {
            rqstp: self.rqstp,
            len: lengths.result,
            _thread: PhantomData,
        }
    }
}

/// Checked lengths of the parts of a Call.
struct Lengths {
    head: usize,
    pages: u32,
    tail: usize,
    total: u32,
    result: ffi::c_int,
}

impl Lengths {
    /// Returns `None` if the Call is empty, too large for the fields of `xdr_buf`, or has a tail
    /// and no pages: `svc_defer` of Linux 7.2 treats a Call without pages as contiguous.
    fn new(head: usize, pages: usize, tail: usize) -> Option<Self> {
        let total = head.checked_add(pages)?.checked_add(tail)?;
        let result = ffi::c_int::try_from(total).ok()?;
        (total != 0 && (pages != 0 || tail == 0)).then_some(Lengths {
            head,
            pages: u32::try_from(pages).ok()?,
            tail,
            total: u32::try_from(total).ok()?,
            result,
        })
    }
}

const LOCAL: ffi::c_ulong = 1 << bindings::RQ_LOCAL;
const SECURE: ffi::c_ulong = 1 << bindings::RQ_SECURE;

impl Delivered<'_> {
    /// Sets the addresses of the Call, and returns its length.
    pub(super) fn finish(self, xprt: *mut bindings::svc_xprt) -> ffi::c_int {
        let rqstp = self.rqstp.as_ptr();
        // SAFETY: The thread is valid and holds `xprt`.
        unsafe {
            // RPC-over-RDMA has no IP protocol number.
            (*rqstp).rq_prot = bindings::RPCRDMA_SHIM_IPPROTO_MAX;
            bindings::svc_xprt_copy_addrs(rqstp, xprt);
            // A peer needs privileges to create a queue pair, and its port number means nothing.
            // The previous Call of this thread may have been local, or from an unprivileged port.
            let flags = addr_of_mut!((*rqstp).rq_flags);
            if flags.read_volatile() & (LOCAL | SECURE) != SECURE {
                bindings::clear_bit(bindings::RQ_LOCAL as ffi::c_ulong, flags);
                bindings::set_bit(bindings::RQ_SECURE as ffi::c_ulong, flags);
            }
        }
        self.len
    }
}
