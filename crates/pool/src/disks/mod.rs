//! The disks of a pool: files or block devices that hold content beside the persistent RAM.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | what a process has open; what a pool can do without |
//! | [`gather`] | from `pool.toml` to regions: what is wrong with a disk, and what to do |
//! | [`plan`] | what is to become a disk: whether it can, how large it will be |
//! | [`place`] | making them beside what is there; taking their places; removing them |
//! | [`grow`] | a further one, for a pool in use |
//! | [`leave`] | taking one away, from a pool in use |
//! | [`replace`] | a member of a region put back, or another in its place |
//! | [`lease`] | which directory uses a disk |
//! | [`take`] | giving the disks of a pool to another directory |
//! | [`rebuild`] | one process at a time does that |
//! | [`find_moved`] | finding those that are not where `pool.toml` names them |
//! | [`shared`] | what the processes that use the disks agree by |
//! | [`removal_check`] | what would be lost with a region, or a disk |
//! | [`damage`] | what scrubbing has found wrong |
//! | [`domain`] | names of what regions have in common |
//! | [`disks_alone`] | content from the disks alone, where the memory is lost |
//! | [`work`] | what there is to do on them, and what somebody asks for |
//! | `growing`, `losses` | tests: pools that get disks and lose them while in use; which content counts as lost |
//! | [`disks_status`] | what `status` and `region list` tell of them |
//!
//! `pool.toml` names them, and each carries in its label the pool's UUID, by which it is known. A disk is either the
//! pool's own, a file that was made with it and goes with it, or *given*: a device, or a file that was there before. That
//! one outlives the pool, which writes nothing to it but between and into its labels.
//!
//! ```text
//! pool.toml --path--> disk --label--> region --> ilfs::Log
//! ```
//!
//! Which region a disk is of, and in which role, its label tells: `pool.toml` need not be right about it, and cannot be wrong. A region
//! that can do without a disk is used without it, and says so; what only looks at a pool changes nothing of how its regions stand.

pub mod damage;
pub mod disks_alone;
pub mod disks_status;
mod domain;
mod find_moved;
pub mod gather;
pub mod grow;
pub mod lease;
pub mod leave;
#[cfg(test)]
mod losses;
#[cfg(test)]
mod membership;
pub mod place;
pub mod plan;
mod rebuild;
pub mod removal_check;
pub mod replace;
pub mod shared;
pub mod take;
#[cfg(test)]
mod tests;
pub mod work;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exraid::{Disk, Label, Options, Region, Uuid, LATE, PATIENCE};
use pram::Session;

use super::config::{Config, DiskEntry};
use super::paths::{CONFIG, DISK};
use super::rescue::absent::read_config;
use conquest_fs::error::{Error, Result};
use gather::{Broken, Gathered, Missing, Moved, With};
use ilfs::table::Where;
use ilfs::Log;
use shared::Agreement;

/// How long a disk may take to answer whoever opens the pool first.
const SPIN_UP: Duration = Duration::from_secs(10);
/// Segments that a log has if it can: with fewer of them the cleaner has little to choose from.
const MANY_SEGMENTS: u64 = 64;

/// The disks that a process has open.
#[derive(Default)]
pub struct Disks {
    /// Those that no log has: until that is opened all of them.
    pub regions: Vec<Arc<dyn Region>>,
    /// Those that are not used, and why.
    pub missing: Vec<Missing>,
    /// Those of which `pool.toml` is wrong.
    pub moved: Vec<Moved>,
    /// Regions that cannot be used, though disks of them are there.
    pub broken: Vec<Broken>,
    /// Nothing is written to them.
    pub read_only: bool,
    /// With the other processes; behind the regions, which are closed before it ends.
    pub agreement: Option<Arc<Agreement>>,
}

