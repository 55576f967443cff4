// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The module's pure code, compiled for the build machine.
//!
//! The files are the module's own, under the same `crate::` paths. This crate exports only what
//! the fuzz targets need: the properties in [`checks`] and the messages in [`vectors`].

// Items that only the rest of the module uses look dead here; the module's own build checks them.
#![allow(dead_code)]

#[path = "../../../xdr/mod.rs"]
mod xdr;

/// The pure files of the client.
#[cfg(test)]
#[path = "../../../clnt"]
mod clnt {
    mod backoff;
    mod credits;
    mod send_queue;
    mod state;
}

/// The pure files of the server.
#[cfg(test)]
#[path = "../../../svc"]
mod svc {
    mod limits;
    mod order;
    mod payloads;
    mod phase;
    mod sq_accounting;
}

pub mod checks;
pub mod checks_version2;
mod decoded;
pub mod oracle;
pub mod vectors;

#[cfg(test)]
mod tests;
