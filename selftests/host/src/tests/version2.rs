// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Version 2 against messages that were derived from the draft's XDR: see `data/version2.tsv`.

use super::golden::ANY;
use crate::{
    checks::sorted,
    decoded::{
        decode_as,
        segments, //
    },
    oracle::{
        hex,
        malformed,
        render,
        vectors, //
    },
    xdr::{
        chunk::ListLimits,
        encode::{
            encode_error,
            encode_reply,
            Encoder,
            HeaderPrefix, //
        },
        error::{
            DecodeError,
            ErrorResponse,
            Item, //
        },
        header::{
            Header,
            Proc, //
        },
        message::{
            Body,
            Direction,
            Parsed, //
        },
        props::{
            encode_connprop,
            encode_receive,
            encode_resprop,
            granted,
            has_response,
            BackwardSupport,
            Message,
            Properties, //
        },
        units::{
            Credits,
            Handle,
            InlineSize,
            Xid, //
        },
        version::{
            Version,
            Versions, //
        }, //
    }, //
};
use std::ops::RangeInclusive;

const BOTH: Versions = Versions::up_to(Version::Two);

/// Limits like those of a server, which has 259 pages for a message.
const SERVER: ListLimits = ListLimits {
    segments: 259,
    read_octets: 258 << 12,
};

/// RDMA2_CONNPROP with the properties that this code sends.
const GREETINGS: [&str; 2] = ["connprop-client", "connprop-server"];

/// Messages that speak of a Receive size alone.
const RECEIVE_SIZES: [(&str, Proc); 3] = [
    ("reqprop-rbsiz-raise", Proc::ReqProp),
    ("reqprop-rbsiz-lower", Proc::ReqProp),
    ("updprop-rbsiz", Proc::UpdProp),
];

/// Requests, the response to each, and the Receive sizes that are granted then.
const RESPONSES: [(&str, &str, RangeInclusive<u32>); 5] = [
    ("reqprop-nothing", "resprop-nothing", 4096..=4096),
    ("reqprop-rbsiz-raise", "resprop-rejected", 4096..=4096),
    ("reqprop-rbsiz-raise", "resprop-done", 4096..=65536),
    ("reqprop-both", "resprop-done-and-rejected", 4096..=8192),
    ("reqprop-unknown", "resprop-unknown-rejected", 4096..=8192),
];

/// Encodes the header of an RPC message again.
fn encode_again(buf: &mut [u8], parsed: &Parsed, bytes: &[u8]) -> usize {
    let lists = parsed.lists(bytes);
    let prefix = HeaderPrefix {
        version: parsed.version,
        xid: parsed.header.xid,
        credits: parsed.header.credits,
        proc: Proc::from_u32(Version::Two, parsed.header.proc).unwrap(),
        direction: parsed.direction.unwrap(),
        invalidate: parsed.invalidate,
    };
    let mut stage = Encoder::new(buf, &prefix).unwrap();
    for read in lists.read.iter() {
        stage.read_segment(read).unwrap();
    }
    let mut stage = stage.end_reads().unwrap();
    for chunk in lists.write.iter() {
        stage.write_chunk(chunk.iter()).unwrap();
    }
    let stage = stage.end_writes().unwrap();
    match lists.reply {
        Some(chunk) => stage.reply_chunk(chunk.iter()).unwrap(),
        None => stage.no_reply_chunk().unwrap(),
    }
}

#[test]
fn vectors_are_read() {
    let (mut good, mut refused) = (0, 0);
    for vector in vectors() {
        match decode_as(&vector.bytes, &ANY, BOTH) {
            Ok(parsed) => {
                // ERR_VERS may have any version.
                let number = parsed.header.version;
                assert!(number == 2 || vector.name.starts_with("error-vers-"));
                assert_eq!(
                    render(&parsed, &vector.bytes),
                    vector.json,
                    "{}",
                    vector.name
                );
                good += 1;
            }
            Err(rejected) => {
                // Valid XDR, with memory that no machine has.
                assert!(vector.name.starts_with("extreme-"), "{}", vector.name);
                let expected = matches!(
                    rejected.error,
                    DecodeError::Position | DecodeError::SegmentRange
                );
                assert!(expected, "{}: {rejected:?}", vector.name);
                refused += 1;
            }
        }
    }
    println!("{good} vectors of version 2 read, {refused} refused for impossible memory");
    assert_eq!((good, refused), (111, 3));
}

