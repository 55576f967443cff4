// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Error codes that have a meaning to sunrpc and that `kernel` does not declare.
//!
//! C headers: [`include/linux/errno.h`](srctree/include/linux/errno.h),
//! [`include/uapi/asm-generic/errno.h`](srctree/include/uapi/asm-generic/errno.h)

use kernel::prelude::*;

use crate::kapi::bindings;

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $code:ident;)*) => {
        $(
            $(#[$doc])*
            pub(crate) fn $name() -> Error {
                // CAST: Error codes are below 4096.
                Error::from_errno(-(bindings::$code as i32))
            }
        )*
    };
}

errnos! {
    /// Address family not supported: neither IPv4 nor IPv6.
    eafnosupport = EAFNOSUPPORT;
    /// No buffer space: call again after a delay.
    enobufs = ENOBUFS;
    /// Not connected: connect, then call again.
    enotconn = ENOTCONN;
    /// No room in the congestion window: wait for it.
    ebadslt = EBADSLT;
    /// Protocol error.
    eproto = EPROTO;
    /// The network cannot be reached.
    enetunreach = ENETUNREACH;
    /// The host cannot be reached.
    ehostunreach = EHOSTUNREACH;
    /// The address, or all its ports, are in use.
    eaddrinuse = EADDRINUSE;
    /// The peer refused the connection.
    econnrefused = ECONNREFUSED;
    /// The connection was aborted.
    econnaborted = ECONNABORTED;
    /// The operation was cancelled.
    ecanceled = ECANCELED;
}

#[cfg(rpcrdma_kunit)]
mod kunit;
