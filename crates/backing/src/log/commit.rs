//! A commit that is being written to the log.

use zerocopy::IntoBytes;

use super::{
    record_crc, Instant, Log, Position, RawRecord, HEAD, LAST, LINE, MAX_LINES, MAX_RECORD, RECORD_MAGIC, SECTOR,
};
use crate::disk::Disk;
use pram::error::{Error, Result};

/// Most bytes of records in one write to the disk: each write waits for the content that others are writing there.
const AT_ONCE: u64 = 4 << 20;
/// And the most as a part of the log: a short log writes each large record by itself.
const PART_OF_LOG: u64 = 16;

/// A commit that is being written. Dropping it leaves it out; its written records are ignored.
#[must_use = "a commit that is not finished is not there"]
pub struct Commit<'l, D: Disk> {
    log: &'l mut Log<D>,
    number: u64,
    part: u32,
    extents: Vec<u64>,
    lines: Vec<u8>,
    /// The last records, which are not on disk yet.
    records: Vec<u8>,
    /// Where the log ended before.
    start: Position,
    done: bool,
}

impl<D: Disk> Log<D> {
    /// Begins a commit. It is durable when [`Commit::finish`] returns.
    pub fn begin(&mut self) -> Result<Commit<'_, D>> {
        self.refuse_failed()?;
        let number = self.at.last.commit + 1;
        let (extents, lines, records) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Commit { number, part: 0, extents, lines, records, start: self.at, done: false, log: self })
    }
}

impl<D: Disk> Commit<'_, D> {
    /// Adds the lines at `off`. Both `off` and the length are multiples of [`LINE`].
    pub fn push(&mut self, off: u64, bytes: &[u8]) -> Result<()> {
        if off % LINE != 0 || bytes.len() as u64 % LINE != 0 {
            return Err(Error::BadAddress { off, len: bytes.len() as u64 });
        }
        let (mut line, mut rest) = (off / LINE, bytes);
        while !rest.is_empty() {
            let used = HEAD + (self.extents.len() + 1) * 8 + self.lines.len();
            let room = (MAX_RECORD as usize).saturating_sub(used) / LINE as usize;
            if room == 0 {
                self.write(0, 0)?;
                continue;
            }
            let n = room.min(rest.len() / LINE as usize).min(MAX_LINES as usize);
            let (now, later) = rest.split_at(n * LINE as usize);
            self.extents.push(line | (n as u64 - 1) << 48);
            self.lines.extend_from_slice(now);
            (line, rest) = (line + n as u64, later);
        }
        Ok(())
    }

    /// Writes the rest and makes all of it durable; `time` is that of the commit's instant, nanoseconds since the
    /// epoch.
    pub fn finish(mut self, time: i64) -> Result<Instant> {
        self.write(LAST, time)?;
        self.done = true;
        self.log.at.last = Instant { commit: self.number, time };
        Ok(self.log.at.last)
    }

    fn write(&mut self, flags: u32, time: i64) -> Result<()> {
        let len = HEAD + self.extents.len() * 8 + self.lines.len();
        let mut raw = RawRecord {
            magic: RECORD_MAGIC,
            crc: 0,
            generation: self.log.at.generation,
            commit: self.number,
            time,
            len: len as u32,
            extents: self.extents.len() as u32,
            before: self.log.at.before,
            part: self.part,
            flags,
            writer: self.log.at.writer,
            nonce: self.log.at.nonce,
        };
        let mut record = Vec::with_capacity(len.next_multiple_of(SECTOR as usize));
        record.extend_from_slice(raw.as_bytes());
        record.extend_from_slice(self.extents.as_bytes());
        record.append(&mut self.lines);
        self.extents.clear();
        raw.crc = record_crc(&record);
        record[..HEAD].copy_from_slice(raw.as_bytes());
        record.resize(len.next_multiple_of(SECTOR as usize), 0);

        let at = self.log.at.end;
        let end = at + record.len() as u64;
        if end > self.log.at.capacity {
            return Err(Error::RedoFull);
        }
        self.records.append(&mut record);
        let is_last = flags & LAST != 0;
        let most = (self.log.at.capacity / PART_OF_LOG).min(AT_ONCE);
        if is_last || self.records.len() as u64 >= most {
            let (from, mut flushed) = (end - self.records.len() as u64, Ok(()));
            let written = match is_last {
                false => self.log.disk.write_all_at(&self.records, from),
                true => self.log.disk.write_through(&self.records, from).map(|done| flushed = done),
            };
            self.log.attempts.ended_new("writing the log", written)?;
            self.log.attempts.ended("flushing the log", flushed)?;
            self.records.clear();
        }
        (self.log.at.end, self.log.at.tail, self.log.at.before) = (end, at, raw.crc);
        self.part += 1;
        Ok(())
    }
}

impl<D: Disk> Drop for Commit<'_, D> {
    fn drop(&mut self) {
        if !self.done {
            self.log.at = self.start;
        }
    }
}
