//! The disks of a pool that is made from an image with the content of its disks: others, filled with that.
//!
//! Each region of the pool that was saved becomes one, on the disks that somebody names for it, or in a file in the pool directory. It may be
//! larger than it was, and of another kind. A disk of the pool's own is made beside its place and takes it with the pool; one that was
//! given has its label at once: nothing leads to it yet, and an attempt that ended here is repeated over it.

use std::fs;
use std::path::{Path, PathBuf};

use backing::save::Content;
use exraid::label::END;
use exraid::Layout;
use pram::medium::Ram;
use pram::{Mapping, Memory, Session};

use super::staging::Staged;
use crate::config::{Config, DiskEntry};
use crate::disks::place;
use crate::disks::plan::{Plan, Planned, PlannedRegion, Wanted};
use crate::memory::file::refuse_other_version;
use crate::options::{NewDisk, NewRegion};
use crate::paths::{self, DISK};
use conquest_fs::error::{Error, Result};
use conquest_fs::max_inodes;
use conquest_fs::ubj::{Options, Union};
use ilfs::content_stream::{Carried, Carries, RawCarriedRegion, Source, Stream};

/// Sizes of files are multiples of this.
const GRAIN: u64 = 1 << 20;

/// The content of an image, as a stream, and what gets the progress.
pub struct OfImage<'c> {
    pub content: Content,
    pub progress: &'c mut dyn FnMut(u64, u64),
}

impl Source for OfImage<'_> {
    fn next_bytes(&mut self) -> ilfs::Result<Option<&[u8]>> {
        Ok(self.content.next_bytes(self.progress)?)
    }

    fn bad(&self, why: &str) -> ilfs::Error {
        self.content.bad(why).into()
    }
}

/// A pool in the making, that is to get disks.
pub struct Refill<'a> {
    pub dir: &'a Path,
    pub old: Option<&'a Config>,
    /// It has no disks yet.
    pub config: &'a Config,
    pub force: bool,
    /// For its regions, in their order.
    pub given: &'a [NewRegion],
    /// Where it is made; none: in its place.
    pub staged: Option<&'a Staged<'a>>,
}

/// The disks that were made, and what is on them.
pub struct Refilled {
    pub disks: Vec<DiskEntry>,
    pub carried: Carried,
}

impl Refill<'_> {
    /// Makes the disks of regions that a stream is of, and fills them with what it carries. `memory` leads to it.
    pub fn run(&self, memory: Mapping, stream: &mut Stream<'_>, carries: &Carries) -> Result<Refilled> {
        if self.given.len() > carries.regions.len() {
            return Err(Error::Pool(format!(
                "the pool that was saved has {} regions, and {} are given: leave the others out, and add them with `conquest region \
                 add`",
                carries.regions.len(),
                self.given.len()
            )));
        }
        let plan = self.plan(carries)?;
        let disks: Vec<DiskEntry> =
            plan.iter().zip(&carries.regions).flat_map(|(planned, region)| entries(planned, region.number)).collect();
        let config = Config { disks: disks.clone(), ..self.config.clone() };
        if let Some(staged) = self.staged {
            // Whoever clears it away if we are killed learns of them.
            config.write(staged.dir())?;
        }
        let filled = self.fill(plan, memory, stream, carries);
        let given = disks.iter().filter(|entry| entry.given && filled.is_err());
        let uuid = self.config.uuid_bytes()?;
        given.for_each(|entry| _ = place::remove(self.dir, entry, uuid));
        Ok(Refilled { disks, carried: filled? })
    }

    fn plan(&self, carries: &Carries) -> Result<Vec<PlannedRegion>> {
        let wanted = Wanted {
            dir: self.dir,
            config: self.config,
            old: self.old,
            force: self.force,
            taken: Vec::new(),
            beyond_hosts: true,
        };
        let mut plan = Plan::default();
        for (n, region) in carries.regions.iter().enumerate() {
            let usual = || usual(self.dir, n, carries.size_of(region));
            plan.add(&wanted, &self.given.get(n).cloned().unwrap_or_else(usual))?;
        }
        Ok(plan.0)
    }

    fn fill(
        &self,
        plan: Vec<PlannedRegion>,
        memory: Mapping,
        stream: &mut Stream<'_>,
        carries: &Carries,
    ) -> Result<Carried> {
        let uuid = self.config.uuid_bytes()?;
        let mut regions = Vec::new();
        for (planned, carried) in plan.into_iter().zip(&carries.regions) {
            let layout = planned.layout;
            let at: Vec<_> = planned.disks.into_iter().map(|disk| self.made_at(disk)).collect();
            let made = place::make_region(&at, layout, uuid, carried.number)?;
            refuse_small(&at, made.properties().size, carried, carries)?;
            regions.push(made);
        }
        let mapped = Memory::open(memory, Box::new(Ram::like(self.config.medium.into())))?;
        refuse_other_version(&mapped)?;
        let keys = max_inodes(mapped.size());
        let session = Session::private(mapped, keys)?;
        match Union::open_as_it_is(&session, &regions, Options::default())? {
            Some(union) => Ok(union.log().write_stream(&session, stream, &mut |_| {})?),
            None => {
                Err(Error::Pool("the image has content that its memory does not lead to; take another copy".into()))
            }
        }
    }

    /// Where a disk is made.
    fn made_at(&self, planned: Planned) -> (PathBuf, u64) {
        let (path, size, entry) = planned.release();
        if entry.given {
            return (path, size);
        }
        let at = match self.staged {
            Some(_) => paths::staged_beside(&entry.at(self.dir)),
            None => path,
        };
        let _ = fs::remove_file(&at);
        (at, size)
    }
}

fn entries(planned: &PlannedRegion, number: u32) -> Vec<DiskEntry> {
    planned.disks.iter().map(|disk| DiskEntry { region: Some(number), ..disk.entry.clone() }).collect()
}

/// The `n`th region's disk where none is given: as large as that was, and sparse.
fn usual(dir: &Path, n: usize, size: u64) -> NewRegion {
    let name = |n: usize| if n == 0 { DISK.to_string() } else { format!("{DISK}-{n}") };
    // What is there by now, of a disk that was given, is left alone.
    let free = (n..).map(name).find(|name| !dir.join(name).exists()).unwrap_or_else(|| name(n));
    let size = (size + 2 * END).next_multiple_of(GRAIN);
    NewRegion { layout: Layout::Single, disks: vec![NewDisk { path: free.into(), size: Some(size) }] }
}

fn refuse_small(at: &[(PathBuf, u64)], has: u64, region: &RawCarriedRegion, carries: &Carries) -> Result<()> {
    let needed = carries.size_of(region);
    if has >= needed {
        return Ok(());
    }
    let names: Vec<String> = at.iter().map(|(path, _)| path.display().to_string()).collect();
    Err(Error::Pool(format!(
        "{} would have {} MiB for content, and region {} of the pool that was saved has {} MiB: give it as much at least, or leave it \
         out for a sparse file in the pool directory",
        names.join(", "),
        has >> 20,
        region.number,
        needed.div_ceil(1 << 20)
    )))
}
