//! `conquest umount`: unmounts, and waits until the server is gone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conquest::Pool;
use conquest_fs::poll::poll_until;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use rustix::time::Timespec;

use crate::failure::{Context, Failure, Result};
use crate::mounts::Mounted;
use crate::other_mounts::OtherMount;
use crate::outcome::Awaited;
use crate::stopped_processes::Watch;
use crate::verb::export;
use crate::{killed_servers, locate, mount_points, mounts, say, serve, servers};

/// Unmount one mount point, or all. After the last, wait until the server has closed the pool.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    conquest umount /mnt/fast     (other mount points of the pool stay)\n  \
    conquest umount /srv/pool     (all mount points of the pool)\n  \
    conquest umount               (all mount points of the pool of `conquest up`)")]
pub struct Args {
    /// The directory where it is mounted, or the pool directory for all its mount points [default: the pool that is
    /// mounted where `conquest up` mounts, or else the default pool]
    dir: Option<PathBuf>,
    /// On logged: release the pool's memory; the next mount reads it from disk
    #[arg(long)]
    release: bool,
}

/// Longest wait for a server that still writes an image.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often a wait checks whether the server goes on for other mounts.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Longest wait for a server that cannot be asked.
const SHORT_PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &Args) -> Result<()> {
    if let Some(dir) = &args.dir {
        let dir = locate::absolute(dir)?;
        if export::is_shown(&dir) {
            return export::umount(&dir);
        }
    }
    let (pool, going) = named(args)?;
    // It may be stopped at any time.
    let _watches: Vec<Watch> = going.iter().map(Watch::over).collect();
    killed_servers::wait(&pool)?;
    let staying = |place: &Mounted| going.iter().all(|gone| gone.id != place.id);
    let stay: Vec<Mounted> = mounts::of(&pool)?.into_iter().filter(staying).collect();
    if args.release && !stay.is_empty() {
        let (shown, at) = (pool.display(), mount_points::list(&stay));
        return Err(Failure::new(format!(
            "--release: {shown} is also mounted at {at}; `conquest umount {shown} --release` unmounts it everywhere"
        )));
    }
    // Opened before unmounting: afterwards the process no longer counts as a server.
    let server = going.first().and_then(Server::of);
    // The latest first: it may cover an earlier one.
    going.iter().rev().try_for_each(|place| serve::unmount(&place.dir))?;
    let last = going.last().filter(|last| stay.iter().any(|place| place.number == last.number));
    match (last, server) {
        (Some(last), _) => {
            let (dir, at) = (last.dir.display(), mount_points::list(&stay));
            return say(&format!("unmounted from {dir}; {} stays mounted at {at}", pool.display()));
        }
        (None, Some(server)) => server.wait(&going)?,
        (None, None) => {}
    }
    wait_for_files(&pool);
    match args.release {
        true => Pool::release(&pool).context(|| "unmounted, but the memory stays".into()),
        false => Ok(()),
    }
}

/// The pool, and the mounts to remove, the oldest first.
fn named(args: &Args) -> Result<(PathBuf, Vec<Mounted>)> {
    let (path, all) = match &args.dir {
        Some(dir) => (locate::absolute(dir)?, false),
        None => (locate::absolute(&locate::default_dir()?)?, true),
    };
    let pool = match mounts::conquest_at(&path)? {
        Some(mounted) if !all => return Ok((mounted.source.clone(), vec![mounted])),
        Some(mounted) => mounted.source,
        None if all => locate::absolute(&locate::default_pool()?)?,
        None => path,
    };
    let places = mounts::of(&pool)?;
    if places.is_empty() {
        let (shown, one, other) = (pool.display(), mounts::TYPE, mounts::BLOCK_TYPE);
        return Err(Failure::new(match Pool::exists(&pool) {
            true => format!("{shown} is not mounted; `findmnt -t {one},{other}` lists what is"),
            false => format!("no pool is mounted at {shown}; `findmnt -t {one},{other}` lists what is"),
        }));
    }
    Ok((pool, places))
}

/// The process that serves a mount, and its outcome.
struct Server {
    process: OwnedFd,
    outcome: Option<Awaited>,
}

impl Server {
    /// The server, if it still runs. Found without opening the pool, whose backing may be out of order.
    fn of(mounted: &Mounted) -> Option<Server> {
        let pid = servers::of(mounted).into_iter().next()?;
        let process = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
        Some(Server { process, outcome: Awaited::of(pid) })
    }

    /// Waits until it has ended. Fails if it goes on for mounts that we do not see.
    fn wait(self, gone: &[Mounted]) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if matches!(poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&LOOK)), Ok(n) if n > 0) {
                let failed = self.outcome.and_then(Awaited::failure);
                return failed.map_or(Ok(()), |why| Err(Failure::new(format!("unmounted, but {why}"))));
            }
            if let Some(elsewhere) = gone.iter().find_map(|place| OtherMount::find(&place.number)) {
                let dirs = mount_points::list(gone);
                return Err(Failure::new(format!(
                    "unmounted from {dirs}, but its server goes on: the pool is mounted {elsewhere}"
                )));
            }
        }
        let log = gone.first().map(|place| place.source.join(conquest::LOG)).unwrap_or_default();
        Err(Failure::new(format!("unmounted, but the server has not closed the pool yet; see {}", log.display())))
    }
}

/// Waits until no process has the pool's files open, so that their file system can be unmounted. A server is not listed
/// if the memory with the list was deleted, and the kernel may hold files of a killed server after its end.
fn wait_for_files(pool: &Path) {
    let is_held = || Pool::users(pool).is_ok_and(|users| users.is_empty()) && Pool::is_held(pool).unwrap_or(false);
    // If another process holds them on, so be it: the pool is unmounted.
    let _ = poll_until(SHORT_PATIENCE, || !is_held());
}
