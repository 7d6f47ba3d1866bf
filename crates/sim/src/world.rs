//! Worlds: a live file system on recording memory and disks. With the memory alone; with a backing on disks; or also
//! with the content of large files on a disk.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use backing::log::{Identity, MIN_CAPACITY};
use backing::{Backing, Disks, Loaded, SharedDisk};
use conquest_fs::node::{Atime, Policy};
use conquest_fs::ubj::{Commits, Options, Union};
use conquest_fs::{Durability, Fs};
use exraid::{Answer, Class, Device, Done, Error, Layout, Op, Pending, Properties, Request, Uuid};
use ilfs::{table, Log};
use pram::marks::Marks;
use pram::medium::{Ram, LOGGED};
use pram::memory::HEADERS;
use pram::{Mapping, Medium, MediumKind, Memory, Session};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::crash::mapping;
use crate::disk::{disks_of, Files, Platter, LEDGER};
use crate::fault::Faults;
use crate::ledger::{self, Ledger};
use crate::tape::{Still, Tape, TapeMedium};
use crate::tree::{look, Snapshot};

pub const UUID: [u8; 16] = *b"crash explorer  ";
/// Key of the name hash: the same in every run.
const HASH_KEY: u64 = 0x5eed_0000_5eed_0001;

pub fn identity() -> Identity {
    Identity { uuid: UUID }
}

/// The content of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Nothing,
    /// A backing of the memory, and the ledger. On media other than `logged` it is a mirrored backing, which each
    /// operation waits for.
    Backing,
    /// The content of large files; on `logged` also a backing of the memory.
    Segments,
}

/// The components of a world.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub kind: MediumKind,
    /// Bytes of the memory.
    pub size: u64,
    pub atime: Atime,
    pub stored: Stored,
}

/// Files that reach beyond are large.
const THRESHOLD: u64 = 40 << 10;
/// The disk with segments takes the place of the ledger.
pub const SEGMENTS: usize = LEDGER;
const SEGMENT: u64 = 1 << 20;
const DISK: u64 = 16 * SEGMENT;

impl Setup {
    /// Memory that survives, alone.
    pub fn alone(kind: MediumKind, size: u64) -> Setup {
        Setup { kind, size, atime: Atime::Never, stored: Stored::Nothing }
    }

    /// Memory with its backing.
    pub fn copied(kind: MediumKind, size: u64) -> Setup {
        Setup { stored: Stored::Backing, ..Setup::alone(kind, size) }
    }

    pub fn logged(size: u64) -> Setup {
        Setup::copied(MediumKind::Logged, size)
    }

    /// With large files.
    pub fn large(kind: MediumKind) -> Setup {
        Setup { stored: Stored::Segments, ..Setup::alone(kind, 6 << 20) }
    }

    fn has_copy(&self) -> bool {
        match self.stored {
            Stored::Nothing => false,
            Stored::Backing => true,
            Stored::Segments => self.kind == MediumKind::Logged,
        }
    }

    /// The disks, still empty.
    fn files(&self) -> Files {
        let log = || if self.has_copy() { Platter::zeros(MIN_CAPACITY) } else { Platter::default() };
        let last = match self.stored {
            Stored::Nothing => Platter::default(),
            Stored::Backing => Platter::zeros(ledger::BYTES),
            Stored::Segments => Platter::zeros(DISK),
        };
        Files([Platter::default(), log(), log(), last])
    }

    /// Inode numbers are below this.
    pub fn keys(&self) -> u64 {
        self.size / 64 + 16
    }

    fn policy(&self) -> Policy {
        Policy { atime: self.atime, ..Policy::default() }
    }
}

pub struct World {
    pub tape: Arc<Tape>,
    pub fs: Arc<Fs>,
    pub setup: Setup,
    /// With a backing: the memory of the marks.
    marks: Option<OwnedFd>,
    ledger: Option<Arc<Ledger>>,
}

/// The parts that a world is made of.
struct Way<'a> {
    setup: Setup,
    tape: Arc<Tape>,
    disks: Disks,
    /// The fourth disk.
    other: SharedDisk,
    marks: Option<OwnedFd>,
    medium: &'a dyn Fn(TapeMedium) -> Box<dyn Medium>,
}

fn plain(medium: TapeMedium) -> Box<dyn Medium> {
    Box::new(medium)
}

