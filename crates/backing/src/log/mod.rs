//! The redo log of a backing: the changes of a memory, commit by commit, in one ordered stream.
//!
//! | part | responsibility |
//! | --- | --- |
//! | this | the format of a log; its beginning and its end |
//! | `commit` | appending to it |
//! | `scan` | reading it back, trusting nothing |
//! | `compare` | records that are wrong in a copy |
//!
//! A *commit* is the difference between two instants at which no operation was under way: the lines (64 bytes)
//! that changed, as they are at the second one. Replaying commits in order over the memory of an earlier
//! instant gives exactly the memory of a later one; doing it twice does no harm.
//!
//! ```text
//! 0       header                  4 KiB
//! 4096    header, the same        4 KiB; while a generation begins, one copy is of the one before
//! 8192    records                 each begins at a multiple of 512 bytes
//!
//! record: header, 64 bytes, [`RawRecord`] | extents, 8 bytes each: first line (48 bits), lines - 1 (16)
//!         | the lines of the extents, in order
//! ```
//! A commit is one record or several, the last of which says so. Records carry the log's generation, the number of
//! their commit, and the checksum of the record before. So leftovers of an earlier generation are never taken for a
//! part of this one, and a record that is missing in the middle is noticed. They also carry the generation's *nonce*, a
//! random number that is nowhere else: data of programs lies in the log as it is, and could look like a record
//! otherwise. And they carry the *writer*, a random number of the memory that wrote them: a memory that the log has
//! left behind finds commits of another writer behind its own last one.
//!
//! Ordered steps of a commit:
//! 1. Its records are written behind the last commit; no sector of an earlier commit is written again. (Else
//!    a torn write could damage a durable commit.)
//! 2. Flush. Only then is it durable, and only then may the next commit be written. (So a commit that does
//!    not read back whole was never acknowledged, unless a later one does: then the log has a hole.)
//!
//! Ordered steps of a new generation, when an image holds all commits of the log:
//! 0. If the log is to be longer, its last sector is written and flushed. (Else a header could be durable that
//!    promises bytes which cannot be read.)
//! 1. The header is written over one copy, at 0 for an even generation. (Until it is durable the other one holds, and
//!    is right: its commits are in the image, and replaying them does no harm.)
//! 2. Flush. (Else records of the new generation could be durable before its header, and be ignored.)
//! 3. The header is written over the other copy. (Else, were one damaged later, the generation before would be taken
//!    for this one, and this one's commits be ignored without a word.)
//!
//! A write or flush that failed is not tried again: the kernel may have dropped the pages it could not write
//! and report success the second time. The log refuses everything after it.

mod commit;
mod compare;
mod scan;

use std::io;
use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use pram::error::{Error, Result};
use pram::memory::fingerprint;
use pram::random;
use scan::{follows, last_of, newer_header, read_header, Found, Scan, Surveyed};

use crate::disk::{read_places, Attempts, OneCopy};
pub use crate::disk::{Disk, SECTOR};
pub use commit::Commit;
pub use compare::Inventory;
pub use scan::Survey;

/// The unit of marks and of the log: a cache line.
pub use pram::mem::LINE;
/// Where records begin.
pub const RECORDS: u64 = 8192;
/// Most bytes of a record, its header and padding included.
pub const MAX_RECORD: u64 = 1 << 20;
/// Smallest log: a few of the largest records.
pub const MIN_CAPACITY: u64 = RECORDS + 4 * MAX_RECORD;
/// The generation of a log that has never begun anew.
pub const FIRST: u64 = 1;

const HEADER_AT: [u64; 2] = [0, 4096];
const MAGIC: [u8; 8] = *b"CQ-RLOG\n";
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"CQRL");
const VERSION: u32 = 3;
/// Most lines of an extent.
const MAX_LINES: u64 = 1 << 16;

/// The header, as it lies at offsets 0 and 4096.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawLog {
    pub magic: [u8; 8],
    pub version: u32,
    /// Bytes per line.
    pub line: u32,
    /// Of the memory, as is the fingerprint.
    pub uuid: [u8; 16],
    pub fingerprint: u64,
    pub generation: u64,
    /// The commit that the first record belongs to.
    pub first: u64,
    /// Bytes of the log, the headers included.
    pub capacity: u64,
    /// Random, in each record of the generation.
    pub nonce: u64,
    /// Random, of the backing that the log is a part of: the same in all its generations.
    pub lineage: u32,
    /// CRC-32C of the bytes before.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawLog>() == 80);

