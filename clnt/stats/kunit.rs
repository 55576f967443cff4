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
                theirs.read_segments.add(1);
                theirs.offered_bytes.add(number << 20);
            }
        })?;
        assert_eq!(stats.read_segments.get(), 40_000);
        assert_eq!(stats.offered_bytes.get(), (6 << 20) * 10_000);
        assert_eq!(stats.write_segments.get(), 0);
        Ok(())
    }
}
