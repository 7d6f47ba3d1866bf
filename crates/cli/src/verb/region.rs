//! `conquest region`: the regions of a pool, and their disks.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use conquest::Pool;
use conquest::{
    DiskStatus, HowToLeave, Leaving, Left, NewDisk, NewRegion, RegionStatus, Replace, Replaced, Stop, Verdict,
    WhichRegion,
};
use conquest_fs::fsck::Lost;
use serde::Serialize;

use crate::failure::{Context, Failure, Result};
use crate::{disks, locate, mount_points, mounts, paths_in_pools, progress, regions, say, size, stall};

/// Show, add, remove and repair the regions and disks of a pool.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest region list /srv/pool\n  \
    conquest region add /srv/pool /data/disk:100G     (a file, sparse, made for it)\n  \
    conquest region add /srv/pool /dev/sdb            (a whole device)\n  \
    conquest region remove /srv/pool /dev/sdb         (moves what it holds to the others)\n  \
    conquest region add /srv/pool mirror:/dev/sdb,/dev/sdc\n  \
    conquest region replace /srv/pool /dev/sdb /dev/sdd\n                                                    \
    (another disk for one that is lost)\n  \
    conquest region replace /srv/pool /dev/sdb        (a disk that was away is put back)\n  \
    conquest region remove /srv/pool /dev/sdb --force --dry-run\n                                                    \
    (what would be lost with a dead disk)\n  \
    conquest region domain /srv/pool shelf 0 1        (they share their fate: no two replicas there)\n  \
    conquest region balance /srv/pool                 (old content to new disks)\n  \
    conquest region check /srv/pool /dev/sdb && ...   (can it be removed without losing data?)")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Add disks to a pool, which take content at once; a pool in use cannot get its first disk
    Add(Add),
    /// Show the regions and disks of a pool
    List(List),
    /// Remove regions: their content is moved to the others, while the pool is in use
    #[command(
        after_help = "Interrupted, it can be repeated and goes on, also in the background while the pool is mounted; `--cancel` has \
        the regions take content again. Of a disk that is dead, `--force` gives up what it holds."
    )]
    Remove(Remove),
    /// Put a disk of a mirror or RAID-5 back, or replace it, and copy its content, while the pool is in use
    Replace(ReplaceArgs),
    /// Spread content evenly over all regions, or rewrite files
    Balance(Balance),
    /// Put a failed region back in service, once you know that it works
    Readmit(Readmit),
    /// Give the disks to this pool directory for good, after a copy of it, or its original, has used them last
    Take(Take),
    /// Declare that regions fail together, like disks in one enclosure: two replicas are never in the same domain
    Domain(Domain),
    /// Can this region, or this disk, be removed without losing data? Exit status: 0 yes, 1 no, 2 unknown
    Check(Check),
}

#[derive(clap::Args)]
struct Add {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// Files or block devices, or several as one region each; a file that does not exist is made [default size of a
    /// file: the free space of its file system, less a reserve]
    #[arg(value_name = "PATH[:SIZE]|KIND:PATH[:SIZE],...", required = true, value_parser = regions::parse)]
    disks: Vec<NewRegion>,
    /// Overwrite existing content of the disks
    #[arg(long)]
    force: bool,
}

#[derive(clap::Args)]
struct Remove {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// Regions by number, or a disk of each, as `region list` shows them; several are removed by one plan: nothing is
    /// moved from one to another
    #[arg(value_name = "REGION|PATH", required = true)]
    regions: Vec<String>,
    /// Only show what would be moved, and whether it fits; with `--force`, what would be lost; exit status 1 if it does
    /// not fit
    #[arg(long, conflicts_with = "cancel")]
    dry_run: bool,
    /// Remove the regions even if too few are left for all replicas that files are to have. Replicas are given up last,
    /// after everything else has been moved
    #[arg(long, alias = "reduce-copies", conflicts_with_all = ["cancel", "force"])]
    reduce_replicas: bool,
    /// Cancel the removal: the regions take content again
    #[arg(long, conflicts_with = "force")]
    cancel: bool,
    /// Move nothing: content that only these regions hold is LOST, and listed by file and bytes; for a dead disk
    #[arg(long)]
    force: bool,
    /// Return at once: content is moved while the pool is mounted; `status` shows the progress
    #[arg(long, conflicts_with_all = ["cancel", "force", "dry_run"])]
    background: bool,
    /// Print lost content as JSON
    #[arg(long, requires = "force")]
    json: bool,
}

