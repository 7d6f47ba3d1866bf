//! Content of large files that a pool in the making lacks: an image, or a backing, may be older than its disks, whose segments were used
//! again since.
//!
//! The search comes before anything is replaced: in the new memory, mapped for this process alone, and on the disks, to which
//! nothing is written. A DAX device is overwritten in place, so there the search comes afterwards.

use std::fmt;
use std::fs;
use std::path::Path;

use backing::import;
use backing::log::Identity;
use pram::medium::Ram;
use pram::{Mapping, MediumKind, Memory, Session};
use rustix::fs::{Mode, OFlags, CWD};
use rustix::io::Errno;

use crate::config::Config;
use crate::disks::Disks;
use crate::memory::device;
use crate::memory::file::refuse_other_version;
use crate::options::OpenOptions;
use crate::paths::RUNTIME_DIR;
use crate::Pool;
use conquest_fs::error::{Error, Result};
use conquest_fs::fsck::Lost;
use conquest_fs::max_inodes;
use conquest_fs::node::{Atime, Fs, Policy};
use conquest_fs::ubj::{Options, Union};

/// Content of large files that a new pool lacks, by its disks.
#[derive(Debug)]
pub struct Incomplete {
    pub lost: Vec<Lost>,
    /// Why the lack is unknown.
    pub unknown: Option<String>,
    /// The pool has taken its place already.
    pub is_done: bool,
}

/// Called if content is lacking, before anything is replaced: an error stops there. On a DAX device the pool is made by then.
pub type Ask<'a> = &'a mut dyn FnMut(&Incomplete) -> Result<()>;

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if let Some(why) = &self.unknown {
            return write!(f, "it is unknown whether its disks have all content of large files: {why}");
        }
        let mut files: Vec<_> = self.lost.iter().map(|lost| lost.ino).collect();
        files.dedup();
        let files = match files.len() {
            1 => "1 file".into(),
            n => format!("{n} files"),
        };
        write!(f, "its disks lack content of {files}")
    }
}

/// Refuses a pool that lacks content, unless it is made already.
pub fn refuse(found: &Incomplete) -> Result<()> {
    match found.is_done {
        false => Err(Error::Pool(format!("{found}; nothing was changed"))),
        true => {
            tracing::warn!("{found}");
            Ok(())
        }
    }
}

/// Calls `ask` for the pool like `config` that is made for `dir`, if its disks lack content that `memory` leads to.
pub fn ask_of(memory: impl FnOnce() -> Result<Mapping>, dir: &Path, config: &Config, ask: Ask) -> Result<()> {
    match config.disks.is_empty() {
        true => Ok(()),
        false => tell(memory().and_then(|map| find(map, dir, config)), false, ask),
    }
}

/// The same afterwards, if `dir` has a pool on a device.
pub fn ask_afterwards(dir: &Path, config: &Config, ask: Ask) -> Result<()> {
    if config.disks.is_empty() || !device::is_device(&config.nvram_path(dir), config.medium)? {
        return Ok(());
    }
    let how = OpenOptions { read_only: true, without_disks: true, ..OpenOptions::default() };
    tell(Pool::open(dir, &how).and_then(|pool| pool.lost()), true, ask)
}

fn tell(found: Result<Vec<Lost>>, is_done: bool, ask: Ask) -> Result<()> {
    match found {
        Ok(lost) if lost.is_empty() => Ok(()),
        Ok(lost) => ask(&Incomplete { lost, unknown: None, is_done }),
        Err(e) => ask(&Incomplete { lost: Vec::new(), unknown: Some(e.to_string()), is_done }),
    }
}

fn find(memory: Mapping, dir: &Path, config: &Config) -> Result<Vec<Lost>> {
    let size = memory.len();
    let mapped = Memory::open(memory, Box::new(Ram::like(config.medium.into())))?;
    refuse_other_version(&mapped)?;
    let session = Session::private(mapped, max_inodes(size))?;
    let disks = Disks::open_to_look(dir, config)?;
    let union = Union::open_as_it_is(&session, &disks.regions, Options::default())?;
    let policy = Policy { read_only: true, atime: Atime::Never, ..Policy::default() };
    let fs = Fs::over(session, policy)?.with_union(union.map(Into::into));
    let lost = fs.lost()?;
    match fs.union().filter(|union| !lost.is_empty() && union.log().is_whole()) {
        // It may lie in segments that memory which was made anew does not know of yet.
        Some(union) => {
            union.log().find_parts(fs.session())?;
            fs.lost()
        }
        None => Ok(lost),
    }
}

/// The memory from a backing on `logged`, for a pool whose memory is made only when it is opened: in shared memory if that has room, else
/// beside the backing.
pub fn memory_of(disks: &backing::Disks, id: Identity, dir: &Path) -> Result<Mapping> {
    let make = |dir: &Path| Ok::<_, Error>(import::look(disks, id, MediumKind::Logged, &nameless(dir)?)?);
    match make(RUNTIME_DIR.as_ref()) {
        Err(Error::Host { errno: Errno::NOSPC | Errno::NOMEM, .. }) => make(dir),
        made => made,
    }
}

fn nameless(dir: &Path) -> Result<fs::File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR);
    file.map(Into::into).map_err(|errno| Error::host(dir, &errno.into()))
}
