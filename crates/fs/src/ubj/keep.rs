//! Content in memory whose place on disk is lost, or may be: it gives up that place, and is written anew in another.
//!
//! A clean block may be the last copy of its page: when its place was found damaged, or lies in a region that has failed or is missing
//! and has no copy elsewhere. Such a block
//!
//! 1. is never evicted, as long as that is known ([`Union::without_doubtful`]);
//! 2. is dirty again, so that write-back gives it another place, as soon as a region takes content ([`Union::keep_doubtful`], when a region
//!    becomes doubtful or is given up; [`Files::keep`](ilfs::files::Files::keep), when a read of the scrubber or the cleaner fails).
//!
//! It gives up its place and becomes dirty in one transaction, under the locks of its file and of the log: whoever dies in between leaves
//! it clean, and whoever comes next finds it so.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::PoisonError;

use exraid::{Aligned, Buffers};
use pram::blocks::{Cursor, Which, BLOCK};
use pram::Session;

use super::write_back::regular;
use super::Union;
use crate::attr::{Ino, Kind};
use crate::error::{Error, Result};
use crate::file;
use crate::node::{content_of, Fs};
use ilfs::part::Owner;
use ilfs::scrub::Wrong;
use ilfs::table::SETTLING;
use ilfs::{Place, Run};

/// Blocks that one transaction makes dirty.
const PIECE: usize = 64;
/// Segments of memory whose descriptors are looked at in one step.
const STEP: usize = 64;

/// A clean block: the inode and the page whose it is, and where it lies in memory.
pub(super) type Clean = (Ino, u64, u64);

/// Places that are in doubt, asked segment by segment.
struct Doubt<'l> {
    union: &'l Union,
    session: &'l Session,
    regions: Vec<u32>,
    known: HashMap<u64, bool>,
}

impl Doubt<'_> {
    fn has(&mut self, place: Place) -> Result<bool> {
        if let Some(known) = self.known.get(&place.sequence()) {
            return Ok(*known);
        }
        let is_in_doubt = self.union.log().is_in_doubt(self.session, place, &self.regions)?;
        self.known.insert(place.sequence(), is_in_doubt);
        Ok(is_in_doubt)
    }
}

impl Union {
    fn doubt<'l>(&'l self, session: &'l Session) -> Option<Doubt<'l>> {
        let regions = self.log().doubtful();
        (!regions.is_empty()).then(|| Doubt { union: self, session, regions, known: HashMap::new() })
    }

    /// Of blocks that are to be evicted those that may be. The others are made dirty, if anything takes them.
    pub(super) fn without_doubtful(&self, fs: &Fs, found: Vec<(Clean, Place)>) -> Result<Vec<Clean>> {
        let Some(mut doubt) = self.doubt(fs.session()) else {
            return Ok(found.into_iter().map(|(clean, _)| clean).collect());
        };
        let (mut safe, mut doubtful) = (Vec::with_capacity(found.len()), Vec::new());
        for (clean, place) in found {
            match doubt.has(place)? {
                true => doubtful.push((clean, place)),
                false => safe.push(clean),
            }
        }
        if !self.log().taking().is_empty() {
            self.keep_blocks(fs, doubtful)?;
        }
        Ok(safe)
    }

