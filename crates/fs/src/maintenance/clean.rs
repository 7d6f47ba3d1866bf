//! The answers of files to the cleaner, and when it has to free segments.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use exraid::Background;
use pram::budget::Budget;
use pram::Session;

use super::{looking, LEAST};
use crate::attr::{Ino, Kind};
use crate::error::Error;
use crate::file::{self, Content};
use crate::node::Fs;
use crate::retry::with_memory;
use crate::ubj::inodes::regular;
use crate::ubj::{count, Count, Union};
use ilfs::clean::{Cleaned, Obstacle, Reason};
use ilfs::files::{Fate, Files, Move};
use ilfs::part::Owner;
use ilfs::replicas::Replicated;
use ilfs::sorted;
use ilfs::table::{CLEANING, ORDERING};
use ilfs::Place;

/// Pages that one transaction relocates.
const PIECE: usize = 128;
/// Pages that give up their places in one transaction.
const KEPT: usize = 64;
/// Segments that are cleaned before it counts that no more are free than before; and how long it is not tried then.
const GAINLESS: u32 = 64;
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// How long it waits for writes that are under way to regions that leave.
const LATER: Duration = Duration::from_millis(250);
/// So few free segments are too few to keep others for saving the pool.
const SCARCE: u64 = 3;
/// Segments that are made free at a time.
const RECLAIMED: u64 = 64;
/// How often to look whether an epoch has ended that another process is about to end.
const LOOKS: u32 = 1000;
const GLANCE: Duration = Duration::from_millis(1);

/// Files, as the cleaner of one segment sees them.
pub(crate) struct Cleaning<'f> {
    fs: &'f Fs,
    union: &'f Union,
    /// Of files whose pages have moved: the page that leads to each place.
    moved: RefCell<HashMap<u64, HashMap<Place, u64>>>,
    /// Of the file that was asked for last.
    kind: Cell<Option<(Ino, sorted::Kind)>>,
}

impl<'f> Cleaning<'f> {
    pub fn of(fs: &'f Fs, union: &'f Union) -> Cleaning<'f> {
        Cleaning { fs, union, moved: RefCell::default(), kind: Cell::default() }
    }
}

impl Cleaning<'_> {
    /// The page of a file that may lead to a place that was written for `page`.
    fn page_of(&self, owner: Owner, place: Place, content: &Content) -> crate::Result<Option<u64>> {
        if !content.has_moved() {
            return Ok(Some(owner.page));
        }
        let mut moved = self.moved.borrow_mut();
        let pages = match moved.entry(owner.ino) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let mut pages = HashMap::new();
                file::places(self.fs.memory(), content, &mut |page, place| {
                    if let Some(place) = place {
                        pages.insert(place, page);
                    }
                })?;
                new.insert(pages)
            }
        };
        Ok(pages.get(&place).copied())
    }

    /// Does anything lead from that file to the place?
    fn leads(&self, owner: Owner, place: Place) -> crate::Result<bool> {
        let look = || {
            let raw = match self.fs.raw(owner.ino) {
                Ok(raw) => raw,
                Err(e) if matches!(e.errno(), rustix::io::Errno::STALE | rustix::io::Errno::NOENT) => return Ok(false),
                Err(e) => return Err(e),
            };
            if raw.kind != Kind::Regular as u8 || raw.generation != owner.generation {
                return Ok(false);
            }
            let content = crate::node::content_of(owner.ino, &raw);
            // In a torn look the map would be wrong too, and is made anew.
            self.moved.borrow_mut().clear();
            match self.page_of(owner, place, &content)? {
                Some(page) => Ok(file::leads_to(self.fs.memory(), &content, page, place)?.is_some()),
                None => Ok(false),
            }
        };
        self.fs.session().read(owner.ino, look)
    }

    fn relocate_some(&self, moves: &[Move]) -> crate::Result<Vec<bool>> {
        let mut op = self.fs.session().begin()?;
        let owner = moves[0].owner;
        op.lock(&[owner.ino, ilfs::KEY])?;
        if op.is_long_locked(ORDERING) {
            return Err(Error::Host { what: "cleaning".into(), errno: rustix::io::Errno::AGAIN });
        }
        let Some(node) = regular(self.fs, owner.ino)?.filter(|node| node.raw.generation == owner.generation) else {
            return Ok(vec![false; moves.len()]);
        };
        let content = node.content();
        self.moved.borrow_mut().clear();
        let mut tx = op.tx()?;
        let mut edit = self.fs.edit(&mut tx);
        let mut done = Vec::with_capacity(moves.len());
        for one in moves {
            let can = self.union.log().can_link(&mut edit, one.to)?;
            done.push(match self.page_of(one.owner, one.from, &content)?.filter(|_| can) {
                Some(page) => file::relocate(&mut edit, &content, page, one.from, one.to)?,
                None => false,
            });
        }
        if !content.has_moved() && done.contains(&true) {
            file::compact(&mut edit, &content, moves.iter().map(|one| one.owner.page))?;
        }
        edit.finish()?;
        tx.commit()?;
        Ok(done)
    }
}

