// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! How large the queues of a connection are.
//!
//! Pure code: `core` only. The credits that a connection grants are computed after the device
//! has cut the number of Receives, so there is a posted Receive for each of them at any time
//! (RFC 8166, section 3.3.1). Those for replies to callbacks are apart (RFC 8167, section 4).

/// Credits for callbacks: how many the server has under way at a time.
pub(super) const CALLBACK_CREDITS: u32 = 2;

/// Receives that are posted at a time.
const RECV_BATCH: u32 = 8;

/// Work Requests for the payloads of one RPC of ordinary size that are provided for.
const PAYLOAD_PAGES: u32 = 257;

/// Work Requests that a device of little means must at least allow for one RPC.
const MIN_SEND: u32 = 16;

/// Work Requests that one RPC may need whose chunks are in as many segments as a header of the
/// usual size can hold.
const SEGMENTED: u32 = 256;

/// What the device and the administrator allow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most Work Requests of a queue, less what draining needs.
    pub(super) max_queue: u32,
    /// Most SGEs of one RDMA Write; of one Read as well, but over iWARP.
    pub(super) rw_sges: u32,
    /// Credits that the administrator wants to grant.
    pub(super) max_requests: u32,
    /// Credits for callbacks.
    pub(super) callbacks: u32,
}

/// Entries of a Send Queue, unless one RPC needs more: a device holds memory for each, whether or
/// not it is used. Chains for which there is no room wait in line.
const MOST_SENDS: u32 = 480;

/// The sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Credits granted to the client.
    pub(super) credits: u32,
    /// Receives posted when all is quiet and all credits are granted.
    pub(super) receives: u32,
    /// Receives posted at once; those posted are never fewer than `receives - batch`.
    pub(super) batch: u32,
    /// Receive contexts at most: one posted and one in process for each credit.
    pub(super) contexts: u32,
    /// Entries of the Send Queue.
    pub(super) sends: u32,
}

impl Sizes {
    /// Computes them; `None` if the device allows too little for a connection at all.
    pub(super) fn new(bounds: &Bounds) -> Option<Self> {
        let spare = bounds.callbacks.checked_add(RECV_BATCH)?;
        let (credits, batch) = match bounds.max_requests.checked_add(spare)? {
            wanted if wanted <= bounds.max_queue => (bounds.max_requests, RECV_BATCH),
            _ => {
                let rest = bounds.max_queue.checked_sub(bounds.callbacks)?;
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
        let sends = credits
            .saturating_mul(per_rpc)
            .clamp(SEGMENTED, MOST_SENDS)
            .saturating_add(bounds.callbacks)
            .min(bounds.max_queue);
        (sends >= MIN_SEND).then_some(Sizes {
            credits,
            receives,
            batch,
            contexts: credits.checked_add(receives)?,
            sends,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Bounds = Bounds {
        max_queue: 32768,
        rw_sges: 30,
        max_requests: 128,
        callbacks: 2,
    };

    #[test]
    fn large_device() {
        let sizes = Sizes::new(&LARGE).unwrap();
        assert_eq!(sizes.credits, 128);
        assert_eq!(sizes.receives, 138);
        assert_eq!(sizes.contexts, 266);
        assert_eq!(sizes.sends, 480 + 2);
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
