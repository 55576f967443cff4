// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Bindings of sunrpc, ib_core, rdma_cm and our own C, made by `bindgen` at build time.
//!
//! Private to `kapi`: nothing outside may name a C item. Everything of `kernel::bindings`
//! is visible here as well, and is the same type. See `bindings/bindgen.mk`.

#![cfg_attr(not(CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES), allow(unknown_lints))]
#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnecessary_transmutes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    reason = "machine-made code"
)]

pub use kernel::bindings::*;
use kernel::ffi;
use pin_init::{
    MaybeZeroable,
    Zeroable, //
};

include!("bindings/bindings_generated.rs");

// SAFETY: The type is a newtype around `Storage`.
unsafe impl<Storage> Zeroable for __BindgenBitfieldUnit<Storage> where Storage: Zeroable {}

// SAFETY: The type has no size and no data.
unsafe impl<T> Zeroable for __IncompleteArrayField<T> {}
