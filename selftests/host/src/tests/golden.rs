// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The vectors, both ways: what they decode to, and that encoding gives the same octets.

use crate::{
    checks::{
        encode_lists,
        sorted, //
    },
    decoded::{
        decode,
        prefix,
        segments,
        Message, //
    },
    vectors::{
        self,
        Vector, //
    },
    xdr::{
        chunk::{
            ListLimits,
            Lists,
            WriteChunk, //
        },
        encode::{
            encode_error,
            encode_one,
            encode_plain,
            encode_reply,
            Encoder,
            HeaderPrefix,
            SoleSegment, //
        },
        error::{
            EncodeError,
            ErrorBody, //
        },
        header::{
            Header,
            Proc, //
        },
        message::Direction,
        pcl::{
            Piece,
            ReadChunk, //
        },
        private::Private,
        reply::Outcome,
        segment::{
            ReadSegment,
            Segment, //
        },
        units::{
            Credits,
            Handle,
            InlineSize,
            Offset,
            Position,
            Xid, //
        },
        version::Version, //
    }, //
};

/// Generous limits: other tests cover their refusals.
pub(super) const ANY: ListLimits = ListLimits {
    segments: u32::MAX,
    read_octets: u32::MAX,
};

pub(super) fn segment(handle: u32, length: u32, offset: u64) -> Segment {
    Segment {
        handle: Handle(handle),
        length,
        offset: Offset(offset),
    }
}

fn read(position: u32, handle: u32, length: u32, offset: u64) -> ReadSegment {
    ReadSegment {
        position: Position(position),
        segment: segment(handle, length, offset),
    }
}

fn header(xid: u32, version: u32, credits: u32, proc: Proc) -> Header {
    Header {
        xid: Xid(xid),
        version,
        credits: Credits(credits),
        proc: proc.to_u32(),
    }
}

/// Decodes a vector that must be valid; checks its fixed words.
fn good<'a>(bytes: &'a [u8], xid: u32, credits: u32, proc: Proc) -> Message<'a> {
    let message = decode(bytes, &ANY).expect("a good vector");
    assert_eq!(message.header, header(xid, 1, credits, proc));
    message
}

fn payload<'a>(message: &Message<'a>) -> &'a [u8] {
    message.payload().expect("an inline payload")
}

/// Encodes into a buffer, and checks that the octets are the vector's first words.
fn encodes_to(vector: &Vector, encode: impl FnOnce(&mut [u8]) -> usize) {
    let mut buf = [0xee; 512];
    let len = encode(&mut buf);
    assert_eq!(buf[..len], vector.bytes()[..len], "{}", vector.name);
    assert!(buf[len..].iter().all(|b| *b == 0xee), "{}", vector.name);
}

#[test]
fn inline_call_and_reply() {
    let call_bytes = vectors::INLINE_CALL.bytes();
    let call = good(&call_bytes, 0x1122_3344, 128, Proc::Msg);
    assert_eq!(call.header_len, 28);
    assert!(call.has_no_chunks());
    assert_eq!(payload(&call).len(), 40);
    assert_eq!(call.direction, Some(Direction::Call));
    assert_eq!(call.invalidate, None);
    encodes_to(&vectors::INLINE_CALL, |buf| {
        let prefix = prefix(Xid(0x1122_3344), Credits(128), Proc::Msg);
        encode_plain(buf, &prefix).unwrap()
    });

    let bytes = vectors::INLINE_REPLY.bytes();
    let message = good(&bytes, 0x1122_3344, 64, Proc::Msg);
    assert_eq!(message.direction, Some(Direction::Reply));
    let outcome = message.check([], []);
    let expected = Outcome::Inline {
        payload: &bytes[28..],
        written: 0,
    };
    assert_eq!(outcome, Ok(expected));
    encodes_to(&vectors::INLINE_REPLY, |buf| {
        encode_reply(buf, &call, Credits(64), &Lists::default(), [], None).unwrap()
    });
}

