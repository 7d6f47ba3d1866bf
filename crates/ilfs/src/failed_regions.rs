//! Regions that take nothing more because they have failed or are missing, and regions that come back.
//!
//! A region is *fenced* when content that was written there may be lost, or when it does not answer
//! ([`unresponsive`](super::unresponsive)): the table records that for every process, and across crashes. Its content is
//! read as before, where that is possible; new content goes to the other regions, and content that lacks a replica gets one
//! there ([`super::replicas`]). The region takes content again when it is whole and open. Nothing has to be compared then:
//! the table knows its segments, each is verified when it is read, and replicas that missed a write were dropped from the
//! table.

use std::sync::Arc;

use exraid::Region;
use pram::Session;

use super::error::{Error, Result};
use super::leave::Course;
use super::place::Place;
use super::table::{Cause, Health, RawTableRegion, KEY};
use super::Log;

/// A region that takes nothing, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    pub number: u32,
    /// Seconds since 1970.
    pub since: u64,
    pub cause: Cause,
    /// This process has it open.
    pub is_there: bool,
}

impl Log {
    /// Fences region `number`, durably as the table is. False, without any change, if no other region takes content.
    pub fn fence(&self, session: &Session, number: u32, cause: Cause, why: &dyn std::fmt::Display) -> Result<bool> {
        self.fence_if(session, number, cause, why, false)
    }

    /// Fences a region whose file was deleted, even if it is the only one: content written there would be lost when the
    /// pool is closed. Its content is moved, if others have room for it.
    pub fn fence_deleted(&self, session: &Session, number: u32, why: &dyn std::fmt::Display) -> Result<()> {
        let health = || {
            let regions = session.read(KEY, || self.at.table(session.memory()).regions())?;
            let of = regions.iter().find(|(_, region)| region.number == number);
            Ok::<_, Error>(of.map_or(Health::None, |(_, region)| region.health()))
        };
        if health()? == Health::Taking {
            self.fence_if(session, number, Cause::Missing, why, true)?;
        }
        if health()? != Health::Failed {
            return Ok(());
        }
        match self.set_leaving(session, &[number], Course::LeaveFewer) {
            // There is no room yet.
            Err(Error::NoSpace | Error::Unusable(_)) => Ok(()),
            done => done,
        }
    }

    fn fence_if(
        &self,
        session: &Session,
        number: u32,
        cause: Cause,
        why: &dyn std::fmt::Display,
        is_last_too: bool,
    ) -> Result<bool> {
        let fenced = self.change(session, |change| {
            let regions = change.table().regions()?;
            let is_other = |r: &RawTableRegion| is_last_too || r.number != number && r.health() == Health::Taking;
            let Some((n, region)) = regions.iter().find(|(_, region)| region.number == number) else {
                return Ok(None);
            };
            match region.health() {
                Health::Failed => Ok(Some(false)),
                _ if !regions.iter().any(|(_, region)| is_other(region)) => Ok(None),
                _ => {
                    self.close_in(change, region)?;
                    change.set_failed(*n, cause)?;
                    Ok(Some(true))
                }
            }
        })?;
        if fenced == Some(true) {
            tracing::error!("region {number} takes no more content: {why}");
            self.refresh(session)?;
        }
        Ok(fenced.is_some())
    }

