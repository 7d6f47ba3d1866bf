//! Conquest as a library: pools, which hold a file system each.
//!
//! A pool is a directory: `pool.toml` names the media; the memory lies beside it or where it says. Opened, it is a [`Fs`], which a program
//! uses by path ([`path`]) or by inode number ([`node`]).
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the operations of a pool, for programs and operators |
//! | [`open`] | opening one: its media, its disks, its threads |
//! | [`guest`] | opening one beside a process that does the background work |
//! | [`options`] | how to make a pool, and how to open one |
//! | [`config`] | `pool.toml` |
//! | [`medium`] | the kinds of persistent RAM |
//! | [`paths`] | names and paths of a pool's files |
//! | [`memory`] | the memory: a file, a DAX device, shared memory |
//! | [`rescue`] | memory that has lost its backing, its name or its pool |
//! | [`disks`] | the disks, for content that is not in memory |
//! | [`backing`] | the backing: its place, opening it, checking it |
//! | [`inspect`] | opening a pool to look at it, which changes nothing |
//! | [`health`] | what is wrong with a pool, and what mends it |
//! | [`operations`] | the operations that a mount has served |
//! | [`brief`] | the health and the sizes of a pool, as its mount tells them to anybody |
//! | [`make`] | making a pool: format, restore, import, and the atomic swap |
//! | [`maintenance`] | background work: deaths, sweeping, commits in time, checkpoints |
//! | [`remount`] | the settings in effect in a process, and asking another to change them |
//! | [`save`] | saving |
//! | [`own_files`] | the files of a pool, which nothing else may replace |
//! | [`scrub`] | verifying the content on disks |
//! | [`status`] | the facts that `conquest status` prints |
//! | [`uuid`] | UUIDs |
//!
//! Imports go this way: this → `open` → `make` → `backing` → `disks` → `rescue` → `memory`, and all of them use `config`, `medium` and `paths`.

#![forbid(unsafe_code)]

mod backing;
pub mod brief;
pub mod config;
mod disks;
mod guest;
pub mod health;
mod inspect;
mod maintenance;
mod make;
mod medium;
mod memory;
mod open;
pub mod operations;
mod options;
mod own_files;
pub mod paths;
mod remount;
mod rescue;
mod save;
mod scrub;
mod status;
pub mod uuid;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exraid::duplex::Duplex;
use pram::session::Exclusive;

use self::backing::{logged, placement, regions, room};
use config::Config;
use disks::Disks;
use maintenance::Threads;
use make::reconcile::Ask;
use make::{destroy, first_disk, format, from_disks, import, reconcile, relocate, restore, Builder};
use memory::{file, locks, shared};
use open::{load, or_save};
use paths::RUNTIME_DIR;
use rescue::absent::read_config;
use rescue::{inventory, orphans, salvage};

pub use config::{CacheConfig, CommitInterval, CompressionConfig, DiskEntry, Rate, Threshold};
pub use conquest_fs::{
    attr, node, packed_entries, path, Atime, Attr, Caller, Compression, Durability, Error, Fs, Ino, Kind, Lack, Policy,
    Priority, Redundancy, Result, SetAttr, SetTime, Taken, Ticket, Time, Times, ROOT,
};
pub use disks::damage::Damage;
pub use disks::disks_alone::{Gap, Inode as SalvagedInode, Remains};
pub use disks::disks_status::{
    DiskStatus, FlowStatus, MemberStatus, PerformanceStatus, RegionStatus, SegmentStatus, StutterStatus,
};
pub use disks::leave::{How as HowToLeave, Left, Which as WhichRegion};
pub use disks::removal_check::{Stop, Verdict};
pub use disks::replace::{Replace, Replaced};
pub use disks::work::{LeavingStatus, OutOfUse, WorkStatus};
pub use exraid::{owner, Layout};
pub use ilfs::leave::Leaving;
pub use inspect::{Looked, Released};
pub use maintenance::report::{Activity, Progress, TaskError, TaskState};
pub use make::from_disks::FromDisks;
pub use make::reconcile::Incomplete;
pub use make::restore::{Over, Restored};
pub use medium::MediumKind;
pub use options::{FormatOptions, InRegions, MountInfo, NewDisk, NewRegion, OpenOptions};
pub use paths::LOG;
pub use remount::{Asked, Terms};
pub use rescue::inventory::{Belongs, Memory, Summary};
pub use save::{HowToSave, Saved};
pub use scrub::{CheckedBacking, Scrub};
pub use status::{
    BackingRegion, BackingStatus, CacheStatus, CompressionStatus, HeapStatus, HitStatus, SessionStatus, Status,
};