#[test]
fn read_chunk() {
    let bytes = vectors::READ_CHUNK_CALL.bytes();
    let message = good(&bytes, 0xa1, 32, Proc::Msg);
    assert_eq!(message.header_len, 28 + 2 * 24);
    assert_eq!(payload(&message).len(), 96);
    assert_eq!(message.direction, Some(Direction::Call));
    let segments = [
        read(96, 0x1001, 3, 0xa1_0000_0000),
        read(96, 0x1002, 2, 0xa1_0000_1000),
    ];
    let lists = message.lists();
    assert!(lists.read.iter().eq(segments));
    assert_eq!(message.invalidate, None);

    let chunks = sorted(&lists.read, Some(96), 104).expect("it fits");
    assert_eq!(chunks.stream_len(), 104);
    let chunk = ReadChunk {
        position: Position(96),
        length: 5,
    };
    let base = Piece::Base {
        offset: 0,
        length: 96,
    };
    assert!(chunks
        .pieces()
        .eq([base, Piece::Chunk(chunk), Piece::Pad(3)]));
    assert!(sorted(&lists.read, Some(96), 103).is_err());

    encodes_to(&vectors::READ_CHUNK_CALL, |buf| {
        let prefix = prefix(Xid(0xa1), Credits(32), Proc::Msg);
        let mut encoder = Encoder::new(buf, &prefix).unwrap();
        for segment in segments {
            encoder.read_segment(segment).unwrap();
        }
        let encoder = encoder.end_reads().unwrap().end_writes().unwrap();
        encoder.no_reply_chunk().unwrap()
    });
}

#[test]
fn two_chunks_out_of_order() {
    let bytes = vectors::TWO_CHUNKS_CALL.bytes();
    let message = good(&bytes, 0xb2, 4, Proc::Msg);
    let chunks = sorted(&message.lists().read, Some(16), 1024).expect("it fits");
    let chunk = |position, length| {
        Piece::Chunk(ReadChunk {
            position: Position(position),
            length,
        })
    };
    let base = |offset, length| Piece::Base { offset, length };
    let expected = [
        base(0, 8),
        chunk(8, 6),
        Piece::Pad(2),
        base(8, 4),
        chunk(20, 8),
        base(12, 4),
    ];
    assert_eq!(chunks.pieces().collect::<Vec<_>>(), expected);
    assert_eq!(chunks.stream_len(), 32);
    assert!(chunks.call_chunk().is_none());
}

#[test]
fn position_zero() {
    let bytes = vectors::POSITION_ZERO_CALL.bytes();
    let message = good(&bytes, 0xc3, 16, Proc::NoMsg);
    assert_eq!(message.header_len, bytes.len());
    assert_eq!(message.direction, Some(Direction::Call));
    let lists = message.lists();
    let chunks = sorted(&lists.read, None, 5000).expect("it fits");
    let call = ReadChunk {
        position: Position::ZERO,
        length: 5000,
    };
    assert_eq!(chunks.call_chunk(), Some(call));
    assert!(chunks.chunks().is_empty());
    let all = Piece::Base {
        offset: 0,
        length: 5000,
    };
    assert!(chunks.pieces().eq([all]));
    let parts = lists.read.chunk_range(Position::ZERO, 4000, 200);
    let expected = [
        segment(0x3001, 96, 0xffff_ffff_ffff_0fa0),
        segment(0x3002, 104, 0),
    ];
    assert!(parts.eq(expected));
}

#[test]
fn write_chunk() {
    let call_bytes = vectors::WRITE_CHUNK_CALL.bytes();
    let call = good(&call_bytes, 0xd4, 128, Proc::Msg);
    let offered = [
        segment(0x4001, 4096, 0xd4_0000_0000),
        segment(0x4002, 1000, 0xd4_0000_1000),
    ];
    let lists = call.lists();
    let chunk = lists.write.iter().next().expect("a chunk");
    assert_eq!(lists.write.iter().count(), 1);
    assert!(chunk.iter().eq(offered));
    assert_eq!(chunk.capacity(), 5096);
    assert_eq!(lists.reply_header_len(call.version), 28 + 8 + 32);
    encodes_to(&vectors::WRITE_CHUNK_CALL, |buf| {
        let prefix = prefix(Xid(0xd4), Credits(128), Proc::Msg);
        let encoder = Encoder::new(buf, &prefix).unwrap();
        let mut encoder = encoder.end_reads().unwrap();
        assert_eq!(encoder.write_chunk(offered), Ok(()));
        encoder.end_writes().unwrap().no_reply_chunk().unwrap()
    });
    encodes_to(&vectors::WRITE_CHUNK_REPLY, |buf| {
        encode_reply(buf, &call, Credits(128), &lists, [4100], None).unwrap()
    });

    let bytes = vectors::WRITE_CHUNK_REPLY.bytes();
    let message = good(&bytes, 0xd4, 128, Proc::Msg);
    let expected = Outcome::Inline {
        payload: &bytes[68..],
        written: 4100,
    };
    assert_eq!(message.check(offered, []), Ok(expected));
}

