//! Attaches a mount to a directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conquest::Pool;
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
use crate::{detached_mount, fuseblk, helper, mounts};

/// The block size in bytes, where the kernel takes us for the file system of a block device.
const BLOCK_SIZE: u32 = 4096;

/// Most dead mounts that a user's mount removes from one directory.
const STALE_MAX: usize = 16;

/// Mounts `pool` on `dir`; the mount table shows `source`, its directory. Threads of this process serve it from now on,
/// so fork before and not after; [`Mount::run`] does the rest. Takes over SIGINT, SIGTERM and SIGHUP, which `run` takes
/// as a request to unmount.
pub fn mount(pool: Arc<Pool>, source: &Path, dir: &Path, options: &MountOptions) -> Result<Mount> {
    let source = source.canonicalize().unwrap_or_else(|_| source.into());
    let target = Target::find(&source, dir)?;
    let transport = choose_transport(options)?;
    match attach(pool.clone(), &source, &target.dir, options, transport) {
        Err(e) if transport == Transport::Uring && options.transport == TransportChoice::Auto => {
            tracing::warn!("FUSE over io_uring does not work here, using /dev/fuse: {e}");
            attach(pool, &source, &target.dir, options, Transport::Dev)
        }
        mounted => mounted,
    }
}

fn attach(pool: Arc<Pool>, source: &Path, dir: &Path, options: &MountOptions, transport: Transport) -> Result<Mount> {
    if !rustix::process::geteuid().is_root() {
        return attach_by_helper(pool, source, dir, options, transport);
    }
    let (made, device) = made_by_root(&pool, source, dir, options)?;
    // It serves before the mount point can be used.
    let number = detached_mount::number_of(&made).context("number a mount")?;
    let mount = Mount::start(pool, device, dir, number, transport, options)
        .inspect_err(|_| give_up(detached_mount::put_over(&made, dir).map_err(|e| cannot_mount(dir, e)), dir))?;
    match detached_mount::put(&made, source, dir) {
        Ok(()) => Ok(mount),
        Err(e) => {
            drop(made);
            mount.finish();
            Err(cannot_mount(dir, e))
        }
    }
}

/// `fusermount3` mounts on no dead mount, so that is removed just before.
fn attach_by_helper(
    pool: Arc<Pool>,
    source: &Path,
    dir: &Path,
    options: &MountOptions,
    transport: Transport,
) -> Result<Mount> {
    for _ in (0..STALE_MAX).take_while(|_| mounts::is_disconnected(dir)) {
        release(dir, UnmountFlags::DETACH)?;
    }
    let device = helper::mount(source, dir, options)?;
    let number = mounts::at(dir).ok().flatten().map(|mount| mount.number).unwrap_or_default();
    Mount::start(pool, device, dir, number, transport, options).inspect_err(|_| give_up(Ok(()), dir))
}

/// Ends a mount that has no server: nobody may be there to answer the kernel's last message.
pub(crate) fn give_up(placed: Result<()>, dir: &Path) {
    if let Err(e) = placed.and_then(|()| release(dir, UnmountFlags::FORCE | UnmountFlags::DETACH)) {
        tracing::warn!("{e}");
    }
}

/// A directory to mount on.
pub(crate) struct Target {
    /// Its real path.
    pub dir: PathBuf,
    /// Locks out other processes that mount there at the same time, one on top of the other. `None` where nothing can
    /// be locked.
    _alone: Option<OwnedFd>,
}

impl Target {
    /// Fails where nothing can be mounted, and where a pool is mounted whose server is alive.
    pub fn find(source: &Path, dir: &Path) -> Result<Target> {
        let dir = resolve(dir)?;
        let _alone = alone_on(&dir);
        refuse_twice(source, &dir)?;
        Ok(Target { dir, _alone })
    }
}

fn resolve(dir: &Path) -> Result<PathBuf> {
    match probe(dir) {
        Ok(meta) if meta.is_dir() => dir.canonicalize().context(format!("{}", dir.display())),
        Ok(_) => Err(Error::Target(format!("{}: not a directory, cannot be mounted on", dir.display()))),
        Err(e) if is_dead(&e) => Ok(real_path(dir)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let dir = dir.display();
            Err(Error::Target(format!("{dir}: no such directory; make it first: mkdir -p {dir}")))
        }
        Err(e) => Err(Error::System { what: format!("{}", dir.display()), source: e }),
    }
}

fn alone_on(dir: &Path) -> Option<OwnedFd> {
    let opened = |dir: &Path| open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
    // A dead mount cannot be opened.
    let locked = opened(dir).or_else(|| opened(dir.parent()?))?;
    flock(&locked, FlockOperation::LockExclusive).ok()?;
    Some(locked)
}

fn refuse_twice(source: &Path, dir: &Path) -> Result<()> {
    match mounts::at(dir).context(TABLE)? {
        Some(mount) if mount.is_conquest() && mount.is_alive() => {
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

/// A mount attached to no directory yet, and the device that serves it.
fn made_by_root(pool: &Pool, source: &Path, dir: &Path, options: &MountOptions) -> Result<(OwnedFd, Device)> {
    if fuseblk::receives_sync() {
        let name = u128::from_be_bytes(pool.uuid()?);
        let device = open_device()?;
        match fuseblk::fresh(source, name, options.flags, &words(&device, mounts::SUBTYPE, Some(BLOCK_SIZE))) {
            Ok(made) => return Ok((made, device)),
            Err(e) => {
                tracing::warn!("`sync` and `syncfs` will not wait, only `fsync`, and `stat` may tell another device at each mount: no block device to mount as: {e}")
            }
        }
    }
    let device = open_device()?;
    let fresh = detached_mount::fresh("fuse", source, &words(&device, mounts::SUBTYPE, None), options.flags);
    fresh.map(|made| (made, device)).map_err(|e| cannot_mount(dir, e))
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

/// Makes `dir` a further mount point of the mount of `source` at `place`, with flags of its own. Its server is not
/// asked.
pub fn mount_again(source: &Path, place: &Path, dir: &Path, options: &MountOptions) -> Result<()> {
    let target = Target::find(source, dir)?;
    let copied = detached_mount::copy_of(place, options.flags);
    copied.and_then(|mount| detached_mount::put(&mount, source, &target.dir)).map_err(|e| cannot_mount(&target.dir, e))
}

/// Changes `ro`, `rw`, `noatime` and the like of the mount at `dir`, and `sync` of all its mount points.
pub fn remount(dir: &Path, options: &MountOptions) -> Result<()> {
    let real = real_path(dir);
    let mounted = find(&real, dir)?;
    let what = || format!("remount {}", dir.display());
    let syncs = |flags: MountFlags| flags.contains(MountFlags::SYNCHRONOUS);
    let now = MountOptions::parse(&mounted.options).is_ok_and(|now| syncs(now.flags));
    let is_read_only = mounted.read_only && !options.flags.contains(MountFlags::RDONLY);
    if is_read_only || syncs(options.flags) != now {
        detached_mount::change_all(&real, options.flags).context(what())?;
    }
    c_path(&real).and_then(|path| detached_mount::change(&path, options.flags)).context(what())
}
