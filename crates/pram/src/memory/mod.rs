//! A memory: geometry, header, typed access, and the one place that stores to persistent RAM.
//!
//! ```text
//! group 0            header, copy A            4 KiB
//!   4096             header, copy B            4 KiB
//!   8192             root words                8 KiB, 1024 words of the layer above
//!   16384            chunk table of group 0  1024 x 16 B
//!   32768            slots                     `slots` x 32 KiB, undo logs
//!   ...              chunks                  64 KiB each, aligned
//! group n            unused                    16 KiB
//!   + 16384          chunk table of group n  1024 x 16 B
//!   + 65536          chunks
//! ```
//! A group has 64 MiB. The header says how large the memory may become at most, and a root word how many groups have been
//! *begun*: those have their table. Which of a group's chunks have memory its table says (see [`heap`](crate::heap)).
//! What is in groups that have not been begun is never touched: it has no memory.

mod geometry;
mod header;

pub use geometry::{
    check_size, Geometry, CHUNK, GROUP, HEADERS, MAX_SIZE, MIN_SIZE, PER_GROUP, ROOTS, SLOT, TABLE, TABLE_AT,
};
pub use geometry::{BACKING_ROOT, EPOCH_ROOT, GROUPS_ROOT, LINEAGE_ROOT, OPEN_ROOT, RECOVERED_ROOT};
pub use header::{adopt, Info, RawHeader};
pub use header::{begin_life, fingerprint, header_in, note_made, survey};

use geometry::{groups_in, groups_word, BEGUN_ROOT, HEADER_AT, ROOTS_AT};
use header::{examine, find_header, header_crc, medium_of, MAGIC, SIZE_AT, VERSION};

use std::ops::Range;
use std::sync::atomic::{compiler_fence, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use zerocopy::IntoBytes;

use crate::blocks::BLOCK;
use crate::error::{Error, Result};
use crate::heap::Meta;
use crate::marks::Marks;
use crate::medium::{Medium, MediumKind, Needs};
use crate::mem::{Mapping, Pod};
use crate::off::Off;
use crate::reserve;

/// How a memory stands to the backing that it was used with last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The commit that the backing ended with when the memory was closed, if that held all of it.
    pub closed: u64,
    /// The last commit that was begun: a backing that has more was written by another memory, or by a newer state of this
    /// one. 0 if nobody knows.
    pub begun: u64,
    /// Of the backing.
    pub lineage: u32,
    /// The checksum of the backing's last record when the memory was closed.
    pub tail: u32,
}

/// Takes the memory that the memory in `map` says it has, and no more.
pub fn settle_memory(map: Mapping, kind: MediumKind) -> Result<()> {
    Memory::open(map, Box::new(crate::medium::Ram::like(kind)))?.settle_memory()
}

/// Bytes from which on stores go past the caches, where that makes them durable: a few lines are cheaper to write back.
const MUCH: usize = 512;
/// A mapped memory.
pub struct Memory {
    map: Mapping,
    medium: Box<dyn Medium>,
    needs: Needs,
    /// What has changed since the last commit, if the memory has a backing.
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

    /// How many groups have been begun. If the word is damaged, all up to the last one whose table says anything.
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

    /// How long the memory in `map` is that others may have added to; for [`Mapping::growing`].
    pub fn told_len(map: &Mapping) -> u64 {
        let word = |at| map.word(at / 8).map_or(0, |word| word.load(Ordering::Acquire));
        let groups = groups_in(word(ROOTS_AT + GROUPS_ROOT * 8)).unwrap_or(0);
        word(HEADER_AT[0] + SIZE_AT).min(groups * GROUP)
    }

    /// Bytes that the memory may take at most: what was said when it was made, or grew.
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

    /// Those of one group.
    pub fn chunks_of(&self, group: u64) -> impl Iterator<Item = u64> {
        let (geo, end) = (self.geo, self.chunks_end().min((group + 1) * PER_GROUP));
        (group * PER_GROUP..end).filter(move |n| geo.is_heap(*n))
    }

