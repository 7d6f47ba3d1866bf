//! A region: geometry, header, typed access, and the one place that stores to persistent RAM.
//!
//! ```text
//! 0          header, copy A            4 KiB, immutable after format
//! 4096       header, copy B            4 KiB
//! 8192       root words                8 KiB, 1024 words of the layer above
//! 16384      slots                     `slots` × 32 KiB, undo logs
//! ...        segment table             `segments` × 16 B
//! ...        segments                  64 KiB each, aligned
//! ```
//! Geometry is a function of the size alone ([`Geometry::of`]); the header repeats it for recognition.

use std::sync::atomic::{compiler_fence, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::dirty::Dirty;
use crate::error::{Error, Result};
use crate::heap::{SegEntry, CLASSES};
use crate::medium::{Medium, MediumKind, Needs};
use crate::mem::{Mapping, Pod};
use crate::off::Off;

/// Bytes per segment, the unit in which the heap takes memory.
pub const SEGMENT: u64 = 64 << 10;
/// Smallest region.
pub const MIN_SIZE: u64 = 1 << 20;
/// Largest region: offsets have 47 bits, which leaves 17 for whoever packs them.
pub const MAX_SIZE: u64 = 1 << 47;
/// Number of root words.
pub const ROOTS: u64 = 1024;
/// The root word that says whether the last process left properly: 0 closed, 1 open.
pub(crate) const OPEN_ROOT: u64 = ROOTS - 1;
/// The root word that names the commit which the copy on disk was of when the region was closed, with nothing changed
/// since; else 0.
pub(crate) const COPY_ROOT: u64 = ROOTS - 2;
/// The root word that counts the commits to the copy which have been begun.
const BEGUN_ROOT: u64 = ROOTS - 3;
/// The root word that says which copy that is, by its lineage, and in its upper half how its last record ends.
pub(crate) const LINEAGE_ROOT: u64 = ROOTS - 4;

/// How a region stands to the copy on disk that it was used with last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The commit that the copy ended with when the region was closed, if that held all of it.
    pub closed: u64,
    /// The last commit that was begun: a copy that has more was written by another region, or by a newer state of this
    /// one. 0 if nobody knows.
    pub begun: u64,
    /// Of the copy.
    pub lineage: u32,
    /// The checksum of the copy's last record when the region was closed.
    pub tail: u32,
}

const PAGE: u64 = 4096;
/// Bytes from which on stores go past the caches, where that makes them durable: a few lines are cheaper to write back.
const MUCH: usize = 512;
const HEADER_AT: [u64; 2] = [0, PAGE];
/// Bytes that the two copies of the header take.
pub const HEADERS: usize = 2 * PAGE as usize;
const ROOTS_AT: u64 = HEADERS as u64;
const SLOTS_AT: u64 = ROOTS_AT + ROOTS * 8;
/// Bytes per transaction slot: header word and undo log.
pub const SLOT: u64 = 32 << 10;
const MAX_SLOTS: u64 = 64;

const MAGIC: [u8; 8] = *b"CQ-PRAM\n";
const VERSION: u32 = 1;

/// What lies at offsets 0 and 4096.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawHeader {
    pub magic: [u8; 8],
    pub version: u32,
    pub medium: u32,
    /// Of all constants that fix the layout: a build that would disagree is refused.
    pub fingerprint: u64,
    pub uuid: [u8; 16],
    /// Bytes of the region.
    pub size: u64,
    pub slots: u64,
    pub segments: u64,
    /// Nanoseconds since the epoch.
    pub created: i64,
    /// Version of what the layer above keeps in the region.
    pub app_version: u32,
    /// CRC-32C of the bytes before.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawHeader>() == 80);

/// Where the parts of a region of some size lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub size: u64,
    pub slots: u64,
    /// Offset of the segment table.
    pub table: u64,
    /// Offset of the first segment.
    pub first: u64,
    pub segments: u64,
}

impl Geometry {
    /// The geometry of a region of `size` bytes, rounded down to whole segments.
    pub fn of(size: u64) -> Result<Geometry> {
        if size < MIN_SIZE {
            return Err(Error::Unusable(format!(
                "{size} bytes are too few for persistent RAM: give at least {} KiB",
                MIN_SIZE >> 10
            )));
        }
        if size > MAX_SIZE {
            return Err(Error::Unusable(format!("{size} bytes are more than the {} TiB supported", MAX_SIZE >> 40)));
        }
        let slots = (size / (512 << 10)).clamp(2, MAX_SLOTS);
        let table = SLOTS_AT + slots * SLOT;
        let room = (size - table) / (SEGMENT + size_of::<SegEntry>() as u64);
        let first = (table + room * size_of::<SegEntry>() as u64).next_multiple_of(SEGMENT);
        // Never more than the table has entries for, also where rounding left a segment over.
        let segments = ((size - first) / SEGMENT).min(room);
        Ok(Geometry { size, slots, table, first, segments })
    }

    pub fn slot(&self, n: u32) -> u64 {
        SLOTS_AT + u64::from(n) * SLOT
    }

