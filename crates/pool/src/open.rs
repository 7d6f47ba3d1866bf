//! Opening a pool: its media, its disks, the log on them, and the threads that work in the background.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backing::Backing;
use pram::session::{Attach, Exclusive, Kind};
use pram::Session;

use crate::backing::{logged, regions, replica, room};
use crate::config::Config;
use crate::disks::{self, Disks};
use crate::maintenance::Threads;
use crate::make::{import, relocate, Builder};
use crate::medium::MediumKind;
use crate::memory::file::{self, Opened};
use crate::options::OpenOptions;
use crate::paths::{self, RUNTIME_DIR};
use crate::rescue::absent::{load_or_lost, read_config};
use crate::rescue::salvage;
use crate::status::{self, SessionStatus};
use crate::{guest, role, Pool};
use conquest_fs::error::{Error, Result};
use conquest_fs::node::{Atime, Fs, Policy};
use conquest_fs::ubj::{Commits, Union};
use conquest_fs::{max_inodes, Durability};

impl Pool {
    /// Opens the pool at `dir`. It first undoes transactions that a crash left open; leaks are swept in the background.
    pub fn open(dir: impl AsRef<Path>, how: &OpenOptions) -> Result<Pool> {
        match how.guest {
            true => Pool::open_guest(dir.as_ref(), how),
            false => Pool::open_at(dir.as_ref(), how),
        }
    }

    fn open_guest(dir: &Path, how: &OpenOptions) -> Result<Pool> {
        if how.mount.is_some() {
            return Err(Error::Pool("a guest cannot be the mount".into()));
        }
        let (config, opened) = loop {
            // Where there is none the other says what can be done.
            let config = Config::read_alone(dir)?.map_or_else(|| read_config(dir), Ok)?;
            if let Some(opened) = guest::open_memory(dir, &config)? {
                break (config, opened);
            }
        };
        let mirrored = is_mirrored(&opened.memory, opened.backing.as_ref());
        let fs = attach(opened, how)?;
        let union = Union::open_as_it_is(fs.session(), &[], config.cache.options(config.threshold()))?;
        let fs = Arc::new(fs.with_union(union.map(Arc::new)));
        let pool = Pool::alone(fs, mirrored, dir, config);
        pool.tell();
        Ok(pool)
    }

    /// Without threads and disks.
    fn alone(fs: Arc<Fs>, mirrored: bool, dir: &Path, config: Config) -> Pool {
        Pool {
            threads: Threads::default(),
            fs,
            disks: Disks::default(),
            duplex: None,
            mirrored,
            dir: dir.into(),
            config,
            found: None,
            _held: None,
        }
    }

    fn open_at(dir: &Path, how: &OpenOptions) -> Result<Pool> {
        let (config, opened) = open_memory(dir, how)?;
        let duplex = opened.duplex.clone();
        let fs = attach(opened, how)?;
        // `fs` gets the work on the disks (`disks.regions`) here, before other threads share it.
        let (config, mut disks) = open_disks(dir, config, &fs, how)?;
        let union = open_union(dir, &config, &fs, &mut disks, how)?;
        let fs = Arc::new(fs.with_union(union));
        if let Some(duplex) = duplex.as_ref().filter(|_| !disks.read_only) {
            duplex.set_least(room::least(fs.session().memory().size()));
            duplex.set_supply(Some(regions::supply(&fs)));
        }
        if fs.union().is_some() {
            fs.session().enlist(Arc::new(Commits::of(&fs)));
        }
        let threads = Threads::start(&fs, dir, &config, how, disks.read_only, duplex.as_ref())?;
        let mirrored = is_mirrored(fs.session().memory(), backing::of(fs.session()));
        let pool = Pool { threads, fs, disks, duplex, mirrored, dir: dir.into(), config, found: None, _held: None };
        pool.tell();
        if pool.threads.do_all() {
            pool.session().attend()?;
        }
        Ok(pool)
    }

    /// Opens the memory of a pool on `logged` that cannot be opened otherwise, as its backing is lost or
    /// cannot be written: to inspect and to save it. No process may have the pool open; nothing is changed.
    pub fn of_memory(dir: impl AsRef<Path>) -> Result<Pool> {
        let dir = dir.as_ref();
        let config = load_or_lost(dir)?;
        let policy = Policy { read_only: true, atime: Atime::Never, ..Policy::default() };
        let fs = Arc::new(Fs::over(salvage::open(dir, &config)?, policy)?);
        Ok(Pool::alone(fs, false, dir, config))
    }
}

/// The configuration of the pool at `dir`, after finishing an interrupted swap.
pub fn load(dir: &Path) -> Result<Config> {
    Builder::finish_interrupted(dir)?;
    read_config(dir)
}

