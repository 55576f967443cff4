// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The fast path that decodes messages of the most common forms: it takes these, and decodes them
//! to what the general path does.

use super::mutation::{
    mutate,
    Random, //
};
use crate::{
    decoded::decode_as,
    oracle::seeds,
    vectors::{
        self,
        Vector, //
    },
    xdr::{
        chunk::ListLimits,
        message::decode_fast,
        version::{
            Version,
            Versions, //
        }, //
    }, //
};

const ACCEPTS: [Versions; 4] = [
    Versions::only(Version::One),
    Versions::only(Version::Two),
    Versions::up_to(Version::One),
    Versions::up_to(Version::Two),
];

/// Limits at which the decision about one segment changes, and those of a server.
const LIMITS: [ListLimits; 4] = [
    limits(0, u32::MAX),
    limits(1, 0),
    limits(1, 4096),
    limits(259, 1 << 20),
];

const fn limits(segments: u32, read_octets: u32) -> ListLimits {
    ListLimits {
        segments,
        read_octets,
    }
}

/// The chunk lists of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    NoChunk,
    Read,
    Write,
    Reply,
    TwoReads,
    TwoSegments,
    TwoWrites,
    EmptyWrite,
}

const FORMS: [Form; 8] = [
    Form::NoChunk,
    Form::Read,
    Form::Write,
    Form::Reply,
    Form::TwoReads,
    Form::TwoSegments,
    Form::TwoWrites,
    Form::EmptyWrite,
];

impl Form {
    fn is_common(self) -> bool {
        matches!(self, Form::NoChunk | Form::Read | Form::Write)
    }

    /// Returns the words of the lists, with `position` and `segment` in each chunk.
    fn words(self, position: u32, segment: [u32; 4]) -> Vec<u32> {
        let read = [&[1, position][..], &segment].concat();
        match self {
            Form::NoChunk => vec![0, 0, 0],
            Form::Read => [&read[..], &[0, 0, 0]].concat(),
            Form::Write => [&[0, 1, 1][..], &segment, &[0, 0]].concat(),
            Form::Reply => [&[0, 0, 1, 1][..], &segment].concat(),
            Form::TwoReads => [&read[..], &read, &[0, 0, 0]].concat(),
            Form::TwoSegments => [&[0, 1, 2][..], &segment, &segment, &[0, 0]].concat(),
            Form::TwoWrites => [&[0, 1, 1][..], &segment, &[1, 1], &segment, &[0, 0]].concat(),
            Form::EmptyWrite => vec![0, 1, 0, 0, 0],
        }
    }
}

/// The fields of an RDMA_MSG message.
#[derive(Clone, Copy, Debug)]
struct Fields {
    version: u32,
    proc: u32,
    /// The direction and the handle to invalidate, in version 2.
    said: [u32; 2],
    form: Form,
    position: u32,
    segment: [u32; 4],
    /// The first words of the RPC message.
    payload: [u32; 2],
}

const XID: u32 = 0x5566_7788;

/// A Call that both paths accept.
const CALL: Fields = Fields {
    version: 1,
    proc: 0,
    said: [0, 0],
    form: Form::NoChunk,
    position: 120,
    segment: [0x1234, 4096, 1, 0],
    payload: [XID, 0],
};

impl Fields {
    fn bytes(&self) -> Vec<u8> {
        let mut words = vec![XID, self.version, 32, self.proc];
        if self.version == 2 {
            words.extend(self.said);
        }
        words.extend(self.form.words(self.position, self.segment));
        words.extend(self.payload);
        words.extend([2; 8]);
        words.into_iter().flat_map(u32::to_be_bytes).collect()
    }
}

/// Compares the paths for every set of limits and versions.
fn compare(bytes: &[u8]) {
    for limits in &LIMITS {
        for accepts in ACCEPTS {
            let _ = decode_as(bytes, limits, accepts);
        }
    }
}

fn is_fast(fields: &Fields, limits: &ListLimits) -> bool {
    decode_fast(&fields.bytes(), limits, ACCEPTS[3]).is_some()
}

