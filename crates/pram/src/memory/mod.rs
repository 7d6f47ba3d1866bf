//! A memory: geometry, header, typed access, and the one place that stores to persistent RAM.
//!
//! ```text
//! group 0            header, copy A            4 KiB
//!   4096             header, copy B            4 KiB
//!   8192             root words                8 KiB, 1024 words, all but the last seven of the layer above
//!   16384            chunk table of group 0  1024 x 16 B
//!   32768            slots                     `slots` x 32 KiB, undo logs
//!   ...              chunks                  64 KiB each, aligned
//! group n            unused                    16 KiB
//!   + 16384          chunk table of group n  1024 x 16 B
//!   + 65536          chunks
//! ```
//! A group has 64 MiB. The header says how large the memory may become at most, and a root word how many groups have
//! been *begun*: those have their table. A group's table says which of its chunks have memory (see `chunk`). Groups
//! that have not been begun are never touched: they have no memory.
//!
//! Each chunk holds objects of one class and one type ([`Tag`]), so a reference can be checked for its type before it is
//! followed (Conquest, 3.5: typed memory).
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the memory: made, opened, measured, read |
//! | `geometry` | where its parts lie |
//! | `header` | the header and its two copies |
//! | `class` | how objects divide a chunk |
//! | `chunk` | the chunk table: the content of each chunk, and from an offset to its object |
//! | `blocks` | blocks of 4 KiB and their descriptors |
//! | `stores` | stores, and when they are durable |
//! | `backing` | the commit of its backing that the memory holds |
//! | `taken` | the ranges that have memory from the host |

mod backing;
mod blocks;
mod chunk;
mod class;
mod geometry;
mod header;
mod stores;
mod taken;

pub use backing::BackingPosition;
pub(crate) use blocks::TAKEN_BITS;
pub use blocks::{note_restored, Descriptor, BLOCK_TABLE, BLOCK_TABLE_BYTES};
pub use chunk::{Meta, Tag, BLOCKS, TAGS};
pub use class::{capacity_of, class_of, class_within, Class, CLASSES, MAX_SMALL};
pub(crate) use class::{valid_bits, BLOCK_CLASS};
pub use geometry::{
    check_size, ChunkEntry, Geometry, BLOCK, CHUNK, GROUP, HEADERS, MAX_SIZE, MIN_SIZE, PER_CHUNK, PER_GROUP, ROOTS,
    SLOT, TABLE, TABLE_AT,
};
pub use geometry::{BACKING_ROOT, EPOCH_ROOT, GROUPS_ROOT, LINEAGE_ROOT, OPEN_ROOT, RECOVERED_ROOT};
pub use header::{adopt, Info, RawHeader};
pub use header::{begin_life, fingerprint, header_in, note_made, survey};
pub use taken::settle_memory;

use geometry::{groups_in, groups_word, HEADER_AT, ROOTS_AT};
use header::{examine, find_header, header_crc, medium_of, MAGIC, SIZE_AT, VERSION};

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, TryLockError};

use zerocopy::IntoBytes;

use crate::error::Result;
use crate::marks::Marks;
use crate::medium::{Medium, MediumKind, Needs};
use crate::mem::{Mapping, Pod};
use crate::off::Off;

/// A mapped memory.
pub struct Memory {
    map: Mapping,
    medium: Box<dyn Medium>,
    needs: Needs,
    /// Marks of changes since the last commit, if the memory has a backing.
    marks: Option<Marks>,
    pub geo: Geometry,
    pub info: Info,
}

impl Memory {
    /// Makes `map`, which must be zeroed, into an empty memory.
    pub fn format(
        map: Mapping,
        medium: Box<dyn Medium>,
        uuid: [u8; 16],
        app_version: u32,
        created: i64,
    ) -> Result<Memory> {
        let size = map.len() / CHUNK * CHUNK;
        let geo = Geometry::of(size)?;
        let mut raw = RawHeader {
            magic: MAGIC,
            version: VERSION,
            medium: medium.kind() as u32,
            fingerprint: fingerprint(),
            uuid,
            size,
            slots: geo.slots,
            created,
            app_version,
            crc: 0,
        };
        raw.crc = header_crc(&raw);
        let info = Info { uuid, medium: medium.kind(), created, app_version };
        let mut memory = Memory { map, needs: medium.needs(), medium, marks: None, geo, info };
        // 1. Memory for the head. 2. The first group. 3. The header. (Else a memory could be opened that has none.)
        memory.take(geo.head(0))?;
        memory.commit_word(memory.root(GROUPS_ROOT), groups_word(1))?;
        for at in HEADER_AT {
            memory.store(at, raw.as_bytes())?;
            memory.persist(at, size_of::<RawHeader>() as u64);
        }
        memory.map.set_len(size.min(GROUP));
        Ok(memory)
    }

