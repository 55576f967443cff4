// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The RPC-over-RDMA wire protocol: version 1 (RFC 8166, RFC 8167, RFC 8797) and version 2
//! (draft-cel-nfsv4-rpcrdma-version-two-04).
//!
//! This module is pure code: `core` only, no allocation, no I/O, no kernel types. Every function
//! is total: it returns a value or an error for any input and does not panic. The lints below
//! enforce this.
//!
//! Data from the wire is hostile until [`message::decode`] has accepted it. `decode` checks the
//! whole transport header in one pass and returns a [`message::Parsed`], which owns the decoded
//! header and lives as long as the message is needed. Its views of the chunk lists iterate
//! without failing. [`pcl`] checks that the Read chunks of a Call fit together, and [`reply`]
//! checks the chunks that a Reply returns.
//!
//! | What | Where | Specification |
//! |---|---|---|
//! | types for handles, positions, XIDs, credits | [`units`] | RFC 8166, 4.1.2 |
//! | protocol versions | [`version`] | RFC 8166, 4.2.2 |
//! | bounded reading and writing | [`cursor`] | RFC 4506 |
//! | errors, and the Responder's response to each | [`error`] | RFC 8166, 4.5 |
//! | the four fixed words of a header, procedures | [`header`] | RFC 8166, 4.2 |
//! | decoding of whole messages, direction | [`message`] | RFC 8166, 4; RFC 8167, 2 |
//! | hints from the first words of a message | [`peek`] | RFC 8166, 4.2 |
//! | segments, chunk lists | [`segment`], [`chunk`] | RFC 8166, 3.4, 4.3 |
//! | Read chunks in XDR order | [`pcl`] | RFC 8166, 3.4.5 |
//! | the offset of a Call's arguments | [`rpc`] | RFC 5531, 9 |
//! | encoding of headers | [`encode`] | RFC 8166, 4 |
//! | headers of the most common Replies | [`fast_reply`] | RFC 8166, 4 |
//! | returned chunks compared with offered chunks | [`reply`] | RFC 8166, 3.4.6, 4.3 |
//! | private data exchanged at connect time | [`private`] | RFC 8797 |
//! | transport properties | [`props`] | version 2, 5 |
//! | changing the Receive size of a connection | [`resize`] | version 2, 5.2.1 |
//! | version negotiation | [`negotiate`] | version 2, 7 |
//! | choice of transfer mode | [`plan`] | RFC 8166, 3.5, 4.3.3 |
//! | queue sizes derived from device limits | [`limits`] | - |

#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]

pub(crate) mod chunk;
pub(crate) mod cursor;
pub(crate) mod encode;
pub(crate) mod error;
pub(crate) mod fast_reply;
pub(crate) mod header;
pub(crate) mod limits;
pub(crate) mod message;
pub(crate) mod negotiate;
pub(crate) mod pcl;
pub(crate) mod peek;
pub(crate) mod plan;
pub(crate) mod private;
pub(crate) mod props;
pub(crate) mod reply;
pub(crate) mod resize;
pub(crate) mod rpc;
pub(crate) mod segment;
pub(crate) mod units;
pub(crate) mod version;
