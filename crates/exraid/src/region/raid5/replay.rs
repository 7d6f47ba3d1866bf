//! Intents found when the region is opened: those that are complete and not retired are done again.
//!
//! If other processes have the region open, they do this. The next process that locks a stripe finishes the writes of a
//! dead process to it, by the common table of intents, since the disks do not tell which intents are retired.
//!
//! Replaying may happen several times, and may be cut short: until the floors are durable, the same intents are found
//! again. A member with an unreadable log is put out, where the region can do without it, since completeness cannot be
//! judged without its log.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::intent_table::Slot;
use super::raw::{RawFloors, RawIntent, HEAD, HEADER};
use super::Array;
use crate::device::{Device, Op, Request, Ticket};
use crate::error::{Class, Error, Result};
use crate::events::What;
use crate::label::{MemberState, END};
use crate::region::rebuild::{run, OWN};
use crate::sys::memory::{Aligned, Buffers};

/// An intent, as any member records it; sorted by sequence number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    sequence: u64,
    stripe: u64,
    start: u64,
    end: u64,
    /// Members that should have a record, a bit for each.
    roles: u32,
    slot: usize,
}

/// The content of a member's log.
struct Area {
    floors: Vec<u64>,
    found: Vec<Found>,
}

impl Array {
    /// Waits for disks.
    pub fn replay(&self) -> Result<()> {
        let areas = self.areas()?;
        let slots = self.geometry().slots();
        let floor = |slot: usize| areas.values().map(|area| area.floors[slot]).max().unwrap_or(0);
        let floors: Vec<u64> = (0..slots).map(floor).collect();
        let last = areas.values().flat_map(|area| &area.found).map(|found| found.sequence).max();
        let next = floors.iter().copied().max().unwrap_or(0).max(last.map_or(0, |last| last + 1)).max(1);
        self.core.intent_table.begin(next, &floors);
        let mut intents: BTreeMap<&Found, Vec<usize>> = BTreeMap::new();
        for (role, area) in &areas {
            for found in area.found.iter().filter(|found| found.sequence >= floors[found.slot]) {
                intents.entry(found).or_default().push(*role);
            }
        }
        if intents.is_empty() {
            return Ok(());
        }
        let complete: Vec<(&Found, Vec<usize>)> =
            intents.into_iter().filter(|(found, roles)| self.is_complete(found, roles)).collect();
        if self.is_read_only() {
            // The next process that may write finishes them. Until then a missing disk's content in these stripes may
            // read as anything. The client verifies content, so a pool on read-only disks can still be inspected and
            // read.
            return Ok(());
        }
        for (found, roles) in complete {
            self.redo(found, &roles)?;
        }
        let (send, retired) = channel();
        self.retire_all(move |result| {
            // The receiver waits for it.
            let _ = send.send(result);
        });
        retired.recv().unwrap_or_else(|_| Err(self.gone("finishing what was cut short")))
    }

    /// Finishes a dead process's writes to these stripes. The caller has them locked. Waits for disks.
    pub fn mend_for(&self, stripes: &Range<u64>) -> Result<()> {
        let Some(shared_state) = self.set.shared_state() else { return Ok(()) };
        let _held = shared_state.mending(&self.set.name)?;
        for (slot, stripe) in self.core.intent_table.busy(stripes) {
            self.mend_slot(slot, stripe)?;
            self.core.intent_table.set_slot(slot, Slot::Busy { stripe }, Slot::Done { stripe });
        }
        Ok(())
    }