    /// Offset of segment `n`.
    pub fn segment(&self, n: u64) -> u64 {
        self.first + n * SEGMENT
    }

    /// The segment that holds `off`, if any does.
    #[inline(always)]
    pub fn segment_of(&self, off: u64) -> Option<u64> {
        let n = off.checked_sub(self.first)? / SEGMENT;
        (n < self.segments).then_some(n)
    }

    pub fn entry(&self, segment: u64) -> Off<SegEntry> {
        Off::<SegEntry>::new(self.table).index(segment)
    }
}

/// A number that changes with every constant of this layout.
pub(crate) fn fingerprint() -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |n: u64| h = (h ^ n).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    for n in [SEGMENT, SLOT, ROOTS, MAX_SLOTS, size_of::<RawHeader>() as u64, size_of::<SegEntry>() as u64] {
        add(n);
    }
    CLASSES.iter().for_each(|c| add(u64::from(c.size) << 32 | u64::from(c.base)));
    h
}

/// What the header says about a region.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub uuid: [u8; 16],
    pub medium: MediumKind,
    pub created: i64,
    pub app_version: u32,
    pub size: u64,
}

/// A mapped region.
pub struct Region {
    map: Mapping,
    medium: Box<dyn Medium>,
    needs: Needs,
    /// What has changed since the last commit, if the region has a copy on disk.
    marks: Option<Dirty>,
    pub geo: Geometry,
    pub info: Info,
}

impl Region {
    /// Makes `map`, which must be zeroed, into an empty region.
    pub fn format(
        map: Mapping,
        medium: Box<dyn Medium>,
        uuid: [u8; 16],
        app_version: u32,
        created: i64,
    ) -> Result<Region> {
        let geo = Geometry::of(map.len())?;
        let mut raw = RawHeader {
            magic: MAGIC,
            version: VERSION,
            medium: medium.kind() as u32,
            fingerprint: fingerprint(),
            uuid,
            size: geo.size,
            slots: geo.slots,
            segments: geo.segments,
            created,
            app_version,
            crc: 0,
        };
        raw.crc = header_crc(&raw);
        let info = Info { uuid, medium: medium.kind(), created, app_version, size: geo.size };
        let region = Region { map, needs: medium.needs(), medium, marks: None, geo, info };
        for at in HEADER_AT {
            region.store(at, raw.as_bytes())?;
            region.persist(at, size_of::<RawHeader>() as u64);
        }
        Ok(region)
    }

    /// Opens the region in `map`. A damaged header copy is mended from the other.
    pub fn open(map: Mapping, medium: Box<dyn Medium>) -> Result<Region> {
        let (good, bad) = find_header(&map)?;
        let (geo, info) = examine(&map, &good)?;
        info.medium.expect(medium.kind())?;
        let region = Region { map, needs: medium.needs(), medium, marks: None, geo, info };
        if let Some(at) = bad {
            tracing::warn!("header copy at {at} was damaged; mended from the other");
            region.store(at, good.as_bytes())?;
            region.persist(at, size_of::<RawHeader>() as u64);
        }
        Ok(region)
    }

    /// The size and medium that a region's header at the start of `bytes` ([`HEADERS`] are enough) claims, if it is one.
    pub fn probe(bytes: &[u8]) -> Result<(u64, MediumKind)> {
        let mut last = too_short();
        for at in HEADER_AT {
            match bytes.get(at as usize..).and_then(|b| RawHeader::read_from_prefix(b).ok()) {
                Some((raw, _)) => match check_header(raw) {
                    Ok(h) => return Ok((h.size, medium_of(&h)?)),
                    Err(e) if at == 0 => last = e,
                    Err(_) => {}
                },
                None => continue,
            }
        }
        Err(last)
    }

    /// From now on stores are marked. Before anybody works with the region.
    pub fn track(&mut self, marks: Dirty) {
        self.marks = Some(marks);
    }

    /// From now on stores are not marked: there is no copy that would need it.
    pub(crate) fn untrack(&mut self) {
        self.marks = None;
    }

