// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: Read and Write requests cover all bytes of their ranges, in order. None is posted.

use super::*;
use crate::{
    kapi::{
        fixture::{
            pages,
            pattern,
            pd, //
        },
        rdma::pd::Pd, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    sync::Arc, //
};

/// The number of pages of a transfer.
const PAGES: usize = 40;

/// The key of local memory in these tests.
const LKEY: u32 = 0x5151;

fn target(pd: &Arc<Pd>, max_sge: usize, direction: TransferDir) -> Target<'_> {
    Target {
        device: pd.device(),
        lkey: LKEY,
        max_sge,
        direction,
    }
}

fn remote(addr: u64, length: usize) -> Remote {
    Remote {
        addr,
        length: length as u32,
        handle: 0xaaaa,
    }
}

/// Adds a request.
fn add(
    direct: &mut Direct,
    target: &Target<'_>,
    pages: &PageVec,
    octets: Range<usize>,
    remote: Remote,
) -> Result {
    // SAFETY: Each test has one device, and keeps the pages until it unmaps them.
    unsafe { direct.add(target, pages, octets, remote) }
}

/// Unmaps all.
fn unmap(direct: &mut Direct, pd: &Arc<Pd>) {
    // SAFETY: Each test has one device, and posts nothing.
    unsafe { direct.unmap(pd.device()) };
}

/// The contents of a request.
struct Request {
    opcode: bindings::ib_wr_opcode,
    addr: u64,
    rkey: u32,
    elements: KVec<bindings::ib_sge>,
}

/// Returns the requests in the list.
fn requests(direct: &Direct) -> Result<KVec<Request>> {
    let mut found = KVec::new();
    // SAFETY: The requests are in no chain.
    let Some(list) = (unsafe { direct.link() }) else {
        return Ok(found);
    };
    let mut wr = list.first;
    loop {
        // SAFETY: `wr` is a request of the list. Each is the first field of an `ib_rdma_wr`, and
        // has `num_sge` SGEs.
        let next = unsafe {
            let rdma = wr.cast::<bindings::ib_rdma_wr>();
            let mut elements = KVec::new();
            for i in 0..(*wr).num_sge as usize {
                elements.push((*wr).sg_list.add(i).read(), GFP_KERNEL)?;
            }
            found.push(
                Request {
                    opcode: (*wr).opcode,
                    addr: (*rdma).remote_addr,
                    rkey: (*rdma).rkey,
                    elements,
                },
                GFP_KERNEL,
            )?;
            (*wr).next
        };
        if core::ptr::eq(wr, list.last) {
            assert!(next.is_null());
            break;
        }
        wr = next;
    }
    assert_eq!(found.len(), list.count as usize);
    assert_eq!(list.count, direct.sqes());
    Ok(found)
}

/// Returns whether the requests cover the bytes of the pattern at `octets`, in order. The device
/// must use kernel addresses as DMA addresses.
fn same(requests: &[Request], octets: impl Iterator<Item = usize>) -> bool {
    let elements = requests.iter().flat_map(|request| request.elements.iter());
    let addresses = elements.flat_map(|e| e.addr..e.addr + u64::from(e.length));
    // SAFETY: The bytes are in pages that the test owns.
    let bytes =
        addresses.map(|at| unsafe { *core::ptr::with_exposed_provenance::<u8>(at as usize) });
    bytes.eq(octets.map(|at| pattern(at, 7)))
}

#[kunit_tests(rpcrdma_rw_direct)]
mod tests {
    use super::*;

    #[test]
    fn requests_cover_all_bytes_in_order() -> Result {
        let (pd, pages) = (pd()?, pages(PAGES * PAGE_SIZE, 7)?);
        let all = PAGES * PAGE_SIZE;
        let mut direct = Direct::new();
        for max_sge in [1, 3, 30, 1000] {
            for octets in [
                0..1,
                0..all,
                5..all - 5,
                PAGE_SIZE - 1..PAGE_SIZE + 1,
                all - 1..all,
            ] {
                let target = target(&pd, max_sge, TransferDir::Write);
                let there = remote(1 << 40, octets.len());
                add(&mut direct, &target, &pages, octets.clone(), there)?;
                let made = requests(&direct)?;
                assert!(same(&made, octets.clone()));
                let mut addr = 1 << 40;
                for request in &made {
                    assert_eq!(request.opcode, bindings::ib_wr_opcode_IB_WR_RDMA_WRITE);
                    assert_eq!((request.addr, request.rkey), (addr, 0xaaaa));
                    assert!((1..=max_sge).contains(&request.elements.len()));
                    assert!(request.elements.iter().all(|element| element.lkey == LKEY));
                    addr += request
                        .elements
                        .iter()
                        .map(|e| u64::from(e.length))
                        .sum::<u64>();
                }
                assert_eq!(addr, (1 << 40) + octets.len() as u64);
                unmap(&mut direct, &pd);
                assert!(requests(&direct)?.is_empty() && direct.sqes() == 0);
            }
        }
        Ok(())
    }

