// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: a Send Queue with threads that contend for it, its backlog, and its timer.

use super::*;
use kernel::time::{
    delay::fsleep,
    Delta, //
};

use crate::kapi::{
    ext::atomic::{
        Atomic,
        Relaxed, //
    },
    fixture::{
        contend,
        pause, //
    },
    sunrpc::errno::enotconn, //
};

/// A period that is longer than any test.
const LONG_MS: u32 = 60_000;

/// Counts the reports of stalled chains.
struct Stalls {
    stalls: Arc<Atomic<u32>>,
    has_access: bool,
}

impl SqOwner for Stalls {
    fn has_access(&self) -> bool {
        self.has_access
    }

    fn stalled(&self) {
        self.stalls.add(1, Relaxed);
    }
}

type TestSq = Sq<u32, Stalls>;
type TestReservation = SqReservation<u32, Stalls>;

fn queue(depth: u32) -> Result<Arc<TestSq>> {
    watched(depth, LONG_MS, true).map(|(sq, _)| sq)
}

fn watched(
    depth: u32,
    period_ms: u32,
    has_access: bool,
) -> Result<(Arc<TestSq>, Arc<Atomic<u32>>)> {
    let stalls = Arc::new(Atomic::new(0), GFP_KERNEL)?;
    let owner = Stalls {
        stalls: stalls.clone(),
        has_access,
    };
    Ok((Sq::new(depth, 1000, owner, period_ms)?, stalls))
}

/// Submits chain number `number`, of `count` entries. Returns the reservation if it is granted.
fn submit(sq: &Arc<TestSq>, count: u32, number: u32) -> Option<TestReservation> {
    match sq.submit(count, number, |number| number) {
        Submitted::Granted(_, reservation) => Some(reservation),
        Submitted::Queued(_) | Submitted::Refused(_) => None,
    }
}

/// Takes `count` entries.
fn reserve(sq: &Arc<TestSq>, count: u32) -> Result<TestReservation> {
    let mut slot = None;
    sq.try_reserve(&mut slot, count)?;
    slot.ok_or(ENOENT)
}

fn is_refused(sq: &Arc<TestSq>, count: u32) -> bool {
    matches!(sq.submit(count, 7, |number| number), Submitted::Refused(7))
}

/// Whether all entries are free and nothing waits.
fn at_rest(sq: &Arc<TestSq>) -> bool {
    let state = sq.state.lock();
    let depth = sq.depth();
    state.accounting.free() == depth && state.backlog.first().is_none()
}

