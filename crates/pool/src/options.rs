//! How to make a pool, and how to open one.

use std::path::PathBuf;

use exraid::Layout;

use super::config::{CacheConfig, CompressionConfig};
use super::config::{CommitInterval, Rate, Threshold};
use super::medium::MediumKind;
use conquest_fs::setting::Durability;

/// How to make a pool.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Bytes of persistent RAM; 0: the size of the file or device at `nvram`.
    pub size: u64,
    /// The memory's file or device; `None`: `nvram` in the pool directory.
    pub nvram: Option<PathBuf>,
    pub medium: MediumKind,
    /// On `battery` and `dax`: the directory of a backing, relative to the pool directory; `None`: no backing.
    pub backing: Option<PathBuf>,
    /// Whether the backing lies in the pool's regions.
    pub backing_in_regions: InRegions,
    /// The backing is mirrored: an operation returns when its change is in memory and backing.
    pub mirror: bool,
    /// The commit interval of the backing, if not the usual one of the medium.
    pub commit_interval: Option<CommitInterval>,
    /// The most that background work writes to the backing; `None`: as fast as the disk is.
    pub backing_rate: Option<Rate>,
    /// The size beyond which a file's content goes to disk, if not 1 MiB.
    pub threshold: Option<Threshold>,
    /// The memory of the union cache, the times of its writes, and the size of segments, if not the usual ones.
    pub cache: CacheConfig,
    /// When small files that are not in use are compressed, if not at the usual times.
    pub compression: CompressionConfig,
    /// The regions of its disks; none: all content is in persistent RAM.
    pub regions: Vec<NewRegion>,
    /// Destroy an existing pool, and the content of the disks.
    pub force: bool,
    /// Mode, owner and group of the root directory.
    pub root_mode: u32,
    pub root_owner: (u32, u32),
}

/// Whether the backing of a pool's memory lies in its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InRegions {
    No,
    Yes,
    /// On `logged`, if all disks are given, so that they outlive the pool directory, and have room for it.
    IfGiven,
}

/// A disk for a new pool or region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDisk {
    /// A file or block device, relative to the pool directory or absolute. A missing file is made.
    pub path: PathBuf,
    /// Bytes of a file, which is sparse; `None`: its present size or, for a new file, the free room of its host less a
    /// reserve. A device is used whole.
    pub size: Option<u64>,
}

/// A new region: one disk, or several that are one to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegion {
    pub layout: Layout,
    pub disks: Vec<NewDisk>,
}

impl From<NewDisk> for NewRegion {
    fn from(disk: NewDisk) -> NewRegion {
        NewRegion { layout: Layout::Single, disks: vec![disk] }
    }
}

impl FormatOptions {
    /// A pool of `size` bytes in the pool directory, whose root belongs to the caller; never over another. On `logged`, which
    /// is safe on any machine.
    pub fn sized(size: u64) -> Self {
        Self::on(MediumKind::usual(None), size)
    }

    /// The same on another medium.
    pub fn on(medium: MediumKind, size: u64) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        FormatOptions {
            size,
            nvram: None,
            medium,
            backing: None,
            backing_in_regions: InRegions::No,
            mirror: false,
            commit_interval: None,
            backing_rate: None,
            threshold: None,
            cache: CacheConfig::default(),
            compression: CompressionConfig::default(),
            regions: Vec::new(),
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
    /// Never update access times of directories.
    pub nodiratime: bool,
    /// `Strict`: each change of this process is durable when the call returns, on every medium.
    pub durability: Durability,
    /// The commit interval, instead of that of `pool.toml`. Any process of the pool commits for all.
    pub commit_interval: Option<CommitInterval>,
    /// Go on without disks that cannot be opened: content there cannot be read. For processes that inspect the pool.
    pub without_disks: bool,
    /// Fail unless another process has the pool open: for processes that only [look](conquest_fs::Pool::look) at it.
    pub only_beside: bool,
    /// Open it as a *guest*: cheaply, beside a process that does background work, as the mount's server does. This one starts no thread, opens
    /// no disk and no backing, and puts nothing in order; the other commits for it. [`Error::Unattended`](conquest_fs::Error::Unattended)
    /// where there is none, and for changes when it is gone; [`Error::OnDisk`](conquest_fs::Error::OnDisk) for content that lies on disk
    /// alone. Such are for the mount. Not for the mount itself.
    pub guest: bool,
    /// This process is the mount: it caches, and is listed as such in the status. Refused
    /// ([`Error::Served`](conquest_fs::Error::Served)) while another process is.
    pub mount: Option<MountInfo>,
}

/// The mount, as `status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountInfo {
    /// True: io_uring, false: /dev/fuse.
    pub uring: bool,
    /// One of the directories where it is mounted.
    pub mountpoint: PathBuf,
}
