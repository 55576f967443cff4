// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Properties that must hold for any input.
//!
//! Each check takes arbitrary octets, from a fuzzer or a mutated vector. It panics if a property
//! does not hold. Models that are simple rather than fast define the properties.

use std::collections::BTreeMap;

use crate::{
    decoded::{
        decode,
        prefix,
        segments,
        Message, //
    },
    xdr::{
        chunk::{
            ListLimits,
            Lists,
            ReadList,
            WriteChunk, //
        },
        encode::{
            encode_error,
            encode_reply,
            Encoder,
            HeaderPrefix, //
        },
        error::{
            DecodeError,
            EncodeError,
            ErrorBody,
            ErrorResponse, //
        },
        header::{
            Header,
            Proc,
            FIXED_LEN, //
        },
        message::{
            Body,
            Direction,
            Rejected, //
        },
        pcl::{
            Piece,
            ReadChunks,
            MAX_READ_CHUNKS, //
        },
        private::Private,
        reply,
        segment::{
            ReadSegment,
            Segment, //
        },
        units::{
            Credits,
            Handle,
            Offset,
            Position,
            Xid, //
        }, //
    }, //
};

/// Limits of a server with room for 4 MiB.
const SERVER: ListLimits = ListLimits {
    segments: 512,
    read_octets: 4 << 20,
};

/// Limits of a client: a Reply has at most as many segments as the Call.
const CLIENT: ListLimits = ListLimits {
    segments: 32,
    read_octets: 0,
};

/// The longest Payload stream for which the octet-wise model runs.
const MODEL_OCTETS: u32 = 1 << 16;

/// Checks a Responder that receives `data`.
pub fn call(data: &[u8]) {
    let message = match decode(data, &SERVER) {
        Ok(message) => message,
        Err(rejected) => return check_rejected(data, &rejected),
    };
    check_message(data, &message);
    if let Body::Error(body) = message.body {
        return check_error_body(&message.header, body);
    }
    let lists = message.lists();
    let inline_len = message.payload().map(|payload| payload.len() as u32);
    assert!(segments(&lists).count() <= SERVER.segments as usize);
    let reads: Vec<_> = lists.read.iter().collect();
    check_read_chunks(&reads, &lists, inline_len, SERVER.read_octets);
    check_invalidate(&message);
    for (write, reply) in [(0, None), (0, Some(0)), (1, None), (u32::MAX, Some(1))] {
        check_reply(&message, write, reply);
    }
}

/// Checks a Requester that receives `data` as the Reply to each of some Calls.
pub fn reply(data: &[u8]) {
    let message = match decode(data, &CLIENT) {
        Ok(message) => message,
        Err(rejected) => return check_rejected(data, &rejected),
    };
    check_message(data, &message);
    assert!(message.lists().read.iter().all(|r| r.segment.length == 0));
    // As if exactly the returned chunks had been offered, with more or less room.
    let lists = message.lists();
    let write: Vec<_> = lists.write.iter().flat_map(|c| c.iter()).collect();
    let reply: Vec<_> = lists.reply.iter().flat_map(|c| c.iter()).collect();
    for grow in [0, 1, u32::MAX] {
        let larger = |s: &Segment| s.with_length(s.length.saturating_add(grow));
        let outcome = message.check(write.iter().map(larger), reply.iter().map(larger));
        check_outcome(&message, outcome, &write, &reply);
    }
    let other = Segment {
        handle: Handle(0x1234),
        length: u32::MAX,
        offset: Offset(0),
    };
    let outcome = message.check([other], [other]);
    check_outcome(&message, outcome, &[other], &[other]);
}

