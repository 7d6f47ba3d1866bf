//! From sequence numbers to slots: chains by a hash that grows with the log (linear hashing), one chain at a time.
//!
//! With n chains, of which the next power of two is k, a number is in chain `number modulo k` if there is one, else in
//! `number modulo k/2`. So a new chain takes entries from one other chain only. Numbers are issued in order, so a chain
//! is as long as the log has slots for each chain: about one.

use pram::Off;

use super::change::Change;
use super::TAG;
use super::{damaged, field, slot_in, slot_word, RawTable, Result, Segment, Table, BUCKETS, CHAINS_BYTES};

/// The chain of a sequence number, if there are so many chains.
pub(super) fn bucket_of(sequence: u64, buckets: u64) -> u64 {
    let all = buckets.next_power_of_two();
    match sequence & (all - 1) {
        bucket if bucket < buckets => bucket,
        bucket => bucket & (all / 2 - 1),
    }
}

impl Table<'_> {
    /// Where the first slot of a chain is stored; `None`: its chunk was not made, and the chain is empty.
    fn bucket(&self, bucket: u64) -> Result<Option<Off<u64>>> {
        let chains = self.word(field!(self, chains))?;
        self.region.resolve(chains, TAG)?;
        let chunk = self.word(Off::<u64>::new(chains).index(bucket / BUCKETS))?;
        if chunk == 0 {
            return Ok(None);
        }
        self.region.resolve(chunk, TAG)?;
        Ok(Some(Off::<u64>::new(chunk).index(bucket % BUCKETS)))
    }

    fn first_of(&self, bucket: u64) -> Result<Option<u32>> {
        match self.bucket(bucket)? {
            Some(at) => Ok(slot_in(self.word(at)?)),
            None => Ok(None),
        }
    }

    /// The first slot in the chain of `sequence`.
    pub(super) fn chain(&self, sequence: u64) -> Result<Option<u32>> {
        self.first_of(bucket_of(sequence, self.word(field!(self, buckets))?))
    }
}

impl Change<'_, '_> {
    fn set_first_of(&mut self, bucket: u64, first: Option<u32>) -> Result<()> {
        let at = match self.table().bucket(bucket)? {
            Some(at) => at,
            None => {
                let chunk = self.tx.alloc(TAG, CHAINS_BYTES)?.off;
                self.tx.init_zero(chunk, CHAINS_BYTES)?;
                let chains = Off::<u64>::new(self.head()?.chains);
                self.tx.set(chains.index(bucket / BUCKETS), &chunk)?;
                Off::<u64>::new(chunk).index(bucket % BUCKETS)
            }
        };
        Ok(self.tx.set(at, &slot_word(first))?)
    }

    /// Puts a slot first in the chain of its sequence number; returns the slot that was first, to be its next.
    pub(super) fn chain_in(&mut self, slot: u32, sequence: u64) -> Result<Option<u32>> {
        let bucket = bucket_of(sequence, self.head()?.buckets);
        let first = self.table().first_of(bucket)?;
        self.set_first_of(bucket, Some(slot))?;
        Ok(first)
    }

    /// Takes a slot that is in use out of its chain.
    pub(super) fn unchain(&mut self, slot: u32, segment: &Segment) -> Result<()> {
        let all = self.head()?;
        let bucket = bucket_of(segment.sequence, all.buckets);
        let mut before = None;
        let mut next = self.table().first_of(bucket)?;
        for _ in 0..=all.end {
            match (next, before) {
                (Some(here), None) if here == slot => return self.set_first_of(bucket, segment.next),
                (Some(here), Some(last)) if here == slot => {
                    let last_one = self.table().get(last)?;
                    return self.put(last, &Segment { next: segment.next, ..last_one });
                }
                (Some(here), _) => (before, next) = (next, self.table().get(here)?.next),
                (None, _) => break,
            }
        }
        Err(damaged(format!("segment {} is not where its number leads", segment.sequence)))
    }

    /// Adds a chain if there are fewer than slots; false if there are enough.
    pub fn split_chain(&mut self) -> Result<bool> {
        let all = self.head()?;
        if all.buckets >= all.slots {
            return Ok(false);
        }
        self.grow_chains(&all)?;
        let (new, old) = (all.buckets, all.buckets - all.buckets.next_power_of_two().max(2) / 2);
        let old = if all.buckets.is_power_of_two() { 0 } else { old };
        let (mut stay, mut go) = (Vec::new(), Vec::new());
        let mut next = self.table().first_of(old)?;
        while let Some(slot) = next {
            let segment = self.table().get(slot)?;
            match bucket_of(segment.sequence, new + 1) == new {
                true => go.push((slot, segment)),
                false => stay.push((slot, segment)),
            }
            if stay.len() + go.len() > all.end as usize {
                return Err(damaged(format!("chain {old} of the segment table has no end")));
            }
            next = segment.next;
        }
        self.tx.set(field!(self, buckets), &(new + 1))?;
        for (bucket, slots) in [(old, stay), (new, go)] {
            self.set_first_of(bucket, slots.first().map(|(slot, _)| *slot))?;
            for (n, (slot, segment)) in slots.iter().enumerate() {
                let next = slots.get(n + 1).map(|(slot, _)| *slot);
                if segment.next != next {
                    self.put(*slot, &Segment { next, ..*segment })?;
                }
            }
        }
        Ok(true)
    }

    /// Makes room in the directory of chain chunks for one more chain.
    fn grow_chains(&mut self, all: &RawTable) -> Result<()> {
        let entries = all.buckets.div_ceil(BUCKETS);
        let chains = self.grown(all.chains, entries, (all.buckets + 1).div_ceil(BUCKETS), 8)?;
        match chains == all.chains {
            true => Ok(()),
            false => Ok(self.tx.set(field!(self, chains), &chains)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_chain_more_takes_from_one_other() {
        for buckets in 1..200 {
            for number in 0..2000 {
                let (before, after) = (bucket_of(number, buckets), bucket_of(number, buckets + 1));
                assert!(before < buckets);
                let from = if buckets.is_power_of_two() { 0 } else { buckets - buckets.next_power_of_two() / 2 };
                assert!(
                    after == before || (after == buckets && before == from),
                    "{number}: {before} of {buckets}, {after}"
                );
            }
        }
    }
}
