//! Conquest as a library: pools, which hold a file system each.
//!
//! A pool is a directory: `pool.toml` names the media; the memory lies beside it or where it says. Opened, it is a [`Fs`], which a program
//! uses by path ([`path`]) or by inode number ([`node`]).
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | opening and closing |
//! | [`options`] | how to make a pool, and how to open one |
//! | [`config`] | `pool.toml` |
//! | [`medium`] | what keeps the persistent RAM |
//! | [`paths`] | what the files of a pool are called and where they lie |
//! | [`region`] | the memory: a file, a DAX device, shared memory |
//! | [`rescue`] | memory that has lost its copy, its name or its pool |
//! | [`disks`] | the disks, for content that is not in memory |
//! | [`copy`] | the copy on a disk: of a pool on ordinary RAM, and the running one of others |
//! | [`look`] | opening a pool to look at it, which changes nothing |
//! | [`make`] | making a pool: format, restore, import, and the atomic swap |
//! | [`maintenance`] | background work: deaths, sweeping, commits in time, checkpoints |
//! | [`remount`] | the settings in effect in a process, and asking another to change them |
//! | [`save`] | saving, and the files of a pool that an image must not replace |
//! | [`status`] | the facts that `conquest status` prints |
//! | [`uuid`] | UUIDs |
//!
//! Who uses whom: this → `make` → `copy`, `disks` → `rescue` → `region`, and all of them `config`, `medium` and `paths`.

#![forbid(unsafe_code)]

mod cache_config;
mod compression_config;
pub mod config;
mod copy;
mod disks;
mod look;
mod maintenance;
mod make;
mod medium;
mod options;
pub mod paths;
mod region;
mod remount;
mod rescue;
mod save;
mod status;
pub mod uuid;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backing::Copy;
use exraid::duplex::Duplex;
use pram::session::{Attach, Exclusive};
use pram::Session;

use config::Config;
use conquest_fs::max_inodes;
use conquest_fs::ubj::{Commits, Union};
use copy::{logged, regions, replica, room, tend};
use disks::Disks;
use maintenance::commits::CommitTimer;
use maintenance::disks::DiskWork;
use maintenance::segments::Segments;
use maintenance::Maintenance;
use make::lost::Ask;
use make::{destroy, format, from_disks, import, lost, relocate, restore, Builder};
use paths::RUNTIME_DIR;
use region::file::{self, Opened};
use region::{locks, shared};
use rescue::{inventory, orphans, salvage};

pub use cache_config::CacheConfig;
pub use compression_config::CompressionConfig;
pub use config::{CommitInterval, DiskEntry, Rate, Threshold};
pub use conquest_fs::{
    attr, node, packed_entries, path, Atime, Attr, Caller, Compression, Durability, Error, Fs, Ino, Kind, Lack, Policy,
    Priority, Redundancy, Result, SetAttr, SetTime, Taken, Ticket, Time, Times, ROOT,
};
pub use disks::damage::Damage;
pub use disks::leave::{How as HowToLeave, Left, Which as WhichRegion};
pub use disks::look::{
    DiskStatus, FlowStatus, MemberStatus, PerformanceStatus, RegionStatus, SegmentStatus, StutterStatus,
};
pub use disks::remains::{Gap, Inode as SalvagedInode, Remains};
pub use disks::replace::{Replace, Replaced};
pub use disks::stop::{Stop, Verdict};
pub use disks::work::{LeavingStatus, OutOfUse, Scrub, WorkStatus};
pub use exraid::{owner, Layout};
pub use ilfs::leave::Leaving;
pub use look::{Looked, Released};
pub use make::from_disks::FromDisks;
pub use make::lost::Incomplete;
pub use make::restore::{Over, Restored};
pub use medium::MediumKind;
pub use options::{FormatOptions, InRegions, MountInfo, NewDisk, NewRegion, OpenOptions};
pub use paths::LOG;
pub use remount::{Asked, Terms};
pub use rescue::inventory::{Belongs, Memory, Summary};
pub use save::{HowToSave, Saved};
pub use status::{
    CacheStatus, CompressionStatus, CopyRegion, CopyStatus, HeapStatus, HitStatus, SessionStatus, Status,
};

