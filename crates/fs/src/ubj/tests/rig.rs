//! A file system whose large files go to a disk in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use exraid::fault::{Content as Bytes, Cut, RamDisk};
use exraid::region::{make, open};
use exraid::{Answer, Device, Done, Layout, Op, Pending, Properties, Request, Uuid};
use pram::heap::{Cursor, Which};
use pram::memory::BLOCK;
use pram::session::USER_ROOTS;
use pram::Session;

use super::super::{Options, Union};
use crate::attr::{Caller, Ino, Kind};
use crate::file::{self, Content};
use crate::node::{Fs, Policy, Usage, WriteFlags};
use ilfs::{table, Log, Place};

const MIB: u64 = 1 << 20;
const SEGMENT: u64 = MIB;
/// The pool, whose UUID the rig's regions of persistent RAM have.
const POOL: Uuid = Uuid([7; 16]);

type Before = Box<dyn FnMut(&Op) + Send>;

/// A disk that runs something before a request. That may use the disk.
pub struct Probed {
    pub disk: Arc<RamDisk>,
    before: Mutex<Option<Before>>,
    /// It gives nothing back: discarded content stays.
    pub keeps: AtomicBool,
}

impl Probed {
    pub fn before(&self, each: impl FnMut(&Op) + Send + 'static) {
        *self.before.lock().expect("not poisoned") = Some(Box::new(each));
    }

    /// Puts other bytes where segments begin.
    pub fn spoil(&self, len: u64) {
        self.disk.overwrite(MIB + MIB / 2, &vec![0xd5; len as usize]);
    }
}

impl Device for Probed {
    fn name(&self) -> &Arc<str> {
        self.disk.name()
    }

    fn properties(&self) -> Properties {
        self.disk.properties()
    }

    fn submit(&self, request: Request, done: Done) {
        let before = self.before.lock().expect("not poisoned").take();
        if let Some(mut before) = before {
            before(&request.op);
            self.before.lock().expect("not poisoned").get_or_insert(before);
        }
        if matches!(request.op, Op::Discard(_)) && self.keeps.load(Ordering::Relaxed) {
            return done(Answer { result: Ok(()), buffers: None });
        }
        self.disk.submit(request, done);
    }

    fn pending(&self) -> Vec<Pending> {
        self.disk.pending()
    }
}

pub struct Rig {
    pub fs: Arc<Fs>,
    pub disk: Arc<Probed>,
    threshold: u64,
}

/// The content of a commit to a backing.
pub struct Copy {
    memory: Vec<u8>,
    epoch: u64,
}

impl Rig {
    /// With so many bytes of memory, and segments of a MiB.
    pub fn new(memory: u64, segments: u64, threshold: u64) -> Rig {
        let disk = RamDisk::new("disk", 2 * MIB + segments * SEGMENT);
        let region = make(POOL, 0, Layout::Single, vec![disk.clone()]).expect("a region");
        let session = pram::Session::in_memory(memory).unwrap();
        Fs::format(&session, (0, 0, 0o755), 1).expect("a file system");
        Log::format(&session, &[region], SEGMENT).expect("a log");
        Rig::over(session, disk, threshold)
    }

    /// The view of a process that comes to this memory and this disk.
    pub fn over(session: Session, disk: Arc<RamDisk>, threshold: u64) -> Rig {
        let probed = Arc::new(Probed { disk: disk.clone(), before: Mutex::default(), keeps: AtomicBool::default() });
        let region = open(vec![probed.clone()]).expect("the disk is opened");
        let options = Options { threshold, ..Options::default() };
        let union = Union::open(&session, &[region], options).expect("the log is opened");
        assert!(union.is_some(), "there is a log");
        let fs = Fs::over(session, Policy::default()).expect("a file system").with_union(union);
        disk.record();
        Rig { fs: Arc::new(fs), disk: probed, threshold }
    }

    /// All processes have gone, and left memory and disk.
    pub fn reopened(self) -> Rig {
        let (bytes, disk) = (self.memory(), self.disk.disk.content());
        self.again(&bytes, disk)
    }

    /// The same, with another threshold.
    pub fn with_threshold(mut self, threshold: u64) -> Rig {
        self.threshold = threshold;
        self.reopened()
    }

