//! A pool that several processes are attached to: its shared memory, and its disks.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use backing::log::Disk;
use backing::{Backing, SharedDisk};
use conquest_fs::node::{Atime, Policy};
use conquest_fs::Fs;
use pram::marks::{Marks, SETS};
use pram::mem::byte_lock;
use pram::runtime::FULL;
use pram::session::{in_use, shared_name, Attach, Exclusive, Kind};
use pram::{Mapping, MediumKind, Memory, Session};
use rustix::fs::{flock, fstat, stat, FlockOperation};
use rustix::io::Errno;

use super::{lock, Sabotage};
use crate::disk::{disks_of, FILES, LEDGER};
use crate::ledger::Ledger;
use crate::medium::Directed;
use crate::stage::{player, How, Stage, Undertaker};
use crate::tape::{Still, Tape, TapeMedium};
use crate::world::{identity, memory, Setup, UUID};

/// The memory and disks of a pool.
pub struct Pool {
    pub tape: Arc<Tape>,
    pub stage: Arc<Stage>,
    memory: OwnedFd,
    marks: OwnedFd,
    size: u64,
    sabotage: Sabotage,
    /// By process, second descriptors of the open files with its locks.
    locks: Arc<Mutex<Vec<Vec<OwnedFd>>>>,
}

impl Pool {
    pub fn over(still: &Still, stage: Arc<Stage>, processes: usize, sabotage: Sabotage) -> Result<Pool, String> {
        let size = still.memory.len() as u64;
        let words: Vec<u8> = still.marks.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (memory, marks) = (memory(&still.memory, size)?, memory(&words, Marks::bytes(size))?);
        let tape = Tape::over(still.files.clone());
        let locks = Arc::new(Mutex::new((0..processes).map(|_| Vec::new()).collect()));
        Ok(Pool { tape, stage, memory, marks, size, sabotage, locks })
    }

    /// Attaches `process`; runtime files are in `dir`.
    pub fn attach(&self, process: usize, dir: &Path) -> Result<Arc<Fs>, String> {
        let session = self.join(process, dir).map_err(|e| format!("attaching {process}: {e}"))?;
        let policy = Policy { atime: Atime::Never, ..Policy::default() };
        let fs = Arc::new(Fs::over(session, policy).map_err(|e| e.to_string())?);
        let there = fstat(&self.memory).and_then(|memory| stat(dir.join(shared_name(&UUID, &memory))));
        self.stage.attached(process, &fs, there.map_err(|e| format!("the runtime file: {e}"))?.st_ino);
        Ok(fs)
    }

    /// One more session of `process`.
    pub fn join(&self, process: usize, dir: &Path) -> pram::Result<Session> {
        self.open(process, self.lock(process)?, dir)
    }

