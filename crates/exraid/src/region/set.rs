//! The disks of a region: their shares, speed, states and labels.

mod stored;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::join::Without;
use super::member_state::{newest_of, state_of};
use super::shared_state::{Held, SharedState};
use crate::device::{Answer, Device, Done, Late, Op, Request};
use crate::error::{Class, Error, Result};
use crate::events::{Event, Events, What};
use crate::in_flight::{Flights, Which};
use crate::label::{stamp, Epoch, Label, Layout, MemberState, Uuid, END};
use crate::meter::shared::Meters;
use crate::meter::stutter::Stutter;
use crate::meter::{Meter, Performance};
use crate::note;

/// The part of a request that is not its operation.
#[derive(Clone, Copy)]
pub struct Manner {
    pub tag: u64,
    pub within: Option<Duration>,
    /// The request of the region that it serves, whose client learns when it is late.
    pub of: Option<Which>,
}

/// A member that is there.
pub struct Part {
    pub device: Arc<dyn Device>,
    meter: Meter,
    /// Its speed is that of the disk, and not of its host's memory.
    direct: bool,
}

impl Part {
    /// The member in the place of `role`. If several processes measure, one at a time calls this.
    pub fn new(device: Arc<dyn Device>, meters: Option<&Arc<Meters>>, role: usize, uuid: Uuid) -> Arc<Part> {
        let (meter, direct) = (Meter::shared(meters, role + 1, uuid), device.properties().direct);
        Arc::new(Part { device, meter, direct })
    }

    /// Set if it delivers much less than before.
    pub fn stutter(&self) -> Option<Stutter> {
        self.meter.stutter()
    }

    /// The expected time of a read that begins now.
    pub fn expected_read(&self) -> Duration {
        self.meter.expected_read()
    }

    pub fn performance(&self) -> Performance {
        let oldest = self.device.pending().iter().map(|pending| pending.age).max().unwrap_or_default();
        self.meter.performance(oldest)
    }
}

/// The lowest and the highest of the [marks](Label::high_water) in the labels of the members in use.
fn high_water_of(labels: &BTreeMap<usize, Label>, states: &[MemberState]) -> (u64, u64) {
    let used = labels.iter().filter(|(role, _)| states[**role] != MemberState::Out);
    let marks: Vec<u64> = used.map(|(_, label)| label.high_water).collect();
    (marks.iter().copied().min().unwrap_or(0), marks.into_iter().max().unwrap_or(0))
}

/// Sets the members' states, in a new epoch.
fn set_states(label: &mut Label, states: &[MemberState], stamp: u64) {
    label.epoch = label.epoch.next(stamp);
    for (member, state) in label.members.iter_mut().zip(states) {
        member.state = *state;
    }
}

/// Finds the disk with a UUID that another process has put in a member's place.
pub type Finder = Arc<dyn Fn(Uuid) -> Option<Arc<dyn Device>> + Send + Sync>;

/// The connection of a region to other processes.
pub struct Others {
    pub shared_state: Arc<SharedState>,
    pub find: Option<Finder>,
}

/// The disks of a region, by role.
pub struct Set {
    pub name: Arc<str>,
    pub number: u32,
    pub layout: Layout,
    /// Bytes of each member that the region uses.
    pub share: u64,
    /// The random number of all labels. It is also here, since an update of labels waits for disks, and threads that
    /// answer for a disk read this.
    pub secret: u64,
    /// The least [mark](Label::high_water) in all labels, as this process knows it; also here for the same reason.
    high_water: AtomicU64,
    pub events: Events,
    /// Requests of the region that are under way.
    pub flights: Arc<Flights>,
    uuids: RwLock<Vec<Uuid>>,
    parts: RwLock<Vec<Option<Arc<Part>>>>,
    states: Mutex<Vec<MemberState>>,
    /// A bit for each member, by role: see [`Set::lose`].
    lost: AtomicU32,
    /// The labels of the members that are there. Locked during an update.
    labels: Mutex<BTreeMap<usize, Label>>,
    others: Option<Others>,
    /// The measurements that processes share.
    meters: Option<Arc<Meters>>,
    /// The version of the labels that this process knows.
    seen: AtomicU64,
    /// A bit for each member that is out here, and not yet in the labels.
    leaving: AtomicU32,
    /// A bit for each member that is out since it did not answer.
    silent: AtomicU32,
}

