//! New disks for a pool that is made from an image, filled with the content of disks in that image.
//!
//! Each region of the saved pool becomes one, on the disks that the caller names for it, or in a file in the pool directory. It may be
//! larger than before, and of another layout. A disk of the pool's own is made beside its place and moves there with the pool. A given disk
//! gets its label at once: nothing leads to it yet, and an attempt that ended here is repeated over it.

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

/// The content of an image, as a stream, and the receiver of the progress.
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

/// A pool in the making, which gets disks.
pub struct Refill<'a> {
    pub dir: &'a Path,
    pub old: Option<&'a Config>,
    /// It has no disks yet.
    pub config: &'a Config,
    pub force: bool,
    /// Disks for its regions, in this order.
    pub given: &'a [NewRegion],
    /// The directory in which it is made; none: it is made in place.
    pub staged: Option<&'a Staged<'a>>,
}

/// The new disks, and the content that was written to them.
pub struct Refilled {
    pub disks: Vec<DiskEntry>,
    pub carried: Carried,
}

impl Refill<'_> {
    /// Makes the disks of the regions in the stream, and fills them with its content. `memory` leads to that.
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
            // After a kill, the process that clears the directory reads here which disks to remove.
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

    /// The path at which a disk is made, and its size.
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

/// The default disk of the `n`th region: as large as the old region, and sparse.
fn usual(dir: &Path, n: usize, size: u64) -> NewRegion {
    let name = |n: usize| if n == 0 { DISK.to_string() } else { format!("{DISK}-{n}") };
    // An existing file, of a given disk, is left alone.
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
