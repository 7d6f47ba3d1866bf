//! The peers of a comparison: pools, in process and mounted, and the host's file systems; made, worked on, and removed.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use conquest::{FormatOptions, MediumKind, OpenOptions, Pool};

use crate::disk::{Disk, Transferred};
use crate::error::Error;
use crate::hosts::{Host, Journal};
use crate::place::{AnyPlace, InProcess, Mounted};
use crate::program::{Mount, Own};

/// A file system under test, by its name for `--on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Tmpfs,
    Ext2,
    Ext4,
    Xfs,
    Btrfs,
    /// Conquest in this process, medium `logged`
    LoggedInproc,
    /// Conquest mounted over io_uring, medium `logged`
    LoggedUring,
    /// Conquest in this process, medium `battery`
    BatteryInproc,
    /// Conquest mounted over io_uring, medium `battery`
    BatteryUring,
    /// Conquest mounted over /dev/fuse, medium `battery`
    BatteryDev,
}

/// A peer's file system, and its name in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    pub name: &'static str,
    pub kind: Kind,
    /// The journal of an ext4 for large files.
    journal: Journal,
}

const fn who(kind: Kind, name: &'static str) -> Who {
    Who { name, kind, journal: Journal::Ordered }
}

pub const TMPFS: Who = who(Kind::Tmpfs, "tmpfs");
pub const EXT2: Who = who(Kind::Ext2, "ext2");
pub const EXT4: Who = who(Kind::Ext4, "ext4");
pub const XFS: Who = who(Kind::Xfs, "xfs");
pub const BTRFS: Who = who(Kind::Btrfs, "btrfs");
pub const ORDERED: Who = who(Kind::Ext4, "ext4 data=ordered");
pub const JOURNAL: Who = Who { journal: Journal::Data, ..who(Kind::Ext4, "ext4 data=journal") };
pub const BARE: Who = Who { journal: Journal::None, ..who(Kind::Ext4, "ext4 without a journal") };
pub const LOGGED: Who = who(Kind::LoggedInproc, "conquest logged");
pub const LOGGED_MOUNTED: Who = who(Kind::LoggedUring, "conquest logged+uring");
pub const BATTERY: Who = who(Kind::BatteryInproc, "conquest battery");
pub const BATTERY_MOUNTED: Who = who(Kind::BatteryUring, "conquest battery+uring");
pub const BATTERY_DEV: Who = who(Kind::BatteryDev, "conquest battery+dev");

/// The peers of the workloads of small files.
pub const ALL: [Who; 10] =
    [TMPFS, EXT2, EXT4, XFS, BTRFS, LOGGED, LOGGED_MOUNTED, BATTERY, BATTERY_MOUNTED, BATTERY_DEV];

impl Who {
    /// The same under another name.
    pub const fn called(self, name: &'static str) -> Who {
        Who { name, ..self }
    }

    /// The medium of a pool.
    pub fn medium(self) -> MediumKind {
        match self.kind {
            Kind::BatteryInproc | Kind::BatteryUring | Kind::BatteryDev => MediumKind::Battery,
            _ => MediumKind::Logged,
        }
    }

    pub fn is_host(self) -> bool {
        matches!(self.kind, Kind::Tmpfs | Kind::Ext2 | Kind::Ext4 | Kind::Xfs | Kind::Btrfs)
    }

    pub fn is_in_process(self) -> bool {
        matches!(self.kind, Kind::LoggedInproc | Kind::BatteryInproc)
    }

    /// The beginning of its findings.
    pub fn how(self) -> &'static str {
        match self.is_in_process() {
            true => "in process",
            false => "mounted",
        }
    }

    /// The name in paths: the mount table would escape a space.
    pub fn file_name(self) -> String {
        self.name.replace([' ', '=', ','], "-")
    }
}

/// A subject with a name in reports.
pub trait Named {
    fn name(&self) -> &'static str;
}

impl Named for Who {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl<T: Named> Named for &T {
    fn name(&self) -> &'static str {
        T::name(self)
    }
}

impl Named for Peer {
    fn name(&self) -> &'static str {
        self.who.name
    }
}

/// A file system, ready for work; dropping it removes it.
pub struct Peer {
    pub who: Who,
    // Declared before its mount: a descriptor into a file system must be closed before that can be unmounted.
    pub place: AnyPlace,
    mount: Option<Mount>,
    // Declared before the file system on which it may lie.
    pool: Option<Own>,
    host: Option<Host>,
    /// The directory that contains all its files outside memory, and no files of others.
    counted: Option<PathBuf>,
}

impl Peer {
    /// A peer of `bytes` in RAM; `options` adapt a pool.
    pub fn in_ram(
        who: Who,
        base: &Path,
        program: &Path,
        bytes: u64,
        options: impl FnOnce(FormatOptions) -> FormatOptions,
    ) -> Result<Peer, Error> {
        match who.is_host() {
            true => Peer::host(who, Host::make(who.kind.fs_type(), base, bytes)?),
            false => {
                let options = options(FormatOptions::on(who.medium(), bytes));
                let pool = Own::make(base.join(who.file_name() + ".pool"), options)?;
                Peer::pool(who, pool, base, program)
            }
        }
    }