impl<'a> Way<'a> {
    /// With these words of marks, if there is a backing.
    fn new(setup: Setup, tape: &Arc<Tape>, faults: &Arc<Faults>, words: &[u64]) -> Result<Way<'a>, String> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let marks = setup.has_copy().then(|| memory(&bytes, Marks::bytes(setup.size))).transpose()?;
        let (disks, other) = faults.over(tape);
        Ok(Way { setup, tape: tape.clone(), disks, other, marks, medium: &plain })
    }

    /// The same for the remains of a crash, where looking must not change anything. Records from the start, except with
    /// large files, where that is not needed.
    fn left(setup: Setup, tape: &Arc<Tape>, faults: &Arc<Faults>, words: &[u64]) -> Result<Way<'a>, String> {
        let way = Way::new(Setup { atime: Atime::Never, ..setup }, tape, faults, words)?;
        if setup.stored == Stored::Backing {
            tape.start(Some(way.mapped_marks().map_err(text)?));
        }
        Ok(way)
    }

    fn mapped_marks(&self) -> pram::Result<Mapping> {
        let marks = self.marks.as_ref().expect("there is a backing");
        Mapping::file(marks, Marks::bytes(self.setup.size)).map_err(host)
    }

    fn marks(&self) -> pram::Result<Marks> {
        Marks::over(self.mapped_marks()?)
    }

    fn medium(&self) -> Box<dyn Medium> {
        (self.medium)(TapeMedium { kind: self.setup.kind, tape: self.tape.clone() })
    }

    /// A session on memory with a backing that begins anew and lacks the first `new` bytes.
    fn begin(&self, marks: Marks, loaded: &Loaded, mut memory: Memory, new: usize) -> pram::Result<Session> {
        let backing = Backing::begin(self.disks.clone(), &marks, identity(), loaded)?.awaited(true);
        marks.mark(0, new as u64)?;
        backing.note_in(&memory)?;
        memory.track(marks);
        Session::private_with(memory, self.setup.keys(), Some(backing))
    }

    fn format(&self) -> pram::Result<Session> {
        let empty = Mapping::anonymous(self.setup.size).map_err(host)?;
        let made = || Memory::format(empty, self.medium(), UUID, conquest_fs::layout::VERSION, 0);
        if !self.setup.has_copy() {
            return Session::private(made()?, self.setup.keys());
        }
        let loaded = backing::create(&self.disks, identity(), MIN_CAPACITY)?;
        self.begin(self.marks()?, &loaded, made()?, HEADERS)
    }

    fn resume(&self, memory: Mapping) -> pram::Result<Session> {
        let open = || Memory::open(memory, self.medium());
        if !self.setup.has_copy() {
            return Session::private(open()?, self.setup.keys());
        }
        let marks = self.marks()?;
        let backing = Backing::resume(self.disks.clone(), &marks, identity())?;
        let backing = backing.ok_or_else(|| pram::Error::Unusable("the marks mean nothing".into()))?;
        backing.take_up_unnoted(&marks)?;
        let mut memory = open()?;
        memory.track(marks);
        Session::private_with(memory, self.setup.keys(), Some(backing.awaited(true)))
    }

    fn compare(&self, memory: Mapping) -> pram::Result<Session> {
        let (marks, memory) = (self.marks()?, Memory::open(memory, self.medium())?);
        let loaded = match backing::clean(&self.disks, identity(), &memory)? {
            Some(loaded) => loaded,
            None => backing::compare(&self.disks, identity(), &memory, &marks)?,
        };
        self.begin(marks, &loaded, memory, 0)
    }

    fn load(&self) -> pram::Result<Session> {
        let memory = Mapping::anonymous(self.setup.size).map_err(host)?;
        let loaded = backing::load(&self.disks, identity(), &mut |off, bytes| memory.write(off, bytes))?;
        backing::note_made(&self.disks, identity(), &memory, loaded.as_of)?;
        let marks = self.marks()?;
        let backing = Backing::begin(self.disks.clone(), &marks, identity(), &loaded)?.awaited(true);
        let mut memory = Memory::open(memory, Box::new(LOGGED))?;
        memory.track(marks);
        Session::private_with(memory, self.setup.keys(), Some(backing))
    }

    fn open(self, session: Session) -> Result<World, String> {
        let ledger = (self.setup.stored == Stored::Backing).then(|| Ledger::over(self.other.clone()));
        if let Some(ledger) = &ledger {
            session.enlist(ledger.clone());
        }
        let opened = |e: &dyn std::fmt::Display| format!("the file system does not open: {e}");
        let mut fs = Fs::over(session, self.setup.policy()).map_err(|e| opened(&e))?;
        if self.setup.stored == Stored::Segments {
            let region = exraid::region::open(vec![device(&self.other)]).map_err(|e| opened(&e))?;
            let options = Options { threshold: THRESHOLD, ..Options::default() };
            let union = Union::open(fs.session(), &[region], options).map_err(|e| opened(&e))?;
            fs = fs.with_union(Some(union.ok_or("there is no log")?));
        }
        let fs = Arc::new(fs);
        if self.setup.stored == Stored::Segments {
            fs.session().enlist(Arc::new(Commits::of(&fs)));
        }
        Ok(World { tape: self.tape, fs, setup: self.setup, marks: self.marks, ledger })
    }
}

