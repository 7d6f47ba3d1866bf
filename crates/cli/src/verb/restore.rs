//! `conquest restore`: make a pool from an image.

use std::path::PathBuf;

use fs::pool::Incomplete;
use fs::Pool;

use crate::failure::{Context, Result};
use crate::verb::format::Medium;
use crate::{disks, locate, lost, mounts, progress, say};

/// Make a pool from an image that `conquest save` wrote.
#[derive(clap::Args)]
#[command(
    after_help = "An image leads to content of large files on the pool's disks. Where that was overwritten since, restore lists \
    the files and bytes, as `conquest fsck` does, and stops before anything is replaced.\n\n\
    Examples:\n  conquest restore /srv/pool /var/backups/pool.img\n  \
    conquest restore /srv/pool /var/backups/pool.img --force   (over the pool that is there)"
)]
pub struct Args {
    /// The pool directory; created if it does not exist
    pool: PathBuf,
    /// The image
    file: PathBuf,
    /// What keeps the persistent RAM of a pool that is made [default: logged; a pool that is there keeps its own]
    #[arg(long, value_enum)]
    medium: Option<Medium>,
    /// Destroy a pool that is there
    #[arg(long)]
    force: bool,
    /// Go on although the pool's disks lack content that the image leads to, which is listed
    #[arg(long)]
    accept_lost: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::absolute(&args.pool)?;
    let file = locate::absolute(&args.file)?;
    mounts::refuse_mounted(&pool)?;
    let (mut bar, beside) = progress::bytes_beside("restoring");
    let mut ask = |found: &Incomplete| lost::judge(found, args.accept_lost, &beside);
    Pool::restore_asking(&pool, &file, args.medium.map(Into::into), args.force, &mut bar, &mut ask)
        .context(|| format!("cannot restore {} from {}", pool.display(), file.display()))?;
    drop(bar);
    let disks = disks::kept(&pool)?;
    let (pool, file) = (pool.display(), file.display());
    say(&format!("{pool} is restored from {file}. Mount it with `conquest mount {pool} DIR`.{disks}"))
}
