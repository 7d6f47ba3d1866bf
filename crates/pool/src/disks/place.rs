//! Making disks beside the existing ones, moving them into place, and removing them.
//!
//! A disk of the pool's own is made [beside](staged_beside) its place, as a memory is, and moves there by a rename.
//! Nothing is written to a given disk before it is decided that the new pool replaces the old: its labels are
//! made in a file of the same size in the directory of the new pool, and copied from there. So the disks of the old pool stay as they
//! are until then, also if the new pool has the same ones.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exraid::label::END;
use exraid::{owner, Device, Disk, Label, Layout, Making, OpenError, Options, Region, Uuid};

use super::lease;
use super::plan::{cannot_make, Plan};
use crate::config::{Config, DiskEntry};
use crate::paths::staged_beside;
use conquest_fs::error::{Error, Result};

/// The file with the labels of given disk `n` of a pool that is made in `from`.
fn labels_of(from: &Path, n: usize) -> PathBuf {
    from.join(format!("disk-{n}"))
}

/// The file of disk `n` of a pool that is made in `from` for the directory `dir`, before it moves into place.
fn made_at(dir: &Path, from: &Path, n: usize, entry: &DiskEntry) -> PathBuf {
    match entry.given {
        true => labels_of(from, n),
        false => staged_beside(&entry.at(dir)),
    }
}

/// Makes the regions of a pool that is made in `from`; durable once their disks have moved into place, or their directories are
/// durable.
pub fn make(dir: &Path, from: &Path, plan: &Plan, uuid: [u8; 16]) -> Result<Vec<Arc<dyn Region>>> {
    let (mut regions, mut n) = (Vec::new(), 0);
    for (number, planned) in plan.0.iter().enumerate() {
        let mut at = Vec::new();
        for disk in &planned.disks {
            if disk.entry.given {
                make_private(&disk.path)?;
            }
            at.push((made_at(dir, from, n, &disk.entry), disk.size));
            n += 1;
        }
        at.iter().for_each(|(path, _)| _ = fs::remove_file(path));
        regions.push(make_region(&at, planned.layout, uuid, number as u32)?);
    }
    Ok(regions)
}

fn make_private(path: &Path) -> Result<()> {
    owner::make_private(path).map_err(|e| Error::host(path, &e))
}

/// Makes a region of the disks at these places, of so many bytes, over any content. Other processes may open them from then on: one that
/// has the pool open looks for the region as soon as the table has it, while this process still waits for a commit.
pub fn make_region(disks: &[(PathBuf, u64)], layout: Layout, uuid: [u8; 16], number: u32) -> Result<Arc<dyn Region>> {
    disks.iter().try_for_each(|(at, _)| make_private(at))?;
    let make = |(at, size): &(PathBuf, u64)| {
        let making = Making { size: Some(*size), force: true, options: Options::default() };
        Disk::make(at, &making).map(Arc::new)
    };
    let disks = disks.iter().map(make).collect::<Result<Vec<_>, OpenError>>().map_err(|e| cannot_make(&e))?;
    let devices = disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
    let made = exraid::region::make(Uuid(uuid), number, layout, devices).map_err(|e| cannot_make(&e))?;
    disks.iter().for_each(|disk| disk.share());
    Ok(made)
}

/// Makes the directories of new disks durable that lie outside the directory in which the pool is made.
pub fn sync(dir: &Path, config: &Config) -> Result<()> {
    for entry in config.disks.iter().filter(|entry| !entry.given) {
        let beside = staged_beside(&entry.at(dir));
        sync_parent(&beside).map_err(|e| Error::host(&beside, &e))?;
    }
    Ok(())
}

pub fn sync_parent(path: &Path) -> std::io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Removes the disks of a pool in the making that was not completed.
pub fn clear(dir: &Path, config: &Config) {
    let own = config.disks.iter().filter(|entry| !entry.given);
    own.for_each(|entry| _ = fs::remove_file(staged_beside(&entry.at(dir))));
}

