// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Properties of version 2 that must hold for any input.

use crate::{
    checks::encode_lists,
    decoded::decode_as,
    xdr::{
        chunk::ListLimits,
        cursor::Reader,
        encode::{
            encode_error,
            HeaderPrefix, //
        },
        error::{
            EncodeError,
            ErrorBody,
            ErrorResponse, //
        },
        header::{
            Header,
            Proc, //
        },
        message::{
            Body,
            Direction,
            Parsed,
            Rejected, //
        },
        negotiate::{
            client_outcome,
            Negotiated,
            ServerVersion, //
        },
        props::{
            encode_resprop,
            BackwardSupport,
            Message,
            Property, //
        },
        units::{
            Credits,
            Xid, //
        },
        version::{
            Version,
            Versions, //
        }, //
    }, //
};

const BOTH: Versions = Versions::up_to(Version::Two);

const LIMITS: ListLimits = ListLimits {
    segments: 512,
    read_octets: 4 << 20,
};

/// Checks a peer that supports both versions and receives `data`.
pub fn message2(data: &[u8]) {
    for accepts in [BOTH, Versions::only(Version::Two)] {
        match decode_as(data, &LIMITS, accepts) {
            Ok(parsed) => check_parsed(data, &parsed),
            Err(rejected) => check_rejected(data, &rejected),
        }
    }
    // An unsupported version changes nothing for the supported ones.
    let one = decode_as(data, &LIMITS, Versions::only(Version::One));
    let both = decode_as(data, &LIMITS, BOTH);
    if data.get(4..8) == Some(&[0, 0, 0, 1]) {
        assert_eq!(one, both);
    }
}

fn check_rejected(data: &[u8], rejected: &Rejected) {
    let answer = rejected.response();
    let Some(header) = rejected.header else {
        assert!(data.len() < 16);
        return assert_eq!(answer, ErrorResponse::Drop);
    };
    let least = match header.version {
        2 => 20,
        _ => 28,
    };
    if data.len() < least || header.proc == 4 {
        return assert_eq!(answer, ErrorResponse::Drop);
    }
    // Neither an error report nor the answer to one is answered by another one.
    if let ErrorResponse::Report(report) = answer {
        let mut buf = [0; 32];
        let len = encode_error(&mut buf, &header, Credits(5), report).expect("room");
        let again = decode_as(&buf[..len], &LIMITS, BOTH).expect("our own report");
        assert_eq!(again.header.xid, header.xid);
        assert_eq!(again.header.version, header.version);
        assert_eq!(again.body, Body::Error(report));
        assert_ne!(rejected.direction, Some(Direction::Reply));
    }
    if let Some(report) = rejected.refusal() {
        let ErrorResponse::Report(of_server) = answer else {
            panic!("{rejected:?} is refused, but not answered");
        };
        assert_eq!(report, of_server.without_chunks());
    }
}

fn check_parsed(data: &[u8], parsed: &Parsed) {
    assert!(parsed.header_len <= data.len());
    match parsed.body {
        Body::Msg | Body::NoMsg => check_lists(data, parsed),
        Body::Error(report) => {
            let failed = Header {
                proc: 0,
                ..parsed.header
            };
            let mut buf = [0; 32];
            let len = encode_error(&mut buf, &failed, failed.credits, report).expect("room");
            // Version 1 does not keep the body of a report that it does not define.
            assert_eq!(buf[..len], data[..len]);
            assert_eq!(parsed.direction, Some(Direction::Reply));
        }
        Body::Optional(_) => assert!(parsed.option_response().is_some()),
        Body::Property(_) => {
            assert!(parsed.properties(data).is_some());
            assert_eq!(parsed.direction, None);
        }
    }
    for len in 0..data.len().min(128) {
        // Other octets have a result, too.
        let lists = parsed.lists(&data[..len]);
        assert!(crate::decoded::segments(&lists).count() <= 512);
        let _ = parsed.properties(&data[..len]);
    }
}