#[derive(clap::Args)]
struct Readmit {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// The number of the region
    region: u32,
}

#[derive(clap::Args)]
struct Take {
    /// The pool directory; neither this pool nor the other may be in use, and the other is refused from then on
    pool: PathBuf,
}

#[derive(clap::Args)]
struct Domain {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// A name or a number of the domain; 0: each region is on its own again
    domain: String,
    /// The numbers of the regions
    #[arg(required = true)]
    regions: Vec<u32>,
}

#[derive(clap::Args)]
struct Balance {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// Files and directories of the pool, by their paths in it: rewrite their content in order, in the best regions
    /// [default: make all regions equally full]
    paths: Vec<PathBuf>,
    /// Return at once: the work goes on while the pool is mounted; `status` shows it
    #[arg(long, conflicts_with = "paths")]
    background: bool,
    /// The most bytes a second to copy in the background; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    rate: Option<u64>,
    /// Pause background balancing and scrubbing until `--resume`
    #[arg(long, conflicts_with_all = ["resume", "paths"])]
    pause: bool,
    /// Resume background balancing and scrubbing
    #[arg(long, conflicts_with = "paths")]
    resume: bool,
    /// Stop balancing in the background; moved content stays where it is
    #[arg(long, conflicts_with_all = ["pause", "resume", "paths", "background"])]
    cancel: bool,
    /// Only show how full each region is, and what would be moved
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args)]
struct List {
    /// The pool directory, or where it is mounted [default: the pool of `conquest up`]
    pool: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ReplaceArgs {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// The disk to replace, present or missing: its path, its UUID, or REGION.DISK as `region list` numbers them
    old: PathBuf,
    /// The new file or block device [default: the disk already there; default size of a file: as much as needed]
    #[arg(value_name = "PATH[:SIZE]", value_parser = regions::parse_disk)]
    new: Option<NewDisk>,
    /// Overwrite existing content of the new disk
    #[arg(long)]
    force: bool,
    /// Only show what would be copied
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args)]
struct Check {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// The number of a region; or a disk: its path, its UUID, or REGION.DISK as `region list` numbers them
    #[arg(value_name = "REGION|DISK")]
    what: String,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Add(args) => add(args)?,
        What::List(args) => list(args)?,
        What::Remove(args) => remove(args)?,
        What::Balance(args) => balance(args)?,
        What::Readmit(args) => {
            let pool = locate::pool(&args.pool)?;
            let cannot = || format!("cannot have region {} of {} take content again", args.region, pool.display());
            let open = Pool::open(&pool, &conquest::OpenOptions::default()).context(cannot)?;
            open.readmit(args.region).context(cannot)?;
            say(&format!("region {} takes content again", args.region))?;
        }
        What::Take(args) => {
            let pool = locate::pool(&args.pool)?;
            let taken = Pool::take_disks(&pool).context(|| format!("cannot give {} its disks", pool.display()))?;
            taken.iter().try_for_each(|disk| say(&format!("{} has {} now", pool.display(), disk.display())))?;
        }
        What::Domain(args) => {
            let pool = locate::pool(&args.pool)?;
            let cannot = || format!("cannot change the domains of {}", pool.display());
            let open = Pool::open(&pool, &conquest::OpenOptions::default()).context(cannot)?;
            open.set_domain(&args.regions, &args.domain).context(cannot)?;
            let regions: Vec<String> = args.regions.iter().map(u32::to_string).collect();
            let (has, regions) = (if regions.len() > 1 { "have" } else { "has" }, regions.join(", "));
            say(&match args.domain.as_str() {
                "0" => format!("{regions} {has} a domain alone"),
                domain => format!("{regions} {has} the domain {domain}: no two replicas of a file are in it"),
            })?;
        }
        What::Replace(args) => replace(args)?,
        What::Check(args) => return check(args).map_err(|failure| failure.with_status(2)),
    }
    Ok(ExitCode::SUCCESS)
}

