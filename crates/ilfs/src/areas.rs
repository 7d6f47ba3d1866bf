//! The regions of the log, as this process has them open.
//!
//! The table lists the regions, and counts how often the list has changed. A process that finds another count opens the
//! regions that it does not have: another process may have added a region, or taken one away.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use exraid::Region;
use pram::Session;

use super::error::{Error, Result};
use super::part::Identity;
use super::table::{Health, KEY};
use super::Log;

/// Chains that are split in one transaction.
const SPLIT: u32 = 8;

/// Opens the region with a number; `None` if no disk has it.
pub type Opener = Box<dyn Fn(u32) -> Option<Arc<dyn Region>> + Send + Sync>;

/// The slots of a region.
pub(super) struct Area {
    /// Its place in the table.
    pub n: usize,
    pub number: u32,
    pub slots: Range<u32>,
    pub region: Option<Arc<dyn Region>>,
    pub identity: Identity,
    /// Its disks are files that take room of their hosts as they are used.
    pub grows: bool,
    pub is_taking: bool,
    /// It takes nothing, since it has failed or was missing.
    pub is_fenced: bool,
    /// Replicas are never in two regions of one domain.
    pub domain: u64,
    /// Until when it is busy with its segments: see [`placement`](super::placement).
    pub until: AtomicU64,
    /// When it got a segment last.
    pub given: AtomicU64,
}

#[derive(Default)]
pub(super) struct Areas {
    changes: u64,
    pub list: Vec<Arc<Area>>,
}

impl Areas {
    pub fn of(&self, slot: u32) -> Option<&Arc<Area>> {
        self.list.iter().find(|area| area.slots.contains(&slot))
    }

    pub fn grow(&self) -> bool {
        self.list.iter().any(|area| area.grows)
    }

    /// Domains that take content: the most replicas that there can be.
    pub fn domains(&self) -> u64 {
        self.list.iter().filter(|area| area.is_taking).map(|area| area.domain).collect::<HashSet<_>>().len() as u64
    }

    /// Regions that take content and are there.
    pub fn taking(&self) -> impl Iterator<Item = (&Arc<Area>, &Arc<dyn Region>)> {
        self.list.iter().filter(|area| area.is_taking).filter_map(|area| Some((area, area.region.as_ref()?)))
    }
}

/// The position of a slot on its region.
pub(super) struct Lies {
    pub region: Arc<dyn Region>,
    pub identity: Identity,
    /// Bytes from the start of the region.
    pub at: u64,
}

