// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What differs between the kernels that this source is built for.
//!
//! Every difference between kernels is in this file. No version number decides: an item takes
//! either of two types, relies on what all of them have, or depends on what `compat.mk` finds in
//! the kernel's sources. `clnt`, `svc` and `xdr` know of no difference.

use super::bindings;
use core::mem::transmute;
use kernel::types::Opaque;

#[expect(improper_ctypes, reason = "C made it, and only its address is taken")]
extern "C" {
    static __this_module: Opaque<bindings::module>;
}

/// Returns our module, for C.
///
/// What `module!` makes of it is a static in Linux 7.2 and an associated constant of the
/// module's type since 7.3.
pub(in crate::kapi) const fn this_module() -> *mut bindings::module {
    // Nothing of it is read or written.
    (&raw const __this_module).cast_mut().cast()
}

/// `DMA_TO_DEVICE`.
///
/// `enum dma_data_direction` is an integer for Rust in Linux 7.2 and a newtype of one since 7.3.
#[allow(
    clippy::useless_transmute,
    reason = "not useless where the enum is a newtype"
)]
#[cfg_attr(CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES, allow(unnecessary_transmutes))]
pub(in crate::kapi) const DMA_TO_DEVICE: bindings::dma_data_direction =
    // SAFETY: bindgen makes of a C enum its integer or a transparent newtype of that; both take
    // every value, and this one is a value of the enum.
    unsafe { transmute::<u32, _>(bindings::RPCRDMA_SHIM_DMA_TO_DEVICE) };

/// `DMA_FROM_DEVICE`, see [`DMA_TO_DEVICE`].
#[allow(
    clippy::useless_transmute,
    reason = "not useless where the enum is a newtype"
)]
#[cfg_attr(CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES, allow(unnecessary_transmutes))]
pub(in crate::kapi) const DMA_FROM_DEVICE: bindings::dma_data_direction =
    // SAFETY: As for `DMA_TO_DEVICE`: a value of the enum, as its integer or a newtype of that.
    unsafe { transmute::<u32, _>(bindings::RPCRDMA_SHIM_DMA_FROM_DEVICE) };

/// Orders all memory accesses before it, of this processor, before those after it.
///
/// The kernel crate's own takes no argument in Linux 7.2, and an ordering since 7.3.
#[inline]
pub(crate) fn smp_mb() {
    // SAFETY: A barrier may be called from any context.
    unsafe { bindings::smp_mb() };
}

/// A limit of a device as a count; one that is negative allows nothing.
///
/// The limits in `struct ib_device_attr` are signed in Linux 7.2 and unsigned since 7.3.
pub(in crate::kapi) fn device_limit<T: TryInto<u32>>(limit: T) -> u32 {
    limit.try_into().unwrap_or(0)
}

/// Initialises `slot`.
///
/// A method of the initialiser in Linux 7.2, and a function since 7.3.
///
/// # Errors
///
/// Those of `init`; `slot` is not initialised then.
///
/// # Safety
///
/// `slot` has room for a `T`, and what becomes of it stays where it is until it is dropped.
pub(in crate::kapi) unsafe fn pin_init_at<T, E>(
    slot: *mut T,
    init: impl pin_init::PinInit<T, E>,
) -> Result<(), E> {
    #[cfg(rpcrdma_raw_try_init)]
    {
        // SAFETY: By this function's requirements, which are those of both.
        unsafe { pin_init::raw_try_init(slot, init) }
    }
    #[cfg(not(rpcrdma_raw_try_init))]
    {
        // SAFETY: By this function's requirements, which are those of both.
        unsafe { init.__pinned_init(slot) }
    }
}

/// The value of a module's parameter.
///
/// `ModuleParamAccess::value` lends it in Linux 7.2, and returns it since 7.3.
#[cfg(any(rpcrdma_kapi_test, rpcrdma_kunit))]
pub(crate) fn parameter(value: impl core::borrow::Borrow<u32>) -> u32 {
    *value.borrow()
}
