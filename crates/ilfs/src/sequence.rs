//! Sequence numbers of segments: each is issued once, below a mark in the labels of all regions that is raised ahead.

use std::sync::Arc;

use exraid::{Class as Failure, Region};
use pram::Session;

use super::error::{Error, Result};
use super::place::{BLOCK_BITS, SEQUENCES};
use super::room::AT_ONCE;
use super::table::KEY;
use super::unresponsive::GLANCE;
use super::Log;

/// Sequence numbers that are reserved at a time, by an update of the disks' labels: 16 GiB of segments of 4 MiB.
const BATCH: u64 = 4096;
/// Up to so many more are reserved, drawn at random.
const DRAWN: u64 = 1024;

impl Log {
    /// To be called before this process first writes: the memory may have been lost, or put back, since the last write.
    /// So numbers begin behind all that were issued, and open segments are closed, since they may have parts that this
    /// memory does not know.
    pub(super) fn get_ready(&self, session: &Session) -> Result<()> {
        let mut ready = session.memory().lock_by(&self.ready);
        if !*ready {
            let _alone = session.long_lock(KEY)?;
            self.reserve(session)?;
            self.close_all(session)?;
            *ready = true;
        }
        Ok(())
    }

    /// The same in memory alone, for read-only use: no number is issued, and labels stay as they are.
    pub(super) fn number_on(&self, session: &Session) -> Result<()> {
        let marks = self.regions().iter().map(|region| region.sequence()).max().unwrap_or(0);
        self.change(session, |change| {
            let from = change.head()?.limit.max(marks);
            change.set_sequence(from, from)
        })?;
        self.close_all(session)
    }

    /// Reserves more sequence numbers if all are used.
    pub(super) fn reserve_numbers(&self, session: &Session) -> Result<()> {
        let _alone = session.long_lock(KEY)?;
        let all = self.head(session)?;
        match all.sequence >= all.limit {
            true => self.reserve(session),
            false => Ok(()),
        }
    }

    /// Ordered steps:
    /// 1. An interrupted raise is finished: labels that may have one of two marks get the higher. (Else: they have one
    ///    of three after step 2. A disk that is away then looks as if another memory had written to it.)
    /// 2. The table has the new mark as `raising`; some regions at a time, since there may be more than the undo log of
    ///    a transaction holds. (Else: a disk that has the mark, and is away after an interruption here, looks as if
    ///    another memory had written to it.)
    /// 3. All labels have the mark; durable. A region that is gone, or whose labels cannot be written, takes nothing any
    ///    more. (Else: after a loss of the memory, a recovery from the labels issues numbers again.)
    /// 4. The table records which labels have it. (Else: as in 2, after the next raise.)
    /// 5. Numbers below it are issued.
    ///
    /// The mark has a random part, which distinguishes two memories that have raised it apart ([`Log::readmit`]).
    fn reserve(&self, session: &Session) -> Result<()> {
        self.refresh(session)?;
        let (regions, table) = (self.regions(), self.at.table(session.memory()));
        let marks = || session.read(KEY, || table.regions());
        // 1.
        let known = marks()?;
        let of = |region: &Arc<dyn Region>| known.iter().find(|(_, raw)| raw.number == region.number());
        let begun = |region: &Arc<dyn Region>| {
            let (_, raw) = of(region).filter(|(_, raw)| raw.is_in_doubt())?;
            Some((region.clone(), raw.raising))
        };
        self.raise(session, &regions.iter().filter_map(begun).collect::<Vec<_>>())?;
        let all = self.head(session)?;
        let from = regions.iter().map(|region| region.sequence()).max().unwrap_or(0).max(all.limit);
        let drawn = u64::from(u16::from_le_bytes(pram::random::bytes()?)) % DRAWN;
        let to = (from + BATCH + drawn).min(SEQUENCES);
        if from >= to {
            return Err(Error::Exhausted);
        }
        // Step 2, without regions that are out of use and whose labels are still in doubt.
        let known = marks()?;
        let is_known = |region: &&Arc<dyn Region>| {
            known.iter().any(|(_, raw)| raw.number == region.number() && !raw.is_in_doubt())
        };
        let raised: Vec<_> = regions.iter().filter(is_known).map(|region| (region.clone(), to)).collect();
        for some in raised.chunks(AT_ONCE) {
            self.change(session, |change| {
                some.iter().try_for_each(|(region, to)| change.set_raising(region.number(), None, *to))
            })?;
        }
        // 3., 4.
        self.raise(session, &raised)?;
        // 5.
        self.change(session, |change| {
            let all = change.head()?;
            change.set_sequence(from, to)?;
            // Versions too are never drawn twice: a segment draws fewer than it could have blocks.
            change.set_clock(all.clock, all.version.max(from << BLOCK_BITS))
        })
    }

    /// Raises the labels of each region to its mark, which the table has as `raising`. Regions that are out of use, or
    /// go out of use by a failure here, may stay behind.
    fn raise(&self, session: &Session, regions: &[(Arc<dyn Region>, u64)]) -> Result<()> {
        let mut raised = Vec::new();
        for (region, to) in regions {
            let mut done = region.raise_sequence(*to);
            while done.as_ref().is_err_and(|e| e.class == Failure::Timeout) && !self.can_go_round(region.number()) {
                // No other region takes content.
                while !self.answers(&**region) && !self.can_go_round(region.number()) {
                    std::thread::sleep(GLANCE);
                }
                done = region.raise_sequence(*to);
            }
            match done {
                Ok(()) => raised.push((region.number(), *to)),
                // It is the only region, or the failure may pass.
                Err(e) if !self.is_out(session, region.number(), &e)? => return Err(e.into()),
                Err(_) => {}
            }
        }
        for some in raised.chunks(AT_ONCE) {
            self.change(session, |change| some.iter().try_for_each(|(number, mark)| change.set_mark(*number, *mark)))?;
        }
        Ok(())
    }
}