/// The header of one segment is that of an [`Encoder`], in each list and version.
#[test]
fn one_segment() {
    let only = segment(0xf001_0203, 0xf00d, 0xf123_4567_89ab_cdef);
    let item = ReadSegment {
        position: Position(0xf004),
        segment: only,
    };
    let (mut long, mut short) = ([0; 128], [0; 128]);
    for version in [Version::One, Version::Two] {
        let prefix = HeaderPrefix {
            version,
            invalidate: (version == Version::Two).then_some(Handle(0xf001_0203)),
            ..prefix(Xid(0xa6), Credits(8), Proc::Msg)
        };
        for listed in [
            SoleSegment::Read(item),
            SoleSegment::Write(only),
            SoleSegment::Reply(only),
        ] {
            let mut encoder = Encoder::new(&mut long, &prefix).unwrap();
            if let SoleSegment::Read(item) = listed {
                encoder.read_segment(item).unwrap();
            }
            let mut encoder = encoder.end_reads().unwrap();
            if let SoleSegment::Write(segment) = listed {
                encoder.write_chunk([segment]).unwrap();
            }
            let encoder = encoder.end_writes().unwrap();
            let len = match listed {
                SoleSegment::Reply(segment) => encoder.reply_chunk([segment]),
                _ => encoder.no_reply_chunk(),
            }
            .unwrap();
            assert_eq!(encode_one(&mut short, &prefix, listed), Ok(len));
            assert_eq!(short[..len], long[..len]);
            for room in 0..len {
                let encoded = encode_one(&mut short[..room], &prefix, listed);
                assert_eq!(encoded, Err(EncodeError::NoSpace));
            }
        }
        let len = encode_lists(&mut long, &prefix, &Lists::default()).unwrap();
        assert_eq!(encode_plain(&mut short, &prefix), Ok(len));
        assert_eq!(short[..len], long[..len]);
    }
}

/// An empty Write chunk asks for its result inline, and comes back (RFC 8166, section 4.3.2.3).
#[test]
fn empty_write_chunk() {
    let chunks = |bytes: &[u8]| -> Vec<(u32, u32)> {
        let message = decode(bytes, &ANY).expect("a good header");
        let chunks = message.lists().write.iter();
        let length = |chunk: &WriteChunk<'_>| u32::try_from(chunk.capacity()).unwrap();
        chunks
            .map(|chunk| (chunk.count(), length(&chunk)))
            .collect()
    };
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    // Two Write chunks, of which the first one is empty; then a NULL Call.
    let offered = [0xa7, 1, 8, 0, 0, 1, 0, 1, 1, 0x7001, 64, 0, 0x100, 0, 0];
    let mut bytes = words(&offered);
    bytes.extend(words(&[0xa7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]));
    let call = good(&bytes, 0xa7, 8, Proc::Msg);
    assert_eq!(chunks(&bytes), [(0, 0), (1, 64)]);
    assert_eq!(call.invalidate, Some(Handle(0x7001)));
    let lists = call.lists();
    assert_eq!(lists.reply_header_len(call.version), 4 * offered.len());
    let mut reply = [0xff; 256];
    let len = encode_reply(&mut reply, &call, Credits(8), &lists, [0, 5], None).unwrap();
    let returned = [0xa7, 1, 8, 0, 0, 1, 0, 1, 1, 0x7001, 5, 0, 0x100, 0, 0];
    assert_eq!(&reply[..len], words(&returned));
    assert_eq!(chunks(&reply[..len]), [(0, 0), (1, 5)]);
}