    #[test]
    fn segments_follow_each_other() -> Result {
        let (pd, pages) = (pd()?, pages(PAGES * PAGE_SIZE, 7)?);
        let mut direct = Direct::new();
        let target = target(&pd, 2, TransferDir::Read);
        let segments = [0..100, 100..PAGE_SIZE + 3, 3 * PAGE_SIZE..9 * PAGE_SIZE];
        for octets in segments.clone() {
            let there = remote(octets.start as u64, octets.len());
            add(&mut direct, &target, &pages, octets, there)?;
        }
        let requests = requests(&direct)?;
        assert!(same(&requests, segments.clone().into_iter().flatten()));
        for segment in segments {
            let start = segment.start as u64;
            assert!(requests.iter().any(|request| request.addr == start));
        }
        let read = bindings::ib_wr_opcode_IB_WR_RDMA_READ;
        assert!(requests.iter().all(|request| request.opcode == read));
        unmap(&mut direct, &pd);
        Ok(())
    }

    #[test]
    fn a_segment_can_have_several_ranges() -> Result {
        let (pd, pages) = (pd()?, pages(PAGES * PAGE_SIZE, 7)?);
        let mut direct = Direct::new();
        let target = target(&pd, 4, TransferDir::Write);
        let ranges = [
            20..120,
            2 * PAGE_SIZE..4 * PAGE_SIZE,
            PAGE_SIZE + 7..PAGE_SIZE + 9,
        ];
        let length = ranges.iter().map(|range| range.len()).sum();
        let parts = ranges.clone().into_iter();
        // SAFETY: As in `add`.
        unsafe { direct.add_parts(&target, &pages, parts, remote(0, length)) }?;
        let requests = requests(&direct)?;
        assert!(same(&requests, ranges.into_iter().flatten()));
        unmap(&mut direct, &pd);
        Ok(())
    }

    #[test]
    fn invalid_ranges_are_refused_without_side_effects() -> Result {
        let (pd, pages) = (pd()?, pages(2 * PAGE_SIZE, 7)?);
        let mut direct = Direct::new();
        let target = target(&pd, 4, TransferDir::Write);
        add(&mut direct, &target, &pages, 0..9, remote(0, 9))?;
        let all = 2 * PAGE_SIZE;
        for (octets, length) in [
            (0..0, 0),
            (0..9, 8),
            (0..9, 10),
            (0..all + 1, all + 1),
            (all..all + 1, 1),
            (usize::MAX - 1..usize::MAX, 1),
        ] {
            let refused = add(&mut direct, &target, &pages, octets, remote(0, length));
            assert!(refused == Err(EINVAL));
            assert_eq!((direct.runs.len(), direct.sqes()), (1, 1));
        }
        assert!(same(&requests(&direct)?, 0..9));
        unmap(&mut direct, &pd);
        Ok(())
    }

    #[test]
    fn arrays_are_reused() -> Result {
        let (pd, pages) = (pd()?, pages(PAGES * PAGE_SIZE, 7)?);
        let mut direct = Direct::new();
        let target = target(&pd, 4, TransferDir::Write);
        let mut arrays = [core::ptr::null::<u8>(); 3];
        for turn in 0..3 {
            let octets = 0..PAGES * PAGE_SIZE;
            add(
                &mut direct,
                &target,
                &pages,
                octets,
                remote(0, PAGES * PAGE_SIZE),
            )?;
            let now = [
                direct.runs.as_ptr().cast(),
                direct.elements.as_ptr().cast(),
                direct.requests.as_ptr().cast(),
            ];
            assert!(turn == 0 || now == arrays);
            arrays = now;
            unmap(&mut direct, &pd);
        }
        Ok(())
    }
}
