//! The log of segments: content on disks.
//!
//! A disk is divided into *slots* of the size of a *segment*, 1 to 8 MiB. *Parts* (partial segments) fill a segment, one
//! behind the other, and write none of its sectors twice; a part is a summary and blocks of content. Persistent RAM
//! records which segments there are, and how many of their blocks are live; the summaries record the owner and the
//! checksum of each block. A [`Place`] names a block: the sequence number of its segment, which is issued once, and its
//! position there. So a mapping to a segment that was used again is noticed, and never reads the content of another
//! file.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`place`] | places, and runs of them |
//! | [`storage_class`] | in how many replicas content is to lie, and where |
//! | [`part`] | the bytes of parts |
//! | [`table`] | the segment table in persistent RAM; its invariants |
//! | `areas` | the regions, as this process has them open |
//! | `placement` | which region the next segment goes to |
//! | `sequence` | sequence numbers: reserving and issuing them |
//! | `room` | room for parts: opening and filling segments, giving up blocks |
//! | [`write`] | gathering blocks into parts, and writing those |
//! | [`sorted`] | a writer for blocks of several classes |
//! | [`read`] | reading runs of blocks, verified |
//! | `checksums` | checksums that were read, in the memory of this process |
//! | [`read_ahead`] | the blocks that a reader will want next |
//! | [`files`] | questions of the log to the files |
//! | [`clean`] | the cleaner; making freed segments free |
//! | [`backing_segments`] | the segments of the backing |
//! | `unresponsive` | regions that do not answer |
//! | [`leave`] | regions that leave the log |
//! | [`outdated`] | regions that are older than the table |
//! | [`failed_regions`] | regions that have failed, and those that come back |
//! | [`discard`] | freed segments: their slots are given back to their disk, and become free |
//! | `known_lost` | blocks that were found lost a moment ago |
//! | `read_order` | the replica of a segment that is read |
//! | `avoided` | segments that are left alone for a while |
//! | [`bad_slots`] | slots to which a write failed: they are tested, and free again |
//! | [`replicas`] | replicas of segments: making those that are lacking |
//! | [`live`] | finds the live blocks of a segment |
//! | [`balance`] | moves old content to regions that have less |
//! | [`scrub`] | verifies all content against its checksums |
//! | `give_way` | yields disks to other work |
//! | [`content_stream`] | all content as a stream of bytes, and a log that is filled from one |
//! | `pass_queue` | the segments that a pass has yet to visit |
//! | [`jobs`] | background work that was asked for |
//! | [`salvage`] | content that the disks give without the memory |
//! | [`high_water`] | how far slots were ever used, in the labels |
//! | [`recover`] | the table after a crash, and after the memory was lost |
//! | `walk` | from part to part through a segment |
//! | `failure` | how a failure of a region is treated |
//! | [`error`] | errors |
//!
//! ```text
//! block --push--> part --write, flush--> place --link--> the file's mapping
//! the file's mapping --place--> segment table --slot--> disk --verified--> block
//! ```
//!
//! A function that takes a [`Session`] waits for devices, and is called outside of operations. One that takes a
//! transaction does not wait, and is called with the lock of [`KEY`].
//!
//! Several processes work on one log, and share only its persistent RAM. They fill the same segments, each part in room
//! that one of them has taken.

pub mod areas;
mod avoided;
pub mod backing_segments;
pub mod bad_slots;
pub mod balance;
mod checksums;
pub mod clean;
pub mod content_stream;
pub mod discard;
pub mod error;
pub mod failed_regions;
mod failure;
pub mod files;
mod give_way;
mod high_water;
pub mod jobs;
mod known_lost;
pub mod leave;
pub mod live;
pub mod outdated;
pub mod part;
mod pass_queue;
pub mod place;
mod placement;
pub mod read;
pub mod read_ahead;
mod read_order;
pub mod recover;
pub mod replicas;
pub mod room;
pub mod salvage;
pub mod scrub;
mod sequence;
pub mod sorted;
pub mod storage_class;
pub mod table;
#[cfg(test)]
mod tests;
mod unresponsive;
mod walk;
pub mod write;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use exraid::Region;
use pram::session::assert_may_wait;
use pram::{Session, Tx};

use areas::{Areas, Opener};
use checksums::Sums;
use pass_queue::Agenda;
use place::{BLOCK, MOST_BLOCKS};
use table::{Change, Health, RawTable, Table, Where};

pub use error::{Error, Result};
pub use part::Owner;
pub use place::{Place, Run};
pub use storage_class::Class;
pub use table::KEY;

