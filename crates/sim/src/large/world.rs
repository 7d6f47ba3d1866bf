//! A file system whose large files have their content on a disk, on a tape with its memory and its copy.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use backing::log::MIN_CAPACITY;
use backing::{Backing, SharedDisk};
use conquest_fs::node::{Atime, Policy};
use conquest_fs::ubj::{Commits, Options, Union};
use conquest_fs::Fs;
use exraid::{Answer, Class, Device, Done, Error, Layout, Op, Pending, Properties, Request, Uuid};
use ilfs::{table, Log};
use pram::marks::Marks;
use pram::medium::LOGGED;
use pram::memory::HEADERS;
use pram::{Mapping, MediumKind, Memory, Session};

use crate::copy::disk::{Files, Platter, LEDGER};
use crate::copy::fault::Faults;
use crate::copy::tape::{words_of, Tape, TapeMedium};
use crate::copy::world::{host, identity, map, memory, UUID};
use crate::crash::mapping;
use crate::explore::{keys, HASH_KEY};

/// Bytes of the region.
pub const SIZE: u64 = 6 << 20;
/// Files that reach beyond are large.
pub const THRESHOLD: u64 = 40 << 10;
/// The disk with segments lies where participants of commits write.
pub const SEGMENTS: usize = LEDGER;
const SEGMENT: u64 = 1 << 20;
const DISK: u64 = 2 * SEGMENT + 14 * SEGMENT;

pub struct World {
    pub tape: Arc<Tape>,
    pub fs: Arc<Fs>,
    /// The memory of the marks, with a copy.
    marks: Option<Arc<OwnedFd>>,
}

/// The disk with segments, as the log has it.
struct Disk {
    name: Arc<str>,
    inner: SharedDisk,
}

impl Device for Disk {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn properties(&self) -> Properties {
        Properties {
            size: DISK,
            block: 512,
            memory: 512,
            preferred: 1 << 20,
            depth: 32,
            direct: true,
            read_only: false,
            discards: true,
            sparse: false,
            rotates: false,
        }
    }

    fn submit(&self, request: Request, done: Done) {
        let answer = match &request.op {
            Op::Read { at, into } => {
                let mut bytes = vec![0; into.len() as usize];
                self.inner.read_exact_at(&mut bytes, *at).map(|()| into.copy_from(&bytes))
            }
            Op::Write { at, from } => self.inner.write_all_at(&from.to_vec(), *at),
            Op::Flush => self.inner.flush(),
            Op::Discard(range) => self.inner.write_all_at(&vec![0; (range.end - range.start) as usize], range.start),
            Op::Reserve(_) => Ok(()),
        };
        let result = answer.map_err(|e| Error::new(Class::Transient, &self.name, e.to_string()));
        done(Answer { result, buffers: request.op.into_buffers() });
    }

    fn pending(&self) -> Vec<Pending> {
        Vec::new()
    }
}

fn disk(tape: &Arc<Tape>) -> Arc<dyn Device> {
    Arc::new(Disk { name: "disk".into(), inner: tape.disks()[SEGMENTS].clone() })
}

fn text(e: impl ToString) -> String {
    e.to_string()
}

impl World {
    /// An empty file system: on `logged` with its copy, else in memory that survives.
    pub fn format(kind: MediumKind) -> Result<World, String> {
        let logs = || Platter::zeros(MIN_CAPACITY);
        let tape = Tape::over(Files([Platter::default(), logs(), logs(), Platter::zeros(DISK)]));
        let region = exraid::region::make(Uuid(UUID), 0, Layout::Single, vec![disk(&tape)]).map_err(text)?;
        let marks = match kind {
            MediumKind::Logged => Some(memory(SIZE, &[])?),
            _ => None,
        };
        let made = || -> pram::Result<Session> {
            let medium = Box::new(TapeMedium(tape.clone(), kind));
            let mut region =
                Memory::format(Mapping::anonymous(SIZE).map_err(host)?, medium, UUID, conquest_fs::layout::VERSION, 0)?;
            let Some(marks) = &marks else { return Session::private(region, keys(SIZE)) };
            let (disks, _) = Faults::with(None).parts(&tape);
            let loaded = backing::create(&disks, identity(), MIN_CAPACITY)?;
            let changed = Marks::over(map(marks, SIZE)?)?;
            let copy = Backing::begin(disks, &changed, identity(), &loaded)?.awaited(true);
            changed.mark(0, HEADERS as u64)?;
            copy.note_in(&region)?;
            region.track(changed);
            Session::private_with(region, keys(SIZE), Some(copy))
        };
        let session = made().map_err(text)?;
        Fs::format(&session, (0, 0, 0o755), HASH_KEY).map_err(text)?;
        Log::format(&session, &[region], SEGMENT).map_err(text)?;
        World::over(session, tape, marks)
    }