/// The examples of `docs/SEMANTICS.md`, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/SEMANTICS.md")]
struct Semantics;

/// The example of `README.md`, which compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The role of a session, which it publishes to others.
pub(crate) mod role {
    pub const API: u64 = 0;
    pub const MOUNT_DEV: u64 = 1;
    pub const MOUNT_URING: u64 = 2;
    pub const GUEST: u64 = 3;

    pub fn of_mount(uring: bool) -> u64 {
        if uring {
            MOUNT_URING
        } else {
            MOUNT_DEV
        }
    }
}

/// An open pool: derefs to [`Fs`]. Dropping it detaches this process.
pub struct Pool {
    // Declared first: they stop before the process detaches.
    threads: Threads,
    fs: Arc<Fs>,
    disks: Disks,
    /// Where the backing lies, if in regions.
    duplex: Option<Arc<Duplex>>,
    /// Each change waits for the backing, whatever its durability setting.
    mirrored: bool,
    dir: PathBuf,
    config: Config,
    /// The state of the backing, for a pool that is only inspected; `_held` keeps other processes away meanwhile.
    found: Option<inspect::BackingFound>,
    _held: Option<Exclusive>,
}

impl Pool {
    /// Makes an empty pool at `dir`. It takes its place in one step: an interrupted format leaves what was there, or the new
    /// pool. (On a DAX device it leaves no pool, and can be repeated.)
    pub fn format(dir: impl AsRef<Path>, how: &FormatOptions) -> Result<()> {
        format::format(dir.as_ref(), how, &mut || Ok(()))
    }

    /// Whether there is a pool at `dir` (a `pool.toml`, or a new pool that takes its place at the next opening).
    pub fn exists(dir: impl AsRef<Path>) -> bool {
        let dir = dir.as_ref();
        dir.join(paths::CONFIG).exists() || paths::is_swap_due(dir)
    }

    /// Fails if the pool at `dir`, or a file that it names, [is another user's](exraid::owner), or others may write there.
    pub fn refuse_of_others(dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        owner::refuse_foreign_dir(dir)?;
        Config::read(dir).map(drop)
    }

    /// The files in shared memory that belong to the pool at `dir`, whether or not they exist. With the pool directory, remove
    /// them too; removing them alone, with no process attached, has the effect of a reboot.
    pub fn memory(dir: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
        let dir = dir.as_ref();
        let config = read_config(dir)?;
        let parts: &[&str] = match config.medium {
            MediumKind::Logged => &["region", "marks"],
            _ if config.backing.is_some() => &["marks"],
            _ => return Ok(Vec::new()),
        };
        let lock = config.lock_path(dir);
        let (lock, uuid) = (std::fs::File::open(&lock).map_err(|e| Error::host(&lock, &e))?, config.uuid_bytes()?);
        parts.iter().map(|part| shared::path(&lock, &uuid, part)).collect()
    }

    /// The processes that have the pool at `dir` open, without opening it. One that is being killed counts until all
    /// of it is gone.
    pub fn users(dir: impl AsRef<Path>) -> Result<Vec<SessionStatus>> {
        let dir = dir.as_ref();
        let config = read_config(dir)?;
        let (path, uuid) = (config.lock_path(dir), config.uuid_bytes()?);
        let lock = std::fs::OpenOptions::new().read(true).write(true).open(&path);
        let lock = lock.map_err(|e| Error::host(&path, &e))?;
        let users = pram::attached::processes(&lock, &uuid, RUNTIME_DIR.as_ref())?;
        Ok(users.into_iter().map(status::session_status).collect())
    }

    /// Whether any process has the pool at `dir` open, also where no list of processes can be read.
    pub fn is_in_use(dir: impl AsRef<Path>) -> Result<bool> {
        let dir = dir.as_ref();
        locks::are_attached(&read_config(dir)?.lock_path(dir))
    }

    /// Whether any process has the pool's files open, also where only the kernel still does, for a process that has ended.
    pub fn is_held(dir: impl AsRef<Path>) -> Result<bool> {
        let dir = dir.as_ref();
        locks::are_held(&load(dir)?.lock_path(dir))
    }