impl Set {
    pub fn new(
        labels: BTreeMap<usize, Label>,
        parts: Vec<Option<Arc<Part>>>,
        uuids: Vec<Uuid>,
        states: Vec<MemberState>,
        share: u64,
        others: Option<Others>,
        meters: Option<Arc<Meters>>,
    ) -> Set {
        let (number, layout) = labels.values().next().map_or((0, Layout::Single), |label| (label.region, label.layout));
        let secret = labels.values().next().map_or(0, |label| label.secret);
        let names: Vec<&str> = parts.iter().flatten().map(|part| &**part.device.name()).collect();
        let name = match &names[..] {
            [one] if parts.len() == 1 => (*one).into(),
            names => format!("{layout}:{}", names.join(",")).into(),
        };
        Set {
            name,
            number,
            layout,
            share,
            secret,
            high_water: AtomicU64::new(high_water_of(&labels, &states).0),
            events: Events::default(),
            flights: Arc::default(),
            uuids: RwLock::new(uuids),
            parts: RwLock::new(parts),
            states: Mutex::new(states),
            lost: AtomicU32::new(0),
            labels: Mutex::new(labels),
            seen: AtomicU64::new(others.as_ref().map_or(0, |others| others.shared_state.version())),
            others,
            meters,
            leaving: AtomicU32::new(0),
            silent: AtomicU32::new(0),
        }
    }

    pub fn part(&self, role: usize) -> Option<Arc<Part>> {
        self.parts.read().unwrap_or_else(PoisonError::into_inner)[role].clone()
    }

