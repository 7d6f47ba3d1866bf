//! `conquest format`: makes a pool.

use std::io::Write;
use std::path::{Path, PathBuf};

use conquest::{CacheConfig, CommitInterval, CompressionConfig, InRegions, NewRegion, Rate, Threshold};
use conquest::{FormatOptions, MediumKind, OpenOptions, Pool};

use crate::failure::{Context, Failure, Result};
use crate::regions::{self, Asked};
use crate::{locate, mounts, say, size};

/// Make a pool: a directory that names the persistent RAM of a file system.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    conquest format /srv/pool                       a quarter of the RAM\n  \
    conquest format /srv/pool --nvram 2G            2 GiB of this machine's RAM, logged to /srv/pool\n  \
    conquest format /srv/pool --nvram 2G --medium battery\n  \
                                                    2 GiB in the file /srv/pool/nvram, used in place\n  \
    conquest format /srv/pool --nvram /mnt/pmem/p --size 2G\n  \
                                                    2 GiB in a file elsewhere, used in place\n  \
    conquest format /srv/pool --disk /dev/sdb       a disk of its own for content
    conquest format /srv/pool --disk /data/d:100G   a file of at most 100 GiB, made for it
    conquest format /srv/pool --disk mirror:/dev/sdb,/dev/sdc
                                                    two disks with the same content
    conquest format /srv/pool --disk stripe=256K:/dev/sdb,/dev/sdc
                                                    two disks in turns, 256 KiB at a time
    conquest format /srv/pool --medium dax --nvram /dev/dax0.0\n  \
                                                    a persistent-memory device\n  \
    conquest format /srv/pool --force               destroy the pool that is there")]
