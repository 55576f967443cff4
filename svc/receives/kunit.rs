// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: buffers that are added, replaced, and freed.

use super::*;
use crate::kapi::{
    fixture::pd,
    rdma::pd::Pd, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Creates four buffers of `size` octets.
fn four(pd: &Arc<Pd>, size: usize) -> Result<RecvList<CallData<CallState>>> {
    let mut list = RecvList::new();
    for _ in 0..4 {
        list.push(RecvBox::new(pd, size, CallData::default())?);
    }
    Ok(list)
}

/// Returns sizes that permit `receives` posted Receives, and `buffers` in all.
fn sizes(receives: u32, buffers: u32) -> Sizes {
    Sizes {
        credits: 1,
        receives,
        batch: 1,
        buffers,
        sends: 1,
    }
}

#[kunit_tests(rpcrdma_receives)]
mod tests {
    use super::*;

    #[test]
    fn buffers_for_the_places_of_posted_receives_are_not_spare() -> Result {
        let (pd, mut recvs) = (pd()?, Receives::new(64));
        assert_eq!(recvs.add(&mut four(&pd, 64)?, &sizes(4, 8)), 4);
        assert!(recvs.take_spare().is_none());
        let mut posted = recvs.pool.missing(4, 1);
        assert_eq!(posted.len(), 4);
        // All are posted when they are to be replaced.
        recvs.resize.begin(128, recvs.pool.posted());
        assert!(recvs.pool.replace(four(&pd, 128)?).is_empty());
        recvs.total += 4;
        assert!(recvs.take_spare().is_none());
        while let Some(buf) = posted.pop() {
            recvs.note_completed(buf.capacity());
            assert!(recvs.take_spare().is_none());
            assert!(recvs.put(buf).is_some());
        }
        assert_eq!(recvs.pool.missing(4, 1).len(), 4);
        recvs.total += 1;
        recvs.pool.put(RecvBox::new(&pd, 128, CallData::default())?);
        assert!(recvs.take_spare().is_some() && recvs.take_spare().is_none());
        assert_eq!((recvs.total, recvs.target), (4, 4));
        Ok(())
    }

    #[test]
    fn surplus_buffers_are_spare_while_a_part_of_a_batch_is_missing() -> Result {
        let (pd, mut recvs, sizes) = (pd()?, Receives::new(64), sizes(4, 8));
        recvs.add(&mut four(&pd, 64)?, &sizes);
        let mut posted = recvs.pool.missing(4, 1);
        recvs.add(&mut four(&pd, 64)?, &sizes);
        let buf = posted.pop().ok_or(EINVAL)?;
        recvs.note_completed(buf.capacity());
        assert!(recvs.put(buf).is_none());
        assert!(recvs.pool.missing(4, 2).is_empty());
        for left in [7, 6, 5, 4] {
            assert!(recvs.take_spare().is_some());
            assert_eq!(recvs.total, left);
        }
        assert!(recvs.take_spare().is_none());
        Ok(())
    }

    #[test]
    fn only_buffers_that_are_added_are_counted() -> Result {
        let (pd, mut recvs, sizes) = (pd()?, Receives::new(64), sizes(6, 10));
        let mut other = four(&pd, 128)?;
        assert_eq!((recvs.add(&mut other, &sizes), other.len()), (0, 4));
        assert_eq!((recvs.total, recvs.target, recvs.pool.free()), (0, 0, 0));
        // The last ones are in excess: other threads have added some since they were allocated.
        for (made, total, target) in [(4, 4, 4), (4, 8, 6), (2, 10, 6), (0, 10, 6)] {
            let mut list = four(&pd, 64)?;
            assert_eq!(recvs.add(&mut list, &sizes), made);
            assert_eq!(list.len(), 4 - made as usize);
            assert_eq!((recvs.total, recvs.target), (total, target));
            assert_eq!(recvs.pool.free(), total);
        }
        Ok(())
    }
}
