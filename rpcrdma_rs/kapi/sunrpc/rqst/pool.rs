// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The slots of a transport that are not in use.
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use core::{
    pin::Pin,
    ptr::NonNull, //
};

use kernel::prelude::*;

use super::{
    super::ops::XprtOps,
    rpc_buf::RpcBuf,
    Slot, //
};
use crate::kapi::{
    bindings,
    ext::spinlock::{
        new_spinlock,
        SpinLock, //
    }, //
};

/// Clears a request, as sunrpc requires before it is used again.
///
/// The request has about half a KiB. It is cleared word by word, because a string instruction takes
/// long to start.
///
/// # Safety
///
/// Only the caller may access the request.
unsafe fn clear(rqst: *mut bindings::rpc_rqst) {
    const WORDS: usize = size_of::<bindings::rpc_rqst>() / size_of::<u64>();
    const {
        assert!(size_of::<bindings::rpc_rqst>() % size_of::<u64>() == 0);
        assert!(align_of::<bindings::rpc_rqst>() >= align_of::<u64>());
    }
    // CAST: A request consists of `WORDS` aligned words.
    let words = rqst.cast::<u64>();
    for i in 0..WORDS {
        // SAFETY: The word is inside the request, which only the caller accesses by this function's
        // contract; all zero is a valid request. The write is volatile, because the compiler would
        // otherwise turn the loop into a string instruction.
        unsafe { words.add(i).write_volatile(0) };
    }
}

/// The number of free slots that keep their buffers. The RPCs that free memory by writing pages
/// back need some.
const KEPT: usize = 4;

/// The slots of a transport, and a list of the free ones.
#[pin_data]
pub(in crate::kapi::sunrpc) struct SlotPool<T: XprtOps> {
    all: KVVec<Pin<KBox<Slot<T>>>>,
    #[pin]
    free: SpinLock<FreeSlots<T>>,
}

/// The first of the free slots, which are linked by `next`.
///
/// # Invariants
///
/// Each is a slot of the pool that is not in use.
struct FreeSlots<T: XprtOps>(Option<NonNull<Slot<T>>>);

// SAFETY: The pointers are to slots of the pool, which are `Send` and `Sync`.
unsafe impl<T: XprtOps> Send for FreeSlots<T> {}

impl<T: XprtOps> SlotPool<T> {
    /// Creates a pool of `count` free slots. The first ones have message buffers.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(in crate::kapi::sunrpc) fn new(count: usize) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let mut all = KVVec::with_capacity(count, GFP_KERNEL)?;
            let mut first = None;
            for _ in 0..count {
                let slot = KBox::pin_init(Slot::<T>::new(), GFP_KERNEL)?;
                // SAFETY: The slot was created above and is not shared yet.
                unsafe {
                    if count - all.len() <= KEPT {
                        RpcBuf::fill(&mut *slot.call.get(), &mut *slot.reply.get())?;
                    }
                    *slot.next.get() = first;
                }
                first = Some(NonNull::from(&*slot));
                all.push_within_capacity(slot).map_err(|_| ENOMEM)?;
            }
            Ok(try_pin_init!(Self {
                all,
                free <- new_spinlock!(FreeSlots(first)),
            }? Error))
        })
    }

    /// Removes a free slot from the pool and returns it.
    pub(in crate::kapi::sunrpc) fn pop(&self) -> Option<&Slot<T>> {
        let mut free = self.free.lock();
        let slot = free.0?;
        // SAFETY: Free slots are slots of `all`, which stay; `next` belongs to the pool, and we
        // hold its lock.
        unsafe {
            free.0 = (*slot.as_ref().next.get()).take();
            Some(&*slot.as_ptr())
        }
    }

    /// Returns a slot to the pool, unless `taken` passes it to a waiting task.
    ///
    /// `taken` is called under the lock of the pool. A task that finds the pool empty begins to
    /// wait, and then checks the pool again. So either `taken` finds the task, or the task finds
    /// the slot.
    ///
    /// # Safety
    ///
    /// `slot` must be of this pool, and must not be in use.
    pub(in crate::kapi::sunrpc) unsafe fn push_unless(
        &self,
        slot: &Slot<T>,
        taken: impl FnOnce() -> bool,
    ) {
        let mut free = self.free.lock();
        if taken() {
            return;
        }
        // SAFETY: The slot is not in use, by this function's contract.
        unsafe { clear(slot.as_rqst()) };
        // SAFETY: `next` belongs to the pool, and we hold its lock.
        unsafe { *slot.next.get() = free.0 };
        free.0 = Some(NonNull::from(slot));
    }

    /// Frees the message buffers of free slots, except for those of the first slots, which are used
    /// next.
    pub(in crate::kapi::sunrpc) fn trim(&self) {
        let free = self.free.lock();
        let mut next = free.0;
        let mut kept = 0;
        while let Some(slot) = next {
            // SAFETY: Free slots are slots of `all`, which stay. `next` and the buffers of a free
            // slot belong to the pool, whose lock we hold.
            unsafe {
                if kept < KEPT {
                    kept += 1;
                } else {
                    *slot.as_ref().call.get() = RpcBuf::EMPTY;
                    *slot.as_ref().reply.get() = RpcBuf::EMPTY;
                }
                next = *slot.as_ref().next.get();
            }
        }
    }

    /// Returns all slots, free or not.
    pub(in crate::kapi::sunrpc) fn iter(&self) -> impl Iterator<Item = &Slot<T>> {
        self.all.iter().map(|slot| &**slot)
    }
}