/// Default size of a segment, in bytes. A rotating disk at 200 MB/s loses at worst a third of its speed to seeks between
/// segments of 4 MiB, a flash disk nothing. The size hardly changes the work of the cleaner. A smaller segment is empty
/// by itself sooner, and has less under way at a time.
pub const SEGMENT: u64 = 4 << 20;
/// Sizes of a segment, in bytes: powers of two.
pub const SEGMENTS: std::ops::RangeInclusive<u64> = 1 << 20..=8 << 20;
/// Segments of the smallest log.
pub const LEAST: u64 = 8;
/// How long the hosts' answer about their free room is believed.
const GLANCE: Duration = Duration::from_millis(500);
/// Segments that never hold live content: one of `SPARE`, beside the `BESIDE` that the cleaner needs to move blocks, and
/// at least `LEAST_SPARE`. Without them dead blocks could lie so scattered that cleaning gains nothing.
const SPARE: u64 = 20;
const BESIDE: u64 = 3;
const LEAST_SPARE: u64 = 4;

const _: () = assert!(MOST_BLOCKS as u64 * BLOCK == *SEGMENTS.end());

/// Where a part goes. Blocks that are written together tend to die together; blocks that survived a cleaning tend to
/// live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// New content.
    Hot,
    /// Blocks that the cleaner moves.
    Cold,
}

/// How this process uses a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of writes under way at a time, for each writer and region.
    pub window: u64,
    /// Segments whose checksums are kept in memory.
    pub checksums: usize,
    /// Counters of the processes ([`pram::session`]) that rise when files are used: background work gives way then.
    pub activity: &'static [usize],
}

impl Default for Options {
    fn default() -> Options {
        Options { window: 4 << 20, checksums: 4096, activity: &[] }
    }
}

/// The log of a pool, as one process uses it.
pub struct Log {
    at: Where,
    /// Blocks of a segment.
    blocks: u32,
    areas: RwLock<Arc<Areas>>,
    opener: Mutex<Option<Opener>>,
    options: Options,
    sums: Mutex<Sums>,
    /// This process has sequence numbers, and has closed the segments of those before.
    ready: Mutex<bool>,
    failed: Mutex<Option<exraid::Error>>,
    cleaner: Mutex<clean::Memory>,
    /// Segments to clean, the best first, and the number of live blocks when the list was made.
    victims: Mutex<(u64, Agenda<()>)>,
    /// Segments for which hosts had room when they were asked last.
    left: Mutex<Option<(Instant, u64)>>,
    /// Reads so far of segments with replicas: one in so many tries the second replica.
    readings: AtomicU64,
    /// Live blocks that lie only in regions that are out of use, as of the last count.
    out_of_reach: AtomicU64,
    /// Regions that are used as if they were missing.
    ignored: Mutex<HashSet<u32>>,
    /// Regions that came back and were refused, which is reported once.
    refused: Mutex<HashSet<u32>>,
    /// Regions that are older than the memory, and were not reported yet.
    old: Mutex<Vec<outdated::Old>>,
    /// The clock of the session.
    clock: pram::clock::Clock,
    /// Segments that could not be copied, and are left alone for a while.
    aside: Mutex<avoided::Aside>,
    /// Segments that a disk did not give in whole when they were to be copied.
    unread: Mutex<HashSet<u64>>,
    /// Segments that could not be freed, since a write to them may be under way: they are left alone for a moment.
    under_way: Mutex<avoided::Aside>,
    /// Segments that lack a replica, or have one too many.
    lacking: Mutex<Agenda<()>>,
    /// When that list was made, all content of regions that leave had the replicas elsewhere that it keeps.
    is_in_place: AtomicBool,
    /// Segments to move from one region to others.
    moving: Mutex<Agenda<(u32, Vec<u32>)>>,
    /// Segments left of the scrub pass.
    scrub_left: Mutex<Option<scrub::Left>>,
    known_lost: Mutex<known_lost::KnownLost>,
    /// This process has looked for slots that a dead process was discarding.
    are_orphans_known: AtomicBool,
    /// By region that leaves: the slot that was found last.
    left_of: Mutex<HashMap<u32, u32>>,
    /// Regions whose hosts had no room for replicas: until when they are not asked, and how long that pause was.
    full: Mutex<HashMap<u32, (Instant, Duration)>>,
    /// Snapshots of which segments took no more parts, at several times.
    closed: Mutex<VecDeque<avoided::Closed>>,
    /// Regions that did not answer at the last look, each reported once.
    waits: Mutex<HashSet<u32>>,
    /// Slots to which abandoned requests may yet write.
    late: Mutex<Vec<unresponsive::LateSlot>>,
    /// When this process last looked for bad slots to test.
    tested: Mutex<Option<Instant>>,
    /// Writers of this process that have not ended.
    writers: AtomicU64,
    /// Other use of the files, as this process has seen it.
    beside: Mutex<give_way::Beside>,
}

