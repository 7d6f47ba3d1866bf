//! Reading a log back: its whole commits, and those that follow an image.
//!
//! The log is read once, in order. A commit counts when its last record is there, so the records before that are held.
//! Those of a commit that is too large to be held are read again.

use std::io;
use std::ops::Range;

use zerocopy::FromBytes;

use super::{
    header_crc, read_places, record_crc, Disk, Identity, Instant, Position, RawLog, RawRecord, HEAD, HEADER_AT, LAST,
    LINE, MAGIC, MAX_RECORD, MIN_CAPACITY, RECORDS, RECORD_MAGIC, SECTOR, VERSION,
};
use crate::readahead::{self, Source};
use pram::error::{Error, Result};
use pram::memory::{fingerprint, MAX_SIZE};

/// Bytes of a commit that are held until its last record has come.
const HELD: u64 = 64 << 20;

/// The header of a log in which `from` is followed by the next commit.
pub fn follows(disk: &impl Disk, id: Identity, from: Instant) -> Result<RawLog> {
    let header = read_header(disk, id)?;
    if header.first > from.commit + 1 {
        return Err(Error::Unusable(format!(
            "the log begins with commit {} but what is before it ends with {}: one of them is not this pool's newest; put the right one back",
            header.first, from.commit
        )));
    }
    Ok(header)
}

/// The last commit that was found in a log, which is not before `from`.
pub fn last_of(found: &Found, header: &RawLog, from: Instant) -> Result<Instant> {
    let last = match found.last.commit {
        0 => Instant { commit: header.first - 1, time: from.time },
        _ => found.last,
    };
    if last.commit < from.commit {
        return Err(Error::Unusable(format!(
            "the image is of commit {} but the log ends with {}: the log is an old copy; put the right one back",
            from.commit, last.commit
        )));
    }
    Ok(last)
}

/// Where the records of a log lie that have been read once, whole.
pub struct Survey<D> {
    pub(crate) disk: D,
    pub(crate) header: RawLog,
    pub(crate) records: Vec<Surveyed>,
}

pub struct Surveyed {
    pub at: u64,
    pub crc: u32,
    /// The bytes of the memory that its lines are among.
    pub range: Range<u64>,
}

impl<D: Disk> Survey<D> {
    /// Reads the records again that concern bytes of the memory in `wanted`, in order; gives all other bytes of those
    /// records too.
    pub fn apply(&self, wanted: Range<u64>, mut apply: impl FnMut(u64, &[u8])) -> Result<()> {
        let records = self.records.iter().filter(|r| r.range.start < wanted.end && wanted.start < r.range.end);
        let places = records.map(|record| (record.at, record.crc));
        read_again(&mut &self.disk, &self.header, places, |raw, record| {
            lines(raw, record).for_each(|(off, bytes)| apply(off, bytes));
            Ok(())
        })
    }
}

/// Reads records again: where they begin, and their checksums.
fn read_again(
    source: &mut dyn Source,
    header: &RawLog,
    places: impl Iterator<Item = (u64, u32)>,
    mut see: impl FnMut(&RawRecord, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut scan = Scan::over(source, header);
    for (at, crc) in places {
        let raw = scan.read(at, |raw| raw.crc == crc)?.ok_or_else(changed)?;
        see(&raw, &scan.buf)?;
    }
    Ok(())
}

fn changed() -> Error {
    Error::Unusable("the log changed while it was read".into())
}

/// Goes once through the commits until this one and applies those after `from`: see [`Log::open`](super::Log::open).
pub fn replay<D: Disk>(
    disk: &D,
    header: &RawLog,
    from: u64,
    until: u64,
    mut apply: impl FnMut(u64, u64, &[u8]) -> Result<()>,
) -> Result<Found> {
    let mut take =
        |raw: &RawRecord, record: &[u8]| lines(raw, record).try_for_each(|(off, bytes)| apply(raw.commit, off, bytes));
    // If another log goes on, all commits are whole, or the replay is in vain.
    let all_count = until != u64::MAX;
    let mut held = Held::default();
    readahead::stream(disk, RECORDS..header.capacity, |source| {
        Scan::over(source, header).all(until, |at, raw, record| {
            let last = raw.flags & LAST != 0;
            match () {
                () if raw.commit <= from => Ok(()),
                () if all_count || (raw.part == 0 && last) => take(raw, record),
                () => {
                    held.push(at, raw, record);
                    if last {
                        std::mem::take(&mut held).each(disk, header, &mut take)?;
                    }
                    Ok(())
                }
            }
        })
    })
}

/// The records of a commit whose end has not come.
#[derive(Default)]
struct Held {
    /// Where they begin, and their checksums.
    places: Vec<(u64, u32)>,
    records: Vec<(RawRecord, Vec<u8>)>,
    bytes: u64,
}

impl Held {
    fn push(&mut self, at: u64, raw: &RawRecord, record: &[u8]) {
        self.places.push((at, raw.crc));
        self.bytes += u64::from(raw.len);
        match self.bytes <= HELD {
            true => self.records.push((*raw, record.to_vec())),
            false => self.records.clear(),
        }
    }

    fn each(
        self,
        disk: &impl Disk,
        header: &RawLog,
        take: &mut impl FnMut(&RawRecord, &[u8]) -> Result<()>,
    ) -> Result<()> {
        match self.bytes <= HELD {
            true => self.records.iter().try_for_each(|(raw, record)| take(raw, record)),
            false => read_again(&mut { disk }, header, self.places.into_iter(), take),
        }
    }
}

/// The end of a log, as a scan found it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The last whole commit; number 0 if there is none.
    pub last: Instant,
    /// Where it begins and ends, and where its last record begins and the checksum of that.
    pub start: u64,
    pub end: u64,
    pub tail: u64,
    pub before: u32,
    /// Where the last record of the commit before it begins, if that is in this log, and its checksum.
    pub prior: Option<(u64, u32)>,
}