    /// Moves the backing out of these regions, if it lies in regions.
    fn move_backing_away(&self, numbers: &[u32]) -> Result<()> {
        let (Some(duplex), Some(union)) = (&self.duplex, self.fs.union()) else { return Ok(()) };
        placement::Pool { fs: &self.fs, union, duplex, dir: &self.dir }.move_away(numbers)
    }

    /// The pool's UUID.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        self.config.uuid_bytes()
    }

    /// The pool directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where its backing lies, if it has one.
    pub fn backing_dir(&self) -> Option<PathBuf> {
        self.config.backing_dir(&self.dir).map(|backing| backing.components().collect())
    }

    /// The settings of compression.
    pub fn compression(&self) -> &CompressionConfig {
        &self.config.compression
    }

    pub fn medium(&self) -> MediumKind {
        self.config.medium
    }

    /// The shared memory of the pool on `logged` at `dir`, a file, if there is one; also where nothing else is left of the pool.
    pub fn memory_alone(dir: impl AsRef<Path>) -> Result<Option<PathBuf>> {
        let dir = dir.as_ref();
        match read_config(dir).map_or_else(|_| salvage::lost(dir), |config| Ok(Some(config)))? {
            Some(config) => salvage::find(dir, &config),
            None => Ok(None),
        }
    }

    /// Makes the pool at `dir` from an image; refuses to overwrite one without `force`. It keeps the medium of the pool
    /// that is there; a new one is made on `medium`, or on `logged`. An interrupted restore leaves what was there
    /// (on a DAX device: a pool that is refused) and can be repeated. Fails if the pool's disks lack content that the image leads
    /// to.
    pub fn restore(
        dir: impl AsRef<Path>,
        file: impl AsRef<Path>,
        medium: Option<MediumKind>,
        force: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let over = Over { medium, force, disks: &[] };
        Pool::restore_asking(dir.as_ref(), file.as_ref(), over, progress, &mut reconcile::refuse).map(drop)
    }

    /// The same, but calls `ask` about content that the disks lack, and goes on if it returns no error. Where the pool has no disks, and the
    /// image has the content of the saved pool's disks, `over` names new ones, and the content is written there.
    pub fn restore_asking(
        dir: impl AsRef<Path>,
        file: impl AsRef<Path>,
        over: Over,
        progress: &mut dyn FnMut(u64, u64),
        ask: Ask,
    ) -> Result<Restored> {
        let (dir, file) = (dir.as_ref(), file.as_ref());
        let restored = restore::restore(dir, file, over, progress, ask, &mut || Ok(()))?;
        if restored.content + restored.unread == 0 {
            reconcile::ask_afterwards(dir, &read_config(dir)?, ask)?;
        }
        Ok(restored)
    }

    /// Removes the unfinished pool that this process was making at `dir`, for a process that is about to end.
    pub fn give_up_making(dir: impl AsRef<Path>) {
        make::give_up(dir.as_ref());
    }

    /// Makes the pool larger, for all its processes: it may take up to `size` bytes from now on. Fails for fewer than it has.
    /// The new size is durable on return.
    pub fn resize(&self, size: u64) -> Result<()> {
        let refused = |why| Error::Pool(format!("{}: {why}", self.dir.display()));
        if let Some(total) = memory::shared::total_at(&self.config.nvram_path(&self.dir)).filter(|total| size > *total)
        {
            return Err(refused(format!("its memory lies in a file system that has {} MiB in all", total >> 20)));
        }
        if let Some(duplex) = &self.duplex {
            room::grow_with(duplex, self.fs.session().memory().size(), size)?;
        }
        self.fs.session().resize(size).map_err(|e| match e {
            pram::Error::Unusable(why) => refused(why),
            e => e.into(),
        })?;
        ::backing::of(self.fs.session()).map_or(Ok(()), |backing| Ok(backing.wait(self.fs.session())?))
    }

    /// The default disk of a pool like `how` at `dir`: a file in its directory, as large as the free room of the host less a
    /// reserve. None where that is next to nothing.
    pub fn usual_disk(dir: impl AsRef<Path>, how: &FormatOptions) -> Result<Option<NewDisk>> {
        disks::plan::usual(dir.as_ref(), how)
    }

    /// Gives the pool at `dir` a region; its first one while no process uses the pool. Disks with content are only taken with `force`.
    /// Interrupted, it can be repeated.
    pub fn add_disk(dir: impl AsRef<Path>, region: &NewRegion, force: bool) -> Result<()> {
        Pool::add_disks(dir.as_ref(), std::slice::from_ref(region), force)
    }

    /// The same with several regions: all of them, or none if one is refused.
    pub fn add_disks(dir: impl AsRef<Path>, regions: &[NewRegion], force: bool) -> Result<()> {
        let dir = dir.as_ref();
        let config = load(dir)?;
        match regions {
            [] => Ok(()),
            [first, rest @ ..] if config.disks.is_empty() => {
                // Check all before making the first.
                drop(disks::grow::planned(dir, &config, regions, force)?);
                first_disk::add(dir, first, force)?;
                match rest {
                    [] => Ok(()),
                    rest => disks::grow::add(dir, rest, force).map_err(|e| {
                        let first = first.disks.first().map(|disk| disk.path.display().to_string());
                        Error::Pool(format!("{} was added, and the others were not: {e}", first.unwrap_or_default()))
                    }),
                }
            }
            regions => disks::grow::add(dir, regions, force),
        }
    }

    /// Takes regions from the pool at `dir`, which may be in use: their content moves to the others, as one plan. `go_on` gets the bytes that
    /// are left, about, after each segment; if it returns false, the move stops there, and a further call continues it.
    pub fn remove_regions(
        dir: impl AsRef<Path>,
        which: &[WhichRegion],
        how: HowToLeave,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Left> {
        disks::leave::remove(dir.as_ref(), which, how, go_on)
    }

    /// Gives the disks of the pool at `dir` to that directory, where another directory, its copy or its original, used them last; the
    /// pool there is refused from then on. No process may use either. Returns the disks.
    ///
    /// # Errors
    /// [`Error::Pool`] where either is in use, or a disk is missing.
    pub fn take_disks(dir: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
        disks::take::take(dir.as_ref())
    }

    /// The regions of the pool at `dir`, their disks and their faults, without opening the pool.
    pub fn disks(dir: impl AsRef<Path>) -> Result<(Vec<RegionStatus>, Vec<DiskStatus>)> {
        let dir = dir.as_ref();
        let config = read_config(dir)?;
        // A caller without access to the pool gets an error, not a list of faults.
        locks::are_attached(&config.lock_path(dir))?;
        let status = disks::disks_status::of_closed(dir, &config)?;
        Ok((status.regions, status.disks))
    }

    /// The source of the memory of a pool at `dir` on `medium`: the file or device, or the directory of shared memory.
    pub fn takes_memory_in(dir: impl AsRef<Path>, medium: MediumKind, nvram: Option<&Path>) -> PathBuf {
        let dir = dir.as_ref();
        match medium {
            MediumKind::Logged => RUNTIME_DIR.into(),
            _ => dir.join(nvram.unwrap_or(paths::DEFAULT_NVRAM.as_ref())),
        }
    }

    /// Gives back the shared memory of a pool on `logged` that no process uses: the next opening makes it from the backing. Changes
    /// that the backing lacks go there first. `dir` may also be the file of memory whose pool is gone: that is given back if its
    /// backing held everything.
    pub fn release(dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        if let Some(uuid) = orphans::memory_at(dir) {
            return inventory::release(uuid, dir).and_then(|pool| pool.map_or(Ok(()), |pool| Pool::release(&pool)));
        }
        let config = load(dir)?;
        if config.medium != MediumKind::Logged {
            let medium = config.medium;
            return Err(Error::Pool(format!("the memory of a pool on `{medium}` is its only home; it stays")));
        }
        let uuid = config.uuid_bytes()?;
        if logged::release(dir, &uuid)? {
            return Ok(());
        }
        Pool::open(dir, &OpenOptions::default())?.sync()?;
        match logged::release(dir, &uuid)? {
            true => Ok(()),
            false => Err(Error::Pool(format!("{} has been changed meanwhile; its memory stays", dir.display()))),
        }
    }

    /// Destroys the pool at `dir`, which no process may use: memory, backing and `pool.toml`, and the directory if nothing
    /// else is in it. Interrupted, the next making or destroying of a pool there finishes it. Also destroys the remains of a pool,
    /// or memory that belongs to no pool, whose file `dir` is.
    pub fn destroy(dir: impl AsRef<Path>) -> Result<()> {
        destroy::destroy(dir.as_ref(), &mut || Ok(()))
    }

    /// All memory of pools on `logged` on this host.
    pub fn all_memory() -> Result<Vec<Memory>> {
        inventory::all()
    }

    /// What each background task of this process does.
    pub fn tasks(&self) -> Vec<TaskState> {
        self.threads.tasks()
    }

    /// The pool at `dir`, if there is one, without opening it.
    pub fn summary(dir: impl AsRef<Path>) -> Result<Option<Summary>> {
        let dir = dir.as_ref();
        Ok(Config::read(dir)?.map(|config| inventory::summary(dir, &config)))
    }

    /// Makes the pool at `dir` from its backing alone: after the loss of its persistent RAM, or where the files of the
    /// backing and `pool.toml` were brought from another machine. Existing memory is only replaced with `force`.
    /// A backing without `pool.toml` becomes a pool on `logged`.
    /// Returns the instant of the imported state, in nanoseconds since the epoch. Fails if its disks lack content that the backing
    /// leads to.
    pub fn import(dir: impl AsRef<Path>, force: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<i64> {
        Pool::import_asking(dir.as_ref(), force, progress, &mut reconcile::refuse)
    }

    /// Makes the pool at `dir`, on `logged`, from its disks alone, whose regions have the backing. Calls `ask` about content that the
    /// disks lack.
    pub fn import_from_disks(dir: impl AsRef<Path>, disks: &[PathBuf], ask: Ask) -> Result<FromDisks> {
        from_disks::make(dir.as_ref(), disks, ask)
    }

    /// The same, but calls `ask` about content that the disks lack, and goes on if it returns no error.
    pub fn import_asking(
        dir: impl AsRef<Path>,
        force: bool,
        progress: &mut dyn FnMut(u64, u64),
        ask: Ask,
    ) -> Result<i64> {
        let dir = dir.as_ref();
        Builder::finish_interrupted(dir)?;
        if Config::read(dir)?.is_none() && relocate::is_elsewhere(dir) {
            return Err(Error::Pool(format!(
                "the backing of the pool that was at {0} lies on its disks: name them, `conquest import {0} --disk PATH...`",
                dir.display()
            )));
        }
        if Config::read(dir)?.is_none() && paths::has_backing_files(dir) {
            let _alone = Builder::begin(dir)?;
            return import::found(dir, force, ask);
        }
        let config = read_config(dir)?;
        let alone = Builder::begin(dir)?;
        if config.medium == MediumKind::Logged {
            regions::open_to_look(dir, &config).map_err(|e| or_save(e, dir, &config))?;
        }
        locks::refuse_attached(&config.lock_path(dir))?;
        import::refuse_used_backing(dir, &config)?;
        if !force && !file::is_lost(&config.nvram_path(dir), config.medium)? {
            return Err(import::refusal_of_memory(dir, &config));
        }
        let as_of = import::import(dir, &config, progress, ask)?;
        drop(alone);
        reconcile::ask_afterwards(dir, &config, ask)?;
        Ok(as_of)
    }
}

impl Pool {
    /// In a child of `fork`: what is there is the parent's. Threads are not there to be waited for, and locks not the child's to give up.
    fn leave_to_parent(&mut self) {
        std::mem::forget((std::mem::take(&mut self.threads), std::mem::take(&mut self.disks)));
        std::mem::forget((self.fs.clone(), self.duplex.take(), self._held.take()));
    }

    /// Guests change nothing any more if this is the last process to do background work, and what they have changed is durable.
    fn commit_for_guests(&self) {
        let session = self.fs.session();
        let backing = ::backing::of(session).filter(|_| self.threads.do_all());
        let committed = match session.stop_attending() {
            Ok(true) => backing.map_or(Ok(()), |backing| backing.wait(session)),
            Ok(false) => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(e) = committed {
            tracing::error!("committing for guests at the end: {e}");
        }
    }
}

impl Drop for Pool {
    /// Writes content to segments first, which the backing would otherwise have to hold.
    fn drop(&mut self) {
        if self.fs.session().expect_own().is_err() {
            return self.leave_to_parent();
        }
        if self.fs.session().is_guest() {
            self.fs.trim_tails().unwrap_or_else(|e| tracing::debug!("giving back unused tails: {e}"));
            return;
        }
        self.commit_for_guests();
        if let (true, Some(union), true) =
            (self.threads.stop_segments(), self.fs.union(), ::backing::of(self.fs.session()).is_some())
        {
            if let Err(e) = union.write_all(&self.fs) {
                tracing::warn!("writing content to segments at the end: {e}");
            }
        }
    }
}

impl Deref for Pool {
    type Target = Fs;
    fn deref(&self) -> &Fs {
        &self.fs
    }
}
