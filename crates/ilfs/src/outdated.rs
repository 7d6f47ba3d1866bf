//! Outdated regions, and copies in them: older than a memory that was made anew as of a commit. Either an older image of
//! the disk was put back, or the disk has lost writes.
//!
//! The newest segments show that. A commit counts only when the parts that its table knows are durable. So a copy that
//! lacks parts in most of the segments with the highest numbers has missed writes. A few such segments may be damaged,
//! or their writer died while they were under way.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use pram::session::assert_may_wait;
use pram::Session;

use super::error::Result;
use super::part::Part;
use super::table::KEY;
use super::walk::Walk;
use super::Log;

/// Segments of a region that are looked at.
const LOOKED_AT: usize = 8;

/// A region that is outdated, in whole or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Old {
    pub number: u32,
    /// The outdated copies among those that it keeps, and how many it keeps. All: the whole region is outdated.
    pub copies: Vec<usize>,
    pub of: usize,
}

/// A slot with a segment, or a copy of one.
struct Newest {
    slot: u32,
    sequence: u64,
    used: u32,
}

impl Log {
    /// The outdated regions that were found since the last call.
    pub fn take_old(&self) -> Vec<Old> {
        std::mem::take(&mut *self.old.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Regions that lack the newest segments of the table. The table is as of a commit, and no process uses it.
    pub(super) fn old_regions(&self, session: &Session) -> Result<Vec<Old>> {
        assert_may_wait();
        let mut old = Vec::new();
        for (number, newest) in self.newest(session)? {
            let mut lacking: BTreeMap<usize, usize> = BTreeMap::new();
            let (mut looked, mut of) = (0, 0);
            for one in newest {
                let Ok(lies) = self.lies(session, one.slot) else { continue };
                (looked, of) = (looked + 1, lies.region.copies());
                for copy in 0..of {
                    let mut walk = Walk::new(&*lies.region, lies.identity, lies.at, self.blocks).of_copy(copy);
                    if lacks_some(&mut walk, &one) {
                        *lacking.entry(copy).or_default() += 1;
                    }
                }
            }
            let most = (looked * 3 / 4).max(2);
            let copies: Vec<usize> = lacking.into_iter().filter(|(_, n)| *n >= most).map(|(copy, _)| copy).collect();
            if !copies.is_empty() {
                old.push(Old { number, copies, of });
            }
        }
        Ok(old)
    }

    /// The newest segments of each region, by its number.
    fn newest(&self, session: &Session) -> Result<BTreeMap<u32, Vec<Newest>>> {
        let table = self.at.table(session.memory());
        let mut newest: BTreeMap<u32, Vec<Newest>> = BTreeMap::new();
        for slot in session.read(KEY, || table.used_slots())? {
            let segment = session.read(KEY, || table.get(slot))?;
            if !segment.state.is_used() || segment.live == 0 || segment.used == 0 {
                continue;
            }
            for home in session.read(KEY, || table.homes(slot, &segment))?.iter().filter(|home| !home.partial) {
                let list = newest.entry(session.read(KEY, || table.region(home.n))?.number).or_default();
                let one = Newest { slot: home.slot, sequence: segment.sequence, used: segment.used };
                let at = list.partition_point(|other| other.sequence > one.sequence);
                list.insert(at, one);
                list.truncate(LOOKED_AT);
            }
        }
        Ok(newest)
    }
}

/// Does the segment lack a part before its end? A damaged part does not count.
fn lacks_some(walk: &mut Walk<'_>, one: &Newest) -> bool {
    let mut end = 0;
    while end < one.used {
        match walk.next_of(one.sequence, end).as_ref().map(Part::end) {
            Some(next) => end = next,
            None => return !walk.was_written(one.sequence, end) && walk.failed.is_none(),
        }
    }
    false
}
