// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Receive buffers.
//!
//! ```text
//!   RecvBox ──push──► RecvList ──post_recvs──► posted ──recv_done──► RecvBox
//! ```
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    ffi::c_int,
    marker::PhantomData,
    mem::{
        ManuallyDrop,
        MaybeUninit, //
    },
    ptr::NonNull, //
};

use kernel::{error::to_result, prelude::*, sync::Arc};

use super::{
    cq::{
        cid_of,
        WcError, //
    },
    dma::DmaBuf,
    entry::{
        Entry,
        EntryList, //
    },
    list::{
        Linked,
        List, //
    },
    pd::Pd,
    qp::{
        of_cq,
        QpHandler, //
    },
    verbs::post_recv,
    wr::Ticket,
    Cid,
    DataDirection, //
};
use crate::kapi::{
    bindings,
    ext::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The number of the next buffer, of all QPs.
static NEXT_NUMBER: Atomic<u64> = Atomic::new(1);

/// The number of Receives that one call of the driver posts.
const POSTED_AT_A_TIME: usize = 16;

/// A Receive buffer, its Work Request's elements, and the user's `data`.
///
/// # Invariants
///
/// `sge` describes `buffer`. Unless it is posted, the first `byte_len` bytes of the buffer were
/// received and synced for the CPU. Only the list that the box is in uses `next`.
pub(crate) struct RecvBuf<T> {
    next: *mut RecvBuf<T>,
    sge: bindings::ib_sge,
    entry: Entry,
    buffer: DmaBuf,
    byte_len: usize,
    /// The handle that the sender of the message invalidated, and what `Qp::invalidated_before`
    /// returned.
    invalidated: Option<(u32, Ticket)>,
    cid: Cid,
    data: T,
}

/// The result of a Receive that succeeded.
#[derive(Clone, Copy)]
pub(crate) struct RecvWc {
    /// Length of the message in bytes.
    pub(crate) byte_len: u32,
}

/// Proof that the local device invalidated a handle when a Send With Invalidate arrived.
///
/// It borrows from the buffer of that message.
#[derive(Clone, Copy)]
pub(crate) struct Invalidated<'a> {
    handle: u32,
    before: Ticket,
    _message: PhantomData<&'a ()>,
}

impl Invalidated<'_> {
    /// Returns the handle.
    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    /// Returns the ticket that follows those of the registrations that the invalidation may
    /// concern.
    pub(super) fn before(&self) -> Ticket {
        self.before
    }
}

/// An owning pointer to a [`RecvBuf`] that is not posted.
///
/// # Examples
///
/// ```ignore
/// let mut list = RecvList::new();
/// for _ in 0..16 {
///     list.push(RecvBox::new(&pd, 4096, ())?);
/// }
/// // `QpHandler::recv_done` gets each of them back.
/// qp.post_recvs(list).map_err(|(error, _unposted)| error)?;
/// ```
///
/// # Invariants
///
/// The pointer comes from `KBox::into_raw`, and this object owns it.
#[repr(transparent)]
pub(crate) struct RecvBox<T>(NonNull<RecvBuf<T>>);

// SAFETY: The box owns plain memory and a `T`.
unsafe impl<T: Send> Send for RecvBox<T> {}
// SAFETY: Shared access reads, and lends a `&T`.
unsafe impl<T: Sync> Sync for RecvBox<T> {}

