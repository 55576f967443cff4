// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The sizes of a connection's queues. Pure.
//!
//! The credits are computed after the device has limited the number of Receives, so a Receive is
//! posted for each credit at any time (RFC 8166, section 3.3.1). Receives for replies to callbacks
//! are additional (RFC 8167, section 4).

/// Credits for callbacks: the largest number of callbacks in progress.
pub(super) const CALLBACK_CREDITS: u32 = 2;

/// Receives that are posted together.
const RECV_BATCH: u32 = 8;

/// Pages of the payload of one RPC of ordinary size: 1 MiB that may begin inside a page.
const PAYLOAD_PAGES: u32 = 257;

/// The minimum number of Work Requests for one RPC that a device must support.
const MIN_SEND: u32 = 16;

/// Work Requests for one RPC whose chunks have as many segments as fit a header of the usual size.
const SEGMENTED: u32 = 256;

/// The limits of the device and of the administrator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The largest number of Work Requests of a queue, without those for draining.
    pub(super) max_queue: u32,
    /// The largest number of Work Requests of both queues, which share a Completion Queue, without
    /// those for draining.
    pub(super) max_completions: u32,
    /// The largest number of SGEs of one RDMA Write. It also holds for RDMA Reads, except over
    /// iWARP.
    pub(super) rw_sges: u32,
    /// The largest number of credits that the administrator permits.
    pub(super) max_requests: u32,
    /// Credits for callbacks.
    pub(super) callbacks: u32,
    /// The largest number of pages of a Call or a reply.
    pub(super) max_pages: u32,
}

/// Entries of a Send Queue, unless one RPC needs more. A device holds memory for each entry,
/// whether or not it is used. Chains for which there is no room are queued.
const MAX_SENDS: u32 = 480;

/// The sizes of a connection's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// The largest number of credits granted to the client.
    pub(super) credits: u32,
    /// Receives that are posted while no Call is in process and all credits are granted.
    pub(super) receives: u32,
    /// Receives that are posted together, unless few are posted. The completion of a Receive adds
    /// as many before the last ones are used.
    pub(super) batch: u32,
    /// The largest number of Receive buffers: `receives`, which are posted, and one more for each
    /// credit. So as many Calls as there are credits may have a Reply and still hold their buffers.
    pub(super) buffers: u32,
    /// Entries of the Send Queue.
    pub(super) sends: u32,
}

impl Sizes {
    /// Computes the sizes. Returns `None` if the limits of the device are too low for a connection.
    pub(super) fn new(bounds: &Bounds) -> Option<Self> {
        let spare = bounds.callbacks.checked_add(RECV_BATCH)?;
        let max_receives = bounds.max_queue.min(bounds.max_completions / 2);
        let (credits, batch) = match bounds.max_requests.checked_add(spare)? {
            wanted if wanted <= max_receives => (bounds.max_requests, RECV_BATCH),
            _ => {
                let rest = max_receives.checked_sub(bounds.callbacks)?;
                (rest.checked_sub(1)?.min(bounds.max_requests), 1)
            }
        };
        if credits == 0 {
            return None;
        }
        let receives = credits.checked_add(bounds.callbacks)?.checked_add(batch)?;
        let per_rpc = PAYLOAD_PAGES
            .div_ceil(bounds.rw_sges.max(1))
            .checked_add(2)?;
        // Pages that are not contiguous, and the Send after them.
        let largest = bounds
            .max_pages
            .div_ceil(bounds.rw_sges.max(1))
            .checked_add(2)?;
        let sends = credits
            .saturating_mul(per_rpc)
            .clamp(SEGMENTED, MAX_SENDS)
            .max(largest)
            .saturating_add(bounds.callbacks)
            .min(bounds.max_queue)
            .min(bounds.max_completions.checked_sub(receives)?);
        (sends >= MIN_SEND).then_some(Sizes {
            credits,
            receives,
            batch,
            buffers: credits.checked_add(receives)?,
            sends,
        })
    }

    /// Returns whether all of `total` Receives may be replaced by others. The replaced ones are
    /// released when their Calls end, and the client decides when that is.
    pub(super) fn may_exchange(&self, total: u32) -> bool {
        total <= self.buffers
    }

    /// Returns whether Receives have to be posted when `free` are free and `posted` are posted.
    ///
    /// A batch is posted at once, to save doorbells. The client cannot use a Receive that waits for
    /// its batch, so none waits while few are posted.
    pub(super) fn is_post_due(&self, free: u32, posted: u32) -> bool {
        free >= self.batch || (free != 0 && posted < self.batch.saturating_mul(2))
    }

    /// Returns whether the completion of a Receive, which leaves `posted` posted ones, should add
    /// Receives unless some are free.
    #[inline]
    pub(super) fn is_nearly_dry(&self, posted: u32) -> bool {
        posted <= self.batch
    }

