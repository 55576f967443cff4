// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The state of one connection, which its events change. Pure.
//!
//! ```text
//!   Ready ─begin(step)─▶ Waiting ─done─▶ Ready, for each step
//!   Ready ─finish─▶ Established
//!
//!   Ready, Waiting ─failed, lost─▶ Down: the worker is woken
//!   Established ─lost─▶ Down: the transport is disconnected
//!   any state ─shut down, or connecting failed─▶ Retired
//! ```
//!
//! One thread takes the steps and waits for each; events arrive on other threads. Handling an event
//! returns an action: none, wake the waiting worker, or disconnect the transport. Before `finish`
//! no event disconnects the transport: sunrpc would do so after the worker has returned, and by
//! then the worker may have made another connection. In `Down` further events have no effect. A
//! connection that was shut down is `Retired`: later events do not affect the transport, which may
//! have another connection by then.

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
    /// The device was removed, or the hardware address of its interface has changed.
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
    /// A completion has found the connection broken, or this side gives it up. If the peer has
    /// ended it, the connection manager reports the reason in another event.
    Broken,
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
pub(super) struct Fsm {
    state: State,
    /// Whether the connection was found broken before it was established.
    broken: bool,
}

impl Fsm {
    /// Creates the state of a connection before its first step.
    pub(super) const fn new() -> Self {
        Self {
            state: State::Ready,
            broken: false,
        }
    }

    /// Begins a step.
    ///
    /// # Errors
    ///
    /// The reason, if the attempt has failed already.
    pub(super) fn begin(&mut self, step: Step) -> Result<(), DownReason> {
        self.advance(State::Waiting(step))
    }

    /// Records that the last step has succeeded. From now on the loss of the connection disconnects
    /// the transport.
    ///
    /// # Errors
    ///
    /// The reason, if the connection was lost meanwhile.
    pub(super) fn finish(&mut self) -> Result<(), DownReason> {
        self.advance(State::Established)
    }

    fn advance(&mut self, next: State) -> Result<(), DownReason> {
        match self.state {
            State::Down(failure) => Err(failure),
            State::Retired => Err(DownReason::Lost),
            _ if self.broken => {
                self.state = State::Down(DownReason::Lost);
                Err(DownReason::Lost)
            }
            _ => {
                self.state = next;
                Ok(())
            }
        }
    }

    /// Handles an event.
    pub(super) fn event(&mut self, event: Event) -> Action {
        let failure = match (self.state, event) {
            (State::Waiting(step), Event::Done(done)) if step == done => {
                self.state = State::Ready;
                return Action::Wake;
            }
            // The event belongs to an abandoned step, or the peer repeats it.
            (_, Event::Done(_)) | (State::Down(_) | State::Retired, _) => return Action::None,
            (_, Event::Down(failure)) => failure,
            (State::Established | State::Waiting(Step::Version), Event::Broken) => DownReason::Lost,
            // The connection manager is about to report why the step has failed. If it does not,
            // the next step fails.
            (State::Ready | State::Waiting(_), Event::Broken) => {
                self.broken = true;
                return Action::None;
            }
        };
        let action = match self.state {
            State::Established => Action::Disconnect,
            _ => Action::Wake,
        };
        self.state = State::Down(failure);
        action
    }

    /// Returns the result of the current step; `None` if it has not ended.
    pub(super) fn outcome(&self) -> Option<Result<(), DownReason>> {
        match self.state {
            State::Waiting(_) => None,
            State::Ready | State::Established => Some(Ok(())),
            State::Down(failure) => Some(Err(failure)),
            State::Retired => Some(Err(DownReason::Lost)),
        }
    }

    /// Records that the connection is being shut down.
    pub(super) fn retire(&mut self) {
        self.state = State::Retired;
    }

    /// Returns whether the connection is retired.
    pub(super) fn is_retired(&self) -> bool {
        self.state == State::Retired
    }

