// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: a Send Queue with threads that contend for it.

use super::*;
use kernel::{
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta, //
    },
};

use crate::kapi::fixture::{
    contend,
    long_pause,
    pause,
    spawn, //
};

/// A queue, and what threads tell of it.
struct Shared {
    sq: Arc<Sq>,
    in_use: Atomic<u32>,
    bad: Atomic<u32>,
    count: Atomic<u32>,
}

/// A queue of `depth` entries with patience for all that its users do.
fn shared(depth: u32) -> Result<Arc<Shared>> {
    with_patience(depth, msecs_to_jiffies(60_000))
}

fn with_patience(depth: u32, patience: Jiffies) -> Result<Arc<Shared>> {
    Ok(Arc::new(
        Shared {
            sq: Sq::new(depth, patience)?,
            in_use: Atomic::new(0),
            bad: Atomic::new(0),
            count: Atomic::new(0),
        },
        GFP_KERNEL,
    )?)
}

impl Shared {
    /// Takes entries, holds them for a while, and notes when more are in use than there are.
    fn use_some(&self, count: u32, hold: bool) {
        match self.sq.reserve(count) {
            Ok(reserved) => {
                if self.in_use.fetch_add(count, Relaxed) + count > self.sq.depth() {
                    self.bad.add(1, Relaxed);
                }
                if hold {
                    pause();
                }
                self.in_use.fetch_sub(count, Relaxed);
                drop(reserved);
            }
            Err(_) => self.bad.add(1, Relaxed),
        }
    }

    /// Whether all entries are free and nobody waits.
    fn at_rest(&self) -> bool {
        let ledger = self.sq.ledger.lock();
        let depth = self.sq.depth();
        ledger.entries() == (depth, depth) && !ledger.has_waiters()
    }

    /// Waits until so many wait.
    fn until_waiting(&self, count: u64) {
        while self.sq.ledger.lock().waiting() != count {
            pause();
        }
    }
}

