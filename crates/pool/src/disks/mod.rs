//! The disks of a pool: files or block devices that hold content beside the persistent RAM.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the open disks of a process; which missing disks a pool can do without |
//! | [`gather`] | from `pool.toml` to regions: faults of a disk, and their remedies |
//! | [`plan`] | future disks: whether they are possible, how large they will be |
//! | [`place`] | making disks beside what is there; moving them into place; removing them |
//! | [`grow`] | a further one, for a pool in use |
//! | [`leave`] | taking one away, from a pool in use |
//! | [`replace`] | a member of a region put back, or another in its place |
//! | [`lease`] | which directory uses a disk |
//! | [`take`] | giving the disks of a pool to another directory |
//! | [`rebuild`] | rebuilding a member, by one process at a time |
//! | [`find_moved`] | finding disks that are not where `pool.toml` names them |
//! | [`shared`] | the agreement of the processes that use the disks |
//! | [`removal_check`] | the losses that removing a region or a disk would cause |
//! | [`damage`] | the findings of scrubbing |
//! | [`domain`] | names of domains |
//! | [`disks_alone`] | content from the disks alone, where the memory is lost |
//! | [`work`] | pending and requested work on disks |
//! | `membership`, `losses` | tests: pools that get disks and give them up while in use; which content counts as lost |
//! | [`disks_status`] | the report of disks for `status` and `region list` |
//!
//! `pool.toml` names them, and each carries in its label the pool's UUID, which identifies it. A disk is either the
//! pool's *own*, a file that was made and is removed with it, or *given*: a device, or a file that existed before. A given disk
//! outlives the pool, which writes only its labels and the room between them.
//!
//! ```text
//! pool.toml --path--> disk --label--> region --> ilfs::Log
//! ```
//!
//! The label of a disk, not `pool.toml`, decides its region and role. A region that can do without a disk is used without it, and the
//! label notes that; a process that only inspects a pool changes no health of its regions.

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

/// How long a disk may take to answer the first process that opens the pool.
const SPIN_UP: Duration = Duration::from_secs(10);
/// Segments that a log has if it can: with fewer of them the cleaner has little to choose from.
const MANY_SEGMENTS: u64 = 64;

/// The disks that a process has open.
#[derive(Default)]
pub struct Disks {
    /// The regions that no log has taken over: all, until a log is opened.
    pub regions: Vec<Arc<dyn Region>>,
    /// Unused disks, and why.
    pub missing: Vec<Missing>,
    /// Disks that are not where `pool.toml` names them.
    pub moved: Vec<Moved>,
    /// Regions that cannot be used, though some of their disks are there.
    pub broken: Vec<Broken>,
    /// Nothing is written to them.
    pub read_only: bool,
    /// Shared with the other processes; declared after the regions, which close first.
    pub agreement: Option<Arc<Agreement>>,
}

