// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The position at which the arguments of a Call begin.

use crate::xdr::rpc::{plain_arguments, Arguments};

/// Returns a Call with these flavors and bodies of credential and verifier, and `rest` after them.
fn call(credential: (u32, &[u8]), verifier: (u32, &[u8]), rest: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [17_u32, 0, 2, 100_003, 3, 7]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    for (flavor, body) in [credential, verifier] {
        bytes.extend(flavor.to_be_bytes());
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes.extend(rest);
    bytes
}

/// A credential of RPCSEC_GSS, version 1.
fn gss(procedure: u32, service: u32) -> Vec<u8> {
    [1, procedure, 99, service, 4, 0x1234]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect()
}

#[test]
fn behind_credential_and_verifier() {
    for (credential, verifier, at) in [
        (0, 0, 40),
        (1, 0, 44),
        (4, 0, 44),
        (5, 3, 52),
        (400, 400, 840),
    ] {
        let (one, two) = (vec![1; credential], vec![2; verifier]);
        for rest in [0, 4, 1000] {
            let call = call((1, &one), (0, &two), &vec![3; rest]);
            let sequenced = false;
            assert_eq!(plain_arguments(&call), Some(Arguments { at, sequenced }));
        }
    }
}

#[test]
fn not_if_they_are_cut_off() {
    let whole = call((1, &[1; 9]), (0, &[2; 5]), &[]);
    for len in 0..whole.len() {
        assert_eq!(plain_arguments(&whole[..len]), None, "{len} octets");
    }
    // Lengths that nothing can have.
    for at in [28, 48] {
        for length in [u32::MAX, u32::MAX - 2, 1 << 31, 1000] {
            let mut call = whole.clone();
            call[at..at + 4].copy_from_slice(&length.to_be_bytes());
            assert_eq!(plain_arguments(&call), None);
        }
    }
}

#[test]
fn not_if_a_gss_service_covers_them() {
    let mic = (6, &[7; 28][..]);
    let at = |credential: &[u8]| plain_arguments(&call((6, credential), mic, &[0; 8]));
    // A service that covers only the header leaves the arguments plain. The Call has a sequence
    // number nevertheless, so its order matters.
    let arguments = Arguments {
        at: 24 + 8 + 24 + 8 + 28,
        sequenced: true,
    };
    assert_eq!(at(&gss(0, 1)), Some(arguments));
    // Integrity, privacy, an unknown service.
    for service in [0, 2, 3, 4, u32::MAX] {
        assert_eq!(at(&gss(0, service)), None);
    }
    // Procedures that create, continue and destroy a context.
    for procedure in [1, 2, 3] {
        assert_eq!(at(&gss(procedure, 1)), None);
    }
    for len in 0..16 {
        assert_eq!(at(&gss(0, 1)[..len]), None);
    }
}