fn add(args: &Add) -> Result<()> {
    let pool = locate::pool(&args.pool)?;
    let all = args.disks.iter().map(regions::absolute).collect::<Result<Vec<_>>>()?;
    all.iter().flat_map(|region| &region.disks).try_for_each(|disk| mount_points::refuse_within(&pool, &disk.path))?;
    if Pool::disks(&pool).is_ok_and(|(_, disks)| disks.is_empty()) {
        mounts::refuse_mounted(&pool)?;
    }
    let names = all.iter().map(regions::name).collect::<Vec<_>>();
    let cannot = || format!("cannot give {} {}", pool.display(), names.join(" and "));
    Pool::add_disks(&pool, &all, args.force).context(cannot)?;
    names.iter().try_for_each(|name| say(&format!("{} has {name} now", pool.display())))?;
    show(&pool)
}

/// A region, by its number or a disk of it.
fn which(pool: &Path, text: &str) -> Result<WhichRegion> {
    if let Ok(number) = text.parse() {
        return Ok(WhichRegion::Number(number));
    }
    Ok(match named(pool, Path::new(text))? {
        Named { member: Some((number, _)), .. } => WhichRegion::Number(number),
        Named { path, .. } => WhichRegion::Disk(path),
    })
}

fn remove(args: &Remove) -> Result<()> {
    let pool = locate::pool(&args.pool)?;
    let regions = args.regions.iter().map(|text| which(&pool, text)).collect::<Result<Vec<_>>>()?;
    let how = match (args.dry_run, args.cancel, args.force) {
        (true, _, true) => HowToLeave::LookForced,
        (_, _, true) => HowToLeave::Force,
        (true, ..) => HowToLeave::Look,
        (_, true, _) => HowToLeave::Cancel,
        _ if args.background => HowToLeave::Begin { fewer: args.reduce_replicas },
        _ => HowToLeave::Leave { fewer: args.reduce_replicas },
    };
    let (mut show, mut all) = (progress::bytes("moving"), 0);
    let mut go_on = |left: u64| {
        all = all.max(left);
        show(all - left, all);
        true
    };
    let named = args.regions.join(" ");
    let what = || format!("cannot take {named} from {}", pool.display());
    let left = Pool::remove_regions(&pool, &regions, how, &mut go_on).context(what)?;
    drop(show);
    let pool = pool.display();
    match left {
        Left::Looked(leaving) if leaving.fewer > 0 && !args.reduce_replicas => Err(Failure::new(format!(
            "{}{}: give the pool another disk first, or allow that with `--reduce-replicas`",
            described(&leaving),
            fewer(&leaving)
        ))),
        Left::Looked(leaving) if leaving.fits() => say(&format!("{}; they fit{}", described(&leaving), fewer(&leaving))),
        Left::Looked(leaving) => Err(Failure::new(format!("{}: they do not fit", described(&leaving)))),
        Left::Gone(paths) if paths.is_empty() => say(&format!("{named} is not in {pool} any more: its removal is done")),
        Left::Gone(paths) => say(&format!("{} empty, no longer in {pool}, and may be unplugged", are(&paths))),
        Left::Stays => say(&format!("{named} stays: it takes content again")),
        Left::Interrupted(leaving) if matches!(how, HowToLeave::Begin { .. }) => say(&format!(
            "{}, while the pool is mounted; `conquest status {pool}` shows what is left, and `conquest region remove {pool} {named} \
             --cancel` calls it off",
            described(&leaving)
        )),
        Left::Interrupted(leaving) => Err(Failure::new(format!(
            "{named} is not empty yet: {}, which cannot be moved now. `conquest fsck {pool}` tells of what cannot be read; when the cause is \
             mended, the same command goes on, and `conquest region remove {pool} {named} --cancel` has it stay",
            described(&leaving)
        ))),
        Left::Forced(lost, _) if args.json => say(&serde_json::to_string_pretty(&lost).context(|| "cannot write JSON".into())?),
        Left::Forced(lost, paths) => forced(&lost, &paths, args, &pool.to_string()),
    }
}