pub struct Args {
    /// The pool directory; created if it does not exist
    pool: PathBuf,
    /// The persistent RAM: its size, or the path of a file or device. With a size it lies in shared memory on `logged`,
    /// and in the file `nvram` of the pool directory on `battery` and `dax` [default: a quarter of the RAM,
    /// at most half of the free space]
    #[arg(long, value_name = "SIZE|PATH")]
    nvram: Option<String>,
    /// Size of a file named with --nvram PATH [default: the size of the file or device]
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// The medium of the persistent RAM [default: logged; battery if --nvram names a file]
    #[arg(long, value_enum)]
    medium: Option<Medium>,
    /// Where to keep the backing, which holds the memory's content on disk. `regions`: on the pool's own disks, on two
    /// that fail apart if there are two, so that these disks alone open the pool. On battery and dax also a directory
    /// on a disk, or `none` for no backing [default: on logged `regions` if all disks existed before the pool and have
    /// space; else the pool directory]
    #[arg(long, alias = "copy", value_name = "regions|DIR|none")]
    backing: Option<PathBuf>,
    /// The longest time, in seconds, until a change is in the backing without fsync [default: 5 on logged, 30 on
    /// battery and dax]
    #[arg(long, value_name = "SECONDS")]
    commit: Option<CommitInterval>,
    /// The most bytes a second written to the backing in the background, like 100M [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_rate)]
    rate: Option<Rate>,
    /// On battery and dax: keep a mirrored backing in this directory, or with `regions` on the pool's own disks. An
    /// operation returns when it is in memory and there, and either is enough to open the pool
    #[arg(long, value_name = "regions|DIR", conflicts_with = "backing")]
    mirror: Option<PathBuf>,
    /// A disk for content: a file, made if it does not exist, or a whole block device; may be given several times.
    /// Several disks as one: `stripe:`, as large and as fast as all, lost with any; `mirror:`, the same content on
    /// each; `raid5:`, one disk can be lost. In a list `\,` is a comma of a path; a path that begins with such a word
    /// is written ./mirror:... `none`: all content stays in persistent RAM [default: a file in the pool directory that
    /// may grow to the free space of its file system, less a reserve]
    #[arg(long, value_name = "PATH[:SIZE]|KIND:PATH[:SIZE],...|none", value_parser = regions::parse_or_none)]
    disk: Vec<Asked>,
    /// The size beyond which a file's content is on disk; 64K to 1T [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_threshold)]
    threshold: Option<Threshold>,
    /// A setting of the cache of disk content; may be given several times. `floor`, `ceiling`: the least and most
    /// memory it takes, in percent [default: 0, 100]; `dirty`, `age`, `behind`: percent, seconds, and bytes awaited by
    /// fsync, after which content is written to disks [default: 25, 300, 16M]; `segment`: bytes written as one, 1M to
    /// 8M [default: 4M]
    #[arg(long, value_name = "NAME=VALUE", value_parser = size::parse_setting)]
    cache: Vec<(String, u64)>,
    /// A setting of the compression of unused small files; may be given several times. `warm`, `cold`: seconds after
    /// which they are compressed quickly, and well [default: 600, 86400]; `packed`: seconds after which unchanged
    /// inodes are packed [default: 600]; `pressure`: percent of memory in use above which younger files are compressed
    /// too [default: 85]; `share`: percent of one processor for this work, 0: none [default: 25]
    #[arg(long, value_name = "NAME=VALUE", value_parser = size::parse_setting)]
    compression: Vec<(String, u64)>,
    /// Pack quiet inodes and names also with this profile, written by `conquest profile -o FILE`; may be given several
    /// times. Each block uses the profile that makes it smallest
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
    /// Destroy an existing pool and the content of the disks, or make one in a directory with other files. A file named
    /// with --nvram that is no pool's memory stays: remove it first
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Medium {
    /// Ordinary RAM, with a backing on disk: a change is durable after fsync, or within seconds
    Logged,
    /// RAM that the platform preserves: stores are durable when visible
    Battery,
    /// Persistent memory behind the processor's caches: a device /dev/daxX.Y, or a file on a file system
    /// mounted with -o dax
    Dax,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::absolute(&args.pool)?;
    let (nvram, bytes) = nvram(args, &pool)?;
    let medium = args.medium.map_or_else(|| MediumKind::usual(nvram.as_deref()), MediumKind::from);
    let backing = backing(args, medium)?;
    refuse_without_use(args, backing.is_some() || in_regions(args))?;
    let mirror = args.mirror.is_some();
    let backing_in_regions = match (&args.backing, &args.mirror) {
        _ if in_regions(args) => InRegions::Yes,
        (None, None) => InRegions::IfGiven,
        _ => InRegions::No,
    };
    let how = FormatOptions { nvram, medium, backing, backing_in_regions, mirror, ..FormatOptions::sized(bytes) };
    let how = FormatOptions { commit_interval: args.commit, backing_rate: args.rate, force: args.force, ..how };
    let cache = CacheConfig::of(&args.cache).map_err(|why| Failure::new(format!("--{why}")).with_status(2))?;
    let compression = CompressionConfig::of(&args.compression);
    let compression = compression.map_err(|why| Failure::new(format!("--{why}")).with_status(2))?;
    let how = FormatOptions { threshold: args.threshold, cache, compression, ..how };
    let how = FormatOptions { regions: regions(args, &pool, &how)?, ..how };
    let takes = takes(&pool, &how);
    let profiles = args.profile.iter().map(|path| profile(path)).collect::<Result<Vec<_>>>()?;
    make(&pool, how)?;
    add_profiles(&pool, &profiles)?;
    let pool = pool.display();
    if is_in_ram(&args.pool) {
        let _ = writeln!(
            std::io::stderr(),
            "conquest: warning: {pool} lies in RAM (tmpfs): whatever lies there, the backing or a disk, is LOST when this machine stops"
        );
    }
    say(&format!("{pool} is ready. {takes}. Mount it with `conquest mount {pool} DIR`."))?;
    match medium {
        MediumKind::Battery => say(CAUTION),
        MediumKind::Dax | MediumKind::Logged => Ok(()),
    }
}

/// Reads a profile, before anything is made.
fn profile(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path).context(|| format!("cannot read the profile {}", path.display()))?;
    match conquest_fs::packed::Profile::from_bytes(&bytes) {
        Some(_) => Ok(bytes),
        None => Err(Failure::new(format!(
            "{} is no profile of this version: make one with `conquest profile DIR -o FILE`",
            path.display()
        ))),
    }
}

