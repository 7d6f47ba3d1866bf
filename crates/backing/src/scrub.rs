//! Comparing the copies with their checksums, while the pool is at work: rot is repaired before the data is needed.
//!
//! The search holds nothing up. A place that looks wrong is looked at again with the right to checkpoint, or to commit,
//! and only then written anew, from a copy that has it right. (Else another process's new bytes would be written over.)
//! Memory has the data that no copy has right: where a page does not suffice, the whole backing is made anew from
//! memory.
//!
//! A check compares in the same way and changes nothing, also where nobody writes to the copies.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::commit::Backing;
use super::image::{Image, PAGE};
use super::log::{Identity, Inventory, Log, Position, SECTOR};
use super::{replay, Disks, SharedDisk};
use pram::error::{Error, Result};
use pram::runtime::control;
use pram::session::{assert_may_wait, Session};

/// Headers of the image and of a log lie there.
const HEADERS: Range<u64> = 0..8192;

/// A stretch of a copy that is wrong, or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Odd {
    /// 0 is the image, 1 and 2 are the logs.
    pub part: usize,
    pub at: Range<u64>,
    /// Which copy; none: one of them.
    pub copy: Option<usize>,
    /// It is repaired, or will be with the next commit.
    pub mended: bool,
}

/// The result of comparing.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// Bytes that were read, each copy counted.
    pub bytes: u64,
    pub odd: Vec<Odd>,
}

