//! A pool directory: `pool.toml` names the media; the region lies beside it or where it says.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | opening and closing |
//! | [`config`] | `pool.toml` |
//! | [`media`] | making and finding the region's file |
//! | [`logged`] | the memory and copy of a pool on ordinary RAM |
//! | [`memory`] | the memory of such a pool alone, where its copy cannot be used |
//! | [`replaced`] | a restored copy in the place of another |
//! | [`running`] | the running copy of a pool on memory that survives a power cut |
//! | [`files`] | the files of a copy, and those in shared memory |
//! | [`direct`] | a file of a copy, read and written past the page cache |
//! | [`room`] | room in shared memory, made while it is filled |
//! | [`held`] | what becomes of those files while they are in use |
//! | [`copier`] | commits in time, and folding |
//! | [`live`] | what a process keeps to, and asking another to change that |
//! | [`status`] | the facts that `conquest status` prints |
//! | [`own`] | the files of a pool, which an image must not replace |
//! | [`keeper`] | background work |
//! | [`ticker`] | threads that look again and again |

pub mod config;
mod copier;
mod direct;
mod files;
mod held;
mod keeper;
mod live;
mod logged;
mod media;
mod memory;
mod own;
mod replaced;
mod room;
mod running;
mod status;
mod ticker;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pram::copy::Copy;
use pram::session::Attach;
use pram::Session;
use rustix::fs::{statx, AtFlags, StatxFlags, CWD};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::inode::max_inodes;
use crate::layout;
use crate::node::{Atime, Fs, Policy};
use crate::setting::Durability;
use config::Config;
use copier::Copier;
use keeper::Keeper;
use media::Opened;

pub use config::{CommitInterval, Rate};
pub use live::{Asked, Terms};
pub use status::{CopyStatus, HeapStatus, SessionStatus, Status};

/// Where runtime segments lie: memory that every process sees and no reboot keeps.
const RUNTIME_DIR: &str = "/dev/shm";

/// The log of a mount's server, in the pool directory.
pub const LOG: &str = "server.log";

/// What a session says of itself: its role.
pub(crate) mod role {
    pub const API: u64 = 0;
    pub const MOUNT_DEV: u64 = 1;
    pub const MOUNT_URING: u64 = 2;
}

/// What keeps the persistent RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediumKind {
    /// RAM that the platform keeps: stores are durable when visible.
    Battery,
    /// Persistent memory behind the processor's caches: a DAX device, or a file on a DAX mount.
    Dax,
    /// Ordinary RAM with a copy on disk: durable after `fsync`, or with the next commit.
    Logged,
}

impl From<MediumKind> for pram::MediumKind {
    fn from(kind: MediumKind) -> Self {
        match kind {
            MediumKind::Battery => pram::MediumKind::Battery,
            MediumKind::Dax => pram::MediumKind::Dax,
            MediumKind::Logged => pram::MediumKind::Logged,
        }
    }
}

impl std::fmt::Display for MediumKind {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(pram::MediumKind::from(*self).name())
    }
}

/// How to make a pool.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Bytes of persistent RAM; 0: the size of the file or device at `nvram`.
    pub size: u64,
    /// The region's file or device; `None`: `nvram` in the pool directory.
    pub nvram: Option<PathBuf>,
    pub medium: MediumKind,
    /// On `battery` and `dax`: the directory of a running copy, relative to the pool directory; `None`: no copy.
    pub copy: Option<PathBuf>,
    /// The copy is a mirror: an operation returns when it is in both.
    pub mirror: bool,
    /// How often what has changed goes to the copy on disk, if not as usual for the medium.
    pub commit_interval: Option<CommitInterval>,
    /// How fast it goes there where nobody waits for it; `None`: as fast as the disk is.
    pub copy_rate: Option<Rate>,
    /// Destroy a pool that is there.
    pub force: bool,
    /// Mode, owner and group of the root directory.
    pub root_mode: u32,
    pub root_owner: (u32, u32),
}

impl FormatOptions {
    /// A pool of `size` bytes in the pool directory, whose root belongs to the caller; never over another.
    pub fn sized(size: u64) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        FormatOptions {
            size,
            nvram: None,
            medium: MediumKind::Battery,
            copy: None,
            mirror: false,
            commit_interval: None,
            copy_rate: None,
            force: false,
            root_mode: 0o755,
            root_owner: owner,
        }
    }
}