impl Disks {
    /// Opens those of the pool at `dir`; without any that cannot be opened if `tolerant`, and then nothing of them changes in
    /// how regions stand. Else without those that a region can do without, and without whole regions, but where the memory was made anew
    /// and something is to be written.
    ///
    /// # Errors
    /// [`Error::Pool`] for a disk that cannot be used; the text says what to do.
    pub fn open(dir: &Path, config: &Config, session: &Session, tolerant: bool, is_read_only: bool) -> Result<Disks> {
        if config.disks.is_empty() {
            return Ok(Disks::default());
        }
        let agreement = Agreement::open(dir, config, session)?;
        let (uuid, sharing) = (config.uuid_bytes()?, agreement.sharing(dir));
        // Who has it open sees to a disk that does not answer; who comes first waits for one that has to begin to turn.
        let are_others = session.runtime().sessions().len() > 1;
        let patience = if are_others { LATE } else { SPIN_UP };
        let gather_within = |read_only, patience| {
            let options = Options { read_only, patience: Some(patience), ..agreement.options() };
            Gathered::of(dir, config, uuid, &options)
        };
        let gather = |read_only| gather_within(read_only, patience);
        let assemble = |found: Gathered, read_only| found.assemble(dir, read_only, With::Sharing(&sharing));
        let mut found = gather(false);
        // To do without it is not undone in a moment.
        if found.is_late() && found.newly_lost() {
            drop(found);
            found = gather_within(false, patience.max(PATIENCE));
        }
        let (is_lost, to_be_leased) = (found.newly_lost(), found.to_be_leased(dir, uuid)?);
        let disks = match (tolerant, is_lost) {
            (true, false) => assemble(found, false),
            (true, true) => {
                drop(found);
                assemble(gather(true), true)
            }
            (false, false) => assemble(found, false).judged(dir, config, session, is_read_only)?,
            (false, true) => {
                // Labels say that a disk is out as soon as its region is opened without it: not for a pool that is not opened then.
                drop(found);
                drop(assemble(gather(true), true).judged(dir, config, session, is_read_only)?);
                assemble(gather(false), false).judged(dir, config, session, is_read_only)?
            }
        };
        if !is_read_only && !disks.read_only {
            disks.take_leases(dir, &to_be_leased)?;
        }
        Ok(Disks { agreement: Some(agreement), ..disks })
    }

    /// The labels of these regions say that this directory uses them.
    fn take_leases(&self, dir: &Path, numbers: &[u32]) -> Result<()> {
        let Some(lease) = lease::of(dir)? else { return Ok(()) };
        for region in self.regions.iter().filter(|region| numbers.contains(&region.number())) {
            // It is reported elsewhere if a disk cannot be written.
            if let Err(e) = region.set_lease(&lease) {
                tracing::warn!("noting in the label of {} that {} uses it: {e}", region.name(), dir.display());
            }
        }
        Ok(())
    }

    /// From now on `pool.toml` names them where they are.
    pub fn note_moved(&self, dir: &Path, session: &Session) -> Result<Config> {
        let _alone = session.long_lock(ilfs::table::GROWING)?;
        let mut config = read_config(dir)?;
        for entry in &mut config.disks {
            let Some(moved) = self.moved.iter().find(|moved| moved.from == entry.at(dir)) else { continue };
            entry.region = Some(moved.region);
            if moved.from != moved.to {
                *entry = DiskEntry { path: moved.to.clone(), size: None, given: true, region: entry.region };
            }
        }
        config.write(dir).map(|()| config)
    }

    /// Opens those that can be opened, to look at them.
    pub fn open_to_look(dir: &Path, config: &Config) -> Result<Disks> {
        let options = Options { read_only: true, ..Options::default() };
        let measured = Agreement::look(dir, config);
        let with = measured.as_ref().map_or(With::Nobody, With::Looking);
        Ok(Gathered::of(dir, config, config.uuid_bytes()?, &options).assemble(dir, true, with))
    }

    /// The regions that the log knows, or has known, are the log's from now on: which there are changes while the pool is open.
    pub fn give_to(&mut self, log: &Log, session: &Session) -> Result<()> {
        let (there, gone) = (log.numbers(), log.gone(session)?);
        self.regions.retain(|region| !there.contains(&region.number()) && !gone.contains(&region.number()));
        Ok(())
    }

    /// Refuses what the pool cannot do without, and says what it does without.
    fn judged(self, dir: &Path, config: &Config, session: &Session, is_read_only: bool) -> Result<Disks> {
        let first = self.missing.first();
        let refusal = |why: &Error| Err(Error::Pool(why.to_string()));
        if let Some(missing) = self.missing.iter().find(|missing| !missing.is_lost) {
            return refusal(&missing.error);
        }
        if let Some(broken) = self.broken.first().filter(|_| self.regions.is_empty()) {
            return refusal(first.map_or(&broken.error, |missing| &missing.error));
        }
        if let Some(first) = first {
            let log = Log::open(session, &self.regions, ilfs::Options::default())?;
            let is_in_order = |log: &Log| log.is_in_order(session).unwrap_or(false);
            match log {
                None => return refusal(&first.error),
                Some(log) if log.is_whole() => {}
                _ if self.regions.is_empty() => return refusal(&first.error),
                // What the memory was made anew from may lead to what nobody knows of but the disk.
                Some(log) if !is_read_only && !is_in_order(&log) => {
                    return Err(Error::Pool(format!(
                        "the memory of the pool was made anew from its backing, and {} ({}) may hold what came after that: attach it, mount the \
                         pool read-only (`-o ro`), or give up what the disk holds with `conquest region remove {} {} --force`",
                        first.path.display(),
                        first.why,
                        dir.display(),
                        first.path.display()
                    )))
                }
                Some(_) => tracing::warn!("the pool goes on without a disk: {}; what only it has cannot be read", first.error),
            }
        }
        self.refuse_behind(dir, session)?;
        let regions = disks_status::tell(dir, config, &self, &[]).regions;
        // Once, by who uses it.
        let regions = regions.iter().filter(|_| !self.read_only);
        regions.filter_map(|region| region.trouble(dir)).for_each(|trouble| tracing::warn!("{trouble}"));
        Ok(self)
    }

