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
    /// Does the backing lie in the pool's regions?
    pub backing_in_regions: InRegions,
    /// The backing is a mirror: an operation returns when it is in both.
    pub mirror: bool,
    /// How often what has changed goes to the backing, if not as usual for the medium.
    pub commit_interval: Option<CommitInterval>,
    /// How fast it goes there where nobody waits for it; `None`: as fast as the disk is.
    pub backing_rate: Option<Rate>,
    /// Beyond what size a file's content goes to disk, if not beyond 1 MiB.
    pub threshold: Option<Threshold>,
    /// What memory the union cache has, when it writes, and how large segments are, if not as usual.
    pub cache: CacheConfig,
    /// When small files that nobody uses are compressed, if not as usual.
    pub compression: CompressionConfig,
    /// The regions of its disks; none: all content is in persistent RAM.
    pub regions: Vec<NewRegion>,
    /// Destroy a pool that is there, and what is on the disks.
    pub force: bool,
    /// Mode, owner and group of the root directory.
    pub root_mode: u32,
    pub root_owner: (u32, u32),
}

/// Does the backing of a pool's memory lie in its regions?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InRegions {
    No,
    Yes,
    /// On `logged`, where all disks were given, which outlive the pool directory, and have room for it.
    IfGiven,
}

/// A disk that a pool is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDisk {
    /// A file or block device, relative to the pool directory or absolute. A file that is not there is made.
    pub path: PathBuf,
    /// Bytes of a file, which is sparse; `None`: those that it has, or, of one that is made, what its host has free, less a
    /// reserve. A device is used whole.
    pub size: Option<u64>,
}

/// A region that a pool is to have: a disk, or several that are one to the log.
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
    /// Never update those of directories.
    pub nodiratime: bool,
    /// `Strict`: whatever this process changes is durable when the call returns, on every medium.
    pub durability: Durability,
    /// Commit to the backing this often, instead of what `pool.toml` says. Any process of the pool commits for
    /// all.
    pub commit_interval: Option<CommitInterval>,
    /// Go on without disks that cannot be opened: what lies there cannot be read. For who looks at the pool.
    pub without_disks: bool,
    /// Fail unless another process has the pool open: for who [looks](conquest_fs::Pool::look) at it.
    pub only_beside: bool,
    /// This process is the mount: it caches, and is listed as such in the status. Refused
    /// ([`Error::Served`](conquest_fs::Error::Served)) while another process is.
    pub mount: Option<MountInfo>,
}

/// What `status` says of the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountInfo {
    /// True: io_uring, false: /dev/fuse.
    pub uring: bool,
    /// One of the directories where it is mounted.
    pub mountpoint: PathBuf,
}
