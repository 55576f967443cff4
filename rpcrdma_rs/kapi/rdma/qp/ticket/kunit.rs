// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the posts that completed chains prove to be executed.

use kernel::prelude::*;

use super::*;
use crate::kapi::rdma::qp::gate::{
    Gate,
    Posting, //
};

/// Begins a post, and returns it with its number.
fn begin<'a>(gate: &'a Gate, executed: &Executed) -> Result<(u64, Posting<'a>)> {
    let (number, posting) = gate.enter(1);
    let posting = posting.ok_or(EIO)?;
    if posting.overlaps {
        executed.note_overlap(number);
    }
    Ok((number, posting))
}

#[kunit_tests(rpcrdma_executed)]
mod tests {
    use super::*;

    #[test]
    fn a_completed_chain_proves_that_earlier_ones_were_executed() -> Result {
        let (gate, executed) = (Gate::new(), Executed::new());
        for number in 0..3 {
            let (begun, posting) = begin(&gate, &executed)?;
            assert!(begun == number);
            drop(posting);
            assert!(executed.below.load(Relaxed) == number);
            executed.note_completed(number);
            assert!(executed.below.load(Relaxed) == number + 1);
        }
        Ok(())
    }

    #[test]
    fn a_chain_that_was_posted_during_another_post_proves_nothing() -> Result {
        let (gate, executed) = (Gate::new(), Executed::new());
        let (slow, posting) = begin(&gate, &executed)?;
        let (fast, other) = begin(&gate, &executed)?;
        drop(other);
        // Its number is larger, but it is executed first.
        executed.note_completed(fast);
        assert!(executed.below.load(Relaxed) <= slow);
        // This one begins when as many posts have ended as had begun before it, but not all of
        // them.
        let (third, other) = begin(&gate, &executed)?;
        drop(other);
        executed.note_completed(third);
        assert!(executed.below.load(Relaxed) <= slow);
        drop(posting);
        executed.note_completed(slow);
        // The first one that follows all of them.
        let (last, posting) = begin(&gate, &executed)?;
        drop(posting);
        executed.note_completed(last);
        assert!(executed.below.load(Relaxed) == last + 1);
        Ok(())
    }
}