/// How to open a pool.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Never update access times.
    pub noatime: bool,
    /// Update access times on every read.
    pub strictatime: bool,
    /// Never update those of directories.
    pub nodiratime: bool,
    /// `Strict`: whatever this process changes is durable when the call returns, on every medium.
    pub durability: Durability,
    /// Commit to the copy on disk this often, instead of what `pool.toml` says. Any process of the pool commits for
    /// all.
    pub commit_interval: Option<CommitInterval>,
    /// This process is a mount: it caches, and is listed as one in the status.
    pub mount: Option<MountInfo>,
}

/// What `status` says of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountInfo {
    /// True: io_uring, false: /dev/fuse.
    pub uring: bool,
    pub mountpoint: PathBuf,
}

/// An open pool: derefs to [`Fs`]. Dropping it detaches this process.
pub struct Pool {
    // Declared first: it stops before the process detaches.
    _keeper: Option<Keeper>,
    copier: Option<Copier>,
    fs: Arc<Fs>,
    /// Whatever it is asked, each change waits for the copy.
    mirrored: bool,
    dir: PathBuf,
    config: Config,
}

impl Pool {
    /// Makes an empty pool at `dir`. `pool.toml` is written last: an interrupted format leaves no pool.
    pub fn format(dir: &Path, how: &FormatOptions) -> Result<()> {
        let _alone = media::Making::begin(dir)?;
        let mut config = Config::new(how.medium, media::random_uuid()?);
        (config.commit_interval, config.copy_rate) = (how.commit_interval, how.copy_rate);
        if how.medium != MediumKind::Logged {
            config.nvram = how.nvram.clone().or(config.nvram);
            (config.copy, config.mirror) = (how.copy.clone(), how.mirror);
        } else if let Some(path) = &how.nvram {
            return Err(Error::Pool(format!(
                "{}: the memory of the medium `logged` is made by the pool itself; give its size alone",
                path.display()
            )));
        }
        let old = match Config::read(dir) {
            Ok(Some(_)) if !how.force => {
                return Err(Error::Pool(format!(
                    "{} holds a pool already; mount it with `conquest mount {} DIR`, or destroy it with `conquest format --force`",
                    dir.display(),
                    dir.display()
                )));
            }
            Ok(old) => old,
            Err(e) if !how.force => return Err(e),
            Err(_) => None,
        };
        // To the end: who comes meanwhile finds the new pool, not one that is being destroyed.
        let held = old.as_ref().map(|old| old.hold_unused(dir)).transpose()?.flatten();
        if let (Some(lock), Some(Ok(uuid))) = (&held, old.as_ref().map(Config::uuid_bytes)) {
            files::forget_marks(lock, &uuid);
        }
        let (region, copy) = match how.medium {
            MediumKind::Logged => {
                if old.is_none() && !how.force && files::hold_copy(dir) {
                    return Err(Error::Pool(format!(
                        "{0} holds the copy of a pool; make the pool of it with `conquest import {0}`, or destroy it with \
                         `conquest format --force`",
                        dir.display()
                    )));
                }
                if let Some(path) = files::find_foreign(dir).filter(|_| !how.force) {
                    return Err(media::holds_data(&path));
                }
                Config::remove(dir)?;
                old.iter().for_each(|old| old.remove_copy(dir));
                let (region, copy) =
                    logged::make(dir, config.uuid_bytes()?, how.size, layout::VERSION, pram::log::now())?;
                (region, Some(copy))
            }
            _ => {
                let copy = config.copy_dir(dir);
                if let Some(there) = copy.as_ref().filter(|copy| !how.force && files::exist(copy)) {
                    return Err(Error::Pool(format!(
                        "{} holds the copy of a pool; destroy it with `conquest format --force`",
                        there.display()
                    )));
                }
                let made = media::make(&config.nvram_path(dir), how.medium, how.size, how.force)?;
                Config::remove(dir)?;
                old.iter().for_each(|old| old.remove_copy(dir));
                copy.iter().for_each(|copy| files::remove(copy));
                (media::format_region(made, config.uuid_bytes()?, layout::VERSION)?, None)
            }
        };
        let keys = max_inodes(region.geo.size);
        let session = Session::private_with(region, keys, copy)?;
        let (uid, gid) = how.root_owner;
        Fs::format(&session, (uid, gid, how.root_mode), media::random_key()?)?;
        if let Some(copy) = session.copy() {
            copy.wait(&session)?;
        }
        drop(session);
        config.write(dir)
    }

