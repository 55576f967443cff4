// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The addresses of a transport, which are set before sunrpc sees it.
//!
//! C header: [`include/linux/sunrpc/svc_xprt.h`](srctree/include/linux/sunrpc/svc_xprt.h)

use super::{
    bindings,
    Inner,
    SockAddr,
    SvcXprt, //
};
use core::ptr::addr_of_mut;
use kernel::prelude::*;

impl<T> Inner<T> {
    /// Records the local address.
    pub(super) fn set_local_addr(&self, addr: &SockAddr) {
        // SAFETY: The address is valid. Callers do this before sunrpc sees the transport, see
        // `Class::create` and `Listener::accept`.
        unsafe {
            bindings::rpcrdma_shim_svc_xprt_set_local(self.xprt.get(), addr.as_ptr(), addr.len())
        };
    }

    /// Records the address of the peer and its printable form, with port 0.
    ///
    /// The port of an RDMA peer is arbitrary. With a fixed port the duplicate request cache
    /// recognises the peer after a reconnect.
    pub(super) fn set_remote_addr(&self, addr: &SockAddr) {
        let mut addr = *addr;
        addr.set_port(0);
        let xprt = self.xprt.get();
        // SAFETY: An address is not larger than a `sockaddr_storage`. Callers do this before sunrpc
        // sees the transport.
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
}

impl<T: Send + Sync + 'static> SvcXprt<T> {
    /// Records the local address. Must be called before sunrpc sees the transport, that is, in
    /// `Class::create` or `Listener::accept`.
    pub(crate) fn set_local_addr(&self, addr: &SockAddr) {
        self.0.set_local_addr(addr);
    }

    /// Sets the printable form of the peer of an endpoint that has none. Must be called before
    /// sunrpc sees the transport.
    pub(crate) fn set_remote_name(&self, name: &CStr) {
        let text = name.to_bytes_with_nul();
        let xprt = self.as_raw();
        // SAFETY: The length is limited to the size of the buffer without the terminator. Callers
        // do this before sunrpc sees the transport.
        unsafe {
            let buf = addr_of_mut!((*xprt).xpt_remotebuf);
            let len = text.len().min((*buf).len() - 1);
            core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), len);
            (*buf)[len] = 0;
        }
    }
}