/// The header of a record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawRecord {
    pub magic: u32,
    /// CRC-32C of the rest of the record.
    pub crc: u32,
    pub generation: u64,
    /// Number of the commit; 1 is the first of a pool's life.
    pub commit: u64,
    /// When the commit's instant was, nanoseconds since the epoch; in the last of its records, 0 in the others.
    pub time: i64,
    /// Bytes of the record without padding.
    pub len: u32,
    pub extents: u32,
    /// The `crc` of the record before in this generation, 0 for the first.
    pub before: u32,
    /// Records of this commit before this one.
    pub part: u32,
    /// Bit 0: the last of its commit. The others are 0.
    pub flags: u32,
    /// Random, of the memory whose changes these are: the same until that is lost.
    pub writer: u32,
    /// Of the generation.
    pub nonce: u64,
}
const _: () = assert!(size_of::<RawRecord>() == 64);

const HEAD: usize = size_of::<RawRecord>();
const LAST: u32 = 1;

/// The memory that a log belongs to. Its size does not identify it: it may have grown since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uuid: [u8; 16],
}

/// A commit, by number and instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Instant {
    pub commit: u64,
    /// Nanoseconds since the epoch.
    pub time: i64,
}

/// How a log began.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    /// Counts beginnings.
    pub generation: u64,
    /// The first commit.
    pub commit: u64,
    /// Of the backing.
    pub lineage: u32,
}

/// The position of a log: with it the next process goes on without reading the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Position {
    pub generation: u64,
    /// Bytes of the log, the headers included.
    pub capacity: u64,
    /// Where the next record goes.
    pub end: u64,
    /// Where the last record begins, 0 if there is none.
    pub tail: u64,
    /// The last commit that is durable.
    pub last: Instant,
    /// The checksum of the last record, 0 if there is none.
    pub before: u32,
    /// The writer of the next records.
    pub writer: u32,
    /// Of the generation.
    pub nonce: u64,
}
const _: () = assert!(size_of::<Position>() == 64);

impl Position {
    /// An empty log, after commit `last`.
    fn start(generation: u64, capacity: u64, nonce: u64, writer: u32, last: Instant) -> Position {
        Position { generation, capacity, end: RECORDS, tail: 0, last, before: 0, writer, nonce }
    }

    /// The same log when an image holds everything until `last`.
    pub fn spent(&self, last: Instant) -> Position {
        Position::start(self.generation, self.capacity, self.nonce, self.writer, last)
    }
}

fn new_writer() -> Result<u32> {
    random::bytes().map(u32::from_le_bytes)
}

/// A random number that tells one backing from all others.
pub fn new_lineage() -> Result<u32> {
    random::bytes().map(|bytes| u32::from_le_bytes(bytes).max(1))
}

/// The UUID of the memory that a log belongs to, and the lineage of its backing.
pub fn whose(disk: &impl Disk) -> Result<([u8; 16], u32)> {
    newer_header(disk).map(|raw| (raw.uuid, raw.lineage))
}

/// A log that commits can be appended to.
pub struct Log<D> {
    disk: D,
    id: Identity,
    at: Position,
    /// Where the last commit lies, if it was found by reading.
    found: Range<u64>,
    /// The last record of the commit before that, if it is in this log.
    prior: Option<(u64, u32)>,
    attempts: Attempts,
}

impl<D: Disk> Log<D> {
    /// Makes an empty log whose first commit follows `last`, of the backing of that lineage.
    pub fn create(disk: D, id: Identity, capacity: u64, last: Instant, lineage: u32) -> Result<Log<D>> {
        if capacity < MIN_CAPACITY {
            return Err(Error::Unusable(format!("a log of {capacity} bytes is too small: give it {MIN_CAPACITY}")));
        }
        let at = Position::start(FIRST - 1, capacity, 0, new_writer()?, last);
        let mut log = Log { disk, id, at, found: 0..0, prior: None, attempts: Attempts::default() };
        // An earlier header must not look like the other copy.
        log.attempts.ended("making the log", log.disk.write_all_at(&[0; RECORDS as usize], 0))?;
        log.begin_anew(last, capacity, lineage)?;
        Ok(log)
    }

    /// Bytes of the log's file that it may write to, by its header alone; a new generation may get more.
    pub fn extent(disk: &D) -> Result<u64> {
        Ok(scan::newer_header(disk)?.capacity)
    }

    /// How the log began.
    pub fn began(disk: &D, id: Identity) -> Result<Began> {
        let RawLog { generation, first, lineage, .. } = read_header(disk, id)?;
        Ok(Began { generation, commit: first, lineage })
    }

    /// Does the log lack even its first commit?
    pub fn is_empty(disk: &D, id: Identity) -> Result<bool> {
        let header = read_header(disk, id)?;
        Ok(Scan::over(&mut &*disk, &header).whole()?.is_none())
    }

