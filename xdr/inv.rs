// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Which handle the Send of a Reply invalidates (RFC 8797, sections 3.2 and 5.1).

use super::chunk::Lists;
use super::units::Handle;

/// The handle to invalidate remotely, given that both peers support it: the one handle of the
/// Call, if all its segments share it. With two or more the Requester must invalidate by
/// itself in any case. Segments of no length count for nothing: they need no memory.
pub(crate) fn handle_to_invalidate(lists: &Lists<'_>) -> Option<Handle> {
    let mut segments = lists.segments().filter(|segment| segment.length != 0);
    let first = segments.next()?.handle;
    segments
        .all(|segment| segment.handle == first)
        .then_some(first)
}
