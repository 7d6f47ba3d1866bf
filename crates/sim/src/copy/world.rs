//! A file system on the medium `logged`, alive: its memory, its marks, and its copy on recording disks.

use std::sync::Arc;

use backing::log::{Identity, MIN_CAPACITY};
use backing::{Backing, Disks, SharedDisk};
use conquest_fs::node::{Atime, Policy};
use conquest_fs::{Durability, Fs};
use pram::marks::Marks;
use pram::medium::{BATTERY, LOGGED};
use pram::memory::HEADERS;
use pram::{Mapping, MediumKind, Memory, Session};
use rustix::fs::{memfd_create, MemfdFlags};

use super::disk::{Files, Platter};
use super::fault::Faults;
use super::ledger::{self, Ledger};
use super::tape::{disks_of, Tape, TapeMedium};
use crate::crash::mapping;
use crate::explore::{keys, HASH_KEY};
use crate::tree::{normalise, snapshot, Snapshot};

pub const UUID: [u8; 16] = *b"crash explorer  ";

pub fn identity() -> Identity {
    Identity { uuid: UUID }
}

pub struct World {
    pub tape: Arc<Tape>,
    pub fs: Arc<Fs>,
    pub ledger: Arc<Ledger>,
    /// The memory of the marks.
    marks: Arc<std::os::fd::OwnedFd>,
}

impl World {
    /// An empty file system.
    pub fn format(size: u64, atime: Atime, faults: &Arc<Faults>) -> Result<World, String> {
        World::format_on(MediumKind::Logged, size, atime, faults)
    }

    /// The same on a medium: on others than `logged` with its copy as a mirror, for which each operation waits.
    pub fn format_on(kind: MediumKind, size: u64, atime: Atime, faults: &Arc<Faults>) -> Result<World, String> {
        let logs = || Platter::zeros(MIN_CAPACITY);
        let tape = Tape::over(Files([Platter::default(), logs(), logs(), Platter::zeros(ledger::BYTES)]));
        let (disks, ledger) = faults.parts(&tape);
        let marks = memory(size, &[])?;
        let made = || -> pram::Result<Session> {
            let loaded = backing::create(&disks, identity(), MIN_CAPACITY)?;
            let changed = Marks::over(map(&marks, size)?)?;
            let copy = Backing::begin(disks.clone(), &changed, identity(), &loaded)?.awaited(true);
            let memory = Mapping::anonymous(size).map_err(host)?;
            let medium = Box::new(TapeMedium(tape.clone(), kind));
            let mut region = Memory::format(memory, medium, UUID, conquest_fs::layout::VERSION, 0)?;
            changed.mark(0, HEADERS as u64)?;
            copy.note_in(&region)?;
            region.track(changed);
            Session::private_with(region, keys(size), Some(copy))
        };
        let session = made().map_err(|e| e.to_string())?;
        Fs::format(&session, (0, 0, 0o755), HASH_KEY).map_err(|e| e.to_string())?;
        let world = World::over(session, ledger, tape, marks, atime)?;
        let durability = if kind == MediumKind::Logged { Durability::Fsync } else { Durability::Strict };
        world.fs.set_policy(Policy { durability, ..world.fs.policy() });
        Ok(world)
    }

    fn over(
        session: Session,
        ledger: SharedDisk,
        tape: Arc<Tape>,
        marks: std::os::fd::OwnedFd,
        atime: Atime,
    ) -> Result<World, String> {
        let ledger = Ledger::over(ledger);
        session.enlist(ledger.clone());
        let fs = Fs::over(session, Policy { atime, ..Policy::default() })
            .map_err(|e| format!("the file system does not open: {e}"))?;
        Ok(World { tape, fs: Arc::new(fs), ledger, marks: Arc::new(marks) })
    }

    /// After all processes have died: memory, marks and disks are as they were. Recording from the start.
    pub fn resume(region: Mapping, marks: &[u64], files: Files) -> Result<World, String> {
        World::resume_on(region, marks, &Tape::over(files), &Faults::with(None))
    }

    pub fn resume_on(region: Mapping, marks: &[u64], tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
        let (tape, size) = (tape.clone(), region.len());
        let marks = memory(size, marks)?;
        tape.start(map(&marks, size).map_err(|e| e.to_string())?);
        let (disks, ledger) = faults.parts(&tape);
        let made = || -> pram::Result<Option<Session>> {
            let changed = Marks::over(map(&marks, size)?)?;
            let resumed = Backing::resume(disks, &changed, identity())?;
            let Some(copy) = resumed else { return Ok(None) };
            copy.keep_found(&changed)?;
            let mut region = Memory::open(region, Box::new(TapeMedium(tape.clone(), MediumKind::Logged)))?;
            region.track(changed);
            Session::private_with(region, keys(size), Some(copy.awaited(true))).map(Some)
        };
        let session = made().map_err(|e| format!("memory and copy are not taken up: {e}"))?;
        World::over(session.ok_or("the marks mean nothing")?, ledger, tape, marks, Atime::Never)
    }

    /// After all processes have died, and the memory of the marks was lost.
    pub fn compare(region: Mapping, files: Files) -> Result<World, String> {
        World::compare_on(region, &Tape::over(files), &Faults::with(None))
    }