    pub fn host(who: Who, host: Host) -> Result<Peer, Error> {
        let place = AnyPlace::Mounted(Mounted::new(&host.dir)?);
        let counted = (who.kind == Kind::Ext4).then(|| host.dir.clone());
        Ok(Peer { who, place, mount: None, pool: None, counted, host: Some(host) })
    }

    /// A file system of the host over the file `image`, an ext4 with the journal in its name.
    pub fn on_image(who: Who, image: PathBuf, dir: PathBuf, bytes: u64) -> Result<Peer, Error> {
        Peer::host(who, Host::direct(who.kind.fs_type(), image, dir, bytes, who.journal)?)
    }

    /// Opens a pool, or mounts it below `base`.
    pub fn pool(who: Who, pool: Own, base: &Path, program: &Path) -> Result<Peer, Error> {
        if who.is_in_process() {
            let place = AnyPlace::InProcess(Box::new(InProcess::open(&pool.dir)?));
            return Ok(Peer { who, place, mount: None, pool: Some(pool), host: None, counted: None });
        }
        let transport = if who.kind == Kind::BatteryDev { ["dev", "/dev/fuse"] } else { ["uring", "io_uring"] };
        let mount = Mount::over(&pool.dir, base.join(format!("{}.mnt", who.file_name())), program, transport)?;
        let place = AnyPlace::Mounted(Mounted::new(&mount.dir)?);
        Ok(Peer { who, place, mount: Some(mount), pool: Some(pool), host: None, counted: None })
    }

    /// Adds the file system of its own on which it lies, whose device counts writes.
    pub fn above(self, host: Host) -> Peer {
        Peer { counted: Some(host.dir.clone()), host: Some(host), ..self }
    }

    /// The directory where it is mounted; fails if it is not mounted.
    pub fn dir(&self) -> Result<&Path, Error> {
        let host = self.host.as_ref().filter(|_| self.who.is_host()).map(|host| &host.dir);
        let dir = self.mount.as_ref().map(|mount| &mount.dir).or(host);
        dir.map(PathBuf::as_path).ok_or_else(|| Error::Wrong(format!("{} is not mounted", self.who.name)))
    }

    /// The process that serves the mount of a pool.
    pub fn server(&self) -> Result<Option<u32>, Error> {
        self.mount.as_ref().map(Mount::pid).transpose()
    }

    /// The directory of the pool, if it is one.
    pub fn pool_dir(&self) -> Option<&Path> {
        self.pool.as_ref().map(|pool| pool.dir.as_path())
    }

    /// Calls `see` with the pool, if it is one.
    pub fn see_pool<T>(&self, see: impl FnOnce(&Pool) -> Result<T, Error>) -> Option<Result<T, Error>> {
        match (&self.place, &self.pool) {
            (AnyPlace::InProcess(place), _) => Some(see(&place.pool)),
            (_, Some(pool)) => {
                Some(Pool::open(&pool.dir, &OpenOptions::default()).map_err(Error::from).and_then(|pool| see(&pool)))
            }
            _ => None,
        }
    }

    /// The transfers of a pool's process so far; `None` for an ext4.
    pub fn transferred(&self) -> Result<Option<Transferred>, Error> {
        match &self.mount {
            Some(mount) => Transferred::by(Some(mount.pid()?)).map(Some),
            None if self.who.is_in_process() => Transferred::by(None).map(Some),
            None => Ok(None),
        }
    }

    /// Bytes written so far to the device beneath. Pending writes are completed first.
    pub fn written(&self) -> Result<u64, Error> {
        let missing = || Error::Wrong(format!("{}: nobody counts what is written", self.who.name));
        let dir = self.counted.as_deref().ok_or_else(missing)?;
        rustix::fs::syncfs(std::fs::File::open(dir).map_err(Error::file(dir))?)?;
        Ok(Disk::at(dir)?.counted().ok_or_else(missing)?.written)
    }

    /// Bytes in use. Pending writes are completed first.
    pub fn used(&self) -> Result<u64, Error> {
        if let Some(used) = self.see_pool(|pool| Ok(pool.status()?.used)) {
            return used;
        }
        let dir = self.dir()?;
        rustix::fs::syncfs(std::fs::File::open(dir).map_err(Error::file(dir))?)?;
        let statvfs = rustix::fs::statvfs(dir)?;
        Ok((statvfs.f_blocks - statvfs.f_bfree) * statvfs.f_frsize)
    }
}

impl Kind {
    /// The type for mount(8).
    fn fs_type(self) -> &'static str {
        match self {
            Kind::Ext2 => "ext2",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            _ => "tmpfs",
        }
    }
}
