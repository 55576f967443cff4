// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The differences between the kernels for which this source is built.
//!
//! All differences between kernels are in this file. No version number is tested: an item accepts
//! either of two types, relies on features that all kernels have, or depends on what `compat.mk`
//! finds in the kernel's sources. `clnt`, `svc` and `xdr` do not depend on the kernel.

use super::bindings;
use core::mem::transmute;
use kernel::types::Opaque;

#[expect(improper_ctypes, reason = "C made it, and only its address is taken")]
extern "C" {
    static __this_module: Opaque<bindings::module>;
}

/// Returns the C struct of this module.
///
/// `module!` defines a static variable for it in Linux 7.2, and an associated constant of the
/// module's type since 7.3.
pub(in crate::kapi) const fn this_module() -> *mut bindings::module {
    // Only the address is used; the struct is not accessed.
    (&raw const __this_module).cast_mut().cast()
}

/// `DMA_TO_DEVICE`.
///
/// `enum dma_data_direction` is an integer in the bindings of Linux 7.2, and a newtype since 7.3.
#[allow(
    clippy::useless_transmute,
    reason = "not useless where the enum is a newtype"
)]
#[cfg_attr(CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES, allow(unnecessary_transmutes))]
pub(in crate::kapi) const DMA_TO_DEVICE: bindings::dma_data_direction =
    // SAFETY: bindgen represents a C enum by an integer or by a transparent newtype of one. Both
    // accept any value of the enum, as this one is.
    unsafe { transmute::<u32, _>(bindings::RPCRDMA_SHIM_DMA_TO_DEVICE) };

/// `DMA_FROM_DEVICE`, see [`DMA_TO_DEVICE`].
#[allow(
    clippy::useless_transmute,
    reason = "not useless where the enum is a newtype"
)]
#[cfg_attr(CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES, allow(unnecessary_transmutes))]
pub(in crate::kapi) const DMA_FROM_DEVICE: bindings::dma_data_direction =
    // SAFETY: As an integer or a transparent newtype of one, the type accepts any value of the
    // enum.
    unsafe { transmute::<u32, _>(bindings::RPCRDMA_SHIM_DMA_FROM_DEVICE) };

/// A full memory barrier: orders all earlier memory accesses of this processor before all later
/// ones.
///
/// The function of the kernel crate takes no argument in Linux 7.2, and an ordering since 7.3.
#[inline]
pub(crate) fn smp_mb() {
    // SAFETY: A barrier may be called from any context.
    unsafe { bindings::smp_mb() };
}

/// Converts a limit of a device to a count. A negative limit becomes zero.
///
/// The limits in `struct ib_device_attr` are signed in Linux 7.2 and unsigned since 7.3.
pub(in crate::kapi) fn device_limit<T: TryInto<u32>>(limit: T) -> u32 {
    limit.try_into().unwrap_or(0)
}

/// Initialises `slot`.
///
/// This is a method of the initialiser in Linux 7.2, and a function since 7.3.
///
/// # Errors
///
/// Errors of `init`. `slot` is not initialised then.
///
/// # Safety
///
/// `slot` must be valid for writing a `T`, which must not move until it is dropped.
pub(in crate::kapi) unsafe fn pin_init_at<T, E>(
    slot: *mut T,
    init: impl pin_init::PinInit<T, E>,
) -> Result<(), E> {
    #[cfg(rpcrdma_raw_try_init)]
    {
        // SAFETY: `slot` is valid and stays in place by this function's contract.
        unsafe { pin_init::raw_try_init(slot, init) }
    }
    #[cfg(not(rpcrdma_raw_try_init))]
    {
        // SAFETY: `slot` is valid and stays in place by this function's contract.
        unsafe { init.__pinned_init(slot) }
    }
}

/// Returns the value of a module parameter.
///
/// `ModuleParamAccess::value` returns a reference in Linux 7.2, and the value since 7.3.
#[cfg(any(rpcrdma_kapi_test, rpcrdma_kunit))]
pub(crate) fn parameter(value: impl core::borrow::Borrow<u32>) -> u32 {
    *value.borrow()
}