/// Checks a Read list; `data` describes it and the length of the inline Payload stream.
pub fn read_chunks(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let mut next = || bytes.next().map(u32::from);
    let Some(first) = next() else { return };
    let inline_len = (first & 1 == 0).then_some(first << 1);
    let mut reads = Vec::new();
    while let (Some(position), Some(length)) = (next(), next()) {
        reads.push(ReadSegment {
            position: Position(if position < 2 { 0 } else { position << 2 }),
            segment: Segment {
                handle: Handle(reads.len() as u32),
                length,
                offset: Offset(u64::from(position) << 40),
            },
        });
    }
    let mut buf = vec![0; 64 + reads.len() * ReadSegment::ITEM_LEN];
    let prefix = prefix(Xid(7), Credits(1), Proc::Msg);
    let mut encoder = Encoder::new(&mut buf, &prefix).expect("room");
    for read in &reads {
        encoder.read_segment(*read).expect("room");
    }
    let writes = encoder.end_reads().expect("room");
    let len = writes.end_writes().and_then(|e| e.no_reply_chunk());
    buf.truncate(len.expect("room"));
    let limits = ListLimits {
        segments: u32::MAX,
        read_octets: u32::MAX,
    };
    let message = decode(&buf, &limits).expect("a good list");
    let lists = message.lists();
    assert_eq!(lists.read.iter().collect::<Vec<_>>(), reads);
    check_read_chunks(&reads, &lists, inline_len, MODEL_OCTETS);
}

/// Checks `data` as the private data of a connection request or of its acceptance.
pub fn private(data: &[u8]) {
    let Some(peer) = Private::decode(data) else {
        let known = data.len() >= Private::WIRE_LEN && data.starts_with(&[0xf6, 0xab, 0x0e, 0x18]);
        assert!(!known || data[4] != 1);
        return;
    };
    let again = peer.encode();
    assert_eq!(Private::decode(&again), Some(peer));
    // The structure has all fields except the reserved flags.
    assert_eq!(again[..5], data[..5]);
    assert_eq!(again[5], data[5] & 1);
    assert_eq!(again[6..], data[6..Private::WIRE_LEN]);
    let ours = Private {
        remote_invalidation: true,
        ..Private::DEFAULT
    };
    let both = ours.negotiate(&peer);
    let theirs = peer.negotiate(&ours);
    assert_eq!((both.send, both.receive), (theirs.receive, theirs.send));
    assert!(both.send <= ours.send && both.send <= peer.receive);
    assert_eq!(both.remote_invalidation, peer.remote_invalidation);
}

/// Checks a returned chunk; `data` describes it and the offered chunk.
pub fn returned_chunk(data: &[u8]) {
    let mut offered = Vec::new();
    let mut returned = Vec::new();
    for (index, item) in data.chunks_exact(3).enumerate() {
        let segment = Segment {
            handle: Handle(index as u32),
            length: u32::from(item[0]) << (item[2] & 24),
            offset: Offset(index as u64),
        };
        let back = match item[2] & 7 {
            0..=2 => segment,
            3 => segment.with_length(u32::from(item[1])),
            4 => segment.with_length(0),
            5 => segment.with_length(segment.length.saturating_add(1)),
            6 => Segment {
                handle: Handle(u32::MAX),
                ..segment
            },
            _ => Segment {
                offset: Offset(1 << 60),
                ..segment
            },
        };
        offered.push(segment);
        returned.push(back);
    }
    if returned.is_empty() {
        return;
    }
    match data[0] {
        0 => drop(offered.pop()),
        1 => offered.push(returned[0]),
        _ => {}
    }
    let bytes: Vec<u8> = {
        let mut buf = vec![0; 64 + returned.len() * Segment::WIRE_LEN];
        let prefix = prefix(Xid(7), Credits(1), Proc::NoMsg);
        let stage = Encoder::new(&mut buf, &prefix).and_then(|e| e.end_reads());
        let stage = stage.and_then(|e| e.end_writes()).expect("room");
        let len = stage.reply_chunk(returned.iter().copied()).expect("room");
        buf.truncate(len);
        buf
    };
    let limits = ListLimits {
        segments: u32::MAX,
        read_octets: 0,
    };
    let message = decode(&bytes, &limits).expect("a good chunk");
    let chunk = message.lists().reply.expect("a Reply chunk");
    let result = reply::check_chunk(&chunk, offered.iter().copied());
    assert_eq!(
        result.ok(),
        model_total(&returned, &offered),
        "{returned:?} {offered:?}"
    );
}

