//! The cleaner: frees segments with dead blocks by moving their live blocks elsewhere.
//!
//! It chooses the segment with the greatest `dead ÷ live × √age`. A young segment is likely to lose more blocks by
//! itself. An old one that is half dead hardly loses any, and the space gained by moving its rest lasts long. Age is
//! counted in blocks written, not in seconds: a pool that rests does not age.
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | the segment takes no links any more | a block that is linked after step 3 looked at it is lost with the segment |
//! | 2 | its summaries tell which blocks are in it | |
//! | 3 | the owner of each block tells whether it is dead, live, or live with a newer version in memory alone | |
//! | 4 | live blocks are read and verified; they, or the newer versions, are written to the cold head; durable | |
//! | 5 | transactions of the owners replace the old places by the new ones; a block that changed meanwhile keeps its own | a change that was made meanwhile is undone |
//! | 6 | no mapping leads there: the segment is freed, in the running epoch | |
//!
//! Blocks are looked at and read some at a time, and written all at once, for one flush. Cleaning can end after any
//! step: the next process finds the segment marked, and the moved blocks dead. One process does this at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

use exraid::{Aligned, Background, Buffers};
use pram::session::assert_may_wait;
use pram::Session;

use super::avoided::SOON;
use super::error::{Error, Result};
use super::files::{Fate, Files, Move};
use super::live::Live;
use super::part::{summary_blocks, Entry, Owner};
use super::place::{Place, Run, BLOCK};
use super::read::Reading;
use super::storage_class;
use super::table::{Segment, SlotState, KEY};
use super::write::Block;
use super::{Head, Log};

/// Blocks that are looked at and read at a time: between them `go_on` is asked.
const BATCH: usize = 256;
/// A segment is left as it is if cleaning it would gain less than one part in so many.
const GAIN: u32 = 32;

/// The result of cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// A segment was freed: so many of its blocks were moved, and of so many a newer version was written.
    Freed { sequence: u64, moved: u32, newer: u32 },
    /// It was interrupted, and goes on with the same segment.
    Interrupted,
    /// A segment could not be freed, and is left alone from now on.
    NotFreed { sequence: u64, why: Obstacle },
    /// There is nothing to do.
    Asleep(Reason),
}

/// Why the cleaner does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// As many segments are free as were asked for.
    Enough,
    /// They will be once a commit makes freed segments free.
    AwaitingCommit,
    /// No segment has enough dead blocks to be worth cleaning.
    NothingToGain,
    /// No segment is free to move blocks to.
    NoRoom,
}

/// Why a segment cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// So many of its blocks are live and cannot be read.
    Unreadable(u32),
    /// A summary in it is torn or damaged, and its blocks may be live.
    Unknown,
    /// A write to it may yet be on its way, in any process, and its slot must not be used before that has ended.
    /// Temporary.
    UnderWay,
}

/// The segments that the cleaner leaves alone.
#[derive(Default)]
pub struct Memory {
    obstacles: HashMap<u64, Obstacle>,
}

impl Log {
    /// Segments that the cleaner leaves alone since this process opened the log, and why.
    pub fn obstacles(&self) -> Vec<(u64, Obstacle)> {
        self.cleaner().obstacles.iter().map(|(sequence, why)| (*sequence, *why)).collect()
    }

    /// Does the cleaner leave that segment alone?
    pub(super) fn has_obstacle(&self, sequence: u64) -> bool {
        self.cleaner().obstacles.contains_key(&sequence)
    }

