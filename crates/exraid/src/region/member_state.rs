//! The states of members, by their labels.

use crate::label::{Label, MemberState};

/// The newest of labels that are known to have one history.
pub fn newest_of<'l>(labels: impl Iterator<Item = &'l Label>) -> Option<&'l Label> {
    labels.max_by_key(|label| (label.epoch.number(), label.generation))
}

/// A member's state, by its own label and the newest one.
pub fn state_of(role: usize, label: &Label, newest: &Label) -> MemberState {
    match newest.members[role].state {
        MemberState::Out => MemberState::Out,
        // The progress of a rebuild is recorded in one label after the other.
        MemberState::Rebuilding { rebuilt } => match label.members[role].state {
            MemberState::Rebuilding { rebuilt: own } => MemberState::Rebuilding { rebuilt: rebuilt.min(own) },
            _ => MemberState::Rebuilding { rebuilt: 0 },
        },
        // If it lags, the change to the new epoch was cut short, before any report of it.
        MemberState::Whole => match label.members[role].state {
            MemberState::Whole => MemberState::Whole,
            // Its own label is the last to record that it is whole again.
            state => state,
        },
    }
}
