//! The backing of a memory on disk: an image as of some commit, and two redo logs with the commits since.
//!
//! | part | responsibility |
//! | --- | --- |
//! | this | making a backing, reading it back, comparing memory with it |
//! | [`commit`] | group commit: one commit for all waiters; when the other log takes over |
//! | [`remake`] | making the backing anew from memory, when a part of it is damaged |
//! | [`rounds`] | the changed lines, handed out while operations go on, as of one instant |
//! | [`disk`] | the disks of a backing |
//! | [`log`] | the redo log: changed lines, commit by commit |
//! | [`image`] | the incremental image: the pages of a memory as of one commit |
//! | [`checkpoint`] | writing a log's commits into the image |
//! | [`import`] | a memory from its backing alone |
//! | [`state`] | the positions of the logs, for the next process |
//! | [`readahead`] | reading much of a disk in order, several reads under way |
//! | [`scrub`] | comparing the copies, and repairing a wrong one |
//! | [`vote`] | copies that are behind the others |
//! | [`save`] | the memory as one file, the image, and back |
//! | [`aligned`] | buffers for reading and writing past the host's page cache |
//!
//! On `logged` the backing survives a power cut; on `battery` and `dax` it survives the loss of the persistent
//! RAM. Commits go to one log, the *active* one. When it is half full and the image holds all of the
//! other, the other is begun anew and takes over; the first one's commits are checkpointed into the image meanwhile.
//! Neither operations nor commits wait for that, unless the second log runs full first.
//!
//! Recovery reads the image, then the commits that follow it, unless the image's header says that the logs do not
//! count. A gap between image and logs, between the logs, or inside a log is an error. Recovery reads everything before
//! it writes to the backing and before anybody uses the new memory.

pub mod aligned;
pub mod checkpoint;
pub mod commit;
pub mod disk;
pub mod image;
pub mod import;
pub mod log;
pub mod readahead;
mod remake;
pub(crate) mod rounds;
pub mod save;
pub mod scrub;
mod state;
mod vote;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use self::image::{Image, PAGE};
use self::log::{Disk, Identity, Instant, Log};
use pram::budget::Budget;
use pram::error::{Error, Result};
use pram::marks::Marks;
use pram::mem::Mapping;
use pram::memory::{self, BackingPosition, Memory};
use pram::session::assert_may_wait;
use state::State;
use vote::Acknowledged;

pub use commit::{of, Backing, Ticket};

/// A disk that several parts of a process write to.
pub type SharedDisk = Arc<dyn Disk>;

impl Disk for SharedDisk {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        assert_may_wait();
        (**self).read_exact_at(buf, at)
    }
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        assert_may_wait();
        (**self).write_all_at(bytes, at)
    }
    fn flush(&self) -> io::Result<()> {
        assert_may_wait();
        (**self).flush()
    }
    fn write_through(&self, bytes: &[u8], at: u64) -> io::Result<io::Result<()>> {
        assert_may_wait();
        (**self).write_through(bytes, at)
    }
    fn reads_at_once(&self) -> usize {
        (**self).reads_at_once()
    }
    fn copies(&self) -> usize {
        (**self).copies()
    }
    fn read_copy_at(&self, n: usize, buf: &mut [u8], at: u64) -> io::Result<()> {
        assert_may_wait();
        (**self).read_copy_at(n, buf, at)
    }
    fn note_wrong(&self) {
        (**self).note_wrong();
    }
    fn reserved(&self) -> Option<u64> {
        (**self).reserved()
    }
    fn put_away(&self, copies: &[usize]) -> io::Result<()> {
        assert_may_wait();
        (**self).put_away(copies)
    }
    fn trim(&self, bytes: u64) {
        (**self).trim(bytes);
    }
}

/// The disks of a backing.
#[derive(Clone)]
pub struct Disks {
    pub image: SharedDisk,
    pub logs: [SharedDisk; 2],
}

/// Bytes of each log of a memory of `size` bytes, unless a commit needs more; a log is checkpointed into the image when
/// it is half full.
pub fn log_bytes(size: u64) -> u64 {
    (size / 16).clamp(8 << 20, 128 << 20) >> 20 << 20
}

/// A backing that has been made or read back.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The instant that the backing is of.
    pub as_of: Instant,
    state: State,
    /// The backing holds all of the memory.
    whole: bool,
    /// The last commit that was found in the active log.
    found: Range<u64>,
    /// The commit before, which was acknowledged.
    acknowledged: Option<Acknowledged>,
}

impl Loaded {
    /// Makes all of the backing durable: its writer may have died before it was. The other log became durable when this
    /// one was begun, and the image with its header. But a backing that was put back from elsewhere may be in the
    /// host's memory alone, all of it.
    fn settle(&self, disks: &Disks, id: Identity) -> Result<()> {
        let active = self.state.active;
        // Before anything is written: an old copy would get headers that say that it is not old.
        vote::put_away_old(disks, id, self.acknowledged)?;
        // A write at a power cut may be in one copy and not in the other: the state that was found counts, in both.
        Image::settle_copies(&disks.image)?;
        Log::settle_copies(&disks.logs[1 - active], id)?;
        for disk in [&disks.image, &disks.logs[1 - active]] {
            disk.flush().map_err(|e| Error::of_io("flushing the backing", &e))?;
        }
        Log::settle(&disks.logs[active], id, self.found.clone())
    }
}

