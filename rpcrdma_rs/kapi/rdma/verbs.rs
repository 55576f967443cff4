// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Verbs that are inline functions in C: a load and an indirect call.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::ffi::c_int;

use kernel::prelude::*;

use crate::kapi::bindings;

/// Posts Send Work Requests, as `ib_post_send` does. Returns 0 or a negative errno.
///
/// # Safety
///
/// The QP and the requests linked from `first` must be valid. The memory that the requests name
/// must stay valid until they complete.
#[inline]
pub(super) unsafe fn post_send(
    qp: *mut bindings::ib_qp,
    first: *const bindings::ib_send_wr,
    bad: &mut *const bindings::ib_send_wr,
) -> c_int {
    // SAFETY: The QP is valid by this function's contract, and so is its device.
    match unsafe { (*(*qp).device).ops.post_send } {
        // SAFETY: The driver's function, for its QP; the requests are valid by this function's
        // contract.
        Some(post) => unsafe { post(qp, first, bad) },
        None => EINVAL.to_errno(),
    }
}

/// Posts Receive Work Requests, as `ib_post_recv` does. Returns 0 or a negative errno.
///
/// # Safety
///
/// As for [`post_send`].
#[inline]
pub(super) unsafe fn post_recv(
    qp: *mut bindings::ib_qp,
    first: *const bindings::ib_recv_wr,
    bad: &mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: The QP is valid by this function's contract, and so is its device.
    match unsafe { (*(*qp).device).ops.post_recv } {
        // SAFETY: The driver's function, for its QP; the requests are valid by this function's
        // contract.
        Some(post) => unsafe { post(qp, first, bad) },
        None => EINVAL.to_errno(),
    }
}
