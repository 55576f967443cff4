// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Headers of the most common Replies: the same octets as those of `encode_reply`.

use crate::{
    decoded::decode_as,
    xdr::{
        chunk::ListLimits,
        encode::{
            encode_reply,
            Encoder,
            HeaderPrefix, //
        },
        fast_reply::{
            encode_no_chunk,
            encode_sole_write,
            no_chunk_len,
            sole_write_len, //
        },
        header::Proc,
        message::Direction,
        segment::Segment,
        units::{
            Credits,
            Handle,
            Offset,
            Xid, //
        },
        version::{
            Version,
            Versions, //
        },
    },
};

const LIMITS: ListLimits = ListLimits {
    segments: 16,
    read_octets: 1 << 20,
};

const CREDITS: Credits = Credits(0x11_2233);

fn segment(length: u32) -> Segment {
    Segment {
        handle: Handle(0x0102_0304),
        length,
        offset: Offset(0x1122_3344_5566_7788),
    }
}

/// Returns a Call with a Write chunk of each of these numbers of segments.
fn call(version: Version, chunks: &[usize], reply_chunk: bool) -> Vec<u8> {
    let prefix = HeaderPrefix {
        version,
        xid: Xid(0x5566_7788),
        credits: Credits(7),
        proc: Proc::Msg,
        direction: Direction::Call,
        invalidate: None,
    };
    let mut buf = [0; 512];
    let mut writes = Encoder::new(&mut buf, &prefix)
        .and_then(Encoder::end_reads)
        .unwrap();
    for segments in chunks {
        writes.write_chunk(vec![segment(4096); *segments]).unwrap();
    }
    let reply = writes.end_writes().unwrap();
    let len = if reply_chunk {
        reply.reply_chunk([segment(8192)])
    } else {
        reply.no_reply_chunk()
    };
    let len = len.unwrap();
    let mut message = buf[..len].to_vec();
    message.extend(prefix.xid.0.to_be_bytes());
    message.extend([0; 36]);
    message
}

#[test]
fn without_a_chunk() {
    for version in [Version::One, Version::Two] {
        let bytes = call(version, &[], false);
        let call = decode_as(&bytes, &LIMITS, Versions::up_to(Version::Two)).unwrap();
        assert!(call.has_no_chunks() && call.sole_write(&bytes).is_none());
        let (mut fast, mut any) = ([0; 64], [0; 64]);
        let len = encode_no_chunk(&mut fast, &call, CREDITS);
        let lists = call.lists(&bytes);
        assert_eq!(lists.reply_header_len(version), no_chunk_len(version));
        assert_eq!(len, Ok(no_chunk_len(version)));
        assert_eq!(
            len,
            encode_reply(&mut any, &call, CREDITS, &lists, [], None)
        );
        assert_eq!(fast, any);
        assert!(encode_no_chunk(&mut [0; 27], &call, CREDITS).is_err());
    }
}

#[test]
fn with_one_write_chunk_of_one_segment() {
    for version in [Version::One, Version::Two] {
        let bytes = call(version, &[1], false);
        let call = decode_as(&bytes, &LIMITS, Versions::up_to(Version::Two)).unwrap();
        assert_eq!(call.sole_write(&bytes), Some(segment(4096)));
        // Other octets give any segment, or none.
        assert!(call
            .sole_write(&bytes[..sole_write_len(version) - 9])
            .is_none());
        let lists = call.lists(&bytes);
        assert_eq!(lists.reply_header_len(version), sole_write_len(version));
        for written in [0, 1, 4096] {
            let (mut fast, mut any) = ([0; 128], [0; 128]);
            let len = encode_sole_write(&mut fast, &call, CREDITS, segment(written));
            assert_eq!(len, Ok(sole_write_len(version)));
            let same = encode_reply(&mut any, &call, CREDITS, &lists, [written], None);
            assert_eq!((len, fast), (same, any));
        }
        assert!(encode_sole_write(&mut [0; 51], &call, CREDITS, segment(1)).is_err());
    }
}

#[test]
fn other_chunks() {
    for version in [Version::One, Version::Two] {
        let forms: [(&[usize], bool); 4] =
            [(&[2], false), (&[1, 1], false), (&[1], true), (&[], true)];
        for (chunks, reply_chunk) in forms {
            let bytes = call(version, chunks, reply_chunk);
            let call = decode_as(&bytes, &LIMITS, Versions::up_to(Version::Two)).unwrap();
            assert!(!call.has_no_chunks());
            assert!(call.sole_write(&bytes).is_none());
        }
    }
}
