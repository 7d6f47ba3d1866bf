//! Background work that was asked for: it goes on, in any process, until it is done or called off.

use pram::Session;

use super::error::Result;
use super::table::KEY;
use super::Log;

/// Bits of the table's word.
const BALANCE: u64 = 1;
const PAUSED: u64 = 2;
const SCRUB: u64 = 4;

/// The work that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Spread old content over all regions.
    pub balance: bool,
    /// Balancing and scrubbing are paused.
    pub paused: bool,
    pub scrub: bool,
    /// Bytes per second that background work copies at most; 0: no limit of its own.
    pub rate: u64,
}

impl Log {
    pub fn tasks(&self, session: &Session) -> Result<Tasks> {
        let all = session.read(KEY, || self.at.table(session.memory()).head())?;
        let is = |bit| all.tasks & bit != 0;
        Ok(Tasks { balance: is(BALANCE), paused: is(PAUSED), scrub: is(SCRUB), rate: all.rate })
    }

    /// Changes the work that is asked for.
    pub fn set_tasks(&self, session: &Session, change: &dyn Fn(&mut Tasks)) -> Result<()> {
        self.change(session, |table| {
            let all = table.head()?;
            let is = |bit| all.tasks & bit != 0;
            let mut tasks = Tasks { balance: is(BALANCE), paused: is(PAUSED), scrub: is(SCRUB), rate: all.rate };
            change(&mut tasks);
            let bit = |is: bool, bit| if is { bit } else { 0 };
            let word = bit(tasks.balance, BALANCE) | bit(tasks.paused, PAUSED) | bit(tasks.scrub, SCRUB);
            table.set_tasks(word, tasks.rate)
        })
    }

    /// Segments below this sequence number were scrubbed in the pass; its begin, in seconds since 1970.
    pub fn scrubbed(&self, session: &Session) -> Result<(u64, u64)> {
        let all = session.read(KEY, || self.at.table(session.memory()).head())?;
        Ok((all.scrubbed, all.scrub_began))
    }

    pub fn set_scrubbed(&self, session: &Session, scrubbed: u64, began: u64) -> Result<()> {
        self.change(session, |change| change.set_scrubbed(scrubbed, began))
    }
}
