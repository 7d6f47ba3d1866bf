//! Attaching to a directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs::Pool;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{flock, open, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::{Context, Error, Result};
use crate::init::MAX_PAYLOAD;
use crate::mounts::TABLE;
use crate::options::{choose_transport, no_device, MountOptions, Transport, TransportChoice};
use crate::session::Mount;
use crate::sys::Device;
use crate::unmount::{c_path, find, is_dead, probe, real_path, release};
use crate::{block, detached, helper, mounts};

/// Bytes of a block, where the kernel takes us for the file system of a block device.
const BLOCK_SIZE: u32 = 4096;

/// Most dead mounts cleared away from one directory.
const STALE_MAX: usize = 16;

/// Mounts `pool` on `dir`; `source` (its directory) is what the mount table shows. It serves from now on,
/// by threads of this process, so fork before and not after; [`Mount::run`] does the rest. Takes over SIGINT, SIGTERM and
/// SIGHUP, which that understands as a request to unmount.
pub fn mount(pool: Arc<Pool>, source: &Path, dir: &Path, options: &MountOptions) -> Result<Mount> {
    let source = source.canonicalize().unwrap_or_else(|_| source.into());
    let dir = target(&source, dir)?;
    let transport = choose_transport(options)?;
    let _alone = alone_on(&dir);
    refuse_twice(&source, &dir)?;
    match attach(pool.clone(), &source, &dir, options, transport) {
        Err(e) if transport == Transport::Uring && options.transport == TransportChoice::Auto => {
            tracing::warn!("FUSE over io_uring does not work here, using /dev/fuse: {e}");
            attach(pool, &source, &dir, options, Transport::Dev)
        }
        mounted => mounted,
    }
}

fn attach(pool: Arc<Pool>, source: &Path, dir: &Path, options: &MountOptions, transport: Transport) -> Result<Mount> {
    let device = match rustix::process::geteuid().is_root() {
        true => mount_as_root(&pool, source, dir, options)?,
        false => helper::mount(source, dir, options)?,
    };
    Mount::start(pool, device, dir, transport, options.read_only).inspect_err(|_| {
        // Nobody may be there to answer the kernel's last message.
        if let Err(e) = release(dir, UnmountFlags::FORCE | UnmountFlags::DETACH) {
            tracing::warn!("{e}");
        }
    })
}

/// Keeps others from mounting on `dir` at the same time, on top of each other, until it is dropped. `None` where it cannot
/// be locked.
pub(crate) fn alone_on(dir: &Path) -> Option<OwnedFd> {
    let dir = open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    flock(&dir, FlockOperation::LockExclusive).ok()?;
    Some(dir)
}

/// The directory to mount on, by its real path; dead mounts on it are cleared away.
pub(crate) fn target(source: &Path, dir: &Path) -> Result<PathBuf> {
    for _ in 0..STALE_MAX {
        match probe(dir) {
            Ok(meta) if meta.is_dir() => {
                let dir = dir.canonicalize().context(format!("{}", dir.display()))?;
                refuse_twice(source, &dir)?;
                return Ok(dir);
            }
            Ok(_) => return Err(Error::Target(format!("{}: not a directory, cannot be mounted on", dir.display()))),
            Err(e) if is_dead(&e) => {
                tracing::info!(dir = %dir.display(), "clearing away a mount whose server is gone");
                release(dir, UnmountFlags::DETACH)?;
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let dir = dir.display();
                return Err(Error::Target(format!("{dir}: no such directory; make it first: mkdir -p {dir}")));
            }
            Err(e) => return Err(Error::System { what: format!("{}", dir.display()), source: e }),
        }
    }
    Err(Error::Target(format!("{}: too many dead mounts on it; unmount them: umount -l", dir.display())))
}