    fn cleaner(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.cleaner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a segment, if fewer than `wanted` are ready; one without live blocks in any case. `go_on` is asked between
    /// batches of blocks of a MiB, and may sleep.
    pub fn clean(
        &self,
        session: &Session,
        files: &dyn Files,
        wanted: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Cleaned> {
        assert_may_wait();
        self.check_failed()?;
        let counts = self.counts(session)?;
        let best = self.choose(session)?;
        // An empty segment costs nothing.
        if let Some((slot, segment)) = best.filter(|(_, segment)| segment.live == 0) {
            return self.end(session, files, slot, segment, (0, 0), None);
        }
        match best {
            _ if counts.ready >= wanted => Ok(Cleaned::Asleep(Reason::Enough)),
            _ if counts.ready + counts.freed >= wanted => Ok(Cleaned::Asleep(Reason::AwaitingCommit)),
            None => Ok(Cleaned::Asleep(Reason::NothingToGain)),
            Some((slot, segment)) => match self.clean_one(session, files, slot, segment, 1, go_on) {
                Err(Error::NoSpace) if counts.freed > 0 => Ok(Cleaned::Asleep(Reason::AwaitingCommit)),
                Err(Error::NoSpace) => Ok(Cleaned::Asleep(Reason::NoRoom)),
                done => done,
            },
        }
    }

    /// Frees a segment of a region that leaves, whether or not that gains anything.
    pub fn clean_leaving(
        &self,
        session: &Session,
        files: &dyn Files,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Cleaned> {
        assert_may_wait();
        self.check_failed()?;
        match self.next_to_leave(session)? {
            Some((slot, segment)) if segment.live == 0 => self.end(session, files, slot, segment, (0, 0), None),
            Some((slot, segment)) => {
                let least = self.required_replicas(session, slot, &segment)?;
                match self.clean_one(session, files, slot, segment, least, go_on) {
                    Err(Error::NoSpace) => Ok(Cleaned::Asleep(Reason::NoRoom)),
                    done => done,
                }
            }
            None => Ok(Cleaned::Asleep(Reason::NothingToGain)),
        }
    }

    /// The best segment to clean next.
    pub(super) fn choose(&self, session: &Session) -> Result<Option<(u32, Segment)>> {
        let table = self.at.table(session.memory());
        let all = session.read(KEY, || table.head())?;
        let areas = self.areas();
        // Content on a disk that does not answer cannot be moved now.
        let is_late = |slot| areas.of(slot).and_then(|area| area.region.as_ref()).is_some_and(|r| r.is_late());
        let is_left = |slot: u32, segment: &Segment| {
            let is_set_aside = self.has_obstacle(segment.sequence) || self.under_way().has(segment.sequence);
            is_set_aside || segment.live > 0 && segment.replica.is_none() && is_late(slot)
        };
        let mut victims = self.victims.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, agenda) = &mut *victims;
        // Blocks that died since may be in segments that are not in the list.
        if !agenda.counts(&()) || *live != all.live && agenda.may_be_made_again() {
            let (began, mut looked, mut found) = (self.clock.instant(), 0, Vec::new());
            for slot in session.read(KEY, || table.used_slots())? {
                looked += 1;
                // Each by itself: a choice that is a moment old is as good.
                let segment = session.read(KEY, || table.get(slot))?;
                let score = self.score(&segment, all.clock).filter(|_| !is_left(slot, &segment));
                // The bits of numbers that are not negative are in their order.
                found.extend(score.map(|score| (Reverse(score.to_bits()), slot, segment.sequence)));
            }
            *live = all.live;
            agenda.fill((), (began, looked), found);
        }
        while let Some((slot, sequence)) = agenda.first() {
            let segment = session.read(KEY, || table.get(slot))?;
            let is_one = segment.sequence == sequence && self.score(&segment, all.clock).is_some();
            if is_one && !is_left(slot, &segment) {
                return Ok(Some((slot, segment)));
            }
            agenda.take();
        }
        Ok(None)
    }

    /// `None` if cleaning gains nothing.
    fn score(&self, segment: &Segment, clock: u64) -> Option<f64> {
        let gain = self.blocks.checked_sub(segment.live + summary_blocks(segment.live)).filter(|_| segment.live > 0);
        match segment.state {
            SlotState::Full if segment.live == 0 => Some(f64::INFINITY),
            // Its cleaning was begun, or it is to be used no more.
            SlotState::Cleaning => Some(f64::MAX),
            SlotState::Full if segment.failed => Some(f64::MAX),
            SlotState::Full if gain? * GAIN >= self.blocks => {
                let dead = f64::from(self.blocks - segment.live);
                Some(dead / f64::from(segment.live) * (clock.saturating_sub(segment.stamp) as f64 + 1.0).sqrt())
            }
            _ => None,
        }
    }

    /// Moves these blocks, as the cleaner would, to where their files are to lie; returns how many. To be called with
    /// the long lock [`CLEANING`](super::table::CLEANING).
    pub fn rehome(&self, session: &Session, files: &dyn Files, blocks: &[(Owner, Place)]) -> Result<u32> {
        assert_may_wait();
        self.check_failed()?;
        let mut of_segments = BTreeMap::<u64, Vec<Place>>::new();
        for (_, place) in blocks {
            of_segments.entry(place.sequence()).or_default().push(*place);
        }
        let (mut batch, mut stamp) = (Batch::default(), 0);
        for (sequence, places) in of_segments {
            let Ok((slot, segment)) = self.find(session, Place::new(sequence, 0)) else { continue };
            let contents = self.contents(session, slot, &segment)?;
            let wanted: std::collections::HashSet<Place> = places.into_iter().collect();
            let is_wanted = |place| wanted.contains(&place);
            batch.is_of(&segment);
            self.gather(session, files, contents.live_of(files, &is_wanted).collect::<Result<_>>()?, &mut batch)?;
            stamp = segment.stamp.max(stamp);
        }
        let (moved, newer) = self.move_all(session, files, batch, stamp)?;
        Ok(moved + newer)
    }

    fn clean_one(
        &self,
        session: &Session,
        files: &dyn Files,
        slot: u32,
        segment: Segment,
        least: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Cleaned> {
        let sequence = segment.sequence;
        // 1.
        self.change(session, |change| match change.table().find(sequence)? {
            Some((slot, now)) if now.state == SlotState::Full => {
                change.put(slot, &Segment { state: SlotState::Cleaning, ..now })
            }
            _ => Ok(()),
        })?;
        // 2.
        let contents = self.contents(session, slot, &segment)?;
        let mut batch = Batch { least, ..Batch::default() };
        batch.is_of(&segment);
        let mut live = contents.live(files);
        loop {
            let some = live.by_ref().take(BATCH).collect::<Result<Vec<Live>>>()?;
            if some.is_empty() {
                break;
            }
            self.gather(session, files, some, &mut batch)?;
            if !go_on() {
                return Ok(Cleaned::Interrupted);
            }
        }
        let why = match batch.unreadable {
            0 if contents.is_whole => None,
            0 => Some(Obstacle::Unknown),
            unreadable => Some(Obstacle::Unreadable(unreadable)),
        };
        let moved = self.move_all(session, files, batch, segment.stamp)?;
        self.end(session, files, slot, segment, moved, why)
    }

    /// The first half of step 4, for blocks that step 3 found live.
    fn gather(&self, session: &Session, files: &dyn Files, blocks: Vec<Live>, batch: &mut Batch) -> Result<()> {
        let mut live = Vec::new();
        for Live { place, entry, fate } in blocks {
            match fate {
                Fate::Dead => {}
                Fate::Live => live.push((place, entry)),
                Fate::Newer(content, number) => {
                    batch.add(place, Block { owner: entry.owner, content, moved: None }, Some(number));
                }
            }
        }
        // All reads are under way before the first is waited for.
        let slot = live.first().and_then(|(place, _)| self.find(session, *place).ok());
        let piece = slot.map_or(BATCH as u32, |(slot, _)| self.piece(session, &[slot]));
        let runs = Run::of(live.iter().map(|(place, _)| *place), piece);
        let (mut rest, mut begun) = (&live[..], std::collections::VecDeque::new());
        let at_a_time = if Background::is() { 1 } else { usize::MAX };
        for run in runs {
            let (these, later) = rest.split_at(run.blocks as usize);
            rest = later;
            begun.push_back((self.begin_read(session, run), these));
            while begun.len() >= at_a_time {
                let Some((one, these)) = begun.pop_front() else { break };
                self.end_read(session, files, one, these, batch)?;
            }
        }
        begun.into_iter().try_for_each(|(one, these)| self.end_read(session, files, one, these, batch))
    }

    fn begin_read(&self, session: &Session, run: Run) -> Begun {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        Begun { run, reading: self.read(session, run, memory) }
    }

    fn end_read(
        &self,
        session: &Session,
        files: &dyn Files,
        begun: Begun,
        blocks: &[(Place, Entry)],
        batch: &mut Batch,
    ) -> Result<()> {
        let Begun { run, reading } = begun;
        match reading.and_then(|reading| reading.wait(self, session)) {
            Ok(memory) => {
                for (n, (place, entry)) in (0u64..).zip(blocks) {
                    let content = memory.slice(n * BLOCK..(n + 1) * BLOCK);
                    let moved = Some((entry.crc, entry.version));
                    batch.add(*place, Block { owner: entry.owner, content, moved }, None);
                }
                Ok(())
            }
            // One by one: unreadable blocks stay where they are.
            Err(Error::Damaged { .. } | Error::Device(_)) if run.blocks > 1 => blocks.iter().try_for_each(|one| {
                let alone = self.begin_read(session, Run::one(one.0));
                self.end_read(session, files, alone, &[*one], batch)
            }),
            Err(Error::Device(e)) if e.class.is_final() => Err(e.into()),
            Err(e @ (Error::Damaged { .. } | Error::Device(_))) => {
                tracing::error!("cleaning: {e}");
                let owners: Vec<_> = blocks.iter().map(|(place, entry)| (entry.owner, *place)).collect();
                let redirtied = files.redirty(&owners)?;
                batch.unreadable += redirtied.iter().filter(|redirtied| !**redirtied).count() as u32;
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// The second half of step 4, and step 5; returns how many blocks were moved, and how many newer versions were
    /// written.
    fn move_all(&self, session: &Session, files: &dyn Files, batch: Batch, stamp: u64) -> Result<(u32, u32)> {
        if batch.blocks.is_empty() {
            return Ok((0, 0));
        }
        // Moved blocks get the class that their file wants by now.
        let mut writer = self.sorted(session, Head::Cold, Some(stamp)).due(batch.due).least(batch.least);
        for (block, (owner, from, _)) in batch.blocks.into_iter().zip(&batch.moves) {
            writer.push(files.kind(*owner, *from)?, block)?;
        }
        let places = writer.finish()?;
        let to =
            |((owner, from, newer), to): ((Owner, Place, Option<u64>), &Place)| Move { owner, from, to: *to, newer };
        let moves: Vec<Move> = batch.moves.into_iter().zip(&places).map(to).collect();
        let done = files.relocate(&moves);
        let is_done = |n: usize| done.as_ref().is_ok_and(|done| done.get(n) == Some(&true));
        let (moved, undone): (Vec<_>, Vec<_>) = moves.iter().enumerate().partition(|(n, _)| is_done(*n));
        // After a failure it is unknown which were linked: all of them count, and the cleaner of their new segment finds
        // out.
        if done.is_ok() {
            let undone: Vec<Place> = undone.into_iter().map(|(_, undone)| undone.to).collect();
            self.give_up(session, &undone)?;
        }
        done?;
        let newer = moved.iter().filter(|(_, moved)| moved.newer.is_some()).count();
        Ok(((moved.len() - newer) as u32, newer as u32))
    }

    /// 6.
    fn end(
        &self,
        session: &Session,
        files: &dyn Files,
        slot: u32,
        segment: Segment,
        (moved, newer): (u32, u32),
        why: Option<Obstacle>,
    ) -> Result<Cleaned> {
        let sequence = segment.sequence;
        // A block that counts and was not moved may be under way to the disk, or its writer is dead.
        let is_quiet = self.is_quiet(session, sequence)?;
        let mut is_under_way = false;
        let freed = self.change(session, |change| {
            is_under_way = false;
            let now = change.table().get(slot)?;
            if now.sequence != sequence || !matches!(now.state, SlotState::Full | SlotState::Cleaning) {
                return Ok(true);
            }
            if now.live > 0 && (why.is_some() || now.state == SlotState::Full) {
                change.put(slot, &Segment { state: SlotState::Full, ..now })?;
                return Ok(false);
            }
            if now.live > 0 && !is_quiet {
                is_under_way = true;
                change.put(slot, &Segment { state: SlotState::Full, ..now })?;
                return Ok(false);
            }
            // Blocks that still count were never linked: their writer is dead, or has to write them again.
            change.free(slot, &now, files.epoch())?;
            Ok(true)
        })?;
        match why {
            _ if is_under_way => {
                self.under_way().add(sequence, SOON);
                Ok(Cleaned::NotFreed { sequence, why: Obstacle::UnderWay })
            }
            Some(why) if !freed => {
                self.cleaner().obstacles.insert(sequence, why);
                Ok(Cleaned::NotFreed { sequence, why })
            }
            _ => Ok(Cleaned::Freed { sequence, moved, newer }),
        }
    }
}

/// A run of live blocks that is being read.
struct Begun {
    run: Run,
    reading: Result<Reading>,
}

/// Blocks to be written, and where each comes from.
#[derive(Default)]
struct Batch {
    blocks: Vec<Block>,
    moves: Vec<(Owner, Place, Option<u64>)>,
    unreadable: u32,
    /// When the first replicas of the lazy blocks were due.
    due: Option<u32>,
    /// Replicas that the blocks are to have at least.
    least: u64,
}

impl Batch {
    /// The batch has blocks of this segment.
    fn is_of(&mut self, segment: &Segment) {
        if storage_class::is_lazy(segment.class) {
            self.due = Some(self.due.map_or(segment.due, |due| due.min(segment.due)));
        }
    }

    fn add(&mut self, place: Place, block: Block, newer: Option<u64>) {
        self.moves.push((block.owner, place, newer));
        self.blocks.push(block);
    }
}
