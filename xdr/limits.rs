// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queue sizes and segment limits of a Requester, derived from the limits of its device.
//!
//! A queue size counts the Work Requests that the owner of the queue posts. The code that creates
//! the queue adds an entry for the drain, so one entry of `max_qp_wr` is reserved here.

/// The device attributes that limit a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLimits {
    /// The largest number of Work Requests in one queue.
    pub(crate) max_qp_wr: u32,
    /// The largest number of entries in a Completion Queue.
    pub(crate) max_cqe: u32,
    /// The largest number of SGEs in a Send.
    pub(crate) max_send_sge: u32,
    /// The largest number of pages in one fast registration.
    pub(crate) max_fast_reg_pages: u32,
    /// Fast registration, local and remote invalidation (IB_DEVICE_MEM_MGT_EXTENSIONS).
    pub(crate) mem_mgt_extensions: bool,
}

/// Why a device cannot support a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No fast registration.
    NoFastRegistration,
    /// Fewer than three SGEs in a Send.
    TooFewSges,
    /// One chunk would need more segments than fit a header.
    TooFewPages,
    /// The queues are too short for a useful number of requests.
    QueuesTooShort,
}

/// Pages of the largest payload, 1 MiB, when it does not start on a page boundary.
pub(crate) const MAX_DATA_PAGES: u32 = 257;

/// The largest number of segments in one chunk. A header with two such chunks fits the smallest
/// inline threshold.
pub(crate) const MAX_CHUNK_SEGMENTS: u32 = 16;

/// Segments that the buffers before and after the pages need in a Reply chunk or a Position
/// Zero Read chunk, when the device cannot register across a gap.
const EDGE_SEGMENTS: u32 = 2;

/// Pages of the largest payload, one page each for the buffers before and after it, and a spare
/// one.
const MIN_CHUNK_PAGES: u32 = 260;

/// Chunks of one RPC that are registered: one for the Call, one for the Reply.
pub(crate) const CHUNKS_PER_RPC: u32 = 2;

/// The minimum number of SGEs in a Send: transport header, head, tail.
const MIN_SEND_SGES: u32 = 3;

/// The largest number of SGEs in a Requester's Send: [`MIN_SEND_SGES`], and one for each page of
/// the largest inline message, 64 KiB.
pub(crate) const CLIENT_SEND_SGES: u32 = 19;

/// Completion Queue entries for draining both queues.
const DRAINS: u32 = 2;

/// The minimum number of requests in flight for a usable connection.
const MIN_REQUESTS: u32 = 4;

/// Sizes of a Requester's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientLimits {
    /// The largest number of requests in flight: the credits to request.
    pub(crate) requests: u32,
    /// Pages in one registration.
    pub(crate) pages_per_segment: u32,
    /// The largest number of segments, and so of registrations, in one chunk.
    pub(crate) segments: u32,
    /// SGEs of a Send, the one for the transport header included.
    pub(crate) send_sges: u32,
    /// Send Queue entries, reverse direction included.
    pub(crate) send_wr: u32,
    /// Receive Queue entries, reverse direction included.
    pub(crate) recv_wr: u32,
    /// Receive Queue entries in addition to one for each request and those for the reverse
    /// direction.
    pub(crate) spare_recv_wr: u32,
}

impl ClientLimits {
    /// Computes the sizes for `requests` concurrent requests, and `reverse` of the reverse
    /// direction, within the limits of a device.
    ///
    /// A registration is as long as the device allows, so that a chunk has one segment where
    /// that is possible: one registration, one handle, one remote invalidation.
    pub(crate) fn new(device: &DeviceLimits, requests: u32, reverse: u32) -> Result<Self, Refusal> {
        if !device.mem_mgt_extensions {
            return Err(Refusal::NoFastRegistration);
        }
        if device.max_send_sge < MIN_SEND_SGES {
            return Err(Refusal::TooFewSges);
        }
        let pages = device.max_fast_reg_pages.min(MAX_DATA_PAGES);
        let segments = match pages {
            0 => return Err(Refusal::NoFastRegistration),
            pages => MAX_DATA_PAGES.div_ceil(pages),
        }
        .saturating_add(EDGE_SEGMENTS)
        .min(MAX_CHUNK_SEGMENTS);
        if segments.saturating_mul(pages) < MIN_CHUNK_PAGES {
            return Err(Refusal::TooFewPages);
        }
        // Per request: a registration and an invalidation for each segment, and the Send.
        let per_request = segments
            .saturating_mul(CHUNKS_PER_RPC)
            .saturating_mul(2)
            .saturating_add(1);
        let room = queue_room(device, reverse);
        // A request needs at most two Receives, its share of `spare_recv_wr` included, so the
        // Receives fit as well.
        let requests = requests.min(room.checked_div(per_request).unwrap_or(0));
        let sized = |requests: u32| {
            let spare_recv_wr = (requests / 4).max(1);
            Self {
                requests,
                pages_per_segment: pages,
                segments,
                send_sges: device.max_send_sge.min(CLIENT_SEND_SGES),
                send_wr: send_wr(requests, pages, segments).saturating_add(reverse),
                recv_wr: requests
                    .saturating_add(spare_recv_wr)
                    .saturating_add(reverse),
                spare_recv_wr,
            }
        };
        // Both queues share a CQ, and all their entries complete together when they are flushed.
        (MIN_REQUESTS..=requests)
            .rev()
            .map(sized)
            .find(|limits| {
                let entries = limits.send_wr.saturating_add(limits.recv_wr);
                entries.saturating_add(DRAINS) <= device.max_cqe
            })
            .ok_or(Refusal::QueuesTooShort)
    }

    /// Returns the largest number of registrations of one RPC.
    pub(crate) fn registrations(&self) -> u32 {
        self.segments.saturating_mul(CHUNKS_PER_RPC)
    }
}

/// Returns the entries of a Send Queue: for `requests` with the largest payload each, and for one
/// request with the largest number of segments. A sender claims its entries, and waits while too
/// few are free.
fn send_wr(requests: u32, pages: u32, segments: u32) -> u32 {
    let entries = |segments: u32| segments.saturating_mul(2).saturating_add(1);
    let payload = MAX_DATA_PAGES.div_ceil(pages.max(1)).min(segments);
    requests
        .saturating_mul(entries(payload))
        .saturating_add(entries(segments.saturating_mul(CHUNKS_PER_RPC)))
}

/// Returns the entries of a queue without those for the drain and the reverse direction.
fn queue_room(device: &DeviceLimits, reverse: u32) -> u32 {
    device
        .max_qp_wr
        .min(device.max_cqe)
        .saturating_sub(1)
        .saturating_sub(reverse)
}
