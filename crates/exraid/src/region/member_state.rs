//! The states of members, as their labels say.

use crate::label::{Label, MemberState};

/// The label that says how things stand, of disks that are known to have gone one way.
pub fn newest_of<'l>(labels: impl Iterator<Item = &'l Label>) -> Option<&'l Label> {
    labels.max_by_key(|label| (label.epoch.number(), label.generation))
}

/// What a member's own label adds to what the newest one says of it.
pub fn state_of(role: usize, label: &Label, newest: &Label) -> MemberState {
    match newest.members[role].state {
        MemberState::Out => MemberState::Out,
        // How far it has been rebuilt is noted in one label after the other.
        MemberState::Rebuilding { rebuilt } => match label.members[role].state {
            MemberState::Rebuilding { rebuilt: own } => MemberState::Rebuilding { rebuilt: rebuilt.min(own) },
            _ => MemberState::Rebuilding { rebuilt: 0 },
        },
        // Where it lags, the change that made the new epoch was cut short; no report was made by then.
        MemberState::Whole => match label.members[role].state {
            MemberState::Whole => MemberState::Whole,
            // The record that it is whole again was written to it last of all.
            state => state,
        },
    }
}