    /// Returns the number of Receives to add to `total` for those that Calls hold.
    pub(super) fn addition(&self, total: u32) -> u32 {
        self.batch.min(self.buffers.saturating_sub(total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Bounds = Bounds {
        max_queue: 32768,
        max_completions: 65534,
        rw_sges: 30,
        max_requests: 128,
        callbacks: 2,
        max_pages: 260,
    };

    #[test]
    fn large_device() {
        let sizes = Sizes::new(&LARGE).unwrap();
        assert_eq!(sizes.credits, 128);
        assert_eq!(sizes.receives, 138);
        assert_eq!(sizes.buffers, 266);
        assert_eq!(sizes.sends, 480 + 2);
    }

    /// With payloads of 1 MiB and of 4 MiB, in pages of which no two are contiguous.
    #[test]
    fn the_largest_payload_fits_the_send_queue() {
        for max_pages in [260, 1028] {
            for (rw_sges, max_requests) in (1..=30).flat_map(|sges| [(sges, 1), (sges, 128)]) {
                let bounds = Bounds {
                    max_pages,
                    rw_sges,
                    max_requests,
                    ..LARGE
                };
                let sends = Sizes::new(&bounds).unwrap().sends;
                assert!(sends > max_pages.div_ceil(rw_sges) + 1, "{bounds:?}");
                // No more memory than before for the devices that do not need it.
                let needed = rw_sges <= 2 && max_pages > 480;
                assert!(sends <= 482 || needed, "{bounds:?}");
            }
        }
    }

    /// The Receives of a connection to which no service thread adds any.
    struct Receives {
        target: u32,
        total: u32,
        posted: u32,
        free: u32,
        /// Messages that wait for a Reply, and those that have one but are not released.
        waiting: u32,
        answered: u32,
    }

    impl Receives {
        /// Creates those of a connection that has granted all credits.
        fn new(sizes: &Sizes) -> Self {
            Receives {
                target: sizes.receives,
                total: sizes.receives,
                posted: sizes.receives,
                free: 0,
                waiting: 0,
                answered: 0,
            }
        }

        /// Posts free Receives as `RecvPool::missing` does.
        fn refill(&mut self, sizes: &Sizes) {
            let due = sizes.is_post_due(self.free, self.posted);
            if due && self.posted + sizes.batch <= self.target {
                let count = self.free.min(self.target - self.posted);
                self.free -= count;
                self.posted += count;
            }
        }

        /// The client sends a message, for which it has a credit.
        fn arrive(&mut self, sizes: &Sizes) {
            assert_ne!(self.posted, 0, "{sizes:?}, {} free", self.free);
            self.posted -= 1;
            self.waiting += 1;
            self.refill(sizes);
            if sizes.is_nearly_dry(self.posted) && self.free == 0 {
                let added = sizes.addition(self.total);
                self.total += added;
                self.free += added;
                self.refill(sizes);
            }
        }
    }

    /// A Reply returns the credit of its Call, which holds its Receive until it is released. All
    /// threads may be blocked in between.
    #[test]
    fn a_receive_is_posted_for_each_credit() {
        let mut seed = 1_u32;
        for credits in [1, 4, 13, 14, 32, 128] {
            let sizes = Sizes::new(&Bounds {
                max_requests: credits,
                ..LARGE
            })
            .unwrap();
            let most = credits + LARGE.callbacks;
            let mut receives = Receives::new(&sizes);
            for _ in 0..100_000 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match (seed >> 16) % 8 {
                    0 if seed >> 30 == 0 => {
                        // All at once.
                        while receives.waiting < most {
                            receives.arrive(&sizes);
                        }
                    }
                    0..3 if receives.waiting < most => receives.arrive(&sizes),
                    3..6 if receives.waiting != 0 && receives.answered < credits => {
                        receives.waiting -= 1;
                        receives.answered += 1;
                    }
                    6.. if receives.answered != 0 => {
                        receives.answered -= 1;
                        receives.free += 1;
                        receives.refill(&sizes);
                    }
                    _ => {}
                }
                assert!(receives.total <= sizes.buffers);
            }
        }
    }

    /// All Calls get Replies, and none is released, until the client has used its credits twice.
    #[test]
    fn no_receive_is_missing_while_all_threads_are_blocked() {
        for (max_queue, credits) in [(32768, 1), (32768, 32), (32768, 128), (100, 128)] {
            let sizes = Sizes::new(&Bounds {
                max_queue,
                max_requests: credits,
                ..LARGE
            })
            .unwrap();
            let mut receives = Receives::new(&sizes);
            for _ in 0..2 * sizes.credits {
                receives.arrive(&sizes);
            }
            assert!(receives.total <= sizes.buffers);
        }
    }

    #[test]
    fn exchanges_double_the_receives_once() {
        let sizes = Sizes::new(&LARGE).unwrap();
        let mut total = sizes.receives;
        for _ in 0..10 {
            // No Call ends, so that no former Receive is released.
            if sizes.may_exchange(total) {
                total += total;
            }
            assert!(total <= 2 * sizes.buffers);
        }
    }

    #[test]
    fn both_queues_fit_the_completion_queue() {
        for max_completions in 0..2000 {
            let bounds = Bounds {
                max_completions,
                ..LARGE
            };
            let Some(sizes) = Sizes::new(&bounds) else {
                assert!(max_completions < 32, "refused at {max_completions}");
                continue;
            };
            assert!(sizes.receives + sizes.sends <= max_completions);
            assert!(sizes.credits >= 1);
            // A queue that is long enough for a large device is no shorter.
            if max_completions >= 138 + 482 {
                assert_eq!(sizes, Sizes::new(&LARGE).unwrap());
            }
        }
    }

    #[test]
    fn credits_never_exceed_receives() {
        for max_queue in 0..300 {
            let Some(sizes) = Sizes::new(&Bounds { max_queue, ..LARGE }) else {
                assert!(max_queue < 16, "refused at {max_queue}");
                continue;
            };
            assert!(sizes.receives <= max_queue);
            assert!(sizes.credits <= LARGE.max_requests);
            assert!(sizes.credits + 2 <= sizes.receives - sizes.batch);
            assert!(sizes.credits >= 1);
        }
    }
}
