//! `conquest save`: writes an image of a pool.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use conquest::Pool;
use conquest::{HowToSave, Saved};
use conquest_fs::fsck::Lost;

use crate::failure::{Context, Failure, Result};
use crate::{inspect, locate, lost_content, mounts, progress, say, size, stall, stopped_processes};

/// Write an image of a pool to a file: its memory and the content of large files, as of one instant, also while it is
/// in use.
#[derive(clap::Args)]
#[command(
    after_help = "What has been lost before of the content on the pool's disks is listed, as `conquest fsck` does; all else is saved.\n\n\
    Examples:\n  conquest save /srv/pool /var/backups/pool.img\n  \
    conquest restore /srv/pool /var/backups/pool.img     (here or on another machine)\n  \
    conquest save --memory-only /srv/pool pool.mem       (small; its disks must stay as they are)"
)]
pub struct Args {
    /// The pool directory, or where it is mounted; or the memory of a lost pool, as `conquest list` shows it
    pool: PathBuf,
    /// The image; an older one stays whole until the new one is complete
    file: PathBuf,
    /// Leave out the content of large files: a restored pool needs its own disks, with their content at that time
    #[arg(long)]
    memory_only: bool,
    /// Replace FILE even if it is no image
    #[arg(long)]
    force: bool,
}

/// How long a mount may take to write back stores through mappings; the image is written without them after that.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::pool_or_memory(&args.pool)?;
    let file = locate::absolute(&args.file)?;
    let how = HowToSave { memory_only: args.memory_only, force: args.force };
    let (path, image) = (pool.clone(), file.clone());
    let saved = stall::watched(&pool, move |steps| {
        let (shown, to) = (path.display(), image.display());
        let open = inspect::open(&path).context(|| format!("cannot open the pool at {shown}"))?;
        let lost = open
            .lost_telling(conquest_fs::fsck::Look::Segments, &mut steps.count(progress::count("looking at segments")));
        warn_of(lost, &shown);
        write_back_stores(&open, &path);
        let mut bar = steps.alone(progress::bytes("saving"));
        open.save_with(&image, how, &mut bar).context(|| format!("cannot save {shown} to {to}"))
    })?;
    let bytes = std::fs::metadata(&file).map(|m| m.len()).unwrap_or(0);
    let (pool, file) = (pool.display(), file.display());
    let extent = extent(&saved);
    say(&format!(
        "{pool} is saved in {file} ({}){extent}. `conquest restore POOL {file}` brings it back.",
        size::show(bytes)
    ))
}

/// Has the kernel write back stores through mappings, so that the image contains them. Not while a disk is late: a
/// process that waits in the kernel for that disk keeps the mount from being unmounted.
fn write_back_stores(open: &Pool, pool: &Path) {
    let all_answer =
        open.disk_work().is_ok_and(|work| work.is_none_or(|work| work.out_of_use.iter().all(|out| out.why != "late")));
    let done = match all_answer {
        true => write_back(pool),
        false => {
            Err(Failure::new("what programs have just stored through mappings is left out: a disk does not answer"))
        }
    };
    if let Err(e) = done {
        let _ = writeln!(std::io::stderr(), "conquest: warning: {e}; all else is saved");
    }
}

/// Writes these stores back if we see the pool mounted. Waits for that with a limit, and not for a stopped server.
fn write_back(pool: &Path) -> Result<()> {
    let mut alive = None;
    for mounted in mounts::conquest()?.into_iter().filter(|m| m.source == pool) {
        // Checked before `is_alive`: a stopped server would not answer.
        stopped_processes::refuse(&mounted)?;
        alive = alive.or_else(|| mounted.is_alive().then_some(mounted));
    }
    let Some(mounted) = alive else { return Ok(()) };
    let dir = mounted.dir.display();
    let what = || format!("what programs have stored through mappings of files at {dir} cannot be written back");
    fuse::write_back(&mounted.dir, Some(PATIENCE)).context(what)
}

/// The content on disks that the image contains, or lacks.
fn extent(saved: &Saved) -> String {
    let shown = |bytes| size::show(bytes);
    match *saved {
        Saved { left_out: left_out @ 1.., .. } => format!(
            ", its memory only: LEFT OUT are {} of content on its disks, without which large files cannot be read",
            shown(left_out)
        ),
        Saved { content, unread: unread @ 1.., .. } => {
            format!(", with {} of content of its disks; {} could NOT BE READ there", shown(content), shown(unread))
        }
        Saved { content: content @ 1.., .. } => format!(", with {} of content of its disks", shown(content)),
        _ => String::new(),
    }
}

/// Warns of content that a restore will not bring back. The image is written all the same, to save the rest.
fn warn_of(lost: conquest_fs::Result<Vec<Lost>>, pool: &dyn Display) {
    let mut err = std::io::stderr();
    let _ = match lost {
        Ok(lost) if lost.is_empty() => Ok(()),
        Ok(lost) => {
            lost_content::warn(&lost);
            writeln!(err, "conquest: warning: {pool} has lost this content before; all else is saved")
        }
        Err(e) => writeln!(err, "conquest: warning: it is unknown whether {pool} has lost content: {e}"),
    };
}
