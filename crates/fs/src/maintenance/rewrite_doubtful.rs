//! Content in memory whose place on disk is lost, or may be, is written anew in another: see [`doubtful`](crate::ubj::doubtful).

use std::ops::Range;
use std::sync::PoisonError;

use exraid::{Aligned, Buffers};
use pram::heap::{Cursor, Which};
use pram::memory::BLOCK;

use crate::attr::Kind;
use crate::error::Result;
use crate::file;
use crate::node::{content_of, Fs};
use crate::ubj::Union;
use ilfs::part::Owner;
use ilfs::scrub::Wrong;
use ilfs::{Place, Run};

/// Chunks of the heap whose descriptors are looked at in one step.
const STEP: usize = 64;

impl Union {
    /// Makes cached content in doubt dirty, once for each change of the set of doubtful regions; returns the number of blocks.
    pub fn redirty_doubtful(&self, fs: &Fs) -> Result<u64> {
        let doubt = self.doubt(fs.session());
        let regions = doubt.as_ref().map_or_else(Vec::new, |doubt| doubt.regions.clone());
        let mut redirtied_for = self.redirtied_for.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut doubt) = doubt.filter(|_| *redirtied_for != regions && !self.log().taking().is_empty()) else {
            redirtied_for.retain(|known| regions.contains(known));
            return Ok(0);
        };
        let redirtied = self.redirty_cached(fs, &mut |place| doubt.has(place))?;
        *redirtied_for = regions;
        Ok(redirtied)
    }

    /// Makes dirty the clean blocks with such places; how many.
    pub fn redirty_cached(&self, fs: &Fs, wanted: &mut dyn FnMut(Place) -> Result<bool>) -> Result<u64> {
        let (heap, mut cursor, mut redirtied) = (fs.session().heap(), Cursor::default(), 0);
        loop {
            let mut found = Vec::new();
            let more = heap.walk_blocks(Which::All, &mut cursor, STEP, &mut |block, descriptor| {
                let [ino, page] = descriptor.owner;
                found.extend(Place::from_word(descriptor.place).map(|place| ((ino, page, block), place)));
            })?;
            let mut lost = Vec::new();
            for (clean, place) in found {
                if wanted(place)? {
                    lost.push((clean, place));
                }
            }
            redirtied += self.redirty_blocks(fs, lost)?;
            if !more {
                break;
            }
        }
        if redirtied > 0 {
            tracing::warn!(
                "{redirtied} blocks whose places on disk are lost, or may be, are in memory, and are written anew"
            );
        }
        Ok(redirtied)
    }

    /// Looks at blocks of a segment that have no readable summary and belong to files: memory keeps its copies; the rest is read, and
    /// reported if that fails.
    pub(super) fn look_at_unknown(&self, fs: &Fs, sequence: u64, gaps: &[Range<u32>]) -> Result<Vec<Wrong>> {
        let is_there =
            |place: Place| place.sequence() == sequence && gaps.iter().any(|gap| gap.contains(&place.block()));
        let mut wrong = Vec::new();
        for (owner, place) in self.owners(fs, &is_there)? {
            let memory = Buffers::whole(&Aligned::zeroed(BLOCK as usize));
            let read = self.log().read(fs.session(), Run::one(place), memory);
            let Err(e) = read.and_then(|reading| reading.wait(self.log(), fs.session())) else { continue };
            let region = self.log().region_of(fs.session(), place)?.unwrap_or_default();
            // Without the place: adjacent lost pages are one range.
            let why = match e {
                ilfs::Error::Damaged { what, .. } => what.into(),
                e => e.to_string(),
            };
            wrong.push(Wrong { owner, place, region, why, repaired: false, from_memory: false });
        }
        let lost: std::collections::HashSet<Place> = wrong.iter().map(|one| one.place).collect();
        if !lost.is_empty() {
            self.redirty_cached(fs, &mut |place| Ok(lost.contains(&place)))?;
            for one in &mut wrong {
                let is_safe = !self.page_now(fs, one);
                (one.repaired, one.from_memory) = (is_safe, is_safe);
            }
        }
        Ok(wrong)
    }

    /// Which pages of files have such places: all files are gone through.
    fn owners(&self, fs: &Fs, wanted: &dyn Fn(Place) -> bool) -> Result<Vec<(Owner, Place)>> {
        let (mut owners, mut from) = (Vec::new(), 0);
        while let Some(block) = fs.table().next_block(from)? {
            from = block + 1;
            for ino in block * crate::layout::PER_BLOCK..from * crate::layout::PER_BLOCK {
                let mut of_one = Vec::new();
                let look = || -> Result<()> {
                    of_one.clear();
                    let Some(raw) = fs.table().get(ino)? else { return Ok(()) };
                    let content = content_of(ino, &raw);
                    if raw.kind != Kind::Regular as u8 || !content.is_large() {
                        return Ok(());
                    }
                    file::places(fs.memory(), &content, &mut |page, place| {
                        let owner = Owner { ino, generation: raw.generation, page };
                        of_one.extend(place.filter(|place| wanted(*place)).map(|place| (owner, place)));
                    })
                };
                // fsck reports a page that cannot be read at all as damage.
                if fs.session().read(ino, look).is_ok() {
                    owners.append(&mut of_one);
                }
            }
        }
        Ok(owners)
    }
}
