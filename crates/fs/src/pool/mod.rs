//! A pool directory: `pool.toml` names the media; the region lies beside it or where it says.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | opening and closing |
//! | [`anew`] | making a pool: `format` and `restore` |
//! | [`config`] | `pool.toml` |
//! | [`media`] | making and finding the region's file |
//! | [`logged`] | the memory and copy of a pool on ordinary RAM |
//! | [`memory`] | the memory of such a pool alone, where its copy cannot be used |
//! | [`staged`] | where a pool is made, beside what is there |
//! | [`replaced`] | what was made so, in the place of what is there |
//! | [`origin`] | which pool memory belongs to |
//! | [`running`] | the running copy of a pool on memory that survives a power cut |
//! | [`files`] | the files of a copy, and those in shared memory |
//! | [`direct`] | a file of a copy, read and written past the page cache |
//! | [`room`] | room in shared memory, made while it is filled |
//! | [`held`] | what becomes of those files while they are in use |
//! | [`copier`] | commits in time, and checkpointing |
//! | [`live`] | what a process keeps to, and asking another to change that |
//! | [`status`] | the facts that `conquest status` prints |
//! | [`own`] | the files of a pool, which an image must not replace |
//! | [`keeper`] | background work |
//! | [`ticker`] | threads that look again and again |

mod anew;
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
mod origin;
mod own;
mod replaced;
mod room;
mod running;
mod staged;
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
    /// Makes an empty pool at `dir`. It takes its place in one step: an interrupted format leaves what was there, or the new
    /// pool. (On a DAX device it leaves no pool, and can be repeated.)
    pub fn format(dir: &Path, how: &FormatOptions) -> Result<()> {
        anew::format(dir, how, &mut || Ok(()))
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

    /// Is there a pool at `dir` (a `pool.toml`, or one that takes its place when the pool is opened)?
    pub fn exists(dir: &Path) -> bool {
        dir.join(config::FILE).exists() || replaced::is_due(dir)
    }

    /// The files in shared memory that belong to the pool at `dir`, whether or not they are there. Whoever removes the
    /// pool directory removes them too; removing them alone, with no process attached, is what a reboot does.
    pub fn memory(dir: &Path) -> Result<Vec<PathBuf>> {
        let config = load(dir)?;
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
        let config = load(dir)?;
        let (path, uuid) = (config.lock_path(dir), config.uuid_bytes()?);
        let lock = std::fs::OpenOptions::new().read(true).write(true).open(&path);
        let lock = lock.map_err(|e| config::host(&path, &e))?;
        let users = pram::attached::processes(&lock, &uuid, RUNTIME_DIR.as_ref())?;
        Ok(users.into_iter().map(status::session_status).collect())
    }

    /// Has any process the pool at `dir` open? Tells so also where nothing says which.
    pub fn is_in_use(dir: &Path) -> Result<bool> {
        let lock = load(dir)?.lock_path(dir);
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

    /// Where its copy on disk lies, if it has one.
    pub fn copy_dir(&self) -> Option<PathBuf> {
        self.config.copy_dir(&self.dir).map(|copy| copy.components().collect())
    }

    pub fn medium(&self) -> MediumKind {
        self.config.medium
    }

    /// Writes a checksummed image of the region to `file`, consistent as of one instant, also while others
    /// work (they wait). `progress(done, total)` in bytes.
    pub fn save(&self, file: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.refuse_own_mount(file)?;
        own::refuse(&self.dir, &self.config, file)?;
        pram::save::save(self.fs.session(), file, progress)?;
        Ok(())
    }

    /// Fails if an image at `file` would take the place of one of the files of the pool at `dir`, without opening it.
    pub fn refuse_own_file(dir: &Path, file: &Path) -> Result<()> {
        own::refuse(dir, &load(dir)?, file)
    }

    /// Opens what the memory of a pool on `logged` holds that cannot be opened otherwise, as its copy on disk is lost or
    /// cannot be written: to look at it, and to save it. Nobody may have the pool open; nothing of it is changed.
    pub fn of_memory(dir: &Path) -> Result<Pool> {
        let config = memory::config(dir)?;
        let policy = Policy { read_only: true, atime: Atime::Never, ..Policy::default() };
        let fs = Arc::new(Fs::over(memory::open(dir, &config)?, policy)?);
        Ok(Pool { _keeper: None, copier: None, fs, mirrored: false, dir: dir.into(), config })
    }

    /// The file that such memory is in, if there is any; also of a pool of which nothing else is left.
    pub fn memory_alone(dir: &Path) -> Result<Option<PathBuf>> {
        match load(dir).map_or_else(|_| memory::lost(dir), |config| Ok(Some(config)))? {
            Some(config) => memory::find(dir, &config),
            None => Ok(None),
        }
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
        anew::restore(dir, file, anew::Over { medium, force }, progress, &mut || Ok(()))
    }

    /// Gives back the shared memory of a pool on `logged` that nobody uses: the next opening makes it from the copy.
    pub fn release(dir: &Path) -> Result<()> {
        let config = load(dir)?;
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
            return Err(running::kept(dir, &config));
        }
        running::import(dir, &config, progress)
    }
}

/// The configuration of the pool at `dir`, when what was interrupted is finished.
fn load(dir: &Path) -> Result<Config> {
    media::Making::settle(dir)?;
    Config::load(dir)
}

/// Opens the media of the pool at `dir`; again if another pool took its place meanwhile.
fn open_media(dir: &Path) -> Result<(Config, Opened)> {
    loop {
        let config = load(dir)?;
        let opened = match config.medium {
            MediumKind::Logged => logged::open(dir, config.uuid_bytes()?).map_err(|e| memory::or_save(e, dir, &config)),
            _ => running::open(dir, &config),
        };
        let is_another = || Config::read(dir).is_ok_and(|now| now.is_some_and(|now| now.uuid != config.uuid));
        if replaced::is_due(dir) || is_another() {
            continue;
        }
        match opened {
            Ok(Some(opened)) => return Ok((config, opened)),
            Ok(None) => {}
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
