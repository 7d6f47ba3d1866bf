//! The command line of `conquest bench`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

const EXAMPLES: &str = "Examples:\n  \
    conquest bench all --quick                     does everything work?\n  \
    conquest bench all --json all.json             everything, three quarters of an hour\n  \
    conquest bench smallfile --on ext4,logged-uring    Figure 5.1 on two file systems\n  \
    conquest bench postmark --paper                as many sizes and transactions as there\n  \
    conquest bench durable --dir /srv              what fsync costs on that disk\n  \
    conquest bench large --only synced --dir /srv  one part of what large files cost\n  \
    conquest bench filebench --setting ram-backed  mail, file, web and proxy servers, all in RAM\n  \
    conquest bench ubj --only replay               the caches of UBJ's Figures 6 to 9, one trace through each\n  \
    conquest bench disks --only unequal            fast and slow disks together\n  \
    conquest bench mramfs --only build --source DIR    make in a copy of that tree, on each file system\n  \
    conquest bench publish --dir /srv              everything, into docs/figures\n  \
    conquest bench figures --write docs/FIGURES.md     the tables made of that";

/// Measure Conquest against the file systems of this machine, side by side.
///
/// tmpfs, and ext4, XFS and btrfs on loop devices over tmpfs, are made and removed by the benchmark
/// itself, in a mount namespace of its own; that needs root. What cannot be had is reported as skipped.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub what: What,

    /// Write all rounds and medians to FILE as JSON
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw what has a plot into DIR, as SVG
    #[arg(long, global = true, value_name = "DIR")]
    pub plots: Option<PathBuf>,

    /// Much smaller sizes, to see that everything works; the figures mean little
    #[arg(long, global = true)]
    pub quick: bool,

    /// Rounds per file system, interleaved [default: depends on the workload]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    pub rounds: Option<u32>,

    /// The file systems to run on [default: all that the workload compares]
    #[arg(long, global = true, value_name = "NAME,...", value_delimiter = ',')]
    pub on: Vec<Kind>,

    /// The conquest program to mount with [default: the one beside this program, or in PATH]
    #[arg(long, global = true, value_name = "PATH")]
    pub program: Option<PathBuf>,
}

/// A file system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Tmpfs,
    /// ext2, which one workload compares
    Ext2,
    Ext4,
    Xfs,
    Btrfs,
    /// Conquest in this process, medium `logged`
    LoggedInproc,
    /// Conquest mounted over io_uring, medium `logged`
    LoggedUring,
    /// Conquest in this process, medium `battery`
    BatteryInproc,
    /// Conquest mounted over io_uring, medium `battery`
    BatteryUring,
    /// Conquest mounted over /dev/fuse, medium `battery`
    BatteryDev,
}

impl Kind {
    /// Those that most workloads compare.
    pub const ALL: [Kind; 9] = [
        Kind::Tmpfs,
        Kind::Ext4,
        Kind::Xfs,
        Kind::Btrfs,
        Kind::LoggedInproc,
        Kind::LoggedUring,
        Kind::BatteryInproc,
        Kind::BatteryUring,
        Kind::BatteryDev,
    ];

    /// How reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tmpfs => "tmpfs",
            Kind::Ext2 => "ext2",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::LoggedInproc => "conquest logged",
            Kind::LoggedUring => "conquest logged+uring",
            Kind::BatteryInproc => "conquest battery",
            Kind::BatteryUring => "conquest battery+uring",
            Kind::BatteryDev => "conquest battery+dev",
        }
    }

    /// How paths call it: a space would be written otherwise in the list of mounts.
    pub fn file_name(self) -> String {
        self.name().replace(' ', "-")
    }
}