impl<T> RecvBuf<T> {
    /// Returns the last message received.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.as_slice().get(..self.byte_len).unwrap_or(&[])
    }

    /// Returns the length of the last message received, in bytes.
    pub(crate) fn byte_len(&self) -> usize {
        self.byte_len
    }

    /// Returns the size of the buffer in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the invalidation that came with the last message, if any.
    pub(crate) fn invalidated(&self) -> Option<Invalidated<'_>> {
        let (handle, before) = self.invalidated?;
        Some(Invalidated {
            handle,
            before,
            _message: PhantomData,
        })
    }

    /// Returns the PD that the buffer is mapped in.
    pub(super) fn pd(&self) -> &Pd {
        self.buffer.pd()
    }

    /// Returns the identifier for trace events: the CQ of the last completion, and the number of
    /// the buffer.
    pub(crate) fn cid(&self) -> Cid {
        self.cid
    }

    /// Syncs the buffer for the device and starts its entry, for a post on the QP whose list
    /// `entries` is.
    ///
    /// # Safety
    ///
    /// `this` must come from [`RecvBox::into_raw`], and the caller must own it.
    unsafe fn give<H: QpHandler<Recv = T>>(this: *mut Self, entries: &Arc<EntryList>) {
        // SAFETY: The caller owns the buffer by this function's contract, so it is valid and not in
        // flight.
        let this = unsafe {
            let entry = &raw mut (*this).entry;
            Entry::start(entry, entries, Ticket { qp: 0, post: 0 });
            Entry::set_done(entry, handle_completion::<H>);
            &mut *this
        };
        let len = this.buffer.len();
        this.buffer.sync_for_device(0..len);
    }

    /// Undoes the preparation of a buffer that was not posted.
    ///
    /// # Safety
    ///
    /// `this` must come from [`RecvBox::into_raw`], the caller must own it, and it must not be
    /// posted.
    unsafe fn keep(this: NonNull<Self>) -> RecvBox<T> {
        // SAFETY: The caller owns the box and has failed to post it, by this function's contract.
        unsafe { Entry::end(&raw mut (*this.as_ptr()).entry) };
        // INVARIANT: The pointer comes from `into_raw`, and the caller passes its ownership on.
        let mut buffer = RecvBox(this);
        buffer.forget();
        buffer
    }

    /// Returns the Receive Work Request for the buffer, linked to no other.
    ///
    /// # Safety
    ///
    /// `this` must be valid.
    unsafe fn request(this: *mut Self) -> bindings::ib_recv_wr {
        // SAFETY: The buffer is valid by this function's contract; no reference is made.
        let (sg_list, entry) = unsafe { (&raw mut (*this).sge, &raw mut (*this).entry) };
        bindings::ib_recv_wr {
            next: core::ptr::null_mut(),
            __bindgen_anon_1: bindings::ib_recv_wr__bindgen_ty_1 {
                wr_cqe: ManuallyDrop::new(Entry::cqe(entry)),
            },
            sg_list,
            num_sge: 1,
        }
    }
}

impl<T> RecvBox<T> {
    /// Allocates a buffer of `len` bytes on the device's NUMA node and DMA-maps it. May sleep, but
    /// does not wait until memory is free, see [`DmaBuf::new`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero; `ENOMEM`. `data` is dropped.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, data: T) -> Result<Self> {
        let buffer = DmaBuf::new(pd, len, DataDirection::FromDevice)?;
        let sge = buffer.sge(0..len)?;
        let number = NEXT_NUMBER.fetch_add(1, Relaxed);
        let this = KBox::new(
            RecvBuf {
                next: core::ptr::null_mut(),
                sge,
                entry: Entry::new(None),
                buffer,
                byte_len: 0,
                invalidated: None,
                cid: Cid {
                    queue: 0,
                    // CAST: The lower half suffices to distinguish the buffers that exist.
                    completion: number as u32,
                },
                data,
            },
            GFP_NOWAIT | __GFP_NOWARN,
        )?;
        // SAFETY: A box is not null.
        Ok(RecvBox(unsafe {
            NonNull::new_unchecked(KBox::into_raw(this))
        }))
    }

    /// Returns the user's data, for writing.
    pub(crate) fn data_mut(&mut self) -> &mut T {
        // SAFETY: By the type's invariant this object owns the pointee. Neither the device nor C
        // accesses this field.
        unsafe { &mut (*self.0.as_ptr()).data }
    }

    /// Converts the box into a raw pointer, which C code can store.
    pub(in crate::kapi) fn into_raw(self) -> *mut RecvBuf<T> {
        self.into_node().as_ptr()
    }

    /// Converts a raw pointer back into a box.
    ///
    /// # Safety
    ///
    /// `ptr` must come from [`RecvBox::into_raw`], and must not be converted twice.
    pub(in crate::kapi) unsafe fn from_raw(ptr: NonNull<RecvBuf<T>>) -> Self {
        // INVARIANT: The pointer comes from `into_raw`, and is converted once, by this function's
        // contract.
        RecvBox(ptr)
    }
}

impl<T> core::ops::Deref for RecvBox<T> {
    type Target = RecvBuf<T>;

