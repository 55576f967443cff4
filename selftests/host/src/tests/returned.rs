// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! What a Requester accepts as the result of its Call.

use super::golden::{
    segment,
    ANY, //
};
use crate::{
    decoded::{
        decode,
        prefix, //
    },
    xdr::{
        chunk::Lists,
        encode::{
            encode_plain,
            encode_reply,
            Encoder, //
        },
        error::{
            DecodeError,
            EncodeError, //
        },
        header::Proc,
        reply::Outcome,
        segment::{
            ReadSegment,
            Segment, //
        },
        units::{
            Credits,
            Position,
            Xid, //
        }, //
    }, //
};

const XID: Xid = Xid(0x42);

/// A header with these lists.
fn message(proc: Proc, read: bool, writes: &[&[Segment]], reply: &[Segment]) -> Vec<u8> {
    let mut buf = vec![0; 1024];
    let mut stage = Encoder::new(&mut buf, &prefix(XID, Credits(1), proc)).unwrap();
    if read {
        let position = Position(64);
        let segment = segment(1, 1, 1);
        stage
            .read_segment(ReadSegment { position, segment })
            .unwrap();
    }
    let mut stage = stage.end_reads().unwrap();
    for chunk in writes {
        stage.write_chunk(chunk.iter().copied()).unwrap();
    }
    let stage = stage.end_writes().unwrap();
    let len = match reply {
        [] => stage.no_reply_chunk(),
        _ => stage.reply_chunk(reply.iter().copied()),
    };
    buf.truncate(len.unwrap());
    buf
}

#[track_caller]
fn refused(bytes: &[u8], write: &[Segment], reply: &[Segment], error: DecodeError) {
    let message = decode(bytes, &ANY).expect("a good header");
    let outcome = message.check(write.iter().copied(), reply.iter().copied());
    assert_eq!(outcome, Err(error));
}

#[track_caller]
fn written(bytes: &[u8], write: &[Segment], reply: &[Segment]) -> u32 {
    let message = decode(bytes, &ANY).expect("a good header");
    match message.check(write.iter().copied(), reply.iter().copied()) {
        Ok(Outcome::Inline { written, .. } | Outcome::ReplyChunk { written }) => written,
        other => panic!("{other:?}"),
    }
}

#[test]
fn returned_as_offered() {
    let one = segment(1, 100, 0);
    let two = segment(2, 50, 64);
    let back = |a: u32, b: u32| {
        message(
            Proc::Msg,
            false,
            &[&[one.with_length(a), two.with_length(b)]],
            &[],
        )
    };
    for (a, b) in [(0, 0), (1, 0), (100, 0), (100, 1), (100, 50)] {
        assert_eq!(written(&back(a, b), &[one, two], &[]), a + b);
    }
    // Longer than offered, and with a hole that was not written.
    for (a, b) in [(101, 0), (100, 51), (0, 1), (99, 1), (u32::MAX, 0)] {
        refused(&back(a, b), &[one, two], &[], DecodeError::Mismatch);
    }
    // A segment more than offered.
    refused(&back(0, 0), &[one], &[], DecodeError::Mismatch);
    // Another place.
    let moved = segment(2, 50, 65);
    refused(&back(0, 0), &[one, moved], &[], DecodeError::Mismatch);
    let renamed = segment(3, 50, 64);
    refused(&back(0, 0), &[one, renamed], &[], DecodeError::Mismatch);
}

#[test]
fn one_segment_returned_as_offered() {
    let one = segment(1, 100, 64);
    let back = |segment: Segment| message(Proc::Msg, false, &[&[segment]], &[]);
    for length in [0, 1, 100] {
        assert_eq!(written(&back(one.with_length(length)), &[one], &[]), length);
    }
    refused(
        &back(one.with_length(101)),
        &[one],
        &[],
        DecodeError::Mismatch,
    );
    for other in [segment(2, 100, 64), segment(1, 100, 65)] {
        refused(&back(other), &[one], &[], DecodeError::Mismatch);
    }
    // A segment more than offered.
    refused(&back(one), &[], &[], DecodeError::Mismatch);
    // Another list, and a second chunk.
    refused(&back(one), &[], &[one], DecodeError::Mismatch);
    let reply = message(Proc::NoMsg, false, &[], &[one]);
    refused(&reply, &[one], &[], DecodeError::Mismatch);
    let two = message(Proc::Msg, false, &[&[one], &[one]], &[]);
    refused(&two, &[one], &[], DecodeError::Mismatch);
    // A Payload stream that is neither inline nor in the Reply chunk.
    let placed = message(Proc::NoMsg, false, &[&[one]], &[]);
    refused(&placed, &[one], &[], DecodeError::PayloadLocation);
}