    /// Opens the pool at `dir`. What a crash left open is undone first; leaks are swept in the background.
    pub fn open(dir: &Path, how: &OpenOptions) -> Result<Pool> {
        let (config, mut opened) = open_media(dir)?;
        let path = config.nvram_path(dir);
        let region = &opened.region;
        if !config.is_of(region) {
            return Err(Error::Pool(format!(
                "{} belongs to another pool than {} says; put the right region back, or restore one from an image",
                path.display(),
                dir.join(config::FILE).display()
            )));
        }
        refuse_other_version(region)?;
        opened.copy = opened.copy.map(|copy| copy.limited(config.copy_rate.map(u64::from)));
        let fs = Arc::new(attach(opened, how)?);
        let keeper = if how.read_only { None } else { Some(Keeper::start(&fs)?) };
        let interval = how.commit_interval.unwrap_or_else(|| config.interval());
        let copier = match fs.session().copy() {
            Some(_) => Some(Copier::start(&fs, interval)?),
            None => None,
        };
        let mirrored = is_mirrored(fs.session().region(), fs.session().copy());
        let pool = Pool { _keeper: keeper, copier, fs, mirrored, dir: dir.into(), config };
        pool.tell();
        Ok(pool)
    }

    /// Is there a pool at `dir` (a `pool.toml`)?
    pub fn exists(dir: &Path) -> bool {
        dir.join(config::FILE).exists()
    }

    /// The files in shared memory that belong to the pool at `dir`, whether or not they are there. Whoever removes the
    /// pool directory removes them too; removing them alone, with no process attached, is what a reboot does.
    pub fn memory(dir: &Path) -> Result<Vec<PathBuf>> {
        let config = Config::load(dir)?;
        let parts: &[&str] = match config.medium {
            MediumKind::Logged => &["region", "marks"],
            _ if config.copy.is_some() => &["marks"],
            _ => return Ok(Vec::new()),
        };
        let lock = config.lock_path(dir);
        let (lock, uuid) = (std::fs::File::open(&lock).map_err(|e| config::host(&lock, &e))?, config.uuid_bytes()?);
        parts.iter().map(|part| files::shared(&lock, &uuid, part)).collect()
    }

    /// The processes that have the pool at `dir` open, without opening it. One that is being killed counts until all
    /// of it is gone.
    pub fn users(dir: &Path) -> Result<Vec<SessionStatus>> {
        let config = Config::load(dir)?;
        let (path, uuid) = (config.lock_path(dir), config.uuid_bytes()?);
        let lock = std::fs::OpenOptions::new().read(true).write(true).open(&path);
        let lock = lock.map_err(|e| config::host(&path, &e))?;
        let users = pram::attached::processes(&lock, &uuid, RUNTIME_DIR.as_ref())?;
        Ok(users.into_iter().map(status::session_status).collect())
    }

