// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Safe abstractions of sunrpc: messages, client and server transports, requests, service threads.
//!
//! C headers: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h),
//! [`include/linux/sunrpc/svc_xprt.h`](srctree/include/linux/sunrpc/svc_xprt.h)

pub(crate) mod backchannel;
pub(crate) mod class;
mod clock;
pub(crate) mod link;
pub(crate) mod ops;
pub(crate) mod rqst;
pub(crate) mod send_lock;
pub(crate) mod svc;
pub(crate) mod svc_bc;
pub(crate) mod svc_ops;
pub(crate) mod svc_reply;
pub(crate) mod svc_rqst;
mod text;
pub(crate) mod xdr_buf;
pub(crate) mod xprt;
mod xprt_lock;

pub(crate) use super::ext::{
    addr,
    errno,
    net, //
};
