//! `conquest resize`: make a pool larger.

use std::path::PathBuf;

use fs::{OpenOptions, Pool};

use crate::failure::{Context, Result};
use crate::{locate, say, size, stall};

/// Make a pool larger, mounted or not.
#[derive(clap::Args)]
#[command(
    after_help = "Nothing is moved, and nobody waits. Memory is taken as it is used. A pool cannot become smaller.\n\n\
    Examples:\n  conquest resize /srv/pool --nvram 8G\n  conquest resize /mnt/fast --nvram 8G      (where it is mounted)"
)]
pub struct Args {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// The most persistent RAM that it may take from now on
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    nvram: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::pool(&args.pool)?;
    let (path, bytes) = (pool.clone(), args.nvram);
    let size = stall::watched(&pool, move |_| {
        let cannot = || format!("cannot resize the pool at {}", path.display());
        let open = Pool::open(&path, &OpenOptions::default()).context(cannot)?;
        open.resize(bytes).context(cannot)?;
        Ok(open.session().region().size())
    })?;
    say(&format!("{} may take {} now", pool.display(), size::show(size)))
}
