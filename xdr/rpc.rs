// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The offset of the arguments in an RPC Call (RFC 5531, section 9; RFC 2203, section 5).
//!
//! ```text
//!   XID CALL 2 prog vers proc | flavor length credential | flavor length verifier | arguments
//! ```
//!
//! The code that checks the credential expects everything before the arguments to be contiguous.

use super::{
    cursor::Reader,
    error::{
        DecodeError,
        Item, //
    },
    units::{
        len_to_u32,
        padded_len,
        u32_to_usize, //
    },
};

/// Octets of the six words before the credential.
const FIXED: usize = 24;
const RPCSEC_GSS: u32 = 6;
/// The RPCSEC_GSS procedure of an ordinary Call, and the service that protects only the RPC header.
const GSS_DATA: u32 = 0;
const GSS_NONE: u32 = 1;

/// The arguments of an RPC Call that are plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Octets of the Call before them.
    pub(crate) at: u32,
    /// Whether the credential has a sequence number. Every RPCSEC_GSS credential has one, whatever
    /// its service (RFC 2203, section 5.3.1).
    pub(crate) sequenced: bool,
}

/// Returns the arguments of the RPC Call in `payload`.
///
/// `None` if the Call is cut off before its arguments, or if they are not plain data: while a GSS
/// context is being established, and with krb5i and krb5p, they are a token that only the GSS
/// mechanism can unwrap.
pub(crate) fn plain_arguments(payload: &[u8]) -> Option<Arguments> {
    let mut r = Reader::new(payload);
    r.take(FIXED, Item::RpcHeader).ok()?;
    let flavor = r.u32(Item::RpcHeader).ok()?;
    let credential = opaque(&mut r).ok()?;
    r.u32(Item::RpcHeader).ok()?;
    opaque(&mut r).ok()?;
    let sequenced = flavor == RPCSEC_GSS;
    if sequenced && !is_plain(credential) {
        return None;
    }
    let at = len_to_u32(r.at())?;
    Some(Arguments { at, sequenced })
}

/// Consumes an opaque of variable length. Returns its octets, roundup included.
fn opaque<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let length = r.u32(Item::RpcHeader)?;
    let padded = padded_len(length).ok_or(DecodeError::TooLong)?;
    r.take(u32_to_usize(padded), Item::RpcHeader)
}

/// Returns whether the arguments behind this RPCSEC_GSS credential are plain data.
fn is_plain(credential: &[u8]) -> bool {
    let mut r = Reader::new(credential);
    let mut word = || r.u32(Item::RpcHeader);
    // Version, procedure, sequence number, service.
    let (Ok(_), Ok(procedure), Ok(_), Ok(service)) = (word(), word(), word(), word()) else {
        return false;
    };
    procedure == GSS_DATA && service == GSS_NONE
}
