// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The tables in `data`, and decoded messages written in their form.

use crate::xdr::{
    error::ErrorBody,
    header::Proc,
    message::{
        Body,
        Direction,
        Parsed, //
    },
    props::{
        BackwardSupport,
        Message,
        PropSet,
        Property, //
    },
    segment::Segment, //
};

/// A message, and its decoded form.
pub(crate) struct Vector {
    pub(crate) name: &'static str,
    pub(crate) json: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// Octets that are not a valid message, and the required answer.
pub(crate) struct Malformed {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    /// In hex; empty for no answer.
    pub(crate) answer: &'static str,
    pub(crate) why: &'static str,
}

/// Returns names and octets of both tables, as seeds for the fuzzers.
pub fn seeds() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let good = vectors().map(|vector| (vector.name, vector.bytes));
    good.chain(malformed().map(|case| (case.name, case.bytes)))
}

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split('\t').collect())
}

/// Returns the valid messages.
pub(crate) fn vectors() -> impl Iterator<Item = Vector> {
    rows(include_str!("../data/version2.tsv")).map(|row| match row[..] {
        [name, json, octets] => Vector {
            name,
            json,
            bytes: unhex(octets),
        },
        _ => panic!("{row:?}"),
    })
}

/// Returns the malformed messages.
pub(crate) fn malformed() -> impl Iterator<Item = Malformed> {
    rows(include_str!("../data/version2-malformed.tsv")).map(|row| match row[..] {
        [name, octets, _, answer, why] => Malformed {
            name,
            bytes: unhex(octets),
            answer,
            why,
        },
        _ => panic!("{row:?}"),
    })
}

fn unhex(digits: &str) -> Vec<u8> {
    let octet = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex");
    (0..digits.len()).step_by(2).map(octet).collect()
}

/// Returns `bytes` in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list<T>(items: impl Iterator<Item = T>, each: impl FnMut(T) -> String) -> String {
    format!("[{}]", items.map(each).collect::<Vec<_>>().join(","))
}

fn segment(s: Segment) -> String {
    format!(
        r#"{{"rdma_handle":{},"rdma_length":{},"rdma_offset":{}}}"#,
        s.handle.0, s.length, s.offset.0
    )
}

fn direction(direction: Option<Direction>) -> &'static str {
    match direction {
        Some(Direction::Call) => "CALL",
        Some(Direction::Reply) => "REPLY",
        None => "none",
    }
}