/// Segments by state, and the blocks in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All segments; free ones; freed ones, which wait for a commit.
    pub segments: u64,
    pub free: u64,
    pub freed: u64,
    /// Free segments for which hosts keep room; those for which hosts keep or have room, as of their last answer.
    pub held: u64,
    pub ready: u64,
    /// Bad segments, and the backing's.
    pub bad: u64,
    /// Blocks of a segment.
    pub blocks: u32,
    /// Blocks written since the log was made, without summaries.
    pub written: u64,
    /// Blocks that a mapping leads to or may yet lead to, each counted once; the same with all replicas that they are to
    /// have; blocks that are promised.
    pub live: u64,
    pub physical: u64,
    pub promised: u64,
    /// Blocks of content that the log takes in all.
    pub capacity: u64,
}

impl Counts {
    /// Segments that hold content, or may yet hold some.
    pub fn used(&self) -> u64 {
        self.segments.saturating_sub(self.free + self.freed + self.bad)
    }
}

impl Log {
    /// Gives a pool a log on these regions, with segments of `segment` bytes.
    pub fn format(session: &Session, regions: &[Arc<dyn Region>], segment: u64) -> Result<()> {
        assert_may_wait();
        let unusable = |what: &str| Err(Error::Unusable(what.into()));
        if !SEGMENTS.contains(&segment) || !segment.is_power_of_two() {
            return unusable("a segment has 1, 2, 4 or 8 MiB");
        }
        let slots: Vec<u64> = regions.iter().map(|region| region.properties().size / segment).collect();
        let all: u64 = slots.iter().sum();
        if all < LEAST || all > u64::from(u32::MAX) / 2 {
            return unusable("the disks of the log are too small for so large segments");
        }
        regions.iter().try_for_each(|region| areas::begin_high_water(&**region, segment))?;
        let sequence = regions.iter().map(|region| region.sequence()).max().unwrap_or(0).max(1);
        let pairs: Vec<_> = regions.iter().zip(&slots).collect();
        let add = |change: &mut Change<'_, '_>, some: &[(&Arc<dyn Region>, &u64)]| {
            some.iter().try_for_each(|(region, slots)| {
                change.add_region(region.number(), **slots as u32)?;
                change.set_mark(region.number(), region.sequence())
            })
        };
        // As many at a time as the undo log of a transaction holds; after a crash the process that opens the pool adds
        // the others.
        let mut chunks = pairs.chunks(room::AT_ONCE);
        let first = chunks.next().unwrap_or(&[]);
        let at = table::transact(session, |tx| match Where::find(tx.memory())? {
            Some(_) => unusable("the pool has a log").map(|()| None),
            None => {
                let at = Where::make(tx, (segment / BLOCK) as u32, all, sequence)?;
                add(&mut Change::new(tx, at), first).map(|()| Some(at))
            }
        })?;
        let Some(at) = at else { return Ok(()) };
        chunks.try_for_each(|some| table::transact(session, |tx| add(&mut Change::new(tx, at), some)))
    }

    /// Blocks of content that a segment holds.
    pub fn content_of_segment(&self) -> u32 {
        part::content_of(self.blocks)
    }

    /// Opens the log of a pool, if it has one. A region of the log that is not among `regions` is missing: reading its
    /// content fails.
    pub fn open(session: &Session, regions: &[Arc<dyn Region>], options: Options) -> Result<Option<Log>> {
        let Some((at, raw)) = session.read(KEY, || Where::find(session.memory()))? else { return Ok(None) };
        let regions: Vec<Arc<dyn Region>> = regions.to_vec();
        let given: Opener = Box::new(move |number| regions.iter().find(|region| region.number() == number).cloned());
        let log = Log {
            at,
            blocks: raw.blocks as u32,
            areas: RwLock::default(),
            opener: Mutex::new(Some(given)),
            sums: Mutex::new(Sums::new(options.checksums)),
            options,
            ready: Mutex::new(false),
            failed: Mutex::default(),
            cleaner: Mutex::default(),
            victims: Mutex::new((0, Agenda::new(session.clock()))),
            left: Mutex::default(),
            readings: AtomicU64::new(1),
            out_of_reach: AtomicU64::new(0),
            ignored: Mutex::default(),
            refused: Mutex::default(),
            old: Mutex::default(),
            clock: session.clock().clone(),
            aside: Mutex::new(avoided::Aside::new(session.clock())),
            unread: Mutex::default(),
            under_way: Mutex::new(avoided::Aside::new(session.clock())),
            lacking: Mutex::new(Agenda::new(session.clock())),
            is_in_place: AtomicBool::new(false),
            moving: Mutex::new(Agenda::new(session.clock())),
            scrub_left: Mutex::default(),
            known_lost: Mutex::new(known_lost::KnownLost::new(session.clock())),
            are_orphans_known: AtomicBool::new(false),
            left_of: Mutex::default(),
            full: Mutex::default(),
            closed: Mutex::default(),
            waits: Mutex::default(),
            late: Mutex::default(),
            tested: Mutex::default(),
            writers: AtomicU64::new(0),
            beside: Mutex::default(),
        };
        log.refresh(session)?;
        Ok(Some(log))
    }

