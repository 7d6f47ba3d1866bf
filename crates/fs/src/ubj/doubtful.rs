//! Content in memory whose place on disk is lost, or may be: it gives up that place, and is written anew in another.
//!
//! A clean block may be the last copy of its page: when its place was found damaged, or lies in a region that has failed or is missing
//! and has no copy elsewhere. Such a block
//!
//! 1. is never evicted, as long as that is known ([`Union::without_doubtful`]);
//! 2. is dirty again, so that write-back gives it another place, as soon as a region takes content ([`Union::redirty_doubtful`], when a region
//!    becomes doubtful or is given up; [`Files::redirty`](ilfs::files::Files::redirty), when a read of the scrubber or the cleaner fails).
//!
//! It gives up its place and becomes dirty in one transaction, under the locks of its file and of the log: a process that dies in between leaves
//! it clean, and the next one finds it so.

use std::collections::HashMap;

use pram::Session;

use super::inodes::{regular, Inodes};
use super::Union;
use crate::attr::Ino;
use crate::error::Result;
use crate::file;
use crate::retry::with_memory;
use ilfs::table::ORDERING;
use ilfs::Place;

/// Blocks that one transaction makes dirty.
const PIECE: usize = 64;
/// A clean block: the inode and page that it belongs to, and its position in memory.
pub(super) type Clean = (Ino, u64, u64);

/// Places that are in doubt, asked segment by segment.
pub(crate) struct Doubt<'l> {
    union: &'l Union,
    session: &'l Session,
    pub(crate) regions: Vec<u32>,
    known: HashMap<u64, bool>,
}

impl Doubt<'_> {
    pub(crate) fn has(&mut self, place: Place) -> Result<bool> {
        if let Some(known) = self.known.get(&place.sequence()) {
            return Ok(*known);
        }
        let is_in_doubt = self.union.log().is_in_doubt(self.session, place, &self.regions)?;
        self.known.insert(place.sequence(), is_in_doubt);
        Ok(is_in_doubt)
    }
}

impl Union {
    pub(crate) fn doubt<'l>(&'l self, session: &'l Session) -> Option<Doubt<'l>> {
        let regions = self.log().doubtful();
        (!regions.is_empty()).then(|| Doubt { union: self, session, regions, known: HashMap::new() })
    }

    /// Of blocks that are to be evicted those that may be. The others are made dirty, if anything takes them.
    pub(super) fn without_doubtful(&self, fs: &dyn Inodes, found: Vec<(Clean, Place)>) -> Result<Vec<Clean>> {
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
            self.redirty_blocks(fs, doubtful)?;
        }
        Ok(safe)
    }

    /// Makes these blocks dirty; how many.
    pub(crate) fn redirty_blocks(&self, fs: &dyn Inodes, mut found: Vec<(Clean, Place)>) -> Result<u64> {
        found.sort_unstable();
        let mut redirtied = 0;
        for some in found.chunk_by(|a, b| a.0 .0 == b.0 .0).flat_map(|of_one| of_one.chunks(PIECE)) {
            redirtied += with_memory(fs.session(), || redirty_some(fs, some))?;
        }
        if redirtied > 0 {
            self.wake();
        }
        Ok(redirtied)
    }
}

/// Blocks of one file.
fn redirty_some(fs: &dyn Inodes, some: &[(Clean, Place)]) -> Result<u64> {
    let mut op = fs.session().begin()?;
    let (ino, ..) = some[0].0;
    op.lock(&[ino, ilfs::KEY])?;
    // Another operation is giving pages of the file other numbers, and looks at their entries.
    if op.is_long_locked(ORDERING) {
        return Ok(0);
    }
    let Some(node) = regular(fs, ino)? else { return Ok(0) };
    let (content, mut redirtied) = (node.content(), 0);
    let mut tx = op.tx()?;
    let mut edit = fs.edit(&mut tx);
    for ((_, page, _), place) in some {
        redirtied += u64::from(file::redirty(&mut edit, &content, *page, *place)?);
    }
    edit.finish()?;
    tx.commit()?;
    Ok(redirtied)
}
