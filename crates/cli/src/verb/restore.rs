//! `conquest restore`: makes a pool from an image.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use conquest::Pool;
use conquest::{Incomplete, NewRegion, Over, Restored};
use rustix::event::{poll, PollFd, PollFlags};

use crate::failure::{Context, Result};
use crate::regions::{self, parse};
use crate::verb::format::Medium;
use crate::{disks, locate, lost_content, mounts, progress, say, size};

/// How long an interrupted restore may take to stop: its thread may hang at a disk.
const STOPS: Duration = Duration::from_secs(5);

/// Make a pool from an image written by `conquest save`.
#[derive(clap::Args)]
#[command(
    after_help = "The content of large files goes to new disks: those that --disk names, one for each region of the pool that was saved \
    and at least as large as that, or sparse files in the pool directory.\n\n\
    A pool that is there keeps its disks, and so does one of an image that was made with --memory-only. Where they lack content that \
    the image leads to, since it was overwritten, restore lists the files and bytes, as `conquest fsck` does, and stops before \
    anything is replaced.\n\n\
    Examples:\n  conquest restore /srv/pool /var/backups/pool.img\n  \
    conquest restore /srv/new /var/backups/pool.img --disk mirror:/dev/sdb,/dev/sdc\n  \
    conquest restore /srv/pool /var/backups/pool.img --force   (over the pool that is there)"
)]
pub struct Args {
    /// The pool directory; created if it does not exist, and else empty
    pool: PathBuf,
    /// The image
    file: PathBuf,
    /// The medium of the persistent RAM of a new pool [default: logged; an existing pool keeps its own]
    #[arg(long, value_enum)]
    medium: Option<Medium>,
    /// A disk for the content of a region, as for `conquest format`; may be given several times
    #[arg(long, value_name = "PATH[:SIZE]|KIND:PATH[:SIZE],...", value_parser = parse)]
    disk: Vec<NewRegion>,
    /// Destroy an existing pool and the content of the disks, or make one in a directory with other files
    #[arg(long)]
    force: bool,
    /// Go on although the pool's disks lack content that the image refers to; the content is listed
    #[arg(long)]
    accept_lost: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::absolute(&args.pool)?;
    let file = locate::absolute(&args.file)?;
    mounts::refuse_mounted(&pool)?;
    let disks = args.disk.iter().map(regions::absolute).collect::<Result<Vec<_>>>()?;
    let over = Over { medium: args.medium.map(Into::into), force: args.force, disks: &disks };
    let (mut bar, beside) = progress::bytes_beside("restoring");
    let stop = leave_nothing_when_interrupted(&pool)?;
    let mut bar = move |done, all| {
        stop.if_asked();
        bar(done, all);
    };
    let mut ask = |found: &Incomplete| lost_content::judge(found, args.accept_lost, &beside);
    let restored = Pool::restore_asking(&pool, &file, over, &mut bar, &mut ask)
        .context(|| format!("cannot restore {} from {}", pool.display(), file.display()))?;
    drop(bar);
    let disks = disks::disk_lines(&pool)?;
    let (pool, file) = (pool.display(), file.display());
    let lacks = lacks(&restored);
    say(&format!("{pool} is restored from {file}. Mount it with `conquest mount {pool} DIR`.{disks}{lacks}"))
}

/// Saved content that the pool lacks.
fn lacks(restored: &Restored) -> String {
    match *restored {
        Restored { left_out: left_out @ 1.., .. } => format!(
            "\nLEFT OUT of the image are {} of content that was on disks: large files cannot be read there",
            size::show(left_out)
        ),
        Restored { unread: unread @ 1.., .. } => format!(
            "\nThe image lacks {} of content that could NOT BE READ when it was made: `conquest scrub` tells where",
            size::show(unread)
        ),
        _ => String::new(),
    }
}

/// Tells the thread that makes the pool of Ctrl-C, or of a signal like it.
struct Stop {
    asked: Arc<AtomicBool>,
    stopped: mpsc::Sender<()>,
}

impl Stop {
    /// Does not return if the end was asked for: the thread makes nothing more.
    fn if_asked(&self) {
        if self.asked.load(Ordering::SeqCst) {
            _ = self.stopped.send(());
            loop {
                std::thread::park();
            }
        }
    }
}

/// At Ctrl-C or a signal like it, stops making the pool and removes the parts made so far. A complete pool stays.
fn leave_nothing_when_interrupted(pool: &Path) -> Result<Stop> {
    let signals = fuse::Signals::catch().context(|| "cannot receive signals".into())?;
    let (pool, is_new) = (pool.to_path_buf(), !pool.exists());
    let ((stopped, has_stopped), asked) = (mpsc::channel(), Arc::new(AtomicBool::new(false)));
    let stop = Stop { asked: asked.clone(), stopped };
    let wait = move || {
        while !poll(&mut [PollFd::new(&signals, PollFlags::IN)], None).is_ok_and(|n| n > 0) {}
        asked.store(true, Ordering::SeqCst);
        // A thread that hangs at a disk does not stop.
        if has_stopped.recv_timeout(STOPS) == Err(mpsc::RecvTimeoutError::Disconnected) {
            return;
        }
        Pool::give_up_making(&pool);
        if is_new {
            let _ = std::fs::remove_dir(&pool);
        }
        std::process::exit(1);
    };
    std::thread::Builder::new().spawn(wait).context(|| "cannot start a thread".into())?;
    Ok(stop)
}
