//! Scrubbing: verifies all live content, in each of its replicas, against its checksums, and repairs it from another replica.
//!
//! A replica of a segment with a wrong block is dropped, and another is made from the right ones ([`super::replicas`]). If
//! each replica has another block wrong, these blocks are written anew, and the replicas stay. Within a region that stores
//! its content more than once, the wrong block is rewritten in place. A block that is wrong in all replicas is written
//! anew from memory, in another place. If memory does not have it either, it stays and is reported: reading it fails,
//! and the cleaner does not free its segment.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::PoisonError;

use exraid::{Aligned, Buffers, Class as Failure, Region, Request, Ticket};
use pram::session::assert_may_wait;
use pram::Session;

use super::error::{Error, Result};
use super::failure::is_gone;
use super::files::{Fate, Files};
use super::live::Live;
use super::part::{Owner, Part};
use super::place::{Place, Run, BLOCK};
use super::table::{Segment, SlotState, KEY};
use super::walk::Walk;
use super::Log;

/// Why a block is wrong although its disk has answered.
const SUMMARY: &str = "the summary of its segment is wrong";
const CHECKSUM: &str = "its checksum is wrong";

/// A block that was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub owner: Owner,
    pub place: Place,
    /// The region in which it was found, and the reason.
    pub region: u32,
    pub why: String,
    /// Another replica has it right: reading it succeeds, and this replica is repaired or made anew.
    pub repaired: bool,
    /// The right content was in memory.
    pub from_memory: bool,
}

/// The result of scrubbing a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes of content that were read.
    pub bytes: u64,
    pub wrong: Vec<Wrong>,
    /// Blocks without a summary, in a segment of which not all live blocks are accounted for: a part is being written,
    /// or cannot be read.
    pub unknown: Vec<Range<u32>>,
}

/// The segments that a pass has yet to scrub.
pub struct Left {
    began: u64,
    /// Segments below this number had been scrubbed at the last look.
    from: u64,
    list: VecDeque<u64>,
}

/// One slot of the segment.
struct Look<'a> {
    slot: u32,
    region: u32,
    live: &'a [(Place, Owner, u32)],
}

impl Log {
    /// Sequence numbers and slots of the segments in use, in ascending order.
    pub fn segments_to_scrub(&self, session: &Session) -> Result<Vec<(u64, u32)>> {
        let table = self.at.table(session.memory());
        let mut slots = Vec::new();
        for slot in session.read(KEY, || table.used_slots())? {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.state.is_used() && segment.live > 0 {
                slots.push((segment.sequence, slot));
            }
        }
        slots.sort_unstable();
        Ok(slots)
    }

    /// The next segment to scrub, and its slot, in the pass that is under way ([`Log::scrubbed`]); `None` when it is
    /// over. Segments written meanwhile belong to the next pass.
    pub fn next_to_scrub(&self, session: &Session) -> Result<Option<(u64, u32)>> {
        let (from, began) = self.scrubbed(session)?;
        let mut left = self.scrub_left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.as_ref().is_none_or(|left| left.began != began || from < left.from) {
            let mut list: VecDeque<u64> =
                self.segments_to_scrub(session)?.into_iter().map(|(sequence, _)| sequence).collect();
            list.retain(|sequence| *sequence >= from);
            *left = Some(Left { began, from, list });
        }
        let table = self.at.table(session.memory());
        while let Some((is_past, sequence)) =
            left.as_ref().and_then(|left| left.list.front().map(|sequence| (*sequence < from, *sequence)))
        {
            let found = session.read(KEY, || table.find(sequence))?.filter(|(_, segment)| segment.live > 0);
            match found {
                Some((slot, _)) if !is_past => {
                    left.iter_mut().for_each(|left| left.from = from);
                    return Ok(Some((sequence, slot)));
                }
                _ => left.iter_mut().for_each(|left| _ = left.list.pop_front()),
            }
        }
        *left = None;
        Ok(None)
    }