/// The examples of `docs/SEMANTICS.md`, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/SEMANTICS.md")]
struct Semantics;

/// The example of `README.md`, which compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// What a session says of itself: its role.
pub(crate) mod role {
    pub const API: u64 = 0;
    pub const MOUNT_DEV: u64 = 1;
    pub const MOUNT_URING: u64 = 2;

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
    _disk_work: Option<DiskWork>,
    segments: Option<Segments>,
    _maintenance: Option<Maintenance>,
    commits: Option<CommitTimer>,
    fs: Arc<Fs>,
    disks: Disks,
    /// Where the copy of the memory lies, if in regions.
    duplex: Option<Arc<Duplex>>,
    /// Whatever it is asked, each change waits for the copy.
    mirrored: bool,
    dir: PathBuf,
    config: Config,
    /// Of a pool that is looked at alone: how its copy stands; and nobody comes to it meanwhile.
    found: Option<look::CopyFound>,
    _held: Option<Exclusive>,
}

impl Pool {
    /// Makes an empty pool at `dir`. It takes its place in one step: an interrupted format leaves what was there, or the new
    /// pool. (On a DAX device it leaves no pool, and can be repeated.)
    pub fn format(dir: &Path, how: &FormatOptions) -> Result<()> {
        format::format(dir, how, &mut || Ok(()))
    }

    /// Opens the pool at `dir`. What a crash left open is undone first; leaks are swept in the background.
    pub fn open(dir: &Path, how: &OpenOptions) -> Result<Pool> {
        let (config, mut opened) = open_media(dir, how.only_beside)?;
        if !how.read_only
            && config.copy_in_regions
            && dir.join(paths::LOGS[0]).exists()
            && config.medium == MediumKind::Logged
        {
            relocate::clear(dir)?;
        }
        let path = config.nvram_path(dir);
        let region = &opened.region;
        if !config.is_of(region) {
            return Err(Error::Pool(format!(
                "{} belongs to another pool than {} says; put the right region back, or restore one from an image",
                path.display(),
                dir.join(paths::CONFIG).display()
            )));
        }
        file::refuse_other_version(region)?;
        opened.copy = opened.copy.map(|copy| copy.limited(config.copy_rate.map(u64::from)));
        let duplex = opened.duplex.clone();
        let fs = attach(opened, how)?;
        // What works on the disks (`disks.regions`) is given to `fs` here, before others share it.
        let (config, mut disks) = open_disks(dir, config, &fs, how)?;
        let options = config.cache.options(config.threshold());
        let union = match disks.read_only {
            // To put the log in order something may have to be written.
            true => Union::open_as_it_is(fs.session(), &disks.regions, options)?.map(Arc::new),
            false => Union::open(fs.session(), &disks.regions, options)?,
        };
        if let Some(union) = &union {
            // From here on the log has them, and lets go of what is taken from the pool.
            disks.give_to(union.log(), fs.session())?;
        }
        if let (Some(union), Some(agreement), false) = (&union, &disks.agreement, disks.read_only) {
            union.set_opener(disks::grow::opener(dir.into(), config.uuid_bytes()?, agreement.clone()));
        }
        if let Some(union) = union.as_ref().filter(|_| !disks.read_only && !how.read_only && !how.without_disks) {
            let are_others = fs.session().runtime().sessions().len() > 1;
            // Those who have a disk open that does not answer see to it.
            if !(are_others && disks.missing.iter().any(|missing| missing.is_late)) {
                union.log().fence_missing(fs.session()).map_err(Error::from)?;
            }
            union.log().take_back(fs.session()).map_err(Error::from)?;
        }
        let fs = Arc::new(fs.with_union(union));
        if let Some(duplex) = duplex.as_ref().filter(|_| !disks.read_only) {
            duplex.set_least(room::least(fs.session().region().size()));
            duplex.set_supply(Some(regions::supply(&fs)));
        }
        if fs.union().is_some() {
            fs.session().enlist(Arc::new(Commits(Arc::downgrade(&fs))));
        }
        let interval = how.commit_interval.unwrap_or_else(|| config.interval());
        let maintenance =
            if how.read_only { None } else { Some(Maintenance::start(&fs, interval.into(), config.compression)?) };
        let commits = match backing::of(fs.session()) {
            Some(_) => Some(CommitTimer::start(&fs, interval)?),
            None => None,
        };
        let mirrored = is_mirrored(fs.session().region(), backing::of(fs.session()));
        let (segments, disk_work) = match how.read_only || disks.read_only {
            true => (None, None),
            false => (
                Segments::start(&fs)?,
                if how.without_disks { None } else { DiskWork::start(&fs, dir, duplex.as_ref())? },
            ),
        };
        let pool = Pool {
            _disk_work: disk_work,
            segments,
            _maintenance: maintenance,
            commits,
            fs,
            disks,
            duplex,
            mirrored,
            dir: dir.into(),
            config,
            found: None,
            _held: None,
        };
        pool.tell();
        Ok(pool)
    }

