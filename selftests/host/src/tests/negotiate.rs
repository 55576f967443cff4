// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The version that a connection uses.

use super::golden::ANY;
use crate::{
    decoded::decode_as,
    oracle::vectors,
    vectors as one,
    xdr::{
        negotiate::{
            client_outcome,
            is_only_outcome,
            Negotiated,
            ServerVersion, //
        },
        props::{
            encode_connprop,
            BackwardSupport,
            Properties, //
        },
        units::{
            Credits,
            InlineSize,
            Xid, //
        },
        version::{
            Version,
            Versions, //
        }, //
    }, //
};

fn vector(name: &str) -> Vec<u8> {
    let found = vectors().find(|v| v.name == name);
    found.expect("a vector").bytes
}

/// Returns how a client interprets `bytes`. It has sent its request with `xid` and wants 128
/// credits.
fn outcome(bytes: &[u8], xid: u32) -> Option<Negotiated> {
    let parsed = decode_as(bytes, &ANY, Versions::only(Version::Two)).ok()?;
    client_outcome(&parsed, bytes, Xid(xid), Credits(128))
}

const UNTOLD: Negotiated = Negotiated::Two {
    peer: Properties::DEFAULT,
    announced: false,
    window: Credits(1),
};

#[test]
fn a_server_that_answers() {
    let bytes = vector("connprop-server");
    let xid = u32::from_be_bytes(*bytes.first_chunk().unwrap());
    let credits = u32::from_be_bytes(bytes[8..12].try_into().unwrap());
    let Some(Negotiated::Two {
        peer,
        announced,
        window,
    }) = outcome(&bytes, xid)
    else {
        panic!("not version 2");
    };
    assert!(announced);
    assert_eq!(window, Credits(credits.min(128)));
    assert_eq!(peer.backward, BackwardSupport::General);
    // With another XID it announces the properties, but its credit value is ignored.
    let other = outcome(&bytes, xid ^ 1);
    let expected = Negotiated::Two {
        peer,
        announced,
        window: Credits(1),
    };
    assert_eq!(other, Some(expected));
    let nothing = vector("connprop-nothing");
    let xid = u32::from_be_bytes(*nothing.first_chunk().unwrap());
    assert!(matches!(
        outcome(&nothing, xid),
        Some(Negotiated::Two {
            peer: Properties::DEFAULT,
            announced: false,
            ..
        })
    ));
}

#[test]
fn a_server_that_knows_no_properties() {
    for name in [
        "error-invalid-option",
        "error-invalid-proc",
        "error-bad-xdr",
    ] {
        let bytes = vector(name);
        let xid = u32::from_be_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(outcome(&bytes, xid), Some(UNTOLD), "{name}");
        // About something else.
        assert_eq!(outcome(&bytes, xid ^ 1), None, "{name}");
    }
    assert_eq!(outcome(&vector("reverse-call-null"), 5), Some(UNTOLD));
    assert_eq!(outcome(&vector("updprop-rbsiz"), 5), Some(UNTOLD));
}

#[test]
fn a_first_message_that_is_more_than_an_answer() {
    for (name, expected) in [
        ("connprop-server", true),
        ("error-bad-xdr", true),
        ("error-vers-linux", true),
        ("reverse-call-null", false),
        ("reqprop-rbsiz-raise", false),
        ("updprop-rbsiz", false),
        ("optional-call-info-5", false),
    ] {
        let bytes = vector(name);
        let parsed = decode_as(&bytes, &ANY, Versions::only(Version::Two)).unwrap();
        assert_eq!(is_only_outcome(&parsed), expected, "{name}");
    }
}

