// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completion queue entries, and recovery of those that a driver never completes.
//!
//! ```text
//!   idle ──start──► in flight ──end: completed, flushed, or could not be posted──► idle
//! ```
//!
//! A driver must complete each chain and each Receive once. Some drivers violate that: siw leaves
//! requests in the Send Queue if a connection is closed gracefully while it sends. The owner of
//! such a request would hold its buffers forever, and through them the id that device removal waits
//! for. So each entry is in the [`EntryList`] of the QP that it was last posted on, from its first
//! post until it is dropped. Closing the QP flushes the entries of the list that are still in
//! flight. Posting an entry again on the same QP costs one comparison.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use kernel::{
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::wr::Ticket;
use crate::kapi::{
    bindings,
    ext::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        spinlock::{
            new_spinlock,
            SpinLock, //
        }, //
    }, //
};

/// The callback of ib_core for a completion.
pub(super) type Done = unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc);

/// The `ib_cqe` of an entry, and its links in the [`EntryList`] of a QP.
///
/// # Invariants
///
/// If `entries` is not null, it is a reference that the entry owns, as [`Arc::into_raw`] returns
/// it. Then the entry does not move, and is in that list, whose lock protects `previous` and
/// `next`. The other fields belong to the owner of the entry: the thread that posts it, until it is
/// in flight, and then its completion. `in_flight` is atomic because [`EntryList::flush`] reads it
/// in all entries of its list.
#[repr(C)]
struct Raw {
    cqe: bindings::ib_cqe,
    entries: *const EntryList,
    previous: *mut Raw,
    next: *mut Raw,
    /// The number of the chain that the entry is in flight for.
    ticket: Ticket,
    /// Whether the entry is in flight on the QP that `entries` belongs to.
    in_flight: Atomic<bool>,
}

/// A completion queue entry.
#[repr(transparent)]
pub(super) struct Entry(Opaque<Raw>);

// SAFETY: Every access to the fields follows the invariants of `Raw`.
unsafe impl Send for Entry {}
// SAFETY: A shared reference gives access to nothing. The functions that take a pointer say who may
// call them.
unsafe impl Sync for Entry {}

impl Entry {
    /// Creates an idle entry whose completions call `done`.
    pub(super) fn new(done: Option<Done>) -> Self {
        Entry(Opaque::new(Raw {
            cqe: bindings::ib_cqe { done },
            entries: core::ptr::null(),
            previous: core::ptr::null_mut(),
            next: core::ptr::null_mut(),
            ticket: Ticket { qp: 0, post: 0 },
            in_flight: Atomic::new(false),
        }))
    }

    /// Returns the `ib_cqe` for a Work Request. Its completion has the same pointer.
    pub(super) fn cqe(this: *mut Entry) -> *mut bindings::ib_cqe {
        // CAST: The `ib_cqe` is the first field of the entry, and its wrapper is transparent.
        this.cast()
    }

    /// Marks the entry as in flight on the QP whose list `entries` is. Returns `false` if it is in
    /// flight already, which means that a driver has completed an earlier post twice.
    ///
    /// # Safety
    ///
    /// `this` must point to an entry, which must not move any more. The caller must own it.
    #[inline]
    pub(super) unsafe fn start(this: *mut Entry, entries: &Arc<EntryList>, ticket: Ticket) -> bool {
        let raw = this.cast::<Raw>();
        // SAFETY: `this` points to an entry by this function's contract. `in_flight` is atomic.
        let in_flight = unsafe { &(*raw).in_flight };
        if in_flight.load(Relaxed) {
            return false;
        }
        // SAFETY: The caller owns the entry, and with it these fields, by the invariant of `Raw`.
        let known = unsafe {
            (*raw).ticket = ticket;
            (*raw).entries
        };
        if known != Arc::as_ptr(entries) {
            // SAFETY: The caller owns the entry, which stays where it is.
            unsafe { EntryList::take_over(entries, raw) };
        }
        // Last, so that the list of an earlier QP does not show the entry in flight.
        in_flight.store(true, Release);
        true
    }

    /// Sets the callback for the completion of an entry that was started.
    ///
    /// # Safety
    ///
    /// `this` must point to an entry that the caller has started and not posted yet.
    pub(super) unsafe fn set_done(this: *mut Entry, done: Done) {
        // SAFETY: The entry is started and not posted by this function's contract, so only the
        // caller accesses its fields.
        unsafe { (*this.cast::<Raw>()).cqe.done = Some(done) };
    }

