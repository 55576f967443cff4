// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Malformed messages: each is refused for its own reason, and answered as RFC 8166 says.

use super::golden::ANY;
use crate::{
    checks::sorted,
    decoded::{
        decode,
        segments, //
    },
    vectors::{
        self,
        Vector, //
    },
    xdr::{
        chunk::ListLimits,
        error::{
            DecodeError,
            ErrorBody,
            ErrorResponse,
            Item, //
        },
        header::{
            RESERVED_DONE,
            RESERVED_MSGP, //
        },
        message::{
            self,
            Body,
            Direction, //
        },
        pcl::MAX_READ_CHUNKS,
        units::{
            Handle,
            Xid, //
        },
        version::{
            Version,
            Versions, //
        }, //
    }, //
};

/// Returns the answers of a Responder that supports version 1.
const ERR_VERS: ErrorResponse = ErrorResponse::Report(ErrorBody::Version { low: 1, high: 1 });
const ERR_CHUNK: ErrorResponse = ErrorResponse::Report(ErrorBody::Chunk);

/// Returns the vector with some words replaced.
fn with(vector: &Vector, words: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vector.bytes();
    for (index, word) in words {
        bytes[index * 4..index * 4 + 4].copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

fn refused(bytes: &[u8], limits: &ListLimits) -> (DecodeError, ErrorResponse) {
    match decode(bytes, limits) {
        Ok(_) => panic!("not refused"),
        Err(rejected) => (rejected.error, rejected.response()),
    }
}

#[track_caller]
fn err_chunk(bytes: &[u8], error: DecodeError) {
    assert_eq!(refused(bytes, &ANY), (error, ERR_CHUNK));
}

#[test]
fn truncated_at_every_octet() {
    for vector in vectors::MESSAGES {
        let bytes = vector.bytes();
        let Ok(whole) = decode(&bytes, &ANY) else {
            continue;
        };
        for len in 0..whole.header_len {
            let (error, answer) = refused(&bytes[..len], &ANY);
            assert!(
                matches!(error, DecodeError::Truncated(_)),
                "{}",
                vector.name
            );
            let is_error = matches!(whole.body, Body::Error(_));
            if len < 28 || is_error {
                assert_eq!(answer, ErrorResponse::Drop, "{} at {len}", vector.name);
            } else {
                assert_eq!(answer, ERR_CHUNK, "{} at {len}", vector.name);
            }
        }
        for len in whole.header_len..bytes.len() {
            let cut = decode(&bytes[..len], &ANY).expect("the header is whole");
            let known = len >= whole.header_len + 8;
            assert_eq!(cut.direction.is_some(), known, "{}", vector.name);
        }
    }
}

#[test]
fn versions_and_procedures() {
    let version = |bytes: &[u8]| refused(bytes, &ANY);
    let error = DecodeError::Version(Versions::only(Version::One));
    assert_eq!(version(&vectors::VERSION_TWO.bytes()), (error, ERR_VERS));
    let zero = with(&vectors::INLINE_CALL, &[(1, 0)]);
    assert_eq!(version(&zero), (error, ERR_VERS));
    // The version is checked before anything that depends on it.
    let both = with(&vectors::UNKNOWN_PROC, &[(1, 2), (4, 9)]);
    assert_eq!(version(&both), (error, ERR_VERS));
    // No answer to an error report: two peers would never stop.
    let report = with(&vectors::ERR_VERS, &[(4, 2)]);
    assert_eq!(version(&report), (error, ErrorResponse::Drop));

    err_chunk(&vectors::MSGP.bytes(), DecodeError::Reserved(RESERVED_MSGP));
    err_chunk(&vectors::UNKNOWN_PROC.bytes(), DecodeError::UnknownProc(5));
    let done = refused(&vectors::DONE.bytes(), &ANY);
    assert_eq!(
        done,
        (DecodeError::Reserved(RESERVED_DONE), ErrorResponse::Drop)
    );
}

#[test]
fn short_messages_are_dropped() {
    let short = (
        DecodeError::Truncated(Item::FixedHeader),
        ErrorResponse::Drop,
    );
    for len in 0..28 {
        assert_eq!(refused(&vectors::INLINE_CALL.bytes()[..len], &ANY), short);
        // Too short for any version.
        assert_eq!(refused(&vectors::VERSION_TWO.bytes()[..len], &ANY), short);
    }
    assert!(decode(&vectors::ERR_CHUNK.bytes(), &ANY).is_ok());
}

#[test]
fn what_a_requester_gives_up() {
    let failed = |bytes: &[u8]| {
        let rejected = decode(bytes, &ANY).err().expect("refused");
        rejected.failed_rpc().map(|header| header.xid)
    };
    // Discarded: the RPC continues waiting.
    for len in 0..28 {
        assert_eq!(failed(&vectors::INLINE_REPLY.bytes()[..len]), None);
    }
    assert_eq!(failed(&vectors::MSGP.bytes()), None);
    assert_eq!(failed(&vectors::DONE.bytes()), None);
    assert_eq!(failed(&vectors::ERR_VERS_ONE.bytes()[..24]), None);
    // No other Reply will arrive.
    assert_eq!(failed(&vectors::UNKNOWN_PROC.bytes()), Some(Xid(0x12b)));
    assert_eq!(failed(&vectors::VERSION_TWO.bytes()), Some(Xid(0x12c)));
    let report = with(&vectors::ERR_VERS, &[(4, 2)]);
    assert_eq!(failed(&report), Some(Xid(0x118)));
    assert_eq!(
        failed(&vectors::WRITE_CHUNK_REPLY.bytes()[..40]),
        Some(Xid(0xd4))
    );
}

#[test]
fn discriminators() {
    for word in [2, 0x0100_0000, u32::MAX] {
        for index in 4..7 {
            let bytes = with(&vectors::INLINE_CALL, &[(index, word)]);
            err_chunk(&bytes, DecodeError::Discriminator(word));
        }
        let bytes = with(&vectors::READ_CHUNK_CALL, &[(10, word)]);
        err_chunk(&bytes, DecodeError::Discriminator(word));
        let bytes = with(&vectors::WRITE_CHUNK_CALL, &[(15, word)]);
        err_chunk(&bytes, DecodeError::Discriminator(word));
    }
}

#[test]
fn segment_counts() {
    for (vector, index) in [
        (vectors::WRITE_CHUNK_CALL, 6),
        (vectors::REPLY_CHUNK_CALL, 7),
    ] {
        for count in [20, 0x1000_0000, 0x1000_0001, u32::MAX] {
            let bytes = with(&vector, &[(index, count)]);
            err_chunk(&bytes, DecodeError::Truncated(Item::Segment));
        }
    }
    let bytes = with(&vectors::REPLY_CHUNK_CALL, &[(7, 0)]);
    err_chunk(&bytes, DecodeError::EmptyChunk);
    let bytes = vectors::ALL_LISTS_CALL.bytes();
    let limits = |segments| ListLimits { segments, ..ANY };
    assert!(decode(&bytes, &limits(5)).is_ok());
    for segments in 0..5 {
        let error = DecodeError::TooManySegments { max: segments };
        assert_eq!(refused(&bytes, &limits(segments)), (error, ERR_CHUNK));
    }
    // A chunk that is cut off is no chunk with too many segments.
    for count in [2, 1001, u32::MAX] {
        let bytes = with(&vectors::WRITE_CHUNK_CALL, &[(6, count)]);
        let bytes = &bytes[..bytes.len().min(48)];
        let error = DecodeError::Truncated(Item::Segment);
        for segments in [0, 1000, u32::MAX] {
            assert_eq!(refused(bytes, &limits(segments)), (error, ERR_CHUNK));
        }
    }
}

#[test]
fn a_handle_of_zero_is_not_invalidated() {
    let named = |vector: &Vector, words: &[(usize, u32)]| {
        let bytes = with(vector, words);
        decode(&bytes, &ANY).expect("a good header").invalidate
    };
    let one = vectors::REPLY_CHUNK_CALL;
    assert_eq!(named(&one, &[(8, 7)]), Some(Handle(7)));
    assert_eq!(named(&one, &[(8, 0)]), None);
    // Neither is another one next to it.
    let two = vectors::WRITE_CHUNK_CALL;
    assert_eq!(named(&two, &[(7, 7), (11, 7)]), Some(Handle(7)));
    for words in [[(7, 0), (11, 0)], [(7, 0), (11, 7)], [(7, 7), (11, 0)]] {
        assert_eq!(named(&two, &words), None);
    }
}

#[test]
fn positions() {
    for position in [1, 2, 3, 4, 5, 6, 7, 9, 97, u32::MAX] {
        let bytes = with(&vectors::READ_CHUNK_CALL, &[(5, position)]);
        err_chunk(&bytes, DecodeError::Position);
    }
}

#[test]
fn lengths() {
    let octets = |read_octets| ListLimits { read_octets, ..ANY };
    let bytes = vectors::READ_CHUNK_CALL.bytes();
    assert!(decode(&bytes, &octets(5)).is_ok());
    let expected = (DecodeError::TooLong, ERR_CHUNK);
    assert_eq!(refused(&bytes, &octets(4)), expected);
    // The sum does not wrap.
    let bytes = with(&vectors::READ_CHUNK_CALL, &[(7, u32::MAX), (13, 2)]);
    err_chunk(&bytes, DecodeError::TooLong);
    // Neither does the address.
    let bytes = with(
        &vectors::REPLY_CHUNK_CALL,
        &[(10, u32::MAX), (11, u32::MAX - 8190)],
    );
    err_chunk(&bytes, DecodeError::SegmentRange);
    let bytes = with(
        &vectors::REPLY_CHUNK_CALL,
        &[(10, u32::MAX), (11, u32::MAX - 8192)],
    );
    assert!(decode(&bytes, &ANY).is_ok());
}

#[test]
fn payload_places() {
    // RDMA_NOMSG without any chunk.
    let bytes = with(&vectors::INLINE_CALL, &[(3, 1)]);
    err_chunk(&bytes, DecodeError::PayloadLocation);
    let parse = |bytes: &[u8], inline_len| {
        let message = decode(bytes, &ANY).expect("a good header");
        sorted(&message.lists().read, inline_len, u32::MAX)
    };
    // A Position Zero Read chunk together with an inline Payload stream.
    let bytes = vectors::POSITION_ZERO_CALL.bytes();
    assert_eq!(parse(&bytes, Some(40)), Err(DecodeError::PayloadLocation));
    // RDMA_NOMSG with Read chunks, but none that holds the Payload stream.
    let bytes = vectors::READ_CHUNK_CALL.bytes();
    assert_eq!(parse(&bytes, None), Err(DecodeError::PayloadLocation));
    // A chunk that is present but empty.
    let bytes = with(&vectors::POSITION_ZERO_CALL, &[(7, 0), (13, 0)]);
    assert_eq!(parse(&bytes, None), Err(DecodeError::PayloadLocation));
    assert!(parse(&bytes, Some(40)).is_ok_and(|chunks| chunks.is_empty()));
}

#[test]
fn overlaps() {
    let parse = |words: &[(usize, u32)], inline_len| {
        let bytes = with(&vectors::TWO_CHUNKS_CALL, words);
        let message = decode(&bytes, &ANY).expect("a good header");
        sorted(&message.lists().read, Some(inline_len), u32::MAX)
    };
    assert!(parse(&[], 16).is_ok());
    // The chunk at 8 is as long as the gap to the one at 20, and longer.
    assert!(parse(&[(13, 12)], 16).is_ok());
    assert_eq!(parse(&[(13, 13)], 16), Err(DecodeError::Overlap));
    // The chunk at 20 needs 12 inline octets before it, the last one none after it.
    assert!(parse(&[], 12).is_ok());
    assert_eq!(parse(&[], 11), Err(DecodeError::Overlap));
    assert_eq!(parse(&[(5, u32::MAX - 3)], 16), Err(DecodeError::Overlap));
    // The end of the stream does not wrap.
    assert_eq!(parse(&[(7, u32::MAX - 16)], 16), Err(DecodeError::TooLong));
}

#[test]
fn too_many_chunks() {
    let call = |chunks: u32| {
        let mut words = vec![0x77, 1, 1, 0];
        for index in 0..chunks {
            words.extend([1, 8 + 4 * index, 0x99, 4, 0, 0]);
        }
        words.extend([0, 0, 0, 0x77, 0]);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        let message = decode(&bytes, &ANY).expect("a good header");
        sorted(&message.lists().read, Some(8), u32::MAX)
    };
    let most = MAX_READ_CHUNKS as u32;
    assert_eq!(
        call(most).map(|chunks| chunks.chunks().len()),
        Ok(MAX_READ_CHUNKS)
    );
    let error = DecodeError::TooManyReadChunks { max: most };
    assert_eq!(call(most + 1), Err(error));
}

#[test]
fn directions() {
    let direction = |bytes: &[u8]| decode(bytes, &ANY).expect("a good header").direction;
    let call = &vectors::INLINE_CALL;
    assert_eq!(direction(&with(call, &[(7, 0x1122_3345)])), None);
    assert_eq!(direction(&with(call, &[(8, 2)])), None);
    assert_eq!(direction(&with(call, &[(8, 1)])), Some(Direction::Reply));
    // A reverse-direction Call with the XID of a Call that waits is still a Call.
    let bytes = with(&vectors::WRITE_CHUNK_REPLY, &[(18, 0)]);
    assert_eq!(direction(&bytes), Some(Direction::Call));
    // RDMA_NOMSG with a Read list that does not hold the Payload stream is neither.
    let bytes = with(&vectors::READ_CHUNK_CALL, &[(3, 1)]);
    assert_eq!(direction(&bytes), None);
}

#[test]
fn only_a_reply_grants_credits() {
    let grant = |bytes: &[u8]| decode(bytes, &ANY).expect("a good header").grant();
    let credits = |bytes: &[u8]| decode(bytes, &ANY).expect("a good header").header.credits;
    for vector in [
        &vectors::INLINE_REPLY,
        &vectors::WRITE_CHUNK_REPLY,
        &vectors::REPLY_CHUNK_REPLY,
    ] {
        let bytes = vector.bytes();
        assert_eq!(grant(&bytes), Some(credits(&bytes)));
    }
    // The credit word of a Call is a request. It has no known meaning in an error report, without
    // an RPC message, and with an RPC message of another XID or without a direction.
    let reply = &vectors::INLINE_REPLY;
    for bytes in [
        vectors::INLINE_CALL.bytes(),
        vectors::POSITION_ZERO_CALL.bytes(),
        vectors::ERR_CHUNK.bytes(),
        vectors::ERR_VERS_ONE.bytes(),
        with(reply, &[(7, 0x1122_3345)]),
        with(reply, &[(8, 2)]),
        reply.bytes()[..28].to_vec(),
        with(&vectors::READ_CHUNK_CALL, &[(3, 1)]),
    ] {
        assert_eq!(grant(&bytes), None);
    }
}

/// A Responder that does not support the Call's version may put any version into its report.
#[test]
fn version_reports_of_any_version() {
    for version in [0, 1, 2, 3, u32::MAX] {
        let bytes = with(&vectors::ERR_VERS, &[(1, version)]);
        let message = decode(&bytes, &ANY).expect("an error report");
        assert_eq!(message.header.version, version);
        let body = ErrorBody::Version { low: 1, high: 1 };
        assert_eq!(message.body, Body::Error(body));
        assert_eq!(message.direction, Some(Direction::Reply));
        assert_eq!(message.grant(), None);
        for len in 0..bytes.len() {
            assert_eq!(refused(&bytes[..len], &ANY).1, ErrorResponse::Drop);
        }
    }
}

/// A parsed message that is applied to other octets by mistake gives no result.
#[test]
fn lists_of_other_octets() {
    for vector in vectors::MESSAGES {
        let bytes = vector.bytes();
        let Ok(message) = message::decode(&bytes, &ANY, Versions::only(Version::One)) else {
            continue;
        };
        for len in 0..bytes.len() {
            let lists = message.lists(&bytes[..len]);
            let all = segments(&message.lists(&bytes)).count();
            assert!(segments(&lists).count() <= all, "{}", vector.name);
        }
        for fill in [0, 1, 0xff] {
            let other = vec![fill; bytes.len()];
            let segments = segments(&message.lists(&other)).count();
            assert!(segments <= bytes.len() / 16, "{}", vector.name);
        }
    }
}
