//! What durability costs, on the machine's own disk: the medium `logged` against the file system that is there.
//!
//! | part | what it measures |
//! | --- | --- |
//! | [`synced`] | create + write + fsync through the mount, by one thread and by eight |
//! | [`behind`] | create + write without fsync, while the copy follows, against `battery` |
//! | [`sqlite`] | transactions of sqlite3 through the mount |
//! | [`volume`] | bytes that the log takes, against bytes that operations change |
//! | [`reopen`] | opening after a power cut, and after `kill -9` of everything |
//!
//! Beside the first and the third stand the [`limits`]: what their flushes and messages take by themselves.
//!
//! Pools lie on the disk, and so do the directories that they are compared with, side by side.

mod behind;
mod limits;
mod reopen;
pub mod sqlite;
mod synced;
mod volume;

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::args::{Durable, Part};
use crate::context::Context;
use crate::disk::Disk;
use crate::error::Error;
use crate::hosts::Host;
use crate::program::{Logged, Mount};
use report::{Outcome, Section};

/// Conquest on `logged`, mounted or in this process as the title says, and what is on the disk already.
const LOGGED: &str = "conquest logged";
const DISK: &str = "disk";
const BATTERY: &str = "conquest battery";

pub fn run(context: &Context, args: &Durable) -> Result<Outcome, Error> {
    let there = context.disk.as_deref().ok_or_else(|| Error::Usage("no directory on a disk was made".into()));
    let mut disk = there.and_then(Disk::at).map_err(|e| e.to_string());
    let mut host = None;
    if let (Ok(own), true) = (&disk, args.journal) {
        context.progress.say("making an ext4 with a journal".into());
        match Host::ext4_in(&own.dir, context.base.join("ext4"), 5 * bytes(context)) {
            Ok(made) => disk = Disk::at(&host.insert(made).dir).map_err(|e| e.to_string()),
            Err(e) => disk = Err(format!("an ext4 with a journal cannot be made: {e}")),
        }
    }
    let setup = Setup { context, args, disk };
    let mut outcome = Outcome::default();
    let wanted = |part: &&Part| args.only.is_empty() || args.only.contains(part);
    for part in Part::value_variants().iter().filter(wanted) {
        outcome.extend(match part {
            Part::Fsync => synced::run(&setup),
            Part::Behind => behind::run(&setup),
            Part::Sqlite => sqlite::run(&setup),
            Part::Volume => volume::run(&setup),
            Part::Reopen => reopen::run(&setup),
        });
    }
    Ok(outcome)
}

/// What the parts need to know.
struct Setup<'a> {
    context: &'a Context,
    args: &'a Durable,
    /// The disk, or why there is none.
    disk: Result<Disk, String>,
}

impl Setup<'_> {
    /// What the disk is, for titles.
    fn name(&self) -> String {
        self.disk.as_ref().map_or("no disk".into(), Disk::name)
    }

    /// Bytes of a pool's region.
    fn bytes(&self) -> u64 {
        bytes(self.context)
    }

    /// Measures a part, if there is a disk. A part that fails is told of at the end; the others go on.
    fn attempt(&self, section: &mut Section, work: impl FnOnce(&Disk, &mut Section) -> Result<(), Error>) {
        let failed = match &self.disk {
            Ok(disk) => work(disk, section),
            Err(reason) => return section.skip(LOGGED, reason),
        };
        if let Err(e) = failed {
            self.context.failed(&format!("durable: {}", section.id), &e);
            section.fail(LOGGED, e.to_string());
        }
    }

    /// A pool on the disk, and a mount of it. What cannot be mounted here is a reason, not a failure.
    fn mounted(&self, disk: &Disk, label: &str) -> Result<Result<(Mount, Logged), String>, Error> {
        self.context.progress.say(format!("making a pool on {}", disk.name()));
        let pool = Logged::make(disk.dir.join(format!("{label}.pool")), self.bytes())?;
        let dir = self.context.base.join(format!("{label}.mnt"));
        Ok(Mount::of(&pool.dir, dir, &self.context.program).map(|mount| (mount, pool)).map_err(|e| e.to_string()))
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
        // The run removes what is above it at the latest.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Figures of both sides as the table shows them.
fn both(section: &Section, subjects: [&str; 2], measure: &str) -> String {
    subjects.map(|s| section.text(s, measure)).join(" / ") + " " + section.unit.trim_end_matches("/op")
}
