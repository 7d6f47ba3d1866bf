//! The memory of a pool on ordinary RAM (`logged`): shared memory that outlives every process, marks of changes
//! since the last commit, and its backing.
//!
//! ```text
//! pool directory   image, redo-0, redo-1     the backing; the image's locks tell which processes are attached
//! /dev/shm         conquest-…-region         the memory
//!                  conquest-…-marks          changed lines; how far the redo logs have come
//!                  conquest-…                the runtime file, while a process is attached
//! ```
//! After a reboot nothing is in `/dev/shm`, and the memory is made from the backing; after the death of all processes
//! everything is, and work goes on at once. If only the marks are lost, memory and backing are compared.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use backing::log::Identity;
use backing::save::{is_at, Content, Progress};
use backing::{Backing, Disks, Loaded};
use pram::medium::LOGGED;
use pram::memory::{HEADERS, TABLE_AT};
use pram::session::{self, Exclusive};
use pram::{MediumKind, Memory, Session, CHUNK};
use rustix::io::Errno;

use super::attach::Tracked;
use super::files;
use super::regions;
use crate::config::Config;
use crate::memory::file::Opened;
use crate::memory::shared::{self, make_region, map_memory, open_shared, NewRegion};
use crate::memory::{locks, marks};
use crate::paths::{self, IMAGE};
use crate::rescue::{orphans, salvage};
use crate::uuid;
use conquest_fs::error::{Error, Result};
use conquest_fs::max_inodes;

/// Makes an empty memory of `size` bytes, and an empty backing in `dir`, for a pool that is being formatted. The backing will
/// move to `home`.
pub fn make(dir: &Path, home: &Path, uuid: [u8; 16], size: u64, version: u32) -> Result<(Memory, Backing)> {
    let (id, size) = (Identity { uuid }, size / CHUNK * CHUNK);
    orphans::sweep();
    let disks = files::make(dir, backing::log_bytes(size))?;
    let lock = files::open_file(dir, IMAGE)?;
    let path = shared::path(&lock, &uuid, "region")?;
    let made = make_region(&path, &lock, size, |_| Ok(())).map_err(less)?;
    let loaded = backing::create(&disks, id, backing::log_bytes(size))?;
    let map = map_memory(&made.file, &path, size)?;
    let (marks, backing) = Tracked { id, dir: home, disks: &disks, lock: &lock }.begin(&map, &loaded)?;
    let mut memory = Memory::format(map, Box::new(LOGGED), uuid, version, pram::clock::precise())?;
    // Headers and root words were written before changes were tracked.
    marks.mark(0, TABLE_AT)?;
    backing.note_in(&memory)?;
    memory.track(marks);
    Ok((memory, backing))
}

/// Adds the other remedy where the size has yet to be chosen.
fn less(e: Error) -> Error {
    match e {
        Error::Pool(why) => Error::Pool(format!("{why}, or give the pool less with --nvram SIZE")),
        e => e,
    }
}

/// Removes the shared memory of the pool in `dir`, to which no process is attached: its backing counts.
pub fn forget(dir: &Path, uuid: &[u8; 16]) {
    let Ok(lock) = files::open_file(dir, IMAGE) else { return };
    let memory_path = shared::path(&lock, uuid, "region");
    if !memory_path.as_ref().is_ok_and(|memory_path| orphans::is_anothers(*uuid, memory_path, dir)) {
        memory_path.iter().for_each(|path| _ = fs::remove_file(path));
        marks::forget(&lock, uuid);
    }
}

/// Gives back the memory of the pool in `dir`, which no process may use; false if it has changes that its backing lacks.
pub fn release(dir: &Path, uuid: &[u8; 16]) -> Result<bool> {
    let lock = files::open_file(dir, IMAGE)?;
    let exclusive = Exclusive::over(lock.try_clone().map_err(|e| Error::host(dir, &e))?.into())?;
    if session::in_use(&exclusive)? {
        return Err(Error::Pool(format!("{} is in use; its memory stays", dir.display())));
    }
    if paths::is_swap_due(dir) || !is_at(&exclusive, &dir.join(IMAGE))? {
        // Its memory was removed with it.
        return Ok(true);
    }
    let [memory_path, marks] = [shared::path(&lock, uuid, "region")?, shared::path(&lock, uuid, "marks")?];
    if !memory_path.exists() {
        return Ok(true);
    }
    let is_backed = marks::is_backed(&marks, &lock, Identity { uuid: *uuid })?;
    if is_backed {
        forget(dir, uuid);
    }
    Ok(is_backed)
}