    /// Marks the entry as idle and returns the number of the chain. Returns `None` if the entry was
    /// idle, which means that the driver has completed it twice.
    ///
    /// # Safety
    ///
    /// `this` must point to an entry. The caller must be its completion, or have failed to post it.
    #[inline]
    pub(super) unsafe fn end(this: *mut Entry) -> Option<Ticket> {
        let raw = this.cast::<Raw>();
        // SAFETY: The entry is valid, and its fields belong to the caller, which is its completion
        // or has failed to post it, by this function's contract.
        unsafe {
            if !(*raw).in_flight.load(Acquire) {
                return None;
            }
            let ticket = (*raw).ticket;
            (*raw).in_flight.store(false, Release);
            Some(ticket)
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: The entry is being dropped, so only its list still refers to it.
        unsafe { EntryList::remove(self.0.get()) };
    }
}

/// The entries whose last post was on one QP.
#[pin_data]
pub(super) struct EntryList {
    #[pin]
    list: SpinLock<List>,
}

struct List {
    first: *mut Raw,
}

// SAFETY: The list is used under its lock.
unsafe impl Send for List {}

impl EntryList {
    /// Allocates an empty list.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Arc<Self>> {
        let first = core::ptr::null_mut();
        Arc::pin_init(
            pin_init!(EntryList {
                list <- new_spinlock!(List { first }, "EntryList::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Moves an entry from the list it is in, if any, to this one.
    ///
    /// # Safety
    ///
    /// The caller must own the entry's fields, and the entry must not move any more.
    #[cold]
    unsafe fn take_over(this: &Arc<Self>, raw: *mut Raw) {
        // SAFETY: The caller owns the fields of the entry, which does not move, by this function's
        // contract. After `remove` it is in no list.
        unsafe {
            EntryList::remove(raw);
            EntryList::add(this, raw);
        }
    }

    /// Adds an entry.
    ///
    /// # Safety
    ///
    /// The entry must not be in a list, must not move any more, and only the caller may access its
    /// fields.
    unsafe fn add(this: &Arc<Self>, raw: *mut Raw) {
        let mut list = this.list.lock();
        // SAFETY: The caller has exclusive access to the entry by this function's contract. Members
        // of the list are valid under its lock.
        unsafe {
            (*raw).previous = core::ptr::null_mut();
            (*raw).next = list.first;
            if !list.first.is_null() {
                (*list.first).previous = raw;
            }
            list.first = raw;
            // INVARIANT: The entry is in the list.
            (*raw).entries = Arc::into_raw(this.clone());
        }
    }

    /// Removes an entry from the list that it is in, if any.
    ///
    /// # Safety
    ///
    /// The caller must own the entry's fields.
    unsafe fn remove(raw: *mut Raw) {
        // SAFETY: The caller owns the fields by this function's contract. By the invariant of
        // `Raw` the pointer is null or a reference of the entry, which is taken from it here.
        let entries = unsafe {
            let entries = core::mem::replace(&mut (*raw).entries, core::ptr::null());
            if entries.is_null() {
                return;
            }
            Arc::from_raw(entries)
        };
        let mut list = entries.list.lock();
        // SAFETY: By the invariant of `Raw` it is in this list, whose members are valid under its
        // lock.
        unsafe {
            let (previous, next) = ((*raw).previous, (*raw).next);
            if previous.is_null() {
                list.first = next;
            } else {
                (*previous).next = next;
            }
            if !next.is_null() {
                (*next).previous = previous;
            }
        }
        drop(list);
    }

    /// Returns an entry that is in flight, if there is one.
    fn in_flight(&self) -> Option<*mut Raw> {
        let list = self.list.lock();
        let mut raw = list.first;
        while !raw.is_null() {
            // SAFETY: Members are valid under the lock; `in_flight` is atomic.
            unsafe {
                if (*raw).in_flight.load(Acquire) {
                    return Some(raw);
                }
                raw = (*raw).next;
            }
        }
        None
    }

    /// Completes all entries in flight as flushed. Sleeps, because completions may sleep.
    ///
    /// # Safety
    ///
    /// All entries in flight must have been posted on the QP that `cq` belongs to, and nobody may
    /// post there or poll the CQ any more. The device must not use the memory of Work Requests in
    /// flight any more, since their owners may free it.
    pub(super) unsafe fn flush(&self, cq: *mut bindings::ib_cq) {
        while let Some(raw) = self.in_flight() {
            let mut wc = bindings::ib_wc {
                status: bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR,
                ..Default::default()
            };
            let cqe = raw.cast::<bindings::ib_cqe>();
            wc.__bindgen_anon_1.wr_cqe = core::mem::ManuallyDrop::new(cqe);
            // SAFETY: An entry in flight is valid until it completes, which it does below.
            let done = unsafe { (*cqe).done };
            let Some(done) = done else { return };
            // SAFETY: The entry was posted on the QP of `cq`, and no other completion of it can run
            // any more, by this function's contract.
            unsafe { done(cq, &mut wc) };
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
