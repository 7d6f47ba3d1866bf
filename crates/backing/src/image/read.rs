//! Reading slots: many in large reads, each checked; and the loss when one cannot be read.

use std::io;

use crate::disk::{read_copy, Disk, OneCopy};
use crate::log::Instant;
use crate::readahead;
use pram::error::{Error, Result};

use pram::memory::MAX_SIZE;

use super::table::{Wanted, FANOUT};
use super::{bad, PAGE, RUN};

/// Up to so many slots that are not wanted are read too, rather than reading twice.
const GAP: u32 = 16;

/// The file, and the instant of its image.
pub struct Source<'d, D> {
    pub disk: &'d D,
    pub at: Instant,
}

impl<D: Disk> Source<'_, D> {
    /// A file that is too short is noticed before anything is read from it.
    pub fn check_length(&self, last: u32) -> Result<()> {
        let (at, copies) = (u64::from(last) * PAGE, self.disk.copies());
        // A bad sector may be in a slot that is not used.
        let is_short = |copy: Option<usize>| {
            let read = read_copy(self.disk, copy, &mut [0; PAGE as usize], at);
            read.is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof)
        };
        match is_short(None) && (copies < 2 || (0..copies).map(Some).all(is_short)) {
            true => {
                Err(bad(format!("it is truncated: it should have {} bytes; put a whole copy of it back", at + PAGE)))
            }
            false => Ok(()),
        }
    }

    /// Reads the wanted slots of a level, in their order in the file, and gives each to `put`.
    pub fn read_many(
        &self,
        wanted: &mut [Wanted],
        level: u32,
        put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        wanted.sort_unstable_by_key(|found| found.entry.slot);
        let pieces = Runs(wanted).map(|run| at(&run[0])..at(&run[run.len() - 1]) + PAGE);
        readahead::read(self.disk, pieces, |ahead| {
            for run in Runs(wanted) {
                let Some((_, whole, bytes)) = ahead.take_next() else { break };
                for found in run {
                    let skip = (at(found) - at(&run[0])) as usize;
                    let slot = &mut bytes[skip..skip + PAGE as usize];
                    match whole {
                        Ok(()) if self.is_right(found, slot) => {}
                        // One by one, to find those that can be read, in any copy.
                        _ => self.read(found, level, slot)?,
                    }
                    put(found.key, slot)?;
                }
            }
            Ok(())
        })
    }

    /// Reads and checks one slot, from the first copy that has it right.
    pub fn read(&self, found: &Wanted, level: u32, buf: &mut [u8]) -> Result<()> {
        let first = self.read_from(None, found, level, buf);
        let copies = self.disk.copies();
        for copy in (0..copies).filter(|_| first.is_err() && copies > 1) {
            if self.read_from(Some(copy), found, level, buf).is_ok() {
                self.disk.note_wrong();
                return Ok(());
            }
        }
        first
    }

    /// The same from one copy.
    pub fn read_from(&self, copy: Option<usize>, found: &Wanted, level: u32, buf: &mut [u8]) -> Result<()> {
        let at = at(found);
        read_copy(self.disk, copy, buf, at).map_err(|e| {
            Error::of_io(&format!("reading the image at byte {at}, where {}", self.held(found, level)), &e)
        })?;
        self.verify(found, level, buf)
    }

    /// Calls `tell` with each wanted slot that is wrong in a copy, or cannot be read there. `bytes` counts bytes read.
    pub fn wrong_in(
        &self,
        copy: Option<usize>,
        (wanted, level): (&mut [Wanted], u32),
        bytes: &mut u64,
        go_on: &mut dyn FnMut(u64) -> bool,
        tell: &mut dyn FnMut(Wanted),
    ) -> Result<()> {
        wanted.sort_unstable_by_key(|found| found.entry.slot);
        let one = OneCopy { disk: self.disk, copy };
        let pieces = Runs(wanted).map(|run| at(&run[0])..at(&run[run.len() - 1]) + PAGE);
        let mut page = vec![0; PAGE as usize];
        readahead::read(&one, pieces, |ahead| {
            for run in Runs(wanted) {
                let Some((piece, whole, read)) = ahead.take_next() else { break };
                let len = piece.end - piece.start;
                *bytes += len;
                for found in run {
                    let is_right = match whole {
                        Ok(()) => self.is_right(found, &read[(at(found) - piece.start) as usize..][..PAGE as usize]),
                        Err(_) => self.read_from(copy, found, level, &mut page).is_ok(),
                    };
                    if !is_right {
                        tell(*found);
                    }
                }
                if !go_on(len) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn is_right(&self, found: &Wanted, bytes: &[u8]) -> bool {
        crc32c::crc32c(bytes) == found.entry.crc
    }

    fn verify(&self, found: &Wanted, level: u32, bytes: &[u8]) -> Result<()> {
        match self.is_right(found, bytes) {
            true => Ok(()),
            false => Err(Error::Unusable(format!(
                "the image is damaged at byte {}, where {}",
                at(found),
                self.held(found, level)
            ))),
        }
    }

    /// The content that a slot should have, for a message.
    fn held(&self, found: &Wanted, level: u32) -> String {
        let span = PAGE << (level * FANOUT.ilog2());
        let (first, end) = (found.key * span, ((found.key + 1) * span).min(MAX_SIZE));
        let (what, Instant { commit, time }) = (if level == 0 { "" } else { "the table of " }, self.at);
        format!(
            "{what}bytes {first} to {end} of the memory should be, as of commit {commit}, {time} ns after the epoch"
        )
    }
}

fn at(found: &Wanted) -> u64 {
    u64::from(found.entry.slot) * PAGE
}

/// The runs of wanted slots that are read at once, in the order of slots.
#[derive(Clone)]
struct Runs<'w>(&'w [Wanted]);

impl<'w> Iterator for Runs<'w> {
    type Item = &'w [Wanted];

    fn next(&mut self) -> Option<&'w [Wanted]> {
        let (slot, most) = (|i: usize| self.0[i].entry.slot, (RUN as u64 / PAGE) as u32);
        let ends = |i: &usize| slot(*i) - slot(i - 1) > GAP || slot(*i) - slot(0) >= most;
        let (run, later) = self.0.split_at((1..self.0.len()).find(ends).unwrap_or(self.0.len()));
        self.0 = later;
        Some(run).filter(|run| !run.is_empty())
    }
}
