//! The server process of a mount: opens the pool, mounts it, serves until it is unmounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs::pool::MountInfo;
use fs::{OpenOptions, Pool};
use fuse::Transport;

use crate::failure::{Context, Failure, Result};
use crate::{locate, remount};

/// What is to be mounted where, and how.
pub struct Request {
    /// Absolute.
    pub pool: PathBuf,
    /// Absolute.
    pub dir: PathBuf,
    /// As given.
    pub options: String,
    mount: fuse::MountOptions,
    /// Write an image here once it is unmounted.
    save: Option<PathBuf>,
}

impl Request {
    /// Reads the options; `save=FILE` is ours, the rest belongs to the mount.
    pub fn new(pool: PathBuf, dir: PathBuf, options: &str) -> Result<Self> {
        let (ours, theirs): (Vec<&str>, Vec<&str>) =
            options.split(',').filter(|o| !o.is_empty()).partition(|o| o.starts_with("save="));
        let mount = fuse::MountOptions::parse(&theirs.join(","))
            .map_err(|e| Failure::new(format!("-o {options}: {e}; see `conquest mount --help`")).with_status(2))?;
        let save = match ours.last().and_then(|o| o.strip_prefix("save=")) {
            Some("") => {
                return Err(Failure::new("-o save= needs a file, e.g. save=/var/backups/pool.img").with_status(2))
            }
            Some(file) => Some(locate::absolute(Path::new(file))?),
            None => None,
        };
        // Absolute, because the background half has another working directory.
        let saved = save.iter().map(|file| format!("save={}", file.display()));
        let options = theirs.iter().map(|o| o.to_string()).chain(saved).collect::<Vec<_>>().join(",");
        Ok(Request { pool, dir, options, mount, save })
    }

    /// Gives the mount that is at `dir` the flags that the options name.
    pub fn remount(&self) -> Result<()> {
        fuse::remount(&self.dir, &self.mount).context(|| format!("cannot remount {}", self.dir.display()))
    }
}

/// Serves until it is unmounted or gets SIGINT or SIGTERM; calls `ready` once the file system can be used.
pub fn serve(request: &Request, ready: impl FnOnce()) -> Result<()> {
    let (pool, dir) = (request.pool.display(), request.dir.display());
    let transport = fuse::choose_transport(&request.mount).context(|| format!("cannot mount {pool} at {dir}"))?;
    let opened = open(request, transport).context(|| format!("cannot open the pool at {pool}"))?;
    let mount = fuse::mount(opened.clone(), &request.pool, &request.dir, &request.mount)
        .context(|| format!("cannot mount {pool} at {dir}"))?;
    tracing::info!("mounted {pool} at {dir}");
    remount::follow(&opened, &request.dir, request.mount.strictatime);
    ready();
    let served = mount.run().context(|| format!("the mount of {pool} at {dir} ended"));
    if let Some(file) = &request.save {
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
        noatime: request.mount.noatime || request.mount.read_only,
        strictatime: request.mount.strictatime,
        mount: Some(MountInfo { uring: transport == Transport::Uring, mountpoint: request.dir.clone() }),
    };
    Pool::open(&request.pool, &how).map(Arc::new)
}

/// Unmounts what is at `dir`, whether its server lives or not.
pub fn unmount(dir: &Path) -> Result<()> {
    fuse::umount(dir).context(|| format!("cannot unmount {}", dir.display()))
}
