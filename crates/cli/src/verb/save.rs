//! `conquest save`: write an image of a pool.

use std::path::PathBuf;

use crate::failure::{Context, Result};
use crate::{inspect, locate, progress, say, size, stall};

/// Write an image of a pool to a file, also while it is in use.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest save /srv/pool /var/backups/pool.img\n  \
    conquest restore /srv/pool /var/backups/pool.img     (here or on another machine)")]
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
        let mut bar = steps.alone(progress::bytes("saving"));
        open.save(&image, &mut bar).context(|| format!("cannot save {shown} to {to}"))
    })?;
    let bytes = std::fs::metadata(&file).map(|m| m.len()).unwrap_or(0);
    let (pool, file) = (pool.display(), file.display());
    say(&format!("{pool} is saved in {file} ({}). `conquest restore POOL {file}` brings it back.", size::show(bytes)))
}