impl Disks {
    /// Opens the disks of the pool at `dir`. If `tolerant`, it leaves out any disk that cannot be opened, and changes no health
    /// of regions. Otherwise it leaves out disks that their regions can do without, and whole regions; but no whole region where the
    /// memory was made anew and the pool is opened for writing.
    ///
    /// # Errors
    /// [`Error::Pool`] for a disk that cannot be used; the text says what to do.
    pub fn open(dir: &Path, config: &Config, session: &Session, tolerant: bool, is_read_only: bool) -> Result<Disks> {
        if config.disks.is_empty() {
            return Ok(Disks::default());
        }
        let agreement = Agreement::open(dir, config, session)?;
        let (uuid, sharing) = (config.uuid_bytes()?, agreement.sharing(dir));
        // Processes that have it open deal with a disk that does not answer; the first one waits for a disk to spin up.
        let are_others = session.runtime().full().count() > 1;
        let patience = if are_others { LATE } else { SPIN_UP };
        let gather_within = |read_only, patience| {
            let options = Options { read_only, patience: Some(patience), ..agreement.options() };
            Gathered::of(dir, config, uuid, &options)
        };
        let gather = |read_only| gather_within(read_only, patience);
        let assemble = |found: Gathered, read_only| found.assemble(dir, read_only, With::Sharing(&sharing));
        let mut found = gather(false);
        // A disk left out needs a rebuild: wait longer before that.
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
                // Opening a region without a disk marks that disk as out: first check whether the pool opens at all.
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

    /// Notes in the labels of these regions that this directory uses them.
    fn take_leases(&self, dir: &Path, numbers: &[u32]) -> Result<()> {
        let Some(lease) = lease::of(dir)? else { return Ok(()) };
        for region in self.regions.iter().filter(|region| numbers.contains(&region.number())) {
            // A disk that cannot be written is reported elsewhere.
            if let Err(e) = region.set_lease(&lease) {
                tracing::warn!("noting in the label of {} that {} uses it: {e}", region.name(), dir.display());
            }
        }
        Ok(())
    }

    /// Corrects the paths of moved disks in `pool.toml`.
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

    /// Opens the disks that can be opened, to inspect them.
    pub fn open_to_look(dir: &Path, config: &Config) -> Result<Disks> {
        let options = Options { read_only: true, ..Options::default() };
        let measured = Agreement::look(dir, config);
        let with = measured.as_ref().map_or(With::Nobody, With::Looking);
        Ok(Gathered::of(dir, config, config.uuid_bytes()?, &options).assemble(dir, true, with))
    }

    /// Leaves to the log the regions that it knows or has removed: they change while the pool is open.
    pub fn give_to(&mut self, log: &Log, session: &Session) -> Result<()> {
        let (there, gone) = (log.numbers(), log.gone(session)?);
        self.regions.retain(|region| !there.contains(&region.number()) && !gone.contains(&region.number()));
        Ok(())
    }

    /// Refuses a pool without a disk that it needs, and warns about other missing disks.
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
                // The backing that the memory was made from may lack writes that only the missing disk knows.
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
        let regions = disks_status::tell(dir, config, &self, &[], true).regions;
        // Only processes that use the disks report it.
        let regions = regions.iter().filter(|_| !self.read_only);
        regions.filter_map(|region| region.trouble(dir)).for_each(|trouble| tracing::warn!("{trouble}"));
        Ok(self)
    }

    /// Numbers are issued below the mark in the labels. A region whose mark is lower than that of the memory missed writes that the others
    /// got.
    fn refuse_behind(&self, dir: &Path, session: &Session) -> Result<()> {
        let table = session.read(ilfs::KEY, || Where::find(session.memory()))?;
        let Some((_, table)) = table else { return Ok(()) };
        let log = Log::open(session, &self.regions, ilfs::Options::default())?;
        let away: Vec<u32> = match &log {
            // These are known to have missed something.
            Some(log) => log.out_of_use(session)?.into_iter().map(|fenced| fenced.number).collect(),
            None => Vec::new(),
        };
        for region in self.regions.iter().filter(|region| region.layout().tolerates(region.members().len()) > 0) {
            // The first write raises the mark. Segments of the backing are no content.
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

/// Makes the log of a pool on its first regions; `segment`: bytes of a segment, if not the usual.
pub fn make_log(session: &Session, regions: &[Arc<dyn Region>], segment: Option<u64>) -> Result<()> {
    match regions.is_empty() {
        true => Ok(()),
        false => Ok(Log::format(session, regions, segment.unwrap_or_else(|| segment_for(regions)))?),
    }
}

/// Makes the log of a pool where making the pool was interrupted before that.
pub fn make_log_if_none(session: &Session, regions: &[Arc<dyn Region>], segment: Option<u64>) -> Result<()> {
    if regions.is_empty() || has_log(session)? {
        return Ok(());
    }
    match make_log(session, regions, segment) {
        // Another process was faster.
        Err(_) if has_log(session)? => {}
        made => made?,
    }
    backing::of(session).map_or(Ok(()), |backing| Ok(backing.wait(session)?))
}

/// Whether the pool has content on disks, or once had.
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

/// The disk in the directory of a pool whose `pool.toml` is gone, if it is that pool's.
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
