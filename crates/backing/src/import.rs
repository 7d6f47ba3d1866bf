//! Import: a memory from its backing alone, after the memory was lost, or on another machine.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use super::{load, note_made, replay, Disks};
use crate::image::Image;
use crate::log::{Identity, Instant};
use crate::save::{MakeWay, Progress, Target};
use pram::error::{Error, Result};
use pram::medium::{Medium, MediumKind};
use pram::mem::Mapping;
use pram::memory::{self, Memory, HEADERS};

/// Makes a memory file for `medium` at `path`; a file that is there makes way when all of the backing has proved right.
/// Returns the instant that the memory is of.
pub fn file(
    disks: &Disks,
    id: Identity,
    path: &Path,
    medium: MediumKind,
    make_way: MakeWay,
    progress: Progress,
) -> Result<Instant> {
    let target = Target::begin(path, "importing")?;
    let as_of = fill(disks, id, progress, &mut |off, bytes| target.put(off, bytes))?;
    let map = target.complete()?;
    memory::adopt(&map, medium)?;
    note_made(disks, id, &map, as_of)?;
    memory::settle_memory(map, medium)?;
    let _held = make_way(Some(&target.file), &id.uuid)?;
    refuse_older(disks, id, &as_of)?;
    target.finish()?;
    Ok(as_of)
}

/// Fills `file`, which is empty, with the memory of a backing, and maps that for this process alone: to look at it.
pub fn look(disks: &Disks, id: Identity, medium: MediumKind, file: &File) -> Result<Mapping> {
    let failed = |e: std::io::Error| Error::Host {
        what: "making a memory to look at".into(),
        errno: Errno::from_io_error(&e).unwrap_or(Errno::IO),
    };
    let loaded = load(disks, id, &mut |off, bytes| file.write_all_at(bytes, off).map_err(failed))?;
    refuse_empty(&loaded.as_of)?;
    let mut head = [0; HEADERS];
    let read = file.read_at(&mut head, 0).map_err(failed)?;
    let size = Memory::probe(&head[..read])?.0;
    file.set_len(size).map_err(failed)?;
    let map = Mapping::file_private(file, size).map_err(Error::host("mapping the memory"))?;
    memory::adopt(&map, medium)?;
    note_made(disks, id, &map, loaded.as_of)?;
    Ok(map)
}

/// Fails if the backing has gone on since: a process that had the pool open meanwhile would lose acknowledged changes.
fn refuse_older(disks: &Disks, id: Identity, as_of: &Instant) -> Result<()> {
    let (_, image) = Image::peek(&disks.image)?;
    if replay(disks, id, image, &mut |_, _| Ok(()))?.as_of.commit != as_of.commit {
        return Err(Error::Unusable("the pool was in use while it was imported; try again".into()));
    }
    Ok(())
}

/// Makes a memory in `map`, of a device, which no other can replace. All of the backing is read once before anything is
/// overwritten. Interrupted, it leaves a memory that is refused, and can be repeated:
/// 1. The old header goes. 2. All but the header. 3. The header.
pub fn device(
    disks: &Disks,
    id: Identity,
    map: &Mapping,
    medium: &dyn Medium,
    make_way: MakeWay,
    progress: Progress,
) -> Result<Instant> {
    let mut seen = Head::default();
    refuse_empty(
        &load(disks, id, &mut |off, bytes| {
            seen.put(off, bytes);
            Ok(())
        })?
        .as_of,
    )?;
    let size = Memory::probe(&seen.0)?.0;
    if map.len() < size {
        return Err(Error::Unusable(format!("the memory has {size} bytes, the device only {}", map.len())));
    }
    let _held = make_way(None, &id.uuid)?;
    let persist = |len| {
        medium.flush(map, 0, len);
        medium.fence(map);
    };
    map.zero(0, HEADERS as u64)?;
    persist(HEADERS as u64);
    map.zero(0, size)?;
    let mut header = Head::default();
    let as_of = fill(disks, id, progress, &mut |off, bytes| {
        let within = header.put(off, bytes);
        map.write(off + within as u64, &bytes[within..])
    })?;
    note_made(disks, id, map, as_of)?;
    persist(size);
    map.write(0, &header.0)?;
    memory::adopt(map, medium.kind())?;
    persist(HEADERS as u64);
    Ok(as_of)
}

fn fill(
    disks: &Disks,
    id: Identity,
    progress: Progress,
    put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Instant> {
    let (mut done, all) = (0, Image::extent(&disks.image)?);
    let loaded = load(disks, id, &mut |off, bytes| {
        done += bytes.len() as u64;
        progress(done.min(all), all);
        put(off, bytes)
    })?;
    refuse_empty(&loaded.as_of)?;
    Ok(loaded.as_of)
}

/// The header of a memory that is being made.
struct Head([u8; HEADERS]);

impl Default for Head {
    fn default() -> Self {
        Head([0; HEADERS])
    }
}

impl Head {
    /// Takes the first of some bytes, as far as they belong to the header; returns how many.
    fn put(&mut self, off: u64, bytes: &[u8]) -> usize {
        let within = HEADERS.saturating_sub(off as usize).min(bytes.len());
        if within > 0 {
            self.0[off as usize..off as usize + within].copy_from_slice(&bytes[..within]);
        }
        within
    }
}

fn refuse_empty(as_of: &Instant) -> Result<()> {
    match as_of.commit {
        0 => Err(Error::Unusable("the backing holds nothing: the first commit to it has not ended".into())),
        _ => Ok(()),
    }
}
