//! A log on disks in memory, and its expected content.

use std::sync::Arc;

use exraid::fault::{FaultDisk, Faults, RamDisk};
use exraid::region::{make, open};
use exraid::{Aligned, Buffers, Device, Layout, Region, Uuid};
use pram::Session;
use rng::Rng;

use super::super::part::Owner;
use super::super::place::{Place, Run, BLOCK};
use super::super::write::Block;
use super::super::{table, Head, Log, Options, Result};

pub const MIB: u64 = 1 << 20;
/// Segments of the tests: small, so that there are many.
pub const SEGMENT: u64 = MIB;

/// The pool, whose UUID the rig's memories have.
pub const POOL: Uuid = Uuid([7; 16]);

/// A log on a disk, or several: a region each.
pub struct Rig {
    pub session: Arc<Session>,
    pub disk: Arc<RamDisk>,
    pub faults: Arc<FaultDisk>,
    /// All disks but the first.
    pub others: Vec<Arc<FaultDisk>>,
    /// The memory disks beneath these.
    pub rams: Vec<Arc<RamDisk>>,
    pub log: Log,
}

pub fn region_of(device: Arc<dyn Device>) -> Arc<dyn Region> {
    open(vec![device]).expect("the region is opened")
}

impl Rig {
    /// With so many segments, 14 at least.
    pub fn new(segments: u64) -> Rig {
        let disk = RamDisk::new("disk", 2 * MIB + segments * SEGMENT);
        let faults = FaultDisk::over(disk.clone(), segments, Faults::default());
        let region = make(POOL, 0, Layout::Single, vec![faults.clone()]).expect("a region");
        let session = Arc::new(pram::Session::in_memory(MIB).unwrap());
        Log::format(&session, std::slice::from_ref(&region), SEGMENT).expect("a log");
        let log = Log::open(&session, &[region], options()).expect("the log").expect("there is one");
        Rig { session, disk, faults, others: Vec::new(), rams: Vec::new(), log }
    }

    /// On so many disks, each with so many segments.
    pub fn on(disks: u32, segments: u64) -> Rig {
        let mut rams = Vec::new();
        let mut faults = Vec::new();
        for n in 0..disks {
            let disk = RamDisk::new(&format!("disk{n}"), 2 * MIB + segments * SEGMENT);
            faults.push(FaultDisk::over(disk.clone(), segments + u64::from(n), Faults::default()));
            rams.push(disk);
        }
        let region = |(n, disk): (u32, &Arc<FaultDisk>)| make(POOL, n, Layout::Single, vec![disk.clone()]).expect("it");
        let regions: Vec<Arc<dyn Region>> = (0..).zip(&faults).map(region).collect();
        // The table of a hundred regions does not fit into the smallest memory.
        let session = Arc::new(pram::Session::in_memory(MIB * u64::from(1 + disks / 100)).unwrap());
        Log::format(&session, &regions, SEGMENT).expect("a log");
        let log = Log::open(&session, &regions, options()).expect("the log").expect("there is one");
        let (disk, first) = (rams.remove(0), faults.remove(0));
        Rig { session, disk, faults: first, others: faults, rams, log }
    }

    /// With the regions of these disks; the others are missing.
    pub fn with_disks(self, disks: &[u32]) -> Rig {
        let Rig { session, disk, faults, others, rams, log } = self;
        drop(log);
        let all = std::iter::once(&faults).chain(&others);
        let there = (0u32..).zip(all).filter(|(n, _)| disks.contains(n));
        let regions: Vec<_> = there.map(|(_, disk)| region_of(disk.clone())).collect();
        let log = Log::open(&session, &regions, options()).expect("the log").expect("there is one");
        Rig { session, disk, faults, others, rams, log }
    }

    /// With an existing disk and memory.
    pub fn of(session: Arc<Session>, disk: Arc<RamDisk>, faults: Arc<FaultDisk>) -> Rig {
        let region = region_of(faults.clone());
        let log = Log::open(&session, &[region], options()).expect("the log").expect("there is one");
        Rig { session, disk, faults, others: Vec::new(), rams: Vec::new(), log }
    }

    /// The log as another process, or a later one, has it.
    pub fn reopened(self) -> Rig {
        let disks: Vec<u32> = (0..=self.others.len() as u32).collect();
        self.with_disks(&disks)
    }

    pub fn write(&self, head: Head, blocks: &[Block]) -> Result<Vec<Place>> {
        let mut writer = self.log.writer(&self.session, head, None);
        for block in blocks {
            writer.push(block.clone())?;
        }
        writer.finish()
    }

    pub fn read(&self, run: Run) -> Result<Vec<u8>> {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        Ok(self.log.read(&self.session, run, memory)?.wait(&self.log, &self.session)?.to_vec())
    }

    pub fn unlink(&self, places: &[Place]) {
        let done = self.log.change(&self.session, |change| self.log.unlink(change.tx, places));
        done.expect("they are live");
    }

    /// The invariants of the table.
    pub fn check(&self) {
        let problems = table::check(self.session.memory()).expect("the table can be read");
        assert!(problems.is_empty(), "{problems:#?}");
    }
}

pub fn options() -> Options {
    Options { checksums: 10, ..Options::default() }
}

/// A block whose content depends on `seed`.
pub fn block(ino: u64, page: u64, seed: u64) -> Block {
    let content = Buffers::whole(&Aligned::of(&content(seed)));
    Block { owner: Owner { ino, generation: 1, page }, content, moved: None }
}

pub fn content(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(BLOCK as usize)
}

/// The memory of a session, as it is now.
pub fn snapshot(session: &Session) -> Vec<u8> {
    let region = session.memory();
    let mut bytes = vec![0; region.map().len() as usize];
    region.read_bytes(0, &mut bytes).expect("it is mapped");
    bytes
}

/// A session on memory that was put back.
pub fn session_of(bytes: &[u8]) -> Session {
    let map = pram::Mapping::anonymous(bytes.len() as u64).expect("memory");
    map.write(0, bytes).expect("it is mapped");
    let region = pram::Memory::open(map, Box::new(pram::medium::BATTERY)).expect("a region");
    Session::private(region, 64).expect("a session")
}