/// Makes an empty backing, of a memory of zeros, with logs of `capacity` bytes, which grow for a commit that needs more.
pub fn create(disks: &Disks, id: Identity, capacity: u64) -> Result<Loaded> {
    let (start, lineage) = (Instant::default(), log::new_lineage()?);
    Image::create(disks.image.clone(), id, start)?;
    let mut at = [Default::default(); 2];
    for (at, disk) in at.iter_mut().zip(&disks.logs) {
        *at = Log::create(disk.clone(), id, capacity, start, lineage)?.position();
    }
    Ok(Loaded {
        as_of: start,
        state: State { active: 0, swapping: false, logs: at, durable: 0 },
        whole: false,
        found: 0..0,
        acknowledged: None,
    })
}

/// The memory that a backing is of.
pub fn identify(disks: &Disks) -> Result<Identity> {
    Ok(Image::peek(&disks.image)?.0)
}

/// Reads a backing back: `put(offset, bytes)` in order gives the memory, from zeros, and counts once all has proved right.
pub fn load(disks: &Disks, id: Identity, put: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<Loaded> {
    let pages = Image::open(disks.image.clone(), Some(id))?;
    // Looked at first, so that gigabytes are not read for a log that turns out to be another's.
    active_log(disks, id)?;
    pages.read_all(&mut |page, bytes| put(page * PAGE, bytes))?;
    replay(disks, id, pages.instant(), put)
}

/// Goes through the commits that follow an image.
fn replay(
    disks: &Disks,
    id: Identity,
    image: Instant,
    put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Loaded> {
    let (active, begin) = active_log(disks, id)?;
    if image.commit >= begin && holds_all(disks, id)? {
        let spent = |n: usize| Log::spent(disks.logs[n].clone(), id, image).map(|log| log.position());
        let state = State { active, swapping: true, logs: [spent(0)?, spent(1)?], durable: 0 };
        return Ok(Loaded { as_of: image, state, whole: true, found: 0..0, acknowledged: None });
    }
    if image.commit >= begin {
        return Err(Error::Unusable(format!(
            "the image is of commit {}, but the last log begins with commit {begin} and would not be in it yet: one of \
             the logs is an old copy; put the right one back",
            image.commit
        )));
    }
    let old = disks.logs[1 - active].clone();
    let (old, from) = if begin == image.commit + 1 {
        (Log::spent(old, id, Instant { commit: begin - 1, ..image })?, image)
    } else {
        let old = Log::open_until(old, id, image, begin - 1, |_, off, bytes| put(off, bytes))?;
        if old.last().commit + 1 != begin {
            return Err(Error::Unusable(format!(
                "the logs have a hole: one ends with commit {} of {} ns after the epoch, the other begins with {begin}; \
                 put the right ones back",
                old.last().commit,
                old.last().time
            )));
        }
        let last = old.last();
        (old, last)
    };
    let new = Log::open(disks.logs[active].clone(), id, from, |_, off, bytes| put(off, bytes))?;
    let mut logs = [old.position(); 2];
    logs[active] = new.position();
    // Its last commit may have been under way in all copies.
    let acknowledged = match new.found().is_empty() {
        true => Acknowledged::of(&logs, active),
        false => Some(Acknowledged { log: active, record: new.prior(), commit: new.last().commit - 1 }),
    };
    Ok(Loaded {
        as_of: new.last(),
        state: State { active, swapping: false, logs, durable: 0 },
        whole: true,
        found: new.found(),
        acknowledged,
    })
}

/// Does the image say that these logs do not count, since it was made anew from memory when they existed? The newest
/// may have been about to begin anew then.
fn holds_all(disks: &Disks, id: Identity) -> Result<bool> {
    let Some(anew) = Image::anew(&disks.image)? else { return Ok(false) };
    let [first, second] = [Log::began(&disks.logs[0], id)?, Log::began(&disks.logs[1], id)?];
    let newest = first.generation.max(second.generation);
    Ok(first.lineage == anew.lineage && (newest == anew.generation || newest + 1 == anew.generation))
}

/// The log that commits go to, and the commit that it begins with. The logs alternate, the second one first, which
/// shows a log that is older than its last turn, or in the place of the other.
fn active_log(disks: &Disks, id: Identity) -> Result<(usize, u64)> {
    let [first, second] = [Log::began(&disks.logs[0], id)?, Log::began(&disks.logs[1], id)?];
    if first.lineage != second.lineage {
        return Err(Error::Unusable("the logs are of two backings; put the right ones back".into()));
    }
    match second.generation.wrapping_sub(first.generation) {
        // Before the first turn only their commits differ: the second one has none, ever.
        0 if second.generation == log::FIRST && matches!(Log::is_empty(&disks.logs[1], id), Ok(false)) => Err(Error::Unusable(
            "the second log has commits before its first turn: they are in each other's place; put the right ones back"
                .into(),
        )),
        0 if second.commit <= first.commit => Ok((0, first.commit)),
        1 if first.commit <= second.commit => Ok((1, second.commit)),
        _ => Err(Error::Unusable(format!(
            "the logs do not belong together: generation {} begins with commit {}, {} with {}; one is an old copy, or they \
             are in each other's place; put the right ones back",
            first.generation, first.commit, second.generation, second.commit
        ))),
    }
}

/// The backing, if it held all of the memory when that was closed; `None` if the memory has gone on since. Another
/// backing than the one that the memory was used with is an error. So is a backing that has gone on: then the memory is
/// an old one, and the commits that it lacks would be lost.
pub fn clean(disks: &Disks, id: Identity, memory: &Memory) -> Result<Option<Loaded>> {
    let (_, image) = Image::peek(&disks.image)?;
    let loaded = replay(disks, id, image, &mut |_, _| Ok(()))?;
    let (backing_position, as_of) = (memory.backing_position()?, loaded.as_of);
    // Empty, or the memory is of a version that noted nothing.
    if as_of.commit == 0 || backing_position == BackingPosition::default() {
        return Ok(None);
    }
    if backing_position.lineage != lineage(disks, id)? {
        return Err(Error::Unusable(
            "it is another backing than the one that the memory was used with last, and nothing tells which of the two is \
             newer: `conquest import --force` goes on with the backing, and loses the memory"
                .into(),
        ));
    }
    if as_of.commit > backing_position.begun.max(backing_position.closed) {
        return Err(Error::Outdated(format!(
            "the memory was used with commit {} at last, but the backing has gone on to commit {}, as of {} ns after the \
             epoch",
            backing_position.begun.max(backing_position.closed),
            as_of.commit,
            as_of.time
        )));
    }
    let tail = loaded.state.logs[loaded.state.active].before;
    Ok(((as_of.commit, tail) == (backing_position.closed, backing_position.tail)).then_some(loaded))
}

/// The number that tells this backing from all others.
pub fn lineage(disks: &Disks, id: Identity) -> Result<u32> {
    Ok(Log::began(&disks.logs[0], id)?.lineage)
}

/// Notes in a newly formatted memory that it has no backing yet: if it is put back later, it is known as an old one.
pub fn note_new(memory: &Memory) -> Result<()> {
    memory.note_backing_position(BackingPosition { lineage: log::new_lineage()?, ..BackingPosition::default() })
}

/// Notes in a memory that was made from a backing its position relative to that. (The words from the backing are of an
/// earlier time.)
pub fn note_made(disks: &Disks, id: Identity, map: &Mapping, as_of: Instant) -> Result<()> {
    memory::note_made(map, lineage(disks, id)?, as_of.commit)
}

/// Did the backing hold all of the memory when that was closed?
pub fn was_closed(memory: &Memory) -> Result<bool> {
    Ok(memory.backing_position()?.closed != 0)
}

/// Marks every page of `memory` that differs from the backing: after marks were lost, or the memory was made
/// from something else. First brings the image up to date. With nobody else at work.
pub fn compare(disks: &Disks, id: Identity, memory: &Memory, marks: &Marks) -> Result<Loaded> {
    let mut pages = Image::open(disks.image.clone(), Some(id))?;
    let mut loaded = replay(disks, id, pages.instant(), &mut |_, _| Ok(()))?;
    loaded.settle(disks, id)?;
    pages.settle()?;
    (loaded.whole, loaded.found, loaded.acknowledged) = (false, 0..0, None);
    let active = loaded.state.active;
    let (other, last) = (1 - active, loaded.as_of);
    checkpoint::checkpoint(&mut pages, &disks.logs[other], loaded.state.logs[other].last, &mut Budget::unlimited())?;
    if pages.instant() != last {
        // As ever, only a log to which no commits go any more is checkpointed.
        let mut next = Log::resume(disks.logs[other].clone(), id, loaded.state.logs[other]);
        next.restart(last, loaded.state.logs[other].capacity)?;
        (loaded.state.active, loaded.state.logs[other]) = (other, next.position());
        checkpoint::checkpoint(&mut pages, &disks.logs[active], last, &mut Budget::unlimited())?;
    }
    marks.take_groups(memory.groups())?;
    for at in memory.copied()?.into_iter().flat_map(|held| held.step_by(PAGE as usize)) {
        let same = match pages.crc(at / PAGE) {
            None => memory.map().is_zero(at, PAGE)?,
            Some(crc) => memory.map().crc(0, at, PAGE)? == crc,
        };
        if !same {
            marks.mark(at, PAGE)?;
        }
    }
    Ok(loaded)
}