    /// A log that need not be read, since the image holds everything until `last`: it can only begin anew.
    pub fn spent(disk: D, id: Identity, last: Instant) -> Result<Log<D>> {
        let RawLog { generation, capacity, nonce, .. } = read_header(&disk, id)?;
        let at = Position::start(generation, capacity, nonce, new_writer()?, last);
        Ok(Log { disk, id, at, found: 0..0, prior: None, attempts: Attempts::default() })
    }

    /// Opens a log and replays the commits that follow `from`, the instant of an image or of the log before:
    /// `apply(commit, offset, bytes)` gets their changes, in order, while the log is read; after an error they mean
    /// nothing. Records after the last whole commit were never acknowledged and are left out.
    pub fn open(
        disk: D,
        id: Identity,
        from: Instant,
        apply: impl FnMut(u64, u64, &[u8]) -> Result<()>,
    ) -> Result<Log<D>> {
        Log::open_until(disk, id, from, u64::MAX, apply)
    }

    /// The same for a log that ends with commit `until`, because another one goes on from there: the writer of a later
    /// commit here died before it counted. If the log ends with an earlier commit, the applied changes mean nothing.
    pub fn open_until(
        disk: D,
        id: Identity,
        from: Instant,
        until: u64,
        apply: impl FnMut(u64, u64, &[u8]) -> Result<()>,
    ) -> Result<Log<D>> {
        let header = follows(&disk, id, from)?;
        let found = scan::replay(&disk, &header, from.commit, until, apply)?;
        let last = last_of(&found, &header, from)?;
        let RawLog { capacity, generation, nonce, .. } = header;
        let Found { start, end, tail, before, prior, .. } = found;
        let at = Position { end, tail, before, ..Position::start(generation, capacity, nonce, new_writer()?, last) };
        Ok(Log { disk, id, at, found: start..end, prior, attempts: Attempts::default() })
    }

    /// Goes once through the commits that follow `from`, until `until`: `see(offset, length)` gets the ranges that they
    /// change, in order. Returns the last commit that is there, and where the records lie, to be read again by
    /// [`Survey::apply`].
    pub fn survey(
        disk: D,
        id: Identity,
        from: Instant,
        until: u64,
        mut see: impl FnMut(u64, u64),
    ) -> Result<(Instant, Survey<D>)> {
        let header = follows(&disk, id, from)?;
        let mut records = Vec::new();
        let found = Scan::over(&mut &disk, &header).all(until, |at, raw, record| {
            if raw.commit > from.commit {
                let (mut start, mut end) = (u64::MAX, 0);
                for (first, lines) in scan::extents(raw, record) {
                    (start, end) = (start.min(first * LINE), end.max((first + lines) * LINE));
                    see(first * LINE, lines * LINE);
                }
                records.push(Surveyed { at, crc: raw.crc, range: start..end });
            }
            Ok(())
        })?;
        Ok((last_of(&found, &header, from)?, Survey { disk, header, records }))
    }

    /// A log that has come to `at`, as the state in memory says; [`check`](Self::check) asks the disk.
    pub fn resume(disk: D, id: Identity, at: Position) -> Log<D> {
        Log { disk, id, at, found: 0..0, prior: None, attempts: Attempts::default() }
    }

    /// Takes the position to which another process has written the log.
    pub fn catch_up(&mut self, at: Position) {
        self.at = at;
    }

    /// Fails unless the disk has the position's generation and last record.
    pub fn check(&self) -> Result<()> {
        let header = read_header(&self.disk, self.id)?;
        let tail = match self.at.tail {
            0 => None,
            at => Scan::over(&mut &self.disk, &header).read(at, |raw| raw.crc == self.at.before)?,
        };
        let tail = tail.map_or((self.at.last.commit, 0), |raw| (raw.commit, raw.crc));
        let same = (header.generation, header.nonce) == (self.at.generation, self.at.nonce);
        if same && tail == (self.at.last.commit, self.at.before) {
            return Ok(());
        }
        // A copy that cannot be read may have it.
        let mut sector = [0; SECTOR as usize];
        for n in 0..self.disk.copies() {
            self.disk
                .read_copy_at(n, &mut sector, self.at.tail)
                .map_err(|e| Error::of_io("reading the log's end", &e))?;
        }
        Err(Error::Unusable(format!(
            "the log does not end with commit {}, as the pool's memory says: it is another or an older copy",
            self.at.last.commit
        )))
    }

