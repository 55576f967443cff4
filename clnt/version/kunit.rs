// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the message sizes of a connection of version 2 when they change.

use super::*;
use kernel::prelude::*;

const LEAST: InlineSize = Version::Two.default_inline();
const LARGE: InlineSize = InlineSize(16384);

/// Returns the sizes of a connection whose server has Receives of `peer`. The client's buffers are
/// large.
fn agreed(peer: InlineSize) -> Agreed {
    Agreed::new(Version::Two, LARGE.min(peer), LARGE.min(peer)).with_peer(peer)
}

#[kunit_tests(rpcrdma_client_sizes)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_not_sent_is_due_again() {
        let agreed = agreed(LARGE);
        assert!(agreed.send() == LARGE && agreed.is_wanting(LEAST));
        let before = agreed.want(LEAST, LARGE);
        assert!(agreed.send() == LEAST && !agreed.is_wanting(LEAST));
        agreed.want(before, LARGE);
        assert!(agreed.send() == LARGE && agreed.is_wanting(LEAST));
    }

    #[test]
    fn no_message_is_longer_than_any_limit() {
        let agreed = agreed(LARGE);
        agreed.want(InlineSize(8192), LARGE);
        assert!(agreed.send() == InlineSize(8192));
        agreed.note_peer(LEAST.0, LARGE);
        assert!(agreed.send() == LEAST && agreed.peer() == LEAST);
        agreed.note_peer(65536, LARGE);
        assert!(agreed.send() == InlineSize(8192));
        agreed.want(InlineSize(65536), LARGE);
        assert!(agreed.send() == LARGE);
    }
}

#[kunit_tests(rpcrdma_client_version)]
mod negotiation {
    use super::*;

    #[test]
    fn only_the_request_counts_as_delivered() {
        let negotiation = Negotiation::new(Private::DEFAULT, Some(Xid(7)));
        negotiation.note_delivered();
        assert!(!negotiation.is_delivered());
        negotiation.note_asked();
        assert!(negotiation.is_awaited() && !negotiation.is_delivered());
        negotiation.note_delivered();
        assert!(negotiation.is_delivered());
    }

    #[test]
    fn only_the_outstanding_request_is_answered() {
        let negotiation = Negotiation::new(Private::DEFAULT, Some(Xid(7)));
        assert!(!negotiation.has_requested_with(Xid(0)));
        negotiation.note_request(InlineSize(8192), Xid(8));
        assert!(negotiation.has_requested_with(Xid(8)));
        assert!(negotiation.take_request() == Some(8192));
        negotiation.note_request(InlineSize(16384), Xid(9));
        assert!(!negotiation.has_requested_with(Xid(8)));
        assert!(negotiation.has_requested_with(Xid(9)));
    }
}
