//! Replacing an image by a later one: the ordered steps of the module above.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use crate::log::{Disk, Instant};
use pram::error::{Error, Result};

use super::slots::{Cursor, Slots};
use super::table::{empty_block, Block, Tables, Wanted, FANOUT};
use super::{Anew, Image, RawEntry, HEADER_AT, PAGE, RUN};

/// An update that is being written. Dropping it leaves the image as it was.
#[must_use = "an update that is not finished is not there"]
pub struct Update<'p, D: Disk> {
    pages: &'p mut Image<D>,
    /// Set if nothing of the image before is kept.
    anew: Option<Anew>,
    /// Tables as they will be, level 1 first.
    changed: Vec<BTreeMap<u64, Block>>,
    root: RawEntry,
    stored: u64,
    /// Slots that only the new image uses, and slots that it no longer uses.
    taken: Vec<u32>,
    released: Vec<u32>,
    cursor: Cursor,
    /// Neighbouring slots that are yet to be written, and the first of them.
    run: Vec<u8>,
    run_at: u32,
    done: bool,
}

impl<'p, D: Disk> Update<'p, D> {
    pub(crate) fn new(pages: &'p mut Image<D>, anew: Option<Anew>) -> Self {
        let changed = (0..pages.tables.height()).map(|_| BTreeMap::new()).collect();
        let (root, stored) = match anew {
            None => (pages.tables.root, pages.stored),
            Some(_) => Default::default(),
        };
        Update {
            pages,
            anew,
            changed,
            root,
            stored,
            taken: Vec::new(),
            released: Vec::new(),
            cursor: Cursor::default(),
            run: Vec::new(),
            run_at: 0,
            done: false,
        }
    }

    /// Reads a page as it was before the update.
    pub fn read(&self, page: u64, buf: &mut [u8]) -> Result<bool> {
        self.pages.read(page, buf)
    }

    /// Replaces a page. The bytes of a last page beyond the end of the memory should be zero.
    pub fn write(&mut self, page: u64, bytes: &[u8]) -> Result<()> {
        self.pages.refuse_failed()?;
        self.pages.check(page, bytes.len())?;
        let new = if is_zero(bytes) { RawEntry::default() } else { self.store(bytes)? };
        let old = self.replace(0, page, new);
        self.stored = self.stored + u64::from(new.is_stored()) - u64::from(old.is_stored());
        Ok(())
    }