/// Returns the octets in a returned chunk, or `None` if it is not the offered one.
fn model_total(returned: &[Segment], offered: &[Segment]) -> Option<u32> {
    if returned.len() > offered.len() {
        return None;
    }
    let capacity = |n: usize| {
        offered[..n]
            .iter()
            .map(|s| u64::from(s.length))
            .sum::<u64>()
    };
    let mut total = 0u64;
    for (index, (r, o)) in returned.iter().zip(offered).enumerate() {
        // Filled from the start: the segments before a used one are full.
        let gap = r.length != 0 && total != capacity(index);
        if r.handle != o.handle || r.offset != o.offset || r.length > o.length || gap {
            return None;
        }
        total += u64::from(r.length);
    }
    u32::try_from(total).ok()
}

fn check_rejected(data: &[u8], rejected: &Rejected) {
    assert_eq!(rejected.header.is_none(), data.len() < FIXED_LEN);
    let answer = rejected.response();
    let Some(header) = rejected.header else {
        return assert_eq!(answer, ErrorResponse::Drop);
    };
    let expected = match header.proc {
        3 | 4 => ErrorResponse::Drop,
        _ if data.len() < 28 => ErrorResponse::Drop,
        _ if header.version != 1 => ErrorResponse::Report(ErrorBody::Version { low: 1, high: 1 }),
        _ => ErrorResponse::Report(ErrorBody::Chunk),
    };
    // 2 is RDMA_MSGP, 3 RDMA_DONE.
    let reserved = header.version == 1 && matches!(header.proc, 2 | 3);
    assert_eq!(
        rejected.refusal().is_some(),
        answer != ErrorResponse::Drop && !reserved
    );
    // RDMA_DONE of another version is not RDMA_DONE.
    if (header.proc, header.version == 1) != (3, false) {
        assert_eq!(answer, expected, "{rejected:?}");
    }
}

/// Checks that a valid header has one encoding: encoded again, it is the same.
fn check_message(data: &[u8], message: &Message<'_>) {
    assert!(message.header_len <= data.len());
    if let Body::Error(body) = message.body {
        let of_any_version = matches!(body, ErrorBody::Version { .. });
        assert!(message.header.version == 1 || of_any_version);
        assert_eq!(message.direction, Some(Direction::Reply));
        return;
    }
    assert_eq!(message.header.version, 1);
    if let Some(payload) = message.payload() {
        assert_eq!(payload, &data[message.header_len..]);
    }
    let lists = message.lists();
    let proc = Proc::from_u32(message.version, message.header.proc).expect("a procedure");
    let prefix = prefix(message.header.xid, message.header.credits, proc);
    let mut buf = vec![0; data.len()];
    let encoded = encode_lists(&mut buf, &prefix, &lists);
    // An empty Write chunk is accepted, but never offered.
    if lists.write.iter().any(|chunk| chunk.count() == 0) {
        return assert_eq!(encoded, Err(EncodeError::SegmentCount));
    }
    let len = encoded.expect("room");
    assert_eq!(len, message.header_len);
    assert_eq!(buf[..len], data[..len]);
    for room in 0..len.min(256) {
        let short = encode_lists(&mut buf[..room], &prefix, &lists);
        assert_eq!(short, Err(EncodeError::NoSpace));
    }
}

/// Encodes a header with these lists.
pub(crate) fn encode_lists(
    buf: &mut [u8],
    prefix: &HeaderPrefix,
    lists: &Lists<'_>,
) -> Result<usize, EncodeError> {
    let mut stage = Encoder::new(buf, prefix)?;
    for read in lists.read.iter() {
        stage.read_segment(read)?;
    }
    let mut stage = stage.end_reads()?;
    for chunk in lists.write.iter() {
        stage.write_chunk(chunk.iter())?;
    }
    let stage = stage.end_writes()?;
    match lists.reply {
        Some(chunk) => stage.reply_chunk(chunk.iter()),
        None => stage.no_reply_chunk(),
    }
}

fn check_error_body(header: &Header, body: ErrorBody) {
    let mut buf = [0; 28];
    let len = encode_error(&mut buf, header, header.credits, body);
    let again = decode(&buf[..len.expect("room")], &CLIENT).expect("an error report");
    assert_eq!(again.header, *header);
    match again.body {
        Body::Error(again) => assert_eq!(again, body),
        _ => panic!("not an error report"),
    }
}