/// The disks of a pool `new`, made in `from`, that have not moved into place yet.
pub fn waiting<'a>(dir: &'a Path, from: &'a Path, new: &'a Config) -> impl Iterator<Item = (usize, &'a DiskEntry)> {
    new.disks.iter().enumerate().filter(move |(n, entry)| made_at(dir, from, *n, entry).exists())
}

/// Moves one of them into place, durably. It can be repeated.
pub fn take_place(dir: &Path, from: &Path, n: usize, entry: &DiskEntry) -> Result<()> {
    let path = entry.at(dir);
    let placed = match entry.given {
        true => copy_labels(&labels_of(from, n), &path),
        false => fs::rename(made_at(dir, from, n, entry), &path).and_then(|()| sync_parent(&path)),
    };
    placed.map_err(|e| {
        Error::Pool(format!(
            "{}: making the pool is not finished, since its disk {} cannot be written: {e}; see that it is there, and open the \
             pool again as its owner",
            dir.display(),
            path.display()
        ))
    })
}

/// Copies both ends, which hold only the labels. A disk that is used in part, since others of its region are smaller, loses the content of
/// its own end: a label of another pool there would count if the first of this pool's labels were damaged.
fn copy_labels(from: &Path, to: &Path) -> std::io::Result<()> {
    let from = File::open(from)?;
    let mut to = File::options().read(true).write(true).open(to)?;
    let size = from.metadata()?.len();
    if to.metadata()?.is_file() && to.metadata()?.len() < size {
        to.set_len(size)?;
    }
    let mut bytes = vec![0; END as usize];
    let whole = exraid::disk::whole(to.seek(SeekFrom::End(0))?).end;
    if whole > size {
        let at = size.max(whole - END);
        to.write_all_at(&bytes[..(whole - at) as usize], at)?;
    }
    for at in [0, size - END] {
        from.read_exact_at(&mut bytes, at)?;
        to.write_all_at(&bytes, at)?;
    }
    to.sync_all()
}

/// The disks of the pool `old` that `new` does not have.
pub fn left_behind<'a>(dir: &'a Path, old: Option<&'a Config>, new: &'a Config) -> impl Iterator<Item = &'a DiskEntry> {
    let real = |entry: &DiskEntry| entry.at(dir).canonicalize().unwrap_or_else(|_| entry.at(dir));
    let kept: Vec<PathBuf> = new.disks.iter().map(real).collect();
    let disks = old.into_iter().flat_map(|old| &old.disks);
    disks.filter(move |entry| !kept.contains(&entry.at(dir).canonicalize().unwrap_or_else(|_| entry.at(dir))))
}

/// Removes a disk of the pool with this UUID: its own file, or the label of a given disk. A disk stays if it belongs to another pool by
/// now, or to the directory from which this one was copied, or if it is missing or cannot be reached.
pub fn remove(dir: &Path, entry: &DiskEntry, uuid: [u8; 16]) -> Result<()> {
    let path = entry.at(dir);
    let read_only = Options { read_only: true, ..Options::default() };
    let label = Disk::open(&path, &read_only).and_then(|disk| Label::read(&disk));
    if let Some(Err(e)) = label.as_ref().ok().map(|label| lease::is_to_be_taken(dir, label.pool.0, &path, &label.lease))
    {
        tracing::warn!("{} stays as it is: {e}", path.display());
        return Ok(());
    }
    if entry.given {
        let unlabelled = Disk::open(&path, &Options::default()).and_then(|disk| disk.unlabel(Uuid(uuid)));
        if let Err(e) = unlabelled {
            tracing::warn!("{}: its label stays: {e}; to use it again, use --force", path.display());
        }
        return Ok(());
    }
    match label {
        Ok(label) if label.pool != Uuid(uuid) => Ok(()),
        Err(OpenError::Missing(_) | OpenError::Unsuitable { .. }) => Ok(()),
        _ => fs::remove_file(&path).and_then(|()| sync_parent(&path)).map_err(|e| Error::host(&path, &e)),
    }
}