impl World {
    /// An empty file system.
    pub fn format(setup: Setup, faults: &Arc<Faults>) -> Result<World, String> {
        World::format_on(setup, faults, &plain)
    }

    /// The same; `medium` is put between the memory and the recording medium.
    pub fn format_on(
        setup: Setup,
        faults: &Arc<Faults>,
        medium: &dyn Fn(TapeMedium) -> Box<dyn Medium>,
    ) -> Result<World, String> {
        let way = Way { medium, ..Way::new(setup, &Tape::over(setup.files()), faults, &[])? };
        let session = way.format().map_err(text)?;
        Fs::format(&session, (0, 0, 0o755), HASH_KEY).map_err(text)?;
        if setup.stored == Stored::Segments {
            let region = exraid::region::make(Uuid(UUID), 0, Layout::Single, vec![device(&way.other)]).map_err(text)?;
            Log::format(&session, &[region], SEGMENT).map_err(text)?;
        }
        let world = way.open(session)?;
        if setup.stored == Stored::Backing {
            let waits = if setup.kind == MediumKind::Logged { Durability::Fsync } else { Durability::Strict };
            world.fs.set_policy(Policy { durability: waits, ..world.fs.policy() });
        }
        Ok(world)
    }

    /// After the death of all processes: memory, marks and disks are as they were.
    pub fn resume(setup: Setup, left: &Still) -> Result<World, String> {
        World::resume_on(setup, left, &Tape::over(left.files.clone()), &Faults::with(None))
    }

    pub fn resume_on(setup: Setup, left: &Still, tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
        let way = Way::left(setup, tape, faults, &left.marks)?;
        let session = way.resume(mapping(&left.memory)).map_err(|e| format!("the memory is not taken up: {e}"))?;
        way.open(session)
    }

    /// The same, for memory without a backing.
    pub fn recover(kind: MediumKind, memory: Mapping, tape: &Arc<Tape>) -> Result<World, String> {
        let way = Way::new(Setup::alone(kind, memory.len()), tape, &Faults::with(None), &[])?;
        let session = way.resume(memory).map_err(|e| format!("recovery failed: {e}"))?;
        way.open(session)
    }

    /// After the death of all processes and the loss of the memory of the marks.
    pub fn compare(setup: Setup, left: &Still) -> Result<World, String> {
        World::compare_on(setup, left, &Tape::over(left.files.clone()), &Faults::with(None))
    }

    pub fn compare_on(setup: Setup, left: &Still, tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
        let way = Way::left(setup, tape, faults, &[])?;
        let session = way.compare(mapping(&left.memory));
        way.open(session.map_err(|e| format!("memory and backing cannot be compared: {e}"))?)
    }

    /// After a power cut. Records everything except stores.
    pub fn load(setup: Setup, files: Files) -> Result<World, String> {
        World::load_on(setup, &Tape::over(files), &Faults::with(None))
    }

    pub fn load_on(setup: Setup, tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
        let way = Way::left(setup, tape, faults, &[])?;
        let session = way.load().map_err(|e| format!("the backing does not open: {e}"))?;
        way.open(session)
    }

    pub fn backing(&self) -> Option<&Backing> {
        backing::of(self.fs.session())
    }

    /// With a backing, all operations before are durable when it returns.
    pub fn wait(&self) -> pram::Result<()> {
        let session = self.fs.session();
        self.backing().map_or_else(|| session.move_on().map(drop), |backing| backing.wait(session))
    }