    /// Bytes of a segment.
    pub fn segment(&self) -> u64 {
        u64::from(self.blocks) * BLOCK
    }

    /// Is every region there?
    pub fn is_whole(&self) -> bool {
        self.areas().list.iter().all(|area| area.region.is_some())
    }

    pub fn counts(&self, session: &Session) -> Result<Counts> {
        let raw = self.head(session)?;
        Ok(Counts {
            segments: raw.slots,
            free: raw.spare,
            freed: raw.waiting,
            held: raw.held,
            ready: self.ready(&raw),
            bad: raw.bad,
            blocks: self.blocks,
            written: raw.clock,
            live: raw.live,
            physical: self.physical(&raw),
            promised: raw.promised,
            capacity: self.content_of(raw.slots.saturating_sub(raw.bad)),
        })
    }

    /// Does the segment of this place still hold its content? For the transaction that is about to map the place: where
    /// this returns false, the block has to be written again.
    pub fn can_link(&self, tx: &mut Tx<'_>, place: Place) -> Result<bool> {
        let found = self.at.table(tx.memory()).find(place.sequence())?;
        Ok(found.is_some_and(|(_, segment)| {
            matches!(segment.state, table::SlotState::Open | table::SlotState::Full) && place.block() < segment.used
        }))
    }

    /// From this transaction on no mapping leads to these blocks, whose places are in ascending order. The cleaner frees
    /// segments without live blocks, in an epoch not before that of this transaction.
    pub fn unlink(&self, tx: &mut Tx<'_>, places: &[Place]) -> Result<()> {
        self.release(&mut Change::new(tx, self.at), places)
    }

    /// Promises room for so many blocks more, or fewer, to pages that have no content yet; [`admit`](Self::admit) checks
    /// that the room exists.
    pub fn promise(&self, tx: &mut Tx<'_>, more: i64) -> Result<()> {
        if more == 0 {
            return Ok(());
        }
        let mut change = Change::new(tx, self.at);
        let promised = change.head()?.promised;
        change.set_promised(promised.saturating_add_signed(more))
    }

    /// Is there room for all blocks that are live, promised, or wait in memory for a place, once this transaction is
    /// committed? To be asked by a transaction that adds some. Segments for which hosts keep room can always be written,
    /// because the cleaner makes room of the dead blocks in them.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where there is not.
    pub fn admit(&self, tx: &mut Tx<'_>) -> Result<()> {
        let unplaced = tx.unplaced();
        let table = self.at.table(tx.memory());
        let all = table.head()?;
        let waits = unplaced * self.most_wanted(&all);
        let segments = self.backed_of(&table, &all)?.saturating_sub(self.open_beside(&table, &all)?);
        match self.physical(&all) + all.promised + waits <= self.content_of(segments) {
            true => Ok(()),
            false => Err(Error::NoSpace),
        }
    }

    /// About how many blocks can be written beside the live and promised ones, with all the replicas that they may need.
    /// Counts only segments for which hosts keep room, and does not subtract the blocks that wait in memory for a
    /// segment.
    pub fn available_about(&self, session: &Session) -> Result<u64> {
        let table = self.at.table(session.memory());
        let all = table.head()?;
        let segments = self.backed_of(&table, &all)?.saturating_sub(self.open_beside(&table, &all)?);
        let left = self.content_of(segments).saturating_sub(self.physical(&all) + all.promised);
        Ok(left / self.most_wanted(&all))
    }

    /// About how many blocks can be written, each replica counted, if hosts give all the room that they have left.
    pub fn available_with_hosts(&self, session: &Session) -> Result<u64> {
        let all = self.head(session)?;
        let backed = all.slots.saturating_sub(all.bad + all.spare) + self.ready(&all);
        Ok(self.content_of(backed).saturating_sub(self.physical(&all) + all.promised))
    }

