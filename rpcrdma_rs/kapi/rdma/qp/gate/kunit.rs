// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the posts that closing a QP waits for.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::*;
use crate::kapi::fixture::{
    contend,
    pause, //
};

#[kunit_tests(rpcrdma_gate)]
mod tests {
    use super::*;

    #[test]
    fn posts_are_numbered_and_counted() {
        let gate = Gate::new();
        let (first, posting) = gate.enter(1);
        assert_eq!((first, gate.next()), (0, 1));
        if let Some(mut posting) = posting {
            posting.unposted = 0;
        }
        let (second, posting) = gate.enter(3);
        assert_eq!((second, gate.next()), (1, 4));
        if let Some(mut posting) = posting {
            posting.unposted = 2;
        }
        assert_eq!(gate.accepted(), 2);
        // The device accepted nothing of this one.
        drop(gate.enter(1));
        assert_eq!(gate.accepted(), 2);
        assert!(gate.have_ended(5));
    }

    #[test]
    fn a_post_that_is_refused_is_none_that_ends() {
        let gate = Gate::new();
        let (_, posting) = gate.enter(1);
        let begun = gate.close();
        assert_eq!(begun, 1);
        let (number, refused) = gate.enter(1);
        assert!(refused.is_none());
        assert_eq!(number, 1);
        assert!(!gate.have_ended(begun));
        drop(posting);
        assert!(gate.have_ended(begun));
        assert!(gate.enter(2).1.is_none());
        assert!(gate.have_ended(begun));
        assert_eq!(gate.accepted(), 0);
    }

    #[test]
    fn closing_waits_for_contending_posts() -> Result {
        let shared = Arc::new((Gate::new(), Atomic::<u64>::new(0)), GFP_KERNEL)?;
        let theirs = shared.clone();
        contend(4, move |number| {
            let (gate, closed_with) = &*theirs;
            for i in 0..200 {
                if number == 0 && i == 100 {
                    let begun = gate.close();
                    while !gate.have_ended(begun) {
                        pause();
                    }
                    closed_with.store(begun, Relaxed);
                } else if let (_, Some(mut posting)) = gate.enter(1) {
                    posting.unposted = 0;
                    if i % 5 == 0 {
                        pause();
                    }
                }
            }
        })?;
        let (gate, closed_with) = &*shared;
        let begun = closed_with.load(Relaxed);
        assert!(begun >= 100);
        // Each post that began was waited for, and none began afterwards.
        assert!(gate.have_ended(begun));
        assert_eq!(gate.accepted(), begun);
        Ok(())
    }
}