    pub fn len(&self) -> usize {
        self.parts.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn uuid(&self, role: usize) -> Uuid {
        self.uuids.read().unwrap_or_else(PoisonError::into_inner)[role]
    }

    pub fn states(&self) -> MutexGuard<'_, Vec<MemberState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn labels(&self) -> MutexGuard<'_, BTreeMap<usize, Label>> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Members that this region can still lose; `None`: it has lost content.
    pub fn tolerated(&self) -> Option<usize> {
        if self.lost.load(Ordering::SeqCst) != 0 {
            return None;
        }
        let states = self.states();
        let missing = states.iter().filter(|state| **state != MemberState::Whole).count();
        self.layout.tolerates(states.len()).checked_sub(missing)
    }

    /// A member that the region cannot do without is gone. No label records that, since the region can be opened again
    /// with the member.
    pub fn lose(&self, role: usize) {
        self.lost.fetch_or(1 << role, Ordering::SeqCst);
    }

    /// Is it gone, though its state is another?
    pub fn is_lost(&self, role: usize) -> bool {
        self.lost.load(Ordering::SeqCst) & 1 << role != 0
    }

    pub fn tell(&self, what: What) {
        self.events.tell(&Event { region: self.number, what });
    }

    /// Tells the client of a request that it is late.
    pub fn late(self: &Arc<Set>, manner: Manner) -> Late {
        let set = self.clone();
        Late::new(move || manner.of.into_iter().for_each(|of| set.flights.tell_late(of)))
    }

    /// How a request to all members may do without late ones, which then have missed it.
    pub fn without(self: &Arc<Set>, manner: Manner) -> Without {
        let set = self.clone();
        let can = Box::new(move |roles: &[usize]| set.can_miss(&set.states(), roles));
        Without { name: self.name.clone(), can, late: self.late(manner) }
    }

    /// Sends a request to a member; its range counts from the start of the member's share.
    pub fn send(self: &Arc<Set>, role: usize, op: Op, manner: Manner, done: Done) {
        self.send_with_late(role, op, manner, done, self.late(manner));
    }

    /// The same; `late` runs when the member is late.
    pub fn send_with_late(self: &Arc<Set>, role: usize, op: Op, manner: Manner, done: Done, late: Late) {
        let Some(part) = self.part(role) else {
            let e = Error::new(Class::Gone, &self.name, format!("{op}: disk {} is missing", role + 1));
            return done(Answer { result: Err(e), buffers: op.into_buffers() });
        };
        let range = op.range();
        let begun = part.meter.begin(op.kind(), range);
        let (set, measured) = (self.clone(), part.clone());
        let done = move |answer: Answer| {
            if measured.meter.end(begun, answer.result.as_ref().err().map(|e| e.class)) {
                set.judge(role, &measured);
            }
            if let Err(error) = &answer.result {
                set.tell(What::Failed { member: role, error: error.clone() });
            }
            done(answer);
        };
        let Manner { tag, within, .. } = manner;
        part.device.submit(Request { op: op.moved(END), tag, within, late: Some(late) }, Box::new(done));
    }

    /// Judges whether a member has become slow, or well again. Its peers are the other members: if they have become
    /// slow alike, the disk is not the cause.
    fn judge(&self, role: usize, part: &Part) {
        if part.direct {
            part.meter.judge(|| {
                let others = (0..self.len()).filter(|other| *other != role).filter_map(|other| self.part(other));
                others.filter_map(|other| other.meter.times()).collect()
            });
        }
        self.tell_news(role, part);
    }

    fn tell_news(&self, role: usize, part: &Part) {
        match part.meter.news() {
            Some(Some(stutter)) => self.tell(What::Stutters { member: role, stutter }),
            Some(None) => self.tell(What::Recovers { member: role }),
            None => {}
        }
    }

    /// The first member in use that delivers much less than before. Also sends the events of members that another
    /// process has judged.
    pub fn stutter(&self) -> Option<Stutter> {
        let states = self.states().clone();
        let used = (0..states.len()).filter(|role| states[*role] != MemberState::Out);
        let tell = |role| {
            let part = self.part(role)?;
            self.tell_news(role, &part);
            part.stutter()
        };
        used.filter_map(tell).fold(None, |first, next| first.or(Some(next)))
    }

    pub fn meters(&self) -> Option<&Arc<Meters>> {
        self.meters.as_ref()
    }

    /// The highest mark of sequence numbers in any label.
    pub fn sequence(&self) -> u64 {
        self.labels().values().map(|label| label.sequence).max().unwrap_or(0)
    }

    /// Does this process know the members' present states? If not, another has changed them.
    pub fn is_current(&self) -> bool {
        self.others.as_ref().is_none_or(|others| others.shared_state.version() == self.seen.load(Ordering::SeqCst))
    }

    pub fn shared_state(&self) -> Option<&Arc<SharedState>> {
        self.others.as_ref().map(|others| &others.shared_state)
    }

    /// Notes that the member is out, and that the labels have yet to record it. Under the lock of the states.
    pub fn leaves(&self, role: usize) {
        self.leaving.fetch_or(1 << role, Ordering::SeqCst);
    }

    /// Whether the member is out since it did not answer.
    pub fn set_silent(&self, role: usize, is_silent: bool) {
        match is_silent {
            true => self.silent.fetch_or(1 << role, Ordering::SeqCst),
            false => self.silent.fetch_and(!(1 << role), Ordering::SeqCst),
        };
    }

    /// A member that is out since it did not answer, and has answered all requests by now.
    pub fn returned(&self) -> Option<usize> {
        let (silent, states) = (self.silent.load(Ordering::SeqCst), self.states().clone());
        let is_out = |role: &usize| silent & 1 << role != 0 && states[*role] != MemberState::Whole;
        let answers = |role: &usize| self.part(*role).is_some_and(|part| part.device.pending().is_empty());
        (0..states.len()).filter(is_out).find(answers)
    }

    /// Reads the labels, if another process has changed them. Waits for disks.
    pub fn adopt(&self) -> Result<()> {
        match self.is_current() {
            true => Ok(()),
            false => self.alone().map(drop),
        }
    }

    /// Keeps other processes from changing labels, and reads them if they have changed.
    fn alone(&self) -> Result<Option<Held<'_>>> {
        let Some(others) = &self.others else { return Ok(None) };
        let held = others.shared_state.labels(&self.name)?;
        let version = others.shared_state.version();
        self.read_labels(others)?;
        self.seen.store(version.max(self.seen.load(Ordering::SeqCst)), Ordering::SeqCst);
        Ok(Some(held))
    }