/// Shows the content that is lost, or would be lost, with a removed region.
fn forced(lost: &[Lost], paths: &[PathBuf], args: &Remove, pool: &str) -> Result<()> {
    for one in lost {
        let name = one.path.clone().unwrap_or_else(|| format!("inode {} (without a name)", one.ino));
        say(&format!("{name}: bytes {} to {}: {}", one.first, one.last, one.why))?;
    }
    let files: std::collections::BTreeSet<u64> = lost.iter().map(|one| one.ino).collect();
    let bytes: u64 = lost.iter().map(|one| one.last - one.first + 1).sum();
    let what = match files.len() {
        0 => "nothing is lost".to_string(),
        n => format!(
            "{} of {n} files {} lost; all others are whole",
            size::show(bytes),
            if args.dry_run { "would be" } else { "are" }
        ),
    };
    match args.dry_run {
        true => say(&format!("Nothing is done. Without {}: {what}", args.regions.join(" "))),
        false if paths.is_empty() => say(&format!("{what}; the region is no longer in {pool}")),
        false => say(&format!("{what}; {} no longer in {pool}", are(paths))),
    }
}

/// The content that has fewer replicas afterwards than it is to have.
fn fewer(leaving: &Leaving) -> String {
    match leaving.fewer {
        0 => String::new(),
        bytes => format!(
            "; {} of content will have fewer replicas than it is to have, {} at most",
            size::show(bytes),
            leaving.domains
        ),
    }
}

fn balance(args: &Balance) -> Result<()> {
    let pool = locate::pool(&args.pool)?;
    let cannot = || format!("cannot balance {}", pool.display());
    let open = Pool::open(&pool, &conquest::OpenOptions::default()).context(cannot)?;
    if let Some(rate) = args.rate {
        open.ask_for(&|tasks| tasks.rate = rate).context(cannot)?;
    }
    if args.dry_run {
        return show_filled(&open, cannot);
    }
    if args.pause || args.resume || args.cancel || args.background {
        open.ask_for(&|tasks| {
            tasks.paused = args.pause || tasks.paused && !args.resume && !args.background;
            tasks.balance = (args.background || tasks.balance) && !args.cancel;
        })
        .context(cannot)?;
        let is = match (args.pause, args.cancel) {
            (true, _) => "rests; `--resume` has it go on",
            (_, true) => "has ended as it is",
            _ => "goes on while the pool is mounted; `conquest status` shows what is left",
        };
        return say(&format!("background work on {} {is}", pool.display()));
    }
    if !args.paths.is_empty() {
        return reorganise(&open, &args.paths);
    }
    let (mut show, mut all) = (progress::bytes("balancing"), 0);
    let done = open
        .balance(&mut |left| {
            all = all.max(left);
            show(all - left, all);
            true
        })
        .context(cannot)?;
    drop(show);
    open.ask_for(&|tasks| tasks.balance = tasks.balance && !done).context(cannot)?;
    show_filled(&open, cannot)
}

fn show_filled(pool: &Pool, cannot: impl Fn() -> String + Copy) -> Result<()> {
    let mut left = 0;
    for one in pool.filled().context(cannot)? {
        let percent = one.used as f64 * 100.0 / one.size.max(1) as f64;
        let moved = match one.excess {
            0.. => format!("{} too much", size::show(one.excess as u64)),
            less => format!("{} too little", size::show(less.unsigned_abs())),
        };
        left += one.excess.max(0) as u64;
        say(&format!(
            "region {}: {percent:.1} % full, {} of {}; {moved}",
            one.number,
            size::show(one.used),
            size::show(one.size)
        ))?;
    }
    say(&format!("{} would have to be moved for all to be alike", size::show(left)))
}

