//! The segments that a pass over all segments has yet to visit, so that it does not look at all of them to find each
//! next one.
//!
//! The list is made by looking at every slot, which takes a thirtieth of a second per TiB, and is used until it is empty
//! or old. Each segment in it is looked at again when it is next. With few segments the list is made anew each time, so
//! that the most urgent comes first. With more it is used until making it was a hundredth of the work.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pram::clock::Clock;

/// Looking at so many slots costs nothing.
const FEW: u64 = 4096;
/// A list is used for so many times the time that it took to make.
const WORTH: u32 = 100;
/// An empty list is not made anew for so many times that time.
const AGAIN: u32 = 4;
/// Segments of a list at most.
const MOST: usize = 1 << 20;

/// Segments by slot and sequence number, the next one first; made for a purpose `K`.
pub struct Agenda<K> {
    of: Option<K>,
    list: VecDeque<(u32, u64)>,
    looked: u64,
    clock: Clock,
    made: Instant,
    took: Duration,
}

impl<K: PartialEq> Agenda<K> {
    pub fn new(clock: &Clock) -> Agenda<K> {
        let (clock, made) = (clock.clone(), clock.instant());
        Agenda { of: None, list: VecDeque::new(), looked: 0, clock, made, took: Duration::ZERO }
    }

    /// Is the list still valid for this purpose?
    pub fn counts(&self, of: &K) -> bool {
        self.of.as_ref() == Some(of) && self.looked > FEW && self.clock.since(self.made) < self.took * WORTH
    }

    /// Fills the list with segments, sorted by their keys, the least first. `began` and `looked`: when making it began,
    /// and how many slots were looked at.
    pub fn fill<O: Ord>(&mut self, of: K, (began, looked): (Instant, u64), mut found: Vec<(O, u32, u64)>) {
        found.sort_unstable();
        found.truncate(MOST);
        self.list = found.into_iter().map(|(_, slot, sequence)| (slot, sequence)).collect();
        (self.of, self.looked) = (Some(of), looked);
        (self.made, self.took) = (self.clock.instant(), self.clock.since(began));
    }

    /// The next one, which stays in the list.
    pub fn first(&self) -> Option<(u32, u64)> {
        self.list.front().copied()
    }

    /// May an empty list be made anew although it is valid? If that takes at most one part of the time in so many.
    pub fn may_be_made_again(&self) -> bool {
        self.list.is_empty() && self.clock.since(self.made) > self.took * AGAIN
    }

    /// Takes the next one out of the list.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        self.list.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_counts_for_its_purpose_and_as_long_as_it_is_worth_it() {
        let clock = Clock::default();
        let mut agenda = Agenda::new(&clock);
        agenda.fill(1, (Instant::now(), FEW), vec![(2, 5, 50), (1, 6, 60)]);
        assert!(!agenda.counts(&1), "there are few");
        assert_eq!([agenda.take(), agenda.take(), agenda.take()], [Some((6, 60)), Some((5, 50)), None]);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(10)).expect("the clock runs");
        agenda.fill(1, (long_ago, FEW + 1), vec![(2, 5, 50)]);
        assert!(agenda.counts(&1) && !agenda.counts(&2));
    }
}
