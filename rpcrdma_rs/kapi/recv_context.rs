// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A Receive as the context of the Call that it received: the service decodes a Call that came
//! inline from the Receive's own buffer.

use core::ptr::NonNull;

use kernel::ffi;

use super::{
    rdma::recv::{
        RecvBox,
        RecvBuf, //
    },
    sunrpc::{
        svc_reply::Lent,
        svc_rqst::{
            CallContext,
            CallData, //
        }, //
    }, //
};

// SAFETY: The buffer is an allocation of its own, apart from the box and its data, and is written
// by Receives, and by the service that has the Call; a Receive is posted no earlier than the box
// is taken back.
unsafe impl<S: Send + 'static> CallContext for RecvBox<CallData<S>> {
    type State = S;

    fn into_ptr(self) -> *mut ffi::c_void {
        self.into_raw().cast()
    }

    unsafe fn from_ptr(ptr: *mut ffi::c_void) -> Self {
        // SAFETY: From `into_ptr`, which gives no null, and taken back once by the requirement.
        unsafe { RecvBox::from_raw(NonNull::new_unchecked(ptr.cast::<RecvBuf<CallData<S>>>())) }
    }

    fn bytes(&self) -> &[u8] {
        RecvBuf::bytes(self)
    }

    fn parts_mut(&mut self) -> (&mut Lent, &mut S) {
        let data = self.data_mut();
        (&mut data.lent, &mut data.state)
    }
}