    /// Makes dirty what memory holds of content that is in doubt, once for each change of what regions are doubtful; how many blocks.
    pub fn keep_doubtful(&self, fs: &Fs) -> Result<u64> {
        let doubt = self.doubt(fs.session());
        let regions = doubt.as_ref().map_or_else(Vec::new, |doubt| doubt.regions.clone());
        let mut kept_of = self.kept_of.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut doubt) = doubt.filter(|_| *kept_of != regions && !self.log().taking().is_empty()) else {
            kept_of.retain(|known| regions.contains(known));
            return Ok(0);
        };
        let kept = self.keep_cached(fs, &mut |place| doubt.has(place))?;
        *kept_of = regions;
        Ok(kept)
    }

    /// Makes dirty the clean blocks with such places; how many.
    pub fn keep_cached(&self, fs: &Fs, wanted: &mut dyn FnMut(Place) -> Result<bool>) -> Result<u64> {
        let (heap, mut cursor, mut kept) = (fs.session().heap(), Cursor::default(), 0);
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
            kept += self.keep_blocks(fs, lost)?;
            if !more {
                break;
            }
        }
        if kept > 0 {
            tracing::warn!(
                "{kept} blocks whose places on disk are lost, or may be, are in memory, and are written anew"
            );
        }
        Ok(kept)
    }

    fn keep_blocks(&self, fs: &Fs, mut found: Vec<(Clean, Place)>) -> Result<u64> {
        found.sort_unstable();
        let mut kept = 0;
        for some in found.chunk_by(|a, b| a.0 .0 == b.0 .0).flat_map(|of_one| of_one.chunks(PIECE)) {
            kept += loop {
                match keep_some(fs, some) {
                    Err(Error::MustGrow) => _ = fs.session().supply_needed()?,
                    done => break done?,
                }
            };
        }
        if kept > 0 {
            self.ring();
        }
        Ok(kept)
    }

    /// What files have in blocks of a segment of which no summary tells: memory keeps what it holds; the rest is read, and told if it
    /// cannot be.
    pub(super) fn look_at_unknown(&self, fs: &Fs, sequence: u64, gaps: &[Range<u32>]) -> Result<Vec<Wrong>> {
        let is_there =
            |place: Place| place.sequence() == sequence && gaps.iter().any(|gap| gap.contains(&place.block()));
        let mut wrong = Vec::new();
        for (owner, place) in self.owners(fs, &is_there)? {
            let memory = Buffers::whole(&Aligned::zeroed(BLOCK as usize));
            let read = self.log().read(fs.session(), Run::one(place), memory);
            let Err(e) = read.and_then(|reading| reading.wait(self.log(), fs.session())) else { continue };
            let region = self.log().region_of(fs.session(), place)?.unwrap_or_default();
            // Without the place: what is lost side by side is one range.
            let why = match e {
                ilfs::Error::Damaged { what, .. } => what.into(),
                e => e.to_string(),
            };
            wrong.push(Wrong { owner, place, region, why, repaired: false, from_memory: false });
        }
        let lost: std::collections::HashSet<Place> = wrong.iter().map(|one| one.place).collect();
        if !lost.is_empty() {
            self.keep_cached(fs, &mut |place| Ok(lost.contains(&place)))?;
            for one in &mut wrong {
                let is_kept = !self.page_now(fs, one);
                (one.repaired, one.from_memory) = (is_kept, is_kept);
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
                    file::places(fs.region(), &content, &mut |page, place| {
                        let owner = Owner { ino, generation: raw.generation, page };
                        of_one.extend(place.filter(|place| wanted(*place)).map(|place| (owner, place)));
                    })
                };
                // What cannot be read at all fsck tells as damage.
                if fs.session().read(ino, look).is_ok() {
                    owners.append(&mut of_one);
                }
            }
        }
        Ok(owners)
    }
}

/// Blocks of one file.
fn keep_some(fs: &Fs, some: &[(Clean, Place)]) -> Result<u64> {
    let mut op = fs.session().begin()?;
    let (ino, ..) = some[0].0;
    op.lock(&[ino, ilfs::KEY])?;
    // Somebody is giving pages of a file other numbers, and looks at their entries.
    if op.is_long_locked(SETTLING) {
        return Ok(0);
    }
    let Some(node) = regular(fs, ino)? else { return Ok(0) };
    let (content, mut kept) = (node.content(), 0);
    let mut tx = op.tx()?;
    let mut edit = fs.edit(&mut tx);
    for ((_, page, _), place) in some {
        kept += u64::from(file::keep(&mut edit, &content, *page, *place)?);
    }
    edit.finish()?;
    tx.commit()?;
    Ok(kept)
}
