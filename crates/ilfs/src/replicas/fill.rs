//! Steps 2 and 3 of a replica: choosing the blocks of a segment, and copying them to a slot.

use std::collections::HashSet;
use std::sync::Arc;

use exraid::{Aligned, Buffers, Op as Transfer, Request, LATE};
use pram::Session;

use crate::areas::Lies;
use crate::error::{Error, Result};
use crate::failure::{cause_of, is_gone};
use crate::files::Files;
use crate::live::Contents;
use crate::part::{Owner, Part};
use crate::place::{Place, Run, BLOCK};
use crate::read::Again;
use crate::table::{Segment, KEY};
use crate::Log;

/// The result of filling a replica.
pub(super) enum Filled {
    /// The replica is whole; so many bytes of content were copied.
    Whole(u64),
    Interrupted,
    /// A block that is linked, or may be, cannot be read yet.
    Undecided,
    /// A disk does not give a block that is linked or may be, or is not there. With the linked blocks that can be read.
    Unread(Vec<(Owner, Place)>),
    /// The replica cannot be written.
    Failed(exraid::Error),
}

/// The blocks of a segment that are to be copied.
struct Source<'s> {
    slot: u32,
    segment: &'s Segment,
    /// The replica is to be the only one.
    moves: bool,
    /// Nothing was on its way to the segment before its summaries were read.
    is_finished: bool,
    contents: Contents,
    places: Vec<Place>,
    /// The linked blocks; are they all that count as live?
    linked: HashSet<Place>,
    is_all_linked: bool,
}

/// The blocks that could not be read.
#[derive(Default)]
struct Unread {
    /// Wrong in each replica.
    damaged: Vec<Place>,
    /// A disk may give them later.
    later: Vec<Place>,
}

/// The slot of a replica.
struct Target<'l> {
    log: &'l Log,
    session: &'l Session,
    slot: u32,
    lies: Lies,
}

impl<'s> Source<'s> {
    /// Step 2, for a segment that takes no more parts: its live blocks, or all its blocks if some that count as live are
    /// not linked yet.
    fn of(
        log: &Log,
        session: &Session,
        files: &dyn Files,
        (slot, segment): (u32, &'s Segment),
        moves: bool,
    ) -> Result<Source<'s>> {
        // Before the summaries are read: a part that is under way then may have none yet.
        let is_finished = log.is_finished_by_now(session, segment.sequence);
        let contents = log.contents(session, slot, segment)?;
        let mut places: Vec<Place> = contents.live(files).map(|live| Ok(live?.place)).collect::<Result<_>>()?;
        let (linked, is_all_linked) = (places.iter().copied().collect(), places.len() as u32 >= segment.live);
        if !is_all_linked {
            places = contents.blocks().map(|(place, _)| place).collect();
        }
        places.sort_unstable();
        Ok(Source { slot, segment, moves, is_finished, contents, places, linked, is_all_linked })
    }

    /// The reason not to copy the segment now, if there is one.
    fn obstacle(&self, log: &Log, session: &Session) -> Result<Option<Filled>> {
        if !self.is_all_linked && !self.contents.is_whole {
            // A linked block may have its summary on a disk that gives it later, or nowhere.
            match () {
                () if !self.is_finished => return Ok(Some(Filled::Undecided)),
                () if self.contents.is_cut || !log.are_all_there(session, self.slot, self.segment)? => {
                    return Ok(Some(Filled::Unread(self.owned(&[]))))
                }
                () => {}
            }
        }
        // A write to the slot that is given up may yet be under way.
        let may_be_written = self.moves && !self.is_all_linked && !log.is_quiet(session, self.segment.sequence)?;
        Ok(may_be_written.then_some(Filled::Undecided))
    }

    /// The linked blocks without these, with their owners.
    fn owned(&self, without: &[Place]) -> Vec<(Owner, Place)> {
        let without: HashSet<&Place> = without.iter().collect();
        let is_wanted = |place: &Place| self.linked.contains(place) && !without.contains(place);
        self.contents
            .blocks()
            .filter(|(place, _)| is_wanted(place))
            .map(|(place, entry)| (entry.owner, place))
            .collect()
    }
}

impl Target<'_> {
    fn write(&self, block: u32, content: Buffers) -> exraid::Result<()> {
        self.log.give_way(self.session, &*self.lies.region, content.len());
        let at = self.lies.at + u64::from(block) * BLOCK;
        self.lies.region.ask(Request::write(at, content), LATE).result
    }

    fn write_summary(&self, part: &Part) -> exraid::Result<()> {
        let mut summary = Aligned::zeroed(part.summary_blocks() as usize * BLOCK as usize);
        if let Some(memory) = Arc::get_mut(&mut summary) {
            part.write(&self.lies.identity, memory.bytes_mut());
        }
        self.write(part.block, Buffers::whole(&summary))
    }

    /// Step 3 without its flush: bytes of content that were copied, and the blocks that could not be read; or why it
    /// ended early.
    fn write_all(
        &self,
        source: &Source<'_>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<std::result::Result<(u64, Unread), Filled>> {
        if let Err(e) = source.contents.parts.iter().try_for_each(|part| self.write_summary(part)) {
            return Ok(Err(Filled::Failed(e)));
        }
        let (mut copied, mut unread) = (0, Unread::default());
        let piece = self.log.piece(self.session, &[source.slot, self.slot]);
        for run in Run::of(source.places.iter().copied(), piece) {
            if !go_on(u64::from(run.blocks) * BLOCK) {
                return Ok(Err(Filled::Interrupted));
            }
            for (run, content) in self.log.read_some(self.session, run, &mut unread)? {
                if let Err(e) = self.write(run.first.block(), content) {
                    return Ok(Err(Filled::Failed(e)));
                }
                copied += u64::from(run.blocks) * BLOCK;
            }
        }
        Ok(Ok((copied, unread)))
    }
}

