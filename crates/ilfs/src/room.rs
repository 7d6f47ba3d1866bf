//! Room for parts: opening and filling segments, giving up blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::PoisonError;

use exraid::{Class as Failure, Op as Transfer, LATE};
use pram::session::assert_may_wait;
use pram::Session;

use super::areas::Area;
use super::error::{Error, Result};
use super::failure::cause_of;
use super::part::{content_of, summary_blocks};
use super::place::Place;
use super::placement::Choice;
use super::storage_class::{self, Class};
use super::table::{slot_in, transact, Change, RawTable, RawTableRegion, Segment, SlotState, KEY};
use super::{Head, Log};

/// Regions, or segments, that one transaction changes at most.
pub(super) const AT_ONCE: usize = 64;
/// Free segments that are left to the cleaner.
pub(super) const RESERVE: u64 = 2;
/// Bytes for which a host is asked to keep room at a time, for slots that were never used: to answer, the host first
/// completes all its writes. At most one part in so many of a disk.
const AHEAD: u64 = 256 << 20;
const AHEAD_SHARE: u32 = 16;

/// Segments for which hosts keep room ahead of need: one part in so many, at most so many, and at least twice the blocks
/// of an operation.
const RESERVED_SHARE: u64 = 32;
const RESERVED_MOST: u64 = 32;
/// Blocks that one operation writes at most.
pub const LONGEST: u64 = 256;

/// A wish for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub head: Head,
    pub class: Class,
    /// Blocks of content, at most.
    pub content: u32,
    /// When the blocks were written, by the log's clock; else now.
    pub stamp: Option<u64>,
    /// The highest priority of their files.
    pub priority: u8,
    /// For lazy content that is moved: when its replicas were due. Moving does not defer them.
    pub due: Option<u32>,
    /// Replicas at least, of those that the class is to have.
    pub least: u64,
}

/// Room for a part.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// The segment's slots: all are written.
    pub slots: Vec<u32>,
    pub sequence: u64,
    /// Where the summary begins.
    pub block: u32,
    pub number: u32,
    /// Blocks of content.
    pub content: u32,
    /// The version of the first of them.
    pub version: u64,
}

impl Room {
    pub fn place(&self, n: u32) -> Place {
        Place::new(self.sequence, self.block + summary_blocks(self.content) + n)
    }

    pub fn places(&self) -> Vec<Place> {
        (0..self.content).map(|n| self.place(n)).collect()
    }
}

/// The result of a wish for room.
enum Wish {
    Room(Room),
    /// Sequence numbers have to be reserved first.
    Numbers,
    /// The regions have changed, and this process does not know them.
    Regions,
    /// Another segment is needed, and its host must first keep room for this slot, which is next.
    Slot(u32),
    /// Another segment is needed, and the labels must first record that this slot is used.
    Above(u32),
}

/// The open slot for such content, if there is one.
fn open_slot(change: &Change<'_, '_>, all: &RawTable, want: &Want, choices: &[Choice]) -> Result<Option<u32>> {
    match want.class {
        Class::Whole(_) => {
            // In the first region that has room: a segment is opened there if none is open.
            for choice in choices {
                let region = change.table().region(choice.area.n)?;
                if region.whole != 0 || region.next_reserved().or(region.next_free()).is_some() {
                    return Ok(slot_in(region.whole));
                }
            }
            Ok(None)
        }
        class => Ok(slot_in(all.heads[head_of(want.head, class)])),
    }
}

fn set_open(change: &mut Change<'_, '_>, want: &Want, slot: u32) -> Result<()> {
    match want.class {
        Class::Whole(_) => {
            let (n, _) = change.table().region_of(slot)?;
            change.set_whole(n, Some(slot))
        }
        class => change.set_head(head_of(want.head, class), Some(slot)),
    }
}

/// The slots of all open segments.
fn open_slots(change: &Change<'_, '_>) -> Result<Vec<u32>> {
    let wholes = change.table().regions()?.into_iter().map(|(_, region)| region.whole);
    Ok(change.head()?.heads.into_iter().chain(wholes).filter_map(slot_in).collect())
}

/// The index in the heads of the table.
fn head_of(head: Head, class: Class) -> usize {
    2 * usize::from(class.code()) + head as usize
}

