//! A participant in commits, in place of the one that stores content beside the log. At each end of an epoch it takes a
//! checksum of the memory, and writes it to a file of its own before the commit counts. The memory that a power cut
//! leaves must have the checksum of its last epoch.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use backing::log::SECTOR;
use backing::SharedDisk;
use pram::memory::{Geometry, HEADERS};
use pram::session::{Frozen, Participant, USER_ROOTS};
use pram::{Error, Result, Session};

use crate::disk::{Files, LEDGER};

/// Checksums that are stored: more than commits are ever open, or parts of a backing apart.
const SLOTS: u64 = 256;
pub const BYTES: u64 = SLOTS * SECTOR;

/// A step that is left out, to test the explorers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    #[default]
    Nothing,
    /// The checksum is written when the commit is already durable.
    Late,
    /// The checksum is taken when the commit begins.
    Early,
}

pub struct Ledger {
    disk: SharedDisk,
    sabotage: Mutex<Sabotage>,
    /// By epoch, the checksum to be written.
    sums: Mutex<BTreeMap<u64, u32>>,
}

impl Ledger {
    pub fn over(disk: SharedDisk) -> Arc<Ledger> {
        Arc::new(Ledger { disk, sabotage: Mutex::default(), sums: Mutex::default() })
    }

    /// Leaves out a step from now on.
    pub fn sabotage(&self, sabotage: Sabotage) {
        *self.sabotage.lock().unwrap_or_else(|e| e.into_inner()) = sabotage;
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        *self.sabotage.lock().unwrap_or_else(|e| e.into_inner()) == sabotage
    }

    fn note(&self, session: &Session, epoch: u64) -> Result<()> {
        let mut bytes = vec![0; session.memory().size() as usize];
        session.memory().read_bytes(0, &mut bytes)?;
        self.sums.lock().unwrap_or_else(|e| e.into_inner()).insert(epoch, sum(&bytes));
        Ok(())
    }

    /// Writes the checksum of an epoch, over the oldest record.
    fn put(&self, epoch: u64) -> Result<()> {
        let Some(sum) = self.sums.lock().unwrap_or_else(|e| e.into_inner()).remove(&epoch) else { return Ok(()) };
        let mut all = vec![0; BYTES as usize];
        let mut written = || -> std::io::Result<()> {
            self.disk.read_exact_at(&mut all, 0)?;
            // Not by epochs: memory that was left behind goes on with lower epochs than another memory has used
            // meanwhile.
            let version =
                all.chunks(SECTOR as usize).filter_map(parse).map(|record| record.version + 1).max().unwrap_or(0);
            self.disk.write_all_at(&Record { version, epoch, sum }.bytes(), version % SLOTS * SECTOR)?;
            self.disk.flush()
        };
        written().map_err(|e| Error::Unusable(format!("the ledger: {e}")))
    }
}

impl Participant for Ledger {
    fn is_due(&self, session: &Session) -> bool {
        if self.is(Sabotage::Early) {
            let _ = session.epoch().and_then(|epoch| self.note(session, epoch));
        }
        false
    }

    fn at_rest(&self, still: &Frozen, epoch: u64) -> Result<()> {
        match self.is(Sabotage::Early) {
            true => Ok(()),
            false => self.note(still.session(), epoch),
        }
    }

    fn write(&self, _: &Session, epoch: u64) -> Result<()> {
        match self.is(Sabotage::Late) {
            true => Ok(()),
            false => self.put(epoch),
        }
    }

    fn durable(&self, session: &Session, epoch: u64) {
        assert!(session.epochs().is_ok_and(|epochs| epochs.durable > epoch), "acknowledged too early");
        if self.is(Sabotage::Late) {
            let _ = self.put(epoch);
        }
    }
}

/// Does the memory in `bytes`, from the backing in `files`, have the checksum of its last epoch?
pub fn check(files: &Files, bytes: &[u8]) -> std::result::Result<(), String> {
    let Some(last) = epoch_of(bytes).checked_sub(1) else { return Ok(()) };
    let mut all = vec![0; BYTES as usize];
    files.0[LEDGER].read(&mut all, 0).map_err(|e| format!("the ledger: {e}"))?;
    let records = all.chunks(SECTOR as usize).filter_map(parse);
    let found: Vec<u32> = records.filter(|record| record.epoch == last).map(|record| record.sum).collect();
    match found[..] {
        [there] if there == sum(bytes) => Ok(()),
        [_] => Err(format!("the ledger has another region for epoch {last}")),
        _ => Err(format!("the ledger has {} sums for epoch {last}", found.len())),
    }
}

/// The running epoch of the memory in `bytes`.
fn epoch_of(bytes: &[u8]) -> u64 {
    let at = HEADERS + (USER_ROOTS as usize + 2) * 8;
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// The parts of a memory of `size` bytes that a backing holds: without the notes about its backing, its epochs, which
/// commits advance, and its undo logs.
pub fn copied(size: usize) -> [Range<usize>; 3] {
    let word = |n: u64| HEADERS + n as usize * 8;
    let undo = Geometry::of(size as u64).expect("a region was made with it").undo_logs();
    let (start, end) = (undo.start as usize, undo.end as usize);
    [0..word(USER_ROOTS + 1), word(USER_ROOTS + 6)..start, end..size]
}

fn sum(bytes: &[u8]) -> u32 {
    copied(bytes.len()).into_iter().fold(0, |sum, part| crc32c::crc32c_append(sum, &bytes[part]))
}

/// A sector of the ledger.
struct Record {
    /// How many records were written before.
    version: u64,
    epoch: u64,
    sum: u32,
}

impl Record {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&self.version.to_le_bytes()[..], &self.epoch.to_le_bytes(), &self.sum.to_le_bytes()].concat();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.resize(SECTOR as usize, 0);
        bytes
    }
}

fn parse(sector: &[u8]) -> Option<Record> {
    let long = |at: usize| sector[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let word = |at: usize| sector[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
    let whole = word(20) == crc32c::crc32c(&sector[..20]) && word(20) != 0;
    whole.then(|| Record { version: long(0), epoch: long(8), sum: word(16) })
}
