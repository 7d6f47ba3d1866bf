//! `conquest release`: releases the memory of a pool that is not mounted.

use std::path::PathBuf;

use conquest::Pool;

use crate::failure::{Context, Result};
use crate::{locate, mounts, say, stall};

/// Release the memory of a pool on ordinary RAM that is not mounted; the next mount reads it from disk.
#[derive(clap::Args)]
#[command(after_help = "What the backing lacks is written there first.\n\n\
    Examples:\n  conquest release /srv/pool\n  conquest umount --release /mnt/fast      (both in one)\n  \
    conquest release /dev/shm/conquest-...-region      (of a pool that is gone, as `conquest list` shows it)")]
pub struct Args {
    /// The pool directory, or a memory file that belongs to no pool
    pool: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::pool_or_memory(&args.pool)?;
    mounts::refuse_mounted(&pool)?;
    let (path, shown) = (pool.clone(), pool.display());
    let cannot = || format!("cannot give the memory of {} back", path.display());
    let of = pool.clone();
    stall::watched(&pool, move |_| Ok(Pool::release(&of))).and_then(|done| done.context(cannot))?;
    say(&format!("the memory of {shown} is given back"))
}