    /// The slot that a segment has by now.
    pub fn slot_of(&self, session: &Session, sequence: u64) -> Result<Option<u32>> {
        let table = self.at.table(session.memory());
        Ok(session.read(KEY, || table.find(sequence))?.map(|(slot, _)| slot))
    }

    /// Verifies the live blocks of the segment in a slot, in all replicas that are there, and has wrong ones repaired.
    pub fn scrub(&self, session: &Session, files: &dyn Files, slot: u32) -> Result<Scrubbed> {
        assert_may_wait();
        let table = self.at.table(session.memory());
        let segment = session.read(KEY, || table.get(slot))?;
        let mut found = Scrubbed::default();
        if !matches!(segment.state, SlotState::Open | SlotState::Full) || segment.live == 0 {
            return Ok(found);
        }
        let contents = match self.contents(session, slot, &segment) {
            // No replica is there: that is no damage, and reported elsewhere.
            Err(Error::Missing(_)) => return Ok(found),
            contents => contents?,
        };
        let location = |one: Result<Live>| one.map(|live| (live.place, live.entry.owner, live.entry.crc));
        let live: Vec<_> = contents.live(files).map(location).collect::<Result<_>>()?;
        if !contents.is_whole && (live.len() as u64) < u64::from(segment.live) {
            found.unknown = gaps(&contents.parts, segment.used);
        }
        let homes = session.read(KEY, || table.homes(slot, &segment))?;
        let (mut wrong, mut looked): (Vec<(u32, Wrong)>, Vec<u32>) = Default::default();
        for home in homes.iter().filter(|home| !home.partial) {
            let Ok(area) = self.area_of(session, home.slot) else { continue };
            if area.region.is_none() {
                continue;
            }
            let look = Look { slot: home.slot, region: area.number, live: &live };
            found.bytes += live.len() as u64 * BLOCK;
            looked.push(home.slot);
            found.wrong.extend(self.mend_summaries(session, home.slot, area.number, &contents.parts)?);
            wrong.extend(self.look(session, &look)?.into_iter().map(|one| (home.slot, one)));
        }
        found.wrong.extend(self.put_right(session, files, &segment, looked, wrong)?);
        if found.wrong.iter().any(|one| one.repaired) {
            self.forget_known_lost();
        }
        Ok(found)
    }

    /// Rewrites summaries that one copy in a slot has wrong, or lacks, and another has right.
    fn mend_summaries(&self, session: &Session, slot: u32, number: u32, parts: &[Part]) -> Result<Vec<Wrong>> {
        let (lies, mut wrong) = (self.lies(session, slot)?, Vec::new());
        for copy in 0..lies.region.copies() {
            let mut walk = Walk::new(&*lies.region, lies.identity, lies.at, self.blocks).of_copy(copy);
            for part in parts {
                // A member that is out is no copy, and an unreadable one is reported with its content.
                if walk.part_at(part.block).as_ref() == Some(part) || walk.failed.take().is_some() {
                    continue;
                }
                let Some(first) = part.entries.first() else { continue };
                let mut bytes = vec![0; part.summary_blocks() as usize * BLOCK as usize];
                part.write(&lies.identity, &mut bytes);
                let at = lies.at + u64::from(part.block) * BLOCK;
                let written = lies.region.run(Request::write(at, Buffers::whole(&Aligned::of(&bytes)))).result;
                wrong.push(Wrong {
                    owner: first.owner,
                    place: Place::new(part.sequence, part.block),
                    region: number,
                    why: SUMMARY.into(),
                    repaired: written.is_ok(),
                    from_memory: false,
                });
            }
        }
        if !wrong.is_empty() {
            lies.region.run(exraid::Op::Flush.into()).result?;
        }
        Ok(wrong)
    }