#[test]
fn unused_segments_may_be_missing() {
    let offered = [segment(1, 100, 0), segment(2, 50, 64), segment(3, 8, 128)];
    for (back, octets) in [
        (&[offered[0].with_length(0)][..], 0),
        (&[offered[0].with_length(99)], 99),
        (&[offered[0]], 100),
        (&[offered[0], offered[1].with_length(1)], 101),
    ] {
        let bytes = message(Proc::Msg, false, &[back], &[]);
        assert_eq!(written(&bytes, &offered, &[]), octets);
    }
    let bytes = message(Proc::NoMsg, false, &[], &offered[..1]);
    assert_eq!(written(&bytes, &[], &offered), 100);
    // All of them, in a Write chunk that was not used: one without segments.
    let words = [XID.0, 1, 1, 0, 0, 1, 0, 0, 0].map(u32::to_be_bytes);
    assert_eq!(written(words.as_flattened(), &offered, &[]), 0);
    // Only those at the end.
    let bytes = message(Proc::Msg, false, &[&offered[1..]], &[]);
    refused(&bytes, &offered, &[], DecodeError::Mismatch);
}

#[test]
fn empty_segments_are_no_holes() {
    let offered = [segment(1, 8, 0), segment(2, 0, 0), segment(3, 8, 0)];
    let back = [segment(1, 8, 0), segment(2, 0, 0), segment(3, 4, 0)];
    let bytes = message(Proc::Msg, false, &[&back], &[]);
    assert_eq!(written(&bytes, &offered, &[]), 12);
    // But they do not hide octets either.
    let back = [segment(1, 4, 0), segment(2, 0, 0), segment(3, 4, 0)];
    let bytes = message(Proc::Msg, false, &[&back], &[]);
    refused(&bytes, &offered, &[], DecodeError::Mismatch);
}

#[test]
fn sums_do_not_wrap() {
    let offered = [segment(1, u32::MAX, 0), segment(2, 2, 0)];
    let bytes = message(Proc::Msg, false, &[&offered], &[]);
    refused(&bytes, &offered, &[], DecodeError::TooLong);
}

#[test]
fn chunks_nobody_offered() {
    let one = segment(1, 100, 0);
    let empty = segment(1, 0, 0);
    refused(
        &message(Proc::Msg, false, &[&[one]], &[]),
        &[],
        &[],
        DecodeError::Mismatch,
    );
    refused(
        &message(Proc::Msg, false, &[&[empty]], &[]),
        &[],
        &[],
        DecodeError::Mismatch,
    );
    refused(
        &message(Proc::NoMsg, false, &[], &[one]),
        &[],
        &[],
        DecodeError::Mismatch,
    );
    let twice = message(Proc::Msg, false, &[&[one], &[one]], &[]);
    refused(&twice, &[one], &[], DecodeError::Mismatch);
    let read = message(Proc::Msg, true, &[], &[]);
    refused(&read, &[], &[], DecodeError::ReadListInReply);
}

#[test]
fn one_place_for_the_result() {
    let one = segment(1, 100, 0);
    let empty = segment(1, 0, 0);
    // RDMA_NOMSG must use the Reply chunk, and no other.
    refused(
        &message(Proc::NoMsg, false, &[], &[empty]),
        &[],
        &[one],
        DecodeError::PayloadLocation,
    );
    refused(
        &message(Proc::NoMsg, false, &[&[one]], &[]),
        &[one],
        &[],
        DecodeError::PayloadLocation,
    );
    let both = message(Proc::NoMsg, false, &[&[one]], &[one]);
    refused(&both, &[one], &[one], DecodeError::PayloadLocation);
    assert_eq!(
        written(&message(Proc::NoMsg, false, &[], &[one]), &[], &[one]),
        100
    );
    // An unused Write chunk is no place.
    let unused = message(Proc::NoMsg, false, &[&[empty]], &[one]);
    assert_eq!(written(&unused, &[one], &[one]), 100);
    // RDMA_MSG must not use it.
    refused(
        &message(Proc::Msg, false, &[], &[one]),
        &[],
        &[one],
        DecodeError::PayloadLocation,
    );
    // An offered chunk may be omitted if it is not used.
    assert_eq!(
        written(&message(Proc::Msg, false, &[], &[]), &[one], &[one]),
        0
    );
}

#[test]
fn what_a_responder_cannot_say() {
    let one = segment(1, 100, 0);
    let bytes = message(Proc::Msg, false, &[&[one]], &[]);
    let call = decode(&bytes, &ANY).unwrap();
    let lists: Lists<'_> = call.lists();
    let mut buf = [0; 256];
    let mut reply = |written: &[u32], octets| {
        let written = written.iter().copied();
        encode_reply(&mut buf, &call, Credits(1), &lists, written, octets)
    };
    assert_eq!(reply(&[100], None), Ok(52));
    assert_eq!(reply(&[100, 0], None), Ok(52));
    assert_eq!(reply(&[101], None), Err(EncodeError::TooLong));
    assert_eq!(reply(&[100, 1], None), Err(EncodeError::Mismatch));
    assert_eq!(reply(&[], Some(8)), Err(EncodeError::Mismatch));
    let prefix = prefix(XID, Credits(1), Proc::Msg);
    assert_eq!(
        encode_plain(&mut buf[..27], &prefix),
        Err(EncodeError::NoSpace)
    );
    let stage = Encoder::new(&mut buf, &prefix).and_then(|e| e.end_reads());
    let empty = stage.and_then(|mut e| e.write_chunk([]));
    assert_eq!(empty, Err(EncodeError::SegmentCount));
}
