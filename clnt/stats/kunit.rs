// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: counters that threads add to.

use super::*;
use crate::kapi::fixture::contend;
use kernel::{
    prelude::*,
    sync::Arc, //
};

#[kunit_tests(rpcrdma_stats)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost() -> Result {
        let stats = Arc::new(Stats::new(), GFP_KERNEL)?;
        let theirs = stats.clone();
        contend(4, move |number| {
            for _ in 0..10_000 {
                theirs.local_invs.add(1);
                theirs.placed_bytes.add(number << 20);
            }
        })?;
        assert_eq!(stats.local_invs.get(), 40_000);
        assert_eq!(stats.placed_bytes.get(), (6 << 20) * 10_000);
        assert_eq!(stats.fixup_bytes.get(), 0);
        Ok(())
    }
}