    /// The wrong blocks in one slot; rewrites those that another copy of the region has right.
    fn look(&self, session: &Session, look: &Look<'_>) -> Result<Vec<Wrong>> {
        let (lies, mut wrong) = (self.lies(session, look.slot)?, Vec::new());
        let copies = lies.region.copies();
        let piece = self.piece(session, &[look.slot]);
        for run in Run::of(look.live.iter().map(|(place, ..)| *place), piece) {
            let some: Vec<_> = look
                .live
                .iter()
                .filter(|(place, ..)| {
                    place.sequence() == run.first.sequence()
                        && (run.first.block()..run.first.block() + run.blocks).contains(&place.block())
                })
                .collect();
            let at = lies.at + u64::from(run.first.block()) * BLOCK;
            let read = |copy: Option<usize>| self.read_blocks(session, &*lies.region, copy, at, run.blocks);
            let all: Vec<_> = if copies > 1 { (0..copies).map(Some).collect() } else { vec![None] };
            let found: Vec<_> = all.into_iter().map(read).collect();
            for (n, (place, owner, crc)) in some.iter().enumerate() {
                let is_right = |bytes: &&Vec<u8>| crc32c::crc32c(bytes) == *crc;
                let right = found.iter().filter_map(|blocks| blocks[n].as_ref().ok()).find(is_right).cloned();
                let failure = found.iter().find_map(|blocks| match &blocks[n] {
                    // A member that is out is no copy.
                    Err(e) if e.class == Failure::Gone && copies > 1 => None,
                    Err(e) => Some(why(e)),
                    Ok(bytes) if !is_right(&bytes) => Some(CHECKSUM.into()),
                    Ok(_) => None,
                });
                let Some(why) = failure else { continue };
                let mut repaired = false;
                if let Some(right) = right {
                    let at = lies.at + u64::from(place.block()) * BLOCK;
                    let from = Buffers::whole(&Aligned::of(&right));
                    repaired = lies.region.run(Request::write(at, from)).result.is_ok();
                }
                wrong.push(Wrong {
                    owner: *owner,
                    place: *place,
                    region: look.region,
                    why,
                    repaired,
                    from_memory: false,
                });
            }
        }
        if wrong.iter().any(|one| one.repaired) {
            lies.region.run(exraid::Op::Flush.into()).result?;
        }
        Ok(wrong)
    }

    /// Reads blocks of a region, or of one copy in it; one by one if they cannot be read together.
    fn read_blocks(
        &self,
        session: &Session,
        region: &dyn Region,
        copy: Option<usize>,
        at: u64,
        blocks: u32,
    ) -> Vec<std::result::Result<Vec<u8>, exraid::Error>> {
        let memory = Buffers::whole(&Aligned::zeroed(blocks as usize * BLOCK as usize));
        let request = Request::read(at, memory.clone());
        self.give_way(session, region, memory.len());
        let (done, ticket) = Ticket::new();
        let request = request.with_late(ticket.late());
        match copy {
            None => region.submit(request, done),
            Some(copy) => region.read_copy(copy, request, done),
        }
        let late = || exraid::Error::new(exraid::Class::Timeout, region.name(), "it does not answer");
        let answer = ticket.wait_unless_late();
        let answer = answer.unwrap_or_else(|_| exraid::device::Answer { result: Err(late()), buffers: None });
        match answer.result {
            Ok(()) => {
                let bytes = answer.buffers.unwrap_or(memory).to_vec();
                bytes.chunks(BLOCK as usize).map(|block| Ok(block.to_vec())).collect()
            }
            // Reading them one by one would give no more.
            Err(e) if blocks == 1 || is_gone(&e) => vec![Err(e); blocks as usize],
            Err(_) => {
                let one = |n| self.read_blocks(session, region, copy, at + n * BLOCK, 1);
                (0..u64::from(blocks)).flat_map(one).collect()
            }
        }
    }

