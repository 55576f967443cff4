// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completions of the Send Queue.
//!
//! A [`Cqe`] is a field of the object that owns a posted chain, as a `Work` is a field of the
//! object that is queued: posting consumes the pointer to the object, and the completion returns
//! it.
//!
//! ```text
//!   idle ──post──► in flight ──done──► idle
//! ```
//!
//! A `Cqe` is in flight at most once at a time. Completions run on ib_core's workqueue, in process
//! context, one at a time for each QP. The thread that closes a QP completes the chains that the
//! driver forgot. A completion must not wait for another one.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    prelude::*,
    str::CStr, //
};

use super::{
    entry::Entry,
    failure::Failure,
    qp::{
        of_cq,
        Qp,
        QpHandler, //
    },
    wr::Ticket,
    Cid, //
};
use crate::kapi::bindings;

/// A completion queue entry, as a field of `T`.
///
/// # Examples
///
/// ```ignore
/// #[pin_data]
/// struct Message {
///     #[pin]
///     cqe: Cqe<Message>,
///     text: SendBuf,
/// }
///
/// impl_has_cqe! { impl HasCqe for Message { self.cqe } }
///
/// impl Completion for Message {
///     type Handler = Connection;
///
///     fn done(this: Pin<KBox<Self>>, qp: &Qp<Connection>, result: Result<Wc, WcError>) {
///         if result.is_ok() {
///             qp.handler().reuse(this);
///         }
///     }
/// }
/// ```
#[pin_data]
#[repr(transparent)]
pub(crate) struct Cqe<T> {
    #[pin]
    raw: Entry,
    _owner: PhantomData<fn(T)>,
}

impl<T: Completion> Cqe<T> {
    /// Creates an idle entry.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            raw: Entry::new(Some(handle_completion::<T>)),
            _owner: PhantomData,
        })
    }
}

impl<T> Cqe<T> {
    /// # Safety
    ///
    /// `this` must point to a `Cqe`, which need not be initialised.
    pub(super) unsafe fn raw_get(this: *mut Self) -> *mut Entry {
        // CAST: The type is transparent.
        this.cast()
    }
}

/// Declares that a type has a [`Cqe`]; use [`impl_has_cqe!`].
///
/// # Safety
///
/// The two functions must be each other's inverse, and must return pointers into the same object.
pub(crate) unsafe trait HasCqe: Sized {
    /// Returns the field of the object at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` must point to a valid object.
    unsafe fn raw_get_cqe(ptr: *mut Self) -> *mut Cqe<Self>;

    /// Returns the object of the field at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` must point to this field of a valid object.
    unsafe fn cqe_container_of(ptr: *mut Cqe<Self>) -> *mut Self;
}

/// Implements [`HasCqe`]: `impl_has_cqe! { impl HasCqe for Context { self.cqe } }`.
macro_rules! impl_has_cqe {
    (impl HasCqe for $self:ty { self.$field:ident }) => {
        #[allow(unsafe_code, reason = "the field's type is checked by `raw_get_cqe`")]
        // SAFETY: `raw_get_cqe` compiles only if the field has the right type; the other is
        // its inverse.
        unsafe impl $crate::kapi::rdma::cq::HasCqe for $self {
            #[inline]
            unsafe fn raw_get_cqe(ptr: *mut Self) -> *mut $crate::kapi::rdma::cq::Cqe<Self> {
                // SAFETY: The caller promises that the pointer is valid.
                unsafe { &raw mut (*ptr).$field }
            }

            #[inline]
            unsafe fn cqe_container_of(ptr: *mut $crate::kapi::rdma::cq::Cqe<Self>) -> *mut Self {
                // SAFETY: The caller promises that it points to this field.
                unsafe { ::kernel::container_of!(ptr, Self, $field) }
            }
        }
    };
}
pub(crate) use impl_has_cqe;

/// Converts the owner of a chain into a raw pointer. The object stays valid and in place, and is
/// not mutably borrowed, until [`from_raw`].
pub(super) fn into_raw<T>(owner: Pin<KBox<T>>) -> NonNull<T> {
    // SAFETY: The object does not move before `from_raw` pins it again.
    let this = unsafe { Pin::into_inner_unchecked(owner) };
    // SAFETY: A box is never null.
    unsafe { NonNull::new_unchecked(KBox::into_raw(this)) }
}

/// Converts a raw pointer back into the owner of a chain.
///
/// # Safety
///
/// `ptr` must come from [`into_raw`], and must not be converted twice.
pub(super) unsafe fn from_raw<T>(ptr: NonNull<T>) -> Pin<KBox<T>> {
    // SAFETY: `ptr` comes from a pinned box, and is converted once, by this function's contract.
    unsafe { Pin::new_unchecked(KBox::from_raw(ptr.as_ptr())) }
}

