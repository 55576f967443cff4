// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The choice of transfer mode, on both sides of every threshold.

use super::golden::{
    segment,
    ANY, //
};
use super::mutation::Random;
use crate::{
    decoded::{
        decode,
        prefix, //
    },
    vectors,
    xdr::{
        encode::Encoder,
        header::Proc,
        plan::{
            choose,
            choose_response,
            gather_sges,
            header_len,
            is_plain,
            is_plain_read,
            CallMode,
            CallShape,
            ReplyMode,
            ReplyShape,
            ResponseMode,
            Thresholds, //
        },
        segment::ReadSegment,
        units::{
            Credits,
            InlineSize,
            Position,
            Xid, //
        },
        version::Version, //
    }, //
};

const LIMITS: Thresholds = Thresholds {
    version: Version::One,
    send: InlineSize(4096),
    receive: InlineSize(4096),
    segments: 3,
    send_sges: 19,
};

const CALL: CallShape = CallShape {
    head: 128,
    pages: 0,
    page_offset: 0,
    tail: 0,
    pages_eligible: false,
    copy_room: 2048,
};

const REPLY: ReplyShape = ReplyShape {
    head: 256,
    pages: 0,
    tail: 0,
    pages_eligible: false,
    open_ended: false,
};

fn call_mode(call: &CallShape, ddp: bool) -> CallMode {
    let (mode, reply) = choose(&LIMITS, call, &REPLY, ddp);
    assert_eq!(reply, ReplyMode::Inline);
    mode
}

fn reply_mode(reply: &ReplyShape, ddp: bool) -> ReplyMode {
    let (call, mode) = choose(&LIMITS, &CALL, reply, ddp);
    assert_eq!(call, CallMode::Copy);
    mode
}

#[test]
fn small_calls_are_copied() {
    let head = |head| call_mode(&CallShape { head, ..CALL }, true);
    assert_eq!(head(40), CallMode::Copy);
    assert_eq!(head(2048), CallMode::Copy);
    assert_eq!(head(2049), CallMode::Gather);
    // 28 octets of header leave 4068.
    assert_eq!(head(4068), CallMode::Gather);
    assert_eq!(head(4069), CallMode::PositionZero);
}

#[test]
fn large_arguments() {
    let pages = |pages, pages_eligible, ddp| {
        let call = CallShape {
            pages,
            tail: pages.next_multiple_of(4) - pages,
            pages_eligible,
            ..CALL
        };
        call_mode(&call, ddp)
    };
    let chunk = |tail_skip| CallMode::ReadChunk {
        position: Position(128),
        tail_skip,
    };
    assert_eq!(pages(4068 - 128, true, true), CallMode::Gather);
    assert_eq!(pages(4069 - 128, true, true), chunk(3));
    assert_eq!(pages(4070 - 128, true, true), chunk(2));
    assert_eq!(pages(4071 - 128, true, true), chunk(1));
    assert_eq!(pages(4072 - 128, true, true), chunk(0));
    assert_eq!(pages(1 << 20, true, true), chunk(0));
    // Kerberos with integrity or privacy; items that are not eligible.
    assert_eq!(pages(1 << 20, true, false), CallMode::PositionZero);
    assert_eq!(pages(1 << 20, false, true), CallMode::PositionZero);
}

#[test]
fn arguments_that_do_not_fit_beside_the_chunk() {
    let head = |head| {
        let call = CallShape {
            head,
            pages: 1 << 20,
            pages_eligible: true,
            ..CALL
        };
        call_mode(&call, true)
    };
    let most = 4096 - 28 - 3 * 24;
    let position = Position(most);
    let chunk = CallMode::ReadChunk {
        position,
        tail_skip: 0,
    };
    assert_eq!(head(most), chunk);
    assert_eq!(head(most + 4), CallMode::PositionZero);
    // A position must be a multiple of four, and after the first two words.
    assert_eq!(head(129), CallMode::PositionZero);
    assert_eq!(head(130), CallMode::PositionZero);
    assert_eq!(head(4), CallMode::PositionZero);
}

#[test]
fn no_chunk_of_nothing() {
    // The rest would fit next to a Read chunk, but there are no pages for that chunk.
    let call = CallShape {
        head: 3000,
        pages_eligible: true,
        copy_room: 0,
        ..CALL
    };
    let few_sges = Thresholds {
        send_sges: 1,
        ..LIMITS
    };
    let (mode, _) = choose(&few_sges, &call, &REPLY, true);
    assert_eq!(mode, CallMode::PositionZero);
}