/// Adds advice to the error if the pool at `dir` cannot be opened without its backing.
pub fn or_save(e: Error, dir: &Path, config: &Config) -> Error {
    // A user who may not open the backing may not save the memory either.
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

/// Opens the memory of the pool at `dir`, with its backing.
fn open_memory(dir: &Path, how: &OpenOptions) -> Result<(Config, Opened)> {
    let (config, mut opened) = open_media(dir, how.only_beside)?;
    if !how.read_only
        && config.backing_in_regions
        && dir.join(paths::LOGS[0]).exists()
        && config.medium == MediumKind::Logged
    {
        relocate::clear(dir)?;
    }
    if !config.is_of(&opened.memory) {
        return Err(Error::Pool(format!(
            "{} belongs to another pool than {} says; put the right memory back, or restore it from an image",
            config.nvram_path(dir).display(),
            dir.join(paths::CONFIG).display()
        )));
    }
    file::refuse_other_version(&opened.memory)?;
    opened.backing = opened.backing.map(|backing| backing.limited(config.backing_rate.map(u64::from)));
    Ok((config, opened))
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

/// Makes a missing memory from a mirrored backing.
fn restore_from_mirror(dir: &Path, config: &Config) -> Result<()> {
    let path = config.nvram_path(dir);
    match config.mirror && file::is_lost(&path, config.medium)? {
        true => import::from_mirror(dir, config, &path),
        false => Ok(()),
    }
}

/// On a medium that does without a backing, waiting for one is waiting at each change.
fn is_mirrored(memory: &pram::Memory, backing: Option<&Backing>) -> bool {
    memory.info.medium != pram::MediumKind::Logged && backing.is_some_and(Backing::is_awaited)
}

fn attach(opened: Opened, how: &OpenOptions) -> Result<Fs> {
    let Opened { memory: mapped, exclusive, backing, duplex: _ } = opened;
    let (role, label) = match &how.mount {
        None if how.guest => (role::GUEST, PathBuf::new()),
        None => (role::API, PathBuf::new()),
        Some(m) => (role::of_mount(m.uring), m.mountpoint.clone()),
    };
    let keys = max_inodes(mapped.map().reserved());
    let mirrored = is_mirrored(&mapped, backing.as_ref());
    if how.mount.is_some() {
        refuse_served(&mapped, &exclusive)?;
    }
    let label = std::os::unix::ffi::OsStrExt::as_bytes(label.as_os_str());
    let (runtime_dir, kind) = (RUNTIME_DIR.as_ref(), if how.guest { Kind::Guest } else { Kind::Full });
    let how_to = Attach { runtime_dir, keys, role, label, kind, is_inherited: false };
    let session = Session::attach(mapped, exclusive, &how_to, backing)?;
    let atime = match (how.noatime, how.strictatime) {
        (true, _) => Atime::Never,
        (_, true) => Atime::Always,
        _ => Atime::Relative,
    };
    let durability = if mirrored { Durability::Strict } else { how.durability };
    Fs::over(session, Policy { read_only: how.read_only, atime, nodiratime: how.nodiratime, durability })
}

/// Opens the disks of the attached pool, which then has a log on them.
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

/// Opens the log on the pool's disks and the union cache above it, if there are any. From here on the log owns the regions.
fn open_union(
    dir: &Path,
    config: &Config,
    fs: &Fs,
    disks: &mut Disks,
    how: &OpenOptions,
) -> Result<Option<Arc<Union>>> {
    let (session, options) = (fs.session(), config.cache.options(config.threshold()));
    let union = match disks.read_only {
        // Putting the log in order may have to write.
        true => Union::open_as_it_is(session, &disks.regions, options)?.map(Arc::new),
        false => Union::open(session, &disks.regions, options)?,
    };
    let Some(union) = union else { return Ok(None) };
    // The log closes disks that leave the pool.
    disks.give_to(union.log(), session)?;
    if let (Some(agreement), false) = (&disks.agreement, disks.read_only) {
        union.set_opener(disks::grow::opener(dir.into(), config.uuid_bytes()?, agreement.clone()));
    }
    if !(disks.read_only || how.read_only || how.without_disks) {
        let are_others = session.runtime().full().count() > 1;
        // Processes that have a late disk open deal with it.
        if !(are_others && disks.missing.iter().any(|missing| missing.is_late)) {
            union.log().fence_missing(session).map_err(Error::from)?;
        }
        union.log().take_back(session).map_err(Error::from)?;
    }
    Ok(Some(union))
}

pub fn warn_of_unnamed_disks(dir: &Path, config: &Config, session: &Session) -> Result<()> {
    if config.disks.is_empty() && disks::has_log(session)? {
        tracing::warn!(
            "{}: the pool has content on disks that {} does not name: it cannot be read until their [[disk]] is put there",
            dir.display(),
            paths::CONFIG
        );
    }
    Ok(())
}

/// One kernel at a time caches the pool; no process attaches or detaches while `exclusive` is held.
fn refuse_served(memory: &pram::Memory, exclusive: &Exclusive) -> Result<()> {
    let users = pram::attached::processes(exclusive, &memory.info.uuid, RUNTIME_DIR.as_ref())?;
    let served = users.into_iter().map(status::session_status).find(SessionStatus::is_mount);
    served.map_or(Ok(()), |s| Err(Error::Served { pid: s.pid, first: s.mountpoint.unwrap_or_default() }))
}
