//! Gathering blocks into parts, and writing those.
//!
//! | step | action | otherwise, after a crash |
//! | --- | --- | --- |
//! | 1 | a transaction takes room for a part: its blocks count as live | another part is written there; or the segment is given up meanwhile |
//! | 2 | summary and content are written to all replicas of the segment, by requests in any order | |
//! | 3 | all requests are complete, or late where another region takes content ([`unresponsive`](super::unresponsive)), which counts as a failure. A transaction drops a replica that failed; a part that failed in all replicas is written elsewhere, and its segment is used no more | a flush does not cover incomplete requests; a replica is believed that lacks the part |
//! | 4 | each region is flushed: the part is durable. A region whose flush failed takes nothing more, and the part is written anew | a mapping leads to content that is not there |
//! | 5 | the owners get the places, and link them | |
//!
//! The content must not change until it has been written: content and checksum would not agree.
//!
//! The versions of a page are in the order in which room was taken for them. So a page is written again only after its
//! version before has been written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use exraid::{Aligned, Answer, Background, Buffers, Class as Failure, Late, Region, Request, Ticket};
use pram::session::assert_may_wait;
use pram::Session;

use super::areas::Lies;
use super::error::{Error, Result};
use super::failure::{cause_of, is_gone, is_of_the_slot};
use super::part::{content_of, summary_blocks, Entry, Owner, Part};
use super::place::{Place, BLOCK};
use super::room::{Room, Want};
use super::storage_class::Class;
use super::unresponsive::GLANCE;
use super::walk::Walk;
use super::{Head, Log};

/// How often a part is written elsewhere before the disk is given up.
const AGAIN: u32 = 3;
/// How long another writer's first part is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A block to be written.
#[derive(Clone, Debug)]
pub struct Block {
    pub owner: Owner,
    /// As many bytes as a block has.
    pub content: Buffers,
    /// For content that is moved and was verified: its checksum and version.
    pub moved: Option<(u32, u64)>,
}

/// Blocks on their way to segments.
#[must_use = "what is not finished is given up"]
pub struct Writer<'l> {
    log: &'l Log,
    session: &'l Session,
    head: Head,
    class: Class,
    priority: u8,
    /// When the content was written, by the log's clock; else now.
    stamp: Option<u64>,
    /// For lazy content that is moved: when its replicas were due.
    due: Option<u32>,
    least: u64,
    /// The position of a block among those that were pushed, and the block.
    waiting: Vec<(usize, Block)>,
    flights: Vec<Flight>,
    count: usize,
    again: u32,
    window: Arc<Window>,
}

/// A part under way.
struct Flight {
    room: Room,
    replicas: Vec<Replica>,
    part: Part,
    blocks: Vec<(usize, Block)>,
    numbers: Vec<usize>,
}

/// One replica of a part: the write to one slot of its segment.
struct Replica {
    slot: u32,
    region: Arc<dyn Region>,
    progress: Arc<Mutex<Progress>>,
}

/// The bytes of a replica that are under way, and the first failure.
#[derive(Default)]
struct Progress {
    /// Bytes that were not answered; those of them that are late.
    left: u64,
    late: u64,
    /// No writer waits for the late requests any more.
    given_up: bool,
    failed: Option<exraid::Error>,
}

/// Bytes under way that are waited for.
#[derive(Default)]
struct Window {
    bytes: Mutex<u64>,
    less: Condvar,
}

impl Window {
    /// Waits until at most so many bytes are under way, or some time has passed; true in the first case.
    fn is_below(&self, most: u64) -> bool {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.less.wait_timeout_while(bytes, GLANCE, |bytes| *bytes > most);
        *waited.unwrap_or_else(PoisonError::into_inner).0 <= most
    }

    fn add(&self, more: u64) {
        *self.bytes.lock().unwrap_or_else(PoisonError::into_inner) += more;
    }

    fn sub(&self, less: u64) {
        *self.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= less;
        self.less.notify_one();
    }
}

impl Log {
    /// Begins to write blocks to a head. `stamp`: when their content was written, by the clock of
    /// [`counts`](Log::counts); `None`: now.
    pub fn writer<'l>(&'l self, session: &'l Session, head: Head, stamp: Option<u64>) -> Writer<'l> {
        self.writers.fetch_add(1, Ordering::SeqCst);
        Writer {
            log: self,
            session,
            head,
            class: Class::None,
            priority: 0,
            stamp,
            due: None,
            least: 1,
            waiting: Vec::new(),
            flights: Vec::new(),
            count: 0,
            again: 0,
            window: Arc::default(),
        }
    }
}