/// Makes a memory, and its backing in `dir`, from an image. The backing will move to `home`.
pub fn restore(dir: &Path, home: &Path, image: &Path, progress: Progress) -> Result<Content> {
    let info = backing::save::info(image)?;
    let id = Identity { uuid: info.uuid };
    let disks = files::make(dir, backing::log_bytes(info.size))?;
    backing::create(&disks, id, backing::log_bytes(info.size))?;
    let lock = files::open_file(dir, IMAGE)?;
    // Of a removed pool of this UUID whose image had this number.
    marks::forget(&lock, &id.uuid);
    let path = shared::path(&lock, &id.uuid, "region")?;
    let content = backing::save::restore(image, &path, MediumKind::Logged, progress)?;
    // Compared with the empty backing, which lacks all of it.
    let opened = open_as(dir, home, id.uuid, None, ExpectMarks::NotYet)?;
    let opened = opened.ok_or_else(|| Error::Pool(format!("{} was removed; try again", dir.display())))?;
    let session = Session::private_with(opened.memory, max_inodes(info.size), opened.backing)?;
    backing::of(&session).map_or(Ok(()), |backing| backing.wait(&session))?;
    Ok(content)
}

/// Opens the memory of the pool in `dir`; makes it from the backing if it is not in shared memory. `None` if the pool was
/// replaced before it could be locked: then another one is there.
pub fn open(dir: &Path, config: &Config, only_beside: bool) -> Result<Option<Opened>> {
    let expect = if only_beside { ExpectMarks::InUse } else { ExpectMarks::Yes };
    open_as(dir, dir, config.uuid_bytes()?, Some(config), expect)
}

/// Whether an existing memory should have marks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectMarks {
    Yes,
    /// Other processes use them, or it is not opened.
    InUse,
    /// It has just been made from an image.
    NotYet,
}

fn open_as(
    dir: &Path,
    home: &Path,
    uuid: [u8; 16],
    config: Option<&Config>,
    marks: ExpectMarks,
) -> Result<Option<Opened>> {
    let (lock, path) = (files::open_file(dir, IMAGE)?, dir.join(IMAGE));
    let exclusive = locks::hold(lock.try_clone().map_err(|e| Error::host(dir, &e))?, &path, || Ok(()))?;
    if paths::is_swap_due(dir) || !is_at(&exclusive, &path)? {
        return Ok(None);
    }
    let attached = session::in_use(&exclusive)?;
    if marks == ExpectMarks::InUse {
        locks::refuse_unless_used(&exclusive, dir)?;
    }
    let take = |config| regions::take(dir, config, !attached);
    let in_regions = config.filter(|config| config.backing_in_regions).map(take).transpose()?;
    let disks = match &in_regions {
        Some(in_regions) => in_regions.disks(),
        None => files::take(dir, !attached)?,
    };
    let id = backing::identify(&disks).map_err(|e| match Error::from(e) {
        e @ Error::Host { .. } => failed(&format!("the pool's backing in {}", dir.display()), &e),
        e => Error::Pool(format!("{}: {e}", dir.join(IMAGE).display())),
    })?;
    if id.uuid != uuid {
        return Err(Error::Pool(format!(
            "{} belongs to another pool ({}); put the right one back",
            dir.join(IMAGE).display(),
            uuid::text(&id.uuid)
        )));
    }
    let path = shared::path(&lock, &uuid, "region")?;
    let memory = SharedMemory { dir, home, path: &path, disks: &disks, lock: &lock, id, attached, marks };
    if !attached {
        memory.tracked().rename_foreign_memory()?;
    }
    let mut found = open_shared(&path, &lock)?;
    if found.is_none() && !attached && memory.tracked().adopt()? {
        found = open_shared(&path, &lock)?;
    }
    let (mapped, backing) = match found {
        Some(file) => match memory.join(&file) {
            // Another container or host has used the pool meanwhile.
            Err(Error::Outdated(why)) if !attached && memory.is_backed(&file)? => {
                // First check that all of it can be read.
                backing::load(&disks, id, &mut |_, _| Ok(())).map_err(|e| memory.not_its_backing(&e.into()))?;
                tracing::info!("the pool's memory is made from its backing again: {why}");
                forget(dir, &uuid);
                memory.load()?
            }
            joined => joined?,
        },
        None => memory.load()?,
    };
    let duplex = in_regions.map(|in_regions| in_regions.duplex.clone());
    Ok(Some(Opened { memory: mapped, exclusive, backing: Some(backing.awaited(true)), duplex }))
}

