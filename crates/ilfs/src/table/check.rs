//! Comparing a table with the needs of the files, and checking its invariants.

use std::collections::{HashMap, HashSet};

use pram::{Memory, Tx};

use super::{slot_in, Change, Health, RawTable, RawTableRegion, Result, Segment, SlotState, Table, Where};
use crate::storage_class::CLASSES;
use crate::Place;

/// The needs of all files from a log, counted one by one.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// By sequence number: the blocks that a mapping leads to, and the highest of them plus 1.
    pub segments: HashMap<u64, (u32, u32)>,
    /// Pages that are promised room.
    pub promised: u64,
}

impl Needs {
    pub fn add(&mut self, place: Option<Place>) {
        match place {
            Some(place) => {
                let (blocks, end) = self.segments.entry(place.sequence()).or_default();
                (*blocks, *end) = (*blocks + 1, place.block().max(*end - (*end).min(1)) + 1);
            }
            None => self.promised += 1,
        }
    }

    pub fn add_all(&mut self, other: &Needs) {
        for (sequence, (more, reach)) in &other.segments {
            let (blocks, end) = self.segments.entry(*sequence).or_default();
            (*blocks, *end) = (*blocks + more, *reach.max(end));
        }
        self.promised += other.promised;
    }
}

/// Where a table does not meet the needs of the files.
#[derive(Default)]
pub struct Compared {
    /// Counts that are too low, as text.
    pub wrong: Vec<String>,
    /// Segments that are not in the table, as text: these cannot be repaired.
    pub lost: Vec<String>,
}

/// The needs that a table does not meet.
pub fn compare(region: &Memory, needs: &Needs) -> Result<Compared> {
    let Compared { wrong: mut problems, mut lost } = Compared::default();
    let Some((at, raw)) = Where::find(region)? else {
        return Ok(match needs.segments.is_empty() {
            true => Compared::default(),
            false => {
                let wrong = vec!["files have content on disks, and the pool has no log".into()];
                Compared { wrong, lost }
            }
        });
    };
    let table = at.table(region);
    let mut sorted: Vec<_> = needs.segments.iter().collect();
    sorted.sort_unstable();
    for (sequence, (blocks, end)) in sorted {
        match table.find(*sequence)? {
            None => {
                lost.push(format!("{blocks} pages of files lie in segment {sequence}, which is gone: they are lost"))
            }
            Some((_, segment)) if *end > segment.used => problems.push(format!(
                "pages of files lie in block {} of segment {sequence}, of which {} are in use: they are lost",
                end - 1,
                segment.used
            )),
            Some((_, segment)) if *blocks > segment.live => problems.push(format!(
                "segment {sequence} says that {} blocks are live, and {blocks} are in use",
                segment.live
            )),
            _ => {}
        }
    }
    if needs.promised > raw.promised {
        problems.push(format!("{} blocks are promised, and {} are reserved", raw.promised, needs.promised));
    }
    Ok(Compared { wrong: problems, lost })
}

/// Live blocks, in all and in segments of the classes that want replicas.
#[derive(Default)]
struct Live {
    all: u64,
    mirrored: [u64; CLASSES - 1],
}

impl Live {
    fn add(&mut self, class: u8, blocks: u32) {
        self.all += u64::from(blocks);
        if let Some(of) = usize::from(class).checked_sub(1).and_then(|n| self.mirrored.get_mut(n)) {
            *of += u64::from(blocks);
        }
    }

    fn add_all(&mut self, other: &Live) {
        self.all += other.all;
        self.mirrored.iter_mut().zip(other.mirrored).for_each(|(of, more)| *of += more);
    }
}