/// The workload.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    /// Sprite LFS small files (Figure 5.1 of the Conquest paper)
    Smallfile(Smallfile),
    /// Two threads, and two processes, against one, in different directories
    Scale(Scale),
    /// PostMark (Figures 5.3 and 5.4 of the Conquest paper)
    Postmark(Postmark),
    /// A directory of a million entries against directories of a thousand
    Bigdir(Bigdir),
    /// Opening a pool with a million files against an empty one
    Open(Files),
    /// Checking a pool with a million files on one core
    Fsck(Files),
    /// Persistent RAM per file and per directory entry
    Memory(Memory),
    /// Compressing small files that nobody uses: what it saves, and costs
    Compression(Compression),
    /// Packed inodes: what they take, packing them, and stat of them
    Packed(Packed),
    /// What durability costs on the machine's own disk: fsync, sqlite3, the log, opening after a power cut
    Durable(Durable),
    /// Large files: written and read in order and at random, against ext4 and the raw disk
    Large(Large),
    /// Filebench's varmail, fileserver, webserver and webproxy against ext4
    Filebench(Filebench),
    /// Sprite LFS large files (Figure 5.2 of the Conquest paper)
    Largefile(Largefile),
    /// PostMark with large files among the small ones (Figure 5.6 of the Conquest paper)
    PostmarkLarge(PostmarkLarge),
    /// Overwrites of a disk that is nearly full: what the cleaner costs
    Sustained(Sustained),
    /// PostgreSQL, sqlite3 and redis with large files, against ext4
    Databases(Databases),
    /// The figures of the paper on the union of buffer cache and journal (UBJ, Figures 2 and 6 to 13)
    Ubj(Ubj),
    /// The figures of the paper on E×RAID and I·LFS (Figures 3 to 9): pools on several disks, slow ones among them
    Disks(Disks),
    /// The figures of the thesis on mramfs (Figures 5.3 to 5.5): PostMark in one directory and in a hundred, and a build
    Mramfs(Mramfs),
    /// Mounting a pool at a second directory
    Places,
    /// Making a file through the mount while others have gigabytes reserved, committed and saved
    Stalls,
    /// Everything, with one table of the numbers to reach
    All,
    /// Everything, each workload's rounds in a file of its own, of which `figures` makes tables
    Publish(Publish),
    /// The tables of docs/FIGURES.md and README.md, made of what `publish` has written
    Figures(Figures),
    #[command(hide = true)]
    Worker(Worker),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Smallfile {
    /// Files per round
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = at_least_one)]
    pub files: usize,
    /// Directories they are spread over
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    pub dirs: usize,
    /// Bytes per file
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = at_least_one)]
    pub size: usize,
    /// Files of the phase that syncs each
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    pub synced: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Scale {
    /// Files per worker and round
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = at_least_one)]
    pub files: usize,
    /// Directories per worker
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    pub dirs: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Postmark {
    /// Sizes of the file set
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = at_least_one,
          default_values_t = [5_000, 15_000, 30_000])]
    pub files: Vec<usize>,
    /// Transactions per run
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = at_least_one)]
    pub transactions: usize,
    /// As in the paper: the sizes 5000, 10000 and so on to 30000, and 200,000 transactions; takes about an hour
    #[arg(long, conflicts_with_all = ["files", "transactions"])]
    pub paper: bool,
    /// Bytes per read or write call
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = at_least_one)]
    pub block: usize,
    /// Also run the `postmark` program on each mounted file system
    #[arg(long)]
    pub postmark_binary: bool,
}

impl Postmark {
    /// Sizes of the file set, and transactions.
    pub fn plan(&self) -> (Vec<usize>, usize) {
        match self.paper {
            true => ((1..=6).map(|n| n * 5_000).collect(), 200_000),
            false => (self.files.clone(), self.transactions),
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Bigdir {
    /// Entries of the big directory, and of all small ones together
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    pub entries: usize,
    /// Entries of a small directory
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    pub small: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Files {
    /// Files in the pool
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    pub files: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Memory {
    /// Files, and entries, to divide by
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    pub files: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Packed {
    /// The tree that names and inodes are taken from
    #[arg(long, value_name = "DIR", default_value = "/usr")]
    pub tree: PathBuf,
    /// Inodes, at most
    #[arg(long, value_name = "N", default_value_t = 150_000, value_parser = at_least_one)]
    pub inodes: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Compression {
    /// The tree that files are taken from
    #[arg(long, value_name = "DIR", default_value = "/usr")]
    pub tree: PathBuf,
    /// Files of the sample
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = at_least_one)]
    pub files: usize,
    /// MiB that are compressed while others work
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub backlog: u64,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Durable {
    /// A directory on the disk to measure [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Measure on an ext4 as mkfs.ext4 makes it, in a file there: for a disk whose own has no journal. Needs root
    #[arg(long)]
    pub journal: bool,
    /// What to measure [default: all]
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Files per thread and round that are synced
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    pub synced: usize,
    /// Transactions of sqlite3 per round
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = at_least_one)]
    pub transactions: usize,
    /// Seconds from commit to commit where nobody waits for one; a round takes as long. A running copy is measured
    /// with its default as well, 30
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub interval: f64,
    /// MiB of files in the pool that is opened, at most 800
    #[arg(long, value_name = "MIB", default_value_t = 700, value_parser = at_least_one)]
    pub content: usize,
}

/// A part of `durable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// create + write + fsync, by one thread and by eight
    Fsync,
    /// create + write, while the copy follows in the background
    Behind,
    /// Transactions of sqlite3
    Sqlite,
    /// Bytes that the log takes
    Volume,
    /// Opening after a power cut, and after `kill -9`
    Reopen,
}

/// Where pools keep large files, and the file systems that they are compared with everything.
#[derive(Clone, Debug, clap::Args)]
pub struct Grounds {
    /// Where large files lie, and all files of those that are compared with
    #[arg(long, value_name = "SETTING,...", value_delimiter = ',', default_values_t = [Setting::OwnDisk])]
    pub setting: Vec<Setting>,
    /// A directory on the disk to measure [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl Grounds {
    fn disk(&self) -> Option<PathBuf> {
        self.setting.contains(&Setting::OwnDisk).then(|| disk(&self.dir))
    }
}

/// What is under the file systems of a workload of large files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Setting {
    /// The machine's own disk: ours are files there, ext4 on loop devices past the page cache over files there
    OwnDisk,
    /// tmpfs, where a flush costs nothing
    RamBacked,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Setting::OwnDisk => "own-disk",
            Setting::RamBacked => "ram-backed",
        })
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Large {
    #[command(flatten)]
    pub grounds: Grounds,
    /// What to measure [default: all]
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<LargePart>,
    /// MiB of the file that is written in order and read cold
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = at_least_one)]
    pub size: usize,
    /// MiB of the file of the other parts
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = at_least_one)]
    pub file: usize,
    /// MiB of persistent RAM of pools that have a disk
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = at_least_one)]
    pub cache: usize,
    /// Overwrites per round that are synced one by one
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = at_least_one)]
    pub synced: usize,
    /// MiB of the file of which the bytes written to disk are counted, once over and over again
    #[arg(long, value_name = "MIB", default_value_t = 300, value_parser = at_least_one)]
    pub counted: usize,
    /// Random reads per round
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = at_least_one)]
    pub reads: usize,
}

