//! How many copies of a block there are.

use pram::Session;

use super::table::KEY;
use super::{Log, Place, Result};

impl Log {
    /// Copies of the segment in which a block lies, in regions that differ. 0: it is in none.
    pub fn copies_of(&self, session: &Session, place: Place) -> Result<u32> {
        session.read(KEY, || Ok(u32::from(self.at.table(session.region()).find(place.sequence())?.is_some())))
    }

    /// The number of the region with the first copy of the segment in which a block lies.
    pub fn region_of(&self, session: &Session, place: Place) -> Result<Option<u32>> {
        session.read(KEY, || {
            let table = self.at.table(session.region());
            let Some((slot, _)) = table.find(place.sequence())? else { return Ok(None) };
            Ok(Some(table.region_of(slot)?.1.number))
        })
    }
}
