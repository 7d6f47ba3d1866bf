//! The peers on the slow disks: pools, in process and mounted; btrfs; and plain striping of our own. That is a region
//! written in order, with no file system above it, and so as fast as striping can be.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use exraid::{Device, Disk, Layout, Making, Region, Uuid};

use super::{single, write_in_order, Bench};
use crate::command;
use crate::hosts;
use crate::prelude::*;
use crate::rig::{exraid_error, stream, Rig};

pub const STRIPING: &str = "striping";
pub const BTRFS_RAID0: &str = "btrfs raid0";
pub const BTRFS_RAID1: &str = "btrfs raid1";

/// Bytes of a request to a striped region, and the number under way.
const REQUEST: u64 = 4 * MIB;
const REQUESTS: usize = 8;
/// The chunks of a stripe to try.
const CHUNKS: [u32; 3] = [64 << 10, 256 << 10, 1 << 20];

/// A peer to be made.
#[derive(Clone, Copy)]
pub enum Contender {
    Pool(Who),
    /// With chunks of this many bytes.
    Striping(u32),
    Raid0,
    Raid1,
}

impl Named for Contender {
    fn name(&self) -> &'static str {
        match self {
            Contender::Pool(who) => who.name,
            Contender::Striping(_) => STRIPING,
            Contender::Raid0 => BTRFS_RAID0,
            Contender::Raid1 => BTRFS_RAID1,
        }
    }
}

impl Contender {
    pub fn make(self, bench: &Bench<'_>, disks: &[PathBuf]) -> Result<Made, Error> {
        match self {
            Contender::Pool(who) => bench.pool(who, single(disks)).map(Made::Pool),
            Contender::Striping(chunk) => Bare::make(Layout::Stripe { chunk }, disks).map(Made::Region),
            Contender::Raid0 => Btrfs::make(bench, "raid0", disks).map(Made::Btrfs),
            Contender::Raid1 => Btrfs::make(bench, "raid1", disks).map(Made::Btrfs),
        }
    }
}

/// A peer that is made.
pub enum Made {
    Pool(Peer),
    Region(Bare),
    Btrfs(Btrfs),
}

impl Made {
    /// Writes `bytes` in order; returns bytes per second that had reached the disks when the write was durable.
    pub fn write(&self, rig: &Rig, bytes: u64) -> Result<f64, Error> {
        match self {
            Made::Pool(peer) => on_place!(&peer.place, place => write_in_order(place, rig, "large", bytes)),
            Made::Region(region) => region.write(bytes),
            Made::Btrfs(btrfs) => write_in_order(&btrfs.place()?, rig, "large", bytes),
        }
    }

    /// The directory where it is mounted.
    pub fn dir(&self) -> Result<&Path, Error> {
        match self {
            Made::Pool(peer) => peer.dir(),
            Made::Region(_) => Err(Error::Wrong("a region has no directory".into())),
            Made::Btrfs(btrfs) => Ok(&btrfs.dir),
        }
    }
}

/// A btrfs over several disks; dropping it unmounts it.
pub struct Btrfs {
    pub dir: PathBuf,
    pub disks: Vec<PathBuf>,
}

impl Btrfs {
    /// `profile`: raid0, raid1.
    fn make(bench: &Bench<'_>, profile: &str, disks: &[PathBuf]) -> Result<Btrfs, Error> {
        bench.context.require(Kind::Btrfs)?;
        let first = disks.first().ok_or_else(|| Error::Usage("no disks".into()))?;
        command::run(Command::new("mkfs.btrfs").args(["-q", "-f", "-K", "-d", profile]).args(disks))?;
        let made = Btrfs { dir: bench.context.base.join("btrfs.mnt"), disks: disks.to_vec() };
        std::fs::create_dir_all(&made.dir).map_err(Error::file(&made.dir))?;
        // Named, since the kernel may not have seen the disks yet.
        let options: Vec<String> = disks.iter().map(|disk| format!("device={}", disk.display())).collect();
        hosts::mount(&["-t", "btrfs", "-o", &options.join(","), &first.display().to_string()], &made.dir)?;
        Ok(made)
    }

    pub fn place(&self) -> Result<Mounted, Error> {
        Mounted::new(&self.dir)
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        hosts::unmount(&self.dir);
        // Otherwise the kernel remembers the disks, and takes later ones of these names for them.
        for disk in &self.disks {
            let _ = command::run(Command::new("btrfs").args(["device", "scan", "--forget"]).arg(disk));
        }
    }
}

/// A region over disks, with nothing above it.
pub struct Bare(Arc<dyn Region>);

impl Bare {
    pub fn make(layout: Layout, paths: &[PathBuf]) -> Result<Bare, Error> {
        let disk = |path: &PathBuf| {
            let disk = Disk::make(path, &Making { force: true, ..Making::default() }).map_err(exraid_error)?;
            Ok(Arc::new(disk) as Arc<dyn Device>)
        };
        let disks = paths.iter().map(disk).collect::<Result<Vec<_>, Error>>()?;
        let uuid = Uuid::random().map_err(exraid_error)?;
        Ok(Bare(exraid::region::make(uuid, 1, layout, disks).map_err(exraid_error)?))
    }

    /// The chunk with which striping over these disks is fastest; each is tried with `bytes`.
    pub fn best_chunk(paths: &[PathBuf], bytes: u64) -> Result<u32, Error> {
        let mut best = (0.0, CHUNKS[0]);
        for chunk in CHUNKS {
            let speed = Bare::make(Layout::Stripe { chunk }, paths)?.write(bytes)?;
            if speed > best.0 {
                best = (speed, chunk);
            }
        }
        Ok(best.1)
    }

    /// Writes `bytes` in order, whole stripes at a time; returns bytes per second.
    pub fn write(&self, bytes: u64) -> Result<f64, Error> {
        let piece = REQUEST.div_ceil(self.0.stripe()) * self.0.stripe();
        let start = now();
        let written = stream(&*self.0, piece, REQUESTS, |at| at < bytes)?;
        Ok(per_second(written, start))
    }
}