    /// Where the log ends: a process of this memory may have died after it had written a commit, and before it had
    /// noted that. Fails if a commit of another writer follows the position.
    pub fn check_end(&self) -> Result<Position> {
        let header = read_header(&self.disk, self.id)?;
        self.own_end(Scan::after(&mut &self.disk, &header, &self.at))
    }

    /// [`check`](Self::check) of the log that takes over next. A process of this memory that died while it began that
    /// log anew (`swapping`) has left the old one, or a new one without commits; otherwise a new one is another
    /// memory's.
    pub fn check_next(&self, swapping: bool) -> Result<()> {
        let header = read_header(&self.disk, self.id)?;
        let is_new = header.generation == self.at.generation + 1;
        match (is_new, swapping) {
            (true, true) => self.own_end(Scan::over(&mut &self.disk, &header)).map(drop),
            (true, false) => Err(self.left_behind(header.first)),
            (false, _) => self.check(),
        }
    }

    /// Is there the beginning of an unfinished commit behind `end`?
    pub fn is_begun_behind(&self, end: u64) -> Result<bool> {
        let header = read_header(&self.disk, self.id)?;
        Ok(has_other_behind(&self.disk, &header, end) || Scan::over(&mut &self.disk, &header).is_begun(end)?)
    }

    /// Where commits of this memory end. Fails if any from here on has another writer.
    fn own_end(&self, mut scan: Scan) -> Result<Position> {
        let mut at = self.at;
        while let Some((tail, next)) = scan.whole()? {
            if next.writer != self.at.writer {
                return Err(self.left_behind(next.commit));
            }
            let last = Instant { commit: next.commit, time: next.time };
            at = Position { end: scan.end(), tail, last, before: next.crc, ..at };
        }
        Ok(at)
    }

    fn left_behind(&self, next: u64) -> Error {
        Error::Outdated(format!(
            "the pool was used without this memory, which ends with commit {}: the backing goes on with {next}",
            self.at.last.commit
        ))
    }

    pub fn position(&self) -> Position {
        self.at
    }

    /// The last commit that is durable here.
    pub fn last(&self) -> Instant {
        self.at.last
    }

    /// Bytes of records.
    pub fn used(&self) -> u64 {
        self.at.end - RECORDS
    }

    /// Bytes that a commit of `lines` lines in as many extents needs, the worst case.
    pub fn room_for(lines: u64) -> u64 {
        let per_record = (MAX_RECORD - HEAD as u64) / (LINE + 8);
        let records = lines.div_ceil(per_record).max(1);
        records * (HEAD as u64 + SECTOR) + lines * (LINE + 8)
    }

    /// Lines of a commit for which so many bytes suffice, in as many extents.
    pub fn lines_in(bytes: u64) -> u64 {
        let records = bytes.div_ceil(MAX_RECORD) + 1;
        bytes.saturating_sub(records * (HEAD as u64 + SECTOR)) / (LINE + 8)
    }

    /// Bytes that records can still take.
    pub fn left(&self) -> u64 {
        self.at.capacity - self.at.end
    }

    /// Is there room for a commit of `lines` lines?
    pub fn has_room(&self, lines: u64) -> bool {
        Self::room_for(lines) <= self.left()
    }

    /// Where the last commit lies that was found by reading: it may not be durable.
    pub fn found(&self) -> Range<u64> {
        self.found.clone()
    }

    /// Where the last record of the commit before that begins, and its checksum, if it was found here.
    pub fn prior(&self) -> Option<(u64, u32)> {
        self.prior
    }

    /// Does a log lack this record, since it ends before that commit? False for a log that is damaged there.
    pub fn ends_before(disk: &D, id: Identity, (at, crc): (u64, u32), commit: u64) -> bool {
        let Ok(header) = read_header(disk, id) else { return false };
        let there = Scan::over(&mut &*disk, &header).read(at, |raw| raw.crc == crc);
        // A record that this generation has begun there is damaged.
        let is_begun = Scan::over(&mut &*disk, &header).is_begun(at).unwrap_or(true);
        if is_begun || !matches!(there, Ok(None)) {
            return false;
        }
        let all = Scan::over(&mut &*disk, &header).all(u64::MAX, |_, _, _| Ok(()));
        all.is_ok_and(|found| found.last.commit < commit)
    }

