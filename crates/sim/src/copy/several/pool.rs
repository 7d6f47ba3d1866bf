//! A pool that two processes are attached to: its shared memory, and its disks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fs::node::{Atime, Policy};
use fs::Fs;
use pram::copy::{Copy, SharedDisk};
use pram::dirty::Dirty;
use pram::log::Disk;
use pram::mem::byte_lock;
use pram::session::{Attach, Exclusive};
use pram::{Mapping, Medium, MediumKind, Needs, Region, Session};
use rustix::fs::{flock, memfd_create, FlockOperation, MemfdFlags};

use super::super::disk::FILES;
use super::super::history::Still;
use super::super::tape::{disks_of, Tape, TapeMedium};
use super::super::world::identity;
use super::stage::{How, Stage, PLAYERS};
use super::Sabotage;
use crate::explore::keys;

/// The memory and disks of a pool.
pub struct Pool {
    pub tape: Arc<Tape>,
    pub stage: Arc<Stage>,
    region: OwnedFd,
    marks: OwnedFd,
    size: u64,
    sabotage: Sabotage,
    /// By process, a second descriptor of the open file with its locks.
    locks: Vec<OwnedFd>,
}

impl Pool {
    pub fn over(still: &Still, stage: Arc<Stage>, sabotage: Sabotage) -> Result<Pool, String> {
        let size = still.region.len() as u64;
        let words: Vec<u8> = still.marks.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (region, marks) = (memory(&still.region, size)?, memory(&words, Dirty::bytes(size))?);
        let tape = Tape::over(still.files.clone());
        Ok(Pool { tape, stage, region, marks, size, sabotage, locks: Vec::new() })
    }

    /// Attaches process `me`; runtime segments are in `dir`.
    pub fn attach(&mut self, me: usize, dir: &Path) -> Result<Arc<Fs>, String> {
        let lock = self.lock().map_err(|e| e.to_string())?;
        self.locks.push(lock.try_clone().map_err(|e| e.to_string())?);
        let session = self.open(me, lock, dir).map_err(|e| format!("attaching {me}: {e}"))?;
        let policy = Policy { atime: Atime::Never, ..Policy::default() };
        let fs = Arc::new(Fs::over(session, policy).map_err(|e| e.to_string())?);
        let _ = self.stage.fs[me].set(Arc::downgrade(&fs));
        Ok(fs)
    }

    /// One more process, on the thread of `me`.
    pub fn join(&self, me: usize, dir: &Path) -> pram::Result<Session> {
        self.open(me, self.lock()?, dir)
    }

    /// An open file of its own, as a process has: locks are an open file's.
    fn lock(&self) -> pram::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.region.as_raw_fd());
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.map(OwnedFd::from).map_err(|e| pram::Error::Unusable(format!("the region: {e}")))
    }

    /// As `fs::pool` does it.
    fn open(&self, me: usize, lock: OwnedFd, dir: &Path) -> pram::Result<Session> {
        let exclusive = Exclusive::over(lock)?;
        let map = |fd: &OwnedFd, len| Mapping::file(fd, len).map_err(|errno| errno_of(errno, "mapping"));
        let marks = Dirty::over(map(&self.marks, Dirty::bytes(self.size))?, self.size)?;
        let copy = Copy::resume(disks_of(self.disks(me)), &marks, identity(self.size))?;
        let copy = copy.ok_or_else(|| pram::Error::Unusable("the marks mean nothing".into()))?;
        let medium =
            PlayerMedium { inner: TapeMedium(self.tape.clone(), MediumKind::Logged), stage: self.stage.clone(), me };
        let mut region = Region::open(map(&self.region, self.size)?, Box::new(medium))?;
        region.track(marks);
        let how = Attach { runtime_dir: dir, keys: keys(self.size), role: 0, label: b"" };
        Session::attach(region, exclusive, &how, Some(copy.awaited(true)))
    }

    fn disks(&self, me: usize) -> [SharedDisk; FILES] {
        let mut file = 0;
        self.tape.disks().map(|inner| {
            let stage = self.stage.clone();
            let lies = self.sabotage == Sabotage::NoFlush && me == 0 && file > 0;
            file += 1;
            Arc::new(PlayerDisk { inner, stage, me, lies }) as SharedDisk
        })
    }

    /// What the kernel does when a process dies, or, for tests of the tester, does not.
    pub fn undertaker(&self) -> Result<Box<dyn Fn(usize) + Send + Sync>, String> {
        let locks = self.locks.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>();
        let locks = locks.map_err(|e| e.to_string())?;
        let marks = Mapping::file(&self.marks, Dirty::bytes(self.size)).map_err(|e| e.to_string())?;
        let marks = Dirty::over(marks, self.size).map_err(|e| e.to_string())?;
        let region = Mapping::file(&self.region, self.size).map_err(|e| e.to_string())?;
        let geo = pram::region::Geometry::of(self.size).map_err(|e| e.to_string())?;
        let sabotage = self.sabotage;
        Ok(Box::new(move |me| {
            match sabotage {
                Sabotage::Unnoticed => return,
                Sabotage::Unmarked => {
                    (0..2).for_each(|generation| marks.clear(generation).expect("marks can be cleared"))
                }
                Sabotage::NotUndone => {
                    for slot in 0..geo.slots as u32 {
                        let word = region.atomic64(geo.slot(slot)).expect("a slot");
                        word.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    }
                }
                Sabotage::Nothing | Sabotage::NoFlush => {}
            }
            // Sessions are numbered in the order in which they attach.
            let _ = byte_lock::release(&locks[me], me as u32);
            let _ = flock(&locks[me], FlockOperation::Unlock);
        }))
    }

    /// The region's bytes.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let map = Mapping::file(&self.region, self.size).map_err(|e| e.to_string())?;
        let mut bytes = vec![0; self.size as usize];
        map.copy_out(0, &mut bytes).map(|()| bytes).map_err(|e| e.to_string())
    }
}