/// Goes through the records and trusts nothing in them.
pub struct Scan<'s> {
    source: &'s mut dyn Source,
    header: &'s RawLog,
    at: u64,
    before: u32,
    /// The commit and part that come next.
    commit: u64,
    part: u32,
    buf: Vec<u8>,
}

impl<'s> Scan<'s> {
    pub fn over(source: &'s mut dyn Source, header: &'s RawLog) -> Self {
        Scan { source, header, at: RECORDS, before: 0, commit: header.first, part: 0, buf: Vec::new() }
    }

    /// Begins where a log ends, as the state in memory says.
    pub fn after(source: &'s mut dyn Source, header: &'s RawLog, at: &Position) -> Self {
        Scan { at: at.end, before: at.before, commit: at.last.commit + 1, ..Scan::over(source, header) }
    }

    /// The last record of the next commit and where that begins, if all of it is there.
    pub fn whole(&mut self) -> Result<Option<(u64, RawRecord)>> {
        loop {
            let at = self.at;
            match self.next()? {
                Some(raw) if raw.flags & LAST == 0 => {}
                found => return Ok(found.map(|raw| (at, raw))),
            }
        }
    }

    /// Does a possible record of this generation begin at `at`? It need not be whole.
    pub fn is_begun(&mut self, at: u64) -> Result<bool> {
        if at < RECORDS || at + SECTOR > self.header.capacity {
            return Ok(false);
        }
        let mut sector = [0; SECTOR as usize];
        let copies = self.source.copies();
        let mut read = self.source.read_exact_at(&mut sector, at);
        for copy in (0..copies).filter(|_| copies > 1) {
            if read.is_err() {
                read = self.source.read_copy_at(Some(copy), &mut sector, at);
            }
        }
        read.map_err(|e| Error::of_io(&format!("reading the log at byte {at}"), &e))?;
        Ok(self.head(&sector, at).is_some())
    }

    /// Goes through all records, without looking for a hole behind them.
    pub fn each(mut self, mut see: impl FnMut(u64, &RawRecord)) -> Result<()> {
        loop {
            let at = self.at;
            match self.next()? {
                Some(raw) => see(at, &raw),
                None => return Ok(()),
            }
        }
    }

    /// The end of the records that have been read.
    pub fn end(&self) -> u64 {
        self.at
    }

    /// Finds the last whole commit, at most `until`; if it is an earlier one, makes sure that none comes after a hole.
    /// `see` gets the offset of each record, its header and all of it.
    pub fn all(mut self, until: u64, mut see: impl FnMut(u64, &RawRecord, &[u8]) -> Result<()>) -> Result<Found> {
        let mut found =
            Found { last: Instant::default(), start: RECORDS, end: RECORDS, tail: 0, before: 0, prior: None };
        let (mut start, mut tail) = (self.at, self.at);
        while let Some(raw) = self.next()? {
            see(tail, &raw, &self.buf)?;
            if raw.flags & LAST != 0 {
                let last = Instant { commit: raw.commit, time: raw.time };
                let prior = (found.tail != 0).then_some((found.tail, found.before));
                found = Found { last, start, end: self.at, tail, before: self.before, prior };
                start = self.at;
                if raw.commit == until {
                    return Ok(found);
                }
            }
            tail = self.at;
        }
        self.refuse_hole(&found)?;
        Ok(found)
    }