    /// Segments for which hosts have free room beside what they keep, as of their last answer; `None`: no host can
    /// refuse room.
    pub fn left_on_hosts(&self) -> Option<u64> {
        let areas = self.areas();
        if !areas.grow() {
            return None;
        }
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, segments)) = left.filter(|(at, _)| self.clock.since(*at) < GLANCE) {
            return Some(segments);
        }
        let segments = areas.taking().map(|(_, region)| match region.left() {
            Some(bytes) => bytes / self.segment(),
            None => region.properties().size / self.segment(),
        });
        let segments = segments.sum();
        *left = Some((self.clock.instant(), segments));
        Some(segments)
    }

    /// Segments in use, and free ones for which hosts keep room.
    fn backed_of(&self, table: &Table<'_>, all: &RawTable) -> Result<u64> {
        let (areas, mut backed) = (self.areas(), all.slots.saturating_sub(all.bad));
        if !areas.grow() && self.knows(all.changes) {
            return Ok(backed);
        }
        for n in 0..all.count as usize {
            let region = table.region(n)?;
            // A region that this process has not opened yet may be one that grows.
            let is_whole = areas.list.iter().any(|area| area.number == region.number && !area.grows);
            if region.health() == Health::Taking && !is_whole {
                backed = backed.saturating_sub(region.spare.saturating_sub(region.held));
            }
        }
        Ok(backed)
    }

    /// Live blocks, each counted once for each replica that it is to have, but at most once for each domain.
    fn physical(&self, all: &RawTable) -> u64 {
        let domains = self.areas().domains().max(1);
        let more = (1u8..).zip(all.mirrored).map(|(code, live)| {
            let replicas = u64::from(storage_class::wanted_replicas(code).unwrap_or(1)).min(domains);
            live * (replicas - 1)
        });
        // Content that lies only in regions out of use takes no room of the others.
        (all.live + more.sum::<u64>()).saturating_sub(self.out_of_reach.load(Ordering::Relaxed))
    }

    /// Replicas that a block waiting in memory may need: as many as any content on disk is to have.
    fn most_wanted(&self, all: &RawTable) -> u64 {
        let domains = self.areas().domains().max(1);
        let wanted = (1u8..).zip(all.mirrored).filter(|(_, live)| *live > 0);
        wanted
            .filter_map(|(code, _)| storage_class::wanted_replicas(code))
            .map(u64::from)
            .max()
            .unwrap_or(1)
            .min(domains)
    }

    /// Segments that may be open and nearly empty, beside those of the class without replicas, which
    /// [`content_of`](Self::content_of) sets aside. For each class in use, one for each head, in all its replicas; and one
    /// of each region in which a file lies as a whole.
    fn open_beside(&self, table: &Table<'_>, all: &RawTable) -> Result<u64> {
        let domains = self.areas().domains().max(1);
        let mut open = 0;
        for (code, live) in (1u8..).zip(all.mirrored) {
            let heads = &all.heads[2 * usize::from(code)..][..2];
            if live > 0 || heads.iter().any(|head| *head != 0) {
                open += 2 * u64::from(storage_class::wanted_replicas(code).unwrap_or(1)).min(domains);
            }
        }
        for n in 0..all.count as usize {
            open += u64::from(table.region(n)?.whole != 0);
        }
        Ok(open)
    }

    /// About how many free segments can be used: hosts keep room for them, or have it.
    fn ready(&self, all: &RawTable) -> u64 {
        self.left_on_hosts().map_or(all.spare, |left| all.spare.min(all.held + left))
    }

    /// Blocks of content that so many segments take. The rest is left to the cleaner, which would otherwise move nearly
    /// all live blocks again and again.
    fn content_of(&self, segments: u64) -> u64 {
        let spare = (segments / SPARE + BESIDE).max(LEAST_SPARE);
        segments.saturating_sub(spare) * u64::from(part::content_of(self.blocks))
    }

    /// Every object of the segment table: for marking.
    pub fn objects(session: &Session) -> Result<Vec<u64>> {
        let region = session.memory();
        match Where::find(region)? {
            Some((at, _)) => at.objects(region),
            None => Ok(Vec::new()),
        }
    }

    fn head(&self, session: &Session) -> Result<RawTable> {
        session.read(KEY, || self.at.table(session.memory()).head())
    }

    /// Refuses to go on after a failed flush.
    fn check_failed(&self) -> Result<()> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(Error::Failed(e.clone())),
            None => Ok(()),
        }
    }

    fn sums(&self) -> std::sync::MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
