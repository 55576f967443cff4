// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The state of one connection, which its events change. Pure.
//!
//! ```text
//!   Ready ─begin(Address)─▶ Waiting ─done─▶ Ready ─begin(Route)─▶ Waiting ─done─▶ Ready
//!   Ready ─begin(Connect)─▶ Waiting ─done─▶ Established
//!   Established ─begin(Version)─▶ Waiting ─done─▶ Established, if version 2 is requested
//!
//!   Ready, Waiting ─failed─▶ Down: the worker is woken
//!   Established ─lost─▶ Down: the transport is disconnected
//!   any state ─shut down, or connecting failed─▶ Retired
//! ```
//!
//! One thread takes the steps and waits for each; events arrive on other threads. Handling an event
//! returns an action: none, wake the waiting worker, or disconnect the transport. In `Down` further
//! events have no effect. A connection that was shut down is `Retired`: later events do not affect
//! the transport, which may have another connection by then.

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DownReason {
    /// No device leads to the address.
    Address,
    /// There is no path to the peer.
    Route,
    /// The peer rejected the connection request.
    Refused,
    /// The peer has not yet dropped an earlier connection.
    Stale,
    /// The peer does not respond.
    Unreachable,
    /// Connecting failed in some other way.
    Connect,
    /// The device or the address was removed.
    DeviceGone,
    /// The connection was established, and was lost.
    Lost,
    /// No event arrived in time.
    TimedOut,
}

/// The steps of connecting, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Finds the device that leads to the peer.
    Address,
    /// Finds the path to the peer.
    Route,
    /// Establishes the connection.
    Connect,
    /// Requests version 2 from the server.
    Version,
}

/// An event of a connection: from the connection manager, from device removal, or the response to
/// the request for version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A step has succeeded.
    Done(Step),
    /// A step has failed, or the connection was lost.
    Down(DownReason),
}

/// The action for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Do nothing.
    None,
    /// Wake the waiting worker.
    Wake,
    /// Disconnect the transport.
    Disconnect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Waiting(Step),
    Established,
    Down(DownReason),
    Retired,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Fsm(State);

impl Fsm {
    /// Creates the state of a connection before its first step.
    pub(super) const fn new() -> Self {
        Self(State::Ready)
    }

    /// Begins a step.
    ///
    /// # Errors
    ///
    /// The reason, if the attempt has failed already.
    pub(super) fn begin(&mut self, step: Step) -> Result<(), DownReason> {
        match self.0 {
            State::Down(failure) => Err(failure),
            State::Retired => Err(DownReason::Lost),
            _ => {
                self.0 = State::Waiting(step);
                Ok(())
            }
        }
    }

    /// Handles an event.
    pub(super) fn event(&mut self, event: Event) -> Action {
        match (self.0, event) {
            (State::Waiting(step), Event::Done(done)) if step == done => {
                self.0 = match step {
                    Step::Connect | Step::Version => State::Established,
                    Step::Address | Step::Route => State::Ready,
                };
                Action::Wake
            }
            // The event belongs to an abandoned step, or the peer repeats it.
            (_, Event::Done(_)) => Action::None,
            (State::Down(_) | State::Retired, Event::Down(_)) => Action::None,
            (State::Established, Event::Down(failure)) => {
                self.0 = State::Down(failure);
                Action::Disconnect
            }
            (_, Event::Down(failure)) => {
                self.0 = State::Down(failure);
                Action::Wake
            }
        }
    }

    /// Returns the result of the current step; `None` if it has not ended.
    pub(super) fn outcome(&self) -> Option<Result<(), DownReason>> {
        match self.0 {
            State::Waiting(_) => None,
            State::Ready | State::Established => Some(Ok(())),
            State::Down(failure) => Some(Err(failure)),
            State::Retired => Some(Err(DownReason::Lost)),
        }
    }

    /// Records that the connection is being shut down.
    pub(super) fn retire(&mut self) {
        self.0 = State::Retired;
    }

    /// Returns whether the connection is retired.
    pub(super) fn is_retired(&self) -> bool {
        self.0 == State::Retired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn established() -> Fsm {
        let mut fsm = Fsm::new();
        for step in [Step::Address, Step::Route, Step::Connect] {
            assert_eq!(fsm.begin(step), Ok(()));
            assert_eq!(fsm.outcome(), None);
            assert_eq!(fsm.event(Event::Done(step)), Action::Wake);
            assert_eq!(fsm.outcome(), Some(Ok(())));
        }
        fsm
    }

    #[test]
    fn a_lost_connection_disconnects_once() {
        let mut fsm = established();
        assert_eq!(fsm.event(Event::Down(DownReason::Lost)), Action::Disconnect);
        assert_eq!(fsm.event(Event::Down(DownReason::DeviceGone)), Action::None);
        assert_eq!(fsm.outcome(), Some(Err(DownReason::Lost)));
        assert_eq!(fsm.begin(Step::Address), Err(DownReason::Lost));
    }

    #[test]
    fn one_that_is_shut_down_disconnects_nothing() {
        for failure in [None, Some(DownReason::DeviceGone)] {
            let mut fsm = established();
            if let Some(failure) = failure {
                fsm.event(Event::Down(failure));
            }
            assert!(!fsm.is_retired());
            fsm.retire();
            assert!(fsm.is_retired());
            assert_eq!(fsm.event(Event::Down(DownReason::Lost)), Action::None);
            assert_eq!(fsm.event(Event::Done(Step::Connect)), Action::None);
            assert!(fsm.is_retired());
            assert_eq!(fsm.outcome(), Some(Err(DownReason::Lost)));
            assert_eq!(fsm.begin(Step::Address), Err(DownReason::Lost));
        }
    }

    #[test]
    fn every_step_can_fail_and_stays_failed() {
        for step in [Step::Address, Step::Route, Step::Connect] {
            let mut fsm = Fsm::new();
            assert_eq!(fsm.begin(step), Ok(()));
            assert_eq!(fsm.event(Event::Down(DownReason::Route)), Action::Wake);
            assert_eq!(fsm.event(Event::Done(step)), Action::None);
            assert_eq!(fsm.outcome(), Some(Err(DownReason::Route)));
        }
    }

    #[test]
    fn an_event_of_another_step_does_not_count() {
        let mut fsm = Fsm::new();
        assert_eq!(fsm.begin(Step::Route), Ok(()));
        assert_eq!(fsm.event(Event::Done(Step::Address)), Action::None);
        assert_eq!(fsm.outcome(), None);
    }

    #[test]
    fn between_steps_a_failure_is_kept() {
        let mut fsm = Fsm::new();
        assert_eq!(fsm.event(Event::Down(DownReason::DeviceGone)), Action::Wake);
        assert_eq!(fsm.begin(Step::Address), Err(DownReason::DeviceGone));
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;