impl Cleaning<'_> {
    /// Blocks of one file.
    fn redirty_some(&self, blocks: &[(Owner, Place)]) -> crate::Result<Vec<bool>> {
        let mut op = self.fs.session().begin()?;
        let owner = blocks[0].0;
        op.lock(&[owner.ino, ilfs::KEY])?;
        // Another operation is giving pages of the file other numbers, and looks at their entries: try again later.
        if op.is_long_locked(ORDERING) {
            return Ok(vec![false; blocks.len()]);
        }
        let Some(node) = regular(self.fs, owner.ino)?.filter(|node| node.raw.generation == owner.generation) else {
            return Ok(vec![false; blocks.len()]);
        };
        let content = node.content();
        self.moved.borrow_mut().clear();
        let mut tx = op.tx()?;
        let mut edit = self.fs.edit(&mut tx);
        let mut redirtied = Vec::with_capacity(blocks.len());
        for (owner, place) in blocks {
            redirtied.push(match self.page_of(*owner, *place, &content)? {
                Some(page) => file::redirty(&mut edit, &content, page, *place)?,
                None => false,
            });
        }
        edit.finish()?;
        tx.commit()?;
        Ok(redirtied)
    }
}

impl Files for Cleaning<'_> {
    /// Newer versions that have no place have none of their page's places either: the block there is dead.
    fn fate(&self, owner: Owner, place: Place) -> ilfs::Result<Fate> {
        Ok(if self.leads(owner, place)? { Fate::Live } else { Fate::Dead })
    }

    fn relocate(&self, moves: &[Move]) -> ilfs::Result<Vec<bool>> {
        let mut done = Vec::with_capacity(moves.len());
        let of_one_file = moves.chunk_by(|a, b| (a.owner.ino, a.owner.generation) == (b.owner.ino, b.owner.generation));
        for some in of_one_file.flat_map(|of_one| of_one.chunks(PIECE)) {
            done.extend(with_memory(self.fs.session(), || self.relocate_some(some))?);
        }
        Ok(done)
    }

    fn redirty(&self, blocks: &[(Owner, Place)]) -> ilfs::Result<Vec<bool>> {
        let mut redirtied = Vec::with_capacity(blocks.len());
        let of_one_file = blocks.chunk_by(|a, b| (a.0.ino, a.0.generation) == (b.0.ino, b.0.generation));
        for some in of_one_file.flat_map(|of_one| of_one.chunks(KEPT)) {
            redirtied.extend(with_memory(self.fs.session(), || self.redirty_some(some))?);
        }
        if redirtied.contains(&true) {
            let saved = redirtied.iter().filter(|redirtied| **redirtied).count();
            tracing::warn!("{saved} blocks that cannot be read where they lie are in memory, and are written anew");
            self.union.wake();
        }
        Ok(redirtied)
    }

    fn kind(&self, owner: Owner, _: Place) -> ilfs::Result<sorted::Kind> {
        if let Some((_, kind)) = self.kind.get().filter(|(ino, _)| *ino == owner.ino) {
            return Ok(kind);
        }
        let kind = self.union.kind_of(self.fs, owner.ino)?;
        self.kind.set(Some((owner.ino, kind)));
        Ok(kind)
    }

    fn epoch(&self) -> u64 {
        // A page that cannot be read now cannot be written either.
        self.fs.session().epoch().unwrap_or(u64::MAX)
    }
}

