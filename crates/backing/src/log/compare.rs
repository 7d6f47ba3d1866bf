//! Records that are wrong in a copy.

use std::ops::Range;

use super::scan::{read_header, Scan};
use super::{header_crc, Disk, Identity, Log, OneCopy, RawLog, HEADER_AT, MAGIC, RECORDS, SECTOR};
use crate::disk::{places_agree, places_are_whole};
use crate::readahead;
use pram::error::{Error, Result};

/// Where the records of a log lie, by all copies together.
pub struct Inventory {
    header: RawLog,
    records: Vec<(Range<u64>, u32)>,
    /// Where the last commit begins.
    last: u64,
}

impl Inventory {
    pub fn of<D: Disk>(disk: &D, id: Identity) -> Result<Inventory> {
        let (header, mut records, mut last) = (read_header(disk, id)?, Vec::new(), RECORDS);
        readahead::stream(disk, RECORDS..header.capacity, |source| {
            Scan::over(source, &header).each(|at, raw| {
                if raw.part == 0 {
                    last = at;
                }
                records.push((at..at + u64::from(raw.len).next_multiple_of(SECTOR), raw.crc));
            })
        })?;
        Ok(Inventory { header, records, last })
    }

    /// Does a record begin at `at`?
    pub fn has(&self, at: u64) -> bool {
        self.records.iter().any(|(record, _)| record.start == at)
    }

    /// The end of the whole records.
    pub fn end(&self) -> u64 {
        self.records.last().map_or(RECORDS, |(at, _)| at.end)
    }

    /// Does the record at `at` belong to the last commit, which may have been under way in all copies when the machine
    /// stopped?
    pub fn is_last(&self, at: u64) -> bool {
        at >= self.last
    }

    pub fn bytes(&self) -> u64 {
        self.records.iter().map(|(at, _)| at.end - at.start).sum()
    }

    /// The records that are wrong in a copy, or cannot be read there, each with the copy.
    pub fn odd<D: Disk>(&self, disk: &D) -> Vec<(Range<u64>, usize)> {
        let mut odd = Vec::new();
        for n in (0..disk.copies()).filter(|_| disk.copies() > 1) {
            let one = OneCopy { disk, copy: Some(n) };
            let _ = readahead::stream(&one, RECORDS..self.header.capacity, |source| {
                let mut scan = Scan::over(source, &self.header);
                for (at, crc) in &self.records {
                    if !matches!(scan.read(at.start, |raw| raw.crc == *crc), Ok(Some(_))) {
                        odd.push((at.clone(), n));
                    }
                }
                Ok(())
            });
        }
        odd
    }

    /// Is the log still of the same generation?
    pub fn is_current<D: Disk>(&self, disk: &D, id: Identity) -> Result<bool> {
        let now = read_header(disk, id)?;
        Ok((now.generation, now.nonce) == (self.header.generation, self.header.nonce))
    }

    /// Writes a record anew from a copy that has it right; false where none has. Nobody commits meanwhile.
    pub fn mend<D: Disk>(&self, disk: &D, at: &Range<u64>) -> Result<bool> {
        let Ok(records) = Scan::over(&mut &*disk, &self.header).records(at.clone()) else { return Ok(false) };
        let write = |(at, record): &(u64, Vec<u8>)| disk.write_all_at(record, *at);
        records.iter().try_for_each(write).map_err(|e| Error::of_io("writing the log anew", &e))?;
        Ok(true)
    }
}

impl<D: Disk> Log<D> {
    /// Is the header the same in all places of all copies?
    pub fn headers_agree(disk: &D) -> bool {
        places_agree::<RawLog>(disk, HEADER_AT)
    }

    /// Is there a header in all places of all copies, of any generation?
    pub fn headers_are_whole(disk: &D) -> bool {
        places_are_whole(disk, HEADER_AT, |raw: &RawLog| raw.magic == MAGIC && raw.crc == header_crc(raw))
    }
}