    fn deref(&self) -> &RecvBuf<T> {
        // SAFETY: By the type's invariant this object owns the pointee, and `self` is borrowed.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for RecvBox<T> {
    fn drop(&mut self) {
        // SAFETY: The pointer comes from `KBox::into_raw`, and is not used after this drop.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }
}

/// A queue of [`RecvBox`]es.
pub(crate) type RecvList<T> = List<RecvBox<T>>;

// SAFETY: The type is transparent, and nobody else uses `next`.
unsafe impl<T> Linked for RecvBox<T> {
    type Node = RecvBuf<T>;

    fn into_node(self) -> NonNull<RecvBuf<T>> {
        ManuallyDrop::new(self).0
    }

    unsafe fn from_node(node: NonNull<RecvBuf<T>>) -> Self {
        // SAFETY: `node` comes from `into_node`, which returns the same pointer as `into_raw`, and
        // is converted once.
        unsafe { Self::from_raw(node) }
    }

    unsafe fn link(node: *mut RecvBuf<T>) -> *mut *mut RecvBuf<T> {
        // SAFETY: The node is valid by this function's contract.
        unsafe { &raw mut (*node).next }
    }
}

impl<T> RecvList<T> {
    /// Posts the boxes on a QP. Returns those that were not posted.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one of them is of another PD than `pd`, or the error of the device.
    ///
    /// # Safety
    ///
    /// `qp` must be the C object of an open `Qp<H>`, and `pd` and `entries` must be those of that
    /// `Qp`.
    pub(super) unsafe fn post<H: QpHandler<Recv = T>>(
        mut self,
        qp: *mut bindings::ib_qp,
        pd: &Pd,
        entries: &Arc<EntryList>,
    ) -> Result<(), (Error, Self)> {
        while !self.is_empty() {
            // SAFETY: QP, CQ, PD and list belong together by this function's contract.
            unsafe { self.post_some::<H>(qp, pd, entries) }.map_err(|(error, mut rest)| {
                rest.append(&mut self);
                (error, rest)
            })?;
        }
        Ok(())
    }

    /// Posts the first boxes of the list, up to the number of Work Requests on the stack.
    ///
    /// # Safety
    ///
    /// The requirements are those of [`Self::post`].
    unsafe fn post_some<H: QpHandler<Recv = T>>(
        &mut self,
        qp: *mut bindings::ib_qp,
        pd: &Pd,
        entries: &Arc<EntryList>,
    ) -> Result<(), (Error, Self)> {
        // A Receive may complete, and its box get another owner, before the last one is posted. The
        // driver follows the links until then. So the requests are on the stack and not in the
        // boxes.
        let mut wrs = [const { MaybeUninit::<bindings::ib_recv_wr>::uninit() }; POSTED_AT_A_TIME];
        let count = self.len().min(POSTED_AT_A_TIME);
        let mut first = core::ptr::null_mut();
        // The place of the pointer to the next request.
        let mut link: *mut *mut bindings::ib_recv_wr = &mut first;
        let mut ours = true;
        for wr in &mut wrs {
            let Some(buffer) = self.pop() else { break };
            ours &= core::ptr::eq(buffer.pd(), pd);
            let raw = buffer.into_raw();
            // SAFETY: The box came from the list, which owned it.
            unsafe { RecvBuf::give::<H>(raw, entries) };
            // SAFETY: The box is valid: it was given up above, and is not posted yet.
            let wr: *mut _ = wr.write(unsafe { RecvBuf::request(raw) });
            // SAFETY: `link` is `first` or a field of the request before, and `wr` is valid.
            link = unsafe {
                *link = wr;
                &raw mut (*wr).next
            };
        }
        let mut bad: *const bindings::ib_recv_wr = first;
        let ret = if ours {
            // SAFETY: The requests are valid during the call; the buffers are until they complete.
            unsafe { post_recv(qp, first, &mut bad) }
        } else {
            EINVAL.to_errno()
        };
        let Err(error) = to_result(ret) else {
            return Ok(());
        };
        // The device has accepted the requests before `bad`.
        let posted = wrs
            .iter()
            .position(|wr| core::ptr::eq(wr.as_ptr(), bad))
            .unwrap_or(0);
        let mut rest = RecvList::new();
        for wr in wrs.iter().take(count).skip(posted) {
            // SAFETY: The list had at least `count` boxes, so `count` requests were written.
            let wr = unsafe { wr.assume_init_ref() };
            // SAFETY: The request names the entry of a box, which was given up above and is not
            // posted.
            rest.push(unsafe {
                let entry = wr.__bindgen_anon_1.wr_cqe.cast::<Entry>();
                let raw = kernel::container_of!(entry, RecvBuf<T>, entry);
                RecvBuf::keep(NonNull::new_unchecked(raw))
            });
        }
        Err((error, rest))
    }
}

/// The free Receive buffers of a connection, and the number of posted ones.
pub(crate) struct RecvPool<T> {
    free: RecvList<T>,
    posted: u32,
}

impl<T> RecvPool<T> {
    /// Creates an empty pool.
    pub(crate) const fn new() -> Self {
        RecvPool {
            free: RecvList::new(),
            posted: 0,
        }
    }

    /// Returns the number of posted buffers.
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }

    /// Returns the number of free buffers.
    pub(crate) fn free(&self) -> u32 {
        // CAST: There are fewer buffers than a queue can have entries.
        self.free.len() as u32
    }

    /// Adds a free buffer.
    pub(crate) fn put(&mut self, buffer: RecvBox<T>) {
        self.free.push(buffer);
    }

    /// Adds the free buffers of `list`.
    pub(crate) fn put_all(&mut self, mut list: RecvList<T>) {
        self.free.append(&mut list);
    }

    /// Replaces the free buffers by `list`, and returns the old ones.
    pub(crate) fn replace(&mut self, list: RecvList<T>) -> RecvList<T> {
        core::mem::replace(&mut self.free, list)
    }

    /// Removes a free buffer and returns it.
    pub(crate) fn take(&mut self) -> Option<RecvBox<T>> {
        self.free.pop()
    }

    /// Records that the Receive of a posted buffer has completed.
    pub(crate) fn note_completed(&mut self) {
        self.posted -= 1;
    }

    /// Removes the free buffers that the caller has to post so that `target` are posted. Returns an
    /// empty list if fewer than `batch` are missing.
    ///
    /// The buffers count as posted. The caller returns those that it could not post by
    /// [`Self::unposted`].
    pub(crate) fn missing(&mut self, target: u32, batch: u32) -> RecvList<T> {
        if self.posted + batch > target {
            return RecvList::new();
        }
        // CAST: `usize` has 64 bits.
        let list = self.free.take_front((target - self.posted) as usize);
        // CAST: There are fewer than `target`.
        self.posted += list.len() as u32;
        list
    }

    /// Takes back buffers that could not be posted.
    pub(crate) fn unposted(&mut self, mut rest: RecvList<T>) {
        // CAST: They were counted above.
        self.posted -= rest.len() as u32;
        self.free.append(&mut rest);
    }
}

/// Called by ib_core for each Receive that has completed.
///
/// # Safety
///
/// `cq` must be the CQ of a `Qp<H>`, and `wc` the completion of a posted `RecvBuf<H::Recv>`.
unsafe extern "C" fn handle_completion<H: QpHandler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: ib_core lends us the completion.
    let wc = unsafe { &*wc };
    // SAFETY: The completion contains the pointer to the entry of a buffer, and is its only
    // completion.
    let (raw, ended) = unsafe {
        let entry = wc.__bindgen_anon_1.wr_cqe.cast::<Entry>();
        (
            kernel::container_of!(entry, RecvBuf<H::Recv>, entry),
            Entry::end(entry),
        )
    };
    if ended.is_none() {
        return;
    }
    // SAFETY: The buffer was given up when it was posted, and the device has finished with it.
    // ib_core passes a CQ that is not null.
    let (mut buffer, qp) = unsafe {
        (
            RecvBox::from_raw(NonNull::new_unchecked(raw)),
            of_cq::<H>(NonNull::new_unchecked(cq)),
        )
    };
    let _completing = qp.completing();
    // SAFETY: The buffer is ours and the CQ is valid.
    let cid = unsafe {
        let cid = cid_of(cq, u64::from((*raw).cid.completion));
        (*raw).cid = cid;
        cid
    };
    let result = match WcError::of(wc, cid) {
        Some(error) => {
            buffer.forget();
            Err(error)
        }
        None => Ok(buffer.received(wc, || qp.invalidated_before())),
    };
    qp.handler().recv_done(qp, buffer, result);
}