fn chunks(parsed: &Parsed, bytes: &[u8]) -> String {
    let lists = parsed.lists(bytes);
    let chunk = |segments: &mut dyn Iterator<Item = Segment>| {
        format!(r#"{{"rdma_target":{}}}"#, list(segments, segment))
    };
    let reads = list(lists.read.iter(), |read| {
        format!(
            r#"{{"rdma_position":{},"rdma_target":{}}}"#,
            read.position.0,
            segment(read.segment)
        )
    });
    // The handle only has a meaning in Calls, but each vector has zero in Replies.
    format!(
        r#""rdma_chunks":{{"rdma_direction":"{}","rdma_inv_handle":{},"rdma_reads":{reads},"rdma_writes":{},"rdma_reply":{}}}"#,
        direction(parsed.direction),
        parsed.invalidate.map_or(0, |handle| handle.0),
        list(lists.write.iter(), |c| chunk(&mut c.iter())),
        lists.reply.map_or("null".into(), |c| chunk(&mut c.iter())),
    )
}

fn report(body: ErrorBody) -> String {
    let (name, arm) = match body {
        ErrorBody::Version { low, high } => (
            "VERS",
            format!(r#","rdma_vrange":{{"rdma_vers_low":{low},"rdma_vers_high":{high}}}"#),
        ),
        ErrorBody::Chunk => ("BAD_XDR", String::new()),
        ErrorBody::Unknown(code) => panic!("error code {code}"),
        ErrorBody::Procedure => ("INVALID_PROC", String::new()),
        ErrorBody::ReadChunks { max } => ("READ_CHUNKS", format!(r#","rdma_max_chunks":{max}"#)),
        ErrorBody::WriteChunks { max } => ("WRITE_CHUNKS", format!(r#","rdma_max_chunks":{max}"#)),
        ErrorBody::Segments { max } => ("SEGMENTS", format!(r#","rdma_max_segments":{max}"#)),
        ErrorBody::WriteResource { chunk, needed } => (
            "WRITE_RESOURCE",
            format!(
                r#","rdma_writers":{{"rdma_chunk_index":{chunk},"rdma_length_needed":{needed}}}"#
            ),
        ),
        ErrorBody::ReplyResource { needed } => (
            "REPLY_RESOURCE",
            format!(r#","rdma_length_needed":{needed}"#),
        ),
        ErrorBody::Option => ("INVALID_OPTION", String::new()),
        ErrorBody::System => ("SYSTEM", String::new()),
    };
    format!(r#""rdma_error":{{"rdma_err":"RDMA2_ERR_{name}"{arm}}}"#)
}

/// Reads the words of a message one after the other.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        head
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn opaque(&mut self) -> &'a [u8] {
        let len = self.word() as usize;
        let data = self.take(len);
        self.take(len.wrapping_neg() & 3);
        data
    }

    /// Returns the words of a subset.
    fn subset(&mut self) -> String {
        list(0..self.word(), |_| self.word().to_string())
    }

    /// Returns the text of a set that the code under test has `read`. Its result must be the
    /// same, except that it drops the octets of unknown properties.
    fn set(&mut self, read: &PropSet<'_>) -> String {
        let read: Vec<Property> = read.iter().collect();
        let count = self.word();
        assert_eq!(read.len(), count as usize);
        list(0..count, |index| {
            let (number, data) = (self.word(), self.opaque());
            let value = data.try_into().map_or(0, u32::from_be_bytes);
            let (which, value, same) = match number {
                1 => {
                    let octets = if data.is_empty() { 4096 } else { value };
                    let which = r#""RDMA2_PROPID_RBSIZ""#.to_string();
                    (which, value.to_string(), Property::Receive(octets))
                }
                2 => {
                    let (name, support) = match value {
                        _ if data.is_empty() => ("", BackwardSupport::Inline),
                        0 => ("NONE", BackwardSupport::None),
                        1 => ("INLINE", BackwardSupport::Inline),
                        _ => ("GENL", BackwardSupport::General),
                    };
                    let value = format!(r#""RDMA2_BKREQSUP_{name}""#);
                    let which = r#""RDMA2_PROPID_BRS""#.to_string();
                    (which, value, Property::Backward(support))
                }
                other => (other.to_string(), String::new(), Property::Unknown(other)),
            };
            assert_eq!(read[index as usize], same);
            let value = match (data, value.as_str()) {
                ([], _) | (_, "") => String::new(),
                (_, value) => format!(r#","rdma_value":{value}"#),
            };
            let data = hex(data);
            format!(r#"{{"rdma_which":{which},"rdma_data":"{data}"{value}}}"#)
        })
    }
}

fn properties(message: &Message<'_>, body: &[u8]) -> String {
    let mut words = Words(body);
    match message {
        Message::Connect { start } => {
            let start = words.set(start);
            let nochg = words.subset();
            format!(r#""rdma_connprop":{{"rdma_start":{start},"rdma_nochg":{nochg}}}"#)
        }
        Message::Request { want } => {
            format!(r#""rdma_reqprop":{{"rdma_want":{}}}"#, words.set(want))
        }
        Message::Response { other, .. } => {
            let done = words.subset();
            let rejected = words.subset();
            let other = words.set(other);
            format!(
                r#""rdma_resprop":{{"rdma_done":{done},"rdma_rejected":{rejected},"rdma_other":{other}}}"#
            )
        }
        Message::Update { now } => {
            format!(r#""rdma_updprop":{{"rdma_now":{}}}"#, words.set(now))
        }
    }
}

/// Returns a message in the form of the tables.
pub(crate) fn render(parsed: &Parsed, bytes: &[u8]) -> String {
    let (name, body) = match parsed.body {
        Body::Msg => ("MSG", chunks(parsed, bytes)),
        Body::NoMsg => ("NOMSG", chunks(parsed, bytes)),
        Body::Error(body) => ("ERROR", report(body)),
        Body::Optional(number) => {
            let info = Words(&bytes[24..]).opaque();
            let body = format!(
                r#""rdma_optional":{{"rdma_optdir":"{}","rdma_opttype":{number},"rdma_optinfo":"{}"}}"#,
                direction(parsed.direction),
                hex(info)
            );
            ("OPTIONAL", body)
        }
        Body::Property(proc) => {
            let message = parsed.properties(bytes).expect("properties");
            let name = match proc {
                Proc::ConnProp => "CONNPROP",
                Proc::ReqProp => "REQPROP",
                Proc::RespProp => "RESPROP",
                Proc::UpdProp => "UPDPROP",
                other => panic!("{other:?}"),
            };
            (name, properties(&message, &bytes[16..]))
        }
    };
    let header = &parsed.header;
    let mut out = format!(
        r#"{{"rdma_xid":{},"rdma_vers":{},"rdma_credit":{},"rdma_body":{{"rdma_proc":"RDMA2_{name}",{body}}}"#,
        header.xid.0, header.version, header.credits.0
    );
    let behind = &bytes[parsed.header_len..];
    if !behind.is_empty() {
        out += &format!(r#","payload":"{}""#, hex(behind));
    }
    out + "}"
}