fn refuse_twice(source: &Path, dir: &Path) -> Result<()> {
    match mounts::at(dir).context(TABLE)? {
        Some(mount) if mount.is_conquest() => {
            let which =
                if mount.source == source { "this pool".into() } else { format!("pool {}", mount.source.display()) };
            let dir = dir.display();
            Err(Error::Target(format!("{which} is already mounted on {dir}; to unmount it: conquest umount {dir}")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn open_device() -> Result<Device> {
    Device::open().map_err(|e| match e.kind() {
        ErrorKind::NotFound => no_device(),
        ErrorKind::PermissionDenied => Error::Unavailable(
            "no permission to open /dev/fuse; as root: chmod 666 /dev/fuse (in a container: `--device /dev/fuse`)"
                .into(),
        ),
        _ if e.raw_os_error() == Some(libc::ENXIO) || e.raw_os_error() == Some(libc::ENODEV) => no_device(),
        _ => Error::System { what: "open /dev/fuse".into(), source: e },
    })
}

fn mount_as_root(pool: &Pool, source: &Path, dir: &Path, options: &MountOptions) -> Result<Device> {
    if !pool.durable_at_return() && block::is_told_of_sync() {
        let device = open_device()?;
        match block::mount_at(source, dir, options.flags, &words(&device, mounts::SUBTYPE, Some(BLOCK_SIZE))) {
            Ok(()) => return Ok(device),
            Err(e) => {
                tracing::warn!("`sync` and `syncfs` will not wait, only `fsync`: no block device to mount as: {e}")
            }
        }
    }
    let device = open_device()?;
    let fresh = detached::fresh("fuse", source, &words(&device, mounts::SUBTYPE, None), options.flags);
    let mounted = fresh.and_then(|mount| detached::put(&mount, opened(dir)?));
    mounted.map(|()| device).map_err(|e| cannot_mount(dir, e))
}

pub(crate) fn cannot_mount(dir: &Path, e: std::io::Error) -> Error {
    match Errno::from_io_error(&e) {
        Some(Errno::PERM) => Error::Unavailable(
            "not allowed to mount here, although root: CAP_SYS_ADMIN is missing (in a container: `--cap-add SYS_ADMIN`)".into(),
        ),
        Some(Errno::NODEV) => Error::Unavailable("this kernel has no FUSE; load it with `modprobe fuse`".into()),
        _ => Error::System { what: format!("mount on {}", dir.display()), source: e },
    }
}

/// The options of a mount that `device` is to serve.
pub(crate) fn words(device: &Device, subtype: &str, block_size: Option<u32>) -> Vec<(&'static str, String)> {
    let fd = rustix::fd::AsFd::as_fd(device).as_raw_fd();
    let mut words = vec![
        ("subtype", subtype.into()),
        ("fd", fd.to_string()),
        ("rootmode", "40000".into()),
        ("user_id", "0".into()),
        ("group_id", "0".into()),
        ("default_permissions", String::new()),
        ("allow_other", String::new()),
        ("max_read", MAX_PAYLOAD.to_string()),
    ];
    words.extend(block_size.map(|size| ("blksize", size.to_string())));
    words
}

pub(crate) fn opened(dir: &Path) -> Result<OwnedFd, Errno> {
    open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Makes `dir` a further place of the mount of `source` that is at `place`, with flags of its own. Its server is not asked.
pub fn mount_again(source: &Path, place: &Path, dir: &Path, options: &MountOptions) -> Result<()> {
    let dir = target(source, dir)?;
    let _alone = alone_on(&dir);
    refuse_twice(source, &dir)?;
    let mounted = detached::copy_of(place, options.flags).and_then(|mount| detached::put(&mount, opened(&dir)?));
    mounted.map_err(|e| cannot_mount(&dir, e))
}

/// Changes `ro`, `rw`, `noatime` and the like of the mount at `dir`, and `sync` of all places.
pub fn remount(dir: &Path, options: &MountOptions) -> Result<()> {
    let real = real_path(dir);
    let mounted = find(&real, dir)?;
    let what = || format!("remount {}", dir.display());
    let syncs = |flags: MountFlags| flags.contains(MountFlags::SYNCHRONOUS);
    let now = MountOptions::parse(&mounted.options).is_ok_and(|now| syncs(now.flags));
    let is_read_only = mounted.read_only && !options.flags.contains(MountFlags::RDONLY);
    if is_read_only || syncs(options.flags) != now {
        detached::change_all(&real, options.flags).context(what())?;
    }
    c_path(&real).and_then(|path| detached::change(&path, options.flags)).context(what())
}
