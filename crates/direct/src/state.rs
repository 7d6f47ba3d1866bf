//! What an engine has, and the places that paths and descriptors name.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use conquest::{Durability, Error, Fs, Ino, OpenOptions, Pool, Result, ROOT};
use pram::mem::descriptor::Kept;
use rustix::fs::{open, AtFlags, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{getrlimit, Resource};

use crate::descriptors::Descriptors;
use crate::identity::{has_all_users, Identities};
use crate::mapped::look_at_maps;
use crate::open_file::OpenFile;
use crate::stat::OfMount;
use crate::Mounted;

/// A mount flag that `rustix` does not know: symbolic links are not followed.
pub const NOSYMFOLLOW: u64 = 0x2000;

pub struct State {
    pub pool: Arc<Pool>,
    pub mounted: Mounted,
    /// The root directory of the mount, opened once a file is by its handle.
    pub opened_root: OnceLock<Kept>,
    pub mount: OfMount,
    /// Do programs on the mount not run?
    pub noexec: bool,
    pub identities: Identities,
    pub descriptors: Descriptors,
    /// A descriptor that is of no use, of which placeholders are duplicates.
    pub useless: Kept,
    /// The working directory if it is in the pool, or 0.
    pub working_directory: AtomicU64,
    /// If the working directory lies above the mount: where in the mount's path the part begins that leads from one to the other. Else 0, and no
    /// relative path begins like the mount's.
    pub from_here: AtomicUsize,
    /// RLIMIT_FSIZE.
    pub size_limit: AtomicU64,
    /// Does the kernel open all files?
    pub opens_only_real: AtomicBool,
    pub locks: Mutex<Locks>,
    /// How many entries that has.
    pub lock_count: AtomicUsize,
}

/// The POSIX locks of this process: the kernel takes them all when any descriptor of the file is closed.
#[derive(Default)]
pub struct Locks {
    /// Open files by whose descriptors it may have some.
    pub by: Vec<(Ino, Weak<OpenFile>)>,
    /// Inodes of which it may have some by descriptors that are real now.
    pub by_real: Vec<Ino>,
}

fn refused(why: &str) -> Error {
    Error::Pool(format!("no direct access: {why}"))
}

impl State {
    pub fn new(pool: &Path, mounted: Mounted) -> Result<State> {
        let identities = Identities::new()?;
        if identities.current().is_none() || !has_all_users() {
            return Err(refused("only the kernel knows what this process may do"));
        }
        let flags = StatVfsMountFlags::from_bits_retain(mounted.flags);
        if flags.contains(StatVfsMountFlags::RDONLY) || flags.bits() & NOSYMFOLLOW != 0 {
            return Err(refused("the mount is restricted"));
        }
        let options = options(flags);
        let mount = of_mount(&mounted)?;
        look_at_maps(mounted.dev)?;
        Ok(State {
            pool: Arc::new(Pool::open(pool, &options)?),
            mount,
            noexec: flags.contains(StatVfsMountFlags::NOEXEC),
            mounted,
            opened_root: OnceLock::new(),
            identities,
            descriptors: Descriptors::default(),
            useless: Kept::new(useless()?)?,
            working_directory: AtomicU64::new(0),
            from_here: AtomicUsize::new(0),
            size_limit: AtomicU64::new(size_limit()),
            opens_only_real: AtomicBool::new(false),
            locks: Mutex::default(),
            lock_count: AtomicUsize::new(0),
        })
    }

    #[inline(always)]
    pub fn fs(&self) -> &Fs {
        &self.pool
    }

    pub fn refresh_limits(&self) {
        self.size_limit.store(size_limit(), Ordering::Relaxed);
    }
}

/// This process uses the pool as the mount does.
fn options(flags: StatVfsMountFlags) -> OpenOptions {
    let noatime = flags.contains(StatVfsMountFlags::NOATIME);
    OpenOptions {
        guest: true,
        noatime,
        strictatime: !noatime && !flags.contains(StatVfsMountFlags::RELATIME),
        nodiratime: flags.contains(StatVfsMountFlags::NODIRATIME),
        durability: match flags.contains(StatVfsMountFlags::SYNCHRONOUS) {
            true => Durability::Strict,
            false => Durability::default(),
        },
        ..OpenOptions::default()
    }
}

fn of_mount(mounted: &Mounted) -> std::result::Result<OfMount, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let root = rustix::fs::statx(mounted.root.lend()?, "", flags, StatxFlags::INO | StatxFlags::MNT_ID)?;
    let dev = rustix::fs::makedev(root.stx_dev_major, root.stx_dev_minor);
    Ok(OfMount {
        dev: mounted.dev,
        mnt_id: root.stx_mnt_id,
        attributes_mask: root.stx_attributes_mask.bits(),
        // A directory of the pool may be mounted alone.
        root: if dev == mounted.dev { root.stx_ino } else { ROOT },
    })
}

/// A symbolic link that can be opened anywhere, as such: nothing can be done with the descriptor.
pub fn useless() -> std::result::Result<OwnedFd, Errno> {
    open("/proc/self", OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn size_limit() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}
