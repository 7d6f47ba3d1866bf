//! Putting back a member of a region, or another disk in its place: live content of the region is copied from the other members.
//!
//! 1. No other process rebuilds ([`rebuild`](super::rebuild)); all others use the pool meanwhile.
//! 2. The new disk is made, without a label. Nothing leads to it; an attempt that ended here is repeated over it.
//! 3. `pool.toml` names it in the place of the old one, durably. If it ends here, the region is used without either.
//! 4. The labels of the others say that it is being rebuilt; then it gets its own label, and takes writes like the others.
//! 5. Live blocks are copied. Every few seconds the labels say how far: a continuation begins there.
//! 6. The member is whole, durably; then the old disk is removed, or loses its label. Earlier, it might be the only disk left: the others
//!    may be lost meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::label::MemberState;
use exraid::{owner, Disk, Label, Making, Options, Region, Uuid};
use pram::Session;

use super::place;
use super::plan::{cannot_make, Planned, Wanted};
use super::rebuild::Rebuilding;
use crate::config::{Config, DiskEntry};
use crate::options::{NewDisk, OpenOptions};
use crate::paths::real;
use crate::rescue::absent::read_config;
use crate::Pool;
use conquest_fs::error::{Error, Result};
use ilfs::Log;

/// How long copying goes on between two notes in the labels.
const ROUND: Duration = Duration::from_secs(5);

/// A disk to be replaced.
#[derive(Clone, Debug)]
pub struct Replace {
    /// The path of the member, or its former path; a path that leads nowhere if the member is known only by its number.
    pub old: PathBuf,
    /// The number of its region, and the position in it, from 1 on, if the member was named so.
    pub member: Option<(u32, usize)>,
    /// The disk that takes its place; `None`: the disk at `old`.
    pub new: Option<NewDisk>,
    /// Content of the new disk may be lost.
    pub force: bool,
}

/// A replacement that was made or planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub region: u32,
    /// `mirror` or `raid5`.
    pub layout: String,
    /// The position of the disk in its region, from 1 on.
    pub number: usize,
    /// Its path.
    pub path: PathBuf,
    /// Bytes that are to be copied; 0: it is whole.
    pub left: u64,
}

/// A member, and its new disk.
struct Job {
    region: Arc<dyn Region>,
    role: usize,
    path: PathBuf,
    /// `None`: the disk is the member already.
    new: Option<NewDisk>,
}

impl Pool {
    /// What [`replace_disk`](Pool::replace_disk) would do. Nothing is changed.
    pub fn plan_replacement(dir: impl AsRef<Path>, how: &Replace) -> Result<Replaced> {
        let dir = dir.as_ref();
        let pool = Pool::open(dir, &OpenOptions { without_disks: true, ..OpenOptions::default() })?;
        let job = Job::find(&pool, how)?;
        job.planned(&pool, how)?;
        job.wait(&pool)
    }

    /// Puts a member of a region of the pool at `dir`, which may be in use, back into it, or another disk in its place. Interrupted, it is
    /// resumed by the same call. `progress` gets the bytes that were copied, and the total.
    pub fn replace_disk(dir: impl AsRef<Path>, how: &Replace, progress: &mut dyn FnMut(u64, u64)) -> Result<Replaced> {
        let dir = dir.as_ref();
        let pool = Pool::open(dir, &OpenOptions::default())?;
        // 1.
        let _alone = Rebuilding::begin(dir)?;
        let job = Job::find(&pool, how)?;
        let replaced = job.wait(&pool)?;
        let mut spare = None;
        if let Some(planned) = job.planned(&pool, how)? {
            spare = Some((job.make(&pool, how, planned)?, Uuid::random().map_err(|e| Error::host(dir, &e))?));
        }
        // 4., 5.
        let mut total = None;
        while !job.copy(&pool, spare.take(), &mut total, progress)? {}
        // 6.
        if !is_same(&job.path, &how.old) {
            give_up(&pool.config, dir, &how.old)?;
        }
        Ok(replaced)
    }
}

/// Puts back members that were left out since they did not answer, and answer again; true if there was one.
pub fn catch_up(dir: &Path, log: &Log, session: &Session, stopped: &dyn Fn() -> bool) -> Result<bool> {
    for region in log.regions() {
        let Some(role) = region.returned() else { continue };
        // Another process does it.
        let Ok(_alone) = Rebuilding::begin(dir) else { return Ok(false) };
        let number = region.number();
        tracing::warn!("disk {} of region {number} answers again, and gets what it missed", role + 1);
        let whole = || std::iter::once(0..region.properties().size).collect();
        let mut live = || log.live_ranges(session, number).unwrap_or_else(|_| whole());
        let done = region.rebuild(role, None, &mut live, &mut |_| !stopped());
        let fail = |e| Error::Pool(format!("disk {} of region {number} cannot be put back: {e}", role + 1));
        if done.map_err(fail)? {
            tracing::warn!("disk {} of region {number} is whole again", role + 1);
        }
        return Ok(true);
    }
    Ok(false)
}

