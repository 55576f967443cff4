// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A Responder reassembles the Payload streams that a Requester has reduced.

use super::golden::ANY;
use super::mutation::Random;
use crate::{
    checks::sorted,
    decoded::{
        decode,
        prefix, //
    },
    xdr::{
        encode::Encoder,
        header::Proc,
        pcl::Piece,
        segment::{
            ReadSegment,
            Segment, //
        },
        units::{
            pad_len,
            Credits,
            Handle,
            Offset,
            Position,
            Xid, //
        }, //
    }, //
};

/// A Requester's memory: the unreduced stream itself, cut up. The offset of a segment is the
/// place of its octets in the stream.
struct Reduced {
    stream: Vec<u8>,
    inline: Vec<u8>,
    reads: Vec<ReadSegment>,
}

fn segments(random: &mut Random, position: u32, at: usize, len: usize) -> Vec<ReadSegment> {
    let mut out = Vec::new();
    let mut done = 0;
    while done < len {
        let length = 1 + random.below(len - done);
        out.push(ReadSegment {
            position: Position(position),
            segment: Segment {
                handle: Handle(random.next() as u32),
                length: length as u32,
                offset: Offset((at + done) as u64),
            },
        });
        done += length;
    }
    out
}

/// A stream of words and items; some items are moved to chunks, their roundup is left out.
fn reduce(random: &mut Random) -> Reduced {
    let mut stream: Vec<u8> = (0..8).collect();
    let mut inline = stream.clone();
    let mut reads = Vec::new();
    for _ in 0..random.below(8) {
        let words: Vec<u8> = (0..4 * random.below(4))
            .map(|_| random.next() as u8)
            .collect();
        stream.extend(&words);
        inline.extend(&words);
        let len = 1 + random.below(40);
        let at = stream.len();
        stream.extend((0..len).map(|_| 1 + random.below(255) as u8));
        stream.extend(vec![0; pad_len(len as u32) as usize]);
        if random.below(2) == 0 {
            reads.push(segments(random, at as u32, at, len));
        } else {
            inline.extend(&stream[at..]);
        }
    }
    // Chunks may come in any order.
    for index in (1..reads.len()).rev() {
        reads.swap(index, random.below(index + 1));
    }
    Reduced {
        stream,
        inline,
        reads: reads.concat(),
    }
}

fn rebuild(reduced: &Reduced, long: bool, random: &mut Random) -> Vec<u8> {
    let mut reads = reduced.reads.clone();
    let mut memory = reduced.stream.clone();
    if long {
        // The inline part moves to a chunk of its own, in memory after the stream.
        reads.extend(segments(random, 0, memory.len(), reduced.inline.len()));
        memory.extend(&reduced.inline);
    }
    let proc = if long { Proc::NoMsg } else { Proc::Msg };
    let mut buf = vec![0; 64 + 24 * reads.len()];
    let mut stage = Encoder::new(&mut buf, &prefix(Xid(9), Credits(1), proc)).unwrap();
    for read in &reads {
        stage.read_segment(*read).unwrap();
    }
    let stage = stage.end_reads().unwrap().end_writes().unwrap();
    let len = stage.no_reply_chunk().unwrap();

    let message = decode(&buf[..len], &ANY).expect("a good header");
    let list = message.lists().read;
    let inline_len = (!long).then_some(reduced.inline.len() as u32);
    let chunks = sorted(&list, inline_len, reduced.stream.len() as u32);
    let chunks = chunks.expect("a good list");
    let fetch = |position, skip, len| -> Vec<u8> {
        list.chunk_range(position, skip, len)
            .flat_map(|s| memory[s.offset.0 as usize..][..s.length as usize].to_vec())
            .collect()
    };
    let mut stream = Vec::new();
    for piece in chunks.pieces() {
        match piece {
            Piece::Base { offset, length } if long => {
                stream.extend(fetch(Position::ZERO, offset, length));
            }
            Piece::Base { offset, length } => {
                stream.extend(&reduced.inline[offset as usize..][..length as usize]);
            }
            Piece::Chunk(chunk) => stream.extend(fetch(chunk.position, 0, chunk.length)),
            Piece::Pad(length) => stream.extend(vec![0; length as usize]),
        }
    }
    stream
}

#[test]
fn put_together_again() {
    let mut random = Random(5);
    for _ in 0..20_000 {
        let reduced = reduce(&mut random);
        assert_eq!(rebuild(&reduced, false, &mut random), reduced.stream);
        assert_eq!(rebuild(&reduced, true, &mut random), reduced.stream);
    }
}
