// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Random changes to valid messages, and random input, checked against all properties. The
//! generator is deterministic: a failure recurs with every run.

use crate::{
    checks,
    checks_version2,
    oracle,
    vectors, //
};

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Words at the boundaries of ranges.
const EDGES: [u32; 14] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    4096,
    0x0fff_ffff,
    0x1000_0000,
    0x7fff_ffff,
    0xffff_fffc,
    u32::MAX,
];

pub(super) fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let words = bytes.len() / 4;
        if words == 0 {
            return;
        }
        let at = random.below(words) * 4;
        match random.below(8) {
            0..=3 => {
                let word = EDGES[random.below(EDGES.len())];
                bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
            }
            4 => bytes[at + 3] = random.next() as u8,
            5 => {
                let len = random.below(bytes.len() + 1);
                bytes.truncate(len);
            }
            6 => {
                // Add and remove whole list items.
                let len = [4, 16, 24][random.below(3)].min(bytes.len() - at);
                let item = bytes[at..at + len].to_vec();
                let to = random.below(words) * 4;
                bytes.splice(to..to, item);
            }
            _ => {
                let len = [4, 16, 24][random.below(3)].min(bytes.len() - at);
                bytes.drain(at..at + len);
            }
        }
    }
}

#[test]
fn vectors_hold() {
    for vector in vectors::MESSAGES {
        checks::call(&vector.bytes());
        checks::reply(&vector.bytes());
    }
    for vector in vectors::PRIVATE {
        checks::private(&vector.bytes());
    }
}

#[test]
fn mutated_vectors() {
    let mut random = Random(1);
    for _ in 0..40_000 {
        let vector = &vectors::MESSAGES[random.below(vectors::MESSAGES.len())];
        let mut bytes = vector.bytes();
        mutate(&mut random, &mut bytes);
        checks::call(&bytes);
        checks::reply(&bytes);
    }
}

#[test]
fn mutated_vectors_of_version_2() {
    let mut random = Random(6);
    let good = oracle::vectors().map(|vector| vector.bytes);
    let seeds: Vec<Vec<u8>> = good
        .chain(oracle::malformed().map(|case| case.bytes))
        .filter(|bytes| bytes.len() < 1024)
        .collect();
    for bytes in &seeds {
        checks_version2::message2(bytes);
    }
    for _ in 0..40_000 {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        mutate(&mut random, &mut bytes);
        checks_version2::message2(&bytes);
        checks_version2::properties(bytes.get(16..).unwrap_or_default());
        let first = seeds[random.below(seeds.len())].clone();
        let mut both = vec![first.len().min(255) as u8];
        both.extend(&first[..first.len().min(255)]);
        both.push(bytes.len().min(255) as u8);
        both.extend(&bytes);
        checks_version2::negotiate(&both);
    }
}

#[test]
fn mutated_private_data() {
    let mut random = Random(2);
    for _ in 0..20_000 {
        let vector = &vectors::PRIVATE[random.below(vectors::PRIVATE.len())];
        let mut bytes = vector.bytes();
        let at = random.below(bytes.len());
        bytes[at] = random.next() as u8;
        checks::private(&bytes);
    }
}

#[test]
fn random_chunks() {
    let mut random = Random(3);
    for _ in 0..20_000 {
        let len = random.below(60);
        checks::returned_chunk(&random.bytes(len));
    }
}

#[test]
fn random_read_chunks() {
    let mut random = Random(4);
    for _ in 0..20_000 {
        let len = random.below(24);
        let mut bytes = random.bytes(len);
        // Close positions and short chunks: otherwise hardly any list would be valid.
        for byte in bytes.iter_mut().skip(1) {
            *byte %= [4, 12, 40][random.below(3)];
        }
        checks::read_chunks(&bytes);
    }
}