#[test]
fn reply_chunk() {
    let call_bytes = vectors::REPLY_CHUNK_CALL.bytes();
    let call = good(&call_bytes, 0xe5, 128, Proc::Msg);
    let offered = [segment(0x5001, 8192, 0xe5_0000_0040)];
    let lists = call.lists();
    assert!(lists.reply.expect("a chunk").iter().eq(offered));
    assert_eq!(call.invalidate, Some(Handle(0x5001)));
    encodes_to(&vectors::REPLY_CHUNK_CALL, |buf| {
        let prefix = prefix(Xid(0xe5), Credits(128), Proc::Msg);
        let encoder = Encoder::new(buf, &prefix).unwrap();
        let encoder = encoder.end_reads().unwrap().end_writes().unwrap();
        encoder.reply_chunk(offered).unwrap()
    });
    encodes_to(&vectors::REPLY_CHUNK_REPLY, |buf| {
        encode_reply(buf, &call, Credits(128), &lists, [], Some(5000)).unwrap()
    });
    encodes_to(&vectors::UNUSED_REPLY_CHUNK_REPLY, |buf| {
        encode_reply(buf, &call, Credits(128), &lists, [], None).unwrap()
    });

    let bytes = vectors::REPLY_CHUNK_REPLY.bytes();
    let message = good(&bytes, 0xe5, 128, Proc::NoMsg);
    assert_eq!(message.direction, Some(Direction::Reply));
    let outcome = message.check([], offered);
    assert_eq!(outcome, Ok(Outcome::ReplyChunk { written: 5000 }));

    let bytes = vectors::UNUSED_REPLY_CHUNK_REPLY.bytes();
    let message = good(&bytes, 0xe5, 128, Proc::Msg);
    let expected = Outcome::Inline {
        payload: &bytes[48..],
        written: 0,
    };
    assert_eq!(message.check([], offered), Ok(expected));
}

#[test]
fn all_lists() {
    let bytes = vectors::ALL_LISTS_CALL.bytes();
    let message = good(&bytes, 0xf6, 8, Proc::Msg);
    let lists = message.lists();
    let chunks: Vec<Vec<Segment>> = lists.write.iter().map(|c| c.iter().collect()).collect();
    let expected = [
        vec![segment(0x6002, 512, 0x200)],
        vec![segment(0x6003, 256, 0x300), segment(0x6004, 256, 0x400)],
    ];
    assert_eq!(chunks, expected);
    let handles: Vec<u32> = segments(&lists).map(|s| s.handle.0).collect();
    assert_eq!(handles, [0x6001, 0x6002, 0x6003, 0x6004, 0x6005]);
    encodes_to(&vectors::ALL_LISTS_CALL, |buf| {
        let prefix = prefix(Xid(0xf6), Credits(8), Proc::Msg);
        let mut encoder = Encoder::new(buf, &prefix).unwrap();
        encoder.read_segment(read(12, 0x6001, 16, 0x100)).unwrap();
        let mut encoder = encoder.end_reads().unwrap();
        for chunk in expected {
            encoder.write_chunk(chunk).unwrap();
        }
        let encoder = encoder.end_writes().unwrap();
        encoder.reply_chunk([segment(0x6005, 1024, 0x500)]).unwrap()
    });
}

#[test]
fn error_reports() {
    let bytes = vectors::ERR_CHUNK.bytes();
    let message = good(&bytes, 0x107, 128, Proc::Error);
    assert_eq!(message.check([], []), Ok(Outcome::Failed(ErrorBody::Chunk)));
    assert_eq!(message.direction, Some(Direction::Reply));
    encodes_to(&vectors::ERR_CHUNK, |buf| {
        let call = header(0x107, 1, 7, Proc::Msg);
        encode_error(buf, &call, Credits(128), ErrorBody::Chunk).unwrap()
    });

    let bytes = vectors::ERR_VERS_ONE.bytes();
    let message = good(&bytes, 0x118, 128, Proc::Error);
    let body = ErrorBody::Version { low: 2, high: 3 };
    assert_eq!(message.check([], []), Ok(Outcome::Failed(body)));
    encodes_to(&vectors::ERR_VERS, |buf| {
        let call = header(0x118, 2, 7, Proc::Msg);
        let body = ErrorBody::Version { low: 1, high: 1 };
        encode_error(buf, &call, Credits(128), body).unwrap()
    });
}

#[test]
fn private_data() {
    let peer = Private::decode(&vectors::PRIVATE_4K.bytes()).expect("private data");
    let expected = Private {
        remote_invalidation: true,
        send: InlineSize(4096),
        receive: InlineSize(4096),
    };
    assert_eq!(peer, expected);
    assert_eq!(expected.encode()[..], vectors::PRIVATE_4K.bytes());

    let peer = Private::decode(&vectors::PRIVATE_ASYMMETRIC.bytes()).expect("private data");
    let asymmetric = Private {
        remote_invalidation: false,
        send: InlineSize(1024),
        receive: InlineSize(256 << 10),
    };
    assert_eq!(peer, asymmetric);
    assert_eq!(
        asymmetric.encode()[..],
        vectors::PRIVATE_ASYMMETRIC.bytes()[..8]
    );
    let both = Private {
        remote_invalidation: false,
        send: InlineSize(4096),
        receive: InlineSize(1024),
    };
    assert_eq!(expected.negotiate(&asymmetric), both);
}