impl<'l> Writer<'l> {
    /// Its blocks are of this class and priority.
    pub fn of(mut self, class: Class, priority: u8) -> Writer<'l> {
        (self.class, self.priority) = (class, priority);
        self
    }

    /// Its blocks were to have their replicas by then, if they are lazy.
    pub fn due(mut self, due: Option<u32>) -> Writer<'l> {
        self.due = due;
        self
    }

    /// Its blocks get at least so many of the replicas that they are to have; otherwise they are not written.
    pub fn least(mut self, replicas: u64) -> Writer<'l> {
        self.least = replicas;
        self
    }

    /// Adds a block. Writes a part that is full; waits while too much is under way.
    ///
    /// # Panics
    /// If the content is not as long as a block.
    pub fn push(&mut self, block: Block) -> Result<()> {
        assert_eq!(block.content.len(), BLOCK);
        self.waiting.push((self.count, block));
        self.count += 1;
        match self.waiting.len() as u32 >= content_of(self.log.blocks) {
            true => self.start(),
            false => Ok(()),
        }
    }

    /// Writes the remaining blocks and waits until all are durable; returns the places, in the order of the blocks.
    /// After an error nothing counts as written.
    pub fn finish(self) -> Result<Vec<Place>> {
        let (log, session) = (self.log, self.session);
        all_of(log, session, self.finish_some()?)
    }

    /// Like [`finish`](Writer::finish), but blocks for which there was no room are without a place.
    pub fn finish_some(mut self) -> Result<Vec<Option<Place>>> {
        assert_may_wait();
        loop {
            while !self.waiting.is_empty() {
                let started = self.start();
                self.without_room(started)?;
            }
            let finished = self.finish_flights();
            self.without_room(finished)?;
            if self.waiting.is_empty() && self.flush()? {
                break;
            }
        }
        let flights = std::mem::take(&mut self.flights);
        let mut places = vec![None; self.count];
        let mut sums = self.log.sums();
        for flight in &flights {
            sums.add(&flight.part);
            for (number, place) in flight.numbers.iter().zip(flight.room.places()) {
                places[*number] = Some(place);
            }
        }
        Ok(places)
    }

    /// Drops the blocks that still wait if there is no room for them.
    fn without_room(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(Error::NoSpace) => {
                self.waiting.clear();
                Ok(())
            }
            done => done,
        }
    }

    /// Starts a part of the waiting blocks: as many as fit into one segment.
    fn start(&mut self) -> Result<()> {
        assert_may_wait();
        self.log.check_failed()?;
        // So many bytes for each region.
        self.wait_below(self.log.options.window * self.log.areas().taking().count().max(1) as u64);
        // 1.
        let most = content_of(self.log.blocks).min(self.waiting.len() as u32);
        let Writer { head, class, stamp, priority, due, least, .. } = *self;
        let room =
            self.log.take_room(self.session, &Want { head, class, content: most, stamp, priority, due, least })?;
        let blocks: Vec<_> = self.waiting.drain(..room.content as usize).collect();
        let part = self.part(&room, &blocks);
        // 2.
        let (mut replicas, mut missing) = (Vec::new(), None);
        for slot in &room.slots {
            match self.log.lies(self.session, *slot) {
                Ok(lies) => replicas.push(self.submit(&room, *slot, lies, &part, &blocks)),
                Err(e) => missing = Some((*slot, e)),
            }
        }
        let numbers = blocks.iter().map(|(number, _)| *number).collect();
        let are_none = replicas.is_empty();
        self.flights.push(Flight { room, replicas, part, blocks, numbers });
        match missing {
            Some((_, e)) if are_none => Err(e),
            Some((slot, _)) => {
                self.flights.last().map_or(Ok(()), |flight| self.drop_replica(flight, slot, false).map(drop))
            }
            None => Ok(()),
        }
    }

    /// Has one replica of a part written.
    fn submit(&self, room: &Room, slot: u32, lies: Lies, part: &Part, blocks: &[(usize, Block)]) -> Replica {
        let mut summary = Aligned::zeroed((summary_blocks(room.content) as u64 * BLOCK) as usize);
        if let Some(memory) = Arc::get_mut(&mut summary) {
            part.write(&lies.identity, memory.bytes_mut());
        }
        let preferred = u64::from(lies.region.properties().preferred);
        let most = if Background::is() { preferred.min(lies.region.piece()) } else { preferred };
        let pieces = pieces(Buffers::whole(&summary), blocks, most);
        let left = pieces.iter().map(Buffers::len).sum();
        let progress = Arc::new(Mutex::new(Progress { left, ..Progress::default() }));
        let mut at = lies.at + u64::from(room.block) * BLOCK;
        for piece in pieces {
            let (len, progress, window) = (piece.len(), progress.clone(), self.window.clone());
            if self.log.give_way(self.session, &*lies.region, len) {
                self.wait_below(0);
            }
            self.window.add(len);
            let (is_late, late) = (Arc::new(AtomicBool::new(false)), progress.clone());
            let was_late = is_late.clone();
            let done = move |answer: Answer| {
                let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                let was_late = was_late.load(Ordering::SeqCst);
                progress.left -= len;
                progress.late -= if was_late { len } else { 0 };
                progress.failed = progress.failed.take().or(answer.result.err());
                if !(was_late && progress.given_up) {
                    window.sub(len);
                }
            };
            let late = Late::new(move || {
                let mut progress = late.lock().unwrap_or_else(PoisonError::into_inner);
                if progress.left >= progress.late + len && !progress.given_up {
                    is_late.store(true, Ordering::SeqCst);
                    progress.late += len;
                }
            });
            lies.region.submit(Request::write(at, piece).tagged(room.sequence).with_late(late), Box::new(done));
            at += len;
        }
        Replica { slot, region: lies.region, progress }
    }

    /// The summary of a part.
    fn part(&self, room: &Room, blocks: &[(usize, Block)]) -> Part {
        let mut bytes = [0; BLOCK as usize];
        let entry = |((_, block), version): (&(usize, Block), u64)| {
            let (crc, version) = block.moved.unwrap_or_else(|| {
                block.content.copy_to(&mut bytes);
                (crc32c::crc32c(&bytes), version)
            });
            Entry { owner: block.owner, version, crc }
        };
        Part {
            sequence: room.sequence,
            block: room.block,
            number: room.number,
            segment: self.log.blocks,
            head: self.head as u32,
            class: self.class.code().into(),
            written: self.log.clock.now(),
            entries: blocks.iter().zip(room.version..).map(entry).collect(),
        }
    }

    /// Waits until at most so many bytes are under way. Gives up late requests if another region can take the content.
    fn wait_below(&self, most: u64) {
        while !self.window.is_below(most) {
            for replica in self.flights.iter().flat_map(|flight| &flight.replicas) {
                if replica.is_late()
                    && !self.log.answers(&*replica.region)
                    && self.log.can_go_round(replica.region.number())
                {
                    self.window.sub(replica.give_up());
                }
            }
        }
    }

    /// Step 3. Waits for all that is under way. Parts that failed in all replicas wait to be written elsewhere.
    fn finish_flights(&mut self) -> Result<()> {
        self.wait_below(0);
        self.flights.iter().for_each(|flight| self.expect_first(flight));
        let mut flights = std::mem::take(&mut self.flights);
        for flight in &mut flights {
            self.fence_gone(flight)?;
            self.drop_failed(flight)?;
        }
        let (good, bad): (Vec<_>, Vec<_>) = flights.into_iter().partition(|flight| flight.failure().is_none());
        self.flights = good;
        let mut last = None;
        for flight in bad {
            let Some(e) = flight.failure() else { continue };
            self.log.give_up(self.session, &flight.room.places())?;
            if is_of_the_slot(&e) {
                tracing::warn!("segment {}: {e}; it is used no more", flight.room.sequence);
                self.log.set_failed(self.session, flight.room.sequence)?;
                flight.replicas.iter().for_each(|replica| self.expect_answer(replica));
            }
            last = Some(e);
            // Their versions stay: others of the same pages may have been written since.
            let version_of = |((n, block), entry): ((usize, Block), &Entry)| {
                (n, Block { moved: Some((entry.crc, entry.version)), ..block })
            };
            self.waiting.extend(flight.blocks.into_iter().zip(&flight.part.entries).map(version_of));
        }
        match last {
            Some(e) if e.class == Failure::NoSpace => Err(Error::NoSpace),
            Some(e) if e.class != Failure::Timeout && self.again >= AGAIN || self.is_hopeless(&e) => Err(e.into()),
            Some(_) => {
                self.again += 1;
                self.waiting.sort_unstable_by_key(|(number, _)| *number);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The slot may be used again once its late requests were answered.
    fn expect_answer(&self, replica: &Replica) {
        let lies = self.log.lies(self.session, replica.slot).ok();
        // Another of its requests may have failed before.
        let has_more = replica.progress().left > 0;
        if let Some(lies) = lies.filter(|_| has_more || replica.failure().is_some_and(|e| e.class == Failure::Timeout))
        {
            self.log.add_late(replica.slot, lies.at, &replica.region);
        }
    }

    /// Fences a region that is gone, if there are others.
    fn fence_gone(&self, flight: &Flight) -> Result<()> {
        for replica in &flight.replicas {
            if let Some(e) = replica.failure().filter(is_gone) {
                let cause = cause_of(&e);
                self.log.fence(self.session, replica.region.number(), cause, &e)?;
            }
        }
        Ok(())
    }

    /// Would it fail again in the same way?
    fn is_hopeless(&self, e: &exraid::Error) -> bool {
        matches!(e.class, Failure::Gone | Failure::ReadOnly)
            && self.log.areas().taking().all(|(_, region)| region.name() == &e.device)
    }

    /// Drops the replicas that lack a part which others have.
    fn drop_failed(&self, flight: &mut Flight) -> Result<()> {
        let failed: Vec<(u32, exraid::Error)> =
            flight.replicas.iter().filter_map(|replica| Some((replica.slot, replica.failure()?))).collect();
        let are_all = failed.len() == flight.replicas.len();
        for (slot, e) in failed.into_iter().filter(|_| !are_all) {
            tracing::warn!("segment {}: {e}; it has a replica less", flight.room.sequence);
            // It was the last replica, since others dropped theirs: then the part is nowhere.
            if !self.drop_replica(flight, slot, is_of_the_slot(&e))? {
                flight.replicas.iter().for_each(|replica| replica.set_failure(e.clone()));
                return Ok(());
            }
            flight
                .replicas
                .iter()
                .filter(|replica| replica.slot == slot)
                .for_each(|replica| self.expect_answer(replica));
            flight.replicas.retain(|replica| replica.slot != slot);
        }
        Ok(())
    }

    /// False if that is the only replica.
    fn drop_replica(&self, flight: &Flight, slot: u32, failed: bool) -> Result<bool> {
        self.log.change(self.session, |change| {
            // In the operation: this is the epoch whose commit has the change.
            let epoch = self.session.epoch()?;
            change.drop_replica(flight.room.sequence, slot, failed, epoch)
        })
    }

    /// Recovery after a loss of the memory does not find a segment that lacks its first part. So a part behind one of
    /// another writer counts only once that one is written; if it never is, its writer is dead, and this part has failed
    /// too.
    fn expect_first(&self, flight: &Flight) {
        let sequence = flight.room.sequence;
        if self.log.sums().walked(sequence) > 0 {
            return;
        }
        let own = self.flights.iter().find(|other| other.room.sequence == sequence && other.room.number == 0);
        match own.map(Flight::failure) {
            Some(None) => return,
            Some(Some(e)) => return flight.set_failure(&e),
            None => {}
        }
        // A replica that did not answer is not asked: it may never answer.
        let well: Vec<&Replica> = flight.replicas.iter().filter(|replica| replica.failure().is_none()).collect();
        if well.is_empty() {
            return;
        }
        for _ in 0..PATIENCE.as_millis() {
            for replica in &well {
                let Ok(lies) = self.log.lies(self.session, replica.slot) else { continue };
                let first = Walk::new(&*lies.region, lies.identity, lies.at, self.log.blocks).part_at(0);
                if let Some(first) = first.filter(|first| first.sequence == sequence) {
                    return self.log.sums().add(&first);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let Some(replica) = flight.replicas.first() else { return };
        let e = exraid::Error::new(
            Failure::Transient,
            replica.region.name(),
            "the first part of a segment was not written",
        );
        flight.set_failure(&e);
    }

    /// Step 4. False if a region takes nothing more: the parts of this writer there are to be written elsewhere. Other
    /// writers notice by themselves.
    fn flush(&self) -> Result<bool> {
        let mut regions: Vec<&Arc<dyn Region>> = Vec::new();
        for replica in self.flights.iter().flat_map(|flight| &flight.replicas) {
            if !regions.iter().any(|region| region.number() == replica.region.number()) {
                regions.push(&replica.region);
            }
        }
        let tickets: Vec<_> = regions.iter().map(|r| (r, r.start(Request::flush()))).collect();
        for (region, ticket) in tickets {
            if let Err(e) = self.flushed(region, ticket) {
                let cause = cause_of(&e);
                if !self.log.fence(self.session, region.number(), cause, &e)? {
                    return Err(self.log.fail(e));
                }
            }
        }
        self.log.check_failed()?;
        // After the flush: another process's flush that failed meanwhile must not be taken for a success here.
        let fenced = self.log.fenced(self.session)?;
        let is_fenced = |replica: &&Replica| fenced.contains(&replica.region.number());
        let mut lost = self.flights.iter().flat_map(|flight| &flight.replicas).filter(is_fenced).peekable();
        let is_durable = lost.peek().is_none();
        for replica in lost {
            replica.set_failure(exraid::Error::new(Failure::Gone, replica.region.name(), "it was taken out of use"));
        }
        Ok(is_durable)
    }
}

impl Writer<'_> {
    /// Waits for a flush, but not for a late region if another can take the content.
    fn flushed(&self, region: &Arc<dyn Region>, mut ticket: Ticket) -> exraid::Result<()> {
        loop {
            ticket = match ticket.wait_for(GLANCE) {
                Ok(answer) => return answer.result,
                Err(ticket) => ticket,
            };
            if !self.log.answers(&**region) && self.log.can_go_round(region.number()) {
                return Err(exraid::Error::new(Failure::Timeout, region.name(), "it does not answer"));
            }
        }
    }
}

impl Replica {
    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Are all bytes under way late?
    fn is_late(&self) -> bool {
        let progress = self.progress();
        progress.late > 0 && progress.late == progress.left && !progress.given_up
    }

    /// Stops waiting for the late requests; returns their bytes.
    fn give_up(&self) -> u64 {
        let mut progress = self.progress();
        progress.given_up = true;
        let e = exraid::Error::new(Failure::Timeout, self.region.name(), "it does not answer");
        progress.failed.get_or_insert(e);
        progress.late
    }

    fn failure(&self) -> Option<exraid::Error> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).failed.clone()
    }

    fn set_failure(&self, e: exraid::Error) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).failed.get_or_insert(e);
    }
}