    /// At most one intent of a slot is not retired. An incomplete one has changed no member.
    fn mend_slot(&self, slot: usize, stripe: u64) -> Result<()> {
        let floor = self.core.intent_table.floor(slot);
        let states = self.set.states().clone();
        let mut intents: BTreeMap<Found, Vec<usize>> = BTreeMap::new();
        for role in (0..states.len()).filter(|role| states[*role] == MemberState::Whole) {
            match self.record(role, slot) {
                Ok(Some(found)) if found.sequence >= floor && found.stripe == stripe => {
                    intents.entry(found).or_default().push(role);
                }
                Ok(_) => {}
                Err(e) => self.do_without(role, e)?,
            }
        }
        let last = intents.into_iter().next_back();
        match last.filter(|(found, roles)| self.is_complete(found, roles)) {
            Some((found, roles)) => self.redo(&found, &roles),
            None => Ok(()),
        }
    }

    /// A member's record in a slot, if it is intact.
    fn record(&self, role: usize, slot: usize) -> Result<Option<Found>> {
        let raw = RawIntent::read(&self.header(role, slot)?, self.set.secret);
        let Some(raw) = raw.filter(|raw| self.fits(role, raw)) else { return Ok(None) };
        let RawIntent { sequence, stripe, start, end, roles, .. } = raw;
        let found = Found { sequence, stripe, start, end, roles, slot };
        Ok(self.content(role, slot, &raw)?.map(|_| found))
    }

    fn is_read_only(&self) -> bool {
        (0..self.set.len()).filter_map(|role| self.set.part(role)).any(|part| part.device.properties().read_only)
    }

    fn is_complete(&self, found: &Found, roles: &[usize]) -> bool {
        let states = self.set.states();
        let is_asked = |role: &usize| found.roles & 1 << role != 0 && states[*role] == MemberState::Whole;
        (0..states.len()).filter(is_asked).all(|role| roles.contains(&role))
    }

    /// The logs of the members that are whole.
    fn areas(&self) -> Result<BTreeMap<usize, Area>> {
        let states = self.set.states().clone();
        let mut areas = BTreeMap::new();
        for role in (0..states.len()).filter(|role| states[*role] == MemberState::Whole) {
            match self.area(role) {
                Ok(area) => drop(areas.insert(role, area)),
                Err(e) => self.do_without(role, e)?,
            }
        }
        Ok(areas)
    }

    /// Puts out, durably, a member that has failed.
    fn do_without(&self, role: usize, e: Error) -> Result<()> {
        let can_miss = self.set.can_miss(&self.set.states(), &[role]);
        if !can_miss || self.is_read_only() {
            return Err(e);
        }
        self.set.exclude(role)?;
        self.set.tell(What::Out { member: role, tolerated: self.set.tolerated(), why: e.to_string() });
        Ok(())
    }

    fn area(&self, role: usize) -> Result<Area> {
        let Some(part) = self.set.part(role) else { return Err(self.gone("reading the log of intents")) };
        let (device, geometry, secret) = (&*part.device, self.geometry(), self.set.secret);
        let mut floors = vec![0; geometry.slots()];
        for copy in 0..2 {
            let mut bytes = [0; HEAD as usize];
            device.read_at(&mut bytes, END + geometry.head_at(copy))?;
            let Some(head) = RawFloors::read(&bytes, secret) else { continue };
            floors.iter_mut().zip(head.floors).for_each(|(floor, other)| *floor = other.max(*floor));
        }
        let read = |slot: usize| read_header(device, END + geometry.slot_at(slot));
        // All are read at once.
        let headers: Vec<Ticket> = (0..geometry.slots()).map(read).collect();
        let mut found = Vec::new();
        for (slot, header) in headers.into_iter().enumerate() {
            let answer = header.wait();
            answer.result?;
            let raw = RawIntent::read(&answer.buffers.unwrap_or_default().to_vec(), secret);
            let Some(raw) = raw.filter(|raw| self.fits(role, raw)) else { continue };
            // A retired record need not be intact.
            if raw.sequence < floors[slot] || self.content(role, slot, &raw)?.is_some() {
                let RawIntent { sequence, stripe, start, end, roles, .. } = raw;
                found.push(Found { sequence, stripe, start, end, roles, slot });
            }
        }
        Ok(Area { floors, found })
    }