    /// Takes over the states in the labels, but for a member that is out here and not yet in the labels.
    fn read_labels(&self, others: &Others) -> Result<()> {
        let mut found = BTreeMap::new();
        for role in 0..self.len() {
            let Some(part) = self.part(role) else { continue };
            // An unreadable one is excluded by the next update or request. A late one gets no further request.
            if part.device.is_late() {
                continue;
            }
            if let Ok(label) = Label::read(&*part.device) {
                found.insert(role, label);
            }
        }
        // The only readable label may be that of a member that is out here; the epoch tells.
        let newest =
            newest_of(found.values()).filter(|label| label.epoch.number() >= others.shared_state.epoch()).cloned();
        let Some(newest) = newest else {
            let mut parts = (0..self.len()).filter_map(|role| self.part(role));
            if parts.any(|part| part.device.is_late()) {
                return Err(Error::new(Class::Timeout, &self.name, "it does not answer"));
            }
            let what = "another process has changed how its disks stand, and no label that says so can be read";
            return Err(Error::new(Class::Gone, &self.name, what));
        };
        for (role, member) in
            newest.members.iter().enumerate().filter(|(role, member)| member.device != self.uuid(*role))
        {
            found.remove(&role);
            let device = others.find.as_ref().and_then(|find| find(member.device));
            if let Some(label) = device.as_ref().and_then(|device| Label::read(&**device).ok()) {
                found.insert(role, label);
            }
            self.uuids.write().unwrap_or_else(PoisonError::into_inner)[role] = member.device;
            self.parts.write().unwrap_or_else(PoisonError::into_inner)[role] =
                device.map(|device| Part::new(device, self.meters.as_ref(), role, member.device));
        }
        // The process that changed them died before it had written all: finish its change.
        let lags = found.iter().any(|(role, label)| {
            newest.members[*role].state != MemberState::Out && label.epoch.number() < newest.epoch.number()
        });
        let recorded_of = |(role, member): (usize, &crate::label::Member)| match found.get(&role) {
            Some(label) => state_of(role, label, &newest),
            None => member.state,
        };
        let recorded: Vec<MemberState> = newest.members.iter().enumerate().map(recorded_of).collect();
        {
            let mut states = self.states();
            let leaving = self.leaving.load(Ordering::SeqCst);
            for (role, state) in states.iter_mut().enumerate() {
                let before = *state;
                *state = match leaving & 1 << role {
                    0 => recorded[role],
                    _ => MemberState::Out,
                };
                // Another process has begun to rebuild it, or is done.
                if let (MemberState::Out, false, Some(part)) = (before, *state == MemberState::Out, self.part(role)) {
                    part.device.begin_anew();
                }
            }
        }
        *self.labels() = found;
        if lags && self.is_writable() {
            others.shared_state.change();
            self.write_labels(&newest)?;
            self.seen.store(others.shared_state.version(), Ordering::SeqCst);
        }
        self.tell_epoch();
        Ok(())
    }

    /// Other processes that read labels find this epoch, or know that they lack it.
    pub fn tell_epoch(&self) {
        if let (Some(others), Some(epoch)) = (&self.others, self.epoch()) {
            others.shared_state.tell_epoch(epoch.number());
        }
    }

    fn is_writable(&self) -> bool {
        (0..self.len()).filter_map(|role| self.part(role)).all(|part| !part.device.properties().read_only)
    }