/// A part of `large`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LargePart {
    /// A file written in order until it is durable, and read cold, against the raw disk
    Sequential,
    /// Random overwrites of 4 KiB, each synced
    Synced,
    /// Bytes written to disk for random overwrites of 4 KiB, synced every hundred
    Volume,
    /// 1 MiB writes and one sync; bytes written to disk
    Stream,
    /// Random reads of 4 KiB from the cache
    Cached,
    /// Random reads of 4 KiB from the disk, 32 at a time, against the raw disk
    Cold,
    /// Reading in order what was overwritten at random, against the raw disk
    Aged,
    /// Random stores to a mapped file
    Mapped,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Filebench {
    #[command(flatten)]
    pub grounds: Grounds,
    /// Which of them [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<Personality>,
    /// Seconds of a round
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub seconds: f64,
    /// Files, times as many as in the stock file sets
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub scale: usize,
    /// MiB of persistent RAM of pools that have a disk
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = at_least_one)]
    pub cache: usize,
}

/// A workload of Filebench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Personality {
    Varmail,
    Fileserver,
    Webserver,
    Webproxy,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Largefile {
    #[command(flatten)]
    pub grounds: Grounds,
    /// Files of 100 MB; the paper has 40
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub files: usize,
    /// Files of 1 MB and of 1.01 MB, as many as the paper has
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub small: usize,
    /// Bytes per read or write call
    #[arg(long, value_name = "BYTES", default_value_t = 8192, value_parser = at_least_one)]
    pub block: usize,
    /// MiB of persistent RAM of pools that have a disk
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = at_least_one)]
    pub cache: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct PostmarkLarge {
    #[command(flatten)]
    pub grounds: Grounds,
    /// Files; the paper has 10000
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = at_least_one)]
    pub files: usize,
    /// Transactions per run
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = at_least_one)]
    pub transactions: usize,
    /// Percent of the files that have 2 to 5 MB
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [0.0, 1.0, 2.0, 5.0, 10.0])]
    pub percent: Vec<f64>,
    /// Bytes per read or write call
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = at_least_one)]
    pub block: usize,
    /// MiB of persistent RAM of pools that have a disk
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = at_least_one)]
    pub cache: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Sustained {
    /// A directory on the disk to measure [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// MiB of the pool's disk
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = at_least_one)]
    pub size: usize,
    /// Percent of what the disk holds that are filled
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..100))]
    pub full: u32,
    /// How often as many blocks are overwritten as there are, before what is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub before: usize,
    /// Percent of the content that may be dirty in the cache, in the second part
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..50))]
    pub dirty: u32,
    /// MiB of persistent RAM in the first part, as little as possible
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = at_least_one)]
    pub cache: usize,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Databases {
    #[command(flatten)]
    pub grounds: Grounds,
    /// Which of them [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<Database>,
    /// The scale of pgbench; 50 is a base of 750 MB
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = at_least_one)]
    pub scale: usize,
    /// Seconds of a round of pgbench
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = at_least_one)]
    pub seconds: usize,
    /// MiB of the base of sqlite3
    #[arg(long, value_name = "MIB", default_value_t = 500, value_parser = at_least_one)]
    pub base: usize,
    /// Transactions of sqlite3 per round
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = at_least_one)]
    pub transactions: usize,
    /// Requests to redis per round
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = at_least_one)]
    pub requests: usize,
    /// MiB of persistent RAM of pools that have a disk
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = at_least_one)]
    pub cache: usize,
}