impl<T> RecvBox<T> {
    /// Forgets the last message, of which the device may have overwritten a part.
    #[cold]
    fn forget(&mut self) {
        // SAFETY: By the type's invariant the object is ours.
        unsafe {
            (*self.0.as_ptr()).byte_len = 0;
            (*self.0.as_ptr()).invalidated = None;
        }
    }

    /// Records a received message. `before` returns the ticket before which a region that the
    /// message invalidated was registered.
    #[inline]
    fn received(&mut self, wc: &bindings::ib_wc, before: impl FnOnce() -> Ticket) -> RecvWc {
        // CAST: The flags are a small positive number.
        let flag = bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as c_int;
        let len = (wc.byte_len as usize).min(self.capacity());
        // SAFETY: By the type's invariant the object is ours.
        unsafe {
            (*self.0.as_ptr()).buffer.sync_for_cpu(0..len);
            // INVARIANT: The device has written these bytes, which were synced above.
            (*self.0.as_ptr()).byte_len = len;
            (*self.0.as_ptr()).invalidated = None;
            if wc.wc_flags & flag != 0 {
                // The flag says that this is the member in use.
                (*self.0.as_ptr()).invalidated = Some((*wc.ex.invalidate_rkey, before()));
            }
        }
        RecvWc {
            byte_len: wc.byte_len,
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