    pub fn compare_on(region: Mapping, tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
        let (tape, size) = (tape.clone(), region.len());
        let marks = memory(size, &[])?;
        tape.start(map(&marks, size).map_err(|e| e.to_string())?);
        let (disks, ledger) = faults.parts(&tape);
        let made = || -> pram::Result<Session> {
            let changed = Marks::over(map(&marks, size)?)?;
            let mut region = Memory::open(region, Box::new(TapeMedium(tape.clone(), MediumKind::Logged)))?;
            let loaded = match backing::clean(&disks, identity(), &region)? {
                Some(loaded) => loaded,
                None => backing::compare(&disks, identity(), &region, &changed)?,
            };
            let copy = Backing::begin(disks.clone(), &changed, identity(), &loaded)?.awaited(true);
            copy.note_in(&region)?;
            region.track(changed);
            Session::private_with(region, keys(size), Some(copy))
        };
        let session = made().map_err(|e| format!("memory and copy cannot be compared: {e}"))?;
        World::over(session, ledger, tape, marks, Atime::Never)
    }

    /// After a power cut. Recording from the start, all but stores.
    pub fn load(files: Files, size: u64) -> Result<World, String> {
        World::load_on(size, &Tape::over(files), &Faults::with(None))
    }

    pub fn load_on(size: u64, tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
        let (tape, marks) = (tape.clone(), memory(size, &[])?);
        tape.start(map(&marks, size).map_err(|e| e.to_string())?);
        let (disks, ledger) = faults.parts(&tape);
        let made = || -> pram::Result<Session> {
            let memory = Mapping::anonymous(size).map_err(host)?;
            let loaded = backing::load(&disks, identity(), &mut |off, bytes| memory.write(off, bytes))?;
            backing::note_made(&disks, identity(), &memory, loaded.as_of)?;
            let changed = Marks::over(map(&marks, size)?)?;
            let copy = Backing::begin(disks.clone(), &changed, identity(), &loaded)?.awaited(true);
            let mut region = Memory::open(memory, Box::new(LOGGED))?;
            region.track(changed);
            Session::private_with(region, keys(size), Some(copy))
        };
        let session = made().map_err(|e| format!("the copy does not open: {e}"))?;
        World::over(session, ledger, tape, marks, Atime::Never)
    }

    pub fn copy(&self) -> &Backing {
        backing::of(self.fs.session()).expect("every world has one")
    }

    /// Everything that was done is durable when it returns.
    pub fn wait(&self) -> pram::Result<()> {
        self.copy().wait(self.fs.session())
    }

    /// Another view of the memory of the marks.
    pub fn marks(&self) -> Result<Mapping, String> {
        map(&*self.marks, self.fs.session().memory().size()).map_err(|e| e.to_string())
    }

    /// The region's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let region = self.fs.session().memory();
        let mut bytes = vec![0; region.size() as usize];
        region.read_bytes(0, &mut bytes).expect("inside the region");
        bytes
    }
}

/// Shared memory for the marks of a region of `size` bytes.
pub(crate) fn memory(size: u64, words: &[u64]) -> Result<std::os::fd::OwnedFd, String> {
    let made = || -> pram::Result<std::os::fd::OwnedFd> {
        let file = memfd_create(c"marks", MemfdFlags::CLOEXEC).map_err(host)?;
        rustix::fs::ftruncate(&file, Marks::bytes(size)).map_err(host)?;
        let there = map(&file, size)?;
        (0..)
            .zip(words)
            .filter(|(_, word)| **word != 0)
            .try_for_each(|(n, word)| there.write(n * 8, &word.to_le_bytes()))?;
        Ok(file)
    };
    made().map_err(|e| e.to_string())
}

pub(crate) fn map(file: impl std::os::fd::AsFd, size: u64) -> pram::Result<Mapping> {
    Mapping::file(file, Marks::bytes(size)).map_err(host)
}

/// The region that a power cut leaves.
pub fn reload(files: &Files, size: u64) -> Result<Vec<u8>, String> {
    let disks = disks_of(Tape::over(files.clone()).disks());
    let mut bytes = vec![0; size as usize];
    copy_into(&disks, &mut bytes).map_err(|e| format!("the copy does not load: {e}"))?;
    ledger::check(files, &bytes)?;
    Ok(bytes)
}

fn copy_into(disks: &Disks, bytes: &mut [u8]) -> pram::Result<()> {
    backing::load(disks, identity(), &mut |off, part| {
        let there = bytes.get_mut(off as usize..off as usize + part.len());
        there.ok_or(pram::Error::BadAddress { off, len: part.len() as u64 })?.copy_from_slice(part);
        Ok(())
    })
    .map(|_| ())
}

/// Everything that can be seen of the file system in `bytes`, after recovery.
pub fn seen(bytes: &[u8]) -> Result<Snapshot, String> {
    let opened = Memory::probe(bytes).and_then(|(_, kind)| {
        let medium = if kind == MediumKind::Logged { LOGGED } else { BATTERY };
        Session::private(Memory::open(mapping(bytes), Box::new(medium))?, keys(bytes.len() as u64))
    });
    let session = opened.map_err(|e| e.to_string())?;
    let fs = Fs::over(session, Policy { atime: Atime::Never, ..Policy::default() }).map_err(|e| e.to_string())?;
    look(&fs)
}

pub fn look(fs: &Fs) -> Result<Snapshot, String> {
    let mut found = snapshot(fs)?;
    normalise(&mut found.tree);
    Ok(found)
}

pub(crate) fn host(errno: rustix::io::Errno) -> pram::Error {
    pram::Error::Host { what: "memory for the explorer".into(), errno }
}