    /// Replaces bytes of pages as this update has them so far.
    pub fn patch(&mut self, mut off: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (page, within) = (off / PAGE, (off % PAGE) as usize);
            let (now, later) = bytes.split_at(bytes.len().min(PAGE as usize - within));
            match now.len() as u64 {
                PAGE => self.write(page, now)?,
                _ => {
                    let mut whole = self.read_new(page)?;
                    whole[within..within + now.len()].copy_from_slice(now);
                    self.write(page, &whole)?;
                }
            }
            (off, bytes) = (off + now.len() as u64, later);
        }
        Ok(())
    }

    /// A page as this update has it so far.
    fn read_new(&self, page: u64) -> Result<Vec<u8>> {
        let mut buf = vec![0; PAGE as usize];
        let entry = self.changed[0].get(&(page / FANOUT)).map(|block| block[(page % FANOUT) as usize]);
        let entry = match (entry, self.anew) {
            (Some(entry), _) => entry,
            (None, Some(_)) => RawEntry::default(),
            (None, None) => self.pages.tables.entry(0, page),
        };
        let waiting =
            entry.slot.checked_sub(self.run_at).and_then(|n| self.run.chunks_exact(PAGE as usize).nth(n as usize));
        match waiting {
            _ if !entry.is_stored() => {}
            Some(bytes) => buf.copy_from_slice(bytes),
            None => self.pages.source().read(&Wanted { entry, key: page }, 0, &mut buf)?,
        }
        Ok(buf)
    }

    /// Makes this the image, as of `at`.
    pub fn finish(mut self, at: Instant) -> Result<()> {
        self.pages.refuse_failed()?;
        // 1. Pages are written, or in the last run; now the tables, from the bottom up.
        for level in 1..=self.pages.tables.height() {
            let tables = std::mem::take(&mut self.changed[level as usize - 1]);
            for (key, block) in &tables {
                let new = if is_zero(block.as_bytes()) { RawEntry::default() } else { self.store(block.as_bytes())? };
                self.replace(level, *key, new);
            }
            self.changed[level as usize - 1] = tables;
        }
        self.write_run()?;
        // 2.
        self.pages.attempts.ended("flushing the image", self.pages.disk.flush())?;
        // 3, 4.
        let (generation, copy) = (self.pages.generation + 1, self.pages.copy ^ 1);
        let header = self.pages.header(generation, at, self.anew, self.root);
        let disk = &self.pages.disk;
        let written = disk.write_all_at(&header, HEADER_AT[copy]).and_then(|()| disk.flush());
        self.pages.attempts.ended("writing the image's header", written)?;
        self.adopt(generation, copy, at);
        // 5.
        let written = self.pages.disk.write_all_at(&header, HEADER_AT[copy ^ 1]);
        self.pages.attempts.ended("writing the image's second header", written)?;
        self.pages.disk.trim(self.pages.bytes());
        Ok(())
    }

    /// Makes the new image, which is durable, the one in memory too.
    fn adopt(&mut self, generation: u64, copy: usize, at: Instant) {
        let pages = &mut *self.pages;
        if self.anew.is_some() {
            (pages.tables, pages.slots) = (Tables::empty(self.root), Slots::new(pages.slots.last()));
            self.taken.iter().for_each(|slot| _ = pages.slots.claim(*slot));
        }
        for (level, tables) in (1..).zip(std::mem::take(&mut self.changed)) {
            tables.into_iter().for_each(|(key, block)| pages.tables.put(level, key, block));
        }
        self.released.iter().for_each(|slot| pages.slots.free(*slot));
        (pages.tables.root, pages.stored) = (self.root, self.stored);
        (pages.generation, pages.copy, pages.at, pages.anew) = (generation, copy, at, self.anew);
        self.done = true;
    }

    /// Puts the entry of a page or table into the table above; returns the one before.
    fn replace(&mut self, level: u32, key: u64, new: RawEntry) -> RawEntry {
        let old = if level == self.pages.tables.height() {
            std::mem::replace(&mut self.root, new)
        } else {
            let (tables, above, anew) = (&self.pages.tables, key / FANOUT, self.anew.is_some());
            let changed = self.changed[level as usize].entry(above);
            let block = changed.or_insert_with(|| if anew { empty_block() } else { tables.copy(level + 1, above) });
            std::mem::replace(&mut block[(key % FANOUT) as usize], new)
        };
        if old.is_stored() {
            self.released.push(old.slot);
        }
        old
    }

    /// Gives the bytes a slot, where they will be at the latest when the last run is written.
    fn store(&mut self, bytes: &[u8]) -> Result<RawEntry> {
        let slot = self
            .pages
            .slots
            .take(&mut self.cursor)
            .ok_or_else(|| Error::Unusable("the image is full: its file cannot have more than 16 TiB".into()))?;
        self.taken.push(slot);
        let next = self.run_at + (self.run.len() as u64 / PAGE) as u32;
        if slot != next || self.run.len() == RUN {
            self.write_run()?;
        }
        if self.run.is_empty() {
            self.run_at = slot;
        }
        self.run.extend_from_slice(bytes);
        Ok(RawEntry { slot, crc: crc32c::crc32c(bytes) })
    }

    fn write_run(&mut self) -> Result<()> {
        if !self.run.is_empty() {
            let (run, at) = (&self.run, u64::from(self.run_at) * PAGE);
            self.pages.attempts.ended_new("writing the image", self.pages.disk.write_all_at(run, at))?;
            self.run.clear();
        }
        Ok(())
    }
}

impl<D: Disk> Drop for Update<'_, D> {
    fn drop(&mut self) {
        // If a header failed, it may be durable and refer to these; but then nothing is written any more.
        if !self.done {
            self.taken.iter().for_each(|slot| self.pages.slots.free(*slot));
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|line| line.iter().fold(0, |sum, byte| sum | byte) == 0)
}