    /// Is there a pool at `dir` (a `pool.toml`, or one that takes its place when the pool is opened)?
    pub fn exists(dir: &Path) -> bool {
        dir.join(paths::CONFIG).exists() || paths::is_swap_due(dir)
    }

    /// Fails if the pool at `dir`, or anything that it names, [is another user's](exraid::owner), or others may write there.
    pub fn refuse_of_others(dir: &Path) -> Result<()> {
        owner::refuse_foreign_dir(dir)?;
        Config::read(dir).map(drop)
    }

    /// The files in shared memory that belong to the pool at `dir`, whether or not they are there. Whoever removes the
    /// pool directory removes them too; removing them alone, with no process attached, is what a reboot does.
    pub fn memory(dir: &Path) -> Result<Vec<PathBuf>> {
        let config = read_config(dir)?;
        let parts: &[&str] = match config.medium {
            MediumKind::Logged => &["region", "marks"],
            _ if config.copy.is_some() => &["marks"],
            _ => return Ok(Vec::new()),
        };
        let lock = config.lock_path(dir);
        let (lock, uuid) = (std::fs::File::open(&lock).map_err(|e| Error::host(&lock, &e))?, config.uuid_bytes()?);
        parts.iter().map(|part| shared::path(&lock, &uuid, part)).collect()
    }

    /// The processes that have the pool at `dir` open, without opening it. One that is being killed counts until all
    /// of it is gone.
    pub fn users(dir: &Path) -> Result<Vec<SessionStatus>> {
        let config = read_config(dir)?;
        let (path, uuid) = (config.lock_path(dir), config.uuid_bytes()?);
        let lock = std::fs::OpenOptions::new().read(true).write(true).open(&path);
        let lock = lock.map_err(|e| Error::host(&path, &e))?;
        let users = pram::attached::processes(&lock, &uuid, RUNTIME_DIR.as_ref())?;
        Ok(users.into_iter().map(status::session_status).collect())
    }

    /// Has any process the pool at `dir` open? Tells so also where nothing says which.
    pub fn is_in_use(dir: &Path) -> Result<bool> {
        locks::are_attached(&read_config(dir)?.lock_path(dir))
    }

    /// Has any process its files open? Tells so also where only the kernel still has, for a process that has ended.
    pub fn is_held(dir: &Path) -> Result<bool> {
        locks::are_held(&load(dir)?.lock_path(dir))
    }

    /// The copy of the memory lies in none of these regions from now on, if it lies in regions.
    fn move_copy_away(&self, numbers: &[u32]) -> Result<()> {
        let (Some(duplex), Some(union)) = (&self.duplex, self.fs.union()) else { return Ok(()) };
        tend::Pool { fs: &self.fs, union, duplex, dir: &self.dir }.move_away(numbers)
    }

