// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The state of a connection, which events of the CM and of device removal change. Pure.
//!
//! ```text
//!   Accepted --Established--> Open
//!       |                      |
//!       +-------- Lost --------+-----> Lost, which nothing changes
//! ```
//!
//! A message may arrive before the Established event. It waits for that event, or until a service
//! thread has accepted the connection. A connection may be lost before its transport exists; the
//! transport is closed as soon as it exists.

/// The state of a connection. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The request is being accepted or was accepted.
    Accepted,
    /// The connection is established on both sides.
    Open,
    /// The peer, the path, or the device is gone.
    Lost,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnEvent {
    /// The CM reports that the connection is established.
    Established,
    /// The connection cannot be used any more.
    Lost,
}

/// The action for a change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Do nothing.
    Nothing,
    /// Wake a service thread for messages that arrived before.
    Wake,
    /// Close the transport.
    Close,
}

impl Phase {
    /// Returns the phase with the number `word`.
    pub(super) const fn from_u32(word: u32) -> Self {
        match word {
            0 => Phase::Accepted,
            1 => Phase::Open,
            _ => Phase::Lost,
        }
    }

    /// Returns the number of the phase.
    pub(super) const fn to_u32(self) -> u32 {
        match self {
            Phase::Accepted => 0,
            Phase::Open => 1,
            Phase::Lost => 2,
        }
    }

    /// Returns the phase after `event`.
    pub(super) const fn after(self, event: ConnEvent) -> Self {
        match (self, event) {
            (Phase::Lost, _) | (_, ConnEvent::Lost) => Phase::Lost,
            (_, ConnEvent::Established) => Phase::Open,
        }
    }

    /// Returns the action for a change from this phase to `next`. Closing is idempotent, so a
    /// connection that is lost twice is closed twice.
    pub(super) const fn action(self, next: Self) -> Action {
        match (self, next) {
            (_, Phase::Lost) => Action::Close,
            (Phase::Accepted, Phase::Open) => Action::Wake,
            _ => Action::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 3] = [Phase::Accepted, Phase::Open, Phase::Lost];
    const EVENTS: [ConnEvent; 2] = [ConnEvent::Established, ConnEvent::Lost];

    #[test]
    fn numbers_are_those_of_phases() {
        for phase in PHASES {
            assert_eq!(Phase::from_u32(phase.to_u32()), phase);
        }
    }

    #[test]
    fn no_phase_comes_back() {
        for phase in PHASES {
            for event in EVENTS {
                assert!(phase.after(event) >= phase);
            }
        }
    }

    #[test]
    fn opens_once() {
        let open = Phase::Accepted.after(ConnEvent::Established);
        assert_eq!(open, Phase::Open);
        assert_eq!(Phase::Accepted.action(open), Action::Wake);
        let again = open.after(ConnEvent::Established);
        assert_eq!(open.action(again), Action::Nothing);
    }

    #[test]
    fn what_is_lost_stays_lost_and_is_closed() {
        for phase in PHASES {
            let lost = phase.after(ConnEvent::Lost);
            assert_eq!(lost, Phase::Lost);
            assert_eq!(phase.action(lost), Action::Close);
            assert_eq!(lost.after(ConnEvent::Established), Phase::Lost);
        }
    }
}