    /// The power was cut, the disk has all content that it had to keep and some of the rest, and the memory is made from a backing, which
    /// did not have the content of blocks with a place.
    pub fn lost(self, copy: &Copy, seed: u64) -> Rig {
        let epochs = self.fs.session().epochs().expect("it is mapped");
        assert!(epochs.durable <= copy.epoch, "nothing after the last commit is durable");
        let disk = self.disk.disk.after(Cut { event: self.disk.disk.tape().len(), seed });
        let mut rig = self.again(&copy.memory, disk.clone());
        let (heap, mut placed) = (rig.fs.session().heap(), Vec::new());
        let mut cursor = Cursor::default();
        let mut see =
            |block, descriptor: pram::memory::Descriptor| placed.extend((descriptor.place != 0).then_some(block));
        while heap.walk_blocks(Which::All, &mut cursor, 64, &mut see).expect("it is mapped") {}
        let mut memory = copy.memory.clone();
        placed.iter().for_each(|block| memory[*block as usize..][..BLOCK as usize].fill(0xbd));
        let mapped = rig.fs.session().memory();
        // The epochs of the life that was lost are not used again.
        let (recovered, running) = (copy.epoch, epochs.running + 1000);
        for (n, word) in [(1u64, recovered), (2, running)] {
            memory[mapped.root(USER_ROOTS + n).raw() as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
        rig = rig.again(&memory, disk);
        let now = rig.fs.session().epochs().expect("it is mapped");
        assert_eq!((now.recovered, now.running), (recovered, running));
        rig
    }

    /// Older memory is put back over the disk as it is.
    pub fn put_back(self, copy: &Copy) -> Rig {
        let disk = self.disk.disk.content();
        self.again(&copy.memory, disk)
    }

    fn again(self, memory: &[u8], disk: Bytes) -> Rig {
        let map = pram::Mapping::anonymous(memory.len() as u64).expect("memory");
        map.write(0, memory).expect("it is mapped");
        let mapped = pram::Memory::open(map, Box::new(pram::medium::BATTERY)).expect("a region");
        let session = Session::private(mapped, 64).expect("a session");
        Rig::over(session, RamDisk::with("disk", disk), self.threshold)
    }

    /// A commit to a backing: the state when all epochs before the running one have ended.
    pub fn commit(&self) -> Copy {
        let session = self.fs.session();
        assert!(session.move_on().expect("it works"));
        Copy { memory: self.memory(), epoch: session.epoch().expect("it is mapped") }
    }

    fn memory(&self) -> Vec<u8> {
        let memory = self.fs.session().memory();
        let mut bytes = vec![0; memory.map().len() as usize];
        memory.read_bytes(0, &mut bytes).expect("it is mapped");
        bytes
    }

    pub fn union(&self) -> &Arc<Union> {
        self.fs.union().expect("it has one")
    }

    pub fn create(&self, name: &str) -> Ino {
        self.fs.create(crate::ROOT, name.as_bytes(), Kind::Regular, 0o644, 0, &Caller::root()).expect("a file").ino
    }

    pub fn write(&self, ino: Ino, at: u64, bytes: &[u8]) {
        self.fs.write(ino, at, bytes, WriteFlags::default()).expect("there is room");
    }

    pub fn content(&self, ino: Ino) -> Content {
        self.fs.node(ino).expect("it is there").content()
    }

    pub fn read(&self, ino: Ino) -> Vec<u8> {
        let mut bytes = vec![0xee; self.content(ino).size as usize];
        assert_eq!(self.fs.read(ino, 0, &mut bytes).expect("it can be read"), bytes.len());
        bytes
    }

    /// Pages of a file that are in blocks.
    pub fn blocks_of(&self, ino: Ino) -> u64 {
        let (mut count, mut cursor) = (0, Cursor::default());
        let mut see = |_, descriptor: pram::memory::Descriptor| count += u64::from(descriptor.owner[0] == ino);
        while self.fs.session().heap().walk_blocks(Which::All, &mut cursor, 64, &mut see).expect("it is mapped") {}
        count
    }

    /// Memory drops everything that it need not hold.
    pub fn evict_all(&self) {
        self.union().evict(&*self.fs, u64::MAX, None).expect("it works");
        self.union().evict(&*self.fs, u64::MAX, None).expect("it works");
    }

    /// The invariants: of the files, of the table of segments, and that each place is live exactly as often as an entry leads
    /// there, which is once. (`exactly`: at most so often, if memory was lost, or a process died while it wrote.)
    pub fn check(&self, inodes: &[Ino], exactly: bool, what: &str) {
        let memory = self.fs.session().memory();
        let mut places: BTreeMap<Place, (Ino, u64)> = BTreeMap::new();
        let (mut reserved, mut usage) = (0, Vec::new());
        for ino in inodes {
            let content = self.content(*ino);
            file::check(memory, &content, &mut |p| panic!("{what}: inode {ino}: {p}"));
            let mut see = |page, place: Option<Place>| {
                let Some(place) = place else { return reserved += 1 };
                let before = places.insert(place, (*ino, page));
                assert!(before.is_none(), "{what}: {before:?} and page {page} of {ino} lead to {place}");
            };
            file::places(memory, &content, &mut see).expect("it can be read");
            usage.push(self.fs.usage(*ino).expect("it can be read"));
        }
        let sum = |of: fn(&Usage) -> u64| usage.iter().map(of).sum::<u64>() / BLOCK;
        assert_eq!(sum(|usage| usage.placed), places.len() as u64, "{what}: placed");
        assert_eq!(sum(|usage| usage.promised), reserved, "{what}: promised");
        let problems = table::check(memory).expect("the table can be read");
        assert!(problems.is_empty(), "{what}: {problems:#?}");
        let mut counted: BTreeMap<u64, u32> = BTreeMap::new();
        places.keys().for_each(|place| *counted.entry(place.sequence()).or_default() += 1);
        let (at, _) = table::Where::find(memory).expect("it can be read").expect("there is one");
        let slots = at.table(memory).slots().expect("it can be read");
        let segments = slots.map(|slot| at.table(memory).get(slot).expect("it can be read"));
        for segment in segments.filter(|segment| segment.state.is_used()) {
            let (sequence, live) = (segment.sequence, segment.live);
            let found = counted.remove(&sequence).unwrap_or(0);
            let right = if exactly { found == live } else { found <= live };
            assert!(right, "{what}: {live} blocks of segment {sequence} count as live, to {found} something leads");
        }
        assert!(counted.is_empty(), "{what}: what segments are not in use something leads to: {counted:?}");
        let counts = self.union().log().counts(self.fs.session()).expect("the table can be read");
        assert_eq!(counts.promised, reserved, "{what}: promised");
        let report = self.fs.fsck(false, &mut |_, _| {}).expect("it runs");
        assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
    }
}