    /// The labels are about to change, for all processes.
    fn bump(&self) {
        if let Some(others) = &self.others {
            self.seen.store(others.shared_state.change(), Ordering::SeqCst);
        }
    }

    /// Changes a member's state in all labels, in a new epoch; durable when it returns. Labels of members that are out
    /// stay as they are: by their epoch they are recognised when they come back.
    pub fn change(&self, role: usize, state: MemberState) -> Result<()> {
        let stamp = self.stamp()?;
        let _alone = self.alone()?;
        if state == MemberState::Whole && self.states()[role] == MemberState::Out {
            return Err(Error::new(Class::Gone, &self.name, format!("disk {} is out", role + 1)));
        }
        if state != MemberState::Out {
            self.carry_note(role)?;
        }
        self.bump();
        self.states()[role] = state;
        let states = self.states().clone();
        self.update(|label| set_states(label, &states, stamp))
    }

    /// Records in the labels that a member is out. If another process has excluded a different one, so that the region
    /// cannot do without this one any more, this one is in use again.
    pub fn exclude(&self, role: usize) -> Result<()> {
        let changed = self.exclude_alone(role);
        self.leaving.fetch_and(!(1 << role), Ordering::SeqCst);
        changed
    }

    fn exclude_alone(&self, role: usize) -> Result<()> {
        let stamp = self.stamp()?;
        let _alone = self.alone()?;
        let recorded = newest_of(self.labels().values()).map(|label| label.members[role].state);
        if self.others.is_some() && recorded == Some(MemberState::Out) {
            return Ok(());
        }
        if !self.can_miss(&self.states(), &[role]) {
            let mut states = self.states();
            states[role] = self.labels().get(&role).map_or(MemberState::Out, |label| label.members[role].state);
            let what = format!("disk {} missed a write, and others are out", role + 1);
            return Err(Error::new(Class::Media, &self.name, what));
        }
        self.bump();
        self.states()[role] = MemberState::Out;
        let states = self.states().clone();
        self.update(|label| set_states(label, &states, stamp))
    }

    /// Records how far a member has been put back, without a new epoch.
    pub fn note_rebuilt(&self, role: usize, rebuilt: u64) -> Result<()> {
        let _alone = self.alone()?;
        let state = MemberState::Rebuilding { rebuilt };
        match &mut self.states()[role] {
            MemberState::Rebuilding { rebuilt: here } => *here = rebuilt,
            _ => return Err(Error::new(Class::Gone, &self.name, format!("disk {} is out", role + 1))),
        }
        self.update(|label| label.members[role].state = state)
    }

    /// Records the states found at opening in all labels, in a new epoch.
    pub fn write_found(&self, newest: &Label) -> Result<()> {
        self.bump();
        self.write_labels(newest)
    }

    fn write_labels(&self, newest: &Label) -> Result<()> {
        let (states, stamp) = (self.states().clone(), self.stamp()?);
        self.update(|label| {
            (label.epoch, label.members) = (newest.epoch, newest.members.clone());
            label.sequence = label.sequence.max(newest.sequence);
            set_states(label, &states, stamp);
        })
    }

    fn stamp(&self) -> Result<u64> {
        stamp().map_err(|e| Error::new(Class::Transient, &self.name, format!("a random number: {e}")))
    }

    /// Changes the labels of all members in use. A member that does not take the change is out, if the region can do
    /// without it: its label would pass for that of a whole member.
    fn update(&self, change: impl Fn(&mut Label)) -> Result<()> {
        let mut failed = self.update_each(&change);
        while let Some((role, e)) = failed.pop() {
            if !self.can_miss(&self.states(), &[role]) {
                return Err(e);
            }
            self.states()[role] = MemberState::Out;
            let (states, stamp) = (self.states().clone(), self.stamp()?);
            failed = self.update_each(&|label| set_states(label, &states, stamp));
            self.tell(What::Out { member: role, tolerated: self.tolerated(), why: e.to_string() });
        }
        self.tell_epoch();
        Ok(())
    }

