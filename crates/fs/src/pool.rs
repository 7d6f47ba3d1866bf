//! A pool directory: `pool.toml` names the media; the region lies beside it or where it says.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::node::Fs;

/// What keeps the persistent RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediumKind {
    /// RAM that the platform keeps: stores are durable when visible.
    Battery,
}

/// How to make a pool.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Bytes of persistent RAM; 0: the size of the file or device at `nvram`.
    pub size: u64,
    /// The region's file; `None`: `nvram` in the pool directory.
    pub nvram: Option<PathBuf>,
    pub medium: MediumKind,
    /// Destroy a pool that is there.
    pub force: bool,
    /// Mode, owner and group of the root directory.
    pub root_mode: u32,
    pub root_owner: (u32, u32),
}

/// How to open a pool.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Never update access times.
    pub noatime: bool,
    /// Update access times on every read.
    pub strictatime: bool,
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
    fs: Fs,
}

/// The facts that `conquest status` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub pool: PathBuf,
    pub uuid: String,
    pub medium: MediumKind,
    pub nvram: PathBuf,
    /// Bytes of the region, and of its parts in use.
    pub size: u64,
    pub used: u64,
    pub free: u64,
    pub inodes: u64,
    /// The attached processes.
    pub sessions: Vec<SessionStatus>,
    pub heap: Vec<HeapStatus>,
    /// Bytes in slots of partly used segments that hold no object, over bytes in such segments.
    pub fragmentation: f64,
    /// The last process left without closing; a sweep is due or under way.
    pub sweep_pending: bool,
}

/// One attached process.
#[derive(Clone, Debug, Serialize)]
pub struct SessionStatus {
    pub pid: u32,
    /// `api` or `mount`.
    pub role: String,
    /// `io_uring` or `/dev/fuse`, for mounts.
    pub transport: Option<String>,
    /// For mounts: where.
    pub mountpoint: Option<PathBuf>,
}

/// One kind and size class of objects.
#[derive(Clone, Debug, Serialize)]
pub struct HeapStatus {
    pub kind: String,
    /// Bytes per object.
    pub size: u64,
    pub objects: u64,
    pub segments: u64,
}

#[allow(unused_variables)]
impl Pool {
    pub fn format(dir: &Path, how: &FormatOptions) -> Result<()> {
        todo!()
    }

    pub fn open(dir: &Path, how: &OpenOptions) -> Result<Pool> {
        todo!()
    }

    /// Is there a pool at `dir` (a `pool.toml`)?
    pub fn exists(dir: &Path) -> bool {
        todo!()
    }

    pub fn status(&self) -> Result<Status> {
        todo!()
    }

    /// Writes a checksummed image of the region to `file`, consistent as of one instant, also while others
    /// work (they wait). `progress(done, total)` in bytes.
    pub fn save(&self, file: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        todo!()
    }

    /// Makes the pool at `dir` from an image; refuses to overwrite a pool without `force`.
    pub fn restore(dir: &Path, file: &Path, force: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        todo!()
    }
}

impl Deref for Pool {
    type Target = Fs;
    fn deref(&self) -> &Fs {
        &self.fs
    }
}