    /// Is it plausible for this member?
    fn fits(&self, role: usize, raw: &RawIntent) -> bool {
        let geometry = self.geometry();
        let is_one = raw.stripe < geometry.stripes(self.set.share)
            && raw.start < raw.end
            && raw.end <= geometry.stripe()
            && raw.role as usize == role
            && raw.roles & 1 << role != 0;
        is_one && geometry.changed(raw.stripe, &(raw.start..raw.end), role) == (raw.at..raw.at.saturating_add(raw.len))
    }

    /// The new content of a record, if it is intact.
    fn content(&self, role: usize, slot: usize, raw: &RawIntent) -> Result<Option<Buffers>> {
        let into = Buffers::whole(&Aligned::zeroed((HEADER + raw.len) as usize));
        let answer = run(&self.set, role, Op::Read { at: self.geometry().slot_at(slot), into });
        answer.result?;
        let record = answer.buffers.unwrap_or_default();
        let (header, content) = (record.slice(0..HEADER), record.slice(HEADER..record.len()));
        let is_same = header.to_vec() == raw.as_bytes();
        Ok((is_same && raw.crc == raw.sum(&content.to_vec())).then_some(content))
    }

    fn redo(&self, found: &Found, roles: &[usize]) -> Result<()> {
        let (geometry, within) = (*self.geometry(), found.start..found.end);
        for role in roles {
            if self.set.states()[*role] == MemberState::Out {
                continue;
            }
            match self.redo_on(found, *role) {
                Err(e) if e.class == Class::Invalid => return Err(e),
                Err(e) => self.do_without(*role, e)?,
                Ok(()) => {}
            }
        }
        // A member that was being rebuilt then, or is now, has no record of its own.
        let states = self.set.states().clone();
        for role in (0..states.len()).filter(|role| !roles.contains(role)) {
            let columns = geometry.changed(found.stripe, &within, role);
            let range = geometry.columns(found.stripe, &columns);
            if !range.is_empty() && Array::has(&states, role, &range) {
                self.even(role, range)?;
            }
        }
        Ok(())
    }

    fn redo_on(&self, found: &Found, role: usize) -> Result<()> {
        let raw = RawIntent::read(&self.header(role, found.slot)?, self.set.secret);
        let content = match raw.filter(|raw| raw.sequence == found.sequence) {
            Some(raw) => self.content(role, found.slot, &raw)?.map(|content| (raw.at, content)),
            None => None,
        };
        let Some((at, from)) = content else {
            let what = "its log of intents was changed by another process";
            return Err(Error::new(Class::Invalid, &self.set.name, what));
        };
        let at = self.geometry().columns(found.stripe, &(at..at)).start;
        run(&self.set, role, Op::Write { at, from }).result
    }

    fn header(&self, role: usize, slot: usize) -> Result<Vec<u8>> {
        let into = Buffers::whole(&Aligned::zeroed(HEADER as usize));
        let answer = run(&self.set, role, Op::Read { at: self.geometry().slot_at(slot), into });
        answer.result?;
        Ok(answer.buffers.unwrap_or_default().to_vec())
    }

    /// Makes one member's columns even with those of the others.
    pub fn even(&self, role: usize, range: Range<u64>) -> Result<()> {
        let (send, computed) = channel();
        self.compute(role, range.clone(), OWN, move |result| {
            // The receiver waits for it.
            let _ = send.send(result);
        });
        let bytes = computed.recv().unwrap_or_else(|_| Err(self.gone("computing what a disk has")))?;
        let from = Buffers::whole(&Aligned::of(&bytes));
        run(&self.set, role, Op::Write { at: range.start, from }).result
    }
}

fn read_header(device: &dyn Device, at: u64) -> Ticket {
    let memory: Arc<Aligned> = Aligned::zeroed(HEADER as usize);
    device.start(Request::read(at, Buffers::whole(&memory)))
}