#[kunit_tests(rpcrdma_sq)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_given_back_once() -> Result {
        let sq = queue(10)?;
        let (a, b) = (reserve(&sq, 3)?, submit(&sq, 6, 0));
        assert!(b.is_some());
        assert_eq!(sq.state.lock().accounting.free(), 1);
        drop(a);
        assert_eq!(sq.state.lock().accounting.free(), 4);
        let c = reserve(&sq, 4)?;
        assert!(reserve(&sq, 1).is_err_and(|e| e == EAGAIN));
        drop(b);
        drop(c);
        assert!(at_rest(&sq));
        assert!(is_refused(&sq, 11));
        assert!(reserve(&sq, u32::MAX).is_err_and(|e| e == enotconn()));
        drop(submit(&sq, 10, 0));
        assert!(at_rest(&sq));
        sq.end();
        Ok(())
    }

    #[test]
    fn a_reservation_is_used_again() -> Result {
        let (sq, other) = (queue(10)?, queue(10)?);
        let free = |sq: &Arc<TestSq>| sq.state.lock().accounting.free();
        let mut slot = None;
        for count in [3, 10, 1] {
            sq.try_reserve(&mut slot, count)?;
            assert_eq!(free(&sq), 10 - count);
            for _ in 0..2 {
                slot.as_mut().ok_or(ENOENT)?.release();
                assert!(at_rest(&sq));
            }
        }
        // One that was not released returns its entries when another one replaces it.
        sq.try_reserve(&mut slot, 4)?;
        sq.try_reserve(&mut slot, 5)?;
        assert_eq!(free(&sq), 5);
        other.try_reserve(&mut slot, 2)?;
        assert!(at_rest(&sq));
        assert_eq!(free(&other), 8);
        // An error changes nothing.
        assert!(other.try_reserve(&mut slot, 9).is_err_and(|e| e == EAGAIN));
        assert_eq!(free(&other), 8);
        drop(slot);
        assert!(at_rest(&other));
        sq.end();
        other.end();
        Ok(())
    }

    #[test]
    fn the_line_is_served_in_order() -> Result {
        let sq = queue(4)?;
        let held = submit(&sq, 3, 0);
        assert!(held.is_some() && sq.next().is_none());
        // The long one does not fit; the short one would, but waits behind it.
        assert!(submit(&sq, 4, 1).is_none() && submit(&sq, 1, 2).is_none());
        assert!(reserve(&sq, 1).is_err_and(|e| e == EAGAIN));
        assert!(sq.next().is_none());
        drop(held);
        let long = sq.next();
        assert!(long.as_ref().is_some_and(|(number, _)| *number == 1));
        assert!(sq.next().is_none());
        drop(long);
        let short = sq.next();
        assert!(short.as_ref().is_some_and(|(number, _)| *number == 2));
        assert!(sq.next().is_none());
        drop(short);
        assert!(at_rest(&sq));
        sq.end();
        Ok(())
    }

    #[test]
    fn never_are_more_in_use_than_there_are_and_no_chain_is_lost() -> Result {
        let sq = queue(16)?;
        let in_use = Arc::new(Atomic::new(0_u32), GFP_KERNEL)?;
        let bad = Arc::new(Atomic::new(0_u32), GFP_KERNEL)?;
        let done = Arc::new(Atomic::new(0_u32), GFP_KERNEL)?;
        let theirs = (sq.clone(), in_use.clone(), bad.clone(), done.clone());
        contend(6, move |number| {
            let (sq, in_use, bad, done) = &theirs;
            let run = |count: u32, reservation: TestReservation, hold: bool| {
                if in_use.fetch_add(count, Relaxed) + count > sq.depth() {
                    bad.add(1, Relaxed);
                }
                if hold {
                    pause();
                }
                in_use.fetch_sub(count, Relaxed);
                done.add(1, Relaxed);
                drop(reservation);
            };
            for i in 0..100 {
                let count = (number as u32 * 5 + i * 7) % 16 + 1;
                // A chain's number is how many entries it takes.
                if let Some(reservation) = submit(sq, count, count) {
                    run(count, reservation, i % 3 == 0);
                    while let Some((count, reservation)) = sq.next() {
                        run(count, reservation, false);
                    }
                }
            }
        })?;
        assert_eq!(bad.load(Relaxed), 0);
        assert_eq!(done.load(Relaxed), 600);
        assert!(at_rest(&sq));
        sq.end();
        Ok(())
    }

    #[test]
    fn closing_refuses_and_leaves_what_is_in_line() -> Result {
        let sq = queue(4)?;
        let held = submit(&sq, 4, 0);
        assert!(submit(&sq, 1, 1).is_none() && submit(&sq, 2, 2).is_none());
        sq.close();
        assert!(is_refused(&sq, 1));
        assert!(reserve(&sq, 1).is_err_and(|e| e == enotconn()));
        drop(held);
        assert!(sq.next().is_none());
        assert_eq!(sq.take_waiting(), Some(1));
        assert_eq!(sq.take_waiting(), Some(2));
        assert_eq!(sq.take_waiting(), None);
        assert!(at_rest(&sq));
        sq.end();
        Ok(())
    }

    #[test]
    fn a_full_line_refuses() -> Result {
        let sq = queue(1)?;
        let held = submit(&sq, 1, 0);
        for number in 0..1000 {
            assert!(submit(&sq, 1, number).is_none());
        }
        assert!(is_refused(&sq, 1));
        sq.end();
        drop(held);
        while sq.take_waiting().is_some() {}
        assert!(at_rest(&sq));
        Ok(())
    }

    #[test]
    fn stalled_chains_are_reported_once() -> Result {
        for (has_access, at_least, at_most) in [(false, 150, 450), (true, 400, 1000)] {
            let (sq, stalls) = watched(4, 100, has_access)?;
            let held = submit(&sq, 1, 0);
            fsleep(Delta::from_millis(at_least));
            assert_eq!(stalls.load(Relaxed), 0);
            fsleep(Delta::from_millis(at_most - at_least));
            assert_eq!(stalls.load(Relaxed), 1);
            assert!(is_refused(&sq, 1));
            sq.end();
            drop(held);
        }
        Ok(())
    }

    #[test]
    fn chains_that_complete_are_not_reported() -> Result {
        let (sq, stalls) = watched(4, 20, false)?;
        for _ in 0..40 {
            let held = submit(&sq, 4, 0);
            assert!(held.is_some());
            fsleep(Delta::from_millis(10));
        }
        assert_eq!(stalls.load(Relaxed), 0);
        sq.end();
        Ok(())
    }
}
