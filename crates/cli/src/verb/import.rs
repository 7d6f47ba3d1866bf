//! `conquest import`: makes a pool from its backing.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conquest::Incomplete;
use conquest::Pool;

use crate::failure::{Context, Result};
use crate::{disks, locate, lost_content, mounts, progress, say};

/// Make a pool from its backing alone, after its persistent RAM was lost or on another machine.
#[derive(clap::Args)]
#[command(
    after_help = "The backing is the files image, redo-0 and redo-1, which can be brought to another machine. With pool.toml \
    beside them the pool keeps its medium; without it becomes one on ordinary RAM, whose backing they are. Where the backing leads to content of \
    large files that was overwritten on the pool's disks since, import lists the files and bytes, as `conquest fsck` does, and \
    stops before anything is replaced.\n\n\
    Examples:\n  conquest import /srv/pool\n  \
    conquest import /mnt/disk2/mirror     (all that is left)\n  \
    conquest import /srv/pool --disk /dev/sdb --disk /dev/sdc\n  \
                                          (its disks are all that is left)\n  \
    conquest import /srv/pool --force     (go back to the backing although the persistent RAM is there)"
)]
pub struct Args {
    /// The pool directory
    pool: PathBuf,
    /// A disk of the pool: make the lost directory and memory of the pool from its disks; name all disks
    #[arg(long, value_name = "PATH", conflicts_with = "force")]
    disk: Vec<PathBuf>,
    /// Lose the existing persistent RAM
    #[arg(long)]
    force: bool,
    /// Go on although the pool's disks lack content that the backing refers to; the content is listed
    #[arg(long)]
    accept_lost: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::absolute(&args.pool)?;
    mounts::refuse_mounted(&pool)?;
    let (mut bar, beside) = progress::bytes_beside("importing");
    let mut ask = |found: &Incomplete| lost_content::judge(found, args.accept_lost, &beside);
    if !args.disk.is_empty() {
        drop(bar);
        return from_disks(args, &pool, &mut ask);
    }
    let imported = Pool::import_asking(&pool, args.force, &mut bar, &mut ask);
    let as_of = imported.context(|| format!("cannot import {}", pool.display()))?;
    drop(bar);
    let disks = disks::disk_lines(&pool)?;
    let (pool, as_of) = (pool.display(), humantime::format_rfc3339_seconds(instant(as_of)));
    say(&format!("{pool} is imported, as of {}. Mount it with `conquest mount {pool} DIR`.{disks}", as_of))
}

fn from_disks(args: &Args, pool: &Path, ask: &mut dyn FnMut(&Incomplete) -> conquest_fs::Result<()>) -> Result<()> {
    let disks: Vec<PathBuf> = args.disk.iter().map(|disk| locate::absolute(disk)).collect::<Result<_>>()?;
    let made = Pool::import_from_disks(pool, &disks, ask);
    let made = made.context(|| format!("cannot import {} from its disks", pool.display()))?;
    let as_of = humantime::format_rfc3339_seconds(instant(made.as_of));
    let mut more: String = made
        .missing
        .iter()
        .map(|region| format!(" Region {region}, which is missing, has a copy of the backing too: what was written when this one was not there is newer."))
        .collect();
    if let [first, ..] = &made.absent[..] {
        let shown = pool.display();
        more += &format!(
            " {} is missing: mount the pool read-only (`-o ro`), attach the disk, or give up what it holds with `conquest region remove \
             {shown} {} --force`.",
            first.display(),
            first.display()
        );
    }
    let pool = pool.display();
    say(&format!("{pool} is made of its disks, as of {as_of}.{more} Mount it with `conquest mount {pool} DIR`."))
}

fn instant(nanos: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos.max(0) as u64)
}
