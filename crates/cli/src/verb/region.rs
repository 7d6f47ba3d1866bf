//! `conquest region`: the disks of a pool.

use std::path::PathBuf;

use clap::Subcommand;
use fs::pool::{HowToLeave, Leaving, Left};
use fs::Pool;

use crate::failure::{Context, Failure, Result};
use crate::{disks, locate, mounts, progress, say, size};

/// Show the disks of a pool, give it further ones, or take one away.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest region list /srv/pool\n  \
    conquest region add /srv/pool /data/disk:100G     (a file, sparse, made for it)\n  \
    conquest region add /srv/pool /dev/sdb            (a whole device)\n  \
    conquest region remove /srv/pool /dev/sdb         (moves what it holds to the others)")]
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
    /// Take a disk away: what it holds is moved to the others, with the pool in use
    #[command(after_help = "Interrupted, it can be repeated and goes on; `--cancel` has the disk take content again.")]
    Remove(Remove),
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
struct Remove {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// A file or block device that is a disk of the pool
    disk: PathBuf,
    /// Only tell what is moved, and whether it fits; exit status 1 if it does not
    #[arg(long, conflicts_with = "cancel")]
    dry_run: bool,
    /// The disk stays: it takes content again
    #[arg(long)]
    cancel: bool,
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
        What::Remove(args) => remove(args),
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

fn remove(args: &Remove) -> Result<()> {
    let (pool, disk) = (locate::pool(&args.pool)?, locate::absolute(&args.disk)?);
    let how = match (args.dry_run, args.cancel) {
        (true, _) => HowToLeave::Look,
        (_, true) => HowToLeave::Cancel,
        _ => HowToLeave::Leave,
    };
    let (mut show, mut all) = (progress::bytes("moving"), 0);
    let mut go_on = |left: u64| {
        all = all.max(left);
        show(all - left, all);
        true
    };
    let what = || format!("cannot take the disk {} from {}", disk.display(), pool.display());
    let left = Pool::remove_disk(&pool, &disk, how, &mut go_on).context(what)?;
    drop(show);
    let (disk, pool) = (disk.display(), pool.display());
    match left {
        Left::Looked(told) if told.fits() => say(&format!("{}; they fit", described(&told))),
        Left::Looked(told) => Err(Failure::new(format!("{}: they do not fit", described(&told)))),
        Left::Gone => say(&format!("{disk} is empty, and no disk of {pool} any more: it may be unplugged")),
        Left::Stays => say(&format!("{disk} stays: it takes content again")),
        Left::Interrupted(told) => Err(Failure::new(format!(
            "{disk} is not empty yet: {}, which cannot be moved now. `conquest fsck {pool}` tells of what cannot be read; when the cause is \
             mended, the same command goes on, and `conquest region remove {pool} {disk} --cancel` has the disk stay",
            described(&told)
        ))),
    }
}

fn described(told: &Leaving) -> String {
    let (live, room) = (size::show(told.live), size::show(told.room));
    format!("{live} in {} segments are moved, and the other disks have room for {room}", told.segments)
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
