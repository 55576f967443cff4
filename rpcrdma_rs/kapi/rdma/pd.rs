// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Protection Domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use kernel::{error::from_err_ptr, prelude::*, sync::Arc};

use super::{
    cm::{
        Handler,
        Id,
        IdInner, //
    },
    device::Device,
    owner_name, //
};
use crate::kapi::{
    bindings,
    ext::atomic::{
        Acquire,
        Atomic,
        Release, //
    }, //
};

/// The Protection Domain of one connection.
///
/// It has at most one QP, that of its id. Once that QP is stopped and drained, no peer reaches
/// memory registered in the PD.
///
/// # Invariants
///
/// `raw` is a PD of `device`, which `id` is bound to.
pub(crate) struct Pd {
    raw: *mut bindings::ib_pd,
    device: *mut bindings::ib_device,
    closed: Atomic<bool>,
    fenced: Atomic<bool>,
    id: Arc<IdInner>,
}

// SAFETY: ib_core allows the use of a PD on any thread.
unsafe impl Send for Pd {}
// SAFETY: ib_core counts the users of the C object atomically. The other fields are atomic or
// constant.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a PD on the device that `id` is bound to. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` if `id` is not bound to a device; `ENOMEM`; errors of the driver.
    pub(crate) fn new<H: Handler>(id: &Id<H>) -> Result<Arc<Pd>> {
        let device = id.device().ok_or(ENODEV)?;
        // SAFETY: The device is valid, as `id` is bound to it.
        let raw = unsafe { bindings::__ib_alloc_pd(device.as_raw(), 0, owner_name()) };
        let raw = from_err_ptr(raw)?;
        // INVARIANT: `raw` was allocated on that device. If the allocation of the `Arc` fails, the
        // drop of the `Pd` frees it.
        Ok(Arc::new(
            Pd {
                raw,
                device: device.as_raw(),
                closed: Atomic::new(false),
                fenced: Atomic::new(false),
                id: id.inner().clone(),
            },
            GFP_KERNEL,
        )?)
    }

    /// Returns the C object.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.raw
    }

    pub(super) fn id(&self) -> &Arc<IdInner> {
        &self.id
    }

    /// Returns the lkey for all local DMA memory, for SGEs.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: The PD is valid, and its key is constant.
        unsafe { (*self.raw).local_dma_lkey }
    }

    /// Returns the device that the PD belongs to.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: `id` holds a reference to its device.
        unsafe { Device::from_raw(self.device) }
    }

    /// Records that the PD's QP is closed, and whether the device has `stopped` it.
    ///
    /// # Safety
    ///
    /// Nobody may post on the QP any more, and the QP must be drained, as far as the device permits
    /// it. If `stopped`, no peer can access memory that is registered in the PD any more.
    pub(super) unsafe fn set_closed(&self, stopped: bool) {
        self.fenced.store(stopped, Release);
        self.closed.store(true, Release);
    }

    /// Returns whether the PD's QP is closed. Then no Work Request uses regions of the PD any more.
    /// If the device could not stop the QP, a peer may still use them until they are deregistered.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Returns whether the device has stopped the PD's QP, so that no peer can access memory that
    /// is registered in the PD.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Acquire)
    }
}

impl Drop for Pd {
    /// Sleeps.
    fn drop(&mut self) {
        // SAFETY: `self` owns the PD. Objects in the PD hold a reference to `self`, so none is
        // left.
        let ret = unsafe { bindings::ib_dealloc_pd_user(self.raw, core::ptr::null_mut()) };
        // If the driver refuses, the PD leaks.
        kernel::warn_on!(ret != 0);
    }
}