impl Job {
    fn find(pool: &Pool, how: &Replace) -> Result<Job> {
        let new = how.new.as_ref().map_or(&how.old, |new| &new.path);
        let is_named = |path: &Path| pool.config.disks.iter().any(|entry| is_same(&entry.at(&pool.dir), path));
        if how.member.is_none() && !is_named(&how.old) && !is_named(new) {
            let (old, dir) = (how.old.display(), pool.dir.display());
            return Err(Error::Pool(format!("{old} is no disk of the pool; `conquest region list {dir}` tells those")));
        }
        let named = how.member.map(|member| numbered(pool, member)).transpose()?;
        let job = match (member_at(pool, new), named.or_else(|| member_at(pool, &how.old))) {
            (Some((region, role)), Some(old)) if (region.number(), role) != (old.0.number(), old.1) => {
                let new = new.display();
                return Err(Error::Pool(format!("{new} is a disk of the pool already; choose another one")));
            }
            (Some((region, role)), _) => Job { region, role, path: new.into(), new: None },
            (None, old) => {
                let (region, role) = old.map_or_else(|| lacking(pool, &how.old, new), Ok)?;
                Job { region, role, path: new.into(), new: Some(new_disk(how)?) }
            }
        };
        let (layout, members) = (job.region.layout(), job.region.members().len());
        match layout.tolerates(members) {
            0 => Err(Error::Pool(format!(
                "{}: region {} is a {layout}: no other disk has what this one holds, so nothing can take its place",
                how.old.display(),
                job.region.number()
            ))),
            _ => Ok(job),
        }
    }

    fn wait(&self, pool: &Pool) -> Result<Replaced> {
        let state = self.region.members()[self.role].state;
        let from = match state {
            MemberState::Rebuilding { rebuilt } if self.new.is_none() => rebuilt,
            MemberState::Whole if self.new.is_none() => u64::MAX,
            _ => 0,
        };
        let live = self.live(log(pool)?, pool.session());
        Ok(Replaced {
            region: self.region.number(),
            layout: self.region.layout().to_string(),
            number: self.role + 1,
            path: self.path.clone(),
            left: live.iter().map(|range| range.end.saturating_sub(range.start.max(from))).sum(),
        })
    }

    /// The live ranges of the region; all of it if they are unknown.
    fn live(&self, log: &Log, session: &Session) -> Vec<std::ops::Range<u64>> {
        let whole = || std::iter::once(0..self.region.properties().size).collect();
        log.live_ranges(session, self.region.number()).unwrap_or_else(|_| whole())
    }

    /// The disk that is to take the place, claimed; none if the member itself is put back.
    fn planned(&self, pool: &Pool, how: &Replace) -> Result<Option<Planned>> {
        let Some(new) = &self.new else { return Ok(None) };
        let disks = pool.disks_status().disks;
        let others = disks.iter().filter(|disk| disk.region == Some(self.region.number()) && disk.size > 0);
        let needed = others.map(|disk| disk.size).min().unwrap_or(0);
        let config = Config { disks: Vec::new(), ..pool.config.clone() };
        let wanted = Wanted {
            dir: &pool.dir,
            config: &config,
            old: None,
            force: how.force,
            taken: Vec::new(),
            beyond_hosts: false,
        };
        let size = new.size.or(if new.path.exists() { None } else { Some(needed) });
        let planned = wanted.plan(&NewDisk { path: new.path.clone(), size })?;
        match planned.size < needed {
            true => Err(Error::Pool(format!(
                "{} has {} MiB, and region {} needs {} MiB of each of its disks; choose a larger one",
                new.path.display(),
                planned.size >> 20,
                self.region.number(),
                needed >> 20
            ))),
            false => Ok(Some(planned)),
        }
    }

    /// Steps 2 and 3.
    fn make(&self, pool: &Pool, how: &Replace, planned: Planned) -> Result<Arc<Disk>> {
        planned.reserve_ends()?;
        let (path, size, entry) = planned.release();
        let entry = DiskEntry { region: Some(self.region.number()), ..entry };
        let agreed = pool.disks.agreement.as_ref();
        let options = agreed.map_or_else(Options::default, |agreement| agreement.options());
        owner::make_private(&path).map_err(|e| Error::host(&path, &e))?;
        let made = Disk::make(&path, &Making { size: Some(size), force: true, options });
        let disk = made.map_err(|e| cannot_make(&e))?;
        place::sync_parent(&path).map_err(|e| Error::host(&path, &e))?;
        let _alone = pool.session().long_lock(ilfs::table::GROWING)?;
        let mut config = read_config(&pool.dir)?;
        let is_it = |there: &&mut DiskEntry| {
            let there = there.at(&pool.dir);
            is_same(&there, &how.old) || is_same(&there, &path)
        };
        match config.disks.iter_mut().find(is_it) {
            Some(there) => *there = entry,
            None => config.disks.push(entry),
        }
        config.write(&pool.dir)?;
        disk.share();
        Ok(Arc::new(disk))
    }

