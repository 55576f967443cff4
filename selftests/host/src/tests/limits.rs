// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queue sizes for known devices, and for devices that do not exist.

use super::mutation::Random;
use crate::xdr::limits::{
    ClientLimits,
    DeviceLimits,
    Refusal,
    MAX_CHUNK_SEGMENTS,
    MAX_DATA_PAGES, //
};

/// drivers/infiniband/sw/rxe/rxe_param.h.
const RXE: DeviceLimits = DeviceLimits {
    max_qp_wr: 1 << 20,
    max_cqe: (1 << 15) - 1,
    max_send_sge: 32,
    max_fast_reg_pages: 512,
    mem_mgt_extensions: true,
};

/// A ConnectX.
const MLX5: DeviceLimits = DeviceLimits {
    max_qp_wr: 32768,
    max_cqe: 4_194_303,
    max_send_sge: 30,
    max_fast_reg_pages: 65536,
    mem_mgt_extensions: true,
};

/// drivers/infiniband/sw/siw/siw.h.
const SIW: DeviceLimits = DeviceLimits {
    max_qp_wr: 1 << 15,
    max_cqe: 1 << 17,
    max_send_sge: 6,
    max_fast_reg_pages: 256,
    mem_mgt_extensions: true,
};

#[test]
fn client_on_known_devices() {
    for device in [RXE, MLX5] {
        let limits = ClientLimits::new(&device, 128, 32).expect("a good device");
        assert_eq!(limits.requests, 128);
        // The largest payload has one segment; the buffers around it may have their own.
        assert_eq!(limits.pages_per_segment, 257);
        assert_eq!(limits.segments, 3);
        assert_eq!(limits.registrations(), 6);
        assert_eq!(limits.send_sges, 19);
        assert_eq!(limits.send_wr, 128 * (2 + 1) + (2 * 6 + 1) + 32);
        assert_eq!(limits.recv_wr, 128 + 32 + 32);
        assert_eq!(limits.spare_recv_wr, 32);
    }
    let limits = ClientLimits::new(&SIW, 128, 32).expect("a good device");
    assert_eq!(limits.pages_per_segment, 256);
    assert_eq!(limits.segments, 4);
    assert_eq!(limits.send_sges, 6);
    assert_eq!(limits.requests, 128);
}

#[test]
fn requests_are_cut_to_the_queues() {
    let short = DeviceLimits {
        max_qp_wr: 1000,
        ..RXE
    };
    let limits = ClientLimits::new(&short, 128, 32).expect("a good device");
    assert_eq!(limits.requests, (1000 - 1 - 32) / 13);
    assert!(limits.send_wr < 1000);
    let wide = ClientLimits::new(&RXE, 16384, 32).expect("a good device");
    // The Completion Queue of rxe is shorter than its Send Queue.
    assert_eq!(wide.requests, (32767 - 1 - 32) / 13);
}

#[test]
fn refused_devices() {
    let client = |device: DeviceLimits| ClientLimits::new(&device, 128, 32).err();
    let none = DeviceLimits {
        mem_mgt_extensions: false,
        ..RXE
    };
    assert_eq!(client(none), Some(Refusal::NoFastRegistration));
    let pages = |max_fast_reg_pages| DeviceLimits {
        max_fast_reg_pages,
        ..RXE
    };
    assert_eq!(client(pages(0)), Some(Refusal::NoFastRegistration));
    assert_eq!(client(pages(1)), Some(Refusal::TooFewPages));
    assert_eq!(client(pages(16)), Some(Refusal::TooFewPages));
    assert_eq!(client(pages(17)), None);
    let sges = |max_send_sge| DeviceLimits {
        max_send_sge,
        ..RXE
    };
    assert_eq!(client(sges(2)), Some(Refusal::TooFewSges));
    assert_eq!(client(sges(3)), None);
    let wrs = |max_qp_wr| DeviceLimits { max_qp_wr, ..RXE };
    assert_eq!(client(wrs(33 + 4 * 13 - 1)), Some(Refusal::QueuesTooShort));
    assert_eq!(client(wrs(33 + 4 * 13)), None);
    assert_eq!(client(wrs(0)), Some(Refusal::QueuesTooShort));
}

/// The requested sizes are within the device's limits, whatever these are.
#[test]
fn odd_devices() {
    let mut random = Random(7);
    let mut good = 0;
    for _ in 0..200_000 {
        let mut number = || match random.below(6) {
            0 => u32::MAX - random.below(3) as u32,
            1 => random.below(8) as u32,
            2 => random.below(1 << 20) as u32,
            _ => random.below(2000) as u32,
        };
        let device = DeviceLimits {
            max_qp_wr: number(),
            max_cqe: number(),
            max_send_sge: number(),
            max_fast_reg_pages: number(),
            mem_mgt_extensions: true,
        };
        let (requests, reverse) = (number(), number());
        let queue = device.max_qp_wr.min(device.max_cqe);
        if let Ok(client) = ClientLimits::new(&device, requests, reverse) {
            good += 1;
            assert!(client.requests >= 4 && client.requests <= requests);
            // The drain needs an entry of each queue.
            assert!(client.send_wr < queue && client.recv_wr < queue);
            assert!(client.send_wr + client.recv_wr + 2 <= device.max_cqe);
            assert!(client.send_sges >= 3 && client.send_sges <= device.max_send_sge);
            assert!(client.pages_per_segment <= device.max_fast_reg_pages);
            assert!(client.segments <= MAX_CHUNK_SEGMENTS);
            assert!(client.segments * client.pages_per_segment >= MAX_DATA_PAGES);
            let one_each = client.requests + client.spare_recv_wr + reverse;
            assert!(client.spare_recv_wr >= 1 && client.recv_wr == one_each);
        }
    }
    assert!(good > 10_000, "hardly any device was good: {good}");
}
