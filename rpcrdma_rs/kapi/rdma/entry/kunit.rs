// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: entries that are in flight at most once, and the lists that find them. The tests
//! create the completions; no device is involved.

use super::*;
use crate::kapi::{
    ext::atomic::Relaxed,
    fixture::{
        contend,
        pause, //
    }, //
};
use kernel::new_mutex;

/// An entry, and what threads observe of it.
#[repr(C)]
struct Shared {
    entry: Entry,
    flights: Atomic<u32>,
    bad: Atomic<u32>,
    entries: Arc<EntryList>,
    /// The status of the last completion. The next field counts the completions.
    status: Atomic<u32>,
    completions: Atomic<u32>,
}

/// Records a completion and marks the entry as completed.
///
/// # Safety
///
/// `wc` must be a valid completion of the entry of a `Shared`.
unsafe extern "C" fn note(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: The completion is valid, and its entry is the first field of a `Shared`, by this
    // function's contract.
    unsafe {
        let entry = (*wc).__bindgen_anon_1.wr_cqe.cast::<Entry>();
        Entry::end(entry);
        let shared = entry.cast::<Shared>();
        (*shared).status.store((*wc).status, Relaxed);
        (*shared).completions.add(1, Relaxed);
    }
}

fn shared(entries: &Arc<EntryList>) -> Result<Arc<Shared>> {
    Ok(Arc::new(
        Shared {
            entry: Entry::new(Some(note)),
            flights: Atomic::new(0),
            bad: Atomic::new(0),
            entries: entries.clone(),
            status: Atomic::new(u32::MAX),
            completions: Atomic::new(0),
        },
        GFP_KERNEL,
    )?)
}

fn four(entries: &Arc<EntryList>) -> Result<[Arc<Shared>; 4]> {
    let one = || shared(entries);
    Ok([one()?, one()?, one()?, one()?])
}

impl Shared {
    fn entry(self: &Arc<Self>) -> *mut Entry {
        Arc::as_ptr(self).cast_mut().cast()
    }

    /// Starts the entry for post `post`. Returns `false` if it is in flight.
    fn start(self: &Arc<Self>, post: u64) -> bool {
        // SAFETY: The entry is in an `Arc`, so it does not move. One thread of a test starts it at
        // a time.
        unsafe { Entry::start(self.entry(), &self.entries, Ticket { qp: 1, post }) }
    }

    /// Marks the entry, which the caller has started, as completed.
    fn end(self: &Arc<Self>) -> Option<u64> {
        // SAFETY: The entry is in flight, or not used by any device; no other thread ends it.
        unsafe { Entry::end(self.entry()) }.map(|ticket| ticket.post)
    }

    fn status(&self) -> u32 {
        self.status.load(Relaxed)
    }
}

/// Completes the entries in flight.
fn flush(entries: &EntryList) {
    // SAFETY: No device uses these entries, and `note` ignores the queue.
    unsafe { entries.flush(core::ptr::null_mut()) };
}

/// Returns the number of entries in the list.
fn members(entries: &EntryList) -> usize {
    let list = entries.list.lock();
    let (mut count, mut raw) = (0, list.first);
    while !raw.is_null() {
        count += 1;
        // SAFETY: Entries in the list are valid while the lock is held.
        raw = unsafe { (*raw).next };
    }
    count
}

const FLUSHED: u32 = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;

#[kunit_tests(rpcrdma_entry)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_in_flight_once_at_a_time() -> Result {
        let shared = shared(&EntryList::new()?)?;
        for ticket in [7, 8, u64::MAX] {
            assert!(shared.start(ticket));
            assert!(!shared.start(99));
            assert_eq!(shared.end(), Some(ticket));
            // A driver that completes twice.
            assert_eq!(shared.end(), None);
        }
        Ok(())
    }

    #[test]
    fn an_entry_passes_from_thread_to_thread() -> Result {
        let shared = shared(&EntryList::new()?)?;
        // The thread that holds the lock owns the entry, as the thread that posts it does.
        let owner = Arc::pin_init(new_mutex!(()), GFP_KERNEL)?;
        let (theirs, owners) = (shared.clone(), owner.clone());
        contend(4, move |number| {
            for i in 0..200 {
                let ticket = (number * 1000 + i) as u64;
                let _owned = owners.lock();
                let started = theirs.start(ticket);
                theirs.flights.add(u32::from(started), Relaxed);
                if i % 5 == 0 {
                    pause();
                }
                let ended = theirs.end() == Some(ticket);
                theirs.bad.add(u32::from(!ended), Relaxed);
            }
        })?;
        assert_eq!(shared.bad.load(Relaxed), 0);
        assert_eq!(shared.flights.load(Relaxed), 800);
        assert!(shared.start(1));
        Ok(())
    }

    #[test]
    fn only_entries_in_flight_are_flushed() -> Result {
        let entries = EntryList::new()?;
        let [never, idle, first, second] = four(&entries)?;
        assert!(idle.start(1) && first.start(2) && second.start(3));
        assert_eq!(idle.end(), Some(1));
        flush(&entries);
        assert_eq!(never.status(), u32::MAX);
        assert_eq!(idle.status(), u32::MAX);
        assert_eq!(first.status(), FLUSHED);
        assert_eq!(second.status(), FLUSHED);
        // They can be started again, and are flushed once each time.
        flush(&entries);
        assert_eq!(first.completions.load(Relaxed), 1);
        assert!(first.start(4));
        flush(&entries);
        assert_eq!(first.completions.load(Relaxed), 2);
        Ok(())
    }

    #[test]
    fn an_entry_is_in_the_register_of_its_last_post() -> Result {
        let (old, new) = (EntryList::new()?, EntryList::new()?);
        let entry = shared(&old)?;
        for (entries, expected) in [(&old, (1, 0)), (&old, (1, 0)), (&new, (0, 1))] {
            // SAFETY: The entry is in an `Arc`, so it does not move. No other thread starts it.
            assert!(unsafe { Entry::start(entry.entry(), entries, Ticket { qp: 1, post: 1 }) });
            assert_eq!((members(&old), members(&new)), expected);
            entry.end();
        }
        assert!(entry.start(1));
        assert_eq!((members(&old), members(&new)), (1, 0));
        flush(&new);
        assert_eq!(entry.status(), u32::MAX);
        flush(&old);
        assert_eq!(entry.status(), FLUSHED);
        Ok(())
    }

    #[test]
    fn a_dropped_entry_leaves_the_register() -> Result {
        let entries = EntryList::new()?;
        let [a, b, c, d] = four(&entries)?;
        for entry in [&a, &b, &c, &d] {
            assert!(entry.start(1));
        }
        // From the middle, the end and the front, then the only one left.
        for (entry, left) in [(b, 3), (a, 2), (d, 1), (c, 0)] {
            entry.end();
            drop(entry);
            assert_eq!(members(&entries), left);
        }
        flush(&entries);
        Ok(())
    }

    #[test]
    fn threads_create_and_drop_entries_of_one_register() -> Result {
        let entries = EntryList::new()?;
        let keep = shared(&entries)?;
        assert!(keep.start(1));
        let theirs = entries.clone();
        contend(4, move |_| {
            for i in 0..200 {
                let Ok(entry) = shared(&theirs) else { continue };
                if entry.start(i) {
                    if i % 7 == 0 {
                        pause();
                    }
                    entry.end();
                }
            }
        })?;
        assert_eq!(members(&entries), 1);
        assert_eq!(keep.status(), u32::MAX);
        flush(&entries);
        assert_eq!(keep.status(), FLUSHED);
        Ok(())
    }
}