impl Flight {
    /// Why no replica has the part, if none has.
    fn failure(&self) -> Option<exraid::Error> {
        let failures: Vec<_> = self.replicas.iter().map(Replica::failure).collect();
        failures.iter().all(Option::is_some).then(|| failures.into_iter().flatten().next())?
    }

    fn set_failure(&self, e: &exraid::Error) {
        self.replicas.iter().for_each(|replica| replica.set_failure(e.clone()));
    }
}

impl Drop for Writer<'_> {
    /// Gives up unfinished parts, but only when the disk is done with them, since others may get their room.
    fn drop(&mut self) {
        self.wait_below(0);
        for flight in &self.flights {
            if let Err(e) = self.log.give_up(self.session, &flight.room.places()) {
                tracing::error!("giving up room in the log: {e}");
            }
        }
        self.log.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The places of all blocks; if one has none, gives up the others.
pub(super) fn all_of(log: &Log, session: &Session, places: Vec<Option<Place>>) -> Result<Vec<Place>> {
    match places.iter().all(Option::is_some) {
        true => Ok(places.into_iter().flatten().collect()),
        false => {
            log.give_up(session, &places.into_iter().flatten().collect::<Vec<_>>())?;
            Err(Error::NoSpace)
        }
    }
}

/// Summary and content in requests of about `most` bytes.
fn pieces(summary: Buffers, blocks: &[(usize, Block)], most: u64) -> Vec<Buffers> {
    let mut pieces = vec![summary];
    for (_, block) in blocks {
        match pieces.last_mut() {
            Some(piece) if piece.len() + BLOCK <= most => piece.join(block.content.clone()),
            _ => pieces.push(block.content.clone()),
        }
    }
    pieces
}