    /// A commit, as at the commit interval; returns whether it made anything durable.
    pub fn commit(&self) -> pram::Result<bool> {
        let session = self.fs.session();
        self.backing().map_or_else(|| session.move_on().map(|_| false), |backing| backing.commit_if_due(session, 0))
    }

    pub fn checkpoint(&self) -> pram::Result<()> {
        self.backing().map_or(Ok(()), |backing| backing.checkpoint_if_due(self.fs.session()).map(drop))
    }

    pub fn union(&self) -> &Arc<Union> {
        self.fs.union().expect("it has large files")
    }

    pub fn ledger(&self) -> &Ledger {
        self.ledger.as_ref().expect("it has a backing")
    }

    /// Begins to record.
    pub fn record(&self) -> Result<(), String> {
        self.tape.start(self.mapped_marks()?);
        Ok(())
    }

    fn mapped_marks(&self) -> Result<Option<Mapping>, String> {
        let map = |marks| Mapping::file(marks, Marks::bytes(self.setup.size));
        self.marks.as_ref().map(map).transpose().map_err(text)
    }

    /// The present memory, marks and disks.
    pub fn still(&self) -> Result<Still, String> {
        let marks = self.mapped_marks()?.map(|marks| crate::tape::words_of(&marks)).unwrap_or_default();
        Ok(Still { memory: Arc::new(self.bytes()), marks, files: self.tape.files() })
    }

    /// The memory's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        bytes_of(&self.fs)
    }

    /// Checks the invariants of the segment table.
    pub fn check_table(&self) -> Result<(), String> {
        let problems = table::check(self.fs.session().memory()).map_err(text)?;
        problems.first().map_or(Ok(()), |first| Err(format!("the segment table: {first}")))
    }
}

pub fn bytes_of(fs: &Fs) -> Vec<u8> {
    let memory = fs.session().memory();
    let mut bytes = vec![0; memory.size() as usize];
    memory.read_bytes(0, &mut bytes).expect("inside the memory");
    bytes
}

/// A file in memory of `len` bytes that begins with these.
pub fn memory(bytes: &[u8], len: u64) -> Result<OwnedFd, String> {
    let file = memfd_create(c"explorer", MemfdFlags::CLOEXEC).map_err(text)?;
    rustix::fs::ftruncate(&file, len).map_err(text)?;
    let map = Mapping::file(file.as_fd(), len).map_err(text)?;
    let pages = (0..).step_by(4096).zip(bytes.chunks(4096)).filter(|(_, page)| page.iter().any(|b| *b != 0));
    for (at, page) in pages {
        map.write(at, page).map_err(text)?;
    }
    Ok(file)
}

/// The memory that a power cut leaves.
pub fn reload(files: &Files, size: u64) -> Result<Vec<u8>, String> {
    let disks = disks_of(Tape::over(files.clone()).disks());
    let mut bytes = vec![0; size as usize];
    let loaded = backing::load(&disks, identity(), &mut |off, part| {
        let there = bytes.get_mut(off as usize..off as usize + part.len());
        there.ok_or(pram::Error::BadAddress { off, len: part.len() as u64 })?.copy_from_slice(part);
        Ok(())
    });
    loaded.map_err(|e| format!("the backing does not load: {e}"))?;
    ledger::check(files, &bytes)?;
    Ok(bytes)
}

/// Everything that is visible in the file system in `bytes`, after recovery.
pub fn seen(bytes: &[u8]) -> Result<Snapshot, String> {
    let (_, kind) = Memory::probe(bytes).map_err(text)?;
    let setup = Setup::alone(kind, bytes.len() as u64);
    let opened = Memory::open(mapping(bytes), Box::new(Ram::like(kind)));
    let session = opened.and_then(|memory| Session::private(memory, setup.keys())).map_err(text)?;
    look(&Fs::over(session, setup.policy()).map_err(text)?)
}

/// The disk with segments, as the log has it.
struct Segments {
    name: Arc<str>,
    inner: SharedDisk,
}

fn device(inner: &SharedDisk) -> Arc<dyn Device> {
    Arc::new(Segments { name: "disk".into(), inner: inner.clone() })
}

impl Device for Segments {
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

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn host(errno: rustix::io::Errno) -> pram::Error {
    pram::Error::Host { what: "memory for the explorer".into(), errno }
}
