//! The server process of a mount: opens the pool, mounts it, serves until it is unmounted.

use std::path::Path;
use std::sync::Arc;

use conquest::MountInfo;
use conquest::{MediumKind, OpenOptions, Pool};
use fuse::Transport;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::failure::{Context, Failure, Result};
use crate::mount_request::Request;
use crate::outcome::Outcome;
use crate::{guard, remount};

/// Serves until it is unmounted or gets SIGINT or SIGTERM; calls `ready` once the file system can be used.
pub fn serve(request: &Request, ready: impl FnOnce()) -> Result<()> {
    let (pool, dir) = (request.pool.display(), request.dir.display());
    may_open_more();
    let outcome = Outcome::begin();
    let transport =
        fuse::choose_transport(&request.options.mount).context(|| format!("cannot mount {pool} at {dir}"))?;
    let opened = open(request, transport).context(|| format!("cannot open the pool at {pool}"))?;
    let mount = fuse::mount(opened.clone(), &request.pool, &request.dir, &request.options.mount)
        .context(|| format!("cannot mount {pool} at {dir}"))?;
    tracing::info!("mounted {pool} at {dir}");
    opened.set_transport(mount.transport() == Transport::Uring);
    remount::follow(&opened, mount.number(), request.options.mount.strictatime);
    let guard = guard::start(&mount, &request.pool, &request.dir);
    let served = mount.run(ready).context(|| format!("the mount of {pool} at {dir} ended"));
    drop(guard);
    let failures: Vec<String> = [served, commit(request, &opened), save(request, &opened)]
        .into_iter()
        .filter_map(|done| done.err().map(|failure| failure.to_string()))
        .collect();
    if failures.is_empty() {
        return Ok(());
    }
    let failure = Failure::new(failures.join("; "));
    tracing::error!("{failure}");
    outcome.tell(&failure);
    Err(failure)
}

/// Raises the limit of open files as far as the system permits: a queue for each processor takes some.
fn may_open_more() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!("no more than {:?} files can be open: {e}", limit.current);
    }
}

/// Closing the pool commits too, but here a failure can be reported.
fn commit(request: &Request, opened: &Pool) -> Result<()> {
    opened.sync().map_err(|e| Failure::new(lacking(request, opened, &e)))
}

/// The message that the backing lacks something, and the consequence.
fn lacking(request: &Request, opened: &Pool, e: &conquest_fs::Error) -> String {
    let (pool, backing) = (request.pool.display(), opened.backing_dir().unwrap_or_else(|| request.pool.clone()));
    let (backing, save) = (backing.display(), format!("keep them with `conquest save {pool} FILE`"));
    match opened.medium() {
        MediumKind::Logged => format!(
            "the pool's memory holds changes that its backing in {backing} lacks: {e}. It holds them until the machine \
             stops: mount the pool again when the disk is in order, or {save}"
        ),
        MediumKind::Battery | MediumKind::Dax => format!(
            "the pool's persistent RAM holds changes that its backing in {backing} lacks: {e}. Nothing is lost while it is \
             there: mount the pool again when {backing} is in order, or {save}"
        ),
    }
}

/// Writes the image that `-o save=` requests.
fn save(request: &Request, opened: &Pool) -> Result<()> {
    let Some(file) = &request.options.save else { return Ok(()) };
    let (pool, shown) = (request.pool.display(), file.display());
    opened.save(file, &mut |_, _| {}).map_err(|e| {
        Failure::new(format!(
            "cannot save {pool} to {shown}: {e}; `conquest save {pool} FILE` writes an image elsewhere"
        ))
    })?;
    tracing::info!("saved {pool} to {shown}");
    Ok(())
}

/// The kernel enforces a read-only mount, and lets it become writable at once; the pool only has to omit access times.
fn open(request: &Request, transport: Transport) -> conquest_fs::Result<Arc<Pool>> {
    let how = OpenOptions {
        read_only: false,
        noatime: request.options.mount.noatime || request.options.mount.read_only,
        strictatime: request.options.mount.strictatime,
        nodiratime: request.options.mount.nodiratime(),
        durability: request.options.terms.durability.unwrap_or_default(),
        commit_interval: request.options.terms.commit_interval,
        without_disks: false,
        only_beside: false,
        guest: false,
        mount: Some(MountInfo { uring: transport == Transport::Uring, mountpoint: request.dir.clone() }),
    };
    let opened = match Pool::open(&request.pool, &how) {
        // A pool that can be read but not changed, such as one that lacks a disk after its memory was made anew; it
        // stays read-only.
        Err(conquest_fs::Error::Pool(why)) if request.options.mount.read_only => {
            let how = OpenOptions { read_only: true, ..how };
            Pool::open(&request.pool, &how).inspect(|_| tracing::warn!("only for reading: {why}"))
        }
        opened => opened,
    };
    opened.map(Arc::new)
}

/// Unmounts the mount at `dir`, with or without a living server.
pub fn unmount(dir: &Path) -> Result<()> {
    fuse::umount(dir).context(|| format!("cannot unmount {}", dir.display()))
}