fn check_lists(data: &[u8], parsed: &Parsed) {
    let Some(direction) = parsed.direction else {
        return assert_eq!(parsed.version, Version::One);
    };
    let lists = parsed.lists(data);
    let write = |buf: &mut [u8]| -> Result<usize, EncodeError> {
        let prefix = HeaderPrefix {
            version: parsed.version,
            xid: parsed.header.xid,
            credits: parsed.header.credits,
            proc: Proc::from_u32(parsed.version, parsed.header.proc).expect("a procedure"),
            direction,
            invalidate: parsed.invalidate,
        };
        encode_lists(buf, &prefix, &lists)
    };
    let mut buf = vec![0; parsed.header_len];
    // In version 1 an empty Write chunk is accepted, but never offered.
    let empty = lists.write.iter().any(|chunk| chunk.count() == 0);
    if parsed.version == Version::One && empty {
        return assert_eq!(write(&mut buf), Err(EncodeError::SegmentCount));
    }
    assert_eq!(write(&mut buf), Ok(parsed.header_len));
    let mut same = data[..parsed.header_len].to_vec();
    if parsed.version == Version::Two && direction == Direction::Reply {
        // Not read in a Reply, and zero when this code encodes it.
        same[20..24].fill(0);
    }
    assert_eq!(buf, same);
    if parsed.version == Version::Two {
        let named = u32::from_be_bytes(same[20..24].try_into().unwrap());
        assert_eq!(parsed.invalidate.map_or(0, |handle| handle.0), named);
        assert!(lists.write.iter().count() <= 8);
    }
    let short = buf.len().saturating_sub(1);
    assert_eq!(write(&mut buf[..short]), Err(EncodeError::NoSpace));
}

/// A property as in the draft's XDR: number and octets.
type Raw<'a> = (u32, &'a [u8]);

/// Decodes a set in a simple way.
fn model_set<'a>(r: &mut Reader<'a>) -> Option<Vec<Raw<'a>>> {
    use crate::xdr::error::Item;
    let count = r.u32(Item::Property).ok()?;
    let mut set = Vec::new();
    for _ in 0..count {
        let number = r.u32(Item::Property).ok()?;
        let len = r.u32(Item::Property).ok()? as usize;
        let data = r.take(len.next_multiple_of(4), Item::Property).ok()?;
        set.push((number, &data[..len]));
    }
    let good = |(number, data): &Raw<'_>| match (number, data) {
        (1 | 2, []) | (1, [_, _, _, _]) | (2, [0, 0, 0, 0..=2]) => true,
        (1 | 2, _) => false,
        _ => true,
    };
    let once = |number| set.iter().filter(|raw| raw.0 == number).count() <= 1;
    (set.iter().all(good) && once(1) && once(2)).then_some(set)
}

/// Returns the subset with the set bits among the first `count`.
fn bits(words: &[u32], count: usize) -> Vec<bool> {
    let bit = |i: usize| {
        words
            .get(i / 32)
            .is_some_and(|word| word >> (i % 32) & 1 == 1)
    };
    (0..count).map(bit).collect()
}