#[kunit_tests(rpcrdma_sq)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_given_back_once() -> Result {
        let shared = shared(10)?;
        let sq = &shared.sq;
        let (a, b) = (sq.reserve(3)?, sq.reserve(6)?);
        assert_eq!(sq.ledger.lock().entries(), (1, 10));
        drop(a);
        assert_eq!(sq.ledger.lock().entries(), (4, 10));
        let c = sq.try_reserve(4)?;
        assert!(sq.try_reserve(1).is_err_and(|e| e == EAGAIN));
        drop(b);
        drop(c);
        assert!(shared.at_rest());
        assert!(sq.reserve(11).is_err_and(|e| e == enotconn()));
        assert!(sq.try_reserve(u32::MAX).is_err_and(|e| e == enotconn()));
        drop(sq.reserve(10)?);
        assert!(shared.at_rest());
        Ok(())
    }

    #[test]
    fn never_are_more_in_use_than_there_are() -> Result {
        let shared = shared(16)?;
        let theirs = shared.clone();
        contend(6, move |number| {
            for i in 0..100 {
                let count = (number as u32 * 5 + i * 7) % 16 + 1;
                theirs.use_some(count, i % 3 == 0);
                theirs.count.add(1, Relaxed);
            }
        })?;
        assert_eq!(shared.count.load(Relaxed), 600);
        assert_eq!(shared.bad.load(Relaxed), 0);
        assert_eq!(shared.in_use.load(Relaxed), 0);
        assert!(shared.at_rest());
        Ok(())
    }

    #[test]
    fn a_long_chain_is_not_starved_by_short_ones() -> Result {
        let shared = shared(8)?;
        let stop = Arc::new(Atomic::new(0_u32), GFP_KERNEL)?;
        for _ in 0..4 {
            let (theirs, stop) = (shared.clone(), stop.clone());
            spawn(move || {
                while stop.load(Relaxed) == 0 {
                    theirs.use_some(3, true);
                }
                theirs.count.add(1, Relaxed);
            })?;
        }
        for _ in 0..20 {
            shared.use_some(8, false);
        }
        stop.store(1, Relaxed);
        while shared.count.load(Relaxed) < 4 {
            pause();
        }
        assert_eq!(shared.bad.load(Relaxed), 0);
        assert!(shared.at_rest());
        Ok(())
    }

    #[test]
    fn who_came_first_is_served_first() -> Result {
        let shared = shared(4)?;
        let held = shared.sq.reserve(4)?;
        for number in 0..5 {
            let theirs = shared.clone();
            spawn(move || {
                let reserved = theirs.sq.reserve(4);
                if reserved.is_err() || theirs.count.fetch_add(1, Relaxed) != number {
                    theirs.bad.add(1, Relaxed);
                }
            })?;
            shared.until_waiting(u64::from(number) + 1);
        }
        assert!(shared.sq.ledger.lock().has_waiters());
        drop(held);
        while shared.count.load(Relaxed) < 5 {
            pause();
        }
        long_pause();
        assert_eq!(shared.bad.load(Relaxed), 0);
        assert!(shared.at_rest());
        Ok(())
    }

    #[test]
    fn nobody_overtakes_who_waits() -> Result {
        let shared = shared(4)?;
        let held = shared.sq.reserve(3)?;
        let theirs = shared.clone();
        spawn(move || {
            theirs.use_some(2, false);
            theirs.count.add(1, Relaxed);
        })?;
        shared.until_waiting(1);
        // There is one, and it is not for us.
        assert_eq!(shared.sq.ledger.lock().entries(), (1, 4));
        assert!(shared.sq.try_reserve(1).is_err_and(|e| e == EAGAIN));
        drop(held);
        while shared.count.load(Relaxed) == 0 {
            pause();
        }
        assert_eq!(shared.bad.load(Relaxed), 0);
        drop(shared.sq.try_reserve(4)?);
        Ok(())
    }

    #[test]
    fn closing_sends_everyone_away() -> Result {
        let shared = shared(4)?;
        let held = shared.sq.reserve(4)?;
        for _ in 0..4 {
            let theirs = shared.clone();
            spawn(move || {
                let refused = theirs.sq.reserve(1).is_err_and(|e| e == enotconn());
                theirs.bad.add(u32::from(!refused), Relaxed);
                theirs.count.add(1, Relaxed);
            })?;
        }
        shared.until_waiting(4);
        shared.sq.close();
        while shared.count.load(Relaxed) < 4 {
            pause();
        }
        assert_eq!(shared.bad.load(Relaxed), 0);
        assert!(shared.sq.reserve(1).is_err_and(|e| e == enotconn()));
        assert!(shared.sq.try_reserve(1).is_err_and(|e| e == enotconn()));
        // What is still posted gives its entries back all the same.
        drop(held);
        assert!(shared.at_rest());
        Ok(())
    }

    #[test]
    fn who_takes_nothing_is_not_waited_for() -> Result {
        let shared = with_patience(4, msecs_to_jiffies(3_000))?;
        let held = shared.sq.reserve(3)?;
        // Something is given back now and then: that is worth waiting for.
        let theirs = shared.clone();
        let more = shared.sq.reserve(1)?;
        spawn(move || {
            let waited = theirs.sq.reserve(2);
            theirs
                .bad
                .add(u32::from(!waited.is_err_and(|e| e == ETIMEDOUT)), Relaxed);
            theirs.count.add(1, Relaxed);
        })?;
        shared.until_waiting(1);
        fsleep(Delta::from_millis(2_000));
        drop(more);
        fsleep(Delta::from_millis(2_000));
        assert_eq!(shared.count.load(Relaxed), 0);
        // Another who waits is sent away with the first.
        assert!(shared.sq.reserve(1).is_err());
        while shared.count.load(Relaxed) == 0 {
            pause();
        }
        assert_eq!(shared.bad.load(Relaxed), 0);
        assert!(shared.sq.try_reserve(1).is_err_and(|e| e == enotconn()));
        drop(held);
        assert!(shared.at_rest());
        Ok(())
    }
}