    /// Opens the memory in `map`. A damaged header copy is mended from the other.
    pub fn open(map: Mapping, medium: Box<dyn Medium>) -> Result<Memory> {
        let (good, bad) = find_header(&map)?;
        let (geo, info) = examine(&map, &good)?;
        info.medium.expect(medium.kind())?;
        let mut memory = Memory { map, needs: medium.needs(), medium, marks: None, geo, info };
        if let Some(at) = bad {
            tracing::warn!("header copy at {at} was damaged; mended from the other");
            memory.store(at, good.as_bytes())?;
            memory.persist(at, size_of::<RawHeader>() as u64);
        }
        let groups = memory.mend_groups()?;
        memory.map.set_len(good.size.min(groups * GROUP));
        Ok(memory)
    }

    /// How many groups have been begun. If the word is damaged, all up to the last one whose table is not zero.
    fn mend_groups(&self) -> Result<u64> {
        let (word, most) = (self.root(GROUPS_ROOT), self.geo.groups(self.size()));
        if let Some(groups) = groups_in(self.load(word)?).filter(|groups| *groups <= most) {
            return Ok(groups);
        }
        let mut groups = 1;
        for n in 1..most {
            if !self.map.is_zero(n * GROUP + TABLE_AT, TABLE)? {
                groups = n + 1;
            }
        }
        tracing::warn!("the number of groups was damaged; {groups} are in use");
        self.commit_word(word, groups_word(groups))?;
        Ok(groups)
    }

    /// The usable length of the memory in `map`, which others may have enlarged; for [`Mapping::growing`].
    pub fn recorded_len(map: &Mapping) -> u64 {
        let word = |at| map.word(at / 8).map_or(0, |word| word.load(Ordering::Acquire));
        let groups = groups_in(word(ROOTS_AT + GROUPS_ROOT * 8)).unwrap_or(0);
        word(HEADER_AT[0] + SIZE_AT).min(groups * GROUP)
    }

    /// Bytes that the memory may take at most: set when it was made, or grew.
    pub fn size(&self) -> u64 {
        self.map.atomic64(HEADER_AT[0] + SIZE_AT).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Groups that have been begun.
    pub fn groups(&self) -> u64 {
        self.load(self.root(GROUPS_ROOT)).ok().and_then(groups_in).unwrap_or(1)
    }

    /// The heap's chunks in the groups that have been begun, with memory or without.
    pub fn chunks(&self) -> impl Iterator<Item = u64> {
        let (geo, end) = (self.geo, self.chunks_end());
        (geo.first..end).filter(move |n| geo.is_heap(*n))
    }

    /// The heap's chunks of one group.
    pub fn chunks_of(&self, group: u64) -> impl Iterator<Item = u64> {
        let (geo, end) = (self.geo, self.chunks_end().min((group + 1) * PER_GROUP));
        (group * PER_GROUP..end).filter(move |n| geo.is_heap(*n))
    }

    /// The chunk behind the last one of the groups that have been begun.
    pub fn chunks_end(&self) -> u64 {
        self.size().min(self.groups() * GROUP) / CHUNK
    }

    /// Begins the next group, for which there is memory; one process at a time, in an operation.
    /// 1. Its table is empty. 2. It counts. (Else leftovers in the table would be taken for entries.)
    pub(crate) fn begin_group(&self, n: u64) -> Result<()> {
        let (table, end) = (n * GROUP + TABLE_AT, self.size().min((n + 1) * GROUP));
        self.map.extend(end);
        if !self.map.is_zero(table, TABLE)? {
            self.zero(table, TABLE)?;
            self.persist(table, TABLE);
        }
        self.commit_word(self.root(GROUPS_ROOT), groups_word(n + 1))
    }

    /// Changes the size in the header, first in one copy, then in the other. (After any interruption one copy is whole,
    /// with the old size or the new one.) One process at a time, in an operation; the memory's file has that size
    /// already.
    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        let (mut raw, _) = find_header(&self.map)?;
        raw.size = size;
        raw.crc = header_crc(&raw);
        for at in HEADER_AT {
            self.store(at, raw.as_bytes())?;
            self.persist(at, size_of::<RawHeader>() as u64);
        }
        self.map.extend(size.min(self.groups() * GROUP));
        Ok(())
    }