#[test]
fn vectors_are_written() {
    let (mut written, mut refused, mut optional, mut properties) = (0, 0, 0, 0);
    for vector in vectors() {
        let Ok(parsed) = decode_as(&vector.bytes, &ANY, BOTH) else {
            refused += 1;
            continue;
        };
        let mut buf = vec![0xee; vector.bytes.len() + 4];
        let (xid, credits) = (parsed.header.xid, parsed.header.credits);
        let len = match parsed.body {
            Body::Msg | Body::NoMsg => encode_again(&mut buf, &parsed, &vector.bytes),
            Body::Error(report) => {
                let failed = Header {
                    credits: Credits(77),
                    proc: 0,
                    ..parsed.header
                };
                encode_error(&mut buf, &failed, credits, report).unwrap()
            }
            Body::Property(Proc::ConnProp) if GREETINGS.contains(&vector.name) => {
                let Some(Message::Connect { start }) = parsed.properties(&vector.bytes) else {
                    panic!("{}", vector.name);
                };
                let ours = Properties::DEFAULT.with(&start);
                encode_connprop(&mut buf, xid, credits, &ours).unwrap()
            }
            Body::Property(_) => {
                properties += 1;
                continue;
            }
            Body::Optional(_) => {
                optional += 1;
                continue;
            }
        };
        assert_eq!(
            buf[..len],
            vector.bytes[..parsed.header_len],
            "{}",
            vector.name
        );
        assert!(buf[len..].iter().all(|b| *b == 0xee), "{}", vector.name);
        for room in 0..len {
            let mut short = vec![0; room];
            let failed = parsed.header;
            if let Body::Error(report) = parsed.body {
                assert!(encode_error(&mut short, &failed, credits, report).is_err());
            }
        }
        written += 1;
    }
    // Two other tests write these.
    let others = RECEIVE_SIZES.len() + RESPONSES.len();
    (written, properties) = (written + others, properties - others);
    println!(
        "{written} vectors of version 2 written; not sent: {optional} optional operations, \
         {properties} messages with other properties, {refused} with impossible memory"
    );
    assert_eq!((written, optional, properties, refused), (77, 8, 26, 3));
}

/// Checks the response to a request against the vectors of both.
#[test]
fn responses_about_properties() {
    let find = |name: &str| vectors().find(|v| v.name == name).expect("a vector");
    for (request, response, sizes) in RESPONSES {
        let request = find(request);
        let response = find(response);
        let parsed = decode_as(&request.bytes, &ANY, BOTH).unwrap();
        let Some(Message::Request { want }) = parsed.properties(&request.bytes) else {
            panic!("{}", request.name);
        };
        let header = decode_as(&response.bytes, &ANY, BOTH).unwrap().header;
        let mut buf = [0xee; 64];
        let len =
            encode_resprop(&mut buf, header.xid, header.credits, &want, Some(&sizes)).unwrap();
        assert_eq!(hex(&buf[..len]), hex(&response.bytes), "{}", response.name);
        // If the peer's Receives had no room for it, its subsets would be empty.
        let words = want.iter().count().div_ceil(32) as u32;
        let room = 28 + 8 * words;
        assert!(has_response(&want, InlineSize(room)));
        assert!(!has_response(&want, InlineSize(room - 1)));
        let len = encode_resprop(&mut buf, header.xid, header.credits, &want, None);
        assert_eq!((len, &buf[16..28]), (Ok(28), &[0; 12][..]));
    }
}

#[test]
fn no_shorter_header_is_a_message() {
    let server = |bytes: &[u8]| decode_as(bytes, &ANY, BOTH);
    for vector in vectors() {
        let Ok(whole) = server(&vector.bytes) else {
            continue;
        };
        for len in 0..whole.header_len {
            let rejected = server(&vector.bytes[..len]).expect_err(vector.name);
            let answer = rejected.response();
            if len < 20 {
                assert_eq!(rejected.error, DecodeError::Truncated(Item::FixedHeader));
                assert_eq!(answer, ErrorResponse::Drop);
            }
            // Error reports flow from Responder to Requester only.
            let is_call = match whole.body {
                Body::Msg | Body::NoMsg | Body::Optional(_) => {
                    len < 20 || rejected.direction != Some(Direction::Reply)
                }
                Body::Property(proc) => proc != Proc::RespProp,
                Body::Error(_) => false,
            };
            let answers = answer != ErrorResponse::Drop;
            assert_eq!(answers, is_call && len >= 20, "{} at {len}", vector.name);
        }
    }
}

