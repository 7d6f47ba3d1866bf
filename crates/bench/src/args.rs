//! The command line of `conquest bench`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::context::{Common, Workload};
use crate::disk::dir_on_disk;
use crate::error::Error;
use crate::mine::Mine;
use crate::published;
use crate::workload::{
    beside, bigdir, compression, databases, direct, disks, durable, filebench, large, largefile, memory, mixed, mramfs,
    open, packed, places, postmark, scale, smallfile, stalls, study, sustained, ubj,
};

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
    conquest bench direct --only commands          tar, git, sqlite3 and others under `conquest run`\n  \
    conquest bench mramfs --only build --source DIR    make in a copy of that tree, on each file system\n  \
    conquest bench mine /mnt/pool                  your mount beside the file system around it, in 20 seconds\n  \
    conquest bench publish --dir /srv              everything, into docs/figures\n  \
    conquest bench figures --write docs/FIGURES.md     the pages made of that";

/// Measure Conquest against the file systems of this machine, side by side.
///
/// The benchmark itself makes and removes tmpfs, and ext4, XFS and btrfs on loop devices over tmpfs, in a mount
/// namespace of its own; that needs root. A file system that this machine lacks is reported as skipped.
#[derive(Clone, Debug, Parser)]
#[command(name = "conquest bench", bin_name = "conquest bench", version, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub what: What,

    #[command(flatten)]
    pub common: Common,
}

/// Makes the subcommands of the workloads, and finds the workload of a subcommand.
macro_rules! what {
    ($($(#[$about:meta])* $name:ident($options:ty),)* -- $($others:tt)*) => {
        /// The workload.
        #[derive(Clone, Debug, Subcommand)]
        pub enum What {
            $($(#[$about])* $name($options),)*
            $($others)*
        }

        impl What {
            /// The workload, if it is a single one.
            pub fn workload(&self) -> Option<&dyn Workload> {
                match self {
                    $(What::$name(options) => Some(options),)*
                    _ => None,
                }
            }
        }
    };
}

what! {
    /// Sprite LFS small files (Figure 5.1 of the Conquest paper)
    Smallfile(smallfile::Options),
    /// Two threads, and two processes, against one, in different directories
    Scale(scale::Options),
    /// PostMark (Figures 5.3 and 5.4 of the Conquest paper)
    Postmark(postmark::Options),
    /// A directory of a million entries against directories of a thousand
    Bigdir(bigdir::Options),
    /// Opening a pool with a million files against an empty one
    Open(open::Open),
    /// Checking a pool with a million files on one core
    Fsck(open::Fsck),
    /// Persistent RAM per file and per directory entry
    Memory(memory::Options),
    /// Compressing unused small files: the savings, and the cost
    Compression(compression::Options),
    /// Packed inodes: their size, packing them, and stat of them
    Packed(packed::Options),
    /// The cost of durability on the machine's own disk: fsync, sqlite3, the log, opening after a power cut
    Durable(durable::Options),
    /// Large files: written and read in order and at random, against ext4 and the raw disk
    Large(large::Options),
    /// Filebench's varmail, fileserver, webserver and webproxy against ext4
    Filebench(filebench::Options),
    /// Sprite LFS large files (Figure 5.2 of the Conquest paper)
    Largefile(largefile::Options),
    /// PostMark with large files among the small ones (Figure 5.6 of the Conquest paper)
    PostmarkLarge(mixed::Options),
    /// Overwrites of a nearly full disk: the cost of the cleaner
    Sustained(sustained::Options),
    /// PostgreSQL, sqlite3 and redis with large files, against ext4
    Databases(databases::Options),
    /// The figures of the paper on the union of buffer cache and journal (UBJ, Figures 2 and 6 to 13)
    Ubj(ubj::Options),
    /// The figures of the paper on E×RAID and I·LFS (Figures 3 to 9): pools on several disks, slow ones among them
    Disks(disks::Options),
    /// The figures of the thesis on mramfs (Figures 5.3 to 5.5): PostMark in one directory and in a hundred, and a build
    Mramfs(mramfs::Options),
    /// Changing files directly in directories that a mount knows
    Beside(beside::Options),
    /// What direct access gives to unmodified programs, beside tmpfs, ext4 and the plain mount
    Direct(direct::Options),
    /// Mounting a pool at a second directory
    Places(places::Options),
    /// What a tree would save with packed inodes and compressed files (mramfs, chapters 3 and 4)
    Study(study::Options),
    /// Making a file through the mount while gigabytes are reserved, committed and saved
    Stalls(stalls::Options),
    --
    /// Everything, with one table of goals and results
    All,
    /// Everything, with each workload's rounds in a file of its own, from which `figures` makes pages; continues a run that
    /// was ended
    Publish(Publish),
    /// The figures of docs/FIGURES.md and README.md, made from the files of `publish`
    Figures(Figures),
    /// Your own mount beside another file system: single operations, in twenty seconds
    Mine(Mine),
    #[command(hide = true)]
    Worker(scale::Worker),
    #[command(hide = true)]
    FileWorker(direct::Worker),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Publish {
    /// The directory to write NAME.json to for each workload, and plots
    #[arg(long, value_name = "DIR", default_value = "docs/figures")]
    pub to: PathBuf,
    /// A directory on the disk to measure [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Measure only these workloads
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = published::names())]
    pub only: Vec<String>,
    /// Measure again what the same programs have measured here within a day
    #[arg(long)]
    pub again: bool,
    /// Measure although other programs are running
    #[arg(long)]
    pub busy: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Figures {
    /// The directory that `publish` has written to
    #[arg(value_name = "DIR", default_value = "docs/figures")]
    pub from: PathBuf,
    /// Put the figures into FILE, between the lines that mark their place, and draw the plots, instead of printing them
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

impl What {
    /// The disk that the run writes to, if any.
    pub fn disk(&self) -> Option<PathBuf> {
        match self {
            What::Publish(publish) => Some(dir_on_disk(publish.dir.as_ref())),
            What::All => Some(dir_on_disk(None)),
            what => what.workload()?.disk(),
        }
    }

    /// Parses a command line without options of the whole run.
    pub fn parse(line: &str) -> Result<What, Error> {
        let args = Args::try_parse_from(std::iter::once("conquest bench").chain(line.split(' ')));
        args.map(|args| args.what).map_err(|e| Error::Usage(e.to_string()))
    }
}