    /// Makes the header and the found commit durable, also if their writer died before, or could not flush them, and
    /// removes the beginning of an unfinished commit behind it. (Else equal sectors of the next commit could complete
    /// the unfinished one, which would then stand in the next one's place after a power cut.)
    pub fn settle(disk: &D, id: Identity, found: Range<u64>) -> Result<()> {
        let header = read_header(disk, id)?;
        let begun =
            has_other_behind(disk, &header, found.end) || Scan::over(&mut &*disk, &header).is_begun(found.end)?;
        // Each from a copy that has it whole.
        let records = Scan::over(&mut &*disk, &header).records(found.clone())?;
        let again = || -> io::Result<()> {
            if begun {
                disk.write_all_at(&[0; SECTOR as usize], found.end)?;
            }
            HEADER_AT.iter().try_for_each(|at| disk.write_all_at(header.as_bytes(), *at))?;
            records.iter().try_for_each(|(at, record)| disk.write_all_at(record, *at))?;
            disk.flush()
        };
        again().map_err(|e| Error::of_io("writing the log's end again", &e))
    }

    /// If the disk has several copies, writes the header that was found to both places of all of them. (Else a copy
    /// could have the header of a generation that was about to begin, and be the only one that is left some day.)
    pub fn settle_copies(disk: &D, id: Identity) -> Result<()> {
        if disk.copies() < 2 {
            return Ok(());
        }
        let header = read_header(disk, id)?;
        let again = || -> io::Result<()> {
            // The place of the generation before last: it may have another header.
            for at in [header.generation, header.generation + 1].map(|n| HEADER_AT[(n % 2) as usize]) {
                disk.write_all_at(header.as_bytes(), at)?;
                disk.flush()?;
            }
            Ok(())
        };
        again().map_err(|e| Error::of_io("writing the log's header again", &e))
    }

    /// Writes an unreadable header again, from the state in memory, for a log whose commits do not count.
    pub fn write_header_again(disk: &D, id: Identity, at: &Position, first: u64, lineage: u32) -> Result<()> {
        let raw = header(id, at, first, lineage);
        let again = || {
            HEADER_AT.iter().try_for_each(|at| disk.write_all_at(raw.as_bytes(), *at))?;
            disk.flush()
        };
        again().map_err(|e| Error::of_io("writing the log's header again", &e))
    }

    /// Forgets all commits, since an image holds them, and begins anew after `last`, with room for `capacity`
    /// bytes.
    pub fn restart(&mut self, last: Instant, capacity: u64) -> Result<()> {
        let lineage = read_header(&self.disk, self.id)?.lineage;
        self.begin_anew(last, capacity, lineage)
    }

    fn begin_anew(&mut self, last: Instant, capacity: u64, lineage: u32) -> Result<()> {
        self.refuse_failed()?;
        if capacity > self.at.capacity {
            let last = self.disk.write_all_at(&[0; SECTOR as usize], capacity - SECTOR);
            self.attempts.ended_new("growing the log", last)?;
            self.attempts.ended("growing the log", self.disk.flush())?;
        }
        let (generation, nonce) = (self.at.generation + 1, u64::from_le_bytes(random::bytes()?));
        let at = Position::start(generation, capacity, nonce, self.at.writer, last);
        let raw = header(self.id, &at, last.commit + 1, lineage);
        // 1, 2 and 3 of a new generation.
        let [place, other] = [generation, generation + 1].map(|n| HEADER_AT[(n % 2) as usize]);
        let begin = |disk: &D| {
            disk.write_all_at(raw.as_bytes(), place)?;
            disk.flush()?;
            disk.write_all_at(raw.as_bytes(), other)
        };
        self.attempts.ended("beginning a new log", begin(&self.disk))?;
        self.at = at;
        self.disk.trim(capacity);
        Ok(())
    }

    fn refuse_failed(&self) -> Result<()> {
        self.attempts.refuse_failed("the log could not be written earlier; nothing more can be made durable")
    }
}

/// May another copy of the disk have records behind a commit that this copy lacks?
fn has_other_behind(disk: &impl Disk, header: &RawLog, end: u64) -> bool {
    disk.copies() > 1 && end >= RECORDS && end + SECTOR <= header.capacity
}

/// The header of a log that begins with the commit `first`.
fn header(id: Identity, at: &Position, first: u64, lineage: u32) -> RawLog {
    let Position { generation, capacity, nonce, .. } = *at;
    let (uuid, fingerprint, line) = (id.uuid, fingerprint(), LINE as u32);
    let mut raw = RawLog {
        magic: MAGIC,
        version: VERSION,
        line,
        uuid,
        fingerprint,
        generation,
        first,
        capacity,
        nonce,
        lineage,
        crc: 0,
    };
    raw.crc = header_crc(&raw);
    raw
}

fn header_crc(raw: &RawLog) -> u32 {
    crc32c::crc32c(&raw.as_bytes()[..std::mem::offset_of!(RawLog, crc)])
}

fn record_crc(record: &[u8]) -> u32 {
    crc32c::crc32c(&record[std::mem::offset_of!(RawRecord, generation)..])
}
