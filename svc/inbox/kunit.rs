// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: how many messages overtake a Call that is being pulled.

use super::*;

#[kunit_tests(rpcrdma_inbox)]
mod tests {
    use super::*;

    /// Takes messages as long as that is allowed, at most 1000; returns how many.
    fn take_all(order: &mut Order) -> u32 {
        let mut taken = 0;
        while taken < 1000 && order.allows() {
            order.take();
            taken += 1;
        }
        taken
    }

    #[test]
    fn as_many_as_there_are_without_a_pull() -> Result {
        assert_eq!(take_all(&mut Order::new(4)?), 1000);
        Ok(())
    }

    #[test]
    fn a_limited_number_for_each_pull() -> Result {
        let mut order = Order::new(4)?;
        // Also where the count wraps.
        order.taken = u32::MAX - 10;
        order.pull();
        for _ in 0..10 {
            order.take();
        }
        order.pull();
        assert_eq!(take_all(&mut order), MAX_OVERTAKING - 10);
        order.pulled();
        assert_eq!(take_all(&mut order), 10);
        order.pulled();
        assert_eq!(take_all(&mut order), 1000);
        Ok(())
    }
}
