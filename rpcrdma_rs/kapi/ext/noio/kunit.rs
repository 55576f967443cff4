// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: scopes in which allocations start no I/O.

use super::*;
use kernel::{
    prelude::*,
    task::Task, //
};

/// Returns whether allocations of the current thread may start I/O.
fn may_do_io() -> bool {
    // SAFETY: The current task is valid, and only it writes its flags.
    let flags = unsafe { (&raw const (*Task::current_raw()).flags).read_volatile() };
    flags & bindings::PF_MEMALLOC_NOIO == 0
}

#[kunit_tests(rpcrdma_noio)]
mod tests {
    use super::*;

    #[test]
    fn io_is_allowed_after_the_outermost_scope() {
        assert!(may_do_io());
        for _ in 0..2 {
            let outer = NoIo::begin();
            assert!(!may_do_io());
            {
                let _inner = NoIo::begin();
                assert!(!may_do_io());
            }
            assert!(!may_do_io());
            drop(outer);
            assert!(may_do_io());
        }
    }
}
