//! How the content of files is to lie on disks, by their setting.

use super::{Inodes, Union};
use crate::attr::Ino;
use crate::error::Result;
use crate::file::{self, Part};
use crate::inode::content_of;
use crate::setting::Redundancy;
use ilfs::sorted;
use ilfs::{Class, Place};

impl Union {
    /// Class and priority of a file's content; of one that is gone those of any.
    pub(crate) fn kind_of(&self, fs: &dyn Inodes, ino: Ino) -> Result<sorted::Kind> {
        let raw = match fs.session().read(ino, || fs.raw(ino)) {
            Err(e) if matches!(e.errno(), rustix::io::Errno::STALE | rustix::io::Errno::NOENT) => {
                return Ok((Class::None, 0));
            }
            raw => raw?,
        };
        let class = match raw.redundancy() {
            Redundancy::None => Class::None,
            Redundancy::Whole => Class::Whole(self.home_of(fs, ino)?),
            Redundancy::Mirror(replicas) => Class::Mirror(replicas),
            Redundancy::Lazy(delay) => Class::Lazy(delay),
        };
        Ok((class, raw.priority() as u8))
    }

    /// The region that has all of a file, or will: that of its first page on disk; or one by its number, so that files are spread.
    fn home_of(&self, fs: &dyn Inodes, ino: Ino) -> Result<u32> {
        let mut first = None;
        let look = |first: &mut Option<Place>| {
            *first = None;
            file::tally(fs.memory(), &content_of(ino, &fs.raw(ino)?), 0, &mut |part| {
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
}

/// A number that a file and a region have in common: of its regions a file goes to the one where that is highest, so that another region
/// more or less moves few.
fn drawn(ino: Ino, number: u32) -> u64 {
    let mixed = (ino ^ u64::from(number).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}
