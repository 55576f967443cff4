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
/// Only borrowed, from an object that holds a reference to the device: an id bound to it, or a PD
/// or QP on it.
///
/// # Invariants
///
/// While it is borrowed, the device is registered, or a reference to it exists.
#[repr(transparent)]
pub(crate) struct Device(Opaque<bindings::ib_device>);

// SAFETY: ib_core allows the use of a device on any thread.
unsafe impl Send for Device {}
// SAFETY: Shared access reads fields that are constant while the device is registered, and copies
// the name with volatile reads.
unsafe impl Sync for Device {}

/// The limits and capabilities of a device as the driver reports them; a negative limit is zero.
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttrs {
    /// The Work Requests in one queue.
    pub(crate) max_qp_wr: u32,
    /// The entries of a Completion Queue.
    pub(crate) max_cqe: u32,
    /// The SGEs of a Send.
    pub(crate) max_send_sge: u32,
    /// The SGEs of an RDMA Read.
    pub(crate) max_sge_rd: u32,
    /// The pages of one fast registration.
    pub(crate) max_fast_reg_pages: u32,
    /// The RDMA Reads that a peer may have outstanding on a QP.
    pub(crate) max_qp_rd_atom: u32,
    /// The RDMA Reads that a QP may have outstanding.
    pub(crate) max_qp_init_rd_atom: u32,
    /// Whether it supports fast registration, Local Invalidate and Send With Invalidate.
    pub(crate) mem_mgt_extensions: bool,
    /// Whether a registration may have gaps between its pages.
    pub(crate) sg_gaps: bool,
}

/// The size of a device's name, with the zero byte at its end.
const NAME_MAX: usize = bindings::IB_DEVICE_NAME_MAX as usize;

/// A copy of a device's name.
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
        // There always is a zero byte, by the type's invariant.
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
    /// `ptr` must point to a device that stays registered, or to which a reference exists, during
    /// `'a`.
    pub(in crate::kapi) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_device) -> &'a Device {
        // SAFETY: The device is valid during `'a` by this function's contract.
        // CAST: `Device` is transparent over `ib_device`.
        unsafe { &*ptr.cast() }
    }

    /// Returns the C object.
    pub(in crate::kapi) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// Returns the device's limits and capabilities.
    pub(crate) fn attrs(&self) -> DeviceAttrs {
        // SAFETY: The device is valid. Its attributes are constant once it is registered.
        let a = unsafe { &(*self.as_raw()).attrs };
        // CAST: A flag, which is positive.
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

    /// Returns the device's name, such as `rxe0`. If the device is renamed at the same time, the
    /// result may be a mixture of both names.
    pub(crate) fn name(&self) -> DeviceName {
        let mut bytes = [0; NAME_MAX];
        // SAFETY: The device is valid. This creates no reference to the name, which a rename
        // overwrites.
        let name = unsafe { (&raw const (*self.as_raw()).name).cast::<u8>() };
        // The last byte stays zero.
        for (i, byte) in bytes.iter_mut().enumerate().take(NAME_MAX - 1) {
            // SAFETY: The name has `NAME_MAX` bytes.
            *byte = unsafe { name.add(i).read_volatile() };
        }
        DeviceName { bytes }
    }

    /// Returns whether DMA addresses of the device are kernel addresses (rxe, siw), as
    /// `ib_uses_virt_dma` does. Then nothing has to be synced or unmapped.
    #[inline]
    pub(super) fn uses_virt_dma(&self) -> bool {
        // SAFETY: The device is valid, and the pointer constant while it is registered.
        cfg!(CONFIG_INFINIBAND_VIRT_DMA) && unsafe { (*self.as_raw()).dma_device.is_null() }
    }

    /// Returns the device's NUMA node, which is negative if it has none.
    pub(crate) fn numa_node(&self) -> i32 {
        // SAFETY: The device is valid.
        unsafe { bindings::rpcrdma_shim_ibdev_to_node(self.as_raw()) }
    }
}

/// A port of a device.
///
/// # Invariants
///
/// The device has a port with this number.
#[derive(Clone, Copy)]
pub(crate) struct Port<'a> {
    device: &'a Device,
    number: u32,
}

impl<'a> Port<'a> {
    /// Creates a port of `device`.
    ///
    /// # Safety
    ///
    /// `number` must be the port of an id that is bound to `device`.
    pub(super) unsafe fn new(device: &'a Device, number: u32) -> Self {
        // INVARIANT: An id can only be bound to an existing port, so `device` has it.
        Port { device, number }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &'a Device {
        self.device
    }

    /// Returns whether the port uses iWARP, where RDMA Reads need registered memory.
    pub(crate) fn iwarp(&self) -> bool {
        // SAFETY: The device is valid and has the port by the type's invariant.
        unsafe { bindings::rpcrdma_shim_rdma_protocol_iwarp(self.device.as_raw(), self.number) }
    }

    /// Returns the number of memory regions that rdma_rw needs for a payload of `pages` pages.
    pub(crate) fn rw_mr_factor(&self, pages: u32) -> u32 {
        // SAFETY: The device is valid and has the port by the type's invariant.
        unsafe { bindings::rdma_rw_mr_factor(self.device.as_raw(), self.number, pages) }
    }

    /// Returns the largest number of Send Queue entries that `contexts` rdma_rw contexts can need.
    pub(crate) fn rw_max_send_wr(&self, contexts: u32) -> u32 {
        // SAFETY: The device is valid and has the port by the type's invariant.
        unsafe { bindings::rdma_rw_max_send_wr(self.device.as_raw(), self.number, contexts, 0) }
    }
}