/// Returns the answer of a server that supports both versions.
fn server_answer(bytes: &[u8], limits: &ListLimits) -> ErrorResponse {
    let parsed = match decode_as(bytes, limits, BOTH) {
        Ok(parsed) => parsed,
        Err(rejected) => return rejected.response(),
    };
    if let Some(answer) = parsed.option_response() {
        return answer;
    }
    let call = parsed.direction == Some(Direction::Call);
    if call && matches!(parsed.body, Body::Msg | Body::NoMsg) {
        let inline = parsed.payload(bytes).map(|payload| payload.len() as u32);
        let chunks = sorted(&parsed.lists(bytes).read, inline, u32::MAX);
        if let Err(error) = chunks {
            return error.response(parsed.version);
        }
    }
    ErrorResponse::Drop
}

#[test]
fn malformed_messages_are_answered() {
    let (mut answered, mut dropped) = (0, 0);
    for case in malformed() {
        let answer = server_answer(&case.bytes, &ANY);
        assert_eq!(server_answer(&case.bytes, &SERVER), answer, "{}", case.name);
        let found = match answer {
            ErrorResponse::Drop => {
                dropped += 1;
                Vec::new()
            }
            ErrorResponse::Report(report) => {
                answered += 1;
                let words = case.bytes.first_chunk().expect("fixed words");
                let mut buf = [0; 64];
                let failed = Header::from_wire(words);
                let len = encode_error(&mut buf, &failed, Credits(128), report).unwrap();
                buf[..len].to_vec()
            }
        };
        assert_eq!(hex(&found), case.answer, "{}: {}", case.name, case.why);
    }
    println!("{answered} malformed messages answered, {dropped} dropped");
    assert_eq!((answered, dropped), (45, 12));
}

