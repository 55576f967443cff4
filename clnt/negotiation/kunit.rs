// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the message sizes of a connection of version 2 when they change.

use super::*;
use kernel::prelude::*;

const DEFAULT: InlineSize = Version::Two.default_inline();
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
        assert!(agreed.send() == LARGE && agreed.should_request(DEFAULT));
        let before = agreed.set_requested(DEFAULT, LARGE);
        assert!(agreed.send() == DEFAULT && !agreed.should_request(DEFAULT));
        agreed.set_requested(before, LARGE);
        assert!(agreed.send() == LARGE && agreed.should_request(DEFAULT));
    }

    #[test]
    fn a_request_that_is_withdrawn_is_sent_to_a_server_that_has_rejected_it() {
        let agreed = agreed(LARGE);
        assert!(!agreed.should_request(LARGE));
        agreed.set_requested(DEFAULT, LARGE);
        // The server keeps its size.
        assert!(agreed.send() == DEFAULT && agreed.should_request(LARGE));
        agreed.set_requested(LARGE, LARGE);
        assert!(
            agreed.send() == LARGE
                && !agreed.should_request(LARGE)
                && agreed.should_request(DEFAULT)
        );
    }

    #[test]
    fn no_message_is_longer_than_any_limit() {
        let agreed = agreed(LARGE);
        agreed.set_requested(InlineSize(8192), LARGE);
        assert!(agreed.send() == InlineSize(8192));
        agreed.note_peer(DEFAULT.0, LARGE);
        assert!(agreed.send() == DEFAULT && agreed.peer() == DEFAULT);
        agreed.note_peer(65536, LARGE);
        assert!(agreed.send() == InlineSize(8192));
        agreed.set_requested(InlineSize(65536), LARGE);
        assert!(agreed.send() == LARGE);
    }
}

#[kunit_tests(rpcrdma_client_version)]
mod negotiation {
    use super::*;
    use crate::{
        kapi::fixture::contend,
        xdr::{
            chunk::ListLimits,
            message::decode,
            props::encode_connprop, //
        },
    };
    use kernel::sync::Arc;

    /// How often a race is run.
    const ROUNDS: usize = 4096;

    #[test]
    fn only_the_request_counts_as_delivered() {
        let negotiation = Negotiation::new(Private::DEFAULT, Some(Xid(7)));
        negotiation.note_delivered();
        assert!(!negotiation.is_delivered());
        negotiation.note_connprop_sent();
        assert!(negotiation.is_pending() && !negotiation.is_delivered());
        negotiation.note_delivered();
        assert!(negotiation.is_delivered());
    }

    /// Returns the length of the server's response to the request 7 in `body`, and the decoded
    /// response.
    fn server_answer(body: &mut [u8]) -> Result<(usize, Parsed)> {
        let len =
            encode_connprop(body, Xid(7), Credits(8), &Properties::DEFAULT).map_err(|_| EINVAL)?;
        let limits = ListLimits {
            segments: 1,
            read_octets: 1,
        };
        let parsed = decode(&body[..len], &limits, Versions::only(Version::Two));
        Ok((len, parsed.map_err(|_| EINVAL)?))
    }

    /// The worker that connects ends the negotiation as soon as it sees the response.
    #[test]
    fn an_answer_is_agreed_before_it_is_seen() -> Result {
        let mut body = [0; 64];
        let (len, parsed) = server_answer(&mut body)?;
        let mut rounds = KVec::with_capacity(ROUNDS, GFP_KERNEL)?;
        for _ in 0..ROUNDS {
            let negotiation = Negotiation::new(Private::DEFAULT, Some(Xid(7)));
            negotiation.note_connprop_sent();
            rounds.push(negotiation, GFP_KERNEL)?;
        }
        let rounds = Arc::new(rounds, GFP_KERNEL)?;
        let shared = rounds.clone();
        contend(2, move |number| {
            for negotiation in shared.iter() {
                if number == 0 {
                    let window = negotiation.handle_response(&parsed, &body[..len], Credits(8));
                    assert!(window == Some(Credits(8)));
                } else {
                    while negotiation.is_pending() {
                        core::hint::spin_loop();
                    }
                    negotiation.agree(&Private::DEFAULT);
                }
            }
        })?;
        let is_two = |it: &Negotiation| it.agreed().is_some_and(|it| it.version == Version::Two);
        assert!(rounds.iter().all(is_two));
        Ok(())
    }

    #[test]
    fn only_the_first_answer_counts_and_a_later_refusal_ends_version_2() -> Result {
        let mut body = [0; 64];
        let (len, parsed) = server_answer(&mut body)?;
        let negotiation = Negotiation::new(Private::DEFAULT, Some(Xid(7)));
        assert!(!negotiation.revoke() && negotiation.why_avoid().is_none());
        let answer = || negotiation.handle_response(&parsed, &body[..len], Credits(8));
        assert!(answer() == Some(Credits(8)));
        assert!(answer().is_none());
        assert!(negotiation.why_avoid().is_none());
        assert!(negotiation.revoke() && negotiation.why_avoid().is_some());
        Ok(())
    }

    #[test]
    fn nothing_else_is_handled_before_the_request_is_sent() -> Result {
        let mut body = [0; 64];
        let (len, parsed) = server_answer(&mut body)?;
        let negotiation = Negotiation::new(Private::DEFAULT, Some(Xid(7)));
        let answer = negotiation.handle_response(&parsed, &body[..len], Credits(8));
        assert!(answer == Some(Credits(8)) && negotiation.is_pending());
        negotiation.note_connprop_sent();
        assert!(!negotiation.is_pending());
        Ok(())
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