    /// Drops a slot with wrong blocks if the other verified slots together have each block right. If no such slot can be
    /// dropped, since each has a block that no other has right, the wrong blocks are written anew from the right ones.
    ///
    /// Only verified slots count: others are not whole yet, or their disk is not there and may never come back.
    fn put_right(
        &self,
        session: &Session,
        files: &dyn Files,
        segment: &Segment,
        mut left: Vec<u32>,
        mut wrong: Vec<(u32, Wrong)>,
    ) -> Result<Vec<Wrong>> {
        let is_odd = |(_, one): &&(u32, Wrong)| !one.repaired;
        let mut odd: Vec<u32> = wrong.iter().filter(is_odd).map(|(slot, _)| *slot).collect();
        odd.dedup();
        let places: HashSet<Place> = wrong.iter().filter(is_odd).map(|(_, one)| one.place).collect();
        let bad: HashSet<(u32, Place)> = wrong.iter().filter(is_odd).map(|(slot, one)| (*slot, one.place)).collect();
        for slot in odd {
            let others: Vec<u32> = left.iter().copied().filter(|other| *other != slot).collect();
            if others.is_empty() || !places.iter().all(|place| others.iter().any(|o| !bad.contains(&(*o, *place)))) {
                continue;
            }
            // A disk that has written other bytes than it should does not fail there. A write that is under way there must not hit
            // another segment.
            let has_answered = |one: &Wrong| [SUMMARY, CHECKSUM].contains(&&*one.why);
            let failed = wrong.iter().any(|(at, one)| *at == slot && !has_answered(one))
                || !self.is_quiet(session, segment.sequence)?;
            if self.change(session, |change| change.drop_replica(segment.sequence, slot, failed, files.epoch()))? {
                wrong.iter_mut().filter(|(at, _)| *at == slot).for_each(|(_, one)| one.repaired = true);
                left = others;
            }
        }
        for (_, one) in wrong.iter_mut().filter(|(_, one)| !one.repaired) {
            if left.iter().any(|slot| !bad.contains(&(*slot, one.place))) {
                one.repaired = match self.rehome(session, files, &[(one.owner, one.place)]) {
                    Ok(moved) => moved > 0 || matches!(files.fate(one.owner, one.place)?, Fate::Dead),
                    Err(Error::NoSpace) => false,
                    Err(e) => return Err(e),
                };
            }
        }
        let mut wrong: Vec<Wrong> = wrong.into_iter().map(|(_, one)| one).collect();
        self.save_from_memory(files, &mut wrong)?;
        Ok(wrong)
    }

    /// Writes blocks that are wrong in all replicas anew from memory, if it holds them.
    fn save_from_memory(&self, files: &dyn Files, wrong: &mut [Wrong]) -> Result<()> {
        let mut lost: Vec<&mut Wrong> = wrong.iter_mut().filter(|one| !one.repaired).collect();
        let blocks: Vec<_> = lost.iter().map(|one| (one.owner, one.place)).collect();
        let mut saved = HashSet::new();
        saved.extend(
            files.redirty(&blocks)?.into_iter().zip(&blocks).filter(|(redirtied, _)| *redirtied).map(|(_, one)| one.1),
        );
        for one in lost.iter_mut().filter(|one| saved.contains(&one.place)) {
            (one.repaired, one.from_memory) = (true, true);
        }
        Ok(())
    }
}

/// Without the place, so that neighbouring wrong blocks form one range.
fn why(e: &exraid::Error) -> String {
    match e.class {
        Failure::Media => "the disk does not give it".into(),
        Failure::Timeout => "the disk did not answer in time".into(),
        Failure::Gone => "the disk is gone".into(),
        _ => e.to_string(),
    }
}

/// The blocks between parts, and behind them.
fn gaps(parts: &[Part], used: u32) -> Vec<Range<u32>> {
    let (mut gaps, mut at) = (Vec::new(), 0);
    for part in parts {
        gaps.extend((at < part.block).then_some(at..part.block));
        at = part.end();
    }
    gaps.extend((at < used).then_some(at..used));
    gaps
}