    /// The numbers of the fenced regions.
    pub(super) fn fenced(&self, session: &Session) -> Result<Vec<u32>> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        let failed = regions.into_iter().filter(|(_, region)| region.health() == Health::Failed);
        Ok(failed.map(|(_, region)| region.number).collect())
    }

    /// The fenced regions.
    pub fn out_of_use(&self, session: &Session) -> Result<Vec<Fenced>> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        let areas = self.areas();
        let is_there = |number| areas.list.iter().any(|area| area.number == number && area.region.is_some());
        let failed = regions.into_iter().filter(|(_, region)| region.health() == Health::Failed);
        let fenced = |(_, r): (usize, RawTableRegion)| Fenced {
            number: r.number,
            since: r.since,
            cause: r.cause(),
            is_there: is_there(r.number),
        };
        Ok(failed.map(fenced).collect())
    }

    /// The numbers of regions whose content may not be there: they are fenced, or this process does not have them open.
    pub fn doubtful(&self) -> Vec<u32> {
        let areas = self.areas();
        let doubtful = areas.list.iter().filter(|area| area.is_fenced || area.region.is_none());
        doubtful.map(|area| area.number).collect()
    }

    /// May the block at a place be unreadable: is no whole replica of its segment in a region other than the
    /// [doubtful](Self::doubtful) ones? True also if the place does not exist in the log any more.
    pub fn is_in_doubt(&self, session: &Session, place: Place, doubtful: &[u32]) -> Result<bool> {
        let table = self.at.table(session.memory());
        session.read(KEY, || {
            let Some((slot, segment)) = table.find(place.sequence())? else { return Ok(true) };
            let homes = table.homes(slot, &segment)?;
            for home in homes.iter().filter(|home| !home.partial) {
                if !doubtful.contains(&table.region(home.n)?.number) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Fences the regions that take content and are not there; returns their numbers.
    pub fn fence_missing(&self, session: &Session) -> Result<Vec<u32>> {
        let areas = self.areas();
        let missing = areas.list.iter().filter(|area| area.is_taking && area.region.is_none()).map(|area| area.number);
        let mut fenced = Vec::new();
        for number in missing {
            if self.fence(session, number, Cause::Missing, &"it is missing")? {
                fenced.push(number);
            }
        }
        Ok(fenced)
    }

    /// Declares that these regions fail together: replicas are never in two of them. With 0 each is on its own again. A
    /// segment with replicas in two of them already gets another elsewhere.
    pub fn set_domain(&self, session: &Session, numbers: &[u32], domain: u32) -> Result<()> {
        self.change(session, |change| {
            for number in numbers {
                change.set_domain(*number, domain)?;
            }
            Ok(())
        })?;
        self.refresh(session)
    }

    /// Counts the blocks that lie only in regions out of use. To be called from time to time while there are such
    /// regions, since files are removed.
    pub fn count_out_of_reach(&self, session: &Session) -> Result<()> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        let mut blocks = 0;
        for (_, region) in regions.iter().filter(|(_, region)| region.health() == Health::Failed) {
            for slot in region.range() {
                let segment = session.read(KEY, || table.get(slot))?;
                if !segment.state.is_used() || segment.live == 0 {
                    continue;
                }
                // A segment with a replica elsewhere is reached from there, or lists it.
                let homes = session.read(KEY, || table.homes(slot, &segment)).unwrap_or_default();
                let is_alone = homes.iter().all(|home| home.health == Health::Failed || home.partial);
                blocks += if is_alone { u64::from(segment.live) } else { 0 };
            }
        }
        self.out_of_reach.store(blocks, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// The domains that were set, by region.
    pub fn named_domains(&self, session: &Session) -> Result<Vec<(u32, u32)>> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        Ok(regions.into_iter().map(|(_, region)| (region.number, region.domain)).filter(|(_, of)| *of != 0).collect())
    }

    /// Opens regions that were missing and are there again, and has them take content; returns their numbers.
    pub fn take_back(&self, session: &Session) -> Result<Vec<u32>> {
        let mut back = Vec::new();
        for fenced in self.out_of_use(session)?.into_iter().filter(|fenced| fenced.cause != Cause::Failed) {
            let known = self.regions().into_iter().find(|region| region.number() == fenced.number);
            let region = match known.filter(|_| fenced.cause == Cause::Late) {
                // Requests from before it was late must have ended, one way or the other.
                Some(known) if !self.answers(&*known) || !known.pending().is_empty() => None,
                Some(known) => Some(known),
                None => self.open_anew(fenced.number),
            };
            let Some(region) = region else { continue };
            match self.readmit(session, &*region) {
                Ok(()) => {
                    self.put(region);
                    back.push(fenced.number);
                }
                Err(e) => self.tell_refused(fenced.number, &e),
            }
        }
        Ok(back)
    }

    /// Has a region that failed, or was missing, and is there, take content again, because an administrator asks for
    /// that.
    pub fn readmit_asked(&self, session: &Session, number: u32) -> Result<()> {
        let region = self.open_anew(number).ok_or(Error::Missing(number))?;
        self.readmit(session, &*region)?;
        self.put(region);
        Ok(())
    }

    /// Opens a region anew, even if this process has it open.
    fn open_anew(&self, number: u32) -> Option<Arc<dyn Region>> {
        let opener = self.opener.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        opener.as_ref().and_then(|open| open(number))
    }

    fn tell_refused(&self, number: u32, e: &Error) {
        if self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(number) {
            tracing::error!("region {number} is there again and stays out of use: {e}");
        }
    }

    /// Has a fenced region that is there take content again, or go on leaving if it was.
    ///
    /// Ordered steps:
    /// 1. If raising its label was interrupted, that is finished, so that its mark is known. (Else: it has one of three
    ///    marks after step 2.)
    /// 2. The table has the mark to which its label is raised. (Else: after an interruption here, and after the others
    ///    raised their labels further, it looks as if another memory had written to it.)
    /// 3. Its label has the mark of sequence numbers that the others have; durable. (Else: see [`Log::add_region`].)
    /// 4. It takes content, or leaves.
    ///
    /// # Errors
    /// [`Error::Unusable`] if its label has another mark than this memory gave it: it was written with another memory
    /// since.
    pub fn readmit(&self, session: &Session, region: &dyn Region) -> Result<()> {
        let (number, table) = (region.number(), self.at.table(session.memory()));
        // No process raises labels meanwhile.
        let alone = session.long_lock(KEY)?;
        let (all, regions) = session.read(KEY, || Ok::<_, Error>((table.head()?, table.regions()?)))?;
        let known = regions.iter().find(|(_, raw)| raw.number == number && raw.health() == Health::Failed);
        let Some((n, known)) = known else { return Ok(()) };
        let is = region.sequence();
        if is != known.mark && is != known.raising {
            return Err(Error::Unusable(format!(
                "{} was written while it was away, with another memory: its epoch is {is}, the pool's is {} of when it was seen last, and \
                 {} by now. What was written there is not the pool's: `conquest region remove POOL {number} --force` gives it up",
                region.name(),
                known.mark,
                all.limit
            )));
        }
        // 1.
        if known.is_in_doubt() {
            region.raise_sequence(known.raising)?;
        }
        // 2.
        let to = all.limit.max(known.raising);
        self.change(session, |change| change.set_raising(number, Some(known.raising), to))?;
        // 3.
        region.raise_sequence(to)?;
        // 4.
        self.change(session, |change| {
            change.set_mark(number, to)?;
            let now = change.table().region(*n)?;
            match now.number == number && now.health() == Health::Failed {
                true => change.set_back(*n),
                false => Ok(()),
            }
        })?;
        drop(alone);
        let does = if known.leaves() { "goes on leaving" } else { "takes content" };
        tracing::info!("{} is there again and {does}", region.name());
        self.refresh(session)
    }
}
