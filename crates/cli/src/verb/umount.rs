//! `conquest umount`: unmount, and wait until the server is gone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs::poll::poll_until;
use fs::Pool;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use rustix::time::Timespec;

use crate::failure::{Context, Failure, Result};
use crate::mounts::Mounted;
use crate::other_mounts::OtherMount;
use crate::outcome::Awaited;
use crate::stopped_processes::{self, Watch};
use crate::{killed_servers, locate, mounts, serve};

/// Unmount a pool. Returns when its server has closed the pool, or goes on since the pool is mounted elsewhere too.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  conquest umount /mnt/fast\n  conquest umount          (the one that `conquest up` made)"
)]
pub struct Args {
    /// Where it is mounted [default: where `conquest up` mounts]
    dir: Option<PathBuf>,
    /// On logged: give the pool's memory back; mounting it again reads it from the disk
    #[arg(long)]
    release: bool,
}

/// Longest wait for a server that still writes an image.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often a wait looks whether it is for nothing.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Longest wait for one that cannot be asked.
const SHORT_PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &Args) -> Result<()> {
    let dir = locate::absolute(&args.dir.clone().map_or_else(locate::default_dir, Ok)?)?;
    let Some(mounted) = mounts::conquest_at(&dir)? else {
        let shown = dir.display();
        let (one, other) = (mounts::TYPE, mounts::BLOCK_TYPE);
        return Err(Failure::new(format!("no pool is mounted at {shown}; `findmnt -t {one},{other}` lists what is")));
    };
    // It may be stopped at any time.
    let _watch = Watch::over(&mounted);
    killed_servers::wait(&mounted.source, Some(&dir))?;
    // Taken before unmounting: afterwards the server no longer counts as one.
    let server = Server::of(&mounted);
    serve::unmount(&dir)?;
    match server {
        Some(server) => server.wait(&mounted)?,
        None => wait_for_unlisted(&mounted.source),
    }
    match args.release {
        true => Pool::release(&mounted.source).context(|| "unmounted, but the memory stays".into()),
        false => Ok(()),
    }
}

/// The process that serves a mount, and how it ends.
struct Server {
    process: OwnedFd,
    outcome: Option<Awaited>,
}

impl Server {
    /// If it still runs. Found without opening the pool, whose copy may be out of order.
    fn of(mounted: &Mounted) -> Option<Server> {
        let pid = stopped_processes::servers_of(mounted).into_iter().next()?;
        let process = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
        Some(Server { process, outcome: Awaited::of(pid) })
    }

    /// Until it has ended, as it should.
    fn wait(self, mounted: &Mounted) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if matches!(poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&LOOK)), Ok(n) if n > 0) {
                let failed = self.outcome.and_then(Awaited::failure);
                return failed.map_or(Ok(()), |why| Err(Failure::new(format!("unmounted, but {why}"))));
            }
            if let Some(other) = OtherMount::find(&mounted.number) {
                return Err(Failure::new(format!(
                    "unmounted from {}, but its server goes on: the pool is mounted {other}",
                    mounted.dir.display()
                )));
            }
        }
        Err(Failure::new(format!(
            "unmounted, but the server has not closed the pool yet; see {}",
            mounted.source.join(fs::pool::LOG).display()
        )))
    }
}

/// A server is listed nowhere if the memory was deleted that lists it; all the same it has the pool open.
fn wait_for_unlisted(pool: &Path) {
    let is_open = || Pool::users(pool).is_ok_and(|users| users.is_empty()) && Pool::is_in_use(pool).unwrap_or(false);
    // If it lives on, so be it: it is unmounted.
    let _ = poll_until(SHORT_PATIENCE, || !is_open());
}