impl Union {
    /// Makes segments free until `wanted` are, as far as that can be; why it ended. `commits`: may it wait for a commit?
    pub fn free_segments(
        &self,
        fs: &Fs,
        wanted: u64,
        commits: bool,
        go_on: &mut dyn FnMut() -> bool,
    ) -> ilfs::Result<Reason> {
        let (session, log, mut without_gain) = (fs.session(), self.log(), 0);
        // An operation that waits for room does not wait for work that gives way.
        if !Background::is() {
            log.unthrottle();
        }
        let _alone = session.long_lock(CLEANING)?;
        // A segment that cleaning gains nothing for, since others refill as fast or it gets no denser, is not cleaned again and again.
        let (mut most, mut since) = (0, 0);
        if self
            .gained_nothing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some_and(|at| session.clock().since(at) < RETRY_AFTER)
        {
            return Ok(Reason::NothingToGain);
        }
        loop {
            let reclaimed = self.reclaim(session, RECLAIMED)?;
            if reclaimed == RECLAIMED {
                continue;
            }
            let files = Cleaning::of(fs, self);
            match log.clean(session, &files, wanted, go_on)? {
                Cleaned::Freed { moved, newer, .. } => {
                    count(session, Count::Moved, u64::from(moved + newer));
                    count(session, Count::Freed, 1);
                    let counts = log.counts(session)?;
                    let gained = counts.ready + counts.freed;
                    (most, since) = if gained > most { (gained, 0) } else { (most, since + 1) };
                    if since > GAINLESS {
                        *self.gained_nothing.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(session.clock().instant());
                        return Ok(Reason::NothingToGain);
                    }
                }
                Cleaned::NotFreed { why: Obstacle::UnderWay, .. } => {}
                Cleaned::NotFreed { sequence, why } => tracing::error!("segment {sequence} cannot be freed: {why:?}"),
                Cleaned::Asleep(Reason::AwaitingCommit) if commits && without_gain < 2 => {
                    end_epoch(session)?;
                    let made = self.reclaim(session, u64::MAX)?;
                    without_gain = if made > 0 { 0 } else { without_gain + 1 };
                }
                Cleaned::Asleep(reason) => return Ok(reason),
                Cleaned::Interrupted => return Ok(Reason::Enough),
            }
            if !go_on() {
                return Ok(Reason::Enough);
            }
        }
    }

    /// Makes freed segments free, as far as a commit lets it.
    pub fn end_epoch_and_reclaim(&self, session: &Session) -> crate::Result<()> {
        end_epoch(session)?;
        self.reclaim(session, u64::MAX)?;
        Ok(())
    }

    /// Makes one lacking replica, or drops one: see [`Log::make_next_replica`].
    pub fn make_next_replica(&self, fs: &Fs, go_on: &mut dyn FnMut(u64) -> bool) -> crate::Result<Replicated> {
        let (_background, _alone) = (Background::begin(), fs.session().long_lock(CLEANING)?);
        let copied = self.log().make_next_replica(fs.session(), &Cleaning::of(fs, self), go_on)?;
        if let Replicated::Made { bytes, .. } = copied {
            count(fs.session(), Count::Copied, bytes / ilfs::place::BLOCK);
        }
        Ok(copied)
    }

