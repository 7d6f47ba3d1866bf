//! Files and block devices of the host as devices.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `host` | opening: kind, size, alignment, present user |
//! | `signatures` | the content of a new disk, by the signatures of other systems |
//! | `claim` | reserving a future disk |
//! | `probe` | testing whether a disk answers at all |
//! | `reserve` | the free space left on the host of a file |
//! | `job` | one request: its system calls |
//! | `uring` | calls by io_uring |
//! | `threads` | calls by threads |
//!
//! Transfers pass the host's page cache where the host allows that; [`Properties::direct`] tells. A file as a disk is
//! sparse and has its full length from the beginning. The client [reserves](Op::Reserve) storage for a range before it
//! promises content there, and a discard gives it back.
//!
//! A disk in use carries a shared lock (`flock`), so that no process makes it anew meanwhile: that takes an exclusive
//! one. The first process that uses a block device also opens it exclusively, so that others cannot mount or format it.

mod claim;
mod host;
mod job;
mod probe;
mod reserve;
mod signatures;
mod threads;
mod uring;

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::device::{check, Answer, Device, Done, Op, Pending, Properties, Request, Whereabouts, LATE};
use crate::error::{Class, Error, OpenError, Result};
use crate::in_flight::Flights;
use crate::label::{Label, Uuid};
use crate::sys::ring::try_ring;

pub use claim::Claim;
pub use host::are_same;
use job::{Job, Shared};
pub use reserve::usual as usual_reserve;
pub use signatures::what_is_on;
pub use threads::directly;
use threads::Threads;
use uring::Uring;

pub use crate::label::{whole, MIN_SIZE};
/// Threads for a disk without io_uring.
const THREADS: usize = 8;

/// Options for using a disk.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub read_only: bool,
    /// Through the host's page cache, even where direct transfers are possible.
    pub cached: bool,
    /// By threads, even where io_uring is available.
    pub threads: bool,
    /// Stay open until the kernel has ended all requests of this process to the disk, even after the death of the
    /// process. A lock on one of them tells others that transfers may still write to the memory or to the disk.
    pub held: Vec<Arc<OwnedFd>>,
    /// Bytes that a file leaves free on its host: a [reservation](Op::Reserve) that would leave less fails. `None`: a
    /// twentieth of the host's file system, at most 4 GiB.
    pub reserve: Option<u64>,
    /// No other process has it, or gets it, as long as it is open: for clients with state in memory that others would
    /// have to know.
    pub alone: bool,
    /// The time limit for an answer when it is opened. `None`: [`LATE`].
    pub patience: Option<Duration>,
}

/// Options for making a disk.
#[derive(Clone, Debug, Default)]
pub struct Making {
    /// Bytes; by default, all of a block device or of an existing file, and for a new file the host's whole capacity.
    pub size: Option<u64>,
    /// Give up present content.
    pub force: bool,
    pub options: Options,
}

/// A file or block device; see the [module](self).
pub struct Disk {
    path: PathBuf,
    shared: Arc<Shared>,
    properties: Properties,
    identity: (u64, u64),
    engine: Engine,
    /// For slow operations that io_uring does not do: discards of a block device, and finding holes in a range when its
    /// host is nearly full.
    slow: OnceLock<Option<Threads>>,
    /// For the threads: a system call keeps the process's descriptors open.
    _held: Vec<Arc<OwnedFd>>,
}

enum Engine {
    Uring(Uring),
    Threads(Threads),
}

/// The space on the host of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes with storage.
    pub backed: u64,
    /// Bytes that this user may still allocate beyond the host's reserve.
    pub free: u64,
}

impl Disk {
    /// Opens an existing disk, with any content.
    pub fn open(path: &Path, options: &Options) -> Result<Disk, OpenError> {
        let file = host::open(path, options)?;
        host::lock(path, &file, options.alone)?;
        let patience = options.patience.unwrap_or(LATE);
        if !options.threads {
            return probe::answers(Disk::over(path, file, options)?, patience);
        }
        // A thread that waits for a hanging disk would keep the process from ending.
        let cannot = |e: std::io::Error| OpenError::Host {
            path: path.into(),
            what: "opening it twice",
            errno: Errno::from_io_error(&e).unwrap_or(Errno::IO),
        };
        let asked = Options { threads: false, ..options.clone() };
        probe::answers(Disk::over(path, file.try_clone().map_err(cannot)?, &asked)?, patience)?;
        Disk::over(path, file, options)
    }

    /// Reads the label even of a disk that another process has exclusively. Nothing else may be done with such a disk.
    pub fn peek(path: &Path) -> Result<Label, OpenError> {
        let options = Options { read_only: true, ..Options::default() };
        Label::read(&probe::answers(Disk::over(path, host::open(path, &options)?, &options)?, LATE)?)
    }

