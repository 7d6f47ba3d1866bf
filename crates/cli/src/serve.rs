//! The server process of a mount: opens the pool, mounts it, serves until it is unmounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs::pool::MountInfo;
use fs::{OpenOptions, Pool};
use fuse::Transport;

use crate::failure::{Context, Result};
use crate::options::Options;
use crate::{guard, remount};

/// What is to be mounted where, and how.
pub struct Request {
    /// Absolute.
    pub pool: PathBuf,
    /// Absolute.
    pub dir: PathBuf,
    pub options: Options,
}

impl Request {
    pub fn new(pool: PathBuf, dir: PathBuf, options: &str) -> Result<Self> {
        Ok(Request { pool, dir, options: Options::parse(options)? })
    }
}

/// Serves until it is unmounted or gets SIGINT or SIGTERM; calls `ready` once the file system can be used.
pub fn serve(request: &Request, ready: impl FnOnce()) -> Result<()> {
    let (pool, dir) = (request.pool.display(), request.dir.display());
    let transport =
        fuse::choose_transport(&request.options.mount).context(|| format!("cannot mount {pool} at {dir}"))?;
    let opened = open(request, transport).context(|| format!("cannot open the pool at {pool}"))?;
    let mount = fuse::mount(opened.clone(), &request.pool, &request.dir, &request.options.mount)
        .context(|| format!("cannot mount {pool} at {dir}"))?;
    tracing::info!("mounted {pool} at {dir}");
    remount::follow(&opened, &request.dir, request.options.mount.strictatime);
    let guard = guard::start(&mount, request);
    ready();
    let served = mount.run().context(|| format!("the mount of {pool} at {dir} ended"));
    drop(guard);
    if let Some(file) = &request.options.save {
        let file = file.display();
        opened
            .save(Path::new(&file.to_string()), &mut |_, _| {})
            .context(|| format!("cannot save {pool} to {file}"))?;
        tracing::info!("saved {pool} to {file}");
    }
    served
}

/// A read-only mount is the kernel's to guard, which lets it become writable at once; what remains to us is
/// not to note accesses.
fn open(request: &Request, transport: Transport) -> fs::Result<Arc<Pool>> {
    let how = OpenOptions {
        read_only: false,
        noatime: request.options.mount.noatime || request.options.mount.read_only,
        strictatime: request.options.mount.strictatime,
        durability: request.options.terms.durability.unwrap_or_default(),
        commit_interval: request.options.terms.commit_interval,
        mount: Some(MountInfo { uring: transport == Transport::Uring, mountpoint: request.dir.clone() }),
    };
    Pool::open(&request.pool, &how).map(Arc::new)
}

/// Unmounts what is at `dir`, whether its server lives or not.
pub fn unmount(dir: &Path) -> Result<()> {
    fuse::umount(dir).context(|| format!("cannot unmount {}", dir.display()))
}