#[test]
fn the_most_common_forms_take_the_fast_path() {
    for (version, form) in [1, 2].into_iter().flat_map(|v| FORMS.map(|f| (v, f))) {
        let call = Fields {
            version,
            form,
            ..CALL
        };
        assert_eq!(is_fast(&call, &LIMITS[3]), form.is_common(), "{call:?}");
        let reply = Fields {
            said: [1, 0],
            payload: [XID, 1],
            ..call
        };
        assert_eq!(is_fast(&reply, &LIMITS[3]), form.is_common(), "{reply:?}");
        let named = Fields {
            said: [0, CALL.segment[0]],
            ..call
        };
        let fast = form.is_common() && (version == 1 || form != Form::NoChunk);
        assert_eq!(is_fast(&named, &LIMITS[3]), fast, "{named:?}");
    }
}

#[test]
fn what_the_general_path_refuses_is_left_to_it() {
    let read = Fields {
        form: Form::Read,
        ..CALL
    };
    let write = Fields {
        form: Form::Write,
        ..CALL
    };
    let overflow = [0x1234, 1, u32::MAX, u32::MAX];
    let refused = [
        (Fields { proc: 1, ..CALL }, 3),
        (Fields { version: 3, ..CALL }, 3),
        (
            Fields {
                position: 4,
                ..read
            },
            3,
        ),
        (
            Fields {
                position: 121,
                ..read
            },
            3,
        ),
        (
            Fields {
                segment: overflow,
                ..read
            },
            3,
        ),
        (
            Fields {
                segment: overflow,
                ..write
            },
            3,
        ),
        // Too many segments, and too many octets to read.
        (read, 0),
        (write, 0),
        (read, 1),
    ];
    for (fields, at) in refused {
        assert!(!is_fast(&fields, &LIMITS[at]), "{fields:?}");
        compare(&fields.bytes());
    }
    assert!(is_fast(&write, &LIMITS[1]) && is_fast(&read, &LIMITS[2]));
}

/// All combinations of values at which a decision changes.
#[test]
fn both_paths_agree_at_the_edges() {
    let segments = [0, 1, 4096, 4097, u32::MAX].map(|length| [0x1234, length, 1, 0]);
    let nothing = [[0, 4096, 1, 0], [0, 0, 0, 0]];
    let ends = [1, 2].map(|length| [0x1234, length, u32::MAX, u32::MAX - 1]);
    for segment in segments.into_iter().chain(nothing).chain(ends) {
        for form in FORMS {
            for position in [0, 4, 8, 120, 122, u32::MAX] {
                for (direction, said) in [0, 1, 2].into_iter().flat_map(|d| [(d, 0), (d, 1)]) {
                    for named in [0, 0x1234, 0x1235] {
                        let fields = Fields {
                            said: [said, named],
                            form,
                            position,
                            segment,
                            payload: [XID, direction],
                            ..CALL
                        };
                        compare(&fields.bytes());
                        compare(
                            &Fields {
                                version: 2,
                                ..fields
                            }
                            .bytes(),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn both_paths_agree_on_messages_that_are_cut_off() {
    for (version, form) in [1, 2].into_iter().flat_map(|v| FORMS.map(|f| (v, f))) {
        let fields = Fields {
            version,
            form,
            ..CALL
        };
        let bytes = fields.bytes();
        for len in 0..bytes.len() {
            compare(&bytes[..len]);
        }
    }
}

#[test]
fn both_paths_agree_on_changed_messages() {
    let mut random = Random(8);
    let common = [1, 2].into_iter().flat_map(|version| {
        FORMS.map(|form| Fields {
            version,
            form,
            ..CALL
        })
    });
    let seeds: Vec<Vec<u8>> = common
        .map(|fields| fields.bytes())
        .chain(vectors::MESSAGES.iter().map(Vector::bytes))
        .chain(seeds().map(|(_, bytes)| bytes))
        .filter(|bytes| bytes.len() < 1024)
        .collect();
    for bytes in &seeds {
        compare(bytes);
    }
    for _ in 0..40_000 {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        mutate(&mut random, &mut bytes);
        compare(&bytes);
    }
}
