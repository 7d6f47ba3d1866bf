//! The cost of durability on the machine's own disk: the medium `logged` against the file system of the disk.
//!
//! | part | subject |
//! | --- | --- |
//! | [`synced`] | create + write + fsync through the mount, by one thread and by eight |
//! | [`behind`] | create + write without fsync, while the backing follows, against `battery` |
//! | [`sqlite`] | transactions of sqlite3 through the mount |
//! | [`volume`] | bytes written to the redo log, against bytes that operations change |
//! | [`reopen`] | opening after a power cut, and after `kill -9` of everything |
//!
//! The first and the third are shown beside the [`limits`]: the time of their flushes and messages by themselves.
//!
//! Pools lie on the disk, side by side with the directories that they are compared with.

mod behind;
mod limits;
mod reopen;
pub mod sqlite;
mod synced;
mod volume;

use std::path::{Path, PathBuf};

use conquest::{CommitInterval, FormatOptions};

use crate::disk::dir_on_disk;
use crate::disk::Disk;
use crate::hosts::Host;
use crate::prelude::*;
use crate::program::{Mount, Own};

/// Conquest on `logged`, mounted or in this process as the title says, and the existing file system of the disk.
const LOGGED: &str = "conquest logged";
const DISK: &str = "disk";
const BATTERY: &str = "conquest battery";

type Measure = fn(&Setup<'_>) -> Outcome;

const PARTS: [Part<Measure>; 5] = [
    ("fsync", "create + write + fsync, by one thread and by eight", synced::run),
    ("behind", "create + write, while the backing follows", behind::run),
    ("sqlite", "Transactions of sqlite3", sqlite::run),
    ("volume", "Bytes that the log takes", volume::run),
    ("reopen", "Opening after a power cut, and after `kill -9`", reopen::run),
];

options! { Options {
    dir: dir, "A directory on the disk to measure [default: $TMPDIR, else /var/tmp]";
    {
        /// Measure on an ext4 with the defaults of mkfs.ext4, in a file there: for a disk whose own file system has no
        /// journal. Needs root
        #[arg(long)]
        pub journal: bool
    }
    only: "PART,..." of &PARTS, "What to measure [default: all]";
    synced: count "N" = 200, "Files per thread and round that are synced";
    transactions: count "N" = 2_000, "Transactions of sqlite3 per round";
    interval: real "SECONDS" = 5.0, "Seconds from commit to commit where nobody waits for one; a round takes as long. A \
        backing is measured with its default as well, 30";
    content: count "MIB" = 700, "MiB of files in the pool that is opened, at most 800";
} }

impl Workload for Options {
    fn disk(&self) -> Option<PathBuf> {
        Some(dir_on_disk(self.dir.as_ref()))
    }

    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let there = context.disk.as_deref().ok_or_else(|| Error::Usage("no directory on a disk was made".into()));
        let mut disk = there.and_then(Disk::at).map_err(|e| e.to_string());
        let mut host = None;
        if let (Ok(own), true) = (&disk, self.journal) {
            context.progress.say("making an ext4 with a journal".into());
            match Host::ext4_in(&own.dir, context.base.join("ext4"), 5 * bytes(context)) {
                Ok(made) => disk = Disk::at(&host.insert(made).dir).map_err(|e| e.to_string()),
                Err(e) => disk = Err(format!("an ext4 with a journal cannot be made: {e}")),
            }
        }
        let (setup, mut outcome) = (Setup { context, args: self, disk }, Outcome::default());
        wanted(&PARTS, &self.only).for_each(|(.., measure)| outcome.extend(measure(&setup)));
        Ok(outcome)
    }
}

/// The state that the parts share.
struct Setup<'a> {
    context: &'a Context,
    args: &'a Options,
    /// The disk, or the reason why there is none.
    disk: Result<Disk, String>,
}

impl Setup<'_> {
    /// The name of the disk, for titles.
    fn name(&self) -> String {
        self.disk.as_ref().map_or("no disk".into(), Disk::name)
    }

    /// Bytes of a pool's memory.
    fn bytes(&self) -> u64 {
        bytes(self.context)
    }

    /// Measures a part, if there is a disk. A part that fails is reported at the end; the others go on.
    fn attempt(&self, sections: &mut [Section], work: impl FnOnce(&Disk, &mut [Section]) -> Result<(), Error>) {
        let label = format!("durable: {}", sections[0].id);
        self.context.attempt(&label, LOGGED, sections, |sections| {
            let disk = self.disk.as_ref().map_err(|reason| Error::Usage(reason.clone()))?;
            work(disk, sections)
        });
    }

    /// A pool on `logged` on the disk.
    fn logged(&self, disk: &Disk, label: &str, bytes: u64, every: Option<CommitInterval>) -> Result<Own, Error> {
        self.context.progress.say(format!("making a pool on {}", disk.name()));
        let how = FormatOptions { commit_interval: every, ..FormatOptions::on(MediumKind::Logged, bytes) };
        Own::make(disk.dir.join(format!("{label}.pool")), how)
    }

    /// Mounts a pool. If this machine cannot mount, that is a reason, not a failure.
    fn mount(&self, pool: &Own, label: &str) -> Result<Mount, Error> {
        let dir = self.context.base.join(format!("{label}.mnt"));
        Mount::of(&pool.dir, dir, &self.context.program).map_err(|e| Error::Usage(e.to_string()))
    }
}

fn bytes(context: &Context) -> u64 {
    if context.quick {
        128 << 20
    } else {
        1 << 30
    }
}

/// A directory on the disk; dropping it removes it.
struct Beside(PathBuf);

impl Beside {
    fn make(disk: &Disk, label: &str) -> Result<Beside, Error> {
        let dir = disk.dir.join(label);
        std::fs::create_dir(&dir).map_err(Error::file(&dir))?;
        Ok(Beside(dir))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // At the latest the run removes the directory above it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