impl Log {
    /// Steps 2 and 3; `moves`: the replica is to be the only one.
    pub(super) fn fill(
        &self,
        session: &Session,
        files: &dyn Files,
        of: (u32, &Segment),
        target: u32,
        moves: bool,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Filled> {
        // 2.
        let source = Source::of(self, session, files, of, moves)?;
        if let Some(obstacle) = source.obstacle(self, session)? {
            return Ok(obstacle);
        }
        // 3.
        let target = Target { log: self, session, slot: target, lies: self.lies(session, target)? };
        let (copied, unread) = match target.write_all(&source, go_on)? {
            Ok(done) => done,
            Err(ended) => return Ok(ended),
        };
        let region = &target.lies.region;
        if let Err(e) = region.ask(Transfer::Flush.into(), LATE).result {
            // Writes of others there may be lost too.
            if !self.fence(session, region.number(), cause_of(&e), &e)? {
                return Err(self.fail(e));
            }
            return Ok(Filled::Failed(e));
        }
        self.judge(session, files, &source, copied, &unread)
    }

    /// Decides whether a replica counts that lacks the unread blocks.
    fn judge(
        &self,
        session: &Session,
        files: &dyn Files,
        source: &Source<'_>,
        copied: u64,
        unread: &Unread,
    ) -> Result<Filled> {
        let Source { slot, segment, moves, is_finished, contents, linked, .. } = source;
        let all: Vec<Place> = unread.damaged.iter().chain(&unread.later).copied().collect();
        let is_linked = |place: &Place| linked.contains(place);
        let lost = self.lost_of(files, contents, all.iter().copied().filter(is_linked).collect())?;
        if !lost.is_empty() {
            tracing::error!("segment {}: {} blocks of it cannot be read", segment.sequence, lost.len());
        }
        // A block that is wrong here may be right in a replica that is not there.
        let may_come_back = !lost.is_empty() && (*moves || !self.are_all_there(session, *slot, segment)?);
        let may_be_written = !is_finished && !all.iter().all(is_linked);
        Ok(match () {
            () if may_come_back || may_be_written => Filled::Undecided,
            () if unread.later.iter().any(|place| lost.contains(place)) => Filled::Unread(source.owned(&all)),
            () => Filled::Whole(copied),
        })
    }

    /// Those of the linked, unreadable blocks that memory does not hold either.
    fn lost_of(&self, files: &dyn Files, contents: &Contents, unread: HashSet<Place>) -> Result<HashSet<Place>> {
        if unread.is_empty() {
            return Ok(unread);
        }
        let blocks = contents.blocks().filter(|(place, _)| unread.contains(place));
        let blocks: Vec<_> = blocks.map(|(place, entry)| (entry.owner, place)).collect();
        let redirtied = files.redirty(&blocks)?;
        Ok(blocks.iter().zip(redirtied).filter(|(_, redirtied)| !redirtied).map(|((_, place), _)| *place).collect())
    }

    pub(crate) fn are_all_there(&self, session: &Session, slot: u32, segment: &Segment) -> Result<bool> {
        let table = self.at.table(session.memory());
        let homes = session.read(KEY, || table.homes(slot, segment))?;
        let mut whole = homes.iter().filter(|home| !home.partial);
        Ok(whole.all(|home| self.area_of(session, home.slot).is_ok_and(|area| area.region.is_some())))
    }

    /// Reads and verifies a run, as far as that is possible; notes the blocks that cannot be read.
    fn read_some(&self, session: &Session, run: Run, unread: &mut Unread) -> Result<Vec<(Run, Buffers)>> {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        match self.read(session, run, memory).and_then(|reading| reading.wait(self, session)) {
            Ok(memory) => Ok(vec![(run, memory)]),
            Err(Error::Device(e)) if is_gone(&e) => Err(e.into()),
            Err(Error::Damaged { .. } | Error::Device(_)) if run.blocks > 1 => {
                let mut some = Vec::new();
                for n in 0..run.blocks {
                    some.extend(self.read_some(session, Run::one(run.place(n)), unread)?);
                }
                Ok(some)
            }
            Err(Error::Damaged { .. } | Error::Device(_)) => {
                match self.read_again(session, run.first)? {
                    Again::Read(memory) => return Ok(vec![(run, memory)]),
                    Again::Damaged => unread.damaged.push(run.first),
                    Again::Unread => unread.later.push(run.first),
                }
                Ok(Vec::new())
            }
            Err(e) => Err(e),
        }
    }
}
