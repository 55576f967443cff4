// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A Receive as the context of the Call that it received: the service decodes an inline Call in the
//! Receive's own buffer.

use core::ptr::NonNull;

use kernel::ffi;

use super::{
    rdma::recv::{
        RecvBox,
        RecvBuf, //
    },
    sunrpc::{
        svc_reply::HeldPages,
        svc_rqst::{
            CallContext,
            CallData, //
        }, //
    }, //
};

// SAFETY: The buffer is a separate allocation, apart from the box and its data. Only Receives and
// the service that has the Call write to it, and a Receive is not posted before `from_ptr` has
// returned the box.
unsafe impl<S: Send + 'static> CallContext for RecvBox<CallData<S>> {
    type State = S;

    fn into_ptr(self) -> *mut ffi::c_void {
        self.into_raw().cast()
    }

    unsafe fn from_ptr(ptr: *mut ffi::c_void) -> Self {
        // SAFETY: `ptr` comes from `into_ptr`, which does not return null, and is converted back
        // once, by this function's contract.
        unsafe { RecvBox::from_raw(NonNull::new_unchecked(ptr.cast::<RecvBuf<CallData<S>>>())) }
    }

    fn bytes(&self) -> &[u8] {
        RecvBuf::bytes(self)
    }

    fn parts_mut(&mut self) -> (&mut HeldPages, &mut S) {
        let data = self.data_mut();
        (&mut data.held, &mut data.state)
    }
}
