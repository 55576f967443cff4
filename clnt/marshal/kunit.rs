// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: Replies of the reverse direction. Nothing is posted.

use super::*;
use crate::{
    kapi::fixture::{
        pd,
        HeadOnly, //
    },
    xdr::units::InlineSize, //
};

const XID: u32 = 0xcb00_0001;
/// The largest message to the server.
const INLINE: u32 = 1024;

/// Writes a Reply of `len` octets, and checks that the message starts with `wanted`.
fn check(version: Version, len: usize, wanted: &[u32]) -> Result {
    let mut ctx = SendCtx::new(&pd()?, 4096, 3, true)?;
    let limits = Thresholds {
        version,
        send: InlineSize(INLINE),
        receive: InlineSize(INLINE),
        segments: 1,
        send_sges: 3,
    };
    let mut reply = HeadOnly::new(len)?;
    marshal_bc_reply(ctx.as_mut(), XID, 16, &limits, reply.buf())?;
    let written = ctx
        .message()
        .body()
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    assert!(written.zip(wanted).all(|(word, wanted)| word == *wanted));
    Ok(())
}

#[kunit_tests(rpcrdma_client_marshal)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_does_not_fit_is_reported() -> Result {
        check(Version::One, 996, &[XID, 1, 16, 0, 0, 0, 0])?;
        check(Version::One, 1000, &[XID, 1, 16, 4, 2])?;
        check(Version::Two, 988, &[XID, 2, 16, 0, 1, 0, 0, 0, 0])?;
        // RDMA2_ERR_REPLY_RESOURCE has the length of the Reply.
        check(Version::Two, 992, &[XID, 2, 16, 4, 8, 992])?;
        check(Version::Two, 4096, &[XID, 2, 16, 4, 8, 4096])
    }
}
