//! Changes of the table.

use pram::{Off, Tx};

use super::TAG;
use super::{
    field, slot_in, slot_word, Cause, Health, RawSegment, RawTable, RawTableRegion, Result, Segment, SlotState, Table,
    Where, CHUNK, CHUNK_BYTES, LEAST_REPLICAS, LEAVES,
};
use crate::storage_class::CLASSES;

/// Chunks that are freed in one transaction.
const CHUNKS_AT_ONCE: u32 = 256;

/// The table, in a transaction under the lock of [`KEY`].
pub struct Change<'t, 'o> {
    pub tx: &'t mut Tx<'o>,
    pub(super) at: Where,
}

impl<'t, 'o> Change<'t, 'o> {
    pub fn new(tx: &'t mut Tx<'o>, at: Where) -> Change<'t, 'o> {
        Change { tx, at }
    }

    pub fn table(&self) -> Table<'o> {
        self.at.table(self.tx.memory())
    }

    pub fn head(&self) -> Result<RawTable> {
        self.table().head()
    }

    /// Sets the next sequence number and the limit.
    pub fn set_sequence(&mut self, sequence: u64, limit: u64) -> Result<()> {
        self.tx.set(field!(self, sequence), &sequence)?;
        Ok(self.tx.set(field!(self, limit), &limit)?)
    }

    /// Puts the region with this number into a domain.
    pub fn set_domain(&mut self, number: u32, domain: u32) -> Result<()> {
        let found = self.table().regions()?.into_iter().find(|(_, region)| region.number == number);
        let unknown = || super::Error::Unusable(format!("region {number} is none of the pool"));
        let (n, region) = found.ok_or_else(unknown)?;
        self.set_region(n, &RawTableRegion { domain, ..region })?;
        let changes = self.head()?.changes;
        Ok(self.tx.set(field!(self, changes), &(changes + 1))?)
    }

    /// Records the mark in the labels of the region with this number.
    pub fn set_mark(&mut self, number: u32, mark: u64) -> Result<()> {
        self.set_marks(number, Some(mark), mark)
    }

    /// Records that the labels of the region with this number are about to be raised to `raising`; `mark`: their present
    /// one, where it is known.
    pub fn set_raising(&mut self, number: u32, mark: Option<u64>, raising: u64) -> Result<()> {
        self.set_marks(number, mark, raising)
    }

    fn set_marks(&mut self, number: u32, mark: Option<u64>, raising: u64) -> Result<()> {
        let regions = self.table().regions()?;
        match regions.into_iter().find(|(_, region)| region.number == number) {
            Some((n, region)) => {
                let mark = mark.unwrap_or(region.mark);
                self.set_region(n, &RawTableRegion { mark, raising, ..region })
            }
            None => Ok(()),
        }
    }

    pub fn set_clock(&mut self, clock: u64, version: u64) -> Result<()> {
        self.tx.set(field!(self, clock), &clock)?;
        Ok(self.tx.set(field!(self, version), &version)?)
    }

    pub fn set_promised(&mut self, promised: u64) -> Result<()> {
        Ok(self.tx.set(field!(self, promised), &promised)?)
    }

    /// Sets the background work that is asked for.
    pub fn set_tasks(&mut self, tasks: u64, rate: u64) -> Result<()> {
        self.tx.set(field!(self, tasks), &tasks)?;
        Ok(self.tx.set(field!(self, rate), &rate)?)
    }

    pub fn set_scrubbed(&mut self, scrubbed: u64, began: u64) -> Result<()> {
        self.tx.set(field!(self, scrubbed), &scrubbed)?;
        Ok(self.tx.set(field!(self, scrub_began), &began)?)
    }

    pub fn set_recovered(&mut self, recovered: u64) -> Result<()> {
        Ok(self.tx.set(field!(self, recovered), &recovered)?)
    }

    /// Counts so many more, or fewer, live blocks in segments of a class.
    pub fn count_live(&mut self, class: u8, more: i64) -> Result<()> {
        let all = self.head()?;
        let live = all.live.saturating_add_signed(more);
        self.tx.set(field!(self, live), &live)?;
        match usize::from(class).checked_sub(1).filter(|n| *n < all.mirrored.len()) {
            Some(n) => {
                let counted = all.mirrored[n].saturating_add_signed(more);
                Ok(self.tx.set(field!(self, mirrored).index(n as u64), &counted)?)
            }
            None => Ok(()),
        }
    }

    /// Sets the number of live blocks, in all and in segments of each class that wants replicas.
    pub fn set_counted(&mut self, live: u64, mirrored: &[u64; CLASSES - 1]) -> Result<()> {
        self.tx.set(field!(self, live), &live)?;
        Ok(self.tx.set(field!(self, mirrored).cast(), mirrored)?)
    }

    /// Sets the number of live blocks of a slot in use: costs one word of undo log.
    pub fn set_live(&mut self, slot: u32, segment: &Segment) -> Result<()> {
        let entry = self.entry(slot)?;
        Ok(self.tx.set(entry.cast(), &segment.to_raw()[0])?)
    }

    pub fn set_head(&mut self, head: usize, slot: Option<u32>) -> Result<()> {
        Ok(self.tx.set(field!(self, heads).index(head as u64), &slot_word(slot))?)
    }

    /// Sets the open slot for files that lie in region `n` of the table as a whole.
    pub fn set_whole(&mut self, n: usize, slot: Option<u32>) -> Result<()> {
        let region = self.table().region(n)?;
        self.set_region(n, &RawTableRegion { whole: slot_word(slot), ..region })
    }

    /// The entry of a slot; makes its chunk if it is not there.
    fn entry(&mut self, slot: u32) -> Result<Off<RawSegment>> {
        if let Some(entry) = self.table().entry(slot)? {
            return Ok(entry);
        }
        let chunk = self.tx.alloc(TAG, CHUNK_BYTES)?.off;
        self.tx.init_zero(chunk, CHUNK_BYTES)?;
        let directory = Off::<u64>::new(self.head()?.directory);
        self.tx.set(directory.index(u64::from(slot) / CHUNK), &chunk)?;
        Ok(Off::<RawSegment>::new(chunk).index(u64::from(slot) % CHUNK))
    }

    pub fn put(&mut self, slot: u32, segment: &Segment) -> Result<()> {
        let entry = self.entry(slot)?;
        Ok(self.tx.set(entry.cast(), &segment.to_raw())?)
    }

    pub(super) fn set_region(&mut self, n: usize, region: &RawTableRegion) -> Result<()> {
        let at = self.table().region_at(n)?;
        Ok(self.tx.set(at, region)?)
    }

    /// Counts so many more, or fewer, free, reserved (also free) and unusable slots, in a region and in the sums of all
    /// that take content.
    pub(super) fn count(&mut self, region: &mut RawTableRegion, spare: i64, held: i64, bad: i64) -> Result<()> {
        let all = self.head()?;
        for (own, word, at, more) in [
            (&mut region.spare, all.spare, field!(self, spare), spare),
            (&mut region.held, all.held, field!(self, held), held),
            (&mut region.bad, all.bad, field!(self, bad), bad),
        ] {
            *own = own.saturating_add_signed(more);
            if more != 0 && region.standing == Health::Taking as u32 {
                self.tx.set(at, &word.saturating_add_signed(more))?;
            }
        }
        Ok(())
    }

    /// Takes the next slot of a list out of it.
    pub(super) fn take_next(&mut self, slot: u32) -> Result<()> {
        let (n, mut region) = self.table().region_of(slot)?;
        let mut held = 0;
        if region.next_reserved() == Some(slot) {
            region.reserved = slot_word(self.table().get(slot)?.next);
            held = -1;
        } else if slot_in(region.free) == Some(slot) {
            region.free = slot_word(self.table().get(slot)?.next);
        } else {
            region.fresh = u64::from(slot) + 1;
        }
        self.count(&mut region, -1, held, 0)?;
        self.set_region(n, &region)
    }

    /// Moves the next free slot to the reserved ones: the host keeps room for it.
    pub fn reserve(&mut self, slot: u32) -> Result<()> {
        self.take_next(slot)?;
        self.push_reserved(slot)
    }

    /// Puts a slot that is in no list into the reserved ones: it is free, and the host keeps room for it.
    pub fn push_reserved(&mut self, slot: u32) -> Result<()> {
        let (n, mut region) = self.table().region_of(slot)?;
        self.put(slot, &Segment { next: region.next_reserved(), ..Segment::FREE })?;
        region.reserved = slot_word(Some(slot));
        self.count(&mut region, 1, 1, 0)?;
        self.set_region(n, &region)
    }

    /// Puts a slot that is in no list into the free ones.
    pub fn push_free(&mut self, slot: u32) -> Result<()> {
        let (n, mut region) = self.table().region_of(slot)?;
        self.put(slot, &Segment { next: slot_in(region.free), ..Segment::FREE })?;
        region.free = slot_word(Some(slot));
        self.count(&mut region, 1, 0, 0)?;
        self.set_region(n, &region)
    }

    /// Keeps a slot that is in no list from being used, from `now` on, in seconds since 1970.
    pub fn set_bad(&mut self, slot: u32, now: u64) -> Result<()> {
        let (n, mut region) = self.table().region_of(slot)?;
        self.count(&mut region, 0, 0, 1)?;
        self.set_region(n, &region)?;
        self.put(slot, &Segment { state: SlotState::Bad, stamp: now, ..Segment::FREE })
    }

    /// A bad slot has failed a test.
    pub fn set_still_bad(&mut self, slot: u32, now: u64) -> Result<()> {
        let segment = self.table().get(slot)?;
        match segment.state {
            SlotState::Bad => self.put(slot, &Segment { stamp: now, ..segment }),
            _ => Ok(()),
        }
    }

    /// A slot that is bad since `since` is well: process `by` discards it. False if that has changed.
    pub fn end_bad(&mut self, slot: u32, since: u64, by: u64) -> Result<bool> {
        let segment = self.table().get(slot)?;
        if (segment.state, segment.stamp) != (SlotState::Bad, since) {
            return Ok(false);
        }
        let (n, mut region) = self.table().region_of(slot)?;
        self.count(&mut region, 0, 0, -1)?;
        self.set_region(n, &region)?;
        self.put(slot, &Segment { state: SlotState::Discarding, stamp: by, ..Segment::FREE })?;
        Ok(true)
    }

    /// Gives the next slot of a list to the backing.
    pub fn take_for_backing(&mut self, slot: u32, since: u64) -> Result<()> {
        self.take_next(slot)?;
        self.put_backing(slot, since)
    }

    /// Gives a slot without content, of any list, to the backing: before the lists are made anew.
    pub fn take_named_for_backing(&mut self, slot: u32) -> Result<()> {
        let (n, mut region) = self.table().region_of(slot)?;
        match self.table().get(slot)?.state {
            SlotState::Free | SlotState::Freed | SlotState::Discarding => {
                region.fresh = region.fresh.max(u64::from(slot) + 1);
                self.set_region(n, &region)?;
                self.put_backing(slot, 0)
            }
            SlotState::Bad => self.put(slot, &Segment { state: SlotState::Backing, ..Segment::FREE }),
            _ => Ok(()),
        }
    }

    /// Does the backing have a slot of the region?
    pub fn has_backing(&self, region: &RawTableRegion) -> Result<bool> {
        for slot in region.first..region.range().end.min(region.fresh as u32) {
            if self.table().get(slot)?.state == SlotState::Backing {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn put_backing(&mut self, slot: u32, since: u64) -> Result<()> {
        let (n, mut region) = self.table().region_of(slot)?;
        self.count(&mut region, 0, 0, 1)?;
        self.set_region(n, &region)?;
        self.put(slot, &Segment { state: SlotState::Backing, stamp: since, ..Segment::FREE })
    }

    /// Takes a slot from the backing: process `by` is discarding it.
    pub fn release_from_backing(&mut self, slot: u32, by: u64) -> Result<()> {
        if self.table().get(slot)?.state != SlotState::Backing {
            return Ok(());
        }
        let (n, mut region) = self.table().region_of(slot)?;
        self.count(&mut region, 0, 0, -1)?;
        self.set_region(n, &region)?;
        self.put(slot, &Segment { state: SlotState::Discarding, stamp: by, ..Segment::FREE })
    }

    /// Makes an open segment of these free slots: the first is the segment, the others are replicas of it.
    pub fn open(&mut self, slots: &[u32], sequence: u64, head: u8, class: u8) -> Result<Segment> {
        slots.iter().try_for_each(|slot| self.take_next(*slot))?;
        let next = self.chain_in(slots[0], sequence)?;
        let segment = Segment { sequence, state: SlotState::Open, head, class, next, ..Segment::FREE };
        self.put(slots[0], &segment)?;
        slots[1..].iter().try_for_each(|slot| self.link_replica(slots[0], *slot, false))?;
        self.table().get(slots[0])
    }

    /// Frees a segment, with its replicas, in this epoch. No mapping leads to it, whatever its count of live blocks says.
    pub fn free(&mut self, slot: u32, segment: &Segment, epoch: u64) -> Result<()> {
        self.count_live(segment.class, -i64::from(segment.live))?;
        self.unchain(slot, segment)?;
        for (replica, entry) in self.table().replicas(slot, segment)? {
            self.free_slot(replica, entry.failed, epoch)?;
        }
        Ok(())
    }

    /// Frees a slot to which nothing leads any more.
    pub(super) fn free_slot(&mut self, slot: u32, failed: bool, epoch: u64) -> Result<()> {
        let freed = Segment { state: SlotState::Freed, stamp: epoch, failed, ..Segment::FREE };
        self.put(slot, &freed)?;
        let head = self.head()?;
        match slot_in(head.last_freed) {
            Some(last) => {
                let last_one = self.table().get(last)?;
                self.put(last, &Segment { next: Some(slot), ..last_one })?;
            }
            None => self.tx.set(field!(self, freed), &slot_word(Some(slot)))?,
        }
        self.tx.set(field!(self, last_freed), &slot_word(Some(slot)))?;
        Ok(self.tx.set(field!(self, waiting), &(head.waiting + 1))?)
    }

    /// Takes the first freed slot out of its list, if it was freed in an epoch before `durable`: process `by` is
    /// discarding it, or it is bad from `now` on, in seconds since 1970.
    pub fn take_freed(&mut self, durable: u64, by: u64, now: u64) -> Result<Option<(u32, SlotState)>> {
        let head = self.head()?;
        let Some(slot) = slot_in(head.freed) else { return Ok(None) };
        let segment = self.table().get(slot)?;
        if segment.stamp >= durable {
            return Ok(None);
        }
        self.tx.set(field!(self, freed), &slot_word(segment.next))?;
        if segment.next.is_none() {
            self.tx.set(field!(self, last_freed), &0)?;
        }
        self.tx.set(field!(self, waiting), &head.waiting.saturating_sub(1))?;
        if segment.failed {
            self.set_bad(slot, now)?;
            return Ok(Some((slot, SlotState::Bad)));
        }
        self.put(slot, &Segment { state: SlotState::Discarding, stamp: by, ..Segment::FREE })?;
        Ok(Some((slot, SlotState::Discarding)))
    }

    /// Moves a slot to the end of the freed ones, as if freed in this epoch. Does so only if it is the first and was
    /// freed in an epoch before `durable`; returns whether it did.
    pub fn requeue_freed(&mut self, slot: u32, durable: u64, epoch: u64) -> Result<bool> {
        let head = self.head()?;
        let segment = self.table().get(slot)?;
        if slot_in(head.freed) != Some(slot) || segment.stamp >= durable || epoch < durable {
            return Ok(false);
        }
        self.tx.set(field!(self, freed), &slot_word(segment.next))?;
        if segment.next.is_none() {
            self.tx.set(field!(self, last_freed), &0)?;
        }
        self.tx.set(field!(self, waiting), &head.waiting.saturating_sub(1))?;
        self.free_slot(slot, segment.failed, epoch)?;
        Ok(true)
    }

    /// Puts a segment that was found on a disk into use.
    pub fn adopt(&mut self, slot: u32, segment: Segment) -> Result<()> {
        let next = self.chain_in(slot, segment.sequence)?;
        self.count_live(segment.class, i64::from(segment.live))?;
        self.put(slot, &Segment { next, ..segment })?;
        let (n, mut region) = self.table().region_of(slot)?;
        region.fresh = region.fresh.max(u64::from(slot) + 1);
        self.set_region(n, &region)
    }

    /// Empties the lists of free slots, and with `freed_too` the list of freed ones.
    pub fn forget_free(&mut self, freed_too: bool) -> Result<()> {
        for (n, mut region) in self.table().regions()? {
            (region.free, region.reserved) = (0, 0);
            let unused = u64::from(region.range().end).saturating_sub(region.fresh);
            let (spare, held) = (unused as i64 - region.spare as i64, -(region.held as i64));
            self.count(&mut region, spare, held, 0)?;
            self.set_region(n, &region)?;
        }
        if freed_too {
            self.tx.set(field!(self, freed), &0)?;
            self.tx.set(field!(self, last_freed), &0)?;
            self.tx.set(field!(self, waiting), &0)?;
        }
        Ok(())
    }

    /// Frees a slot that process `by` was discarding. The host has its room back, or keeps it if `is_wanted`.
    pub fn discarded(&mut self, slot: u32, is_wanted: bool, by: u64) -> Result<()> {
        let segment = self.table().get(slot)?;
        match (segment.state, segment.stamp == by) {
            (SlotState::Discarding, true) if is_wanted => self.push_reserved(slot),
            (SlotState::Discarding, true) => self.push_free(slot),
            _ => Ok(()),
        }
    }

    /// Hands a slot that the dead process `from` was discarding to process `by`; returns whether it did.
    pub fn take_orphan(&mut self, slot: u32, from: u64, by: u64) -> Result<bool> {
        let segment = self.table().get(slot)?;
        let is_it = segment.state == SlotState::Discarding && segment.stamp == from;
        if is_it {
            self.put(slot, &Segment { stamp: by, ..segment })?;
        }
        Ok(is_it)
    }

    /// Makes room for `more` entries of `bytes` each in an object with `entries` in use: returns that object, or a
    /// larger one with the same content in its place.
    pub(super) fn grown(&mut self, object: u64, entries: u64, more: u64, bytes: u64) -> Result<u64> {
        let region = self.tx.memory();
        let has = region.resolve(object, TAG)?;
        if more * bytes <= has {
            return Ok(object);
        }
        let size = (more * bytes).max(2 * has);
        let grown = self.tx.alloc(TAG, size)?.off;
        self.tx.init_zero(grown, size)?;
        for word in 0..entries * bytes / 8 {
            let value = region.load(Off::<u64>::new(object).index(word))?;
            self.tx.init(Off::<u64>::new(grown).index(word), &value)?;
        }
        self.tx.free(object, TAG)?;
        Ok(grown)
    }

    /// Adds a region with so many slots to the log; returns its place in the table.
    pub fn add_region(&mut self, number: u32, slots: u32) -> Result<usize> {
        let all = self.head()?;
        let bytes = size_of::<RawTableRegion>() as u64;
        let first = all.end.next_multiple_of(CHUNK);
        let end = first + u64::from(slots);
        if end >= u64::from(u32::MAX) {
            return Err(super::Error::Unusable("the log cannot have so many segments".into()));
        }
        let gone = (0..all.count as usize)
            .find(|n| self.table().region(*n).is_ok_and(|r| r.health() == Health::None && r.slots == 0));
        let n = gone.unwrap_or(all.count as usize);
        if gone.is_none() {
            let regions = self.grown(all.regions, all.count, all.count + 1, bytes)?;
            self.tx.set(field!(self, regions), &regions)?;
            self.tx.set(field!(self, count), &(all.count + 1))?;
        }
        let directory = self.grown(all.directory, all.end.div_ceil(CHUNK), end.div_ceil(CHUNK), 8)?;
        self.tx.set(field!(self, directory), &directory)?;
        self.tx.set(field!(self, end), &end)?;
        let mut region = RawTableRegion {
            number,
            standing: Health::Taking as u32,
            first: first as u32,
            slots,
            fresh: first,
            ..RawTableRegion::default()
        };
        self.count(&mut region, i64::from(slots), 0, 0)?;
        self.set_region(n, &region)?;
        self.tx.set(field!(self, slots), &(all.slots + u64::from(slots)))?;
        self.tx.set(field!(self, changes), &(all.changes + 1))?;
        Ok(n)
    }

    /// Fences region `n`. If it was leaving, it goes on leaving when it is back.
    pub fn set_failed(&mut self, n: usize, cause: Cause) -> Result<()> {
        let before = self.table().region(n)?;
        let leaves = before.leaves() || before.health() == Health::Leaving;
        self.set_health(n, Health::Failed)?;
        let region = self.table().region(n)?;
        let least_replicas = before.cause >> LEAST_REPLICAS << LEAST_REPLICAS;
        self.set_region(
            n,
            &RawTableRegion { cause: cause as u32 | if leaves { LEAVES | least_replicas } else { 0 }, ..region },
        )
    }

    /// Region `n`, which had failed, is back: it takes content, or goes on leaving.
    pub fn set_back(&mut self, n: usize) -> Result<()> {
        let leaves = self.table().region(n)?.leaves();
        self.set_health(n, if leaves { Health::Leaving } else { Health::Taking })?;
        let region = self.table().region(n)?;
        self.set_region(n, &RawTableRegion { cause: region.cause >> LEAST_REPLICAS << LEAST_REPLICAS, ..region })
    }

    /// Content in region `n`, which leaves, keeps at least so many replicas if it is to have more; 0: all that it is to
    /// have.
    pub fn set_least_replicas(&mut self, n: usize, replicas: u32) -> Result<()> {
        let region = self.table().region(n)?;
        self.set_region(
            n,
            &RawTableRegion {
                cause: region.cause & ((1 << LEAST_REPLICAS) - 1) | replicas << LEAST_REPLICAS,
                ..region
            },
        )
    }

    /// Region `n`, which has failed, is to stay when it is back.
    pub fn set_stays(&mut self, n: usize) -> Result<()> {
        let region = self.table().region(n)?;
        self.set_region(n, &RawTableRegion { cause: region.cause & (LEAVES - 1), ..region })
    }

    /// Sets the health of region `n`. [`Health::None`] removes it, and is only for a region without content.
    pub fn set_health(&mut self, n: usize, health: Health) -> Result<()> {
        let all = self.head()?;
        let mut region = self.table().region(n)?;
        let before = region.health();
        if before == health {
            return Ok(());
        }
        let sign = |health| if health == Health::Taking { 1 } else { 0 };
        region.since = pram::clock::seconds();
        let more = sign(health) - sign(before);
        let changed = |word: u64, of: u64| word.saturating_add_signed(more * of as i64);
        self.tx.set(field!(self, spare), &changed(all.spare, region.spare))?;
        self.tx.set(field!(self, held), &changed(all.held, region.held))?;
        self.tx.set(field!(self, bad), &changed(all.bad, region.bad))?;
        self.tx.set(field!(self, slots), &changed(all.slots, region.slots.into()))?;
        self.tx.set(field!(self, changes), &(all.changes + 1))?;
        region.standing = health as u32;
        region.cause = if health == Health::Taking { 0 } else { region.cause };
        self.set_region(n, &region)
    }

    /// Removes region `n`, which is empty. Its number stays, and its chunks do until they are freed too.
    pub fn forget_region(&mut self, n: usize) -> Result<()> {
        self.set_health(n, Health::None)?;
        let region = self.table().region(n)?;
        let RawTableRegion { number, first, slots, .. } = region;
        self.set_region(n, &RawTableRegion { number, first, slots, ..RawTableRegion::default() })
    }

    /// Frees some chunks of a removed region; true if it may have more.
    pub fn forget_chunks(&mut self, number: u32) -> Result<bool> {
        let count = self.head()?.count as usize;
        let is_it = |r: &RawTableRegion| r.number == number && r.health() == Health::None && r.slots > 0;
        let regions: Vec<RawTableRegion> = (0..count).map(|n| self.table().region(n)).collect::<Result<_>>()?;
        let Some(n) = regions.iter().position(is_it) else { return Ok(false) };
        let region = regions[n];
        let directory = Off::<u64>::new(self.head()?.directory);
        let (mut gone, first) = (0, u64::from(region.first) / CHUNK);
        for entry in (first..u64::from(region.range().end).div_ceil(CHUNK)).map(|n| directory.index(n)) {
            let chunk = self.tx.memory().load(entry)?;
            if chunk != 0 {
                self.tx.free(chunk, TAG)?;
                self.tx.set(entry, &0)?;
                gone += 1;
            }
            if gone == CHUNKS_AT_ONCE {
                return Ok(true);
            }
        }
        self.set_region(n, &RawTableRegion { slots: 0, ..region })?;
        Ok(false)
    }
}
