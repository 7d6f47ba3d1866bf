//! An open file: what all descriptors share that were made by one `open` and by duplicating.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use conquest::{Ino, Kind, Pool};
use pram::mem::descriptor::Own;

/// Where the next read or write is: in a file an offset, in a directory a cookie.
#[derive(Default)]
pub struct Position {
    pub at: u64,
    /// The kernel has it: the descriptors are real ones now.
    pub is_kernels: bool,
}

pub struct OpenFile {
    pool: Arc<Pool>,
    pub ino: Ino,
    pub kind: Kind,
    /// The directory that it was found in.
    pub parent: Ino,
    /// As `F_GETFL` returns them.
    flags: AtomicU32,
    position: Mutex<Position>,
    /// A descriptor of the mount for the same file, with the same flags.
    pub real: OnceLock<Own>,
    /// The process may have POSIX locks of the file by that descriptor.
    pub may_be_locked: AtomicBool,
    /// That descriptor stays open: closing it would take the process's locks of the file.
    pub keeps_real: AtomicBool,
}

/// How many open files of this process are directories.
static DIRECTORIES: AtomicUsize = AtomicUsize::new(0);

#[inline(always)]
pub fn is_any_a_directory() -> bool {
    DIRECTORIES.load(Ordering::Relaxed) > 0
}

impl OpenFile {
    /// Takes over a reference to the inode.
    pub fn new(pool: Arc<Pool>, (ino, kind, parent): (Ino, Kind, Ino), flags: u32) -> OpenFile {
        let (flags, position) = (AtomicU32::new(flags), Mutex::default());
        if kind == Kind::Directory {
            DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        }
        OpenFile {
            pool,
            ino,
            kind,
            parent,
            flags,
            position,
            real: OnceLock::new(),
            may_be_locked: AtomicBool::new(false),
            keeps_real: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn has(&self, flag: i32) -> bool {
        self.flags() & flag as u32 != 0
    }

    #[inline(always)]
    pub fn reads(&self) -> bool {
        self.flags() & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32
    }

    #[inline(always)]
    pub fn writes(&self) -> bool {
        self.flags() & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
    }

    /// Can paths begin here, and nothing else (O_PATH)?
    #[inline(always)]
    pub fn is_place(&self) -> bool {
        self.has(libc::O_PATH)
    }

    #[inline(always)]
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    #[inline(always)]
    pub fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.keeps_real.load(Ordering::Relaxed) {
            self.real.take().into_iter().for_each(std::mem::forget);
        }
        if self.is_dir() {
            DIRECTORIES.fetch_sub(1, Ordering::Relaxed);
        }
        self.pool.release(self.ino, 1);
    }
}
