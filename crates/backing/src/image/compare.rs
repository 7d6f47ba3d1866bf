//! Slots that are wrong in a copy.

use std::ops::Range;

use super::table::Wanted;
use super::{Header, Image, BATCH, HEADER_AT, PAGE};
use crate::disk::{copies_of, places_agree, places_are_whole, Disk};
use pram::error::{Error, Result};

/// A slot that is wrong in a copy, or cannot be read there.
#[derive(Clone, Copy, Debug)]
pub struct Suspect {
    pub copy: Option<usize>,
    level: u32,
    found: Wanted,
}

impl Suspect {
    /// The slot's bytes on disk.
    pub fn bytes(&self) -> Range<u64> {
        let at = u64::from(self.found.entry.slot) * PAGE;
        at..at + PAGE
    }

    /// The page of the memory in the slot, if it is no table.
    pub fn page(&self) -> Option<u64> {
        (self.level == 0).then_some(self.found.key)
    }
}

impl<D: Disk> Image<D> {
    /// The slots that are wrong in any copy now: of all that are stored, or of those that were suspected before.
    /// `bytes` counts bytes read.
    pub fn suspects(
        &self,
        only: Option<&[Suspect]>,
        bytes: &mut u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Vec<Suspect>> {
        let mut suspects = Vec::new();
        for level in (0..=self.tables.height()).rev() {
            let is_wanted = |found: &Wanted| match only {
                None => true,
                Some(only) => only.iter().any(|one| (one.level, one.found.key) == (level, found.key)),
            };
            let mut stored: Box<dyn Iterator<Item = Wanted> + '_> = match level {
                0 => Box::new(self.tables.stored_from(0)),
                _ => Box::new(self.tables.stored(level).into_iter()),
            };
            loop {
                let mut batch: Vec<Wanted> = stored.by_ref().filter(is_wanted).take(BATCH).collect();
                if batch.is_empty() {
                    break;
                }
                for copy in copies_of(&self.disk) {
                    self.source().wrong_in(copy, (&mut batch, level), bytes, go_on, &mut |found| {
                        suspects.push(Suspect { copy, level, found });
                    })?;
                }
            }
        }
        Ok(suspects)
    }

    /// Writes a slot anew, from a copy that has it right. The image is not updated meanwhile.
    pub fn mend(&self, one: &Suspect) -> Result<()> {
        let mut bytes = vec![0; PAGE as usize];
        self.source().read(&one.found, one.level, &mut bytes)?;
        self.disk.write_all_at(&bytes, one.bytes().start).map_err(|e| Error::of_io("writing the image anew", &e))
    }

    /// Is the header the same in all places of all copies?
    pub fn headers_agree(disk: &D) -> bool {
        places_agree::<Header>(disk, HEADER_AT)
    }

    /// Is there a header in all places of all copies, of any generation?
    pub fn headers_are_whole(disk: &D) -> bool {
        places_are_whole(disk, HEADER_AT, |header: &Header| header.is_whole())
    }
}