const _: () = assert!(PLAYERS == 2);

/// A file in memory that begins with `bytes`.
fn memory(bytes: &[u8], len: u64) -> Result<OwnedFd, String> {
    let fd = memfd_create(c"several", MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    rustix::fs::ftruncate(&fd, len).map_err(|e| e.to_string())?;
    let file = File::from(fd.try_clone().map_err(|e| e.to_string())?);
    for (n, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
        std::os::unix::fs::FileExt::write_all_at(&file, page, n as u64 * 4096).map_err(|e| e.to_string())?;
    }
    Ok(fd)
}

fn errno_of(errno: rustix::io::Errno, what: &str) -> pram::Error {
    pram::Error::Host { what: what.into(), errno }
}

/// The region of one of the processes.
struct PlayerMedium {
    inner: TapeMedium,
    stage: Arc<Stage>,
    me: usize,
}

impl Medium for PlayerMedium {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }
    fn needs(&self) -> Needs {
        self.inner.needs()
    }
    fn flush(&self, _: &Mapping, _: u64, _: u64) {}
    fn fence(&self, _: &Mapping) {}

    fn stored(&self, off: u64, bytes: &[u8]) {
        if self.stage.is_over() {
            return self.stage.leave();
        }
        let dies = self.stage.count(self.me, false);
        let number = self.inner.0.len();
        self.inner.stored(off, bytes);
        self.stage.note_store(self.me, number);
        match dies {
            Some(_) => self.stage.die(self.me),
            None => self.stage.pass(self.me),
        }
    }

    fn marked(&self) {
        self.stage.pass(self.me);
    }

    fn waits(&self) -> bool {
        self.stage.waits(self.me)
    }
}

/// A disk, as one of the processes has it.
struct PlayerDisk {
    inner: SharedDisk,
    stage: Arc<Stage>,
    me: usize,
    /// Sabotage: flushes do nothing.
    lies: bool,
}

impl PlayerDisk {
    fn call(&self, whole: impl FnOnce() -> io::Result<()>, half: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.stage.is_over() {
            self.stage.leave();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let done = match self.stage.count(self.me, true) {
            Some(How::Before) => self.stage.die(self.me),
            Some(How::Half) => {
                let _ = half();
                self.stage.die(self.me)
            }
            Some(How::After) => {
                let _ = whole();
                self.stage.die(self.me)
            }
            None => whole(),
        };
        self.stage.pass(self.me);
        done
    }
}

impl Disk for PlayerDisk {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.stage.pass(self.me);
        self.inner.read_exact_at(buf, at)
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let half = &bytes[..bytes.len() / 2 / 512 * 512];
        self.call(
            || self.inner.write_all_at(bytes, at),
            || match half {
                [] => Ok(()),
                half => self.inner.write_all_at(half, at),
            },
        )
    }

    fn flush(&self) -> io::Result<()> {
        match self.lies {
            true => self.call(|| Ok(()), || Ok(())),
            false => self.call(|| self.inner.flush(), || Ok(())),
        }
    }
}