    /// The size and medium that a memory's header at the start of `bytes` ([`HEADERS`] are enough) claims, if it is one.
    pub fn probe(bytes: &[u8]) -> Result<(u64, MediumKind)> {
        let raw = header_in(bytes)?;
        Ok((raw.size, medium_of(&raw)?))
    }

    /// Do these first bytes of a file say that it is a memory, of any version and perhaps damaged?
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC) || header_in(bytes).is_ok()
    }

    /// Marks stores from now on. Before any process works with the memory.
    pub fn track(&mut self, marks: Marks) {
        self.marks = Some(marks);
    }

    /// Ends the marking of stores: no backing needs the marks.
    pub(crate) fn untrack(&mut self) {
        self.marks = None;
    }

    /// The marks, if stores are marked.
    pub fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    pub fn map(&self) -> &Mapping {
        &self.map
    }

    pub fn needs_flush(&self) -> bool {
        self.needs.flush
    }

    /// Waits for other threads by `sleep`, unless the medium waits in its own way; true if it does.
    #[cold]
    pub fn wait_by(&self, sleep: impl FnOnce()) -> bool {
        let waited = self.medium.waits();
        if !waited {
            sleep();
        }
        waited
    }

    /// Called between two steps that are not stores to the memory.
    #[cold]
    pub fn step(&self) {
        self.medium.stepped();
    }

    /// Takes a mutex that threads of this process hold while they store, waiting as the medium does. Its data must be
    /// right whenever a thread lets go of it, also by a panic.
    pub fn lock_by<'m, T>(&self, mutex: &'m Mutex<T>) -> MutexGuard<'m, T> {
        loop {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(e)) => return e.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            let mut taken = None;
            self.wait_by(|| taken = Some(mutex.lock().unwrap_or_else(|e| e.into_inner())));
            if let Some(guard) = taken {
                return guard;
            }
        }
    }

    /// Root word `n`, `n < ROOTS`.
    pub fn root(&self, n: u64) -> Off<u64> {
        Off::<u64>::new(ROOTS_AT).index(n.min(ROOTS - 1))
    }

    // Loads.

    /// Copies a value out; consistent only under its lock or a sequence counter.
    #[inline(always)]
    pub fn read<T: Pod>(&self, off: Off<T>) -> Result<T> {
        self.map.read(off.raw())
    }

    #[inline(always)]
    pub fn read_bytes(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        self.map.copy_out(off, buf)
    }

    /// Are the bytes at `off` these? Consistent only under their lock or a sequence counter.
    #[inline(always)]
    pub fn equals(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        self.map.equals(off, bytes)
    }

    /// Which of the sixteen half words at `off` have these upper 16 bits; consistent as above.
    #[inline(always)]
    pub fn upper_halves(&self, off: u64, upper: u16) -> Result<u16> {
        self.map.upper_halves(off, upper)
    }

    /// Lets the processor fetch lines that are about to be stored to, unless many stores go past the caches.
    #[inline(always)]
    pub fn expect_store(&self, off: u64, len: u64) {
        if !self.needs.flush {
            self.map.expect_store(off, len);
        }
    }

    /// Has the processor map and fetch a word that is about to be read.
    pub fn touch(&self, off: u64) -> Result<()> {
        self.map.atomic64(off).map(|word| _ = word.load(Ordering::Relaxed))
    }

    /// One word, atomically.
    #[inline(always)]
    pub fn load(&self, off: Off<u64>) -> Result<u64> {
        Ok(self.map.atomic64(off.raw())?.load(Ordering::Acquire))
    }
}
