//! `conquest save`: write an image of a pool.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use fs::fsck::Lost;

use crate::failure::{Context, Result};
use crate::{inspect, locate, lost, progress, say, size, stall};

/// Write an image of a pool to a file, also while it is in use.
#[derive(clap::Args)]
#[command(
    after_help = "What has been lost before of the content on the pool's disks is listed, as `conquest fsck` does.\n\n\
    Examples:\n  conquest save /srv/pool /var/backups/pool.img\n  \
    conquest restore /srv/pool /var/backups/pool.img     (here or on another machine)"
)]
pub struct Args {
    /// The pool directory, or where it is mounted; or the memory of a pool that is lost, as other commands name it
    pool: PathBuf,
    /// The image; an older one stays whole until the new one is complete
    file: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::pool_or_memory(&args.pool)?;
    let file = locate::absolute(&args.file)?;
    let (path, image) = (pool.clone(), file.clone());
    stall::watched(&pool, move |steps| {
        let (shown, to) = (path.display(), image.display());
        let open = inspect::open(&path).context(|| format!("cannot open the pool at {shown}"))?;
        let lost = open.lost_telling(&mut steps.count(progress::count("looking at segments")));
        warn_of(lost, &shown);
        let mut bar = steps.alone(progress::bytes("saving"));
        open.save(&image, &mut bar).context(|| format!("cannot save {shown} to {to}"))
    })?;
    let bytes = std::fs::metadata(&file).map(|m| m.len()).unwrap_or(0);
    let (pool, file) = (pool.display(), file.display());
    say(&format!("{pool} is saved in {file} ({}). `conquest restore POOL {file}` brings it back.", size::show(bytes)))
}

/// Tells what the image will not bring back either. It is saved all the same: the rest is to be kept.
fn warn_of(lost: fs::Result<Vec<Lost>>, pool: &dyn Display) {
    let mut err = std::io::stderr();
    let _ = match lost {
        Ok(lost) if lost.is_empty() => Ok(()),
        Ok(lost) => {
            lost::warn(&lost);
            writeln!(err, "conquest: warning: {pool} has lost this content before; all else is saved")
        }
        Err(e) => writeln!(err, "conquest: warning: it cannot be told whether {pool} has lost content: {e}"),
    };
}
