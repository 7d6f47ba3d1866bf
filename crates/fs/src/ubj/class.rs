//! How the content of files is to lie on disks, by their setting; and files that do not lie so yet.
//!
//! What is written goes to segments of its file's class at once, and so does what the cleaner moves. What was written before the setting
//! was another is moved here, as the cleaner would, by whoever follows files ([`super::follow`]): after that its file has the copies that
//! it wants, and no others.

use std::collections::BTreeMap;

use super::clean::Cleaning;
use super::Union;
use crate::attr::{Ino, Kind};
use crate::error::{Error, Result};
use crate::file::{self, Part};
use crate::layout::RawInode;
use crate::node::{content_of, Fs};
use crate::setting::Redundancy;
use ilfs::part::Owner;
use ilfs::sorted;
use ilfs::table::CLEANING;
use ilfs::{Class, Place};

/// Blocks of a file, and where they lie.
type Pages = Vec<(Owner, Place)>;

/// Blocks of a file that are moved at a time.
const SOME: usize = 2048;

impl Union {
    /// Class and priority of a file's content; of one that is gone those of any.
    pub(super) fn kind_of(&self, fs: &Fs, ino: Ino) -> Result<sorted::Kind> {
        let raw = match fs.session().read(ino, || fs.raw(ino)) {
            Err(e) if matches!(e.errno(), rustix::io::Errno::STALE | rustix::io::Errno::NOENT) => {
                return Ok((Class::None, 0));
            }
            raw => raw?,
        };
        let class = match raw.redundancy() {
            Redundancy::None => Class::None,
            Redundancy::Whole => Class::Whole(self.home_of(fs, ino)?),
            Redundancy::Mirror(copies) => Class::Mirror(copies),
            Redundancy::Lazy(delay) => Class::Lazy(delay),
        };
        Ok((class, raw.priority() as u8))
    }

    /// The region that has all of a file, or is to have it: that of its first page on disk; or one by its number, so that files are spread.
    fn home_of(&self, fs: &Fs, ino: Ino) -> Result<u32> {
        let mut first = None;
        let look = |first: &mut Option<Place>| {
            *first = None;
            file::tally(fs.region(), &content_of(ino, &fs.raw(ino)?), 0, &mut |part| {
                if let Part::Disk { place, .. } = part {
                    *first = first.or(Some(place));
                }
            })
        };
        fs.session().read(ino, || look(&mut first))?;
        let numbers = self.log().taking();
        let has = match first {
            Some(place) => self.log().region_of(fs.session(), place)?,
            None => None,
        };
        let by_number = || numbers.iter().copied().max_by_key(|number| drawn(ino, *number));
        Ok(has.filter(|number| numbers.contains(number)).or_else(by_number).unwrap_or(0))
    }

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
        // What has no room where it is to lie does not lie right after that either.
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
                file::tally(fs.region(), &content_of(ino, &fs.raw(ino)?), from, &mut |part| {
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

    /// What of a file is on disk, of a part of it that begins with page `from`; where the next begins.
    pub(super) fn pages_from(&self, fs: &Fs, ino: Ino, from: u64) -> Result<(Pages, Option<u64>)> {
        let (mut pages, mut generation) = (Vec::new(), 0);
        let next = fs.session().read(ino, || {
            pages.clear();
            let raw = fs.raw(ino)?;
            generation = raw.generation;
            file::tally(fs.region(), &content_of(ino, &raw), from, &mut |part| {
                if let Part::Disk { page, place, .. } = part {
                    pages.push((page, place));
                }
            })
        })?;
        let owned = pages.into_iter().map(|(page, place)| (Owner { ino, generation, page }, place));
        Ok((owned.collect(), next))
    }

    /// [`sort`](Union::sort), of which a failure is told and leaves the file as it is.
    pub(super) fn sort_some(&self, fs: &Fs, ino: Ino) -> bool {
        self.sort(fs, ino).unwrap_or_else(|e: Error| {
            tracing::warn!("inode {ino}: moving its content to where it is to lie: {e}");
            false
        })
    }
}

/// A number that a file and a region have in common: of its regions a file goes to the one where that is highest, so that another region
/// more or less moves few.
fn drawn(ino: Ino, number: u32) -> u64 {
    let mixed = (ino ^ u64::from(number).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}