impl Log {
    /// Seconds since 1970.
    pub(super) fn seconds(&self) -> u32 {
        self.clock.seconds().min(u32::MAX.into()) as u32
    }

    pub(super) fn change<R>(
        &self,
        session: &Session,
        mut work: impl FnMut(&mut Change<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        transact(session, |tx| work(&mut Change::new(tx, self.at)))
    }

    /// About how many blocks can be written to the hot head now.
    pub fn room(&self, session: &Session) -> Result<u64> {
        let (all, open) = session.read(KEY, || {
            let table = self.at.table(session.memory());
            let all = table.head()?;
            let open = match slot_in(all.heads[Head::Hot as usize]) {
                Some(slot) => content_of(self.blocks.saturating_sub(table.get(slot)?.used)),
                None => 0,
            };
            Ok::<_, Error>((all, open))
        })?;
        Ok(u64::from(open) + self.ready(&all).saturating_sub(RESERVE) * u64::from(content_of(self.blocks)))
    }

    /// About how many blocks can be written to the hot head now, with all the replicas that they may need, beside
    /// `segments` segments.
    pub fn room_beside(&self, session: &Session, segments: u64) -> Result<u64> {
        let beside = segments * u64::from(content_of(self.blocks));
        Ok(self.room(session)?.saturating_sub(beside) / self.most_wanted(&self.head(session)?))
    }

    /// Takes room for the wish, or for a part of its blocks.
    pub(super) fn take_room(&self, session: &Session, want: &Want) -> Result<Room> {
        self.get_ready(session)?;
        // A region may have failed to open when the table first had it: the process that made it may have held it.
        if self.areas().list.iter().any(|area| area.is_taking && area.region.is_none()) {
            self.refresh(session)?;
        }
        // Admission has counted all replicas; a segment that finds room for fewer gets the others later.
        let wanted = u64::from(storage_class::wanted_replicas(want.class.code()).unwrap_or(1));
        let want = &Want { least: want.least.min(wanted), ..*want };
        let replicas = if storage_class::is_mirrored(want.class.code()) { wanted } else { want.least.max(1) };
        let head = want.head;
        let (mut choices, mut is_short) = (self.choices(want.class), false);
        loop {
            match self.change(session, |change| self.wish(change, want, replicas, &choices, is_short))? {
                Wish::Room(room) => return Ok(room),
                Wish::Numbers => self.reserve_numbers(session)?,
                Wish::Regions => {
                    self.refresh(session)?;
                    choices = self.choices(want.class);
                }
                Wish::Above(slot) => self.raise_high_water(session, slot)?,
                Wish::Slot(slot) => match self.prepare(session, slot) {
                    Err(Error::Device(e)) if e.class == Failure::Timeout => {
                        let number = self.area_of(session, slot)?.number;
                        if !self.fence(session, number, cause_of(&e), &e)? {
                            self.wait_for_one_of(session, &[slot])?;
                        }
                    }
                    Err(Error::NoSpace) => {
                        choices.retain(|choice| !choice.area.slots.contains(&slot));
                        // The cleaner may use room that is reserved for writing: it gives back more.
                        if choices.is_empty() && head == Head::Cold && !is_short {
                            (choices, is_short) = (self.choices(want.class), true);
                        }
                    }
                    done => {
                        done?;
                        is_short |= head == Head::Cold;
                    }
                },
            }
        }
    }

    /// Has the host keep room for the next slot, since a write must not find the host full. If the slot was never used,
    /// also for the slots behind it.
    ///
    /// Ordered steps:
    /// 1. The host keeps their room. (Else: a write that relies on it finds the host full.)
    /// 2. They are among the reserved slots. A crash before that costs the room until they are used.
    pub(super) fn prepare(&self, session: &Session, slot: u32) -> Result<()> {
        assert_may_wait();
        let area = self.area_of(session, slot)?;
        let table = self.at.table(session.memory());
        let fresh = session.read(KEY, || table.region(area.n))?.fresh;
        let most = ((AHEAD / self.segment()) as u32).min((area.slots.end - area.slots.start) / AHEAD_SHARE);
        let most = if u64::from(slot) == fresh { most.max(1) } else { 1 };
        let mut slots = slot..area.slots.end.min(slot + most);
        // 1.
        match self.reserve_on_host(session, slots.clone()) {
            Err(Error::NoSpace) if slots.len() > 1 => {
                slots.end = slot + 1;
                self.reserve_on_host(session, slots.clone())?;
            }
            done => done?,
        }
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // 2.
        slots.into_iter().try_for_each(|slot| {
            self.change(session, |change| {
                let region = change.table().region(area.n)?;
                let is_its = region.range().contains(&slot);
                match is_its && (region.next_free() == Some(slot) || region.fresh == u64::from(slot)) {
                    true => change.reserve(slot),
                    // Another process has taken it.
                    false => Ok(()),
                }
            })
        })
    }

    fn reserve_on_host(&self, session: &Session, slots: Range<u32>) -> Result<()> {
        let lies = self.lies(session, slots.start)?;
        let range = lies.at..lies.at + slots.len() as u64 * self.segment();
        match lies.region.ask(Transfer::Reserve(range).into(), LATE).result {
            Err(e) if e.class == exraid::Class::NoSpace => Err(Error::NoSpace),
            done => Ok(done?),
        }
    }

    /// Can the hosts of the disks refuse room?
    pub fn grows(&self) -> bool {
        self.areas().grow()
    }

    /// Blocks that can be written now, but not by the cleaner, independent of the room that hosts have left: free
    /// segments for which hosts keep room.
    pub(super) fn held(&self, session: &Session) -> Result<u64> {
        let table = self.at.table(session.memory());
        let all = table.head()?;
        let open = match slot_in(all.heads[Head::Hot as usize]) {
            Some(slot) => content_of(self.blocks.saturating_sub(table.get(slot)?.used)),
            None => 0,
        };
        Ok(u64::from(open) + all.held.saturating_sub(RESERVE) * u64::from(content_of(self.blocks)))
    }

    /// Blocks for which hosts keep room ahead of need.
    pub(super) fn ahead(&self) -> u64 {
        let slots = |area: &Area| u64::from(area.slots.end - area.slots.start);
        let segments = self.areas().list.iter().map(|area| slots(area)).sum::<u64>() / RESERVED_SHARE;
        let ahead = segments.clamp(1, RESERVED_MOST) * u64::from(self.blocks);
        ahead.max(2 * LONGEST + 2)
    }

    /// Has hosts keep room for all blocks that are live, promised or wait in memory for a place, and for some more, to
    /// be written at once. False if hosts have too little.
    pub fn reserve_ahead(&self, session: &Session) -> Result<bool> {
        let has = |ahead: u64| -> Result<bool> {
            let available = self.available_about(session)?;
            Ok(available >= session.heap().unplaced() + ahead && self.held(session)? >= ahead)
        };
        // It asks at half of the goal, so that it asks for more at a time.
        match !self.grows() || has(self.ahead() / 2)? {
            true => Ok(true),
            false => self.reserve_room(session, &|| has(self.ahead())),
        }
    }

    /// Has hosts keep room until that is enough; false if they have no more.
    fn reserve_room(&self, session: &Session, is_enough: &dyn Fn() -> Result<bool>) -> Result<bool> {
        self.refresh(session)?;
        let mut choices = self.by_preference();
        choices.retain(|choice| choice.area.grows);
        while !is_enough()? {
            let table = self.at.table(session.memory());
            let Some(choice) = choices.first() else { return Ok(false) };
            let next = session.read(KEY, || table.region(choice.area.n))?.next_free();
            match next.map_or(Err(Error::NoSpace), |slot| self.prepare(session, slot)) {
                Err(Error::NoSpace) => _ = choices.remove(0),
                done => done?,
            }
        }
        Ok(true)
    }

    fn wish(
        &self,
        change: &mut Change<'_, '_>,
        want: &Want,
        replicas: u64,
        choices: &[Choice],
        is_short: bool,
    ) -> Result<Wish> {
        let all = change.head()?;
        if !self.knows(all.changes) {
            return Ok(Wish::Regions);
        }
        if let Some(slot) = open_slot(change, &all, want, choices)? {
            let segment = change.table().get(slot)?;
            let fits = content_of(self.blocks.saturating_sub(segment.used)).min(want.content);
            let has =
                || Ok::<_, Error>(change.table().replicas(slot, &segment)?.iter().filter(|(_, c)| !c.partial).count());
            if fits > 0 && (want.least <= 1 || has()? as u64 >= want.least) {
                return self.take(change, slot, segment, fits, want).map(Wish::Room);
            }
            self.close(change, slot, segment)?;
        }
        if all.sequence >= all.limit {
            return Ok(Wish::Numbers);
        }
        let kept = if want.head == Head::Cold { 0 } else { RESERVE };
        if all.spare <= kept {
            return Err(Error::NoSpace);
        }
        // The cleaner leaves the reserved slots to writers, and writers leave the cleaner the slots that it needs.
        let may_take = |taken: usize| match want.head {
            Head::Hot => all.held > RESERVE + taken as u64,
            Head::Cold => is_short,
        };
        let replicas = replicas.min(all.spare - kept);
        let (mut slots, mut domains) = (Vec::new(), Vec::new());
        for choice in choices {
            let region = change.table().region(choice.area.n)?;
            if domains.contains(&region.domain()) {
                continue;
            }
            let slot = match (region.next_reserved(), region.next_free()) {
                (Some(slot), _) if may_take(slots.len()) || !choice.area.grows => slot,
                (_, Some(slot)) if choice.area.grows => return Ok(Wish::Slot(slot)),
                (_, Some(slot)) | (Some(slot), _) => slot,
                (None, None) => continue,
            };
            if !self.is_below_high_water(&choice.area, slot) {
                return Ok(Wish::Above(slot));
            }
            slots.push(slot);
            choice.take();
            domains.push(region.domain());
            if slots.len() as u64 == replicas {
                break;
            }
        }
        let Some(first) = slots.first().copied().filter(|_| slots.len() as u64 >= want.least) else {
            return Err(Error::NoSpace);
        };
        change.set_sequence(all.sequence + 1, all.limit)?;
        if storage_class::is_whole(want.class.code()) {
            self.close_whole(change, first)?;
        }
        let segment = change.open(&slots, all.sequence, want.head as u8, want.class.code())?;
        set_open(change, want, first)?;
        self.take(change, first, segment, content_of(self.blocks).min(want.content), want).map(Wish::Room)
    }

    /// Closes the segment that is open in the region of `slot`: a second open one would hide it.
    fn close_whole(&self, change: &mut Change<'_, '_>, slot: u32) -> Result<()> {
        let Some(open) = slot_in(change.table().region_of(slot)?.1.whole) else { return Ok(()) };
        let segment = change.table().get(open)?;
        self.close(change, open, segment)
    }

    /// Takes room in a segment that is open and has some. Its blocks count as live from now on (T1).
    fn take(
        &self,
        change: &mut Change<'_, '_>,
        slot: u32,
        segment: Segment,
        content: u32,
        want: &Want,
    ) -> Result<Room> {
        let all = change.head()?;
        let (before, count) = (u128::from(segment.used), u128::from(content));
        let stamp = u128::from(want.stamp.unwrap_or(all.clock));
        let due = match want.class {
            Class::Lazy(delay) => self.seconds().saturating_add(delay).min(want.due.unwrap_or(u32::MAX)),
            _ => 0,
        };
        let taken = Segment {
            used: segment.used + summary_blocks(content) + content,
            live: segment.live + content,
            parts: segment.parts + 1,
            stamp: ((u128::from(segment.stamp) * before + stamp * count) / (before + count)) as u64,
            due: if segment.parts == 0 { due } else { segment.due.min(due) },
            priority: segment.priority.max(want.priority),
            ..segment
        };
        change.put(slot, &taken)?;
        change.count_live(segment.class, i64::from(content))?;
        change.set_clock(all.clock + u64::from(content), all.version + u64::from(content))?;
        let (block, number, version) = (segment.used, segment.parts, all.version);
        let slots = change.table().replicas(slot, &taken)?.into_iter().filter(|(_, replica)| !replica.partial);
        let slots = slots.map(|(slot, _)| slot).collect();
        Ok(Room { slots, sequence: segment.sequence, block, number, content, version })
    }

    /// A segment takes no more parts.
    pub(super) fn close(&self, change: &mut Change<'_, '_>, slot: u32, segment: Segment) -> Result<()> {
        change.put(slot, &Segment { state: SlotState::Full, ..segment })?;
        let heads = change.head()?.heads;
        for (n, head) in heads.iter().enumerate() {
            if slot_in(*head) == Some(slot) {
                change.set_head(n, None)?;
            }
        }
        if !storage_class::is_whole(segment.class) {
            return Ok(());
        }
        let (n, region) = change.table().region_of(slot)?;
        match slot_in(region.whole) == Some(slot) {
            true => change.set_whole(n, None),
            false => Ok(()),
        }
    }

    /// No segment that has a replica in this region takes more parts.
    pub(super) fn close_in(&self, change: &mut Change<'_, '_>, region: &RawTableRegion) -> Result<()> {
        for slot in open_slots(change)? {
            let segment = change.table().get(slot)?;
            let replicas = change.table().replicas(slot, &segment)?;
            if replicas.iter().any(|(replica, _)| region.range().contains(replica)) {
                self.close(change, slot, segment)?;
            }
        }
        Ok(())
    }

    /// Closes all segments that are open now, some at a time: as many as the undo log of a transaction holds.
    pub(super) fn close_all(&self, session: &Session) -> Result<()> {
        let table = self.at.table(session.memory());
        let open = self.change(session, |change| {
            let open = open_slots(change)?.into_iter();
            open.map(|slot| Ok((slot, change.table().get(slot)?.sequence))).collect::<Result<Vec<_>>>()
        })?;
        for some in open.chunks(AT_ONCE) {
            self.change(session, |change| {
                some.iter().try_for_each(|(slot, sequence)| {
                    let segment = table.get(*slot)?;
                    match segment.sequence == *sequence && segment.state == SlotState::Open {
                        true => self.close(change, *slot, segment),
                        false => Ok(()),
                    }
                })
            })?;
        }
        Ok(())
    }

    /// A write to the segment failed: it takes no more, and its slot is not used again once no block in it is live.
    pub(super) fn set_failed(&self, session: &Session, sequence: u64) -> Result<()> {
        self.change(session, |change| {
            let Some((slot, segment)) = change.table().find(sequence)? else { return Ok(()) };
            for (replica, entry) in change.table().replicas(slot, &segment)? {
                change.put(replica, &Segment { failed: true, ..entry })?;
            }
            match segment.state {
                SlotState::Open => self.close(change, slot, Segment { failed: true, ..segment }),
                _ => Ok(()),
            }
        })
    }

    /// These blocks are not live any more: places in ascending order.
    pub(super) fn release(&self, change: &mut Change<'_, '_>, places: &[Place]) -> Result<()> {
        let mut released = BTreeMap::<u8, i64>::new();
        for group in places.chunk_by(|a, b| a.sequence() == b.sequence()) {
            // The blocks of a segment that was used again have been released before.
            let Some((slot, segment)) = change.table().find(group[0].sequence())? else { continue };
            let live = segment.live.checked_sub(group.len() as u32).ok_or_else(|| {
                let what = format!("{}: more blocks are given up than are live", group[0]);
                Error::Corrupt(what)
            })?;
            change.set_live(slot, &Segment { live, ..segment })?;
            *released.entry(segment.class).or_default() += group.len() as i64;
        }
        released.into_iter().try_for_each(|(class, blocks)| change.count_live(class, -blocks))
    }

    /// Gives up blocks that were written and will not be linked.
    pub fn give_up(&self, session: &Session, places: &[Place]) -> Result<()> {
        // As many as the undo log of a transaction holds, in any order.
        places.chunks(256).try_for_each(|some| self.change(session, |change| self.release(change, some)))
    }

    /// May a region whose labels could not be written be ignored, since it is out of use? Fences it unless the failure
    /// may pass.
    pub(super) fn is_out(&self, session: &Session, number: u32, e: &exraid::Error) -> Result<bool> {
        if self.fenced(session)?.contains(&number) {
            return Ok(true);
        }
        let may_be_again = matches!(e.class, Failure::Transient | Failure::NoSpace | Failure::Invalid);
        Ok(!may_be_again && self.fence(session, number, cause_of(e), e)?)
    }

    /// Stops all writing after a flush that failed.
    pub(super) fn fail(&self, e: exraid::Error) -> Error {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.clone());
        Error::Failed(e)
    }
}
