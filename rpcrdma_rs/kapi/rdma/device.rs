// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RDMA devices and their limits.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::ops::Deref;

use kernel::{
    fmt,
    str::CStr,
    types::Opaque, //
};

use crate::kapi::{
    bindings,
    compat::device_limit, //
};

/// An RDMA device (`struct ib_device`).
///
/// Only ever borrowed from something that keeps the device: an id bound to it, a PD or a QP.
///
/// # Invariants
///
/// The device is registered, or kept by a reference, as long as it is borrowed.
#[repr(transparent)]
pub(crate) struct Device(Opaque<bindings::ib_device>);

// SAFETY: ib_core's devices are used from every thread; what we read of them is constant
// while the device is registered.
unsafe impl Send for Device {}
// SAFETY: Shared access reads what is constant, and the name byte by byte.
unsafe impl Sync for Device {}

/// What a device can do. All values are as the driver reports them, never negative.
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttrs {
    /// Work Requests in one queue.
    pub(crate) max_qp_wr: u32,
    /// Entries of a Completion Queue.
    pub(crate) max_cqe: u32,
    /// SGEs of a Send.
    pub(crate) max_send_sge: u32,
    /// SGEs of an RDMA Read.
    pub(crate) max_sge_rd: u32,
    /// Pages of one fast registration.
    pub(crate) max_fast_reg_pages: u32,
    /// RDMA Reads that a QP answers at a time.
    pub(crate) max_qp_rd_atom: u32,
    /// RDMA Reads that a QP starts at a time.
    pub(crate) max_qp_init_rd_atom: u32,
    /// Whether it has fast registration, Local Invalidate and Send With Invalidate.
    pub(crate) mem_mgt_extensions: bool,
    /// Whether a registration may have gaps between its pages.
    pub(crate) sg_gaps: bool,
}

/// The room for a device's name, with the zero byte at its end.
const NAME_MAX: usize = bindings::IB_DEVICE_NAME_MAX as usize;

/// The name of a device, as it was.
///
/// # Invariants
///
/// The last byte is zero.
pub(crate) struct DeviceName {
    bytes: [u8; NAME_MAX],
}

impl Deref for DeviceName {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        // There is a zero byte by the type's invariant.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl Device {
    /// Borrows the device at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` must point to a device that stays registered, or is at least kept by a reference,
    /// during `'a`.
    pub(in crate::kapi) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_device) -> &'a Device {
        // SAFETY: By this function's contract. CAST: The type is transparent.
        unsafe { &*ptr.cast() }
    }

    /// Returns the device as C sees it.
    pub(in crate::kapi) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// Returns what the device can do.
    pub(crate) fn attrs(&self) -> DeviceAttrs {
        // SAFETY: The device is valid; its attributes are constant once it is registered.
        let a = unsafe { &(*self.as_raw()).attrs };
        // CAST: Flags of 64 bits at most.
        let cap = bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64;
        let gaps = u64::from(bindings::ib_kernel_cap_flags_IBK_SG_GAPS_REG);

        DeviceAttrs {
            max_qp_wr: device_limit(a.max_qp_wr),
            max_cqe: device_limit(a.max_cqe),
            max_send_sge: device_limit(a.max_send_sge),
            max_sge_rd: device_limit(a.max_sge_rd),
            max_fast_reg_pages: a.max_fast_reg_page_list_len,
            max_qp_rd_atom: device_limit(a.max_qp_rd_atom),
            max_qp_init_rd_atom: device_limit(a.max_qp_init_rd_atom),
            mem_mgt_extensions: a.device_cap_flags & cap != 0,
            sg_gaps: a.kernel_cap_flags & gaps != 0,
        }
    }

    /// Returns the device's name, such as `rxe0`. If it is renamed at this moment, the name may be
    /// a mixture of both.
    pub(crate) fn name(&self) -> DeviceName {
        let mut bytes = [0; NAME_MAX];
        // SAFETY: The device is valid. A renaming writes to the name, so no reference is made
        // to it.
        let name = unsafe { (&raw const (*self.as_raw()).name).cast::<u8>() };
        // The last byte stays zero.
        for (i, byte) in bytes.iter_mut().enumerate().take(NAME_MAX - 1) {
            // SAFETY: The name has that many bytes.
            *byte = unsafe { name.add(i).read_volatile() };
        }
        DeviceName { bytes }
    }

    /// Returns the NUMA node near the device, negative if there is none.
    pub(crate) fn numa_node(&self) -> i32 {
        // SAFETY: The device is valid.
        unsafe { bindings::rpcrdma_shim_ibdev_to_node(self.as_raw()) }
    }
}

/// A port of a device.
///
/// # Invariants
///
/// The device has a port of that number.
#[derive(Clone, Copy)]
pub(crate) struct Port<'a> {
    device: &'a Device,
    number: u32,
}

impl<'a> Port<'a> {
    /// Names a port.
    ///
    /// # Safety
    ///
    /// `number` must be the port of an id that is bound to `device`.
    pub(super) unsafe fn new(device: &'a Device, number: u32) -> Self {
        // INVARIANT: By this function's contract.
        Port { device, number }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &'a Device {
        self.device
    }

    /// Returns the number, for C.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether it speaks iWARP, where RDMA Reads need registered memory.
    pub(crate) fn iwarp(&self) -> bool {
        // SAFETY: The device is valid and has the port.
        unsafe { bindings::rpcrdma_shim_rdma_protocol_iwarp(self.device.as_raw(), self.number) }
    }

    /// Returns how many rdma_rw contexts a transfer of `pages` pages takes at most.
    pub(crate) fn rw_mr_factor(&self, pages: u32) -> u32 {
        // SAFETY: The device is valid and has the port by the type's invariant.
        unsafe { bindings::rdma_rw_mr_factor(self.device.as_raw(), self.number, pages) }
    }

    /// Returns how many Send Queue entries `contexts` rdma_rw contexts take at most.
    pub(crate) fn rw_max_send_wr(&self, contexts: u32) -> u32 {
        // SAFETY: The device is valid and has the port by the type's invariant.
        unsafe { bindings::rdma_rw_max_send_wr(self.device.as_raw(), self.number, contexts, 0) }
    }
}
