//! What a pass over all segments has yet to take: so that it looks at each of them once, and not at all of them for each that it takes.
//!
//! A list is made by looking at every slot, which takes a thirtieth of a second for each TiB, and is used until it is empty, or old. Each
//! segment in it is looked at again when it has its turn. Where there are few segments it is made anew each time: what is most urgent by
//! now comes first. Else it counts for so long that making it is a hundredth of the work.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// To look at so many slots costs nothing.
const FEW: u64 = 4096;
/// It counts so many times as long as it took.
const WORTH: u32 = 100;
/// One that is empty is not made anew for so many times as long.
const AGAIN: u32 = 4;
/// Segments of a list at most.
const MOST: usize = 1 << 20;

/// Segments by slot and sequence number, the first before the others; made for a purpose `K`.
pub struct Agenda<K> {
    of: Option<K>,
    list: VecDeque<(u32, u64)>,
    looked: u64,
    made: Instant,
    took: Duration,
}

impl<K> Default for Agenda<K> {
    fn default() -> Agenda<K> {
        Agenda { of: None, list: VecDeque::new(), looked: 0, made: Instant::now(), took: Duration::ZERO }
    }
}

impl<K: PartialEq> Agenda<K> {
    /// Does the list that was made for this count yet?
    pub fn counts(&self, of: &K) -> bool {
        self.of.as_ref() == Some(of) && self.looked > FEW && self.made.elapsed() < self.took * WORTH
    }

    /// A list of segments, each with what it is sorted by, the least first, of so many slots that were looked at from that time on.
    pub fn fill<O: Ord>(&mut self, of: K, (began, looked): (Instant, u64), mut found: Vec<(O, u32, u64)>) {
        found.sort_unstable();
        found.truncate(MOST);
        self.list = found.into_iter().map(|(_, slot, sequence)| (slot, sequence)).collect();
        (self.of, self.looked) = (Some(of), looked);
        (self.made, self.took) = (Instant::now(), began.elapsed());
    }

    /// The next one, which stays in the list.
    pub fn first(&self) -> Option<(u32, u64)> {
        self.list.front().copied()
    }

    /// May a list that has come to its end be made anew, though it counts? Where that takes a part of the time in so many.
    pub fn may_be_made_again(&self) -> bool {
        self.list.is_empty() && self.made.elapsed() > self.took * AGAIN
    }

    /// The next one; it is in the list no more.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        self.list.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_counts_for_its_purpose_and_as_long_as_it_is_worth_it() {
        let mut agenda = Agenda::default();
        agenda.fill(1, (Instant::now(), FEW), vec![(2, 5, 50), (1, 6, 60)]);
        assert!(!agenda.counts(&1), "there are few");
        assert_eq!([agenda.take(), agenda.take(), agenda.take()], [Some((6, 60)), Some((5, 50)), None]);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(10)).expect("the clock runs");
        agenda.fill(1, (long_ago, FEW + 1), vec![(2, 5, 50)]);
        assert!(agenda.counts(&1) && !agenda.counts(&2));
    }
}