/// The work of a transaction.
pub type Work<'w> = &'w mut dyn FnMut(&mut Tx<'_>) -> Result<()>;

/// Sets the counts of a table to these needs; no other process may use it. Works in pieces, each a transaction that
/// `change` runs; returns the repairs as text.
pub fn mend(needs: &Needs, change: &mut dyn FnMut(Work<'_>) -> Result<()>) -> Result<Vec<String>> {
    const SOME: usize = 64;
    let (mut mended, mut live, mut from) = (Vec::new(), Live::default(), 0);
    let mut slots: Vec<u32> = Vec::new();
    change(&mut |tx| {
        if let Some((at, _)) = Where::find(tx.memory())? {
            slots = at.table(tx.memory()).used_slots()?.collect();
        }
        Ok(())
    })?;
    while from < slots.len() {
        let mut changes = Vec::new();
        let mut sum = Live::default();
        change(&mut |tx| {
            (changes, sum) = (Vec::new(), Live::default());
            let Some((at, _)) = Where::find(tx.memory())? else { return Ok(()) };
            for slot in slots[from..].iter().copied().take(SOME) {
                let segment = at.table(tx.memory()).get(slot)?;
                if !segment.state.is_used() {
                    continue;
                }
                let counted = needs.segments.get(&segment.sequence).map_or(0, |(blocks, _)| *blocks).min(segment.used);
                sum.add(segment.class, counted);
                if counted != segment.live {
                    changes
                        .push(format!("segment {}: {} live blocks become {counted}", segment.sequence, segment.live));
                    Change::new(tx, at).set_live(slot, &Segment { live: counted, ..segment })?;
                }
            }
            Ok(())
        })?;
        mended.extend(changes);
        live.add_all(&sum);
        from += SOME;
    }
    change(&mut |tx| {
        let Some((at, _)) = Where::find(tx.memory())? else { return Ok(()) };
        let mut change = Change::new(tx, at);
        change.set_counted(live.all, &live.mirrored)?;
        change.set_promised(needs.promised)
    })?;
    Ok(mended)
}

/// Violations of all invariants that the table alone shows. For tests and fsck; nobody may change the table meanwhile.
pub fn check(region: &Memory) -> Result<Vec<String>> {
    let Some((at, raw)) = Where::find(region)? else { return Ok(Vec::new()) };
    let table = at.table(region);
    let regions = table.regions()?;
    let in_list = vec![false; raw.end as usize];
    let mut checked = Checked { table, raw, regions, in_list, problems: Vec::new() };
    checked.check_lists()?;
    checked.check_slots()?;
    Ok(checked.problems)
}

/// A table that is checked.
struct Checked<'r> {
    table: Table<'r>,
    raw: RawTable,
    regions: Vec<(usize, RawTableRegion)>,
    /// For each slot: is it in a list?
    in_list: Vec<bool>,
    problems: Vec<String>,
}

impl Checked<'_> {
    /// Follows a list of slots in one state; returns their number.
    fn walk(&mut self, first: u64, state: SlotState, each: &mut dyn FnMut(&Segment)) -> Result<u64> {
        let (mut next, mut count) = (slot_in(first), 0);
        while let Some(slot) = next {
            let segment = self.table.get(slot)?;
            if segment.state != state || std::mem::replace(&mut self.in_list[slot as usize], true) {
                self.problems.push(format!("slot {slot} is {:?} in the list of the {state:?}", segment.state));
                break;
            }
            each(&segment);
            (next, count) = (segment.next, count + 1);
        }
        Ok(count)
    }

    /// Checks the lists of free slots and their counts.
    fn check_lists(&mut self) -> Result<()> {
        let mut miscounted = Vec::new();
        let (mut spare, mut held, mut bad, mut slots) = (0, 0, 0, 0);
        for (n, region) in self.regions.clone() {
            let reserved = self.walk(region.reserved, SlotState::Free, &mut |_| ())?;
            let unused = u64::from(region.range().end).saturating_sub(region.fresh);
            let free = reserved + self.walk(region.free, SlotState::Free, &mut |_| ())? + unused;
            if (free, reserved) != (region.spare, region.held) {
                let recorded = (region.spare, region.held);
                miscounted.push(format!(
                    "region {n} of the log: {free} slots are free, {reserved} reserved, not {recorded:?}"
                ));
            }
            if region.health() == Health::Taking {
                (spare, held) = (spare + free, held + reserved);
                (bad, slots) = (bad + region.bad, slots + u64::from(region.slots));
            }
        }
        let freed = self.walk(self.raw.freed, SlotState::Freed, &mut |_| ())?;
        self.problems.append(&mut miscounted);
        let raw = &self.raw;
        let (counted, recorded) =
            ((spare, freed, held, bad, slots), (raw.spare, raw.waiting, raw.held, raw.bad, raw.slots));
        if counted != recorded {
            self.problems.push(format!("(free, waiting, reserved, bad, all) slots are {counted:?}, not {recorded:?}"));
        }
        Ok(())
    }

    /// Checks each slot, and the counts of those in use.
    fn check_slots(&mut self) -> Result<()> {
        let (mut live, mut replicas, mut linked) = (Live::default(), HashSet::new(), HashSet::new());
        for slot in self.table.slots()? {
            let segment = self.table.get(slot)?;
            let is_unused = |region: &RawTableRegion| region.range().contains(&slot) && u64::from(slot) >= region.fresh;
            let in_list = self.in_list[slot as usize] || self.regions.iter().any(|(_, region)| is_unused(region));
            let mut wrong = |what: &str| self.problems.push(format!("slot {slot} is {what}"));
            match segment.state {
                SlotState::Free | SlotState::Freed if !in_list => wrong("free in no list"),
                state if state.is_used() && in_list => wrong("in use and in a list"),
                state if state.is_used() => {
                    live.add(segment.class, segment.live);
                    self.check_used(slot, &segment, &mut linked)?;
                }
                SlotState::Backing if in_list => wrong("the backing's and in a list"),
                SlotState::Replica if in_list => wrong("a replica and in a list"),
                SlotState::Replica => _ = replicas.insert(slot),
                _ => {}
            }
        }
        if replicas != linked {
            let odd: Vec<_> = replicas.symmetric_difference(&linked).collect();
            self.problems.push(format!("slots {odd:?} are replicas of nothing, or no replicas"));
        }
        let recorded = (self.raw.live, self.raw.mirrored);
        if (live.all, live.mirrored) != recorded {
            let live = format!("{} blocks are live, of these by class {:?}", live.all, live.mirrored);
            self.problems.push(format!("{live}, not {recorded:?}"));
        }
        Ok(())
    }

    /// Checks a segment in use, and adds the slots of its replicas to `linked`.
    fn check_used(&mut self, slot: u32, segment: &Segment, linked: &mut HashSet<u32>) -> Result<()> {
        let homes = self.table.homes(slot, segment)?;
        linked.extend(homes[1..].iter().map(|home| home.slot));
        let regions_of: HashSet<usize> = homes.iter().map(|home| home.n).collect();
        if regions_of.len() < homes.len() || homes.iter().all(|home| home.partial) {
            self.problems.push(format!("segment {}: its replicas are {homes:?}", segment.sequence));
        }
        let found = self.table.find(segment.sequence)?.map(|(slot, _)| slot);
        if found != Some(slot) {
            self.problems.push(format!("segment {} leads to {found:?}, not {slot}", segment.sequence));
        }
        let is_whole = self.regions.iter().any(|(_, region)| slot_in(region.whole) == Some(slot));
        let is_head = is_whole || self.raw.heads.iter().any(|head| slot_in(*head) == Some(slot));
        let fits = segment.live <= segment.used && u64::from(segment.used) <= self.raw.blocks;
        if !fits || segment.sequence >= self.raw.sequence || is_head != (segment.state == SlotState::Open) {
            self.problems.push(format!("slot {slot}: {segment:?}, next number {}", self.raw.sequence));
        }
        Ok(())
    }
}
