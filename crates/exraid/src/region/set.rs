//! The disks of a region: where their shares lie, how they do, and their labels.

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

/// What a request carries beside its operation.
#[derive(Clone, Copy)]
pub struct Manner {
    pub tag: u64,
    pub within: Option<Duration>,
    /// The request of the region for which it is: it is reported to its client when it is late.
    pub of: Option<Which>,
}

/// A member that is there.
pub struct Part {
    pub device: Arc<dyn Device>,
    meter: Meter,
    /// Its speed tells of the disk, and not of the memory of its host.
    direct: bool,
}

impl Part {
    /// In the place of `role`. Called by one process at a time, where several measure.
    pub fn new(device: Arc<dyn Device>, meters: Option<&Arc<Meters>>, role: usize, uuid: Uuid) -> Arc<Part> {
        let (meter, direct) = (Meter::shared(meters, role + 1, uuid), device.properties().direct);
        Arc::new(Part { device, meter, direct })
    }

    /// It delivers much less than it did.
    pub fn stutter(&self) -> Option<Stutter> {
        self.meter.stutter()
    }

    /// How long a read that comes now is likely to take.
    pub fn expected_read(&self) -> Duration {
        self.meter.expected_read()
    }

    pub fn performance(&self) -> Performance {
        let oldest = self.device.pending().iter().map(|pending| pending.age).max().unwrap_or_default();
        self.meter.performance(oldest)
    }
}

/// The lowest and the highest of the [marks](Label::high_water) in the labels of those that are used.
fn high_water_of(labels: &BTreeMap<usize, Label>, states: &[MemberState]) -> (u64, u64) {
    let used = labels.iter().filter(|(role, _)| states[**role] != MemberState::Out);
    let marks: Vec<u64> = used.map(|(_, label)| label.high_water).collect();
    (marks.iter().copied().min().unwrap_or(0), marks.into_iter().max().unwrap_or(0))
}

/// How members stand, from now on.
fn set_states(label: &mut Label, states: &[MemberState], stamp: u64) {
    label.epoch = label.epoch.next(stamp);
    for (member, state) in label.members.iter_mut().zip(states) {
        member.state = *state;
    }
}

/// Finds the disk with a UUID, which another process has put in a member's place.
pub type Finder = Arc<dyn Fn(Uuid) -> Option<Arc<dyn Device>> + Send + Sync>;

/// What a region has of other processes.
pub struct Others {
    pub shared_state: Arc<SharedState>,
    pub find: Option<Finder>,
}

/// The disks of a region, by role.
pub struct Set {
    pub name: Arc<str>,
    pub number: u32,
    pub layout: Layout,
    /// Bytes of each member that count.
    pub share: u64,
    /// The random number that all labels have. Beside them, since an update of labels waits for disks, and who answers for
    /// a disk asks for this.
    pub secret: u64,
    /// The [mark](Label::high_water) that all labels have at least, as this process knows it; beside them for the same reason.
    high_water: AtomicU64,
    pub events: Events,
    /// Requests of the region that are under way.
    pub flights: Arc<Flights>,
    uuids: RwLock<Vec<Uuid>>,
    parts: RwLock<Vec<Option<Arc<Part>>>>,
    states: Mutex<Vec<MemberState>>,
    /// A bit for each member, by role: see [`Set::lose`].
    lost: AtomicU32,
    /// Those of the members that are there. Held during an update.
    labels: Mutex<BTreeMap<usize, Label>>,
    others: Option<Others>,
    /// Where processes share what they measure.
    meters: Option<Arc<Meters>>,
    /// The version of the labels that is known here.
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

    /// Members that this region can still do without; `None`: it has lost content.
    pub fn tolerated(&self) -> Option<usize> {
        if self.lost.load(Ordering::SeqCst) != 0 {
            return None;
        }
        let states = self.states();
        let missing = states.iter().filter(|state| **state != MemberState::Whole).count();
        self.layout.tolerates(states.len()).checked_sub(missing)
    }

    /// A member that the region cannot do without is gone. No label records that: with it, the region could be opened again.
    pub fn lose(&self, role: usize) {
        self.lost.fetch_or(1 << role, Ordering::SeqCst);
    }

    /// Is it gone, though no label says so?
    pub fn is_lost(&self, role: usize) -> bool {
        self.lost.load(Ordering::SeqCst) & 1 << role != 0
    }

    pub fn tell(&self, what: What) {
        self.events.tell(&Event { region: self.number, what });
    }

    /// Tells who asked for this that it comes late.
    pub fn late(self: &Arc<Set>, manner: Manner) -> Late {
        let set = self.clone();
        Late::new(move || manner.of.into_iter().for_each(|of| set.flights.tell_late(of)))
    }

    /// How what all members are asked may do without those that are late: they have missed it then.
    pub fn without(self: &Arc<Set>, manner: Manner) -> Without {
        let set = self.clone();
        let can = Box::new(move |roles: &[usize]| set.can_miss(&set.states(), roles));
        Without { name: self.name.clone(), can, late: self.late(manner) }
    }

    /// Sends a request to a member; where it works counts from the start of the member's share.
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

    /// Has a member become slow, or well again? Its peers are the others that take a part in what it does: where they have become slow
    /// alike, it is not the disk.
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

    /// The first member that is used and delivers much less than it did. Says so, where another process has noticed it.
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

    /// The highest mark of sequence numbers that any label has.
    pub fn sequence(&self) -> u64 {
        self.labels().values().map(|label| label.sequence).max().unwrap_or(0)
    }

