// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the order in which messages and pulled Calls are taken.

use super::*;
use crate::{
    kapi::{
        ext::atomic::{
            Atomic,
            Relaxed, //
        },
        fixture::{
            addr,
            pd, //
        },
        rdma::{
            pd::Pd,
            recv::RecvBox, //
        }, //
    },
    svc::client::{
        Clients,
        OrderedPull,
        Wake, //
    }, //
};
use kernel::sync::Arc;

/// A pulled Call with the number of its arrival.
struct Pull(Option<OrderedPull>, u32);

impl Ordered for Pull {
    fn seq(&self) -> Option<PullSeq> {
        self.0.as_ref().map(|pull| pull.seq)
    }

    fn arrival(&self) -> ArrivalSeq {
        ArrivalSeq(self.1)
    }
}

/// A connection without service threads.
struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

/// A connection that counts how often it is woken.
struct Counter(Arc<Atomic<u32>>);

impl Wake for Counter {
    fn wake(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Returns the only connection of a client.
fn member() -> Result<Member> {
    let nobody = KBox::new(Nobody, GFP_KERNEL)?;
    Clients::new()?.join(&addr(0xc0a8_5801, 0)?, 1, nobody)
}

/// Adds a message that arrives now; it is a Call with a pull of its own if it is `ordered`.
fn arrive(inbox: &mut Inbox<Pull>, pd: &Arc<Pd>, member: &Member, ordered: bool) -> Result {
    let mut message = RecvBox::new(pd, 64, CallData::<CallState>::default())?;
    let state = &mut message.data_mut().state;
    if ordered {
        state.ordered = member.pull();
    }
    state.assign_seq(|| member.next_seq());
    state.arrival = inbox.arrive();
    inbox.push(message);
    Ok(())
}

#[kunit_tests(rpcrdma_inbox)]
mod tests {
    use super::*;

    #[test]
    fn pulled_calls_are_taken_in_the_order_in_which_their_pulls_began() -> Result {
        let member = member()?;
        let mut inbox = Inbox::new(4)?;
        let begin = |number| Pull(member.pull(), number);
        let (first, second, third) = (begin(1), begin(2), begin(3));
        // Another thread was faster than the one that began the first pull.
        for pull in [second, Pull(None, 4), third] {
            assert!(inbox.push_pulled(pull).is_ok());
        }
        assert!(inbox.next(true, &member).is_none());
        assert!(inbox.push_pulled(first).is_ok());
        assert!(inbox.push_pulled(Pull(None, 5)).is_err());
        for expected in [1, 4, 2, 3] {
            let next = inbox.next(true, &member);
            assert!(matches!(next, Some(Incoming::Pulled(Pull(_, number))) if number == expected));
        }
        assert!(inbox.next(true, &member).is_none());
        Ok(())
    }

    #[test]
    fn the_only_entry_is_taken_at_once_in_its_turn() -> Result {
        let member = member()?;
        let (pd, mut inbox) = (pd()?, Inbox::new(2)?);
        let older = member.pull();
        assert!(inbox.pop_only_pulled(&member).is_none());
        assert!(inbox.push_pulled(Pull(member.pull(), 2)).is_ok());
        assert!(inbox.pop_only_pulled(&member).is_none());
        drop(older);
        assert!(inbox.push_pulled(Pull(None, 3)).is_ok());
        assert!(inbox.pop_only_pulled(&member).is_none());
        assert!(matches!(
            inbox.next(true, &member),
            Some(Incoming::Pulled(Pull(_, 2)))
        ));
        let message = RecvBox::new(&pd, 64, CallData::<CallState>::default())?;
        inbox.messages.push(message);
        assert!(inbox.pop_only_pulled(&member).is_none());
        assert!(inbox.pop_any().is_some());
        assert!(inbox
            .pop_only_pulled(&member)
            .is_some_and(|pull| pull.1 == 3));
        assert!(!inbox.waits() && inbox.pop_only_pulled(&member).is_none());
        Ok(())
    }

    #[test]
    fn messages_wait_for_a_pull_that_a_thread_began_after_their_arrival() -> Result {
        let member = member()?;
        let (pd, mut inbox) = (pd()?, Inbox::<Pull>::new(4)?);
        let mut message = RecvBox::new(&pd, 64, CallData::<CallState>::default())?;
        message.data_mut().state.seq = member.next_seq();
        inbox.messages.push(message);
        let pull = member.pull().ok_or(EINVAL)?;
        inbox.begin_pull(pull.seq);
        assert!(!inbox.has_next(true, &member));
        assert!(inbox.next(true, &member).is_none());
        drop(pull);
        assert!(inbox.has_next(true, &member));
        assert!(matches!(
            inbox.next(true, &member),
            Some(Incoming::Message(_))
        ));
        Ok(())
    }

    #[test]
    fn no_pull_overtakes_a_call_that_waits_for_a_thread() -> Result {
        let member = member()?;
        let (pd, mut inbox) = (pd()?, Inbox::new(4)?);
        arrive(&mut inbox, &pd, &member, true)?;
        // A later Call is pulled when it arrives, and a thread begins the pull of another one.
        let arrival = inbox.arrive();
        assert!(inbox.push_pulled(Pull(member.pull(), arrival.0)).is_ok());
        let other = member.pull().ok_or(EINVAL)?;
        inbox.begin_pull(other.seq);
        assert!(inbox.has_next(true, &member));
        let Some(Incoming::Message(mut message)) = inbox.next(true, &member) else {
            return Err(EINVAL);
        };
        let pull = message.data_mut().state.ordered.take();
        assert!(pull.is_some() && !inbox.has_next(true, &member));
        assert!(inbox.next(true, &member).is_none());
        drop(pull);
        assert!(matches!(
            inbox.next(true, &member),
            Some(Incoming::Pulled(_))
        ));
        Ok(())
    }

    #[test]
    fn threads_begin_the_pulls_of_several_calls_at_the_same_time() -> Result {
        let member = member()?;
        let (pd, mut inbox) = (pd()?, Inbox::new(4)?);
        for ordered in [true, false, true] {
            arrive(&mut inbox, &pd, &member, ordered)?;
        }
        let mut pulls = KVec::new();
        for _ in 0..2 {
            assert!(inbox.has_next(true, &member));
            let Some(Incoming::Message(mut message)) = inbox.next(true, &member) else {
                return Err(EINVAL);
            };
            pulls.push(message.data_mut().state.ordered.take(), GFP_KERNEL)?;
        }
        // The message between them waits for the first one.
        assert!(!inbox.has_next(true, &member) && inbox.next(true, &member).is_none());
        pulls.swap(0, 1);
        pulls.truncate(1);
        assert!(inbox.has_next(true, &member));
        Ok(())
    }

    #[test]
    fn calls_that_are_held_back_precede_the_message_that_waits_for_them() -> Result {
        let member = member()?;
        let pd = pd()?;
        for swapped in [false, true] {
            let mut inbox = Inbox::new(4)?;
            for ordered in [true, true, false] {
                arrive(&mut inbox, &pd, &member, ordered)?;
            }
            let mut calls = KVec::new();
            for _ in 0..2 {
                calls.push(inbox.next(true, &member), GFP_KERNEL)?;
            }
            assert!(!inbox.has_next(true, &member) && inbox.first.is_some());
            if swapped {
                calls.swap(0, 1);
            }
            for call in calls {
                if let Some(Incoming::Message(call)) = call {
                    inbox.hold(call, true);
                }
            }
            assert!(!inbox.has_next(true, &member));
            inbox.gate = InboxGate::Open;
            for is_pull in [true, true, false] {
                let Some(Incoming::Message(mut message)) = inbox.next(true, &member) else {
                    return Err(EINVAL);
                };
                // The pull ends.
                assert_eq!(message.data_mut().state.ordered.take().is_some(), is_pull);
            }
        }
        Ok(())
    }

    #[test]
    fn messages_are_taken_before_pulled_calls_that_arrived_later() -> Result {
        let member = member()?;
        let (pd, mut inbox) = (pd()?, Inbox::new(4)?);
        for pulled in [false, true, true, false, false, true] {
            let arrival = inbox.arrive();
            if pulled {
                assert!(inbox.push_pulled(Pull(None, arrival.0)).is_ok());
            } else {
                let mut message = RecvBox::new(&pd, 64, CallData::<CallState>::default())?;
                message.data_mut().state.arrival = arrival;
                inbox.messages.push(message);
            }
        }
        for expected in 1..=6 {
            let number = match inbox.next(true, &member) {
                Some(Incoming::Message(mut message)) => message.data_mut().state.arrival.0,
                Some(Incoming::Pulled(Pull(_, number))) => number,
                None => 0,
            };
            assert_eq!(number, expected);
        }
        assert!(inbox.next(true, &member).is_none());
        Ok(())
    }

    #[test]
    fn all_connections_of_a_client_are_woken_when_a_pull_ends() -> Result {
        const COUNT: u32 = 100;
        let (clients, woken) = (Clients::new()?, Arc::new(Atomic::new(0), GFP_KERNEL)?);
        let mut members = KVec::new();
        for number in 0..COUNT {
            let counter = KBox::new(Counter(woken.clone()), GFP_KERNEL)?;
            let member = clients.join(&addr(0xc0a8_5801, 0)?, number.into(), counter)?;
            members.push(member, GFP_KERNEL)?;
        }
        for left in [COUNT, COUNT / 2] {
            members.truncate(left as usize);
            woken.store(0, Relaxed);
            let pull = members.first().and_then(|member| member.pull());
            assert!(members
                .iter()
                .all(|member| !member.allows(member.next_seq())));
            drop(pull);
            assert_eq!(woken.load(Relaxed), left);
        }
        Ok(())
    }

    #[test]
    fn calls_do_not_wait_forever_for_resources() -> Result {
        let mut inbox = Inbox::<Pull>::new(4)?;
        let (first, second) = (ArrivalSeq(1), ArrivalSeq(2));
        let start = Jiffies::MAX - 1;
        let after = |ms| start.wrapping_add(msecs_to_jiffies(ms));
        assert!(!inbox.note_short(first, start));
        // Another Call may need less.
        inbox.note_mapped(second, after(1_000));
        for seconds in 2..30 {
            assert!(!inbox.note_short(first, after(seconds * 1_000)));
        }
        assert!(inbox.note_short(first, after(30_000)));
        assert!(inbox.note_short(second, after(30_000)));
        inbox.note_mapped(ArrivalSeq(3), after(31_000));
        assert!(!inbox.note_short(second, after(32_000)));
        inbox.note_mapped(second, after(40_000));
        assert!(!inbox.note_short(first, after(70_000)));
        // Whatever came of that Call, nothing has lacked resources for a minute.
        assert!(!inbox.note_short(second, after(130_000)));
        assert!(!inbox.note_short(second, after(131_000)));
        Ok(())
    }

    #[test]
    fn a_call_that_is_held_back_does_not_open_the_gate_for_a_second_pull() -> Result {
        let (pd, mut inbox) = (pd()?, Inbox::<Pull>::new(4)?);
        for (gate, has_access, after) in [
            (InboxGate::Open, false, InboxGate::NoResources),
            (InboxGate::NoResources, false, InboxGate::NoResources),
            (InboxGate::Pulling, false, InboxGate::Pulling),
            (InboxGate::Pulling, true, InboxGate::NoResources),
        ] {
            inbox.gate = gate;
            let message = RecvBox::new(&pd, 64, CallData::<CallState>::default())?;
            inbox.hold(message, has_access);
            assert!(inbox.gate == after);
            assert!(!inbox.is_open(has_access));
        }
        assert_eq!(inbox.held.len(), 4);
        Ok(())
    }
}