    /// The marks, if stores are marked.
    pub fn marks(&self) -> Option<&Dirty> {
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
    pub(crate) fn wait_by(&self, sleep: impl FnOnce()) -> bool {
        let waited = self.medium.waits();
        if !waited {
            sleep();
        }
        waited
    }

    /// Between two steps that are not stores to the region.
    #[cold]
    pub(crate) fn step(&self) {
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

    /// From here on the region is not what a copy holds.
    pub(crate) fn forget_copy(&self) -> Result<()> {
        self.note(COPY_ROOT, 0)
    }

    /// How the region stands to its copy.
    pub(crate) fn standing(&self) -> Result<Standing> {
        let word = |n| self.load(self.root(n));
        let lineage = word(LINEAGE_ROOT)?;
        let (lineage, tail) = (lineage as u32, (lineage >> 32) as u32);
        Ok(Standing { closed: word(COPY_ROOT)?, begun: word(BEGUN_ROOT)?, lineage, tail })
    }

    /// Notes it. 1. All but whether it was closed. 2. That.
    pub(crate) fn note_standing(&self, s: Standing) -> Result<()> {
        self.note(LINEAGE_ROOT, u64::from(s.tail) << 32 | u64::from(s.lineage))?;
        self.note_begun(s.begun)?;
        self.note(COPY_ROOT, s.closed)
    }

    /// A commit to the copy begins.
    pub(crate) fn note_begun(&self, commit: u64) -> Result<()> {
        self.note(BEGUN_ROOT, commit)
    }

    /// Changes a word of which the copy knows nothing.
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

    /// Undo logs are left out: no transaction is open at the instants that a copy is of.
    #[inline(never)]
    fn mark_anew(&self, marks: &Dirty, off: u64, len: u64) -> Result<()> {
        if (SLOTS_AT..self.geo.table).contains(&off) {
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

    /// Stores a word of a slot: of no interest to a copy, and not marked.
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

fn too_short() -> Error {
    Error::Unusable("the region is too short to hold a header: it is truncated or not a region".into())
}

fn medium_of(raw: &RawHeader) -> Result<MediumKind> {
    MediumKind::from_number(raw.medium)
        .ok_or_else(|| Error::Unusable(format!("medium {} is unknown to this version", raw.medium)))
}

/// The header of the region in `map`, and where a damaged copy of it lies.
fn find_header(map: &Mapping) -> Result<(RawHeader, Option<u64>)> {
    match HEADER_AT.map(|at| map.read::<RawHeader>(at).map_err(|_| too_short()).and_then(check_header)) {
        [Ok(a), Ok(b)] if a.as_bytes() == b.as_bytes() => Ok((a, None)),
        [Ok(a), _] => Ok((a, Some(HEADER_AT[1]))),
        [_, Ok(b)] => Ok((b, Some(HEADER_AT[0]))),
        [Err(e), _] => Err(e),
    }
}

/// What a header says, checked against the memory that it heads.
fn examine(map: &Mapping, raw: &RawHeader) -> Result<(Geometry, Info)> {
    let geo = Geometry::of(raw.size)?;
    if geo.slots != raw.slots || geo.segments != raw.segments {
        return Err(Error::Unusable("the region's geometry is not one this program makes".into()));
    }
    if map.len() < raw.size {
        return Err(Error::Unusable(format!(
            "the region is truncated: {} of {} bytes are there; restore it from an image (`conquest restore`)",
            map.len(),
            raw.size
        )));
    }
    let RawHeader { uuid, created, app_version, size, .. } = *raw;
    Ok((geo, Info { uuid, medium: medium_of(raw)?, created, app_version, size }))
}

/// Makes the closed region in `map` one for the medium `kind`: an image may come from another; was it? Not flushed.
pub fn adopt(map: &Mapping, kind: MediumKind) -> Result<(Info, bool)> {
    let (mut raw, _) = find_header(map)?;
    let other = raw.medium != kind as u32;
    if other {
        raw.medium = kind as u32;
        raw.crc = header_crc(&raw);
        for at in HEADER_AT {
            map.write(at, raw.as_bytes())?;
        }
    }
    Ok((examine(map, &raw)?.1, other))
}

/// Notes in a region that has been made from a copy how it stands to that.
pub(crate) fn note_made(map: &Mapping, lineage: u32, commit: u64) -> Result<()> {
    for (root, value) in [(LINEAGE_ROOT, u64::from(lineage)), (BEGUN_ROOT, commit), (COPY_ROOT, 0)] {
        map.write(ROOTS_AT + root * 8, &value.to_le_bytes())?;
    }
    Ok(())
}

fn header_crc(raw: &RawHeader) -> u32 {
    crc32c::crc32c(&raw.as_bytes()[..std::mem::offset_of!(RawHeader, crc)])
}

/// The gate where header bytes become trusted.
fn check_header(raw: RawHeader) -> Result<RawHeader> {
    let bad = |why: String| Err(Error::Unusable(why));
    if raw.as_bytes() == RawHeader::new_zeroed().as_bytes() {
        return bad(
            "the region is empty: never formatted, or its memory was lost; `conquest restore` makes it from an image, \
             `conquest import` from its copy"
                .into(),
        );
    }
    if raw.magic != MAGIC {
        return bad("not a Conquest region (wrong magic number)".into());
    }
    if raw.crc != header_crc(&raw) && raw.version != VERSION {
        return bad(format!(
            "the region has format version {}, this program reads version {VERSION}; or its header is damaged",
            raw.version
        ));
    }
    if raw.crc != header_crc(&raw) {
        return bad(
            "both copies of the region's header are damaged; restore it from an image (`conquest restore`)".into()
        );
    }
    if raw.version != VERSION {
        return bad(format!("the region has format version {}, this program reads version {VERSION}", raw.version));
    }
    if raw.fingerprint != fingerprint() {
        return bad(
            "the region was laid out by a build with other constants; use that build, or save and restore".into()
        );
    }
    Ok(raw)
}
