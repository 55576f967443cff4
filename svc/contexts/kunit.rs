// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the contexts that a connection keeps.

use super::Contexts;
use kernel::prelude::*;

/// Returns what a period frees.
fn freed(contexts: &mut Contexts<u32>) -> usize {
    let mut count = 0;
    while contexts.pop_unused().is_some() {
        count += 1;
    }
    contexts.end_period();
    count
}

#[kunit_tests(rpcrdma_contexts)]
mod tests {
    use super::*;

    #[test]
    fn contexts_that_were_not_used_are_freed_except_for_a_few() -> Result {
        let mut contexts = Contexts::new(10)?;
        for number in 0..10 {
            assert_eq!(contexts.push(number), None);
        }
        assert_eq!(contexts.push(10), Some(10));
        // They were not in the list for a whole period.
        assert_eq!(freed(&mut contexts), 0);
        let used = [(); 3].map(|()| contexts.pop());
        assert_eq!(used, [Some(9), Some(8), Some(7)]);
        for number in used.into_iter().flatten() {
            contexts.push(number);
        }
        // Of seven that were not used, two are kept.
        assert_eq!(freed(&mut contexts), 5);
        assert_eq!(freed(&mut contexts), 3);
        assert_eq!(freed(&mut contexts), 0);
        assert_eq!(contexts.len(), 2);
        Ok(())
    }

    #[test]
    fn a_sealed_list_keeps_all_contexts() -> Result {
        let mut contexts = Contexts::new(10)?;
        for number in 0..5 {
            assert_eq!(contexts.push(number), None);
        }
        contexts.end_period();
        contexts.seal();
        assert_eq!(contexts.push(5), None);
        assert_eq!(contexts.pop(), None);
        assert_eq!(freed(&mut contexts), 0);
        assert_eq!(contexts.len(), 6);
        Ok(())
    }
}
