//! `conquest region`: the disks of a pool.

use std::path::PathBuf;

use clap::Subcommand;
use fs::Pool;

use crate::failure::{Context, Result};
use crate::{disks, locate, mounts, say};

/// Show the disks of a pool, or give it one.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest region list /srv/pool\n  \
    conquest region add /srv/pool /data/disk:100G     (a file, sparse, made for it)\n  \
    conquest region add /srv/pool /dev/sdb            (a whole device)")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Give a pool that has no disk its first one; nobody may use the pool meanwhile
    Add(Add),
    /// Show the disks of a pool
    List(List),
}

#[derive(clap::Args)]
struct Add {
    /// The pool directory
    pool: PathBuf,
    /// A file or block device; a file that does not exist is made [default size of a file: what its host has free, less a
    /// reserve]
    #[arg(value_name = "PATH[:SIZE]")]
    disk: String,
    /// Lose what is on it
    #[arg(long)]
    force: bool,
}

#[derive(clap::Args)]
struct List {
    /// The pool directory, or where it is mounted [default: the pool of `conquest up`]
    pool: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Add(args) => add(args),
        What::List(args) => list(args),
    }
}

fn add(args: &Add) -> Result<()> {
    let pool = locate::absolute(&args.pool)?;
    mounts::refuse_mounted(&pool)?;
    let disk = disks::parse(&args.disk)?;
    Pool::add_disk(&pool, &disk, args.force).context(|| format!("cannot give {} a disk", pool.display()))?;
    say(&format!("{} has a disk now", pool.display()))?;
    show(&pool)
}

fn list(args: &List) -> Result<()> {
    show(&locate::pool(&args.pool.clone().map_or_else(locate::default_pool, Ok)?)?)
}

fn show(pool: &std::path::Path) -> Result<()> {
    let disks = Pool::disks(pool).context(|| format!("cannot tell the disks of {}", pool.display()))?;
    if disks.is_empty() {
        return say(&format!(
            "{0} has no disk: all content is in its memory; `conquest region add {0} PATH[:SIZE]` gives it one",
            pool.display()
        ));
    }
    for disk in &disks {
        let region = disk.region.map_or("?".into(), |number| number.to_string());
        let layout = disk.layout.as_deref().unwrap_or("?");
        say(&format!("region {region} ({layout}): {}", disks::describe(disk)))?;
    }
    Ok(())
}
