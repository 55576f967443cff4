// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! sunrpc: messages, transports, service threads.

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

pub(crate) use super::ext::{
    addr,
    errno,
    net, //
};
