// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Roundup, credits, sizes in private data, bounded reading and writing.

use crate::{
    vectors,
    xdr::{
        cursor::{
            Reader,
            Writer, //
        },
        error::{
            DecodeError,
            EncodeError,
            Item, //
        },
        header::{
            Proc,
            RESERVED_DONE,
            RESERVED_MSGP, //
        },
        private::Private,
        units::{
            len_to_u32,
            pad_len,
            padded_len,
            u32_to_usize,
            Credits,
            InlineSize, //
        },
        version::{
            Version,
            Versions, //
        }, //
    }, //
};

#[test]
fn roundup() {
    for len in (0..100).chain(u32::MAX - 10..=u32::MAX) {
        let pad = pad_len(len);
        assert_eq!(pad, (4 - len % 4) % 4);
        assert_eq!(padded_len(len), len.checked_add(pad));
    }
    assert_eq!(padded_len(u32::MAX - 3), Some(u32::MAX - 3));
    assert_eq!(padded_len(u32::MAX), None);
    assert_eq!(len_to_u32(u32::MAX as usize), Some(u32::MAX));
    assert_eq!(len_to_u32(u32::MAX as usize + 1), None);
    assert_eq!(u32_to_usize(u32::MAX), u32::MAX as usize);
}

#[test]
fn procedures() {
    for (number, proc) in [(0, Proc::Msg), (1, Proc::NoMsg), (4, Proc::Error)] {
        assert_eq!(proc.to_u32(), number);
        assert_eq!(Proc::from_u32(Version::One, number), Some(proc));
        assert_eq!(Proc::from_u32(Version::Two, number), Some(proc));
    }
    for (number, proc) in [
        (5, Proc::Optional),
        (6, Proc::ConnProp),
        (7, Proc::ReqProp),
        (8, Proc::RespProp),
        (9, Proc::UpdProp),
    ] {
        assert_eq!(proc.to_u32(), number);
        assert_eq!(Proc::from_u32(Version::One, number), None);
        assert_eq!(Proc::from_u32(Version::Two, number), Some(proc));
    }
    for number in [RESERVED_MSGP, RESERVED_DONE, 10, u32::MAX] {
        assert_eq!(Proc::from_u32(Version::One, number), None);
        assert_eq!(Proc::from_u32(Version::Two, number), None);
    }
}

#[test]
fn versions() {
    for (number, version, least, inline) in
        [(1, Version::One, 28, 1024), (2, Version::Two, 36, 4096)]
    {
        assert_eq!(version.to_u32(), number);
        assert_eq!(Version::from_u32(number), Some(version));
        assert_eq!(version.min_header_len(), least);
        assert_eq!(version.default_inline(), InlineSize(inline));
        let only = Versions::only(version);
        for word in [0, 1, 2, 3, u32::MAX] {
            let expected = (word == number).then_some(version);
            assert_eq!(only.find(word), expected);
        }
    }
    assert_eq!(Version::from_u32(0), None);
    assert_eq!(Version::from_u32(3), None);
}

#[test]
fn grants() {
    let usable = |wire, asked| Credits(wire).usable(Credits(asked)).0;
    assert_eq!(usable(0, 128), 1);
    assert_eq!(usable(1, 128), 1);
    assert_eq!(usable(127, 128), 127);
    assert_eq!(usable(128, 128), 128);
    assert_eq!(usable(129, 128), 128);
    assert_eq!(usable(u32::MAX, 128), 128);
    assert_eq!(usable(5, 0), 1);
}

#[test]
fn private_sizes() {
    for size in 0..=1024 * 300 {
        let ours = Private {
            remote_invalidation: false,
            send: InlineSize(size),
            receive: InlineSize(1024),
        };
        let told = Private::decode(&ours.encode()).expect("our own").send.0;
        assert_eq!(told % 1024, 0);
        // Never more than there really is, but at least what every peer must receive.
        let expected = (size / 1024 * 1024).clamp(1024, 256 << 10);
        assert_eq!(told, expected);
        // The announced sizes are the ones in use.
        assert_eq!(InlineSize::representable(size).0, told);
    }
}

#[test]
fn private_strangers() {
    let bytes = vectors::PRIVATE_4K.bytes();
    for len in 0..8 {
        assert_eq!(Private::decode(&bytes[..len]), None);
    }
    for (index, value) in [(0, 0xf7), (3, 0x19), (4, 0), (4, 2), (4, 255)] {
        let mut bytes = bytes.clone();
        bytes[index] = value;
        assert_eq!(Private::decode(&bytes), None);
    }
    // Reserved flags are ignored.
    let mut bytes = bytes;
    bytes[5] = 0xfe;
    assert!(Private::decode(&bytes).is_some_and(|p| !p.remote_invalidation));
    bytes[5] = 0xff;
    assert!(Private::decode(&bytes).is_some_and(|p| p.remote_invalidation));
    // The defaults for a peer without private data.
    let told = Private::DEFAULT.encode();
    assert_eq!(told, [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 0]);
}

#[test]
fn cursors() {
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
    let mut r = Reader::new(&bytes);
    assert_eq!(r.u32(Item::Segment), Ok(0x0102_0304));
    assert_eq!(r.array(Item::Segment), Ok(&[5, 6, 7, 8, 9, 10, 11, 12]));
    assert_eq!(r.at(), 12);
    assert_eq!(r.whole(), 13);
    assert_eq!(
        r.u32(Item::Segment),
        Err(DecodeError::Truncated(Item::Segment))
    );
    assert_eq!(
        r.array::<8>(Item::ErrorBody),
        Err(DecodeError::Truncated(Item::ErrorBody))
    );
    assert_eq!(
        r.take(2, Item::Segment),
        Err(DecodeError::Truncated(Item::Segment))
    );
    assert_eq!(r.take(1, Item::Segment), Ok(&bytes[12..]));
    assert!(r.rest().is_empty());

    let mut buf = [0xee; 10];
    let mut w = Writer::new(&mut buf);
    assert_eq!(w.words([0x0102_0304, 0x0506_0708]), Ok(()));
    assert_eq!(w.u32(0), Err(EncodeError::NoSpace));
    assert_eq!(w.put([1, 2, 3]), Err(EncodeError::NoSpace));
    assert_eq!(w.patch_u32(4, 0x0a0b_0c0d), Ok(()));
    // Only written words can be replaced.
    assert_eq!(w.patch_u32(5, 0), Err(EncodeError::NoSpace));
    assert_eq!(w.patch_u32(usize::MAX, 0), Err(EncodeError::NoSpace));
    assert_eq!(w.len(), 8);
    assert_eq!(buf, [1, 2, 3, 4, 0x0a, 0x0b, 0x0c, 0x0d, 0xee, 0xee]);
}