    /// Fails if there is a later commit than the one that should be here.
    fn refuse_hole(&mut self, found: &Found) -> Result<()> {
        let copies = self.source.copies();
        let mut unread = self.refuse_hole_in(None, found)?;
        for copy in (0..copies).filter(|_| copies > 1) {
            // Another copy may be readable where this one is not.
            let other = self.refuse_hole_in(Some(copy), found)?;
            unread = unread.and(other);
        }
        unread.map_or(Ok(()), Err)
    }

    /// The same for one copy; returns the error of a part that could not be read.
    fn refuse_hole_in(&mut self, copy: Option<usize>, found: &Found) -> Result<Option<Error>> {
        let (lost, start) = (self.commit, self.at);
        let (mut at, mut unread) = (start, None);
        let mut piece = vec![0; MAX_RECORD as usize];
        while at + SECTOR <= self.header.capacity {
            let whole = (self.header.capacity - at) / SECTOR * SECTOR;
            let piece = &mut piece[..whole.min(MAX_RECORD) as usize];
            if let Err(e) = self.source.read_copy_at(copy, piece, at) {
                unread = Some(Error::of_io(&format!("reading the log at byte {at}"), &e));
                piece.fill(0);
            }
            for (sector, at) in piece.chunks_exact(SECTOR as usize).zip((at..).step_by(SECTOR as usize)) {
                // Leftovers of earlier generations look like records too, and are many: none of them is read again.
                if self.head(sector, at).is_none_or(|raw| raw.commit <= lost) {
                    continue;
                }
                if let Some(raw) = self.read(at, |raw| raw.commit > lost)? {
                    return Err(Error::Unusable(format!(
                        "the log has a hole: commit {lost} at byte {start} is damaged, but commit {} at byte {at} is \
                         there; what is before the hole is as of {} ns after the epoch",
                        raw.commit, found.last.time
                    )));
                }
            }
            at += piece.len() as u64;
        }
        Ok(unread)
    }

    /// The next record, if the one that belongs here is there.
    fn next(&mut self) -> Result<Option<RawRecord>> {
        let next = (self.commit, self.part, self.before);
        let Some(raw) = self.read(self.at, |raw| (raw.commit, raw.part, raw.before) == next)? else { return Ok(None) };
        self.at += u64::from(raw.len).next_multiple_of(SECTOR);
        self.before = raw.crc;
        (self.commit, self.part) =
            if raw.flags & LAST != 0 { (self.commit + 1, 0) } else { (self.commit, self.part + 1) };
        Ok(Some(raw))
    }