/// A database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Database {
    /// pgbench with 4 clients
    Postgres,
    /// Transactions of one update, with the journal modes WAL and DELETE
    Sqlite,
    /// SET by 20 clients with appendfsync always
    Redis,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Ubj {
    #[command(flatten)]
    pub grounds: Grounds,
    /// What to measure [default: all]
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<UbjPart>,
    /// MiB that a trace goes over
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = at_least_one)]
    pub footprint: usize,
    /// Blocks that a trace reads and writes, one after the other
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = at_least_one)]
    pub references: usize,
    /// Sizes of caches, times what a trace goes over
    #[arg(long, value_name = "PART,...", value_delimiter = ',',
          default_values_t = [0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0])]
    pub sizes: Vec<f64>,
    /// A directory for the traces: those that are there are replayed, the others recorded there
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Seconds of a round of Filebench
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    pub seconds: f64,
    /// Seconds of a round where commits have a period, of which there are to be some
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub long: f64,
    /// MiB of the files that are written in order and at random
    #[arg(long, value_name = "MIB,...", value_delimiter = ',', value_parser = at_least_one,
          default_values_t = [100, 200, 300])]
    pub filesets: Vec<usize>,
    /// Transactions of PostMark
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = at_least_one,
          default_values_t = [2_000, 6_000, 10_000])]
    pub transactions: Vec<usize>,
    /// Files of PostMark, 500 KB on average
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    pub files: usize,
    /// Seconds from commit to commit
    #[arg(long, value_name = "SECONDS,...", value_delimiter = ',', value_parser = at_least_one,
          default_values_t = [1, 3, 5])]
    pub periods: Vec<usize>,
    /// MiB of persistent RAM of pools that are mounted
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = at_least_one)]
    pub cache: usize,
}

/// Figures of the paper on UBJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UbjPart {
    /// Bytes written to disk, against no journal (Figure 2)
    Traffic,
    /// Traces through caches with the journal beside them, within them, and with none (Figures 6 to 9)
    Replay,
    /// Filebench (Figure 10)
    Filebench,
    /// One file written in order and at random (Figure 11)
    Iozone,
    /// PostMark (Figure 12)
    Postmark,
    /// Latency of varmail by the period of commits (Figure 13)
    Period,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Disks {
    /// What to measure [default: all]
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<DisksPart>,
    /// MB in a second of a fast disk
    #[arg(long, value_name = "MB", default_value_t = 60, value_parser = at_least_one)]
    pub fast: usize,
    /// MB in a second of a slow disk
    #[arg(long, value_name = "MB", default_value_t = 20, value_parser = at_least_one)]
    pub slow: usize,
    /// MiB of what is written in order
    #[arg(long, value_name = "MIB", default_value_t = 768, value_parser = at_least_one)]
    pub size: usize,
    /// MiB of persistent RAM of the pools
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = at_least_one)]
    pub cache: usize,
}

/// Figures of the paper on E×RAID and I·LFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DisksPart {
    /// In order and at random, written and read, on four slow and four fast disks (Figure 3)
    Baseline,
    /// A disk more each time so much is written (Figure 4)
    Growth,
    /// Fast and slow disks, written in order (Figure 5)
    Unequal,
    /// Two of four disks are one (section 6.3)
    Misconfigured,
    /// One of four disks is slow for the middle third (Figure 6)
    Degraded,
    /// Random reads of mirrored files, while a disk is lost (Figure 7); what is copied then
    Failure,
    /// Twenty files, more and more of them mirrored (Figure 8)
    Mirrored,
    /// Files that are mirrored later (Figure 9)
    Lazy,
    /// Whole stripes of a RAID-5 region
    Raid5,
    /// What others wait for while a disk is rebuilt, removed, balanced, scrubbed
    Foreground,
    /// A file that was overwritten at random, read in order before and after it was reorganised
    Reorganised,
    /// A mirrored file, the disk of whose faster copy does not answer
    Hanging,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Mramfs {
    /// What to measure [default: all]
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<MramfsPart>,
    /// Files of PostMark, of 1 to 4095 bytes
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = at_least_one)]
    pub files: usize,
    /// Transactions of PostMark
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = at_least_one)]
    pub transactions: usize,
    /// A configured tree that `make` builds [default: one of C files that is made for it]
    #[arg(long, value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// C files of the tree that is made
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    pub units: usize,
    /// MiB of text that nobody uses, which are compressed meanwhile
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = at_least_one)]
    pub backlog: usize,
}