    fn over(session: Session, tape: Arc<Tape>, marks: Option<OwnedFd>) -> Result<World, String> {
        let region = exraid::region::open(vec![disk(&tape)]).map_err(|e| format!("the disk does not open: {e}"))?;
        let policy = Policy { atime: Atime::Never, ..Policy::default() };
        let fs = Fs::over(session, policy).map_err(|e| format!("the file system does not open: {e}"))?;
        let options = Options { threshold: THRESHOLD, ..Options::default() };
        let union = Union::open(fs.session(), &[region], options).map_err(|e| format!("the log does not open: {e}"))?;
        let fs = Arc::new(fs.with_union(Some(union.ok_or("there is no log")?)));
        fs.session().enlist(Arc::new(Commits::of(&fs)));
        Ok(World { tape, fs, marks: marks.map(Arc::new) })
    }

    /// Whoever comes to memory that was kept, and these disks.
    pub fn resume(kind: MediumKind, region: &[u8], marks: &[u64], files: Files) -> Result<World, String> {
        let tape = Tape::over(files);
        let made = || -> pram::Result<(Session, Option<OwnedFd>)> {
            let mut region = Memory::open(mapping(region), Box::new(TapeMedium(tape.clone(), kind)))?;
            if kind != MediumKind::Logged {
                return Ok((Session::private(region, keys(SIZE))?, None));
            }
            let marks = memory(SIZE, marks).map_err(pram::Error::Unusable)?;
            let (disks, _) = Faults::with(None).parts(&tape);
            let changed = Marks::over(map(&marks, SIZE)?)?;
            let copy = Backing::resume(disks, &changed, identity())?;
            let copy = copy.ok_or_else(|| pram::Error::Unusable("the marks mean nothing".into()))?;
            copy.keep_found(&changed)?;
            region.track(changed);
            Ok((Session::private_with(region, keys(SIZE), Some(copy.awaited(true)))?, Some(marks)))
        };
        let (session, marks) = made().map_err(|e| format!("the memory is not taken up: {e}"))?;
        World::over(session, tape, marks)
    }

    /// After a power cut: memory is made of the copy.
    pub fn load(files: Files) -> Result<World, String> {
        let tape = Tape::over(files);
        let marks = memory(SIZE, &[])?;
        let made = || -> pram::Result<Session> {
            let (disks, _) = Faults::with(None).parts(&tape);
            let memory = Mapping::anonymous(SIZE).map_err(host)?;
            let loaded = backing::load(&disks, identity(), &mut |off, bytes| memory.write(off, bytes))?;
            backing::note_made(&disks, identity(), &memory, loaded.as_of)?;
            let changed = Marks::over(map(&marks, SIZE)?)?;
            let copy = Backing::begin(disks, &changed, identity(), &loaded)?.awaited(true);
            let mut region = Memory::open(memory, Box::new(LOGGED))?;
            copy.note_in(&region)?;
            region.track(changed);
            Session::private_with(region, keys(SIZE), Some(copy))
        };
        let session = made().map_err(|e| format!("the copy does not open: {e}"))?;
        World::over(session, tape, Some(marks))
    }

    pub fn union(&self) -> &Arc<Union> {
        self.fs.union().expect("every world has one")
    }

    /// Begins to record.
    pub fn record(&self) -> Result<(), String> {
        match &self.marks {
            Some(marks) => self.tape.start(map(&**marks, SIZE).map_err(text)?),
            None => self.tape.start_without_marks(),
        }
        Ok(())
    }

    pub fn marks(&self) -> Result<Vec<u64>, String> {
        match &self.marks {
            Some(marks) => Ok(words_of(&map(&**marks, SIZE).map_err(text)?)),
            None => Ok(Vec::new()),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.fs.session().memory().read_bytes(0, &mut bytes).expect("inside the region");
        bytes
    }

    /// What the segment table says is right in itself.
    pub fn check_table(&self) -> Result<(), String> {
        let problems = table::check(self.fs.session().memory()).map_err(text)?;
        problems.first().map_or(Ok(()), |first| Err(format!("the segment table: {first}")))
    }
}