#[test]
fn a_tail_without_its_roundup() {
    let call = CallShape {
        pages: 100_001,
        tail: 2,
        pages_eligible: true,
        ..CALL
    };
    assert_eq!(call_mode(&call, true), CallMode::PositionZero);
}

#[test]
fn too_many_pieces_for_a_gather() {
    let call = CallShape {
        pages: 3000,
        page_offset: 4000,
        tail: 8,
        copy_room: 0,
        pages_eligible: true,
        ..CALL
    };
    assert_eq!(gather_sges(&call), 5);
    let limits = |send_sges| Thresholds {
        send_sges,
        ..LIMITS
    };
    let (mode, _) = choose(&limits(5), &call, &REPLY, true);
    assert_eq!(mode, CallMode::Gather);
    let (mode, _) = choose(&limits(4), &call, &REPLY, true);
    assert!(matches!(mode, CallMode::ReadChunk { .. }));
    let (mode, _) = choose(&limits(4), &call, &REPLY, false);
    assert_eq!(mode, CallMode::PositionZero);
    // It still fits in the copy buffer.
    let copied = CallShape {
        copy_room: 4096,
        ..call
    };
    let (mode, _) = choose(&limits(4), &copied, &REPLY, true);
    assert_eq!(mode, CallMode::Copy);
}

#[test]
fn sges_of_a_gather() {
    let sges = |page_offset, pages, tail| {
        gather_sges(&CallShape {
            pages,
            page_offset,
            tail,
            ..CALL
        })
    };
    assert_eq!(sges(0, 0, 0), 2);
    assert_eq!(sges(100, 0, 0), 2);
    assert_eq!(sges(0, 0, 4), 3);
    assert_eq!(sges(0, 1, 0), 3);
    assert_eq!(sges(0, 4096, 0), 3);
    assert_eq!(sges(0, 4097, 0), 4);
    assert_eq!(sges(4095, 1, 0), 3);
    assert_eq!(sges(4095, 2, 0), 4);
    assert_eq!(sges(4096 + 4095, 2, 4), 5);
    assert_eq!(sges(4095, u32::MAX, 4), 3 + (1 << 20));
}

#[test]
fn results() {
    let pages = |pages, pages_eligible, ddp| {
        let reply = ReplyShape {
            pages,
            tail: 4,
            pages_eligible,
            ..REPLY
        };
        reply_mode(&reply, ddp)
    };
    let most = 4096 - 28 - 256 - 4;
    assert_eq!(pages(most, true, true), ReplyMode::Inline);
    assert_eq!(pages(most + 1, true, true), ReplyMode::WriteChunk);
    assert_eq!(pages(1 << 20, true, true), ReplyMode::WriteChunk);
    assert_eq!(pages(1 << 20, true, false), ReplyMode::ReplyChunk);
    assert_eq!(pages(1 << 20, false, true), ReplyMode::ReplyChunk);

    let head = |head| {
        let reply = ReplyShape {
            head,
            pages: 1 << 20,
            pages_eligible: true,
            ..REPLY
        };
        reply_mode(&reply, true)
    };
    // A Write chunk of three segments in the header of the Reply.
    let most = 4096 - 28 - 8 - 3 * 16;
    assert_eq!(head(most), ReplyMode::WriteChunk);
    assert_eq!(head(most + 1), ReplyMode::ReplyChunk);
    assert_eq!(head(u32::MAX), ReplyMode::ReplyChunk);
}

#[test]
fn a_reply_that_nobody_limits_has_a_chunk() {
    for (pages, expected) in [(0, ReplyMode::ReplyChunk), (128, ReplyMode::ReplyChunk)] {
        let reply = ReplyShape {
            pages,
            open_ended: true,
            ..REPLY
        };
        assert_eq!(reply_mode(&reply, true), expected);
        assert_eq!(
            reply_mode(
                &ReplyShape {
                    open_ended: false,
                    ..reply
                },
                true
            ),
            ReplyMode::Inline
        );
    }
}

#[test]
fn chunks_of_the_reply_take_room_from_the_call() {
    let reply = ReplyShape {
        pages: 1 << 20,
        ..REPLY
    };
    let mode = |head| choose(&LIMITS, &CallShape { head, ..CALL }, &reply, true);
    let most = 4096 - 28 - 4 - 3 * 16;
    assert_eq!(mode(most), (CallMode::Gather, ReplyMode::ReplyChunk));
    assert_eq!(
        mode(most + 1),
        (CallMode::PositionZero, ReplyMode::ReplyChunk)
    );
}