    /// The chunk behind the last one of those.
    pub fn chunks_end(&self) -> u64 {
        self.size().min(self.groups() * GROUP) / CHUNK
    }

    /// Where the memory has anything that counts: all but undo logs, and chunks that have no memory.
    pub fn held(&self) -> Result<Vec<Range<u64>>> {
        self.held_but(&[Meta::Absent])
    }

    /// Of that what a backing has too: of the content of blocks only that of those without a place.
    pub fn copied(&self) -> Result<Vec<Range<u64>>> {
        let mut copied = self.held_but(&[Meta::Absent, Meta::Blocks])?;
        for chunk in self.chunks() {
            // What is damaged fsck reports.
            let Ok(blocks) = self.blocks_of(chunk) else { continue };
            let unplaced = blocks.iter().filter(|(_, descriptor)| descriptor.place == 0);
            copied.extend(unplaced.map(|(block, _)| *block..*block + BLOCK));
        }
        Ok(copied)
    }

    /// All but undo logs, and chunks of these states.
    fn held_but(&self, states: &[Meta]) -> Result<Vec<Range<u64>>> {
        let (undo, geo) = (self.geo.undo_logs(), self.geo);
        let mut held = vec![0..undo.start, undo.end..geo.heap()];
        for group in 0..self.groups() {
            if group > 0 {
                held.push(group * GROUP + TABLE_AT..geo.head(group).end);
            }
            for n in self.chunks_of(group) {
                let at = n * CHUNK..(n + 1) * CHUNK;
                match self.meta(n)? {
                    meta if states.contains(&meta) => {}
                    _ => match held.last_mut().filter(|last| last.end == at.start) {
                        Some(last) => last.end = at.end,
                        None => held.push(at),
                    },
                }
            }
        }
        Ok(held)
    }

    /// Makes sure that there is memory for a range, that nobody uses yet.
    pub(crate) fn take(&self, range: Range<u64>) -> Result<()> {
        match self.map.growing_file() {
            Some(file) => reserve::take(file, range, self.info.medium).map_err(Error::host("taking memory")),
            None => Ok(()),
        }
    }

    /// Gives the memory of a range back, that nobody uses any more.
    pub(crate) fn give_back(&self, range: Range<u64>) -> Result<()> {
        match self.map.growing_file() {
            Some(file) => reserve::give_back(file, range).map_err(Error::host("giving memory back")),
            None => Ok(()),
        }
    }

    /// Begins the next group, for which there is memory; by one at a time, in an operation.
    /// 1. Its table is empty. 2. It counts. (Else whatever was there before would be taken for entries.)
    pub(crate) fn begin_group(&self, n: u64) -> Result<()> {
        let (table, end) = (n * GROUP + TABLE_AT, self.size().min((n + 1) * GROUP));
        self.map.extend(end);
        if !self.map.is_zero(table, TABLE)? {
            self.zero(table, TABLE)?;
            self.persist(table, TABLE);
        }
        self.commit_word(self.root(GROUPS_ROOT), groups_word(n + 1))
    }

    /// Changes the size in the header, first in one copy, then in the other. (Whatever interrupts it, one is whole, and says
    /// the old size or the new one.) By one at a time, in an operation; the memory's file has that size already.
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

