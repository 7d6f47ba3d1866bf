//! `conquest destroy`: the end of a pool.

use std::path::PathBuf;

use fs::Pool;

use crate::failure::{Context, Result};
use crate::{locate, mounts, say};

/// Destroy a pool that nobody uses, with all that is in it: its memory, its copy on disk, its disks and its
/// directory. A disk that was there before the pool loses its label only.
#[derive(clap::Args)]
#[command(
    after_help = "Other files in the directory stay, and it with them. Nothing brings the pool back but an image \
    that `conquest save` wrote.\n\n\
    Examples:\n  conquest destroy /srv/pool\n  \
    conquest destroy /dev/shm/conquest-...-region      (memory that belongs to no pool, as `conquest list` shows it)"
)]
pub struct Args {
    /// The pool directory, or the file of memory that belongs to none
    pool: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::absolute(&args.pool)?;
    mounts::refuse_mounted(&pool)?;
    Pool::destroy(&pool).context(|| format!("cannot destroy {}", pool.display()))?;
    say(&format!("{} is destroyed", pool.display()))
}