    /// Moves the content of regions that leave. `go_on` is asked after each segment and while it rests, with the number of moved segments;
    /// returns false if it said no, or if segments are left that cannot be moved: for want of room, or because they cannot be read.
    pub fn move_leaving(&self, fs: &Fs, go_on: &mut dyn FnMut(u64) -> bool) -> crate::Result<bool> {
        let (session, moved, mut without_gain) = (fs.session(), Cell::new(0), 0);
        let mut budget = Budget::pieces(session.clock(), looking(|| go_on(moved.get())));
        let (one_more, _background) = (|| moved.set(moved.get() + 1), Background::begin());
        loop {
            let rate = self.log().tasks(session)?.rate;
            budget.begin(rate);
            // A segment with replicas elsewhere gets another there, and is not moved.
            while let Replicated::Made { .. } | Replicated::Dropped { .. } =
                self.make_next_replica(fs, &mut |bytes| {
                    budget.add(bytes);
                    true
                })?
            {
                one_more();
                without_gain = 0;
                if !budget.rest(LEAST) {
                    return Ok(false);
                }
                budget.begin(rate);
            }
            let _alone = session.long_lock(CLEANING)?;
            let files = Cleaning::of(fs, self);
            match self.log().clean_leaving(session, &files, &mut || true)? {
                Cleaned::Freed { moved: blocks, newer, .. } if blocks + newer > 0 => {
                    budget.add(u64::from(blocks + newer) * ilfs::place::BLOCK);
                    one_more();
                    without_gain = 0;
                }
                Cleaned::Freed { .. } => {
                    one_more();
                    without_gain = 0;
                }
                Cleaned::NotFreed { why: Obstacle::UnderWay, .. } => {}
                Cleaned::NotFreed { sequence, why } => tracing::error!("segment {sequence} cannot be freed: {why:?}"),
                Cleaned::Asleep(Reason::NoRoom) if without_gain < 2 => {
                    end_epoch(session)?;
                    without_gain = if self.reclaim(session, u64::MAX)? > 0 { 0 } else { without_gain + 1 };
                }
                Cleaned::Asleep(Reason::NothingToGain) => {
                    end_epoch(session)?;
                    self.reclaim(session, u64::MAX)?;
                    if self.log().leaving(session, &self.log().leavers(session)?)?.segments == 0 {
                        return Ok(true);
                    }
                    // A segment that may be written to yet follows when that has ended.
                    if !self.log().is_leaving_later(session)? {
                        return Ok(false);
                    }
                    drop(_alone);
                    if !budget.rest(LATER) {
                        return Ok(false);
                    }
                    continue;
                }
                Cleaned::Asleep(_) | Cleaned::Interrupted => return Ok(false),
            }
            drop(_alone);
            if !budget.rest(LEAST) {
                return Ok(false);
            }
        }
    }

    /// Carries all content of files as they are in `fs`, which does not change: see [`ilfs::content_stream`].
    pub fn carry(
        &self,
        fs: &Fs,
        put: ilfs::content_stream::Put,
        progress: &mut dyn FnMut(u64, u64),
    ) -> crate::Result<ilfs::content_stream::Carried> {
        Ok(self.log().carry(fs.session(), &Cleaning::of(fs, self), put, progress)?)
    }

    /// Makes up to so many freed segments free; returns how many. Segments that a save needs stay meanwhile, until their room is
    /// wanted: no operation waits for a save.
    pub(super) fn reclaim(&self, session: &Session, most: u64) -> ilfs::Result<u64> {
        let (durable, needed) = (session.epochs()?.durable, session.runtime().needed_from());
        let mut reclaimed = self.log().reclaim(session, needed.map_or(durable, |from| durable.min(from)), most)?;
        if reclaimed == 0 && needed.is_some_and(|from| from < durable) {
            let counts = self.log().counts(session)?;
            if counts.ready < SCARCE && counts.freed > 0 {
                tracing::warn!(
                    "the disks are full: what changed since a save of the pool began is given up, and the save fails"
                );
                session.runtime().take_needed();
                reclaimed = self.log().reclaim(session, durable, most)?;
            }
        }
        if reclaimed > 0 {
            self.room.note_progress();
        }
        Ok(reclaimed)
    }
}

/// Ends the running epoch, and waits until it is durable, so that the segments that it freed can be used.
fn end_epoch(session: &Session) -> crate::Result<()> {
    match backing::of(session) {
        Some(backing) => backing.wait(session)?,
        None => {
            let epoch = session.epoch()?;
            // Another process may be about to end it.
            for _ in 0..LOOKS {
                if session.move_on()? || session.epochs()?.durable > epoch {
                    break;
                }
                std::thread::sleep(GLANCE);
            }
        }
    }
    Ok(())
}