impl Log {
    pub(super) fn areas(&self) -> Arc<Areas> {
        self.areas.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The regions that are there.
    pub fn regions(&self) -> Vec<Arc<dyn Region>> {
        self.areas().list.iter().filter_map(|area| area.region.clone()).collect()
    }

    /// The numbers of regions that take content and are there.
    pub fn taking(&self) -> Vec<u32> {
        self.areas().taking().map(|(area, _)| area.number).collect()
    }

    /// The numbers of all regions, there or not.
    pub fn numbers(&self) -> Vec<u32> {
        self.areas().list.iter().map(|area| area.number).collect()
    }

    /// Sets how later regions are opened.
    pub fn set_opener(&self, opener: Opener) {
        *self.opener.lock().unwrap_or_else(PoisonError::into_inner) = Some(opener);
    }

    /// Closes regions that left the log, and opens new ones.
    pub fn look_again(&self, session: &Session) -> Result<()> {
        match self.knows(self.changes(session)?) {
            true => Ok(()),
            false => self.refresh(session),
        }
    }

    /// Opens the regions of the table, if they have changed or some are missing. Waits for disks.
    pub(super) fn refresh(&self, session: &Session) -> Result<()> {
        let table = self.at.table(session.memory());
        let (changes, regions) = session.read(KEY, || Ok::<_, Error>((table.head()?.changes, table.regions()?)))?;
        let before = self.areas();
        if before.changes == changes && before.list.iter().all(|area| area.region.is_some()) {
            return Ok(());
        }
        let ignored = self.ignored.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let opener = self.opener.lock().unwrap_or_else(PoisonError::into_inner);
        let open =
            |number| match before.list.iter().find(|area| area.number == number).and_then(|area| area.region.clone()) {
                None if ignored.contains(&number) => None,
                None => opener.as_ref().and_then(|open| open(number)),
                known => known,
            };
        let list = regions.into_iter().map(|(n, raw)| {
            // The region that was out of use may have been opened anew elsewhere, and be dead here.
            let was_out = before.list.iter().any(|area| area.number == raw.number && !area.is_taking);
            let is_back = was_out && raw.health() == Health::Taking && !ignored.contains(&raw.number);
            let again = if is_back { opener.as_ref().and_then(|open| open(raw.number)) } else { None };
            let region = again.or_else(|| open(raw.number));
            let secret = region.as_ref().map_or(0, |region| region.secret());
            let known = before.list.iter().find(|area| area.number == raw.number);
            let until = known.map_or(0, |area| area.until.load(std::sync::atomic::Ordering::Relaxed));
            Arc::new(Area {
                n,
                number: raw.number,
                slots: raw.range(),
                grows: region.as_ref().is_some_and(|region| region.properties().sparse),
                region,
                identity: Identity { pool: session.memory().info.uuid, secret },
                is_taking: raw.health() == Health::Taking,
                is_fenced: raw.health() == Health::Failed,
                domain: raw.domain(),
                until: AtomicU64::new(until),
                given: AtomicU64::new(0),
            })
        });
        let areas = Areas { changes, list: list.collect() };
        *self.areas.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(areas);
        self.forget_known_lost();
        self.count_out_of_reach(session)
    }

    /// A number that no region of the log has or had.
    pub fn free_number(&self, session: &Session) -> Result<u32> {
        let table = self.at.table(session.memory());
        let numbers = session.read(KEY, || table.numbers())?;
        Ok(numbers.into_iter().max().map_or(0, |last| last + 1))
    }

    /// Adds a region to the log, which takes content from now on. Does nothing if the log has it.
    ///
    /// Ordered steps:
    /// 1. The label of the region has the mark of sequence numbers that the others have; durable. (Else: after a loss of
    ///    the memory, a recovery from that label alone issues numbers again.) Before that, while it still shows that the
    ///    region was never written, it gets its high-water mark. (Else: after a loss of the memory, all its slots are
    ///    read.)
    /// 2. The table has the region.
    /// 3. There are as many chains as segments; an interruption leaves longer chains until the next region comes.
    pub fn add_region(&self, session: &Session, region: &Arc<dyn Region>) -> Result<()> {
        let slots = region.properties().size / self.segment();
        // 1.
        let limit = self.head(session)?.limit;
        begin_high_water(&**region, self.segment())?;
        region.raise_sequence(limit)?;
        // 2.
        self.change(session, |change| {
            let is_there = change.table().regions()?.iter().any(|(_, raw)| raw.number == region.number());
            match is_there {
                true => Ok(()),
                false => {
                    change.add_region(region.number(), slots as u32)?;
                    change.set_mark(region.number(), region.sequence())
                }
            }
        })?;
        // 3.
        while self.change(session, |change| {
            let mut more = true;
            for _ in 0..SPLIT {
                more = more && change.split_chain()?;
            }
            Ok(more)
        })? {}
        self.refresh(session)
    }

    /// Replaces a region by one that was opened anew.
    pub(super) fn put(&self, region: Arc<dyn Region>) {
        let mut areas = self.areas.write().unwrap_or_else(PoisonError::into_inner);
        let list = areas.list.iter().map(|area| match area.number == region.number() {
            true => Arc::new(Area {
                grows: region.properties().sparse,
                identity: Identity { secret: region.secret(), ..area.identity },
                region: Some(region.clone()),
                slots: area.slots.clone(),
                until: AtomicU64::new(0),
                given: AtomicU64::new(0),
                ..**area
            }),
            false => area.clone(),
        });
        *areas = Arc::new(Areas { changes: areas.changes, list: list.collect() });
    }

    /// This process does not read or write this region any more, as if it were missing.
    pub fn ignore(&self, session: &Session, number: u32) -> Result<()> {
        self.ignored.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        let mut areas = self.areas.write().unwrap_or_else(PoisonError::into_inner);
        let list = areas.list.iter().map(|area| match area.number == number {
            true => Arc::new(Area {
                region: None,
                slots: area.slots.clone(),
                until: AtomicU64::new(0),
                given: AtomicU64::new(0),
                ..**area
            }),
            false => area.clone(),
        });
        *areas = Arc::new(Areas { changes: areas.changes, list: list.collect() });
        drop(areas);
        self.refresh(session)
    }

    /// Does this process know the present regions?
    pub(super) fn knows(&self, changes: u64) -> bool {
        self.areas().changes == changes
    }

    /// How often the regions have changed. May be called with the lock of the table.
    pub fn changes(&self, session: &Session) -> Result<u64> {
        Ok(self.at.table(session.memory()).head()?.changes)
    }

    /// The region of a slot, as it is known: one that is missing is not looked for.
    pub(super) fn known_area_of(&self, session: &Session, slot: u32) -> Result<Arc<Area>> {
        match self.areas().of(slot) {
            Some(area) => Ok(area.clone()),
            None => self.area_of(session, slot),
        }
    }

    pub(super) fn area_of(&self, session: &Session, slot: u32) -> Result<Arc<Area>> {
        if let Some(area) = self.areas().of(slot).filter(|area| area.region.is_some()) {
            return Ok(area.clone());
        }
        self.refresh(session)?;
        let found = self.areas().of(slot).cloned();
        found.ok_or_else(|| Error::Unusable(format!("slot {slot} is in no region")))
    }

    pub(super) fn lies(&self, session: &Session, slot: u32) -> Result<Lies> {
        let area = self.area_of(session, slot)?;
        let region = area.region.clone().ok_or(Error::Missing(area.number))?;
        let at = u64::from(slot - area.slots.start) * self.segment();
        Ok(Lies { region, identity: area.identity, at })
    }
}

/// The [high-water mark](super::high_water) is raised by this share of a region's slots, and at least by so many.
const SHARE: u64 = 128;
const LEAST: u64 = 64;

/// The mark to set when so many of all slots are used.
pub(super) fn ahead(used: u64, all: u64) -> u64 {
    (used + (all / SHARE).max(LEAST)).min(all)
}

/// Sets the mark of a region that comes to a log with segments of so many bytes, if it was never written: its label has
/// no sequence number.
pub(super) fn begin_high_water(region: &dyn Region, segment: u64) -> Result<()> {
    match region.sequence() {
        0 => Ok(region.raise_high_water(ahead(0, region.properties().size / segment) * segment)?),
        _ => Ok(()),
    }
}