/// Compares copies that nobody writes to, and that may be as a crash has left them: the last commit counts only if the
/// backing was `closed` in order. Fails if the memory cannot be made from them.
pub fn check(disks: &Disks, id: Identity, closed: bool, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Compared> {
    let mut all = Compared::default();
    let odd = |part, at: Range<u64>, copy| Odd { part, at, copy, mended: false };
    let image = Image::open(disks.image.clone(), Some(id))?;
    for one in image.suspects(None, &mut all.bytes, go_on)? {
        all.odd.push(odd(0, one.bytes(), one.copy));
    }
    if !Image::headers_are_whole(&disks.image) {
        all.odd.push(odd(0, HEADERS, None));
    }
    for (n, disk) in disks.logs.iter().enumerate() {
        let records = Inventory::of(disk, id)?;
        all.bytes += records.bytes() * disk.copies() as u64;
        let wrong = records.odd(disk).into_iter().filter(|(at, _)| closed || !records.is_last(at.start));
        all.odd.extend(wrong.map(|(at, copy)| odd(n + 1, at, Some(copy))));
        if !Log::headers_are_whole(disk) {
            all.odd.push(odd(n + 1, HEADERS, None));
        }
    }
    replay(disks, id, image.instant(), &mut |_, _| Ok(()))?;
    Ok(all)
}

impl Backing {
    /// Compares all copies with their checksums, and repairs places that another copy has right. `go_on` gets the
    /// number of bytes of each read, and may sleep; where it returns false, the rest is left out.
    pub fn scrub(&self, session: &Session, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Compared> {
        let all = self.compare(session, true, go_on)?;
        self.mend_if_damaged(session)?;
        Ok(all)
    }

    /// The same, and changes nothing.
    pub fn examine(&self, session: &Session, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Compared> {
        self.compare(session, false, go_on)
    }

    fn compare(&self, session: &Session, mend: bool, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Compared> {
        assert_may_wait();
        control::refuse_failed(&session.runtime().backing())?;
        let mut all = Compared::default();
        self.compare_image(session, mend, &mut all, go_on)?;
        for n in 0..2 {
            self.compare_log(session, n, mend, &mut all, go_on)?;
        }
        Ok(all)
    }

    fn compare_image(
        &self,
        session: &Session,
        mend: bool,
        all: &mut Compared,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let (disk, id) = (&self.disks().image, self.id());
        // An image may look wrong while it is updated.
        let looked = Image::open(disk.clone(), Some(id)).and_then(|image| image.suspects(None, &mut all.bytes, go_on));
        let are_well = if mend { Image::headers_agree } else { Image::headers_are_whole };
        if looked.as_ref().is_ok_and(Vec::is_empty) && are_well(disk) {
            return Ok(());
        }
        let only = looked.ok();
        self.while_checkpointing(session, || {
            let image = match Image::open(disk.clone(), Some(id)) {
                Ok(image) => image,
                Err(e) => {
                    if mend {
                        // Without a header there is nothing to make it anew in.
                        Image::peek(disk)?;
                        session.runtime().damage_backing(&e.to_string());
                    }
                    all.odd.push(Odd { part: 0, at: HEADERS, copy: None, mended: mend });
                    return Ok(());
                }
            };
            for one in image.suspects(only.as_deref(), &mut 0, &mut |_| true)? {
                let mut mended = mend && image.mend(&one).is_ok();
                if let (true, false, Some(page), Some(marks)) = (mend, mended, one.page(), session.memory().marks()) {
                    // No copy has the page, but memory has: the next commit holds it, and a checkpoint writes it elsewhere.
                    marks.mark(page * PAGE, PAGE)?;
                    mended = true;
                }
                all.odd.push(Odd { part: 0, at: one.bytes(), copy: one.copy, mended });
            }
            if !are_well(disk) {
                if mend {
                    Image::settle_copies(disk)?;
                }
                all.odd.push(Odd { part: 0, at: HEADERS, copy: None, mended: mend });
            }
            if mend {
                flush(disk)
            } else {
                Ok(())
            }
        })
    }

    fn compare_log(
        &self,
        session: &Session,
        n: usize,
        mend: bool,
        all: &mut Compared,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let (disk, id) = (&self.disks().logs[n], self.id());
        // Asked for first: the log goes on meanwhile.
        let at = self.position(session, n)?;
        // A log that begins anew meanwhile is not there any more.
        let Ok(records) = Inventory::of(disk, id) else { return self.doubt_log(session, n, mend, all) };
        let bytes = records.bytes() * disk.copies() as u64;
        if !go_on(bytes) {
            return Ok(());
        }
        all.bytes += bytes;
        let is_well = records.odd(disk).is_empty();
        if !has_end(session, at, &records) {
            self.doubt_log(session, n, mend, all)?;
        }
        let are_well = if mend { Log::headers_agree } else { Log::headers_are_whole };
        if is_well && are_well(disk) {
            return Ok(());
        }
        self.while_committing(session, || {
            if !records.is_current(disk, id)? {
                return Ok(());
            }
            // Records of a commit that was under way, or was left half written, do not count yet.
            let end = self.position(session, n)?.map_or(u64::MAX, |at| at.end);
            for (at, copy) in records.odd(disk).into_iter().filter(|(at, _)| at.start < end) {
                let mended = mend && records.mend(disk, &at)?;
                all.odd.push(Odd { part: n + 1, at, copy: Some(copy), mended });
            }
            if !are_well(disk) {
                if mend {
                    Log::settle_copies(disk, id)?;
                }
                all.odd.push(Odd { part: n + 1, at: HEADERS, copy: None, mended: mend });
            }
            if mend {
                flush(disk)
            } else {
                Ok(())
            }
        })
    }

    /// Checks again, while nobody commits, that a log has all commits that the state in memory says.
    fn doubt_log(&self, session: &Session, n: usize, mend: bool, all: &mut Compared) -> Result<()> {
        let (disk, id) = (&self.disks().logs[n], self.id());
        self.while_committing(session, || {
            let at = self.position(session, n)?;
            let end = match Inventory::of(disk, id) {
                Ok(records) if has_end(session, at, &records) => return Ok(()),
                Ok(records) => records.end(),
                // The image holds its commits: the log is not needed until it begins anew.
                Err(_) if is_spent(session, at) && Log::began(disk, id).is_ok() => return Ok(()),
                Err(_) => HEADERS.start,
            };
            if mend {
                session.runtime().damage_backing(&format!("log {n} of the pool's backing is damaged at byte {end}"));
            }
            all.odd.push(Odd { part: n + 1, at: end..end + SECTOR, copy: None, mended: mend });
            Ok(())
        })
    }
}

/// Does a log end with the record at this position? True also if the image holds all of its commits.
fn has_end(session: &Session, at: Option<Position>, records: &Inventory) -> bool {
    is_spent(session, at) || at.is_none_or(|at| records.has(at.tail))
}

/// Does the image hold all commits of a log up to this position? True also if the position is unknown.
fn is_spent(session: &Session, at: Option<Position>) -> bool {
    let checkpointed = session.runtime().backing().checkpointed.load(Ordering::SeqCst);
    at.is_none_or(|at| at.last.commit <= checkpointed || at.tail == 0)
}

fn flush(disk: &SharedDisk) -> Result<()> {
    disk.flush().map_err(|e| Error::of_io("flushing the backing", &e))
}