    /// Copies for some time; true: it is whole.
    fn copy(
        &self,
        pool: &Pool,
        spare: Option<(Arc<Disk>, Uuid)>,
        total: &mut Option<u64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        let log = log(pool)?;
        let spare = spare.map(|(disk, uuid)| (disk as Arc<dyn exraid::Device>, uuid));
        let until = Instant::now() + ROUND;
        let mut go_on = |left| {
            let total = *total.get_or_insert(left);
            progress(total.saturating_sub(left), total);
            Instant::now() < until
        };
        let done = self.region.rebuild(self.role, spare, &mut || self.live(log, pool.session()), &mut go_on);
        done.map_err(|e| {
            Error::Pool(format!(
                "region {} could not be rebuilt: {e}; when that is mended, the same command goes on where it stopped",
                self.region.number()
            ))
        })
    }
}

fn log(pool: &Pool) -> Result<&Log> {
    let none = || Error::Pool(format!("{} has no content on disks", pool.dir.display()));
    Ok(pool.fs.union().ok_or_else(none)?.log())
}

fn is_same(one: &Path, other: &Path) -> bool {
    real(one) == real(other) || exraid::disk::are_same(one, other)
}

/// The region of the disk at `path`, and its role, if it is used.
fn member_at(pool: &Pool, path: &Path) -> Option<(Arc<dyn Region>, usize)> {
    let find = |region: &Arc<dyn Region>| {
        let mut members = region.members().into_iter();
        let role = members.position(|member| member.name.is_some_and(|name| is_same(Path::new(&*name), path)))?;
        Some((region.clone(), role))
    };
    open_regions(pool).iter().find_map(find)
}

/// The member of this number, in the region of this number.
fn numbered(pool: &Pool, (number, disk): (u32, usize)) -> Result<(Arc<dyn Region>, usize)> {
    let region = open_regions(pool).into_iter().find(|region| region.number() == number);
    let region = region.filter(|region| (1..=region.members().len()).contains(&disk));
    let missing = || {
        let dir = pool.dir.display();
        Error::Pool(format!(
            "there is no disk {disk} of region {number}; `conquest region list {dir}` tells those that there are"
        ))
    };
    Ok((region.ok_or_else(missing)?, disk - 1))
}

fn open_regions(pool: &Pool) -> Vec<Arc<dyn Region>> {
    pool.fs.union().map_or_else(Vec::new, |union| union.regions())
}

/// The role of a missing disk that `pool.toml` names so, before or after its replacement there.
fn lacking(pool: &Pool, old: &Path, new: &Path) -> Result<(Arc<dyn Region>, usize)> {
    let regions = pool.disks_status().regions;
    let missing = || {
        let each =
            regions.iter().map(|region| region.members.iter().enumerate().map(move |member| (region.number, member)));
        each.flatten().filter(|(_, (_, member))| member.is_missing())
    };
    let named = |path: &Path| {
        let is_it = |there: &PathBuf| is_same(there, path);
        missing().find(|(_, (_, member))| member.path.as_ref().is_some_and(is_it))
    };
    let mut regions: Vec<u32> = missing().map(|(number, _)| number).collect();
    regions.dedup();
    // Members that are missing in one region cannot be told apart.
    let alone = || missing().next().filter(|_| regions.len() == 1);
    let found = named(old).or_else(|| named(new)).or_else(alone);
    let found = found.map(|(number, (role, _))| (number, role));
    let open = |number: u32| open_regions(pool).into_iter().find(|region| region.number() == number);
    found.and_then(|(number, role)| Some((open(number)?, role))).ok_or_else(|| {
        let (old, dir) = (old.display(), pool.dir.display());
        Error::Pool(format!(
            "nothing says which region {old} was of: none lacks a disk, or several do; `conquest region list {dir}` shows them, and a \
             disk that is put back where it was is known by its label"
        ))
    })
}

fn new_disk(how: &Replace) -> Result<NewDisk> {
    match &how.new {
        Some(new) => Ok(new.clone()),
        None if how.old.exists() => Ok(NewDisk { path: how.old.clone(), size: None }),
        None => Err(Error::Pool(format!(
            "{0} is not there: put it back, or name what takes its place: `conquest region replace POOL {0} NEW`",
            how.old.display()
        ))),
    }
}

/// Gives up a replaced disk, if it is still there and this pool's.
fn give_up(config: &Config, dir: &Path, old: &Path) -> Result<()> {
    let uuid = config.uuid_bytes()?;
    let read_only = Options { read_only: true, ..Options::default() };
    let label = Disk::open(old, &read_only).and_then(|disk| Label::read(&disk));
    if !label.is_ok_and(|label| label.pool == Uuid(uuid)) {
        return Ok(());
    }
    let in_pool = dir.canonicalize().is_ok_and(|dir| old.canonicalize().is_ok_and(|old| old.starts_with(dir)));
    let entry = config.disks.iter().find(|entry| is_same(&entry.at(dir), old)).cloned();
    let entry = entry.unwrap_or(DiskEntry { path: old.into(), size: None, given: !in_pool, region: None });
    place::remove(dir, &entry, uuid)
}
