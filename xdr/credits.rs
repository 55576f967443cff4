// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Credits: how many messages may be under way (RFC 8166, section 3.3.1; RFC 8167, section 4).
//!
//! The two directions of a connection have credits of their own. What a Responder grants follows
//! from the Receives it keeps posted: see the limits of the server.

use super::units::Credits;

/// What a Requester may use of a grant: at least one, since none would be a deadlock, and not
/// more than it asked for.
pub(crate) fn usable_grant(grant: Credits, requested: Credits) -> Credits {
    Credits(grant.0.min(requested.0).max(1))
}