    /// Does this process know how members stand? Else another one has changed that since.
    pub fn is_current(&self) -> bool {
        self.others.as_ref().is_none_or(|others| others.shared_state.version() == self.seen.load(Ordering::SeqCst))
    }

    pub fn shared_state(&self) -> Option<&Arc<SharedState>> {
        self.others.as_ref().map(|others| &others.shared_state)
    }

    /// The member is out, and the labels will say so. Under the lock of the states.
    pub fn leaves(&self, role: usize) {
        self.leaving.fetch_or(1 << role, Ordering::SeqCst);
    }

    /// The member is out since it did not answer, or is no more.
    pub fn set_silent(&self, role: usize, is_silent: bool) {
        match is_silent {
            true => self.silent.fetch_or(1 << role, Ordering::SeqCst),
            false => self.silent.fetch_and(!(1 << role), Ordering::SeqCst),
        };
    }

    /// A member that is out since it did not answer, and has answered all by now.
    pub fn returned(&self) -> Option<usize> {
        let (silent, states) = (self.silent.load(Ordering::SeqCst), self.states().clone());
        let is_out = |role: &usize| silent & 1 << role != 0 && states[*role] != MemberState::Whole;
        let answers = |role: &usize| self.part(*role).is_some_and(|part| part.device.pending().is_empty());
        (0..states.len()).filter(is_out).find(answers)
    }

    /// Knows what the labels say, if another process has changed that. Waits for disks.
    pub fn adopt(&self) -> Result<()> {
        match self.is_current() {
            true => Ok(()),
            false => self.alone().map(drop),
        }
    }

    /// From now on no other process changes labels, and what they say is known here.
    fn alone(&self) -> Result<Option<Held<'_>>> {
        let Some(others) = &self.others else { return Ok(None) };
        let held = others.shared_state.labels(&self.name)?;
        let version = others.shared_state.version();
        self.read_labels(others)?;
        self.seen.store(version.max(self.seen.load(Ordering::SeqCst)), Ordering::SeqCst);
        Ok(Some(held))
    }

    /// Takes over what the labels say, but for who is out here and not there yet.
    fn read_labels(&self, others: &Others) -> Result<()> {
        let mut found = BTreeMap::new();
        for role in 0..self.len() {
            let Some(part) = self.part(role) else { continue };
            // One that cannot be read is excluded by the next update, or by the next request. One that does not answer is asked no more.
            if part.device.is_late() {
                continue;
            }
            if let Ok(label) = Label::read(&*part.device) {
                found.insert(role, label);
            }
        }
        // One who is out here alone may be the one whose label alone can be read.
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
        // Whoever changed them has died in between: it is as he said in the first one.
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

    /// Whoever reads labels finds this one, or knows that he lacks it.
    pub fn tell_epoch(&self) {
        if let (Some(others), Some(epoch)) = (&self.others, self.epoch()) {
            others.shared_state.tell_epoch(epoch.number());
        }
    }

    fn is_writable(&self) -> bool {
        (0..self.len()).filter_map(|role| self.part(role)).all(|part| !part.device.properties().read_only)
    }

    /// The labels are about to say something else, for all processes.
    fn bump(&self) {
        if let Some(others) = &self.others {
            self.seen.store(others.shared_state.change(), Ordering::SeqCst);
        }
    }

    /// How members stand is changed in all labels, with an epoch of its own; durable when it returns. Those that are out
    /// do not get it: their epoch is what they are known by when they come back.
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

    /// The labels say that a member is out that is so here. It is in use again where the region cannot do without it any more: another
    /// process has excluded a different one.
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

    /// How far a member has been put back, without an epoch of its own.
    pub fn note_rebuilt(&self, role: usize, rebuilt: u64) -> Result<()> {
        let _alone = self.alone()?;
        let state = MemberState::Rebuilding { rebuilt };
        match &mut self.states()[role] {
            MemberState::Rebuilding { rebuilt: here } => *here = rebuilt,
            _ => return Err(Error::new(Class::Gone, &self.name, format!("disk {} is out", role + 1))),
        }
        self.update(|label| label.members[role].state = state)
    }

    /// What was found when the region was opened is made to be so in all labels, in an epoch of its own.
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

    /// Changes the labels of all members that are used. One that does not take it is out, where the region can do
    /// without it: its label would be that of a member that has everything.
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
            // Its label could not be read: it would say for ever what it says now.
            let unknown = |role: &usize| states[*role] != MemberState::Out && !labels.contains_key(role);
            let e =
                |role| Error::new(Class::Gone, &self.name, format!("the label of disk {} cannot be read", role + 1));
            failed.extend((0..states.len()).filter(unknown).map(|role| (role, e(role))));
        }
        failed
    }

    /// Can it do without these members too, where the others stand so?
    pub fn can_miss(&self, states: &[MemberState], roles: &[usize]) -> bool {
        let is_missing = |role: &usize| states[*role] != MemberState::Whole || roles.contains(role);
        (0..states.len()).filter(is_missing).count() <= self.layout.tolerates(states.len())
    }

    /// Puts another disk in a member's place, with a label that says that it has nothing yet.
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
        // First the others: they must not take it for whole, whatever its label says by then. Who has been in its place
        // gets nothing: it stays behind, and is known by that.
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

    /// The epoch, as the labels of those that are used have it.
    pub fn epoch(&self) -> Option<Epoch> {
        let states = self.states().clone();
        let used = |(role, _): &(&usize, &Label)| states[**role] != MemberState::Out;
        self.labels().iter().filter(used).map(|(_, label)| label.epoch).max_by_key(Epoch::number)
    }

    /// The member is out, and the labels say so; false where the region cannot do without it.
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