    /// Do these bytes, the first ones of a file, say that it is a memory, whatever its version and however damaged?
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC) || header_in(bytes).is_ok()
    }

    /// From now on stores are marked. Before anybody works with the memory.
    pub fn track(&mut self, marks: Marks) {
        self.marks = Some(marks);
    }

    /// From now on stores are not marked: there is no backing that would need it.
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

    /// Waits for others by `sleep`, unless the medium has its own way: true then.
    #[cold]
    pub fn wait_by(&self, sleep: impl FnOnce()) -> bool {
        let waited = self.medium.waits();
        if !waited {
            sleep();
        }
        waited
    }

    /// Between two steps that are not stores to the memory.
    #[cold]
    pub fn step(&self) {
        self.medium.stepped();
    }

    /// Takes a mutex that threads of this process hold while they store, waiting as the medium wants it. What it
    /// protects is right whenever somebody lets go of it, also by a panic.
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

    /// A root word of the layer above, `n < ROOTS`.
    pub fn root(&self, n: u64) -> Off<u64> {
        Off::<u64>::new(ROOTS_AT).index(n.min(ROOTS - 1))
    }

    // Loads.

    /// Copies a value out; consistent only under its lock or a sequence counter.
    #[inline(always)]
    pub fn read<T: Pod>(&self, off: Off<T>) -> Result<T> {
        self.map.read(off.raw())
    }

    /// Copies bytes out.
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

    /// Lets the processor fetch what is about to be stored to, unless much of it will go past the caches.
    #[inline(always)]
    pub fn expect_store(&self, off: u64, len: u64) {
        if !self.needs.flush {
            self.map.expect_store(off, len);
        }
    }

    /// Has the processor map and fetch what is about to be read.
    pub fn touch(&self, off: u64) -> Result<()> {
        self.map.atomic64(off).map(|word| _ = word.load(Ordering::Relaxed))
    }

    /// One word, atomically.
    #[inline(always)]
    pub fn load(&self, off: Off<u64>) -> Result<u64> {
        Ok(self.map.atomic64(off.raw())?.load(Ordering::Acquire))
    }

    // Stores. Only `tx`, `heap` and the functions below call them.

    #[inline(always)]
    pub(crate) fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.mark(off, bytes.len() as u64)?;
        self.map.write(off, bytes)?;
        self.tell(off, bytes);
        Ok(())
    }

    /// Stores `a` and `b` one behind the other.
    #[inline(always)]
    pub(crate) fn store_pair(&self, off: u64, a: &[u8], b: &[u8]) -> Result<()> {
        self.mark(off, (a.len() + b.len()) as u64)?;
        for (off, bytes) in [(off, a), (off + a.len() as u64, b)] {
            self.map.write(off, bytes)?;
            self.tell(off, bytes);
        }
        Ok(())
    }

    /// Stores bytes where nothing refers to yet; true if they want no flush but a fence.
    #[inline(always)]
    pub(crate) fn store_unlinked(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        if self.needs.flush && bytes.len() >= MUCH && self.stream(off, bytes)? {
            return Ok(true);
        }
        self.store(off, bytes).map(|()| false)
    }

    #[cold]
    #[inline(never)]
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        self.mark(off, bytes.len() as u64)?;
        self.medium.stream(&self.map, off, bytes)
    }

    // Content of blocks: neither marked nor logged, whatever the medium.

    /// Fails unless all of a range is in one block.
    #[inline(always)]
    fn check_content(&self, off: u64, len: u64) -> Result<()> {
        let inside = len <= BLOCK - off % BLOCK;
        match self.meta(self.geo.chunk_of(off))? {
            Meta::Blocks if inside => Ok(()),
            _ => Err(Error::BadAddress { off, len }),
        }
    }

    /// Stores to a block; true if that wants no flush but a fence.
    #[inline(always)]
    pub(crate) fn store_content(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        self.check_content(off, bytes.len() as u64)?;
        if self.needs.flush && bytes.len() >= MUCH && self.medium.stream(&self.map, off, bytes)? {
            return Ok(true);
        }
        self.map.write(off, bytes)?;
        self.tell(off, bytes);
        Ok(false)
    }

    pub(crate) fn zero_content(&self, off: u64, len: u64) -> Result<()> {
        self.check_content(off, len)?;
        self.map.zero(off, len)?;
        self.tell_range(off, len)
    }

    pub(crate) fn copy_content(&self, src: u64, off: u64, len: u64) -> Result<()> {
        self.check_content(off, len)?;
        self.copy_to_log(src, off, len)
    }

    /// A device has stored to a block: makes it durable. In or outside an operation, before anything leads there.
    pub fn keep_content(&self, off: u64, len: u64) -> Result<()> {
        self.check_content(off, len)?;
        self.tell_range(off, len)?;
        self.persist(off, len);
        Ok(())
    }

    /// From here on the memory is not what a backing holds.
    pub(crate) fn forget_backing(&self) -> Result<()> {
        self.note(BACKING_ROOT, 0)
    }

    /// How the memory stands to its backing.
    pub fn standing(&self) -> Result<Standing> {
        let word = |n| self.load(self.root(n));
        let lineage = word(LINEAGE_ROOT)?;
        let (lineage, tail) = (lineage as u32, (lineage >> 32) as u32);
        Ok(Standing { closed: word(BACKING_ROOT)?, begun: word(BEGUN_ROOT)?, lineage, tail })
    }

    /// Notes it. 1. All but whether it was closed. 2. That.
    pub fn note_standing(&self, s: Standing) -> Result<()> {
        self.note(LINEAGE_ROOT, u64::from(s.tail) << 32 | u64::from(s.lineage))?;
        self.note_begun(s.begun)?;
        self.note(BACKING_ROOT, s.closed)
    }

    /// A commit to the backing begins.
    pub fn note_begun(&self, commit: u64) -> Result<()> {
        self.note(BEGUN_ROOT, commit)
    }

    /// Changes a word of which the backing knows nothing.
    fn note(&self, root: u64, value: u64) -> Result<()> {
        let word = self.root(root);
        let at = self.map.atomic64(word.raw())?;
        if at.load(Ordering::Acquire) != value {
            at.store(value, Ordering::Release);
            self.tell(word.raw(), &value.to_le_bytes());
            self.persist(word.raw(), 8);
        }
        Ok(())
    }

    /// Marks what is about to be stored.
    #[inline(always)]
    fn mark(&self, off: u64, len: u64) -> Result<()> {
        match &self.marks {
            None => Ok(()),
            // What an operation stores to has nearly always been stored to since the last commit.
            Some(marks) if !self.needs.stores && marks.has(off, len) => Ok(()),
            Some(marks) => self.mark_anew(marks, off, len),
        }
    }

    /// Undo logs are left out: no transaction is open at the instants that a backing is of.
    #[inline(never)]
    fn mark_anew(&self, marks: &Marks, off: u64, len: u64) -> Result<()> {
        if self.geo.undo_logs().contains(&off) {
            return Ok(());
        }
        if !marks.has(off, len) {
            marks.mark(off, len)?;
        }
        if self.needs.stores {
            self.medium.marked();
        }
        Ok(())
    }

    #[inline(always)]
    fn tell(&self, off: u64, bytes: &[u8]) {
        if self.needs.stores {
            self.tell_medium(off, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_medium(&self, off: u64, bytes: &[u8]) {
        self.medium.stored(off, bytes);
    }

    #[inline(always)]
    pub(crate) fn store_word(&self, off: u64, word: u64) -> Result<()> {
        self.mark(off, 8)?;
        self.store_log_word(off, word)
    }

    /// Stores a word of a slot: of no interest to a backing, and not marked.
    #[inline(always)]
    pub(crate) fn store_log_word(&self, off: u64, word: u64) -> Result<()> {
        self.map.atomic64(off)?.store(word, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.tell(off, &word.to_le_bytes());
        Ok(())
    }

    /// Copies `count` words at `src` into a slot, in ascending order.
    #[inline(always)]
    pub(crate) fn save_words(&self, src: u64, dst: u64, count: usize) -> Result<()> {
        for (i, (from, to)) in self.map.words(src, count)?.iter().zip(self.map.words(dst, count)?).enumerate() {
            let word = from.load(Ordering::Acquire);
            to.store(word, Ordering::Release);
            self.tell(dst + i as u64 * 8, &word.to_le_bytes());
        }
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Copies `len` bytes at `src` into a slot.
    #[inline(always)]
    pub(crate) fn copy_to_log(&self, src: u64, dst: u64, len: u64) -> Result<()> {
        self.map.copy_within(src, dst, len)?;
        self.tell_range(dst, len)
    }

    pub(crate) fn copy(&self, src: u64, dst: u64, len: u64) -> Result<()> {
        self.mark(dst, len)?;
        self.copy_to_log(src, dst, len)
    }

    pub(crate) fn zero(&self, off: u64, len: u64) -> Result<()> {
        self.mark(off, len)?;
        self.map.zero(off, len)?;
        self.tell_range(off, len)
    }

    fn tell_range(&self, off: u64, len: u64) -> Result<()> {
        if self.needs.stores {
            let mut bytes = vec![0; len as usize];
            self.map.copy_out(off, &mut bytes)?;
            self.medium.stored(off, &bytes);
        }
        Ok(())
    }

    /// Sets bits; returns the word before.
    #[inline(always)]
    pub(crate) fn fetch_or(&self, off: u64, bits: u64) -> Result<u64> {
        self.mark(off, 8)?;
        let old = self.map.atomic64(off)?.fetch_or(bits, Ordering::AcqRel);
        self.tell(off, &(old | bits).to_le_bytes());
        Ok(old)
    }

    /// Clears bits; returns the word before.
    #[inline(always)]
    pub(crate) fn fetch_clear(&self, off: u64, bits: u64) -> Result<u64> {
        self.mark(off, 8)?;
        let old = self.map.atomic64(off)?.fetch_and(!bits, Ordering::AcqRel);
        self.tell(off, &(old & !bits).to_le_bytes());
        Ok(old)
    }

    /// The atomic commit of one word (Conquest, 3.5): durable when it returns, whole or not at all.
    /// For words that no transaction touches at the same time.
    pub fn commit_word(&self, off: Off<u64>, word: u64) -> Result<()> {
        self.store_word(off.raw(), word)?;
        self.persist(off.raw(), 8);
        Ok(())
    }

    /// Replaces a word by another if it still is `old`; durable when it returns true. For links that are
    /// made once and by whoever comes first, outside transactions.
    pub fn install_word(&self, off: Off<u64>, old: u64, new: u64) -> Result<bool> {
        self.mark(off.raw(), 8)?;
        let done =
            self.map.atomic64(off.raw())?.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            self.tell(off.raw(), &new.to_le_bytes());
            self.persist(off.raw(), 8);
        }
        Ok(done)
    }

    /// The same for a byte. Not flushed: durable with the next flush of its line.
    #[inline(always)]
    pub fn install_byte(&self, off: Off<u8>, old: u8, new: u8) -> Result<bool> {
        self.mark(off.raw(), 1)?;
        let done = self.map.atomic8(off.raw())?.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            self.tell(off.raw(), &[new]);
        }
        Ok(done)
    }

    /// Stores a byte that no transaction touches at the same time; durable when it returns.
    #[inline(always)]
    pub fn commit_byte(&self, off: Off<u8>, byte: u8) -> Result<()> {
        self.mark(off.raw(), 1)?;
        self.map.atomic8(off.raw())?.store(byte, Ordering::Release);
        self.tell(off.raw(), &[byte]);
        self.persist(off.raw(), 1);
        Ok(())
    }

    // Durability.

    /// How flushed lines become durable, for people to read; `None`: stores are durable at once.
    pub fn write_back(&self) -> Option<&'static str> {
        self.medium.write_back()
    }

    #[inline(always)]
    pub(crate) fn flush(&self, off: u64, len: u64) {
        if self.needs.flush {
            self.flush_lines(off, len);
        }
    }

    /// Orders what was flushed before what is stored after.
    #[inline(always)]
    pub(crate) fn fence(&self) {
        if self.needs.flush {
            self.wait_for_lines();
        }
    }

    // Kept out of the way of media that need neither: inlined, they made every operation of those a third slower.

    #[cold]
    #[inline(never)]
    fn flush_lines(&self, off: u64, len: u64) {
        self.medium.flush(&self.map, off, len);
    }

    #[cold]
    #[inline(never)]
    fn wait_for_lines(&self) {
        self.medium.fence(&self.map);
    }

    /// Flush and fence: durable when it returns.
    #[inline(always)]
    pub(crate) fn persist(&self, off: u64, len: u64) {
        self.flush(off, len);
        self.fence();
    }
}