/// Figures of the thesis on mramfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MramfsPart {
    /// PostMark in one directory (Figures 5.3 and 5.4)
    Single,
    /// PostMark in a hundred directories (section 5.2.1)
    Hundred,
    /// `make` in a tree of C files (Figure 5.5)
    Build,
}

/// Where the disk is: at `named`, or where temporary files go.
fn disk(named: &Option<PathBuf>) -> PathBuf {
    let temporary = || std::env::var_os("TMPDIR").filter(|d| !d.is_empty()).map(PathBuf::from);
    named.clone().or_else(temporary).unwrap_or_else(|| "/var/tmp".into())
}

#[derive(Clone, Debug, clap::Args)]
pub struct Publish {
    /// The directory to write NAME.json to for each workload, and plots
    #[arg(long, value_name = "DIR", default_value = "docs/figures")]
    pub to: PathBuf,
    /// A directory on the disk to measure [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Figures {
    /// Where `publish` has written to
    #[arg(value_name = "DIR", default_value = "docs/figures")]
    pub from: PathBuf,
    /// Put the tables into FILE, between the lines that mark their place, instead of printing them
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

impl What {
    /// The disk that the workload writes to, if it writes to one.
    pub fn disk(&self) -> Option<PathBuf> {
        match self {
            What::Durable(durable) => Some(disk(&durable.dir)),
            What::Large(large) => large.grounds.disk(),
            What::Largefile(largefile) => largefile.grounds.disk(),
            What::PostmarkLarge(postmark) => postmark.grounds.disk(),
            What::Sustained(sustained) => Some(disk(&sustained.dir)),
            What::Databases(databases) => databases.grounds.disk(),
            What::Ubj(ubj) => ubj.grounds.disk(),
            What::Filebench(filebench) => filebench.grounds.disk(),
            What::Publish(publish) => Some(disk(&publish.dir)),
            What::All => Some(disk(&None)),
            _ => None,
        }
    }
}

/// One process of `scale`: told what to do on stdin.
#[derive(Clone, Debug, clap::Args)]
pub struct Worker {
    pub pool: PathBuf,
    pub id: usize,
    pub cpu: usize,
    pub files: usize,
    pub dirs: usize,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.replace('_', "").parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

/// The options of a workload as they are when none is given.
pub fn defaults<T: clap::Args>() -> T {
    let command = T::augment_args(clap::Command::new("defaults"));
    let matches = command.get_matches_from(["defaults"]);
    // Every option has a default, which the test below holds.
    T::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_a_workload_has_a_default() {
        assert_eq!(defaults::<Smallfile>().files, 10_000);
        assert_eq!(defaults::<Scale>().dirs, 100);
        assert_eq!(defaults::<Postmark>().files.len(), 3);
        assert_eq!(defaults::<Bigdir>().entries, 1_000_000);
        assert_eq!(defaults::<Files>().files, 1_000_000);
        assert_eq!(defaults::<Memory>().files, 1_000_000);
        assert_eq!(defaults::<Durable>().transactions, 2_000);
        assert_eq!(defaults::<Large>().size, 4096);
        assert_eq!(defaults::<Largefile>().files, 8);
        assert_eq!(defaults::<PostmarkLarge>().percent.len(), 5);
        assert_eq!(defaults::<Sustained>().full, 90);
        assert_eq!(defaults::<Databases>().scale, 50);
        assert_eq!(defaults::<Ubj>().sizes.len(), 7);
        assert_eq!(defaults::<Disks>().fast, 60);
        assert_eq!(defaults::<Mramfs>().files, 50_000);
        assert_eq!(defaults::<Filebench>().grounds.setting, [Setting::OwnDisk]);
    }

    #[test]
    fn sizes_of_zero_are_refused() {
        assert!(at_least_one("0").is_err());
        assert!(at_least_one("-1").is_err());
        assert_eq!(at_least_one("30_000"), Ok(30_000));
    }
}