    /// Makes a disk of a block device, an existing file or a new one, and overwrites its ends. Refuses present content
    /// unless `force` is set. The disk is this process's alone until [`Disk::share`].
    pub fn make(path: &Path, making: &Making) -> Result<Disk, OpenError> {
        let (file, is_new) = host::open_or_create(path, making)?;
        let made = Disk::make_of(path, file, is_new, making);
        if made.is_err() && is_new {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn make_of(path: &Path, file: File, is_new: bool, making: &Making) -> Result<Disk, OpenError> {
        host::lock(path, &file, true)?;
        if !is_new && !making.force {
            if let Some(what) = what_is_on(path, &file)? {
                return Err(OpenError::Foreign { path: path.into(), what });
            }
        }
        host::size_for(path, &file, is_new, making)?;
        let disk = Disk::over(path, file, &making.options)?;
        disk.wipe()?;
        Ok(disk)
    }

    fn over(path: &Path, file: File, options: &Options) -> Result<Disk, OpenError> {
        let (properties, kind) = host::properties(path, &file, options)?;
        if properties.size < MIN_SIZE {
            return Err(OpenError::TooSmall { path: path.into(), found: properties.size, needed: MIN_SIZE });
        }
        let name = path.display().to_string().into();
        let shared = Arc::new(Shared {
            name,
            file: Arc::new(file),
            flights: Flights::default(),
            is_block: kind.is_block,
            reserve: options.reserve,
        });
        let fail = |e: std::io::Error| OpenError::Host {
            path: path.into(),
            what: "starting its thread",
            errno: Errno::from_io_error(&e).unwrap_or(Errno::IO),
        };
        let engine = match options.threads || try_ring().is_err() {
            true => Engine::Threads(Threads::new(shared.clone(), THREADS, true).map_err(fail)?),
            false => Engine::Uring(Uring::new(shared.clone(), options.held.clone()).map_err(fail)?),
        };
        let identity = kind.identity;
        let held = match engine {
            Engine::Threads(_) => options.held.clone(),
            Engine::Uring(_) => Vec::new(),
        };
        Ok(Disk { path: path.into(), shared, properties, identity, engine, slow: OnceLock::new(), _held: held })
    }

    /// Overwrites both ends with zeros: signatures and old labels lie there.
    fn wipe(&self) -> Result<()> {
        let (size, end) = (self.properties.size, crate::label::END);
        for range in [0..end, size - end..size] {
            self.reserve(range.clone())?;
            self.write_at(&vec![0; (range.end - range.start) as usize], range.start)?;
        }
        self.flush()
    }

    /// Lets others use a new disk.
    pub fn share(&self) {
        // A held lock can always be weakened.
        let _ = rustix::fs::flock(&*self.shared.file, FlockOperation::NonBlockingLockShared);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same for all names of one file or device.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Does it use io_uring?
    pub fn has_ring(&self) -> bool {
        matches!(self.engine, Engine::Uring(_))
    }

    /// Removes the label if it is one of `pool`; the content stays. Otherwise nothing happens.
    pub fn unlabel(&self, pool: Uuid) -> Result<(), OpenError> {
        let label = match Label::read(self) {
            Ok(label) => label,
            Err(OpenError::Unlabelled { .. }) => return Ok(()),
            Err(e) => return Err(e),
        };
        if label.pool == pool {
            // The label last: until then this can be repeated.
            crate::note::erase(self, label.size)?;
            label.erase(self)?;
        }
        Ok(())
    }

    /// The space on its host, if it is a file.
    pub fn room(&self) -> Result<Option<Room>> {
        if self.shared.is_block {
            return Ok(None);
        }
        let fail = |errno| Error::host(&self.shared.name, "asking how much room its host has", errno);
        let host = rustix::fs::fstatvfs(&*self.shared.file).map_err(fail)?;
        let file = rustix::fs::fstat(&*self.shared.file).map_err(fail)?;
        let bytes = |blocks: u64| blocks.saturating_mul(host.f_frsize);
        let reserve = self.shared.reserve.unwrap_or_else(|| usual_reserve(bytes(host.f_blocks)));
        let (backed, free) = (file.st_blocks as u64 * 512, bytes(host.f_bavail).saturating_sub(reserve));
        Ok(Some(Room { backed, free }))
    }

    fn run_by_thread(&self, job: Job) {
        let thread = self.slow.get_or_init(|| Threads::new(self.shared.clone(), 1, false).ok());
        match thread {
            Some(thread) => thread.submit(job),
            None => {
                let e = Error::new(Class::Transient, &self.shared.name, "no thread for it");
                job.answer(&self.shared, Err(e));
            }
        }
    }
}

impl Device for Disk {
    fn name(&self) -> &Arc<str> {
        &self.shared.name
    }

    fn begin_anew(&self) {
        self.shared.flights.begin_anew();
    }

    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    fn submit(&self, request: Request, done: Done) {
        if let Err(e) = check(&self.shared.name, &self.properties, &request.op) {
            return done(Answer { result: Err(e), buffers: request.op.into_buffers() });
        }
        let needless = match &request.op {
            Op::Discard(_) => !self.properties.discards,
            Op::Reserve(_) => !self.properties.sparse,
            _ => false,
        };
        if needless {
            return done(Answer { result: Ok(()), buffers: None });
        }
        let Request { op, tag, within, late } = request;
        let number = self.shared.flights.begin(&op, tag, within, late, done);
        let ring = match &self.engine {
            // One call, since pieces would follow one another.
            Engine::Threads(threads) => return threads.submit(Job::new(number, op)),
            Engine::Uring(ring) => ring,
        };
        for job in Job::pieces(number, op, u64::from(self.properties.preferred)) {
            match self.shared.is_slow(&job) {
                true => self.run_by_thread(job),
                false => ring.submit(job),
            }
        }
    }

    fn left(&self) -> Option<u64> {
        self.room().ok().flatten().filter(|_| self.properties.sparse).map(|room| room.free)
    }

    fn pending(&self) -> Vec<Pending> {
        self.shared.flights.pending()
    }

    fn is_late(&self) -> bool {
        self.shared.flights.is_late()
    }

    fn whereabouts(&self) -> Whereabouts {
        host::whereabouts(&self.path, &self.shared.file, self.identity)
    }

    fn written(&self, at: u64) -> Range<u64> {
        match self.properties.sparse {
            true => reserve::written(&self.shared.file, at),
            false => at..u64::MAX,
        }
    }
}