    /// The pool's UUID.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        self.config.uuid_bytes()
    }

    /// The pool directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where its copy on disk lies, if it has one.
    pub fn copy_dir(&self) -> Option<PathBuf> {
        self.config.copy_dir(&self.dir).map(|copy| copy.components().collect())
    }

    /// What maintenance compresses, and when.
    pub fn compression(&self) -> &CompressionConfig {
        &self.config.compression
    }

    pub fn medium(&self) -> MediumKind {
        self.config.medium
    }

    /// Opens what the memory of a pool on `logged` holds that cannot be opened otherwise, as its copy on disk is lost or
    /// cannot be written: to look at it, and to save it. Nobody may have the pool open; nothing of it is changed.
    pub fn of_memory(dir: &Path) -> Result<Pool> {
        let config = load_or_lost(dir)?;
        let policy = Policy { read_only: true, atime: Atime::Never, ..Policy::default() };
        let fs = Arc::new(Fs::over(salvage::open(dir, &config)?, policy)?);
        let disks = Disks::default();
        let (maintenance, commits, segments) = (None, None, None);
        let dir = dir.into();
        let disk_work = None;
        Ok(Pool {
            _disk_work: disk_work,
            segments,
            _maintenance: maintenance,
            commits,
            fs,
            disks,
            duplex: None,
            mirrored: false,
            dir,
            config,
            found: None,
            _held: None,
        })
    }

    /// The file that such memory is in, if there is any; also of a pool of which nothing else is left.
    pub fn memory_alone(dir: &Path) -> Result<Option<PathBuf>> {
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
        dir: &Path,
        file: &Path,
        medium: Option<MediumKind>,
        force: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let over = Over { medium, force, disks: &[] };
        Pool::restore_asking(dir, file, over, progress, &mut lost::refuse).map(drop)
    }

    /// The same, but asks about what the disks lack: it goes on if the answer is no error. Where the pool has no disks, and the image has
    /// the content of those of the pool that was saved, it gets others, and that is written there.
    pub fn restore_asking(
        dir: &Path,
        file: &Path,
        over: Over,
        progress: &mut dyn FnMut(u64, u64),
        ask: Ask,
    ) -> Result<Restored> {
        let restored = restore::restore(dir, file, over, progress, ask, &mut || Ok(()))?;
        if restored.content + restored.unread == 0 {
            lost::ask_afterwards(dir, &read_config(dir)?, ask)?;
        }
        Ok(restored)
    }

    /// Gives back what this process has made of a pool at `dir` that has not taken its place, for one that is about to end.
    pub fn give_up_making(dir: &Path) {
        make::give_up(dir);
    }

    /// Makes the pool larger: it may take up to `size` bytes from now on, whoever works on it. Fails for fewer than it has.
    /// It counts when it returns, also on disk.
    pub fn resize(&self, size: u64) -> Result<()> {
        let refused = |why| Error::Pool(format!("{}: {why}", self.dir.display()));
        if let Some(total) = region::shared::total_at(&self.config.nvram_path(&self.dir)).filter(|total| size > *total)
        {
            return Err(refused(format!("its memory lies in a file system that has {} MiB in all", total >> 20)));
        }
        if let Some(duplex) = &self.duplex {
            room::grow_with(duplex, self.fs.session().region().size(), size)?;
        }
        self.fs.session().resize(size).map_err(|e| match e {
            pram::Error::Unusable(why) => refused(why),
            e => e.into(),
        })?;
        backing::of(self.fs.session()).map_or(Ok(()), |copy| Ok(copy.wait(self.fs.session())?))
    }

    /// The disk that a pool like `how` at `dir` gets where nobody says which: a file in its directory, as large as what the
    /// host has free less a reserve. None where that is next to nothing.
    pub fn usual_disk(dir: &Path, how: &FormatOptions) -> Result<Option<NewDisk>> {
        disks::plan::usual(dir, how)
    }

    /// Gives the pool at `dir` a region, its first one while nobody uses it. What is on its disks is only lost with `force`. Interrupted, it
    /// can be repeated.
    pub fn add_disk(dir: &Path, region: &NewRegion, force: bool) -> Result<()> {
        Pool::add_disks(dir, std::slice::from_ref(region), force)
    }

    /// The same with several regions: all of them, or none where one is refused.
    pub fn add_disks(dir: &Path, regions: &[NewRegion], force: bool) -> Result<()> {
        let config = load(dir)?;
        match regions {
            [] => Ok(()),
            [first, rest @ ..] if config.disks.is_empty() => {
                // All are looked at before the first is made.
                drop(disks::grow::planned(dir, &config, regions, force)?);
                disks::add::first(dir, first, force)?;
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

    /// Takes regions from the pool at `dir`, which may be in use: what they hold is moved to the others, as one plan. `go_on` is told the bytes that are left, about, after each segment; where it says no, that is all, and it goes on when it is asked for again.
    pub fn remove_regions(
        dir: &Path,
        which: &[WhichRegion],
        how: HowToLeave,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Left> {
        disks::leave::remove(dir, which, how, go_on)
    }

    /// Gives the disks of the pool at `dir` to that directory, where another one, from which it was copied or that was copied from it, used
    /// them last; the pool there is refused from then on. Nobody may use either. The disks.
    ///
    /// # Errors
    /// [`Error::Pool`] where either is in use, or a disk is missing.
    pub fn take_disks(dir: &Path) -> Result<Vec<PathBuf>> {
        disks::lease::take(dir)
    }

    /// The regions of the pool at `dir`, their disks, and what is wrong with them, without opening the pool.
    pub fn disks(dir: &Path) -> Result<(Vec<RegionStatus>, Vec<DiskStatus>)> {
        let config = read_config(dir)?;
        // Who may not look at the pool learns nothing wrong of its disks.
        locks::are_attached(&config.lock_path(dir))?;
        let told = disks::look::of_closed(dir, &config)?;
        Ok((told.regions, told.disks))
    }

    /// Where the memory of a pool at `dir` on `medium` is taken from: the file or device, or where shared memory is.
    pub fn takes_memory_in(dir: &Path, medium: MediumKind, nvram: Option<&Path>) -> PathBuf {
        match medium {
            MediumKind::Logged => RUNTIME_DIR.into(),
            _ => dir.join(nvram.unwrap_or(paths::DEFAULT_NVRAM.as_ref())),
        }
    }

    /// Gives back the shared memory of a pool on `logged` that nobody uses: the next opening makes it from the copy. What
    /// the copy lacks goes there first. Or, where `dir` is the file of such memory, that of a pool that is gone, if its copy
    /// held everything.
    pub fn release(dir: &Path) -> Result<()> {
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

    /// Destroys the pool at `dir`, which nobody may use: memory, region, copy and `pool.toml`, and the directory if nothing
    /// else is in it. Interrupted, it is finished by whoever makes or destroys a pool there next. Or what is left of a pool
    /// there, or memory that belongs to no pool, whose file `dir` is.
    pub fn destroy(dir: &Path) -> Result<()> {
        destroy::destroy(dir, &mut || Ok(()))
    }

    /// All memory of pools on `logged` on this host.
    pub fn all_memory() -> Result<Vec<Memory>> {
        inventory::all()
    }

    /// The pool at `dir`, if there is one, without opening it.
    pub fn summary(dir: &Path) -> Result<Option<Summary>> {
        Ok(Config::read(dir)?.map(|config| inventory::summary(dir, &config)))
    }

    /// Makes the pool at `dir` from its copy alone: after the loss of its persistent RAM, or where the files of the
    /// copy and `pool.toml` were brought from another machine. A region that is there is only replaced with `force`.
    /// Where the copy is all that is left, without `pool.toml`, it becomes that of a pool on `logged`.
    /// Returns the instant that the pool is as of, nanoseconds since the epoch. Fails if its disks lack content that the copy
    /// leads to.
    pub fn import(dir: &Path, force: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<i64> {
        Pool::import_asking(dir, force, progress, &mut lost::refuse)
    }

    /// Makes the pool at `dir` of its disks alone, whose regions have the copy of its memory, on `logged`. What its disks lack is asked
    /// about.
    pub fn import_from_disks(dir: &Path, disks: &[PathBuf], ask: Ask) -> Result<FromDisks> {
        from_disks::make(dir, disks, ask)
    }

    /// The same, but asks about what the disks lack: it goes on if the answer is no error.
    pub fn import_asking(dir: &Path, force: bool, progress: &mut dyn FnMut(u64, u64), ask: Ask) -> Result<i64> {
        Builder::settle(dir)?;
        if Config::read(dir)?.is_none() && relocate::is_elsewhere(dir) {
            return Err(Error::Pool(format!(
                "the copy of the pool that was at {0} lies on its disks: name them, `conquest import {0} --disk PATH...`",
                dir.display()
            )));
        }
        if Config::read(dir)?.is_none() && paths::has_copy_files(dir) {
            let _alone = Builder::begin(dir)?;
            return import::found(dir, force, ask);
        }
        let config = read_config(dir)?;
        let alone = Builder::begin(dir)?;
        if config.medium == MediumKind::Logged {
            regions::open_to_look(dir, &config).map_err(|e| or_save(e, dir, &config))?;
        }
        locks::refuse_attached(&config.lock_path(dir))?;
        import::refuse_used_copy(dir, &config)?;
        if !force && !file::is_lost(&config.nvram_path(dir), config.medium)? {
            return Err(import::kept(dir, &config));
        }
        let as_of = import::import(dir, &config, progress, ask)?;
        drop(alone);
        lost::ask_afterwards(dir, &config, ask)?;
        Ok(as_of)
    }
}

/// The configuration of the pool at `dir`, when what was interrupted is finished.
fn load(dir: &Path) -> Result<Config> {
    Builder::settle(dir)?;
    read_config(dir)
}

/// The configuration of a pool that should be there.
fn read_config(dir: &Path) -> Result<Config> {
    let shown = dir.display();
    let memory = || match salvage::lost(dir) {
        Ok(lost) => lost.map(|_| salvage::save_it(dir)),
        Err(several) => Some(several.to_string()),
    };
    let how = || match (paths::has_copy_files(dir), memory()) {
        (true, memory) => {
            let or = memory.map(|save_it| format!("; or {save_it}")).unwrap_or_default();
            format!("what lies there is a pool's copy; make the pool of it with `conquest import {shown}`{or}")
        }
        (false, Some(save_it)) => format!("but there is memory of one that was: {save_it}"),
        (false, None) => "`conquest list` shows those of this host".into(),
    };
    let missing = || match paths::is_swap_due(dir) {
        true => Error::Pool(format!("{shown}: making the pool was interrupted; mounting it finishes that")),
        false => Error::Pool(format!("there is no pool at {shown}; {}", how())),
    };
    Config::read(dir)?.ok_or_else(missing)
}

/// The same; where there is none that could be read, what memory says whose copy lay there.
fn load_or_lost(dir: &Path) -> Result<Config> {
    match read_config(dir) {
        Err(e @ Error::Foreign(_)) => Err(e),
        read => read.or_else(|unread| salvage::lost(dir)?.ok_or(unread)),
    }
}

/// What can be done if the pool at `dir` cannot be opened, as its copy is not to be had.
fn or_save(e: Error, dir: &Path, config: &Config) -> Error {
    // Who may not open the copy may not save the memory either.
    let is_refused =
        || std::fs::File::open(dir.join(paths::IMAGE)).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
    if regions::open_to_look(dir, config).is_ok() || is_refused() {
        return e;
    }
    match salvage::find(dir, config) {
        Ok(Some(_)) => Error::Pool(format!("{e}; or {}", salvage::save_it(dir))),
        Ok(None) => e,
        Err(why) => Error::Pool(format!("{e}; or keep what the pool's memory holds: {why}")),
    }
}

/// Opens the media of the pool at `dir`; again if another pool took its place meanwhile.
fn open_media(dir: &Path, only_beside: bool) -> Result<(Config, Opened)> {
    loop {
        let config = if only_beside { read_config(dir)? } else { load(dir)? };
        let opened = match config.medium {
            MediumKind::Logged => logged::open(dir, &config, only_beside).map_err(|e| or_save(e, dir, &config)),
            _ if only_beside => replica::open(dir, &config, true),
            _ => restore_from_mirror(dir, &config).and_then(|()| replica::open(dir, &config, false)),
        };
        let is_another = || Config::read(dir).is_ok_and(|now| now.is_some_and(|now| now.uuid != config.uuid));
        if paths::is_swap_due(dir) || is_another() {
            continue;
        }
        match opened {
            Ok(Some(opened)) => return Ok((config, opened)),
            Ok(None) => {}
            Err(e) => return Err(e),
        }
    }
}

/// A mirror replaces a region that is missing.
fn restore_from_mirror(dir: &Path, config: &Config) -> Result<()> {
    let path = config.nvram_path(dir);
    match config.mirror && file::is_lost(&path, config.medium)? {
        true => import::from_mirror(dir, config, &path),
        false => Ok(()),
    }
}

/// Where the memory alone would do, whoever waits for a copy waits for each change.
fn is_mirrored(region: &pram::Region, copy: Option<&Copy>) -> bool {
    region.info.medium != pram::MediumKind::Logged && copy.is_some_and(Copy::is_awaited)
}

fn attach(opened: Opened, how: &OpenOptions) -> Result<Fs> {
    let Opened { region, exclusive, copy, duplex: _ } = opened;
    let (role, label) = match &how.mount {
        None => (role::API, PathBuf::new()),
        Some(m) => (role::of_mount(m.uring), m.mountpoint.clone()),
    };
    let keys = max_inodes(region.map().reserved());
    let mirrored = is_mirrored(&region, copy.as_ref());
    if how.mount.is_some() {
        refuse_served(&region, &exclusive)?;
    }
    let label = std::os::unix::ffi::OsStrExt::as_bytes(label.as_os_str());
    let how_to = Attach { runtime_dir: RUNTIME_DIR.as_ref(), keys, role, label };
    let session = Session::attach(region, exclusive, &how_to, copy)?;
    let atime = match (how.noatime, how.strictatime) {
        (true, _) => Atime::Never,
        (_, true) => Atime::Always,
        _ => Atime::Relative,
    };
    let durability = if mirrored { Durability::Strict } else { how.durability };
    Fs::over(session, Policy { read_only: how.read_only, atime, nodiratime: how.nodiratime, durability })
}

/// Opens the disks of the pool that is attached to, which has a log on them then.
fn open_disks(dir: &Path, mut config: Config, fs: &Fs, how: &OpenOptions) -> Result<(Config, Disks)> {
    let disks = Disks::open(dir, &config, fs.session(), how.without_disks, how.read_only)?;
    if !(disks.moved.is_empty() || disks.read_only || how.read_only || how.without_disks) {
        match disks.note_moved(dir, fs.session()) {
            Ok(noted) => config = noted,
            Err(e) => tracing::warn!("noting where the disks are now: {e}"),
        }
    }
    warn_of_unnamed_disks(dir, &config, fs.session())?;
    if disks.missing.is_empty() && !how.read_only && !disks.read_only {
        disks::make_log_if_none(fs.session(), &disks.regions, config.cache.segment())?;
        disks::grow::complete(fs.session(), &disks.regions)?;
        disks::leave::complete(dir, &config, fs.session())?;
        if let Err(e) = disks::leave::note_regions(dir, &config, fs.session()) {
            tracing::debug!("noting which regions the disks are of: {e}");
        }
    }
    Ok((config, disks))
}

fn warn_of_unnamed_disks(dir: &Path, config: &Config, session: &Session) -> Result<()> {
    if config.disks.is_empty() && disks::has_log(session)? {
        tracing::warn!(
            "{}: the pool has content on disks that {} does not name: it cannot be read until their [[disk]] is put there",
            dir.display(),
            paths::CONFIG
        );
    }
    Ok(())
}

/// One kernel at a time caches the pool; nobody comes or goes while `exclusive` is held.
fn refuse_served(region: &pram::Region, exclusive: &Exclusive) -> Result<()> {
    let users = pram::attached::processes(exclusive, &region.info.uuid, RUNTIME_DIR.as_ref())?;
    let served = users.into_iter().map(status::session_status).find(SessionStatus::is_mount);
    served.map_or(Ok(()), |s| Err(Error::Served { pid: s.pid, first: s.mountpoint.unwrap_or_default() }))
}

impl Drop for Pool {
    /// What the copy would have to hold goes to segments first.
    fn drop(&mut self) {
        if let (Some(_), Some(union), true) =
            (self.segments.take(), self.fs.union(), backing::of(self.fs.session()).is_some())
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
