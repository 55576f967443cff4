// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The RPC-over-RDMA wire protocol: version 1 (RFC 8166, RFC 8167, RFC 8797) and version 2
//! (draft-cel-nfsv4-rpcrdma-version-two-04).
//!
//! Pure code: `core` only, no allocation, no I/O, no kernel types. Every function is total:
//! whatever bytes and numbers it is given, it returns a value or an error. The lints below
//! keep it so.
//!
//! Everything that comes from the wire is hostile until [`message::decode`] has accepted it.
//! One pass checks the whole transport header and returns [`message::Parsed`], which owns what
//! it found and is kept for as long as the message is needed. Its views of the chunk lists
//! iterate without failing. [`pcl`] checks what Read chunks make together, [`reply`] checks
//! returned chunks.
//!
//! | What | Where | Specification |
//! |---|---|---|
//! | numbers with a meaning | [`units`] | RFC 8166, 4.1.2 |
//! | versions | [`version`] | RFC 8166, 4.2.2 |
//! | bounded reading and writing | [`cursor`] | RFC 4506 |
//! | errors, and what a Responder answers | [`error`] | RFC 8166, 4.5 |
//! | the four fixed words, procedures | [`header`] | RFC 8166, 4.2 |
//! | whole messages, direction | [`message`] | RFC 8166, 4; RFC 8167, 2 |
//! | segments, chunk lists | [`segment`], [`chunk`] | RFC 8166, 3.4, 4.3 |
//! | Read chunks in XDR order | [`pcl`] | RFC 8166, 3.4.5 |
//! | where the arguments of a Call begin | [`rpc`] | RFC 5531, 9 |
//! | writing headers | [`encode`] | RFC 8166, 4 |
//! | what came back against what was offered | [`reply`] | RFC 8166, 3.4.6, 4.3 |
//! | properties exchanged at connect time | [`private`] | RFC 8797 |
//! | transport properties | [`props`] | version 2, 5 |
//! | a change of the size of Receives | [`growth`] | version 2, 5.2.1 |
//! | which version a connection speaks | [`negotiate`] | version 2, 7 |
//! | choice of transfer mode | [`plan`] | RFC 8166, 3.5, 4.3.3 |
//! | device limits | [`limits`] | - |

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
pub(crate) mod growth;
pub(crate) mod header;
pub(crate) mod limits;
pub(crate) mod message;
pub(crate) mod negotiate;
pub(crate) mod pcl;
pub(crate) mod plan;
pub(crate) mod private;
pub(crate) mod props;
pub(crate) mod reply;
pub(crate) mod rpc;
pub(crate) mod segment;
pub(crate) mod units;
pub(crate) mod version;