fn add_profiles(pool: &Path, profiles: &[Vec<u8>]) -> Result<()> {
    if profiles.is_empty() {
        return Ok(());
    }
    let cannot = || format!("{} is made, but has not got its profiles", pool.display());
    let open = Pool::open(pool, &OpenOptions::default()).context(cannot)?;
    profiles.iter().try_for_each(|bytes| open.add_profile(bytes).map(drop)).context(cannot)
}

/// Does the file system that `path` lies in, or will lie in, store its files in RAM?
fn is_in_ram(path: &Path) -> bool {
    let there = std::path::absolute(path).ok();
    let there = there.iter().flat_map(|path| path.ancestors()).find(|path| path.exists());
    there.and_then(|path| rustix::fs::statfs(path).ok()).is_some_and(|found| IN_RAM.contains(&(found.f_type as u32)))
}

/// The types of tmpfs and ramfs.
const IN_RAM: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The most space that a pool will take, and where.
pub fn takes(pool: &Path, how: &FormatOptions) -> String {
    let place = Pool::takes_memory_in(pool, how.medium, how.nvram.as_deref());
    let of = match how.medium {
        MediumKind::Logged => ", this machine's RAM",
        MediumKind::Battery | MediumKind::Dax => "",
    };
    let most = match how.size {
        0 => "its size".into(),
        bytes => size::show(bytes),
    };
    let backing = match (how.medium, &how.backing) {
        _ if lies_in_regions(pool, how) => {
            ", and for its backing as much and some room beside, at most half of a region if that does, in two regions of \
             its disks"
                .into()
        }
        (MediumKind::Logged, _) => format!(", and about as much {} {}", on_disk_in(pool), pool.display()),
        (_, Some(backing)) => {
            let dir = pool.join(backing);
            format!(", and about as much for its backing, {} {}", on_disk_in(&dir), dir.display())
        }
        (_, None) => String::new(),
    };
    let disks = match &how.regions[..] {
        [] => ". It has no disk".into(),
        all => all.iter().map(|region| format!(". {}", regions::describe(pool, region))).collect::<String>(),
    };
    format!("It takes memory as that is used, up to {most} in {}{of}{backing}{disks}", place.display())
}

fn on_disk_in(dir: &Path) -> &'static str {
    if is_in_ram(dir) {
        "in RAM too, in"
    } else {
        "on disk in"
    }
}

/// Will the backing lie on the pool's disks, if they have space?
fn lies_in_regions(pool: &Path, how: &FormatOptions) -> bool {
    let mut disks = how.regions.iter().flat_map(|region| &region.disks);
    let are_given = !how.regions.is_empty() && disks.all(|disk| pool.join(&disk.path).exists());
    match how.backing_in_regions {
        InRegions::No => false,
        InRegions::Yes => true,
        InRegions::IfGiven => how.medium == MediumKind::Logged && are_given,
    }
}

/// The requested regions, or else the usual disk, if there is space for it.
fn regions(args: &Args, pool: &Path, how: &FormatOptions) -> Result<Vec<NewRegion>> {
    let asked = |asked: &Asked| match asked {
        Asked::Region(region) => regions::absolute(region),
        Asked::None => {
            Err(Failure::new("--disk none says that there is no disk; leave it or the others out").with_status(2))
        }
    };
    match &args.disk[..] {
        [] => usual_disk(pool, how),
        [Asked::None] => Ok(Vec::new()),
        all => all.iter().map(asked).collect(),
    }
}

/// The disk of a pool for which none is named.
pub fn usual_disk(pool: &Path, how: &FormatOptions) -> Result<Vec<NewRegion>> {
    let disk = Pool::usual_disk(pool, how).context(|| format!("cannot make a pool at {}", pool.display()))?;
    Ok(disk.into_iter().map(NewRegion::from).collect())
}