    /// Numbers are issued below the mark in the labels. Where that is lower than this memory knows it, what is there of a region missed
    /// what was written to the others since.
    fn refuse_behind(&self, dir: &Path, session: &Session) -> Result<()> {
        let table = session.read(ilfs::KEY, || Where::find(session.memory()))?;
        let Some((_, table)) = table else { return Ok(()) };
        let log = Log::open(session, &self.regions, ilfs::Options::default())?;
        let away: Vec<u32> = match &log {
            // It is known that it missed something.
            Some(log) => log.out_of_use(session)?.into_iter().map(|fenced| fenced.number).collect(),
            None => Vec::new(),
        };
        for region in self.regions.iter().filter(|region| region.layout().tolerates(region.members().len()) > 0) {
            // Before anything was written to it the mark is not raised.
            // What is kept for the backing is no content.
            let kept = |log: &Log| log.backing_in_region(session, region.number()).unwrap_or(0);
            let held = |log: &Log| log.held_in(session, region.number()).map_or(true, |held| held.segments > kept(log));
            let is_new = || region.sequence() == 0 && !log.as_ref().is_some_and(held);
            if region.sequence() >= table.limit || is_new() || away.contains(&region.number()) {
                continue;
            }
            let (name, number) = (region.name(), region.number());
            match self.missing.first() {
                Some(missing) => {
                    return Err(Error::Pool(format!(
                        "{name} stayed behind: region {number} was written without it. Put its other disk back ({}); if that is lost \
                         for good, take its [[disk]] out of {}: the pool opens then, with what this one has",
                        missing.path.display(),
                        dir.join(CONFIG).display()
                    )))
                }
                None => tracing::warn!("{name} stayed behind: what was written to region {number} without it is lost"),
            }
        }
        Ok(())
    }
}

/// Gives a pool its log on these regions, its first disks; with segments of so many bytes, if not the usual.
pub fn make_log(session: &Session, regions: &[Arc<dyn Region>], segment: Option<u64>) -> Result<()> {
    match regions.is_empty() {
        true => Ok(()),
        false => Ok(Log::format(session, regions, segment.unwrap_or_else(|| segment_for(regions)))?),
    }
}

/// Gives a pool its log where making it was interrupted before that.
pub fn make_log_if_none(session: &Session, regions: &[Arc<dyn Region>], segment: Option<u64>) -> Result<()> {
    if regions.is_empty() || has_log(session)? {
        return Ok(());
    }
    match make_log(session, regions, segment) {
        // Another one was faster.
        Err(_) if has_log(session)? => {}
        made => made?,
    }
    backing::of(session).map_or(Ok(()), |backing| Ok(backing.wait(session)?))
}

/// Has the pool content on disks, or had it once?
pub fn has_log(session: &Session) -> Result<bool> {
    Ok(Log::open(session, &[], ilfs::Options::default())?.is_some())
}

/// Bytes of a segment: the usual, or fewer where the log would have few.
fn segment_for(regions: &[Arc<dyn Region>]) -> u64 {
    let all: u64 = regions.iter().map(|region| region.properties().size).sum();
    let mut segment = ilfs::SEGMENT;
    while all / segment < MANY_SEGMENTS && segment > *ilfs::SEGMENTS.start() {
        segment /= 2;
    }
    segment
}

/// The disk that lies in the directory of a pool whose `pool.toml` is gone, if it is that pool's.
pub fn adopted(dir: &Path, uuid: [u8; 16]) -> Vec<DiskEntry> {
    let options = Options { read_only: true, ..Options::default() };
    let label = Disk::open(&dir.join(DISK), &options).and_then(|disk| Label::read(&disk));
    let is_its = label.as_ref().is_ok_and(|label| label.pool == Uuid(uuid));
    let entry = |label: Label| DiskEntry {
        path: DISK.into(),
        size: Some(label.size),
        given: false,
        region: Some(label.region),
    };
    label.ok().filter(|_| is_its).map(entry).into_iter().collect()
}
