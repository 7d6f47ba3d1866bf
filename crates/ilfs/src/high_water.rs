//! The high-water mark of a region: no slot beyond it was ever used. It lies in the labels, and recovery after a loss of
//! the memory looks for content below it only.
//!
//! It is raised by many slots at a time, since labels are written for it.

use exraid::Class;
use pram::session::assert_may_wait;
use pram::Session;

use super::areas::{ahead, Area};
use super::error::Result;
use super::table::KEY;
use super::Log;

impl Log {
    /// May a slot be used, according to the labels?
    pub(super) fn is_below_high_water(&self, area: &Area, slot: u32) -> bool {
        let end = u64::from(slot - area.slots.start + 1) * self.segment();
        area.region.as_ref().is_none_or(|region| region.high_water() >= end)
    }

    /// Raises the mark before a slot above it is used.
    ///
    /// Ordered steps:
    /// 1. The labels allow this slot and some further ones; durable. In labels without a mark, all slots that the table
    ///    knows as used are included. (Else: after a loss of the memory, recovery does not look for content written
    ///    there.)
    /// 2. The slot is used.
    ///
    /// Succeeds also if the labels could not be written and the region is out of use from then on.
    pub(super) fn raise_high_water(&self, session: &Session, slot: u32) -> Result<()> {
        assert_may_wait();
        let (area, table) = (self.area_of(session, slot)?, self.at.table(session.memory()));
        let Some(region) = &area.region else { return Ok(()) };
        let raised = {
            let _alone = session.long_lock(KEY)?;
            if self.is_below_high_water(&area, slot) {
                return Ok(());
            }
            let fresh = session.read(KEY, || table.region(area.n))?.fresh;
            let used = fresh.max(u64::from(slot) + 1) - u64::from(area.slots.start);
            // 1.
            region.raise_high_water(ahead(used, area.slots.len() as u64) * self.segment())
        };
        match raised {
            Err(e) if self.is_out(session, area.number, &e)? => Ok(()),
            Err(e) if e.class == Class::Timeout => self.wait_for_one_of(session, &[slot]),
            raised => Ok(raised?),
        }
    }
}