/// Rewrites files of the mounted pool.
fn reorganise(pool: &Pool, paths: &[PathBuf]) -> Result<()> {
    let (mut inodes, mut failures) = (std::collections::BTreeSet::new(), paths_in_pools::Failures::default());
    for path in paths {
        let top = paths_in_pools::Inside::find(path)?;
        if locate::pool(&top.mounted.dir)? != pool.dir() {
            return Err(Failure::new(format!("{} is in another pool than {}", path.display(), pool.dir().display())));
        }
        let mut add = |file: &std::fs::Metadata| _ = file.is_file() && inodes.insert(file.ino());
        add(&std::fs::symlink_metadata(path).context(|| format!("cannot look at {}", path.display()))?);
        if path.is_dir() {
            let mut see = |entry: &paths_in_pools::Entry, _| {
                add(&entry.metadata);
                Ok(())
            };
            paths_in_pools::below(path, &mut see, &mut |failure| failures.tell(failure))?;
        }
    }
    let (mut blocks, files) = (0, inodes.len());
    for ino in inodes {
        blocks += pool.reorganise(ino, &mut |_| true).context(|| format!("cannot rewrite inode {ino}"))?;
    }
    say(&format!("{} of {files} files were rewritten", size::show(blocks * 4096)))?;
    failures.end("looked at")
}

/// One disk, or several, as the subject of a sentence.
fn are(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    match &shown[..] {
        [one] => format!("{one} is"),
        all => format!("{} are", all.join(" and ")),
    }
}

fn described(leaving: &Leaving) -> String {
    let (live, room) = (size::show(leaving.live), size::show(leaving.room));
    format!("{live} are written to other disks for {} segments, and these have room for {room}", leaving.segments)
}

/// The output of `--json`.
#[derive(Serialize)]
struct Answer {
    version: &'static str,
    /// As text: a path may be any bytes.
    pool: String,
    regions: Vec<RegionStatus>,
    disks: Vec<DiskStatus>,
}

fn list(args: &List) -> Result<()> {
    let pool = locate::pool(&args.pool.clone().map_or_else(locate::default_pool, Ok)?)?;
    if !args.json {
        return show(&pool);
    }
    let ((regions, disks), pool) = (disks_of(&pool)?, pool.display().to_string());
    let answer = Answer { version: env!("CARGO_PKG_VERSION"), pool, regions, disks };
    say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)
}

fn disks_of(pool: &Path) -> Result<(Vec<RegionStatus>, Vec<DiskStatus>)> {
    let cannot = || format!("cannot tell the disks of {}", pool.display());
    let (mut regions, disks) = Pool::disks(pool).context(cannot)?;
    if Pool::may_have_domains(pool).context(cannot)? {
        name_domains(pool, &mut regions);
    }
    Ok((regions, disks))
}

/// Adds the names of domains, which lie in the pool's memory. If that is not available, none are shown.
fn name_domains(pool: &Path, regions: &mut [RegionStatus]) {
    let path = pool.to_path_buf();
    let asked = stall::watched(pool, move |_| {
        let cannot = || format!("cannot tell the domains of {}", path.display());
        Pool::look_whole(&path).context(cannot)?.domains().context(cannot)
    });
    for (number, name) in asked.unwrap_or_default() {
        regions
            .iter_mut()
            .filter(|region| region.number == number)
            .for_each(|region| region.domain = Some(name.clone()));
    }
}

/// The domain, at the end of a region's line.
fn domain(region: &RegionStatus) -> String {
    region.domain.as_ref().map(|name| format!(", in the domain {name}")).unwrap_or_default()
}

fn show(pool: &Path) -> Result<()> {
    let (regions, disks) = disks_of(pool)?;
    if disks.is_empty() {
        return say(&format!(
            "{0} has no disk: all content is in its memory; `conquest region add {0} PATH[:SIZE]` gives it one",
            pool.display()
        ));
    }
    let (several, single): (Vec<_>, Vec<_>) = regions.iter().partition(|region| region.members.len() > 1);
    for region in several {
        say(&format!("region {}{}", disks::describe_region(region), domain(region)))?;
        for (role, member) in region.members.iter().enumerate() {
            let disk = disks.iter().find(|disk| Some(&disk.path) == member.path.as_ref());
            let text = disk.map_or_else(|| format!("MISSING, {}", member.uuid), disks::describe);
            say(&format!("  disk {}.{}: {text}", region.number, role + 1))?;
        }
    }
    let has_no_region_line = |disk: &&DiskStatus| !regions.iter().any(|region| is_of_several(region, disk));
    for disk in disks.iter().filter(has_no_region_line) {
        let region = single.iter().find(|region| Some(region.number) == disk.region);
        let number = disk.region.map_or("?".into(), |number| number.to_string());
        let layout = region.map_or("?", |region| &region.layout);
        let domain = region.map(|region| domain(region)).unwrap_or_default();
        say(&format!("region {number} ({layout}): {}{domain}", disks::describe(disk)))?;
    }
    for region in regions.iter().filter(|region| region.performance.stutter.is_some()) {
        say(&format!("region {}: {}", region.number, disks::sitting_out(region)))?;
    }
    Ok(())
}

