//! Content of a pool's files from its disks alone: for pools whose memory and backing are lost.
//!
//! Names, sizes and owners were in the memory. Disks have for each page the inode that it belonged to, and the time when it was written.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use exraid::{Device, Disk, Label, Options, Region, Uuid};
use pram::memory::BLOCK;

use conquest_fs::error::{Error, Result};
pub use ilfs::salvage::Inode;
use ilfs::salvage::Salvage;

/// The content that was found on disks.
pub struct Remains {
    salvage: Salvage,
    /// The UUID of their pool.
    pub pool: String,
}

/// A part of a file that could not be recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Bytes from the start of the file.
    pub range: std::ops::Range<u64>,
    /// Why its content cannot be read. None: the disks have nothing of it, as it was a hole, in memory only, or on another disk.
    pub why: Option<String>,
}

impl Remains {
    /// Searches these disks of a pool. Nothing is written to them. `progress` gets the bytes that were searched, and the total.
    ///
    /// # Errors
    /// [`Error::Pool`] for a file that is no disk of a pool, or cannot be read, and for disks of different pools.
    pub fn find(disks: &[PathBuf], progress: &mut dyn FnMut(u64, u64)) -> Result<Remains> {
        let (pool, regions) = regions(disks)?;
        Ok(Remains { salvage: Salvage::scan(&regions, pool, progress)?, pool: pool.to_string() })
    }

    /// The number of segments with content, and of their partial segments.
    pub fn segments(&self) -> (u64, u64) {
        (self.salvage.segments, self.salvage.parts)
    }

    /// The places where a disk failed during the search, and the failures.
    pub fn failed(&self) -> Vec<String> {
        self.salvage.failed.iter().map(|(at, e)| format!("the segment at {at}: {e}")).collect()
    }

    /// Every inode with content, by number and generation.
    pub fn inodes(&self) -> Vec<Inode> {
        self.salvage.inodes()
    }

    /// Writes the remaining content of an inode to a new file, with holes for the rest, and returns the gaps in ascending order. The file
    /// has whole pages of 4096 bytes, and the time of its newest part.
    ///
    /// # Errors
    /// [`Error::Host`] if the file exists already or cannot be written.
    pub fn recover(&self, inode: &Inode, to: impl AsRef<Path>) -> Result<Vec<Gap>> {
        let to = to.as_ref();
        let host = |e: std::io::Error| Error::host(to, &e);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(host)?;
        let gaps = self.recover_to(inode, &file).map_err(host)?;
        let time = UNIX_EPOCH + Duration::from_nanos(inode.written.max(0) as u64);
        file.set_modified(time).and_then(|()| file.sync_all()).map_err(host)?;
        Ok(gaps)
    }

    fn recover_to(&self, inode: &Inode, file: &File) -> std::io::Result<Vec<Gap>> {
        let (mut gaps, mut done, mut written) = (Vec::new(), 0, Ok(()));
        self.salvage.recover(inode.ino, inode.generation, &mut |page, content| {
            let at = page * BLOCK;
            if at > done {
                gaps.push(Gap { range: done..at, why: None });
            }
            done = at + BLOCK;
            match content {
                Ok(bytes) if written.is_ok() => written = file.write_all_at(bytes, at),
                Ok(_) => {}
                Err(e) => gaps.push(Gap { range: at..done, why: Some(e.to_string()) }),
            }
        });
        written.and_then(|()| file.set_len(done)).map(|()| gaps)
    }
}

/// The UUID of the one pool of these disks, and their regions.
fn regions(disks: &[PathBuf]) -> Result<(Uuid, Vec<Arc<dyn Region>>)> {
    let options = Options { read_only: true, ..Options::default() };
    let mut found: Option<(Uuid, &Path)> = None;
    let mut regions = BTreeMap::<u32, Vec<Arc<dyn Device>>>::new();
    for path in disks {
        let disk = Disk::open(path, &options).map_err(refused)?;
        let label = Label::read(&disk).map_err(refused)?;
        match found {
            Some((pool, first)) if pool != label.pool => {
                return Err(Error::Pool(format!(
                    "{} is a disk of the pool {pool}, and {} of {}: name the disks of one pool",
                    first.display(),
                    path.display(),
                    label.pool
                )))
            }
            _ => found = Some((label.pool, path)),
        }
        regions.entry(label.region).or_default().push(Arc::new(disk));
    }
    let (pool, _) = found.ok_or_else(|| Error::Pool("no disk is named".into()))?;
    let regions = regions.into_values().map(|devices| exraid::region::open(devices).map_err(refused));
    Ok((pool, regions.collect::<Result<_>>()?))
}

fn refused(e: exraid::OpenError) -> Error {
    Error::Pool(e.to_string())
}