    /// Has any process the pool at `dir` open? Tells so also where nothing says which.
    pub fn is_in_use(dir: &Path) -> Result<bool> {
        let lock = Config::load(dir)?.lock_path(dir);
        match std::fs::OpenOptions::new().read(true).write(true).open(&lock) {
            Ok(file) => Ok(pram::session::in_use(file)?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(config::host(&lock, &e)),
        }
    }

    /// The pool directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a checksummed image of the region to `file`, consistent as of one instant, also while others
    /// work (they wait). `progress(done, total)` in bytes.
    pub fn save(&self, file: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.refuse_own_mount(file)?;
        own::refuse(&self.dir, &self.config, file)?;
        pram::image::save(self.fs.session(), file, progress)?;
        Ok(())
    }

    /// Fails if an image at `file` would take the place of one of the files of the pool at `dir`, without opening it.
    pub fn refuse_own_file(dir: &Path, file: &Path) -> Result<()> {
        own::refuse(dir, &Config::load(dir)?, file)
    }

    /// Opens what the memory of a pool on `logged` holds that cannot be opened otherwise, as its copy on disk is lost or
    /// cannot be written: to look at it, and to save it. Nobody may have the pool open; nothing of it is changed.
    pub fn of_memory(dir: &Path) -> Result<Pool> {
        let config = Config::load(dir)?;
        let policy = Policy { read_only: true, atime: Atime::Never, ..Policy::default() };
        let fs = Arc::new(Fs::over(memory::open(dir, &config)?, policy)?);
        Ok(Pool { _keeper: None, copier: None, fs, mirrored: false, dir: dir.into(), config })
    }

    /// Is there such memory?
    pub fn has_memory(dir: &Path) -> bool {
        let found = Config::load(dir).and_then(|config| memory::find(dir, &config));
        found.is_ok_and(|found| found.is_some())
    }

    /// Fails if `file` is to lie in a mount of this pool: writing it would wait for a pool that stands still until it is
    /// written.
    fn refuse_own_mount(&self, file: &Path) -> Result<()> {
        // As the kernel knows it: the server of a mount, which may be stopped, is not asked.
        let device = |path: &Path| {
            let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
            Some((found.stx_dev_major, found.stx_dev_minor))
        };
        let real = file.canonicalize().or_else(|_| std::path::absolute(file));
        let absolute = real.map_err(|e| config::host(file, &e))?;
        let target = absolute.parent().and_then(device);
        for mountpoint in self.sessions().into_iter().filter_map(|(_, session)| session.mountpoint) {
            let mounted = device(&mountpoint).filter(|on| mountpoint.parent().and_then(device) != Some(*on));
            if mounted.is_some() && mounted == target {
                return Err(Error::Pool(format!(
                    "{} lies in the pool itself, mounted at {}, which stands still while it is saved; choose a file elsewhere",
                    file.display(),
                    mountpoint.display()
                )));
            }
        }
        Ok(())
    }

    /// Makes the pool at `dir` from an image; refuses to overwrite one without `force`. It keeps the medium of the pool
    /// that is there; a new one is made on `medium`, or on `logged`. An interrupted restore leaves what was there
    /// (on a DAX device: a pool that is refused) and can be repeated.
    pub fn restore(
        dir: &Path,
        file: &Path,
        medium: Option<MediumKind>,
        force: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        Self::restore_by(dir, file, medium, force, progress, &mut || Ok(()))
    }

    fn restore_by(
        dir: &Path,
        file: &Path,
        medium: Option<MediumKind>,
        force: bool,
        progress: &mut dyn FnMut(u64, u64),
        step: replaced::Step,
    ) -> Result<()> {
        std::fs::metadata(file).map_err(|e| config::host(file, &e))?;
        let _alone = media::Making::begin(dir)?;
        let old = match Config::read(dir) {
            Err(e) if !force => return Err(e),
            read => read.ok().flatten(),
        };
        let mut config = match (&old, medium) {
            (Some(old), Some(medium)) if medium != old.medium => {
                return Err(Error::Pool(format!("the pool that is there is on `{}`, not on `{medium}`", old.medium)));
            }
            (Some(old), _) => old.clone(),
            (None, medium) => Config::new(medium.unwrap_or(MediumKind::Logged), String::new()),
        };
        let there = match config.medium {
            MediumKind::Logged => config.copy_dir(dir).filter(|dir| files::exist(dir)),
            _ => Some(config.nvram_path(dir)).filter(|path| path.exists()),
        };
        if let Some(path) = there {
            if !force {
                let path = path.display();
                return Err(Error::Pool(format!("{path} exists; overwrite it with `conquest restore --force`")));
            }
            config.refuse_in_use(dir)?;
        }
        // Without the copy's files nothing but its name leads to the memory.
        let orphan = old.as_ref().filter(|_| !dir.join(files::IMAGE).exists()).map(|old| memory::find(dir, old));
        let orphan = orphan.transpose()?.flatten();
        if let Some(region) = &orphan {
            memory::refuse_in_use(region)?;
            if !force {
                return Err(Error::Pool(format!(
                    "{} is the memory of this pool, whose copy is gone: all that is left of it. Save it first with \
                     `conquest save`, or give it up with `conquest restore --force`",
                    region.display()
                )));
            }
        }
        let info = match config.medium {
            MediumKind::Logged => {
                logged::restore(dir, &config, file, progress, step)?;
                orphan.iter().for_each(|region| memory::remove(region));
                return Ok(());
            }
            medium => media::restore_region(file, &config.nvram_path(dir), medium, config.uuid_bytes().ok(), progress)?,
        };
        let uuid = config::uuid_text(&info.uuid);
        // A running copy of what was there.
        config.remove_copy(dir);
        config.uuid = uuid;
        config.write(dir)
    }

    /// Gives back the shared memory of a pool on `logged` that nobody uses: the next opening makes it from the copy.
    pub fn release(dir: &Path) -> Result<()> {
        let config = Config::load(dir)?;
        match config.medium {
            MediumKind::Logged => logged::release(dir, &config.uuid_bytes()?),
            other => Err(Error::Pool(format!("the memory of a pool on `{other}` is its only home; it stays"))),
        }
    }

    /// Makes the pool at `dir` from its copy alone: after the loss of its persistent RAM, or where the files of the
    /// copy and `pool.toml` were brought from another machine. A region that is there is only replaced with `force`.
    /// Where the copy is all that is left, without `pool.toml`, it becomes that of a pool on `logged`.
    /// Returns the instant that the pool is as of, nanoseconds since the epoch.
    pub fn import(dir: &Path, force: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<i64> {
        media::Making::settle(dir)?;
        if Config::read(dir)?.is_none() && files::exist(dir) {
            let _alone = media::Making::begin(dir)?;
            return running::found(dir, force);
        }
        let config = Config::load(dir)?;
        let _alone = media::Making::begin(dir)?;
        if config.medium == MediumKind::Logged {
            files::open(dir).map_err(|e| memory::or_save(e, dir, &config))?;
        }
        config.refuse_in_use(dir)?;
        running::refuse_used_copy(dir, &config)?;
        if !force && !media::is_lost(&config.nvram_path(dir), config.medium)? {
            return Err(Error::Pool(format!(
                "the pool's persistent RAM {} is there, and newer than its copy; to lose it use `conquest import --force`",
                config.nvram_path(dir).display()
            )));
        }
        running::import(dir, &config, progress)
    }
}

/// Opens the media of the pool at `dir`; again if another pool took its place meanwhile.
fn open_media(dir: &Path) -> Result<(Config, Opened)> {
    loop {
        media::Making::settle(dir)?;
        let config = Config::load(dir)?;
        let opened = match config.medium {
            MediumKind::Logged => logged::open(dir, config.uuid_bytes()?).map_err(|e| memory::or_save(e, dir, &config)),
            _ => running::open(dir, &config).map(Some),
        };
        match opened {
            Ok(Some(opened)) => return Ok((config, opened)),
            Ok(None) => {}
            Err(_) if Config::read(dir).is_ok_and(|now| now.is_some_and(|now| now.uuid != config.uuid)) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Where the memory alone would do, whoever waits for a copy waits for each change.
fn is_mirrored(region: &pram::Region, copy: Option<&Copy>) -> bool {
    region.info.medium != pram::MediumKind::Logged && copy.is_some_and(Copy::is_awaited)
}

fn refuse_other_version(region: &pram::Region) -> Result<()> {
    if [layout::WITHOUT_SETTINGS, layout::VERSION].contains(&region.info.app_version) {
        return Ok(());
    }
    Err(Error::Pool(format!(
        "the pool has file system version {}, this program reads versions {} to {}",
        region.info.app_version,
        layout::WITHOUT_SETTINGS,
        layout::VERSION
    )))
}

fn attach(opened: Opened, how: &OpenOptions) -> Result<Fs> {
    let Opened { region, exclusive, copy } = opened;
    let (role, label) = match &how.mount {
        None => (role::API, PathBuf::new()),
        Some(m) => (if m.uring { role::MOUNT_URING } else { role::MOUNT_DEV }, m.mountpoint.clone()),
    };
    let keys = max_inodes(region.geo.size);
    let mirrored = is_mirrored(&region, copy.as_ref());
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

impl Deref for Pool {
    type Target = Fs;
    fn deref(&self) -> &Fs {
        &self.fs
    }
}
