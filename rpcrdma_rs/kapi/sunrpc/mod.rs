// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! sunrpc: addresses, messages, transports.

pub(crate) mod addr;
pub(crate) mod backchannel;
pub(crate) mod class;
mod clock;
pub(crate) mod errno;
pub(crate) mod link;
pub(crate) mod net;
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