#[test]
fn a_server_without_version_2() {
    let linux = vector("error-vers-linux");
    assert_eq!(outcome(&linux, 0x1122_3344), Some(Negotiated::One));
    assert_eq!(outcome(&linux, 0x1122_3345), None);
    // Whatever version its header has.
    for version in [0, 1, 3, u32::MAX] {
        let mut bytes = linux.clone();
        bytes[4..8].copy_from_slice(&u32::to_be_bytes(version));
        assert_eq!(outcome(&bytes, 0x1122_3344), Some(Negotiated::One));
    }
    let range = |low: u32, high: u32| {
        let mut bytes = linux.clone();
        bytes[20..24].copy_from_slice(&low.to_be_bytes());
        bytes[24..28].copy_from_slice(&high.to_be_bytes());
        outcome(&bytes, 0x1122_3344)
    };
    assert_eq!(range(0, u32::MAX), Some(Negotiated::One));
    for (low, high) in [(2, 2), (3, 7), (0, 0), (2, 1)] {
        assert_eq!(range(low, high), Some(Negotiated::Failed { low, high }));
    }
}

#[test]
fn what_is_no_answer() {
    // Of version 1, malformed, too short.
    for bytes in [
        one::INLINE_REPLY.bytes(),
        one::ERR_CHUNK.bytes(),
        vector("msg-reply-null")[..35].to_vec(),
        vector("connprop-server")[..30].to_vec(),
        Vec::new(),
    ] {
        assert_eq!(outcome(&bytes, 0x1122_3344), None);
    }
}

#[test]
fn the_first_valid_message_decides() {
    let both = Versions::up_to(Version::Two);
    let silent = ServerVersion::Undecided(Version::Two);
    assert_eq!(silent.accepts(), both);
    let after = |server: ServerVersion, bytes: &[u8]| match decode_as(bytes, &ANY, server.accepts())
    {
        Ok(parsed) => server.after(&parsed),
        Err(_) => server,
    };
    let two = ServerVersion::Decided(Version::Two);
    let one_ = ServerVersion::Decided(Version::One);
    assert_eq!(after(silent, &vector("connprop-client")), two);
    assert_eq!(after(silent, &vector("msg-call-null")), two);
    assert_eq!(after(silent, &one::INLINE_CALL.bytes()), one_);
    // Error reports, and unreadable messages, decide nothing.
    assert_eq!(after(silent, &vector("error-system")), silent);
    assert_eq!(after(silent, &one::ERR_CHUNK.bytes()), silent);
    assert_eq!(after(silent, &vector("connprop-client")[..40]), silent);
    // The version does not change afterwards.
    assert_eq!(after(two, &one::INLINE_CALL.bytes()), two);
    assert_eq!(after(one_, &vector("msg-call-null")), one_);
    assert_eq!(two.accepts(), Versions::only(Version::Two));
    // A server that is set to version 1.
    let old = ServerVersion::Undecided(Version::One);
    assert_eq!(after(old, &vector("connprop-client")), old);
    assert_eq!(after(old, &one::INLINE_CALL.bytes()), one_);
}

#[test]
fn a_receive_size_is_at_least_what_everybody_takes() {
    for name in ["connprop-smallest", "connprop-largest", "connprop-rbsiz"] {
        let bytes = vector(name);
        let Some(Negotiated::Two {
            peer, announced, ..
        }) = outcome(&bytes, 1)
        else {
            panic!("{name}");
        };
        assert!(announced && peer.receive >= InlineSize(1024), "{name}");
    }
}

/// The RDMA2_CONNPROP that this code encodes, at both ends.
#[test]
fn connprop() {
    let ours = Properties {
        receive: InlineSize(8192),
        backward: BackwardSupport::Inline,
    };
    let mut buf = [0; 64];
    let len = encode_connprop(&mut buf, Xid(7), Credits(4), &ours).unwrap();
    assert_eq!(len, 52);
    let parsed = decode_as(&buf[..len], &ANY, Versions::up_to(Version::Two)).unwrap();
    let outcome = client_outcome(&parsed, &buf[..len], Xid(7), Credits(128));
    let expected = Negotiated::Two {
        peer: ours,
        announced: true,
        window: Credits(4),
    };
    assert_eq!(outcome, Some(expected));
}
