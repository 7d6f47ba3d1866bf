//! Background work on the disks of a pool: lacking replicas, regions that leave or come back, balance, scrubbing.
//!
//! The process with the role of maintenance does it, a piece at a time: first the work that makes content safe, then requested work, then
//! work that improves the placement. Its thread is one of the [background](Background): its requests wait until a region is nearly idle,
//! or go slowly ([`exraid::region::throttle`]). So do those of a process that has asked for such work and waits for it.

use std::cell::Cell;

use exraid::{Background, Whereabouts};
use pram::budget::Budget;

use super::clean::Cleaning;
use super::{looking, LEAST};
use crate::error::Result;
use crate::node::Fs;
use crate::ubj::{Count, Union};
use ilfs::clean::{Cleaned, Reason};
use ilfs::files::Files;
use ilfs::replicas::Replicated;
use ilfs::scrub::{Scrubbed, Wrong};
use ilfs::table::{Cause, CLEANING};

/// The result of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    Done,
    Nothing,
}

/// Slots that were given up and are made free after a segment was moved, at most.
const SOME: u64 = 8;
impl Union {
    /// A piece of the work that makes content safe: lacking replicas, regions that leave.
    pub fn maintain(&self, fs: &Fs, budget: &mut Budget) -> Result<Piece> {
        let (rate, _background) = (self.log().tasks(fs.session())?.rate, Background::begin());
        budget.begin(rate);
        let copied = self.make_next_replica(fs, &mut |bytes| {
            budget.add(bytes);
            budget.goes_on()
        });
        match copied? {
            Replicated::Made { .. } | Replicated::Dropped { .. } => {
                budget.rest(LEAST);
                return Ok(Piece::Done);
            }
            Replicated::Nothing | Replicated::NoRoom | Replicated::Interrupted => {}
        }
        if !budget.goes_on() || self.log().leavers(fs.session())?.is_empty() {
            return Ok(Piece::Nothing);
        }
        budget.begin(rate);
        let alone = fs.session().long_lock(CLEANING)?;
        let cleaned = self.log().clean_leaving(fs.session(), &Cleaning::of(fs, self), &mut || {
            budget.add(1 << 20);
            budget.goes_on()
        })?;
        drop(alone);
        budget.rest(LEAST);
        Ok(match cleaned {
            Cleaned::Freed { .. } => Piece::Done,
            // Freed room waits for a commit: without that there is nothing to wait for.
            Cleaned::Asleep(Reason::NoRoom | Reason::NothingToGain) if self.log().counts(fs.session())?.freed > 0 => {
                self.end_epoch_and_reclaim(fs.session())?;
                Piece::Nothing
            }
            Cleaned::NotFreed { .. } | Cleaned::Asleep(_) | Cleaned::Interrupted => Piece::Nothing,
        })
    }

    /// A piece of the requested work: balance, then scrubbing. `wrong` gets the findings of scrubbing.
    pub fn work_as_asked(&self, fs: &Fs, budget: &mut Budget, wrong: &mut dyn FnMut(&[Wrong])) -> Result<Piece> {
        let (session, tasks) = (fs.session(), self.log().tasks(fs.session())?);
        if tasks.paused {
            return Ok(Piece::Nothing);
        }
        if tasks.balance {
            budget.begin(tasks.rate);
            let moved = self.balance_next(fs, &mut |bytes| {
                budget.add(bytes);
                budget.goes_on()
            })?;
            if moved.is_some() {
                budget.rest(LEAST);
                return Ok(Piece::Done);
            }
            if budget.goes_on() {
                self.log().set_tasks(session, &|tasks| tasks.balance = false)?;
            }
        }
        match tasks.scrub {
            true => self.scrub_next(fs, budget, tasks.rate, wrong),
            false => Ok(Piece::Nothing),
        }
    }

