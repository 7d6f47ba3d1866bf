//! Discards (trim) of a linear device: a stretch that the disks discard reads as zeros, and zeros are written over the
//! rest.

use std::ops::Range;

use exraid::{Answer, Class, Error, Op, Result};

use super::{Linear, Part, Piece, WHOLE};

impl Linear {
    /// The range reads as zeros afterwards.
    pub(super) fn discard_range(&self, range: Range<u64>) -> Result<()> {
        self.check("a discard", &range)?;
        if !self.discards {
            return Err(Error::new(Class::Invalid, &self.name, "its disks do not say what discarded bytes read as"));
        }
        let _turn = self.range_locks.take(self.around(&range));
        let _marked = self.mark(&range)?;
        for Piece { part, at, of } in self.pieces(&range) {
            let (start, all) = (self.parts[part].start, at..at + (of.end - of.start));
            let whole = Linear::whole(&self.parts[part], all.clone());
            let is_done = !whole.is_empty() && self.discard_whole(part, whole.clone());
            let rest = if is_done { [all.start..whole.start, whole.end..all.end] } else { [all, 0..0] };
            for range in rest.into_iter().filter(|range| !range.is_empty()) {
                self.write_zeros(start + range.start..start + range.end)?;
            }
        }
        Ok(())
    }

    /// The part of a range that a region discards as a whole on all members.
    fn whole(part: &Part, range: Range<u64>) -> Range<u64> {
        let grain = part.region.stripe().max(WHOLE);
        let (start, end) = (range.start.div_ceil(grain) * grain, range.end / grain * grain);
        start..end.max(start)
    }

    /// The caller holds a lock. True: all members have done it, so it reads as zeros.
    fn discard_whole(&self, part: usize, range: Range<u64>) -> bool {
        let before = self.failures();
        let Answer { result, .. } = self.start(part, Op::Discard(range)).wait();
        result.is_ok() && self.failures() == before
    }
}