fn check_invalidate(message: &Message<'_>) {
    let used = segments(&message.lists()).filter(|s| s.length != 0);
    let mut handles: Vec<_> = used.map(|s| s.handle.0).collect();
    handles.sort_unstable();
    handles.dedup();
    let expected = match handles[..] {
        [one] if one != 0 => Some(Handle(one)),
        _ => None,
    };
    assert_eq!(message.invalidate, expected);
}

/// Answers a Call; the Requester must find the octets written. `write` and `reply` are limited to
/// the room of the chunks.
fn check_reply(message: &Message<'_>, write: u32, reply: Option<u32>) {
    let lists = message.lists();
    let cut = |chunk: &WriteChunk<'_>, octets: u32| u64::from(octets).min(chunk.capacity()) as u32;
    let written: Vec<u32> = lists.write.iter().map(|c| cut(&c, write)).collect();
    let reply = lists.reply.as_ref().and_then(|c| reply.map(|n| cut(c, n)));
    let mut buf = vec![0; lists.reply_header_len(message.version) + 8];
    let credits = Credits(3);
    let len = encode_reply(
        &mut buf,
        message,
        credits,
        &lists,
        written.iter().copied(),
        reply,
    );
    let len = len.expect("cut to fit");
    assert_eq!(len, lists.reply_header_len(message.version));
    let limits = ListLimits {
        segments: SERVER.segments,
        read_octets: 0,
    };
    let answer = decode(&buf[..len], &limits);
    if lists.write.iter().next().is_none() && lists.reply.is_none() {
        // RDMA_NOMSG needs a chunk or a Payload stream.
        return;
    }
    let answer = answer.expect("our own Reply");
    assert_eq!(answer.header.xid, message.header.xid);
    assert!(answer.lists().read.is_empty());
    for ((back, offered), octets) in answer
        .lists()
        .write
        .iter()
        .zip(lists.write.iter())
        .zip(written)
    {
        assert_eq!(reply::check_chunk(&back, offered.iter()), Ok(octets));
        let parts: u64 = offered.range(0, octets).map(|s| u64::from(s.length)).sum();
        assert_eq!(parts, u64::from(octets));
    }
    if let (Some(back), Some(offered)) = (answer.lists().reply, lists.reply) {
        let octets = reply.unwrap_or(0);
        assert_eq!(reply::check_chunk(&back, offered.iter()), Ok(octets));
        let too_long = u32::try_from(offered.capacity() + 1);
        if let Ok(too_long) = too_long {
            let error = encode_reply(&mut buf, message, credits, &lists, [], Some(too_long));
            assert_eq!(error, Err(EncodeError::TooLong));
        }
    }
}

fn check_outcome(
    message: &Message<'_>,
    outcome: Result<reply::Outcome<'_>, DecodeError>,
    write: &[Segment],
    reply: &[Segment],
) {
    let capacity = |s: &[Segment]| s.iter().map(|s| u64::from(s.length)).sum::<u64>();
    let lists = message.lists();
    match outcome {
        Ok(reply::Outcome::Inline { payload, written }) => {
            assert!(u64::from(written) <= capacity(write));
            assert!(lists.reply.map_or(0, |c| c.capacity()) == 0);
            assert_eq!(message.payload(), Some(payload));
        }
        Ok(reply::Outcome::ReplyChunk { written }) => {
            assert!(written != 0 && u64::from(written) <= capacity(reply));
            assert!(matches!(message.body, Body::NoMsg));
        }
        Ok(reply::Outcome::Failed(_)) => assert!(matches!(message.body, Body::Error(_))),
        Err(_) => assert!(!matches!(message.body, Body::Error(_))),
    }
}

/// The source of an octet of the Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Octet {
    Base(u32),
    Chunk(u32, u32),
    Pad,
}

/// Returns the Payload stream, octet by octet: chunks claim their positions, the base fills the
/// rest.
fn model_stream(chunks: &BTreeMap<u32, u64>, base_len: u32, max_stream: u32) -> Option<Vec<Octet>> {
    let mut claims: BTreeMap<u32, Octet> = BTreeMap::new();
    for (&position, &length) in chunks {
        let length = u32::try_from(length).ok()?;
        for at in 0..length.next_multiple_of(4) {
            let octet = if at < length {
                Octet::Chunk(position, at)
            } else {
                Octet::Pad
            };
            if position + at >= max_stream || claims.insert(position + at, octet).is_some() {
                return None;
            }
        }
    }
    let mut stream = Vec::new();
    let mut base = 0..base_len;
    loop {
        let at = stream.len() as u32;
        match claims.remove(&at) {
            Some(octet) => stream.push(octet),
            None => match base.next() {
                Some(offset) => stream.push(Octet::Base(offset)),
                None => break,
            },
        }
    }
    (claims.is_empty() && stream.len() as u32 <= max_stream).then_some(stream)
}

