// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The addresses of a transport, which are set before sunrpc sees it.
//!
//! C header: [`include/linux/sunrpc/svc_xprt.h`](srctree/include/linux/sunrpc/svc_xprt.h)

use super::{
    bindings,
    Inner,
    SockAddr, //
};
use core::ptr::addr_of_mut;
use kernel::prelude::*;

impl<T> Inner<T> {
    /// Records the local address.
    ///
    /// # Safety
    ///
    /// sunrpc must not see the transport yet.
    pub(super) unsafe fn set_local_addr(&self, addr: &SockAddr) {
        // SAFETY: The address is valid, and nobody reads the field, by this function's contract.
        unsafe {
            bindings::rpcrdma_shim_svc_xprt_set_local(self.xprt.get(), addr.as_ptr(), addr.len())
        };
    }

    /// Records the address of the peer and its printable form, with port 0.
    ///
    /// The port of an RDMA peer is arbitrary. With a fixed port the duplicate request cache
    /// recognises the peer after a reconnect.
    ///
    /// # Safety
    ///
    /// sunrpc must not see the transport yet.
    pub(super) unsafe fn set_remote_addr(&self, addr: &SockAddr) {
        let mut addr = *addr;
        addr.set_port(0);
        let xprt = self.xprt.get();
        // SAFETY: An address is not larger than a `sockaddr_storage`. Nobody reads the fields, by
        // this function's contract.
        unsafe {
            core::ptr::copy_nonoverlapping(
                addr.as_ptr().cast::<u8>(),
                addr_of_mut!((*xprt).xpt_remote).cast::<u8>(),
                addr.len(),
            );
            (*xprt).xpt_remotelen = addr.len();
            let text = addr_of_mut!((*xprt).xpt_remotebuf);
            bindings::rpc_ntop(addr.as_ptr(), text.cast(), (*text).len());
        }
    }

    /// Sets the printable form of the peer of an endpoint that has none.
    ///
    /// # Safety
    ///
    /// sunrpc must not see the transport yet.
    pub(super) unsafe fn set_remote_name(&self, name: &CStr) {
        let text = name.to_bytes_with_nul();
        let xprt = self.xprt.get();
        // SAFETY: The length is limited to the size of the buffer without the terminator. Nobody
        // reads the buffer, by this function's contract.
        unsafe {
            let buf = addr_of_mut!((*xprt).xpt_remotebuf);
            let len = text.len().min((*buf).len() - 1);
            core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), len);
            (*buf)[len] = 0;
        }
    }
}
