//! `conquest resize`: enlarges a pool, or changes the size beyond which files go to disk.

use std::path::PathBuf;

use conquest::Threshold;
use conquest::{OpenOptions, Pool};

use crate::failure::{Context, Result};
use crate::{locate, say, size, stall};

/// Enlarge a pool, or change the size beyond which files go to disk, mounted or not.
#[derive(clap::Args)]
#[command(
    after_help = "Nothing is moved, and nobody waits. Memory is taken as it is used. A pool cannot become smaller.\n\
    After another threshold files that lie on the wrong side of it move in the background; `conquest status` shows how much is left.\n\n\
    Examples:\n  conquest resize /srv/pool --nvram 8G\n  conquest resize /mnt/fast --nvram 8G      (where it is mounted)\n  \
    conquest resize /srv/pool --threshold 4M"
)]
pub struct Args {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// The most persistent RAM that the pool may take from now on
    #[arg(long, value_name = "SIZE", value_parser = size::parse, required_unless_present = "threshold")]
    nvram: Option<u64>,
    /// The size beyond which a file's content goes to disk
    #[arg(long, value_name = "SIZE", value_parser = size::parse_threshold)]
    threshold: Option<Threshold>,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::pool(&args.pool)?;
    let (path, bytes, threshold) = (pool.clone(), args.nvram, args.threshold);
    let size = stall::watched(&pool, move |_| {
        let cannot = || format!("cannot resize the pool at {}", path.display());
        let open = Pool::open(&path, &OpenOptions::default()).context(cannot)?;
        bytes.map_or(Ok(()), |bytes| open.resize(bytes)).context(cannot)?;
        threshold.map_or(Ok(()), |threshold| open.set_threshold(threshold)).context(cannot)?;
        Ok(open.session().memory().size())
    })?;
    if bytes.is_some() {
        say(&format!("{} may take {} now", pool.display(), size::show(size)))?;
    }
    let text = |threshold| format!("files of {} beyond {} go to disk now", pool.display(), size::show(threshold));
    threshold.map_or(Ok(()), |threshold| say(&text(threshold.into())))
}