    fn update_each(&self, change: &dyn Fn(&mut Label)) -> Vec<(usize, Error)> {
        let mut labels = self.labels();
        let states = self.states().clone();
        let used = labels.iter_mut().filter(|(role, _)| states[**role] != MemberState::Out);
        let update = |(role, label): (&usize, &mut Label)| {
            let part = self.part(*role)?;
            label.update(&*part.device, change).err().map(|e| (*role, e))
        };
        let mut failed: Vec<(usize, Error)> = used.filter_map(update).collect();
        if self.others.is_some() {
            // Its label could not be read: it would never change again.
            let unknown = |role: &usize| states[*role] != MemberState::Out && !labels.contains_key(role);
            let e =
                |role| Error::new(Class::Gone, &self.name, format!("the label of disk {} cannot be read", role + 1));
            failed.extend((0..states.len()).filter(unknown).map(|role| (role, e(role))));
        }
        failed
    }

    /// Can the region, in these states, do without these members too?
    pub fn can_miss(&self, states: &[MemberState], roles: &[usize]) -> bool {
        let is_missing = |role: &usize| states[*role] != MemberState::Whole || roles.contains(role);
        (0..states.len()).filter(is_missing).count() <= self.layout.tolerates(states.len())
    }

    /// Puts another disk in a member's place, with a label that says that it has no content yet.
    pub fn replace(&self, role: usize, device: Arc<dyn Device>, uuid: Uuid) -> Result<()> {
        let stamp = self.stamp()?;
        let _alone = self.alone()?;
        let state = MemberState::Rebuilding { rebuilt: 0 };
        let like = {
            let labels = self.labels();
            let states = self.states();
            let whole = |(other, _): &(&usize, &Label)| states[**other] == MemberState::Whole && **other != role;
            let like = labels.iter().find(whole).map(|(_, label)| label.clone());
            like.ok_or_else(|| Error::new(Class::Gone, &self.name, "no member is whole"))?
        };
        let next = |label: &mut Label| {
            label.epoch = label.epoch.next(stamp);
            label.members[role].device = uuid;
            label.members[role].state = state;
        };
        self.bump();
        // The others' labels first, so that they never take it for whole by an old label of it. The disk that it
        // replaces gets no label: it stays behind, and is recognised by that.
        self.states()[role] = MemberState::Out;
        self.update(next)?;
        device.begin_anew();
        let size = device.properties().size;
        let mut label = Label { device: uuid, role, size, data: crate::label::data_of(size), generation: 0, ..like };
        next(&mut label);
        if let Some(note) = self.newest_note() {
            note::write(&*device, uuid, size, &note)?;
        }
        label.write(&*device)?;
        self.labels().insert(role, label);
        self.uuids.write().unwrap_or_else(PoisonError::into_inner)[role] = uuid;
        self.parts.write().unwrap_or_else(PoisonError::into_inner)[role] =
            Some(Part::new(device, self.meters.as_ref(), role, uuid));
        self.states()[role] = state;
        Ok(())
    }

    /// The epoch in the labels of the members in use.
    pub fn epoch(&self) -> Option<Epoch> {
        let states = self.states().clone();
        let used = |(role, _): &(&usize, &Label)| states[**role] != MemberState::Out;
        self.labels().iter().filter(used).map(|(_, label)| label.epoch).max_by_key(Epoch::number)
    }

    /// Puts a member out and records that in the labels; false where the region cannot do without it.
    pub fn put_out(&self, role: usize, why: &str) -> Result<bool> {
        if self.states().get(role).is_none_or(|state| *state == MemberState::Out) {
            return Ok(true);
        }
        if !self.can_miss(&self.states(), &[role]) {
            return Ok(false);
        }
        self.states()[role] = MemberState::Out;
        self.leaves(role);
        self.exclude(role)?;
        self.tell(What::Out { member: role, tolerated: self.tolerated(), why: why.into() });
        Ok(true)
    }
}