/// The encoded header is never longer than planned.
#[test]
fn planned_headers_are_long_enough() {
    for segments in 1..=16 {
        let limits = Thresholds { segments, ..LIMITS };
        let all = (0..segments).map(|n| segment(n, 1, 0));
        let chunk = CallMode::ReadChunk {
            position: Position(64),
            tail_skip: 0,
        };
        for call in [
            CallMode::Copy,
            CallMode::Gather,
            chunk,
            CallMode::PositionZero,
        ] {
            for reply in [
                ReplyMode::Inline,
                ReplyMode::WriteChunk,
                ReplyMode::ReplyChunk,
            ] {
                let mut buf = [0; 1024];
                let prefix = prefix(Xid(1), Credits(1), Proc::Msg);
                let mut e = Encoder::new(&mut buf, &prefix).unwrap();
                if matches!(call, CallMode::ReadChunk { .. } | CallMode::PositionZero) {
                    for segment in all.clone() {
                        let position = Position(64);
                        e.read_segment(ReadSegment { position, segment }).unwrap();
                    }
                }
                let mut e = e.end_reads().unwrap();
                if reply == ReplyMode::WriteChunk {
                    e.write_chunk(all.clone()).unwrap();
                }
                let e = e.end_writes().unwrap();
                let len = match reply {
                    ReplyMode::ReplyChunk => e.reply_chunk(all.clone()),
                    _ => e.no_reply_chunk(),
                };
                assert_eq!(len, Ok(header_len(&limits, call, reply)));
            }
        }
    }
}

/// Limits of which the thresholds are 1 KiB, doubled less often than `doublings` times.
fn random_limits(random: &mut Random, version: Version, doublings: usize) -> Thresholds {
    Thresholds {
        version,
        send: InlineSize(1024 << random.below(doublings)),
        receive: InlineSize(1024 << random.below(doublings)),
        segments: 1 + random.below(16) as u32,
        send_sges: 3 + random.below(20) as u32,
    }
}

/// A length that often fits the limits of [`random_limits`], and sometimes none.
fn random_len(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => u32::MAX - random.below(5) as u32,
        _ => random.below(1500) as u32,
    }
}

/// Returns limits, a Call without pages, and a Reply without pages.
fn random_edges(random: &mut Random) -> (Thresholds, CallShape, ReplyShape) {
    let version = [Version::One, Version::Two][random.below(2)];
    let limits = random_limits(random, version, 3);
    let call = CallShape {
        head: random_len(random),
        pages: 0,
        page_offset: 0,
        tail: random_len(random),
        pages_eligible: random.below(2) == 0,
        copy_room: 2048,
    };
    let reply = ReplyShape {
        head: random_len(random),
        pages: 0,
        tail: random_len(random),
        pages_eligible: random.below(2) == 0,
        open_ended: false,
    };
    (limits, call, reply)
}

/// Returns the octets of a head and a tail.
fn octets(head: u32, tail: u32) -> usize {
    head as usize + tail as usize
}

#[test]
fn plain_messages_are_those_for_which_the_same_is_chosen() {
    let mut random = Random(7);
    let mut plain = 0;
    for _ in 0..100_000 {
        let (limits, call, reply) = random_edges(&mut random);
        let (sent, back) = (octets(call.head, call.tail), octets(reply.head, reply.tail));
        let chosen = choose(&limits, &call, &reply, random.below(2) == 0);
        let is = is_plain(&limits, sent, call.copy_room, back);
        assert_eq!(is, chosen == (CallMode::Copy, ReplyMode::Inline));
        plain += u32::from(is);
    }
    assert!((10_000..90_000).contains(&plain));
}

#[test]
fn plain_reads_are_those_for_which_the_same_is_chosen() {
    let mut random = Random(8);
    let mut plain = 0;
    for _ in 0..100_000 {
        let (limits, call, edges) = random_edges(&mut random);
        let reply = ReplyShape {
            pages: [0, random_len(&mut random), 1 << random.below(20)][random.below(3)],
            pages_eligible: true,
            ..edges
        };
        let (sent, back) = (octets(call.head, call.tail), octets(reply.head, reply.tail));
        let chosen = choose(&limits, &call, &reply, true);
        let is = is_plain_read(&limits, sent, call.copy_room, back, reply.pages as usize);
        assert_eq!(is, chosen == (CallMode::Copy, ReplyMode::WriteChunk));
        plain += u32::from(is);
    }
    println!("{plain} plain READs");
    assert!((2_000..50_000).contains(&plain));
}

