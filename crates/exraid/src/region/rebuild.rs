//! The common steps of rebuilding a member, for all layouts.

use std::sync::Arc;
use std::time::Duration;

use super::set::{Manner, Set};
use super::throttle::Throttle;
use crate::device::{Answer, Device, Kind, Op, Ticket};
use crate::error::{Class, Error, Result};
use crate::events::What;
use crate::label::{MemberState, Uuid};
use crate::meter::Meter;

/// Bytes that are put back at a time, at most.
pub const PIECE: u64 = 1 << 20;
/// The labels record the progress of a rebuild every so many bytes.
pub const NOTED: u64 = 1 << 30;
/// The time limit for a piece of a rebuild.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The manner of requests of the region's own.
pub const OWN: Manner = Manner { tag: 0, within: Some(PATIENCE), of: None };

/// A rebuild in progress.
pub struct Going<'g> {
    pub meter: &'g Meter,
    pub throttle: &'g Throttle,
    pub go_on: &'g mut dyn FnMut(u64) -> bool,
}

impl Going<'_> {
    /// Bytes of the next piece, at most.
    pub fn piece(&self) -> u64 {
        self.throttle.piece(self.meter.delivers()).min(PIECE)
    }

    /// Waits until a piece is due, and copies it.
    pub fn copy(&self, bytes: u64, copy: impl FnOnce() -> Result<()>) -> Result<()> {
        let delivers = self.meter.delivers();
        self.throttle.wait(bytes, delivers);
        let seen = self.throttle.begin(Kind::Read, bytes);
        let done = copy();
        self.throttle.end(seen, delivers);
        done
    }
}

/// From now on the member is written. Returns the rebuilt bytes at the start of its share; `None`: it is whole.
pub fn begin(set: &Arc<Set>, role: usize, spare: Option<(Arc<dyn Device>, Uuid)>) -> Result<Option<u64>> {
    join_in(set, role, spare)?;
    match set.states()[role] {
        MemberState::Rebuilding { rebuilt } => Ok(Some(rebuilt)),
        MemberState::Whole => Ok(None),
        MemberState::Out => Err(is_out(set, role)),
    }
}

fn join_in(set: &Arc<Set>, role: usize, spare: Option<(Arc<dyn Device>, Uuid)>) -> Result<()> {
    if spare.is_none() && set.states()[role] != MemberState::Out {
        return Ok(());
    }
    let (device, uuid) = match spare {
        Some(spare) => spare,
        None => match set.part(role) {
            Some(part) => (part.device.clone(), set.uuid(role)),
            None => return Err(Error::new(Class::Gone, &set.name, format!("disk {} is missing", role + 1))),
        },
    };
    if crate::label::data_of(device.properties().size) < set.share {
        let what = format!("{} is smaller than what it is to hold, {} bytes", device.name(), set.share);
        return Err(Error::new(Class::NoSpace, &set.name, what));
    }
    // Writes that began before are not on it; they lie where it is still to be rebuilt.
    set.replace(role, device, uuid)
}

/// Records the progress, durably.
pub fn note(set: &Arc<Set>, role: usize, rebuilt: u64) -> Result<()> {
    run(set, role, Op::Flush).result?;
    set.note_rebuilt(role, rebuilt)?;
    set.tell(What::Rebuilding { member: role, left: set.share - rebuilt });
    Ok(())
}

/// The member can be read up to `end`, unless a write has failed there meanwhile.
pub fn reached(set: &Set, role: usize, end: u64) -> Result<()> {
    match &mut set.states()[role] {
        MemberState::Rebuilding { rebuilt } => {
            *rebuilt = end;
            Ok(())
        }
        _ => Err(is_out(set, role)),
    }
}

/// The member is whole; durable before the event.
pub fn finish(set: &Arc<Set>, role: usize) -> Result<()> {
    run(set, role, Op::Flush).result?;
    set.change(role, MemberState::Whole)?;
    set.tell(What::Whole { member: role, tolerated: set.tolerated().unwrap_or(0) });
    Ok(())
}

pub fn run(set: &Arc<Set>, role: usize, op: Op) -> Answer {
    let (done, ticket) = Ticket::new();
    set.send(role, op, OWN, done);
    ticket.wait()
}

fn is_out(set: &Set, role: usize) -> Error {
    Error::new(Class::Gone, &set.name, format!("disk {} is out", role + 1))
}