/// Returns a valid Call of `words` after the prefix: direction CALL, and `invalidate`.
fn call(proc: u32, invalidate: u32, lists: &[u32]) -> Vec<u8> {
    let mut words = vec![0x77, 2, 1, proc, 0, invalidate];
    words.extend(lists);
    if proc == 0 {
        words.extend([0x77, 0, 2, 100_003]);
    }
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

#[test]
fn limits_are_reported() {
    let answer = |bytes: &[u8], limits: &ListLimits| match server_answer(bytes, limits) {
        ErrorResponse::Report(report) => report,
        ErrorResponse::Drop => panic!("dropped"),
    };
    use crate::xdr::error::ErrorBody;
    let writes = |count: usize| {
        let mut lists = vec![0];
        for handle in 0..count as u32 {
            lists.extend([1, 1, handle, 8, 0, 0]);
        }
        lists.extend([0, 0]);
        call(0, 0, &lists)
    };
    assert!(decode_as(&writes(8), &ANY, BOTH).is_ok());
    let max = 8;
    assert_eq!(answer(&writes(9), &ANY), ErrorBody::WriteChunks { max });
    let few = ListLimits { segments: 3, ..ANY };
    assert_eq!(answer(&writes(4), &few), ErrorBody::Segments { max: 3 });
    let reads = |count: u32| {
        let mut lists = Vec::new();
        for index in 0..count {
            lists.extend([1, 8 + 4 * index, index, 4, 0, 0]);
        }
        lists.extend([0, 0, 0]);
        call(0, 0, &lists)
    };
    assert_eq!(server_answer(&reads(2), &ANY), ErrorResponse::Drop);
    let max = 16;
    assert_eq!(answer(&reads(17), &ANY), ErrorBody::ReadChunks { max });
    // Two places for the Payload stream, and none.
    let zero = [1, 0, 5, 64, 0, 0, 0, 0, 0];
    assert_eq!(answer(&call(0, 0, &zero), &ANY), ErrorBody::Chunk);
    let eight = [1, 8, 5, 64, 0, 0, 0, 0, 0];
    assert_eq!(answer(&call(1, 0, &eight), &ANY), ErrorBody::Chunk);
}

/// A client supports no chunks in Calls of its server, however many the decoder accepts.
#[test]
fn a_client_supports_no_chunks() {
    use crate::xdr::error::ErrorBody;
    let limits = ListLimits {
        segments: 64,
        ..ANY
    };
    let refusal = |lists: &[u32]| match decode_as(&call(0, 0, lists), &limits, BOTH) {
        Ok(parsed) => parsed.chunk_refusal(),
        Err(rejected) => rejected.refusal(),
    };
    const READ: [u32; 6] = [1, 16, 7, 8, 0, 0];
    const WRITE: [u32; 6] = [1, 1, 7, 8, 0, 0];
    let max = 0;
    let (reads, writes) = (
        ErrorBody::ReadChunks { max },
        ErrorBody::WriteChunks { max },
    );
    let segments = ErrorBody::Segments { max };
    let lists = |reads: usize, writes: usize, reply: usize| {
        let (reads, writes) = (READ.repeat(reads), WRITE.repeat(writes));
        let reply = match reply {
            0 => vec![0],
            count => [vec![1, count as u32], WRITE[2..].repeat(count)].concat(),
        };
        [reads, vec![0], writes, vec![0], reply].concat()
    };
    assert_eq!(refusal(&lists(0, 0, 0)), None);
    for (read, write, reply, wanted) in [
        (1, 0, 0, reads),
        (1, 2, 1, reads),
        (65, 0, 0, segments),
        (0, 1, 0, writes),
        (0, 1, 1, writes),
        (0, 9, 0, writes),
        (0, 0, 1, segments),
        (0, 0, 65, segments),
    ] {
        let seen = refusal(&lists(read, write, reply));
        assert_eq!(seen, Some(wanted), "{read} {write} {reply}");
    }
    // Lists that cannot be parsed.
    assert_eq!(refusal(&[0, 0, 2]), Some(ErrorBody::Chunk));
}

#[test]
fn handle_to_invalidate() {
    let lists = [
        1, 64, 0x11, 8, 0, 0, 0, 1, 2, 0x22, 8, 0, 0, 0x33, 0, 0, 0, 0, 0,
    ];
    for handle in [0x11, 0x22, 0x33] {
        let bytes = call(0, handle, &lists);
        let parsed = decode_as(&bytes, &ANY, BOTH).unwrap();
        assert_eq!(parsed.invalidate, Some(Handle(handle)));
        assert_eq!(segments(&parsed.lists(&bytes)).count(), 3);
    }
    let parsed = decode_as(&call(0, 0, &lists), &ANY, BOTH).unwrap();
    assert_eq!(parsed.invalidate, None);
    let rejected = decode_as(&call(0, 0x44, &lists), &ANY, BOTH).unwrap_err();
    assert_eq!(rejected.error, DecodeError::Invalidate);
}

/// Checks the longest header that a client sends, two chunks of 16 segments, and the lengths of
/// Replies.
#[test]
fn header_lengths() {
    let mut lists = Vec::new();
    for handle in 0..16 {
        lists.extend([1, 64, handle, 4096, 0, 0]);
    }
    lists.extend([0, 0, 1, 16]);
    for handle in 16..32 {
        lists.extend([handle, 4096, 0, 0]);
    }
    let bytes = call(1, 0, &lists);
    let parsed = decode_as(&bytes, &ANY, BOTH).unwrap();
    assert_eq!(parsed.header_len, 36 + 16 * 24 + 4 + 16 * 16);
    let lists = parsed.lists(&bytes);
    assert_eq!(lists.reply_header_len(Version::Two), 36 + 4 + 16 * 16);
    let mut buf = [0; 1024];
    let len = encode_reply(&mut buf, &parsed, Credits(3), &lists, [], Some(5000)).unwrap();
    assert_eq!(len, lists.reply_header_len(Version::Two));
    let reply = decode_as(&buf[..len], &ANY, BOTH).unwrap();
    assert_eq!(reply.direction, Some(Direction::Reply));
    assert_eq!(reply.header.xid, Xid(0x77));
    assert_eq!(reply.grant(), Some(Credits(3)));
    assert_eq!(buf[20..24], [0; 4]);
}

#[test]
fn a_connection_of_one_version_refuses_the_other() {
    let bytes = call(0, 0, &[0, 0, 0]);
    let range = |bytes: &[u8], version| match decode_as(bytes, &ANY, Versions::only(version)) {
        Ok(_) => None,
        Err(rejected) => Some(rejected.response()),
    };
    assert_eq!(range(&bytes, Version::Two), None);
    let report = |number| {
        use crate::xdr::error::ErrorBody;
        let (low, high) = (number, number);
        Some(ErrorResponse::Report(ErrorBody::Version { low, high }))
    };
    assert_eq!(range(&bytes, Version::One), report(1));
    let one = crate::vectors::INLINE_CALL.bytes();
    assert_eq!(range(&one, Version::One), None);
    assert_eq!(range(&one, Version::Two), report(2));
}

#[test]
fn announced_properties() {
    let announced = |name: &str| {
        let vector = vectors().find(|v| v.name == name).expect("a vector");
        let parsed = decode_as(&vector.bytes, &ANY, BOTH).unwrap();
        match parsed.properties(&vector.bytes) {
            Some(Message::Connect { start }) => {
                (Properties::DEFAULT.with(&start), start.has_receive())
            }
            _ => panic!("{name}"),
        }
    };
    let properties = |receive, backward| Properties {
        receive: InlineSize(receive),
        backward,
    };
    assert_eq!(announced("connprop-nothing"), (Properties::DEFAULT, false));
    assert_eq!(announced("connprop-defaults"), (Properties::DEFAULT, true));
    let eight = properties(8192, BackwardSupport::Inline);
    assert_eq!(announced("connprop-unknown"), (eight, true));
    let none = properties(4096, BackwardSupport::None);
    assert_eq!(announced("connprop-brs-none"), (none, false));
    let general = properties(4096, BackwardSupport::General);
    assert_eq!(announced("connprop-brs-genl"), (general, false));
    let largest = properties(u32::MAX, BackwardSupport::Inline);
    assert_eq!(announced("connprop-largest"), (largest, true));
    // Every peer can receive that size.
    let smallest = properties(1024, BackwardSupport::Inline);
    assert_eq!(announced("connprop-smallest"), (smallest, true));
}

#[test]
fn receive_sizes_requested_and_announced() {
    for (name, proc) in RECEIVE_SIZES {
        let vector = vectors().find(|v| v.name == name).expect("a vector");
        let parsed = decode_as(&vector.bytes, &ANY, BOTH).unwrap();
        let octets = match parsed.properties(&vector.bytes) {
            Some(Message::Request { want: set } | Message::Update { now: set }) => set.receive(),
            _ => None,
        };
        let (xid, credits) = (parsed.header.xid, parsed.header.credits);
        let mut buf = [0xee; 64];
        let len = encode_receive(&mut buf, proc, xid, credits, octets.unwrap()).unwrap();
        assert_eq!(hex(&buf[..len]), hex(&vector.bytes), "{name}");
    }
    assert!(encode_receive(&mut [0; 64], Proc::ConnProp, Xid(1), Credits(1), 4096).is_err());
}

/// Returns the result of a request for a Receive size of 9999 octets.
#[test]
fn responses_to_a_request() {
    for (name, expected) in [
        ("resprop-nothing", None),
        ("resprop-done", Some(9999)),
        ("resprop-rejected", None),
        ("resprop-other", Some(0x4000)),
        ("resprop-done-and-rejected", Some(9999)),
        ("resprop-unknown-rejected", None),
        ("resprop-two-words", None),
        // Done, rejected and other at the same time.
        ("resprop-overlap", None),
    ] {
        let vector = vectors().find(|v| v.name == name).expect("a vector");
        let parsed = decode_as(&vector.bytes, &ANY, BOTH).unwrap();
        let Some(Message::Response {
            done,
            rejected,
            other,
        }) = parsed.properties(&vector.bytes)
        else {
            panic!("{name}");
        };
        assert_eq!(granted(9999, &done, &rejected, &other), expected, "{name}");
    }
}