/// A pool's memory and backing, while no process attaches.
struct SharedMemory<'a> {
    dir: &'a Path,
    /// Where the backing will lie in the end.
    home: &'a Path,
    /// The path of the memory.
    path: &'a Path,
    disks: &'a Disks,
    lock: &'a fs::File,
    id: Identity,
    /// Other processes work on the pool.
    attached: bool,
    marks: ExpectMarks,
}

impl SharedMemory<'_> {
    fn tracked(&self) -> Tracked<'_> {
        Tracked { id: self.id, dir: self.home, disks: self.disks, lock: self.lock }
    }

    /// Joins the existing memory.
    fn join(&self, file: &fs::File) -> Result<(Memory, Backing)> {
        let mut mapped = self.open(file)?;
        let (marks, backing) =
            match self.tracked().resume(&mapped, self.attached).map_err(|e| self.not_its_backing(&e))? {
                Some(found) => found,
                None if self.attached => return Err(self.gone(&self.tracked().path()?)),
                None => {
                    if self.marks == ExpectMarks::Yes {
                        tracing::warn!("what has changed was lost; comparing the pool's memory with its backing");
                    }
                    self.tracked().compare_unless_clean(&mapped).map_err(|e| self.not_its_backing(&e))?
                }
            };
        if !self.attached {
            backing.note_in(&mapped)?;
        }
        mapped.track(marks);
        Ok((mapped, backing))
    }

    /// Whether the backing holds everything of the memory in `file`: by the marks, or without them by the memory itself.
    fn is_backed(&self, file: &fs::File) -> Result<bool> {
        match self.tracked().is_backed()? {
            Some(backed) => Ok(backed),
            None => Ok(backing::was_closed(&self.open(file)?)?),
        }
    }

    /// Makes the memory from the backing: after a reboot.
    fn load(&self) -> Result<(Memory, Backing)> {
        if self.attached {
            return Err(self.gone(self.path));
        }
        orphans::sweep();
        let new = self.path.with_extension("new");
        let making = make_region(&new, self.lock, 0, |memory| {
            let loaded = self.read_backing(memory)?;
            let mut header = [0; HEADERS];
            let read = memory.read_at(&mut header, 0).map_err(|e| Error::host(&new, &e))?;
            let (size, _) = Memory::probe(&header[..read])?;
            memory.set_len(size).map_err(|e| Error::host(&new, &e))?;
            Ok((loaded, size))
        })?;
        let NewRegion { filled: (loaded, size), file: locked } = making;
        let made = (|| {
            let memory = map_memory(&locked, &new, size)?;
            let (marks, backing) = self.tracked().begin(&memory, &loaded)?;
            backing::note_made(self.disks, self.id, &memory, loaded.as_of)?;
            // It may be the backing of a memory on another medium.
            if pram::memory::adopt(&memory, MediumKind::Logged)?.1 {
                marks.mark(0, HEADERS as u64)?;
            }
            let mut mapped = Memory::open(memory, Box::new(LOGGED))?;
            // Complete from here on: a process that dies earlier leaves no memory.
            fs::rename(&new, self.path).map_err(|e| Error::host(self.path, &e))?;
            tracing::info!(
                "the pool's memory was made from its backing, as of {} ns after the epoch",
                loaded.as_of.time
            );
            mapped.track(marks);
            Ok((mapped, backing))
        })();
        if made.is_err() {
            let _ = fs::remove_file(&new);
        }
        made
    }

    /// Fills memory from the backing.
    fn read_backing(&self, memory: &fs::File) -> Result<Loaded> {
        let loaded = backing::load(self.disks, self.id, &mut |off, bytes| {
            memory.write_all_at(bytes, off).map_err(|e| pram::Error::Host {
                what: "filling the memory".into(),
                errno: Errno::from_io_error(&e).unwrap_or(Errno::IO),
            })
        });
        loaded.map_err(Error::from)
    }

    fn open(&self, file: &fs::File) -> Result<Memory> {
        let size = shared::memory_size(file, self.path).map_err(|e| self.lost(&e))?;
        let map = map_memory(file, self.path, size)?;
        map.advise_huge();
        let memory = Memory::open(map, Box::new(LOGGED)).map_err(|e| self.lost(&e.into()))?;
        match memory.info.uuid == self.id.uuid {
            true => Ok(memory),
            false => Err(self.lost(&Error::Pool("it belongs to another pool".into()))),
        }
    }

    fn gone(&self, path: &Path) -> Error {
        Error::Pool(format!(
            "processes work on the pool, but its memory {} is not there: it was deleted, or belongs to another \
             container; end them (what they do still reaches the backing), then open the pool again",
            path.display()
        ))
    }

    fn not_its_backing(&self, e: &Error) -> Error {
        not_its_backing(self.path, self.dir, e)
    }

    fn lost(&self, e: &Error) -> Error {
        damaged(self.path, self.dir, e)
    }
}