    /// Moves one segment to a region with less, and returns the bytes that were copied; none if nothing has to move.
    pub fn balance_next(&self, fs: &Fs, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Option<u64>> {
        let (session, _background) = (fs.session(), Background::begin());
        let alone = session.long_lock(CLEANING)?;
        let copied = self.log().balance_next(session, &Cleaning::of(fs, self), go_on)?;
        drop(alone);
        match copied {
            Replicated::Made { bytes, .. } => {
                self.reclaim(session, SOME)?;
                Ok(Some(bytes))
            }
            Replicated::Dropped { .. } => Ok(Some(0)),
            Replicated::NoRoom => {
                self.end_epoch_and_reclaim(session)?;
                Ok(None)
            }
            Replicated::Nothing | Replicated::Interrupted => Ok(None),
        }
    }

    fn scrub_next(&self, fs: &Fs, budget: &mut Budget, rate: u64, wrong: &mut dyn FnMut(&[Wrong])) -> Result<Piece> {
        let session = fs.session();
        let (_, began) = self.log().scrubbed(session)?;
        let Some((sequence, slot)) = self.log().next_to_scrub(session)? else {
            self.log().set_tasks(session, &|tasks| tasks.scrub = false)?;
            self.log().set_scrubbed(session, 0, began)?;
            return Ok(Piece::Nothing);
        };
        match self.scrub_one(fs, sequence, slot, budget, rate) {
            Ok(scrubbed) => wrong(&scrubbed.wrong),
            // The others are looked at all the same.
            Err(e @ (ilfs::Error::Device(_) | ilfs::Error::Damaged { .. } | ilfs::Error::Missing(_))) => {
                tracing::error!("scrub: segment {sequence}: {e}");
            }
            Err(e) => return Err(e.into()),
        }
        self.log().set_scrubbed(session, sequence + 1, began)?;
        Ok(Piece::Done)
    }

    /// Verifies a segment, `rate` bytes in a second, or with no limit if it is 0: see [`ilfs::scrub`].
    pub fn scrub_one(
        &self,
        fs: &Fs,
        sequence: u64,
        slot: u32,
        budget: &mut Budget,
        rate: u64,
    ) -> ilfs::Result<Scrubbed> {
        budget.begin(rate);
        let scrubbed = {
            let (_background, _alone) = (Background::begin(), fs.session().long_lock(CLEANING)?);
            self.scrub_alone(fs, sequence, slot)?
        };
        budget.add(scrubbed.bytes);
        budget.rest(LEAST);
        Ok(scrubbed)
    }

    /// The cleaner's lock is held. For blocks without a readable summary, and for unreadable segments, files tell what they have there.
    fn scrub_alone(&self, fs: &Fs, sequence: u64, slot: u32) -> ilfs::Result<Scrubbed> {
        let mut scrubbed = match self.log().scrub(fs.session(), &Cleaning::of(fs, self), slot) {
            Err(ilfs::Error::Device(e)) => {
                tracing::error!("scrub: segment {sequence}: {e}");
                Scrubbed { unknown: std::iter::once(0..u32::MAX).collect(), ..Scrubbed::default() }
            }
            scrubbed => scrubbed?,
        };
        if !scrubbed.unknown.is_empty() {
            scrubbed.wrong.extend(self.look_at_unknown(fs, sequence, &scrubbed.unknown)?);
        }
        Ok(scrubbed)
    }

    /// Takes back regions that were missing, and fences those whose disks are gone. A disk whose file was deleted can be read while
    /// a process has it open: its content moves to other regions, as soon as some have room.
    pub fn look_after_regions(&self, fs: &Fs) -> Result<()> {
        let (session, log) = (fs.session(), self.log());
        for region in self.regions() {
            let (number, name) = (region.number(), region.name());
            match region.whereabouts() {
                Whereabouts::There => {}
                Whereabouts::Away => {
                    log.fence(session, number, Cause::Missing, &format!("{name} is not there any more"))?;
                }
                Whereabouts::Deleted => {
                    let why = format!(
                        "{name} was deleted while it was in use. What it holds is there until the pool is closed, and is moved to other regions as \
                         far as they have room: `conquest region add` gives the pool one; keep it mounted until `conquest status` shows \
                         nothing leaving"
                    );
                    log.fence_deleted(session, number, &why)?;
                }
            }
        }
        self.log().take_back(session)?;
        self.redirty_doubtful(fs)?;
        Ok(())
    }

    /// Rewrites a file's content on disks, in its order, in the best places now; returns the number of moved blocks.
    pub fn reorganise(&self, fs: &Fs, ino: u64, go_on: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let (mut from, moved) = (0, Cell::new(0));
        let mut budget = Budget::pieces(fs.session().clock(), looking(|| go_on(moved.get())));
        loop {
            budget.begin(self.log().tasks(fs.session())?.rate);
            let (blocks, next) = self.pages_from(fs, ino, from)?;
            if !blocks.is_empty() {
                let (_background, _alone) = (Background::begin(), fs.session().long_lock(CLEANING)?);
                let done = self.log().rehome(fs.session(), &Cleaning::of(fs, self), &blocks);
                drop((_alone, _background));
                match done {
                    Ok(done) => {
                        moved.set(moved.get() + u64::from(done));
                        budget.add(u64::from(done) * ilfs::place::BLOCK);
                        if !budget.rest(LEAST) {
                            return Ok(moved.get());
                        }
                    }
                    Err(ilfs::Error::NoSpace) => {
                        self.free(fs, true)?;
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            let is_end = next.is_none_or(|next| next <= from);
            if is_end || !budget.goes_on() {
                return Ok(moved.get());
            }
            from = next.unwrap_or(from);
        }
    }

    /// Blocks that were copied so that there is another copy of them, by all processes.
    pub fn copied(&self, session: &pram::Session) -> u64 {
        session.runtime().sessions().iter().map(|one| one.counts[Count::Copied as usize]).sum()
    }

    /// The owner of a block that was found wrong, and where in the file it lies now.
    pub fn page_now(&self, fs: &Fs, one: &Wrong) -> bool {
        let files = Cleaning::of(fs, self);
        files.fate(one.owner, one.place).is_ok_and(|fate| !matches!(fate, ilfs::files::Fate::Dead))
    }
}
