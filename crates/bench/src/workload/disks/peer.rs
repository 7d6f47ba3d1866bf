//! Who is compared on the slow disks: pools, in process and mounted; btrfs; and plain striping of our own, which is a region that is
//! written in order, with no file system above it, and so as fast as striping can be.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use exraid::{Device, Disk, Layout, Making, Region, Uuid};

use super::{Bench, MIB};
use crate::args::Kind;
use crate::error::Error;
use crate::hosts;
use crate::place::{InProcess, Mounted};
use crate::program::{Made, Mount};
use crate::rig::{exraid_error, stream};
use crate::side::Who;
use crate::subject::AnyPlace;

pub const STRIPING: &str = "striping";
pub const BTRFS_RAID0: &str = "btrfs raid0";
pub const BTRFS_RAID1: &str = "btrfs raid1";

/// Bytes of a request to a striped region, and how many are under way.
const REQUEST: u64 = 4 * MIB;
const REQUESTS: usize = 8;
/// Chunks of a stripe that are tried.
const CHUNKS: [u32; 3] = [64 << 10, 256 << 10, 1 << 20];

/// A pool on some disks.
pub struct PoolOn {
    pub place: AnyPlace,
    mount: Option<Mount>,
    pool: Made,
}

impl PoolOn {
    /// Makes it on disks as the command line names them.
    pub fn make(bench: &Bench<'_>, who: Who, disks: &[String]) -> Result<PoolOn, Error> {
        let context = bench.context;
        let label = who.name().replace(' ', "-");
        let dir = context.base.join(format!("{label}.pool"));
        let pool = Made::on(&context.program, dir, who.medium(), bench.cache(), disks)?;
        let mount = match who {
            Who::Mounted(_) => Some(Mount::of(&pool.dir, context.base.join(format!("{label}.mnt")), &context.program)?),
            _ => None,
        };
        let place = match &mount {
            Some(mount) => AnyPlace::Mounted(Mounted::new(&mount.dir)?),
            None => AnyPlace::InProcess(Box::new(InProcess::open(&pool.dir)?)),
        };
        Ok(PoolOn { place, mount, pool })
    }

    /// Its directory.
    pub fn pool(&self) -> &Path {
        &self.pool.dir
    }

    /// Where it is mounted; an error, if it is not.
    pub fn dir(&self) -> Result<&Path, Error> {
        let mount = self.mount.as_ref().ok_or_else(|| Error::Usage("not mounted".into()))?;
        Ok(&mount.dir)
    }
}

/// Disks as the command line names them.
pub fn named(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// A btrfs over several disks; dropping it unmounts it.
pub struct Btrfs {
    pub dir: PathBuf,
    disks: Vec<PathBuf>,
}

impl Btrfs {
    /// `profile`: raid0, raid1.
    pub fn make(bench: &Bench<'_>, profile: &str, disks: &[PathBuf]) -> Result<Btrfs, Error> {
        if !bench.context.wants(Kind::Btrfs) {
            return Err(Error::Usage("not asked for with --on".into()));
        }
        let first = disks.first().ok_or_else(|| Error::Usage("no disks".into()))?;
        hosts::run(Command::new("mkfs.btrfs").args(["-q", "-f", "-K", "-d", profile]).args(disks))?;
        let made = Btrfs { dir: bench.context.base.join("btrfs.mnt"), disks: disks.to_vec() };
        std::fs::create_dir_all(&made.dir).map_err(Error::file(&made.dir))?;
        // Named, as they may not have been seen yet.
        let options: Vec<String> = disks.iter().map(|disk| format!("device={}", disk.display())).collect();
        hosts::mount(&["-t", "btrfs", "-o", &options.join(","), &first.display().to_string()], &made.dir)?;
        Ok(made)
    }

    pub fn place(&self) -> Result<Mounted, Error> {
        Mounted::new(&self.dir)
    }

    /// It has got these disks by now.
    pub fn has(&mut self, disks: &[PathBuf]) {
        self.disks = disks.to_vec();
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        hosts::unmount(&self.dir);
        // The kernel remembers them else, and takes the next ones of these names for those.
        for disk in &self.disks {
            let _ = hosts::run(Command::new("btrfs").args(["device", "scan", "--forget"]).arg(disk));
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

    /// The chunk with which striping over these disks is fastest, each tried for so many bytes.
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

    /// Writes so many bytes in order, whole stripes at a time; bytes per second.
    pub fn write(&self, bytes: u64) -> Result<f64, Error> {
        let piece = REQUEST.div_ceil(self.0.stripe()) * self.0.stripe();
        let start = crate::clock::now();
        let written = stream(&*self.0, piece, REQUESTS, |at| at < bytes)?;
        Ok(written as f64 * 1e9 / (crate::clock::now() - start) as f64)
    }
}