    /// An open file for a process, locked already: locks belong to an open file.
    fn lock(&self, process: usize) -> pram::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        let opened = || -> io::Result<OwnedFd> {
            let file = OwnedFd::from(OpenOptions::new().read(true).write(true).open(path)?);
            lock(&self.locks)[process].push(file.try_clone()?);
            while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                if !self.stage.waits() {
                    std::thread::yield_now();
                }
            }
            Ok(file)
        };
        opened().map_err(|e| pram::Error::Unusable(format!("the region: {e}")))
    }

    /// As `conquest` does it.
    fn open(&self, process: usize, lock: OwnedFd, dir: &Path) -> pram::Result<Session> {
        let exclusive = Exclusive::over(lock)?;
        let map = |fd: &OwnedFd, len| Mapping::file(fd, len).map_err(|errno| errno_of(errno, "mapping"));
        let marks = Marks::over(map(&self.marks, Marks::bytes(self.size))?)?;
        let disks = self.disks(process);
        let ledger = Ledger::over(disks[LEDGER].clone());
        let backing = Backing::resume(disks_of(disks), &marks, identity())?;
        let backing = backing.ok_or_else(|| pram::Error::Unusable("the marks mean nothing".into()))?;
        if !in_use(&exclusive)? {
            backing.take_up_unnoted(&marks)?;
        }
        let inner = Box::new(TapeMedium { kind: MediumKind::Logged, tape: self.tape.clone() });
        let medium = Directed { inner, tape: self.tape.clone(), stage: self.stage.clone(), process };
        let mut memory = Memory::open(map(&self.memory, self.size)?, Box::new(medium))?;
        memory.track(marks);
        let how = Attach {
            runtime_dir: dir,
            keys: Setup::logged(self.size).keys(),
            role: 0,
            label: b"",
            kind: Kind::Full,
            is_inherited: true,
        };
        let session = Session::attach(memory, exclusive, &how, Some(backing.awaited(true)))?;
        session.enlist(ledger);
        Ok(session)
    }

    fn disks(&self, process: usize) -> [SharedDisk; FILES] {
        let mut file = 0;
        self.tape.disks().map(|inner| {
            let stage = self.stage.clone();
            let (tape, sabotage) = (self.tape.clone(), self.sabotage);
            file += 1;
            Arc::new(PlayerDisk { inner, tape, file: file - 1, stage, process, sabotage }) as SharedDisk
        })
    }

    /// Does the part of the kernel when a process dies, or, to test the explorers, leaves it out.
    pub fn undertaker(&self) -> Result<Undertaker, String> {
        let locks = self.locks.clone();
        let marks = Mapping::file(&self.marks, Marks::bytes(self.size)).map_err(|e| e.to_string())?;
        let marks = Marks::over(marks).map_err(|e| e.to_string())?;
        let memory = Mapping::file(&self.memory, self.size).map_err(|e| e.to_string())?;
        let geo = pram::memory::Geometry::of(self.size).map_err(|e| e.to_string())?;
        let sabotage = self.sabotage;
        Ok(Box::new(move |process| {
            match sabotage {
                Sabotage::Unnoticed => return,
                Sabotage::Unmarked => (0..SETS).for_each(|set| marks.clear(set).expect("marks can be cleared")),
                Sabotage::NotUndone => {
                    for slot in 0..geo.slots as u32 {
                        let word = memory.atomic64(geo.slot(slot)).expect("a slot");
                        word.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    }
                }
                Sabotage::Nothing | Sabotage::NoFlush | Sabotage::EarlyTicket | Sabotage::Silent => {}
            }
            // All locks of these open files are released, and no others.
            for file in &lock(&locks)[process] {
                (0..FULL).for_each(|byte| _ = byte_lock::release(file, byte));
                let _ = flock(file, FlockOperation::Unlock);
            }
        }))
    }

    /// The bytes of the memory.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let map = Mapping::file(&self.memory, self.size).map_err(|e| e.to_string())?;
        let mut bytes = vec![0; self.size as usize];
        map.copy_out(0, &mut bytes).map(|()| bytes).map_err(|e| e.to_string())
    }
}

fn errno_of(errno: Errno, what: &str) -> pram::Error {
    pram::Error::Host { what: what.into(), errno }
}

/// A disk, as one of the processes has it.
struct PlayerDisk {
    inner: SharedDisk,
    stage: Arc<Stage>,
    process: usize,
    tape: Arc<Tape>,
    file: usize,
    sabotage: Sabotage,
}

impl PlayerDisk {
    /// A write or flush, whole or as far as a death leaves it; `fail` has the effect of a failure.
    fn call(
        &self,
        whole: impl FnOnce() -> io::Result<()>,
        half: impl FnOnce() -> io::Result<()>,
        fail: impl FnOnce(),
    ) -> io::Result<()> {
        if self.stage.is_over() {
            self.stage.leave();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let dies = self.stage.count(self.process, true);
        let done = match dies {
            Some(How::Before) => Ok(()),
            Some(How::Half) => half(),
            Some(How::After) | None => whole(),
            Some(How::Fails) => {
                fail();
                match self.sabotage {
                    Sabotage::Silent => Ok(()),
                    _ => {
                        self.stage.note_failure();
                        Err(Errno::IO.into())
                    }
                }
            }
        };
        match dies {
            Some(How::Before | How::Half | How::After) => self.stage.die_here(),
            Some(How::Fails) | None => self.stage.pass(),
        }
        done
    }
}

impl Disk for PlayerDisk {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.stage.pass();
        self.inner.read_exact_at(buf, at)
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let half = &bytes[..bytes.len() / 2 / 512 * 512];
        let part = || match half {
            [] => Ok(()),
            half => self.inner.write_all_at(half, at),
        };
        self.call(|| self.inner.write_all_at(bytes, at), part, || _ = part())
    }

    fn flush(&self) -> io::Result<()> {
        // Of a log, not of the image: no promise depends on the image alone.
        let lies = self.sabotage == Sabotage::NoFlush && [1, 2].contains(&self.file) && player() == Some(0);
        let whole = || if lies { Ok(()) } else { self.inner.flush() };
        self.call(whole, || Ok(()), || self.tape.fail_flush(self.file))
    }
}