#[test]
fn no_choice_exceeds_a_threshold() {
    let mut random = Random(6);
    let number = |random: &mut Random| match random.below(8) {
        0 => u32::MAX - random.below(5) as u32,
        1 => random.below(1 << 21) as u32,
        _ => random.below(5000) as u32,
    };
    for _ in 0..200_000 {
        let limits = random_limits(&mut random, Version::One, 7);
        let call = CallShape {
            head: number(&mut random),
            pages: number(&mut random),
            page_offset: number(&mut random),
            tail: number(&mut random),
            pages_eligible: random.below(2) == 0,
            copy_room: number(&mut random),
        };
        let reply = ReplyShape {
            head: number(&mut random),
            pages: number(&mut random),
            tail: number(&mut random),
            pages_eligible: random.below(2) == 0,
            open_ended: random.below(2) == 0,
        };
        let ddp = random.below(2) == 0;
        let (call_mode, reply_mode) = choose(&limits, &call, &reply, ddp);
        let head = header_len(&limits, call_mode, reply_mode) as u64;
        let sum = |parts: &[u32]| parts.iter().map(|p| u64::from(*p)).sum::<u64>();
        let sent = match call_mode {
            CallMode::Copy => {
                assert!(sum(&[call.head, call.pages, call.tail]) <= u64::from(call.copy_room));
                sum(&[call.head, call.pages, call.tail])
            }
            CallMode::Gather => sum(&[call.head, call.pages, call.tail]),
            CallMode::ReadChunk { .. } => {
                assert!(ddp && call.pages_eligible);
                sum(&[call.head, call.tail])
            }
            CallMode::PositionZero => 0,
        };
        assert!(head + sent <= u64::from(limits.send.0));
        let back = match reply_mode {
            ReplyMode::Inline => 28 + sum(&[reply.head, reply.pages, reply.tail]),
            ReplyMode::WriteChunk => {
                assert!(ddp && reply.pages_eligible);
                let header = header_len(&limits, CallMode::Copy, reply_mode) as u64;
                header + sum(&[reply.head, reply.tail])
            }
            ReplyMode::ReplyChunk => 0,
        };
        assert!(back <= u64::from(limits.receive.0));
    }
}

#[test]
fn responses() {
    let mut buf = [0; 256];
    let e = Encoder::new(&mut buf, &prefix(Xid(1), Credits(1), Proc::Msg)).unwrap();
    let e = e.end_reads().unwrap().end_writes().unwrap();
    let len = e
        .reply_chunk([segment(1, 5000, 0), segment(2, 3, 0)])
        .unwrap();
    let message = decode(&buf[..len], &ANY).unwrap();
    let lists = message.lists();
    let header = lists.reply_header_len(message.version);
    assert_eq!(header, 28 + 4 + 32);
    let send = InlineSize(1024);
    let offered = |message| choose_response(send, header, message, lists.reply.as_ref(), false);
    assert_eq!(offered(0), ResponseMode::Inline);
    assert_eq!(offered(960), ResponseMode::Inline);
    assert_eq!(offered(961), ResponseMode::ReplyChunk);
    assert_eq!(offered(5003), ResponseMode::ReplyChunk);
    assert_eq!(offered(5004), ResponseMode::TooLarge);
    assert_eq!(offered(u32::MAX), ResponseMode::TooLarge);
    for chunk_first in [false, true] {
        let bare = |message| choose_response(send, 28, message, None, chunk_first);
        assert_eq!(bare(996), ResponseMode::Inline);
        assert_eq!(bare(997), ResponseMode::TooLarge);
        // The offered lists by themselves are too long for the peer.
        let message = choose_response(send, 1025, 5000, lists.reply.as_ref(), chunk_first);
        assert_eq!(message, ResponseMode::TooLarge);
    }
}

#[test]
fn a_responder_prefers_the_reply_chunk() {
    let bytes = vectors::ALL_LISTS_CALL.bytes();
    let message = decode(&bytes, &ANY).unwrap();
    let lists = message.lists();
    let chunk = lists.reply.expect("a Reply chunk");
    let room = u32::try_from(chunk.capacity()).unwrap();
    let header = lists.reply_header_len(message.version);
    let send = InlineSize(4096);
    let offered = |message| choose_response(send, header, message, Some(&chunk), true);
    assert_eq!(offered(0), ResponseMode::ReplyChunk);
    assert_eq!(offered(room), ResponseMode::ReplyChunk);
    // Inline is better than an error.
    assert!(room < 4000);
    assert_eq!(offered(room + 1), ResponseMode::Inline);
    assert_eq!(offered(4097), ResponseMode::TooLarge);
}
