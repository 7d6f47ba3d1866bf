//! Files whose content lies on disks otherwise than their setting says.
//!
//! Writes go to segments of their file's class at once, and so do blocks that the cleaner moves. Blocks that were written before the setting
//! changed are moved here, as the cleaner would, by the task that follows files ([`super::follow`]): after that its file has the replicas
//! of its setting, and no others.

use std::collections::BTreeMap;

use crate::attr::{Ino, Kind};
use crate::error::{Error, Result};
use crate::file::{self, Part};
use crate::layout::RawInode;
use crate::maintenance::clean::Cleaning;
use crate::node::{content_of, Fs};
use crate::ubj::Union;
use ilfs::part::Owner;
use ilfs::table::CLEANING;
use ilfs::Place;

/// Blocks of a file, and where they lie.
type Pages = Vec<(Owner, Place)>;

/// Blocks of a file that are moved at a time.
const SOME: usize = 2048;

impl Union {
    /// Moves some of a file's content that lies otherwise than it is to; true if there may be more.
    pub(super) fn sort(&self, fs: &Fs, ino: Ino) -> Result<bool> {
        let raw = match fs.session().read(ino, || fs.raw(ino)) {
            Err(e) if matches!(e.errno(), rustix::io::Errno::STALE | rustix::io::Errno::NOENT) => return Ok(false),
            raw => raw?,
        };
        if raw.kind != Kind::Regular as u8 || !content_of(ino, &raw).is_large() {
            return Ok(false);
        }
        let misplaced = self.misplaced(fs, ino, &raw)?;
        if misplaced.is_empty() {
            return Ok(false);
        }
        let _alone = fs.session().long_lock(CLEANING)?;
        let moved = match self.log().rehome(fs.session(), &Cleaning::of(fs, self), &misplaced) {
            Err(ilfs::Error::NoSpace) => {
                drop(_alone);
                return Ok(self.free(fs, true)? == ilfs::clean::Reason::Enough && !self.is_full(fs)?);
            }
            moved => moved?,
        };
        drop(_alone);
        if moved == 0 {
            return Ok(false);
        }
        // A page without room where it is to lie does not lie right after that either.
        let left = self.misplaced(fs, ino, &raw)?;
        Ok(left.iter().map(|(owner, _)| owner).ne(misplaced.iter().map(|(owner, _)| owner)))
    }

    /// Is there no segment to move anything to?
    fn is_full(&self, fs: &Fs) -> Result<bool> {
        Ok(self.log().room(fs.session())? == 0)
    }

    /// Blocks of a file that lie otherwise than it is to, of one part of it.
    fn misplaced(&self, fs: &Fs, ino: Ino, raw: &RawInode) -> Result<Pages> {
        let (class, _) = self.kind_of(fs, ino)?;
        let (mut known, mut found, mut from) = (BTreeMap::new(), Vec::new(), 0);
        loop {
            let mut pages = Vec::new();
            let next = fs.session().read(ino, || {
                pages.clear();
                file::tally(fs.memory(), &content_of(ino, &fs.raw(ino)?), from, &mut |part| {
                    if let Part::Disk { page, place, .. } = part {
                        pages.push((page, place));
                    }
                })
            })?;
            for (page, place) in pages {
                let lies_right = match known.get(&place.sequence()) {
                    Some(right) => *right,
                    None => {
                        let right = self.log().lies_as(fs.session(), place, class)?;
                        known.insert(place.sequence(), right);
                        right
                    }
                };
                if !lies_right && found.len() < SOME {
                    found.push((Owner { ino, generation: raw.generation, page }, place));
                }
            }
            match next {
                Some(next) if next > from && found.len() < SOME => from = next,
                _ => return Ok(found),
            }
        }
    }

    /// The pages of a file on disk, in a part of it that begins with page `from`; where the next begins.
    pub(crate) fn pages_from(&self, fs: &Fs, ino: Ino, from: u64) -> Result<(Pages, Option<u64>)> {
        let (mut pages, mut generation) = (Vec::new(), 0);
        let next = fs.session().read(ino, || {
            pages.clear();
            let raw = fs.raw(ino)?;
            generation = raw.generation;
            file::tally(fs.memory(), &content_of(ino, &raw), from, &mut |part| {
                if let Part::Disk { page, place, .. } = part {
                    pages.push((page, place));
                }
            })
        })?;
        let owned = pages.into_iter().map(|(page, place)| (Owner { ino, generation, page }, place));
        Ok((owned.collect(), next))
    }

    /// [`sort`](Union::sort), of which a failure is reported and leaves the file as it is.
    pub(super) fn sort_some(&self, fs: &Fs, ino: Ino) -> bool {
        self.sort(fs, ino).unwrap_or_else(|e: Error| {
            tracing::warn!("inode {ino}: moving its content to where it is to lie: {e}");
            false
        })
    }
}