    /// The records in a stretch of the log: the offset and all bytes of each, padding too. Fails unless the stretch is
    /// all records.
    pub fn records(&mut self, range: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>> {
        let (mut records, mut at) = (Vec::new(), range.start);
        while at < range.end {
            self.read(at, |_| true)?.ok_or_else(changed)?;
            let mut record = self.buf.clone();
            record.resize(record.len().next_multiple_of(SECTOR as usize), 0);
            let len = record.len() as u64;
            records.push((at, record));
            at += len;
        }
        Ok(records)
    }

    /// The record at `at` that is wanted, from the first copy that has it whole.
    pub fn read(&mut self, at: u64, is_wanted: impl Fn(&RawRecord) -> bool) -> Result<Option<RawRecord>> {
        let mut found = self.read_from(None, at);
        if matches!(&found, Ok(Some(raw)) if is_wanted(raw)) {
            return found;
        }
        let copies = self.source.copies();
        for copy in (0..copies).filter(|_| copies > 1) {
            let other = self.read_from(Some(copy), at);
            if matches!(&other, Ok(Some(raw)) if is_wanted(raw)) {
                self.source.note_wrong();
                return other;
            }
            // Another copy may be readable where this one is not.
            found = found.or(other);
        }
        found.map(|_| None)
    }

    /// The gate where a record becomes trusted: one of this generation, whole, at `at`.
    fn read_from(&mut self, copy: Option<usize>, at: u64) -> Result<Option<RawRecord>> {
        let unread = |e: io::Error| Error::of_io(&format!("reading the log at byte {at}"), &e);
        if at + SECTOR > self.header.capacity {
            return Ok(None);
        }
        self.buf.resize(SECTOR as usize, 0);
        self.source.read_copy_at(copy, &mut self.buf, at).map_err(unread)?;
        let Some(raw) = self.head(&self.buf, at) else { return Ok(None) };
        if u64::from(raw.len) > SECTOR {
            self.buf.resize(raw.len as usize, 0);
            self.source.read_copy_at(copy, &mut self.buf[SECTOR as usize..], at + SECTOR).map_err(unread)?;
        }
        self.buf.truncate(raw.len as usize);
        Ok((raw.crc == record_crc(&self.buf) && self.extents_fit(&raw)).then_some(raw))
    }

    /// The header of a possible record of this generation at `at`, by its first sector.
    fn head(&self, sector: &[u8], at: u64) -> Option<RawRecord> {
        let (raw, _) = RawRecord::read_from_prefix(sector).ok()?;
        let len = u64::from(raw.len);
        let fits = raw.magic == RECORD_MAGIC
            && (raw.generation, raw.nonce) == (self.header.generation, self.header.nonce)
            && (HEAD as u64..=MAX_RECORD).contains(&len)
            && at + len <= self.header.capacity;
        fits.then_some(raw)
    }

    /// Do the extents name as many lines as the record holds, all inside the memory?
    fn extents_fit(&self, raw: &RawRecord) -> bool {
        let Some(extents) = self.buf[HEAD..].get(..raw.extents as usize * 8) else { return false };
        let mut bytes = 0;
        for (first, lines) in decode(extents) {
            if first + lines > MAX_SIZE / LINE {
                return false;
            }
            bytes += lines * LINE;
        }
        HEAD as u64 + extents.len() as u64 + bytes == u64::from(raw.len)
    }
}

/// Offset and bytes of each extent of a record that is whole.
fn lines<'r>(raw: &RawRecord, record: &'r [u8]) -> impl Iterator<Item = (u64, &'r [u8])> {
    let (extents, mut lines) = record[HEAD..raw.len as usize].split_at(raw.extents as usize * 8);
    decode(extents).map(move |(first, count)| {
        let (now, later) = lines.split_at((count * LINE) as usize);
        lines = later;
        (first * LINE, now)
    })
}

/// First line and number of lines of each extent of a record that is whole.
pub fn extents<'r>(raw: &RawRecord, record: &'r [u8]) -> impl Iterator<Item = (u64, u64)> + 'r {
    decode(&record[HEAD..HEAD + raw.extents as usize * 8])
}

/// First line and number of lines of each extent.
fn decode(extents: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    extents.chunks_exact(8).map(|extent| {
        let word = extent.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        (word & ((1 << 48) - 1), (word >> 48) + 1)
    })
}

/// The gate where the header becomes trusted.
pub fn read_header(disk: &impl Disk, id: Identity) -> Result<RawLog> {
    let raw = newer_header(disk)?;
    if raw.uuid != id.uuid {
        return bad("it belongs to another pool; put the pool's own log back".into());
    }
    if raw.fingerprint != fingerprint() || u64::from(raw.line) != LINE {
        return bad("it was made by a build with another layout".into());
    }
    if raw.capacity < MIN_CAPACITY || raw.first == 0 {
        return bad("its header makes no sense".into());
    }
    Ok(raw)
}

/// The newer of two copies, of any pool.
pub fn newer_header(disk: &impl Disk) -> Result<RawLog> {
    let (places, unread) = read_places::<RawLog>(disk, HEADER_AT, "reading the log's header");
    let whole =
        |(_, raw): &&(usize, RawLog)| raw.magic == MAGIC && raw.version == VERSION && raw.crc == header_crc(raw);
    if let Some((_, raw)) = places.iter().filter(whole).max_by_key(|(_, raw)| raw.generation) {
        return Ok(*raw);
    }
    // The place of the checksum depends on the version.
    match (places.iter().find(|(_, raw)| raw.magic == MAGIC && raw.version != VERSION), unread) {
        (Some((_, raw)), _) => {
            bad(format!("it has format version {}, this program reads version {VERSION}", raw.version))
        }
        (None, Some(e)) => Err(e),
        (None, None) => bad("it has no header; put the pool's own log back".into()),
    }
}

fn bad(why: String) -> Result<RawLog> {
    Err(Error::Unusable(format!("the log cannot be used: {why}")))
}
