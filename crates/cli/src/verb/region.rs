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
    /// Give a pool disks, which take content at once; for its first one nobody may use the pool
    Add(Add),
    /// Show the disks of a pool
    List(List),
}

#[derive(clap::Args)]
struct Add {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// A file or block device; a file that does not exist is made [default size of a file: what its host has free, less a
    /// reserve]
    #[arg(value_name = "PATH[:SIZE]", required = true)]
    disks: Vec<String>,
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
    let pool = locate::pool(&args.pool)?;
    let disks = args.disks.iter().map(|disk| disks::parse(disk)).collect::<Result<Vec<_>>>()?;
    for disk in &disks {
        if Pool::disks(&pool).is_ok_and(|disks| disks.is_empty()) {
            mounts::refuse_mounted(&pool)?;
        }
        let what = || format!("cannot give {} the disk {}", pool.display(), disk.path.display());
        Pool::add_disk(&pool, disk, args.force).context(what)?;
        say(&format!("{} has the disk {} now", pool.display(), disk.path.display()))?;
    }
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
