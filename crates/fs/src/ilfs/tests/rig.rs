//! A log on disks in memory, and what should be in it.

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

/// The pool, whose UUID the rig's regions of persistent RAM have.
pub const POOL: Uuid = Uuid([7; 16]);

/// A log on one disk.
pub struct Rig {
    pub session: Arc<Session>,
    pub disk: Arc<RamDisk>,
    pub faults: Arc<FaultDisk>,
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
        let session = Arc::new(crate::rig::session(MIB));
        Log::format(&session, std::slice::from_ref(&region), SEGMENT).expect("a log");
        let log = Log::open(&session, &[region], options()).expect("the log").expect("there is one");
        Rig { session, disk, faults, log }
    }

    /// A disk and a memory that are there.
    pub fn of(session: Arc<Session>, disk: Arc<RamDisk>, faults: Arc<FaultDisk>) -> Rig {
        let region = region_of(faults.clone());
        let log = Log::open(&session, &[region], options()).expect("the log").expect("there is one");
        Rig { session, disk, faults, log }
    }

    /// As another process, or a later one, has it.
    pub fn reopened(self) -> Rig {
        let Rig { session, disk, faults, log } = self;
        drop(log);
        Rig::of(session, disk, faults)
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
        self.log.read(&self.session, run, memory.clone())?.wait(&self.log, &self.session)?;
        Ok(memory.to_vec())
    }

    pub fn unlink(&self, places: &[Place]) {
        let done = self.log.change(&self.session, |change| self.log.unlink(change.tx, places));
        done.expect("they are live");
    }

    /// The invariants of the table.
    pub fn check(&self) {
        let problems = table::check(self.session.region()).expect("the table can be read");
        assert!(problems.is_empty(), "{problems:#?}");
    }
}

pub fn options() -> Options {
    Options { checksums: 10, ..Options::default() }
}

/// A block of any content.
pub fn block(ino: u64, page: u64, seed: u64) -> Block {
    let content = Buffers::whole(&Aligned::of(&content(seed)));
    Block { owner: Owner { ino, generation: 1, page }, content, moved: None }
}

pub fn content(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(BLOCK as usize)
}

/// The memory of a session, as it is now.
pub fn snapshot(session: &Session) -> Vec<u8> {
    let region = session.region();
    let mut bytes = vec![0; region.map().len() as usize];
    region.read_bytes(0, &mut bytes).expect("it is mapped");
    bytes
}

/// A session on memory that was put back.
pub fn session_of(bytes: &[u8]) -> Session {
    let map = pram::Mapping::anonymous(bytes.len() as u64).expect("memory");
    map.write(0, bytes).expect("it is mapped");
    let region = pram::Region::open(map, Box::new(pram::medium::BATTERY)).expect("a region");
    Session::private(region, 64).expect("a session")
}