    /// Returns whether the connection was lost, or the current step has not ended, while the device
    /// is still there.
    pub(super) fn is_lost(&self) -> bool {
        !matches!(
            self.outcome(),
            Some(Err(DownReason::DeviceGone)) | Some(Ok(()))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 4] = [Step::Address, Step::Route, Step::Connect, Step::Version];

    fn after(steps: &[Step]) -> Fsm {
        let mut fsm = Fsm::new();
        for step in steps {
            assert_eq!(fsm.begin(*step), Ok(()));
            assert_eq!(fsm.outcome(), None);
            assert_eq!(fsm.event(Event::Done(*step)), Action::Wake);
            assert_eq!(fsm.outcome(), Some(Ok(())));
        }
        fsm
    }

    fn established() -> Fsm {
        let mut fsm = after(&STEPS[..3]);
        assert_eq!(fsm.finish(), Ok(()));
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
    fn one_that_is_found_broken_disconnects_once() {
        let mut fsm = established();
        assert_eq!(fsm.event(Event::Broken), Action::Disconnect);
        assert_eq!(fsm.event(Event::Broken), Action::None);
        assert_eq!(fsm.event(Event::Down(DownReason::Lost)), Action::None);
        assert!(fsm.is_lost());
    }

    #[test]
    fn until_the_worker_has_finished_nothing_is_disconnected() {
        for steps in 0..=STEPS.len() {
            let mut fsm = after(&STEPS[..steps]);
            assert!(!fsm.is_lost());
            assert_eq!(fsm.event(Event::Down(DownReason::Lost)), Action::Wake);
            assert!(fsm.is_lost());
            assert_eq!(fsm.finish(), Err(DownReason::Lost));
            assert_eq!(fsm.event(Event::Broken), Action::None);
        }
    }

    #[test]
    fn one_that_is_found_broken_is_not_finished() {
        for steps in 0..=STEPS.len() {
            let mut fsm = after(&STEPS[..steps]);
            assert_eq!(fsm.event(Event::Broken), Action::None);
            assert_eq!(fsm.finish(), Err(DownReason::Lost));
            assert!(fsm.is_lost());
            let mut fsm = after(&STEPS[..steps]);
            assert_eq!(fsm.event(Event::Broken), Action::None);
            assert_eq!(fsm.begin(Step::Version), Err(DownReason::Lost));
        }
    }

    #[test]
    fn a_step_fails_for_the_reason_of_the_connection_manager() {
        let mut fsm = after(&STEPS[..2]);
        assert_eq!(fsm.begin(Step::Connect), Ok(()));
        assert_eq!(fsm.event(Event::Broken), Action::None);
        assert_eq!(fsm.outcome(), None);
        assert_eq!(fsm.event(Event::Down(DownReason::Refused)), Action::Wake);
        assert_eq!(fsm.outcome(), Some(Err(DownReason::Refused)));
    }

    #[test]
    fn a_broken_connection_gets_no_response() {
        let mut fsm = after(&STEPS[..3]);
        assert_eq!(fsm.begin(Step::Version), Ok(()));
        assert_eq!(fsm.event(Event::Broken), Action::Wake);
        assert_eq!(fsm.outcome(), Some(Err(DownReason::Lost)));
    }

    #[test]
    fn a_device_that_is_gone_is_no_loss() {
        let mut fsm = after(&STEPS[..3]);
        assert_eq!(fsm.begin(Step::Version), Ok(()));
        assert!(fsm.is_lost());
        assert_eq!(fsm.event(Event::Down(DownReason::DeviceGone)), Action::Wake);
        assert!(!fsm.is_lost());
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
            assert_eq!(fsm.event(Event::Broken), Action::None);
            assert_eq!(fsm.event(Event::Done(Step::Connect)), Action::None);
            assert!(fsm.is_retired());
            assert_eq!(fsm.outcome(), Some(Err(DownReason::Lost)));
            assert_eq!(fsm.begin(Step::Address), Err(DownReason::Lost));
        }
    }

    #[test]
    fn every_step_can_fail_and_stays_failed() {
        for step in STEPS {
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