impl From<Medium> for MediumKind {
    fn from(medium: Medium) -> Self {
        match medium {
            Medium::Logged => MediumKind::Logged,
            Medium::Battery => MediumKind::Battery,
            Medium::Dax => MediumKind::Dax,
        }
    }
}

/// Refuses options of the backing that have no effect.
fn refuse_without_use(args: &Args, backing: bool) -> Result<()> {
    let why = match (&args.commit, &args.rate) {
        (Some(_), _) if !backing => "--commit says how old the backing may be; with --backing none there is none",
        (_, Some(_)) if !backing => "--rate is for a backing that nobody waits for; with --backing none there is none",
        (_, Some(_)) if args.mirror.is_some() => {
            "--rate is for a backing that nobody waits for; for a mirror every operation does"
        }
        _ => return Ok(()),
    };
    Err(Failure::new(why).with_status(2))
}

/// Shall the backing lie in the pool's regions?
fn in_regions(args: &Args) -> bool {
    [&args.backing, &args.mirror].into_iter().flatten().any(|place| place == Path::new("regions"))
}

/// Is `dir` the pool directory, or `.`, which is short for that?
fn is_pool_dir(args: &Args, dir: &Path) -> bool {
    let same = || Some(locate::absolute(dir).ok()? == locate::absolute(&args.pool).ok()?);
    dir == Path::new(".") || same() == Some(true)
}

/// The directory of the backing or mirrored backing.
fn backing(args: &Args, medium: MediumKind) -> Result<Option<PathBuf>> {
    let asked = args.mirror.as_deref().or(args.backing.as_deref());
    match asked {
        Some(_) if in_regions(args) => Ok(None),
        // This is the default.
        Some(dir) if medium == MediumKind::Logged && args.mirror.is_none() && is_pool_dir(args, dir) => Ok(None),
        Some(_) if medium == MediumKind::Logged => Err(Failure::new(
            "a directory for --backing or --mirror is for battery and dax: on `logged` the backing is in the pool directory, or with \
             `--backing regions` on its disks, and `-o durability=strict` makes operations wait for it",
        )
        .with_status(2)),
        Some(none) if none == Path::new("none") && args.mirror.is_none() => Ok(None),
        Some(dir) => locate::absolute(dir).map(Some),
        None => Ok(Some(PathBuf::from("."))),
    }
}

/// A warning about `battery`, given before any data is entrusted to it.
pub const CAUTION: &str = "\
The medium is `battery`: it survives every process, but a power cut only where the platform keeps this memory.
Elsewhere save images: `conquest save`, or mount with `-o save=FILE`.";

/// Makes a pool that belongs to the caller.
pub fn make(pool: &Path, how: FormatOptions) -> Result<()> {
    mounts::refuse_mounted(pool)?;
    Pool::format(pool, &how).context(|| format!("cannot make a pool at {}", pool.display()))
}

/// The path and size of the memory: `None` is the pool directory, 0 the size of an existing file.
fn nvram(args: &Args, pool: &Path) -> Result<(Option<PathBuf>, u64)> {
    let Some(text) = &args.nvram else {
        return Ok((
            None,
            args.size
                .map_or_else(|| size::default_for(pool, args.medium.map_or(MediumKind::Logged, Into::into)), Ok)?,
        ));
    };
    match (size::parse(text), args.size) {
        (Ok(_), Some(_)) => Err(Failure::new(format!(
            "--nvram {text} and --size both give a size; --size goes with the path of a file (write ./{text} for one)"
        ))
        .with_status(2)),
        (Ok(bytes), None) => Ok((None, bytes)),
        (Err(why), _) if !text.contains('/') && text.starts_with(|c: char| c.is_ascii_digit()) => {
            Err(Failure::new(format!("--nvram: {why}; a file of this name is written ./{text}")).with_status(2))
        }
        (Err(_), bytes) => {
            let path = locate::absolute(Path::new(text))?;
            if bytes.is_none() && !path.exists() {
                let path = path.display();
                return Err(Failure::new(format!("{path} does not exist; give --size to create it, e.g. --size 1G"))
                    .with_status(2));
            }
            Ok((Some(path), bytes.unwrap_or(0)))
        }
    }
}