/// Memory and backing cannot be used together. An unreadable disk says nothing about that.
fn not_its_backing(memory: &Path, dir: &Path, e: &Error) -> Error {
    let (memory, backing) = (memory.display(), dir.display());
    let text = format!(
        "the pool's memory {memory} and its backing in {backing} do not belong together: {e}. Put back the backing that was there; or move the \
         memory to another name to open the pool as the backing has it, without what only the memory holds; first {}",
        salvage::save_it(dir)
    );
    match e {
        Error::Host { .. } => failed(&format!("the pool's backing in {backing}"), e),
        Error::Outdated(_) => Error::Outdated(text),
        _ => Error::Pool(text),
    }
}

fn damaged(memory: &Path, dir: &Path, e: &Error) -> Error {
    match e {
        Error::Host { .. } => failed(&format!("the pool's memory {}", memory.display()), e),
        e => Error::Pool(format!(
            "the pool's memory {} is damaged: {e}. Its backing in {} has the pool as of the last commit: move the memory to another name to \
             open it so",
            memory.display(),
            dir.display()
        )),
    }
}

/// The host has failed: the files may be whole, and nothing has to be given up.
pub(super) fn failed(what: &str, e: &Error) -> Error {
    let Error::Host { what: at, errno } = e else { return Error::Pool(format!("{what}: {e}")) };
    let is_device = matches!(*errno, Errno::IO | Errno::NXIO | Errno::NODEV | Errno::TIMEDOUT | Errno::REMOTEIO);
    let what_to_do = match is_device {
        true => {
            "the device does not do what it is asked: look into the kernel's log, then try again; nothing was changed"
        }
        false => "nothing was changed",
    };
    Error::Host { what: format!("{what} cannot be used now ({what_to_do}): {at}"), errno: *errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_cannot_be_read_is_reported_as_that_and_nothing_is_to_be_given_up() {
        let (memory, dir) = (Path::new("/dev/shm/memory"), Path::new("/srv/pool"));
        let unread = Error::Host { what: "reading the log at byte 8192".into(), errno: Errno::IO };
        for error in [not_its_backing(memory, dir, &unread), damaged(memory, dir, &unread)] {
            assert!(matches!(&error, Error::Host { errno: Errno::IO, .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("reading the log at byte 8192") && text.contains("kernel's log"), "{text}");
            assert!(["belong together", "damaged", "move", "emove"].iter().all(|word| !text.contains(word)), "{text}");
        }
        for e in [Error::Pool("it is another one".into()), Error::Outdated("it is an old one".into())] {
            for text in [not_its_backing(memory, dir, &e).to_string(), damaged(memory, dir, &e).to_string()] {
                assert!(text.contains("to another name") && !text.contains("emove"), "{text}");
            }
        }
    }
}