fn is_of_several(region: &RegionStatus, disk: &DiskStatus) -> bool {
    let is_it = |path: &Option<PathBuf>| path.as_ref() == Some(&disk.path);
    region.members.len() > 1 && region.members.iter().any(|member| is_it(&member.path))
}

/// A disk that was named in any way.
struct Named {
    path: PathBuf,
    /// Its region, and its number there; `None` for a disk named by its path, whose region the pool finds.
    member: Option<(u32, usize)>,
}

/// Finds a disk by its path or, if no file is there, by numbers or its UUID.
fn named(pool: &Path, text: &Path) -> Result<Named> {
    let by_path = || Ok(Named { path: locate::absolute(text)?, member: None });
    let Some(name) = text.to_str().filter(|_| !text.exists()) else { return by_path() };
    let (regions, _) = disks_of(pool)?;
    let each = regions
        .iter()
        .flat_map(|region| region.members.iter().enumerate().map(move |(n, m)| (region.number, n + 1, m)));
    let is_it = |number: u32, disk: usize, uuid: &str| {
        uuid == name || format!("{number}.{disk}") == name || (disk == 1 && number.to_string() == name)
    };
    let found = each.clone().find(|(number, disk, member)| is_it(*number, *disk, &member.uuid));
    match found {
        Some((number, disk, member)) => {
            let unknown = || PathBuf::from(format!("disk {disk} of region {number}"));
            Ok(Named { path: member.path.clone().unwrap_or_else(unknown), member: Some((number, disk)) })
        }
        None => by_path(),
    }
}

fn replace(args: &ReplaceArgs) -> Result<()> {
    let pool = locate::pool(&args.pool)?;
    let new = args.new.as_ref().map(regions::absolute_disk).transpose()?;
    new.iter().try_for_each(|disk| mount_points::refuse_within(&pool, &disk.path))?;
    let Named { path, member } = named(&pool, &args.old)?;
    let how = Replace { old: path, member, new, force: args.force };
    let cannot = || format!("cannot replace {}", how.old.display());
    if args.dry_run {
        let would = Pool::plan_replacement(&pool, &how).context(cannot)?;
        return say(&format!("Nothing is done. {}", plan(&would)));
    }
    let mut bar = progress::bytes("rebuilding");
    let done = Pool::replace_disk(&pool, &how, &mut bar).context(cannot)?;
    drop(bar);
    say(&match done.left {
        0 => format!("{} is whole", done.path.display()),
        left => format!("{} has been rebuilt: {} were copied", done.path.display(), size::show(left)),
    })?;
    show(&pool)
}

fn plan(would: &Replaced) -> String {
    let Replaced { region, layout, number, path, left } = would;
    format!("{} would be copied to {}, disk {number} of region {region} ({layout})", size::show(*left), path.display())
}

fn check(args: &Check) -> Result<ExitCode> {
    let pool = locate::pool(&args.pool)?;
    let what = match args.what.parse() {
        Ok(number) => Stop::Region(number),
        Err(_) => Stop::Disk(named(&pool, Path::new(&args.what))?.path),
    };
    let path = pool.clone();
    let verdict: Verdict = stall::watched(&pool, move |_| {
        let cannot = || format!("cannot check the disks of {}", path.display());
        Pool::look_whole(&path).context(cannot)?.may_stop(&what).context(cannot)
    })?;
    let answer = if verdict.may_stop { "yes" } else { "NO" };
    say(&format!("{answer}: {}", verdict.why))?;
    Ok(if verdict.may_stop { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