/// Checks `data` as a set of properties that a peer requests.
pub fn properties(data: &[u8]) {
    let mut message = vec![0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 7];
    message.extend(data);
    let model = model_set(&mut Reader::new(data));
    let Ok(parsed) = decode_as(&message, &LIMITS, BOTH) else {
        return assert!(model.is_none() || message.len() < 20);
    };
    let model = model.expect("a good set");
    let Some(Message::Request { want }) = parsed.properties(&message) else {
        panic!("no REQPROP");
    };
    let word = |data: &[u8], default| data.try_into().map_or(default, u32::from_be_bytes);
    let expected: Vec<Property> = model
        .iter()
        .map(|(number, data)| match number {
            1 => Property::Receive(word(data, 4096)),
            2 => Property::Backward(match word(data, 1) {
                0 => BackwardSupport::None,
                1 => BackwardSupport::Inline,
                _ => BackwardSupport::General,
            }),
            other => Property::Unknown(*other),
        })
        .collect();
    assert_eq!(want.iter().collect::<Vec<_>>(), expected);
    let sizes = 4096..=8192;
    let mut buf = [0; 4096];
    let Ok(len) = encode_resprop(&mut buf, Xid(9), Credits(3), &want, Some(&sizes)) else {
        return assert!(model.len() > 10_000);
    };
    let back = decode_as(&buf[..len], &LIMITS, BOTH).expect("our own response");
    assert!(matches!(
        back.properties(&buf[..len]),
        Some(Message::Response { .. })
    ));
    let mut words = buf[16..len]
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes(word.try_into().unwrap()));
    let mut subset = || -> Vec<u32> {
        let count = words.next().expect("a count");
        (0..count).map(|_| words.next().expect("a word")).collect()
    };
    let (done, rejected) = (subset(), subset());
    // No other values.
    assert_eq!((words.next(), words.next()), (Some(0), None));
    let granted: Vec<bool> = expected
        .iter()
        .map(|property| matches!(property, Property::Receive(n) if sizes.contains(n)))
        .collect();
    assert_eq!(bits(&done, granted.len()), granted);
    let not: Vec<bool> = granted.iter().map(|granted| !granted).collect();
    assert_eq!(bits(&rejected, granted.len()), not);
    for subset in [done, rejected] {
        assert_ne!(subset.last(), Some(&0));
        assert!(subset.len() <= granted.len().div_ceil(32));
    }
}

/// Checks `data` as a list of the first messages on a connection, each with a length of one octet
/// before it.
pub fn negotiate(data: &[u8]) {
    let mut rest = data;
    let mut server = ServerVersion::Undecided(Version::Two);
    while let Some((len, behind)) = rest.split_first() {
        let (message, behind) = behind.split_at(behind.len().min(usize::from(*len)));
        rest = behind;
        check_server(&mut server, message);
        check_client(message);
    }
}

fn check_server(server: &mut ServerVersion, message: &[u8]) {
    let accepts = server.accepts();
    let heard = decode_as(message, &LIMITS, accepts);
    let before = *server;
    match heard {
        Ok(parsed) => {
            *server = server.after(&parsed);
            let report = matches!(parsed.body, Body::Error(_));
            match (before, *server) {
                (ServerVersion::Undecided(_), ServerVersion::Undecided(_)) => assert!(report),
                (_, ServerVersion::Decided(version)) => {
                    assert!(report || version == parsed.version)
                }
                (ServerVersion::Decided(_), ServerVersion::Undecided(_)) => {
                    panic!("undecided again")
                }
            }
        }
        Err(rejected) => {
            if let ErrorResponse::Report(ErrorBody::Version { low, high }) = rejected.response() {
                let version = rejected.header.expect("a header").version;
                assert!(!(low..=high).contains(&version));
                assert_eq!(
                    (low, high),
                    (accepts.low().to_u32(), accepts.high().to_u32())
                );
            }
        }
    }
    // A connection does not change its version.
    assert!(before == *server || matches!(before, ServerVersion::Undecided(_)));
}

fn check_client(message: &[u8]) {
    let Ok(parsed) = decode_as(message, &LIMITS, Versions::only(Version::Two)) else {
        return;
    };
    let xid = parsed.header.xid;
    let other = Xid(xid.0 ^ 1);
    let requested = Credits(128);
    let ours = client_outcome(&parsed, message, xid, requested);
    match ours {
        Some(Negotiated::Two { window, peer, .. }) => {
            assert!((1..=128).contains(&window.0));
            assert!(peer.receive.0 >= 1024);
            assert_eq!(parsed.version, Version::Two);
        }
        Some(Negotiated::One | Negotiated::Failed { .. }) => {
            assert!(matches!(
                parsed.body,
                Body::Error(ErrorBody::Version { .. })
            ));
            // Not for an error report about something else.
            assert_eq!(client_outcome(&parsed, message, other, requested), None);
        }
        None => panic!("{parsed:?} is no answer"),
    }
    if let Some(Negotiated::Two { window, .. }) = client_outcome(&parsed, message, other, requested)
    {
        assert_eq!(window, Credits(1));
    }
}