/// Returns the Read chunks of `list`; see [`ReadChunks::set`].
pub(crate) fn sorted(
    list: &ReadList<'_>,
    inline_len: Option<u32>,
    max_stream: u32,
) -> Result<ReadChunks, DecodeError> {
    let mut chunks = ReadChunks::EMPTY;
    chunks.set(list, inline_len, max_stream).map(|()| chunks)
}

fn check_read_chunks(
    reads: &[ReadSegment],
    lists: &Lists<'_>,
    inline_len: Option<u32>,
    max_stream: u32,
) {
    let parsed = sorted(&lists.read, inline_len, max_stream);
    let mut chunks: BTreeMap<u32, u64> = BTreeMap::new();
    for read in reads.iter().filter(|r| r.segment.length != 0) {
        *chunks.entry(read.position.0).or_default() += u64::from(read.segment.length);
    }
    let call = chunks.remove(&0).unwrap_or(0);
    let total = call + chunks.values().sum::<u64>() + u64::from(inline_len.unwrap_or(0));
    let base_len = match (inline_len, call) {
        (Some(len), 0) => len,
        (None, 1..) => call as u32,
        _ => return assert!(parsed.is_err()),
    };
    if chunks.len() > MAX_READ_CHUNKS {
        return assert!(parsed.is_err());
    }
    if total > u64::from(MODEL_OCTETS) {
        assert!(parsed.is_err() || parsed.is_ok_and(|p| u64::from(p.stream_len()) >= total));
        return;
    }
    let model = model_stream(&chunks, base_len, max_stream);
    let (Ok(parsed), Some(model)) = (&parsed, &model) else {
        return assert_eq!(parsed.is_ok(), model.is_some(), "{reads:?} {inline_len:?}");
    };
    assert_eq!(parsed.stream_len() as usize, model.len());
    assert_eq!(parsed.is_empty(), chunks.is_empty() && call == 0);
    assert!(parsed.chunks().is_sorted_by(|a, b| a.position < b.position));
    check_pieces(parsed, model);
    for chunk in parsed.chunks().iter().chain(&parsed.call_chunk()) {
        check_ranges(reads, lists, chunk.position, chunk.length);
    }
}

fn check_pieces(parsed: &ReadChunks, model: &[Octet]) {
    let mut stream = Vec::new();
    for piece in parsed.pieces() {
        match piece {
            Piece::Base { offset, length } => {
                assert_ne!(length, 0);
                stream.extend((offset..offset + length).map(Octet::Base));
            }
            Piece::Chunk(chunk) => {
                stream.extend((0..chunk.length).map(|at| Octet::Chunk(chunk.position.0, at)));
            }
            Piece::Pad(length) => {
                assert!((1..4).contains(&length));
                stream.extend((0..length).map(|_| Octet::Pad));
            }
        }
    }
    assert_eq!(stream, model);
}

/// Checks that a range of a chunk is the same memory as that range of all its octets in list order.
fn check_ranges(reads: &[ReadSegment], lists: &Lists<'_>, position: Position, length: u32) {
    let memory = |segments: &mut dyn Iterator<Item = Segment>| -> Vec<(u32, u64)> {
        segments
            .flat_map(|s| (0..u64::from(s.length)).map(move |at| (s.handle.0, s.offset.0 + at)))
            .collect()
    };
    let mine = reads.iter().filter(|r| r.position == position);
    let all = memory(&mut mine.map(|r| r.segment));
    assert_eq!(all.len(), length as usize);
    for (skip, len) in [
        (0, length),
        (1, length),
        (length / 2, length / 3),
        (length, 1),
        (0, 0),
    ] {
        let range = memory(&mut lists.read.chunk_range(position, skip, len));
        let end = (skip as usize + len as usize).min(all.len());
        assert_eq!(range, all[skip as usize..end]);
    }
}
