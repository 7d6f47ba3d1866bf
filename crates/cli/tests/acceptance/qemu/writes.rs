//! The log of all writes of a machine to a disk, as QEMU's `blklogwrites` records it, and the states in which a power
//! cut may leave the disk.
//!
//! The format is that of Linux's dm-log-writes: a sector with the number of entries, then each entry in a sector of its
//! own, with its data behind it. An entry is logged before the machine gets the completion. So data written before a
//! flush is on the disk after it, and each later block may be there or not.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rng::Rng;

const SECTOR: u64 = 512;
/// A disk writes this many bytes wholly or not at all: ext4 requires no less.
const BLOCK: u64 = 4096;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// One request of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Offset and length on the disk.
    pub at: u64,
    pub len: u64,
    flags: u64,
    /// The offset of its data in the log.
    data: u64,
}

impl Entry {
    fn is_flush(&self) -> bool {
        self.flags & FLUSH != 0
    }

    /// Must the disk write it before its completion?
    fn is_forced(&self) -> bool {
        self.flags & FUA != 0
    }
}

/// Everything that was written to a disk, in order.
pub struct Writes {
    log: File,
    pub entries: Vec<Entry>,
}

impl Writes {
    pub fn open(log: &Path) -> Writes {
        let log = File::open(log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let [magic, _, entries, sector] = words(&log, 0).expect("a log of writes");
        assert_eq!((magic, sector as u32), (MAGIC, SECTOR as u32), "a log of writes in sectors of 512 bytes");
        let mut writes = Writes { log, entries: Vec::new() };
        let mut at = SECTOR;
        for _ in 0..entries {
            // The last entries may be missing: they were under way when the machine was killed.
            let Some(entry) = writes.read(at) else { break };
            at = entry.data + entry.len;
            writes.entries.push(entry);
        }
        writes
    }

    fn read(&self, at: u64) -> Option<Entry> {
        let [sector, sectors, flags, _] = words(&self.log, at)?;
        let len = if flags & DISCARD == 0 { sectors * SECTOR } else { 0 };
        let there = sectors + flags > 0 && at + SECTOR + len <= self.log.metadata().ok()?.len();
        there.then_some(Entry { at: sector * SECTOR, len, flags, data: at + SECTOR })
    }

    /// The data of entry `n`, from its beginning, at most `most` bytes.
    pub fn data(&self, n: usize, most: u64) -> Vec<u8> {
        let Entry { data, len, .. } = self.entries[n];
        let mut bytes = vec![0; len.min(most) as usize];
        self.log.read_exact_at(&mut bytes, data).expect("the log of writes");
        bytes
    }

    pub fn flushes(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|n| self.entries[*n].is_flush()).collect()
    }

    /// Writes these entries to `disk`.
    pub fn apply(&self, disk: &File, entries: Range<usize>) {
        for n in entries {
            write(disk, self.entries[n].at, &self.data(n, u64::MAX));
        }
    }

    /// Writes some blocks of these entries, and leaves out others, each with a chance of `dropped` in 4.
    pub fn apply_some(&self, disk: &File, entries: Range<usize>, rng: &mut Rng, dropped: u64) {
        for n in entries {
            let Entry { at, .. } = self.entries[n];
            let bytes = self.data(n, u64::MAX);
            for (i, block) in bytes.chunks(BLOCK as usize).enumerate() {
                if self.entries[n].is_forced() || rng.below(4) >= dropped {
                    write(disk, at + i as u64 * BLOCK, block);
                }
            }
        }
    }
}

fn write(disk: &File, at: u64, bytes: &[u8]) {
    disk.write_all_at(bytes, at).expect("a state of the disk");
}

fn words(log: &File, at: u64) -> Option<[u64; 4]> {
    let mut bytes = [0; 32];
    log.read_exact_at(&mut bytes, at).ok()?;
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(words)
}
