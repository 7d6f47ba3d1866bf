//! All regions of a pool as one address space with known boundaries.
//!
//! Region n begins at address n × 2^[`SHIFT`], so adding and removing regions moves no address, and needs no table.
//! Within a region addresses are contiguous.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use crate::device::{Answer, Done, Request};
use crate::error::{Class, Error};
use crate::region::Region;
pub use crate::region::SHIFT;

/// The present regions.
#[derive(Default)]
pub struct Space(RwLock<BTreeMap<u32, Arc<dyn Region>>>);

/// The addresses of a region of `size` bytes.
pub fn addresses(number: u32, size: u64) -> Range<u64> {
    let start = u64::from(number) << SHIFT;
    start..start + size.min(1 << SHIFT)
}

impl Space {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<u32, Arc<dyn Region>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a region; gives it back if its number is taken, or has no addresses.
    pub fn add(&self, region: Arc<dyn Region>) -> Result<(), Arc<dyn Region>> {
        let number = region.number();
        let mut regions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if number >> (u64::BITS - SHIFT) != 0 || regions.contains_key(&number) {
            return Err(region);
        }
        regions.insert(number, region);
        Ok(())
    }

    /// Removes a region. Its requests under way go on.
    pub fn remove(&self, number: u32) -> Option<Arc<dyn Region>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    pub fn regions(&self) -> Vec<Arc<dyn Region>> {
        self.read().values().cloned().collect()
    }

    /// The addresses of each region, in ascending order.
    pub fn boundaries(&self) -> Vec<(u32, Range<u64>)> {
        let tell = |(number, region): (&u32, &Arc<dyn Region>)| (*number, addresses(*number, region.properties().size));
        self.read().iter().map(tell).collect()
    }

    /// The region of an address, and the offset there.
    pub fn find(&self, address: u64) -> Option<(Arc<dyn Region>, u64)> {
        let region = self.read().get(&((address >> SHIFT) as u32))?.clone();
        let at = address & ((1 << SHIFT) - 1);
        (at < region.properties().size).then_some((region, at))
    }

    /// Takes a request by address. One across a boundary is refused: it would be lost with either side. A flush goes to
    /// a region directly.
    pub fn submit(&self, request: Request, done: Done) {
        let range = request.op.range();
        match self.find(range.start) {
            Some((region, at)) => {
                let op = request.op.at(at);
                region.submit(Request { op, ..request }, done);
            }
            None => {
                let what = format!("{}: no region is there", request.op);
                let e = Error::new(Class::Invalid, &"address space".into(), what);
                done(Answer { result: Err(e), buffers: request.op.into_buffers() });
            }
        }
    }
}