/// The completion callback of the owner of a chain.
pub(crate) trait Completion: HasCqe + Send + 'static {
    /// The handler of the QPs that the chain may be posted on.
    type Handler: QpHandler;

    /// Called once for each successful post, when the device has finished the whole chain.
    ///
    /// Runs in process context. It must not wait for another completion, and so it must not drop
    /// the `QpOwner`.
    fn done(this: Pin<KBox<Self>>, qp: &Qp<Self::Handler>, result: Result<Wc, WcError>);
}

/// The completion of a chain that succeeded.
pub(crate) struct Wc {
    ticket: Ticket,
    cid: Cid,
}

impl Wc {
    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Returns the identifier for trace events, see [`Chain::cid`](super::wr::Chain::cid).
    pub(crate) fn cid(&self) -> Cid {
        self.cid
    }
}

/// Returns the identifier of a completion for trace events.
///
/// # Safety
///
/// `cq` must be valid.
pub(super) unsafe fn cid_of(cq: *const bindings::ib_cq, number: u64) -> Cid {
    Cid {
        // SAFETY: `cq` is valid by this function's contract, and its number is constant.
        queue: unsafe { (*cq).res.id },
        // CAST: The lower half suffices to distinguish the completions in flight.
        completion: number as u32,
    }
}

/// The completion of a Work Request that failed.
#[derive(Clone, Copy)]
pub(crate) struct WcError {
    status: bindings::ib_wc_status,
    vendor: u32,
    cid: Cid,
}

impl WcError {
    /// Reads a completion; `None` if it is a success.
    pub(super) fn of(wc: &bindings::ib_wc, cid: Cid) -> Option<Self> {
        if wc.status == bindings::ib_wc_status_IB_WC_SUCCESS {
            return None;
        }
        Some(WcError {
            status: wc.status,
            vendor: wc.vendor_err,
            cid,
        })
    }

    /// Returns the error of a chain whose last request failed with `self`. If an earlier request of
    /// the chain failed, and the last one was therefore flushed, returns the error of the earlier
    /// one.
    fn of_chain(self, failure: &Failure) -> Self {
        match failure.take() {
            Some((status, vendor)) if self.flushed() => WcError {
                status,
                vendor,
                ..self
            },
            _ => self,
        }
    }

    /// Returns the identifier for trace events, see [`Wc::cid`] and
    /// [`RecvBuf::cid`](super::recv::RecvBuf::cid).
    pub(crate) fn cid(&self) -> Cid {
        self.cid
    }

    /// Returns whether the request was flushed: the connection was lost before the device tried it.
    pub(crate) fn flushed(&self) -> bool {
        self.status == bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR
    }

    /// Returns the status, an `ib_wc_status`.
    pub(crate) fn status(&self) -> u32 {
        self.status
    }

    /// Returns the status as text.
    pub(crate) fn text(&self) -> &'static CStr {
        // SAFETY: C returns a static string for every number.
        unsafe { CStr::from_char_ptr(bindings::ib_wc_status_msg(self.status)) }
    }

    /// Returns the vendor-specific error code.
    pub(crate) fn vendor(&self) -> u32 {
        self.vendor
    }
}

/// Called by ib_core for the last Work Request of a chain.
///
/// # Safety
///
/// `cq` must be the CQ of a `Qp<T::Handler>`, and `wc` the completion of a chain whose owner is a
/// `T`.
unsafe extern "C" fn handle_completion<T: Completion>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The completion is valid during the call. `cq` is valid until its QP is freed. The
    // last Work Request of a chain contains the pointer to an entry.
    let (wc, qp, entry) = unsafe {
        (
            &*wc,
            of_cq::<T::Handler>(NonNull::new_unchecked(cq)),
            (*wc).__bindgen_anon_1.wr_cqe.cast::<Entry>(),
        )
    };
    // SAFETY: This is the only completion of the entry's post.
    let Some(ticket) = (unsafe { Entry::end(entry) }) else {
        return;
    };
    let _completing = qp.completing();
    // SAFETY: ib_core passes a valid CQ.
    let cid = unsafe { cid_of(cq, ticket.post) };
    let result = match WcError::of(wc, cid) {
        Some(error) => Err(error.of_chain(qp.failure())),
        None => {
            qp.note_executed(ticket);
            Ok(Wc { ticket, cid })
        }
    };
    // SAFETY: The post gave up the object that contains this `Cqe`, and only this completion takes
    // it back.
    let owner = unsafe {
        let object = T::cqe_container_of(entry.cast());
        from_raw(NonNull::new_unchecked(object))
    };
    T::done(owner, qp, result);
}

#[cfg(rpcrdma_kunit)]
mod kunit;
