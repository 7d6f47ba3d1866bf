//! `conquest up`: from nothing to a working file system.

use std::path::{Path, PathBuf};

use conquest::{FormatOptions, MediumKind, Pool};

use crate::failure::{Context, Failure, Result};
use crate::mount_request::Request;
use crate::mounts::{self, Mounted};
use crate::verb::{format, mount};
use crate::{background, effective_options, killed_servers, locate, mount_points, say, size};

/// Make the default pool if there is none, and mount it.
#[derive(clap::Args)]
#[command(after_help = "As root the pool is /var/lib/conquest/default and is mounted at /mnt/conquest; otherwise \
    ~/.local/share/conquest/default at ~/conquest.\n\n\
    Examples:\n  conquest up\n  conquest up /srv/fast\n  conquest up --pool /data/pool --size 4G /srv/fast")]
pub struct Args {
    /// The directory to mount at; created if it does not exist
    dir: Option<PathBuf>,
    /// The pool directory
    #[arg(long)]
    pool: Option<PathBuf>,
    /// Size of a new pool [default: a quarter of the RAM, at most half of the free space]
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Mount options, as in `conquest mount`
    #[arg(short, value_name = "OPTS")]
    options: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::absolute(&args.pool.clone().map_or_else(locate::default_pool, Ok)?)?;
    let dir = args.dir.as_deref().map(locate::absolute).transpose()?;
    killed_servers::wait(&pool)?;
    if let Some(mounted) = find(&pool, dir.as_deref())? {
        return tell_of(&mounted);
    }
    // If its server is gone, it is mounted again as it was.
    let gone = mounts::of(&pool)?.into_iter().find(|place| dir.as_ref().is_none_or(|dir| *dir == place.dir));
    let was = gone.as_ref().filter(|_| args.options.is_empty()).map(|gone| effective_options::stays(&gone.options));
    let dir = match (dir, gone) {
        (Some(dir), _) => dir,
        (None, Some(gone)) => gone.dir,
        (None, None) => locate::absolute(&locate::default_dir()?)?,
    };
    if !Pool::exists(&pool) {
        create(&pool, args.size)?;
    }
    prepare(&dir)?;
    let request = Request::new(pool.clone(), dir.clone(), &was.unwrap_or_else(|| args.options.join(",")))?;
    match mount::check(&request).and_then(|()| mount_points::mount(&request, background::start)) {
        Ok(notes) => {
            say(&format!("mounted: {} at {}", pool.display(), dir.display()))?;
            mount::report(&notes)?;
            mount::warn_of_missing(&pool)?;
            say(&next(&pool, &dir))
        }
        // Another process may have been faster.
        Err(e) => find(&pool, Some(&request.dir))?.map_or(Err(e), |mounted| tell_of(&mounted)),
    }
}

fn tell_of(mounted: &Mounted) -> Result<()> {
    let (pool, dir) = (&mounted.source, &mounted.dir);
    say(&format!("already mounted: {} at {}\n{}", pool.display(), dir.display(), next(pool, dir)))
}

/// The working mount of the pool: at `dir`, or at any directory.
fn find(pool: &Path, dir: Option<&Path>) -> Result<Option<Mounted>> {
    Ok(mounts::alive(pool)?.into_iter().find(|m| dir.is_none_or(|dir| dir == m.dir)))
}

fn create(pool: &Path, size: Option<u64>) -> Result<()> {
    let bytes = size.map_or_else(|| size::default_for(pool, MediumKind::Logged), Ok)?;
    let how = FormatOptions::sized(bytes);
    let how = FormatOptions { regions: format::usual_disk(pool, &how)?, ..how };
    let takes = format::takes(pool, &how);
    let made = format::make(pool, how);
    if Pool::exists(pool) && made.is_err() {
        // Another process was faster.
        return Ok(());
    }
    made?;
    say(&format!("made a pool of {} at {}. {takes}", size::show(bytes), pool.display()))
}

/// Prepares the directory to mount at. One where another file system is mounted is left alone.
fn prepare(dir: &Path) -> Result<()> {
    let shown = dir.display();
    if let Some(other) = mounts::at(dir)?.filter(|m| !m.is_conquest()) {
        let kind = &other.fs_type;
        return Err(Failure::new(format!(
            "{shown} is the mount of another file system ({kind}); name another directory: `conquest up DIR`"
        )));
    }
    if mounts::is_disconnected(dir) {
        return Ok(());
    }
    std::fs::create_dir_all(dir).context(|| format!("cannot make {shown}"))
}

fn next(pool: &Path, dir: &Path) -> String {
    let (pool, dir) = (pool.display(), dir.display());
    format!(
        "Work in {dir} as in any directory; then:\n  \
         conquest status {dir}       what it holds\n  \
         conquest fsck {dir}         check it, also while it is in use\n  \
         conquest save {dir} FILE    write an image of it\n  \
         conquest umount {dir}       unmount it; `conquest mount {pool} {dir}` brings it back"
    )
}
