//! Places that were read lately and left memory since: a page that is read again comes into the union cache.
//!
//! A place is remembered as a number of 32 bits in one of the sets that there is room for, each of eight, the oldest of which goes
//! first. Two places may have one number, once in some hundred million: then a page comes in that was read only once.

use ilfs::Place;

/// Places of a set.
const WAYS: usize = 8;
/// Sets at most: 16 MiB of memory.
const MOST: usize = 1 << 19;

/// Places that were read, and left.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    /// The newest first; 0: none. Made when something is remembered.
    sets: Vec<[u32; WAYS]>,
    /// How many there are to be, a power of two.
    count: usize,
}

impl Ghosts {
    /// Of so many places about, those that left last.
    pub fn new(places: u64) -> Ghosts {
        let count = (places as usize / WAYS).next_power_of_two().clamp(64, MOST);
        Ghosts { sets: Vec::new(), count }
    }

    /// It has left.
    pub fn add(&mut self, place: Place) {
        let count = self.count;
        if self.sets.is_empty() {
            self.sets = vec![[0; WAYS]; count];
        }
        let (n, number) = number(place, count);
        let Some(set) = self.sets.get_mut(n) else { return };
        // Up to itself, if it is there.
        let end = set.iter().position(|other| *other == number).unwrap_or(WAYS - 1);
        set.copy_within(..end, 1);
        set[0] = number;
    }

    /// It comes back: was it remembered? It is no more.
    pub fn take(&mut self, place: Place) -> bool {
        let (n, number) = number(place, self.count);
        let Some(set) = self.sets.get_mut(n) else { return false };
        let Some(at) = set.iter().position(|other| *other == number) else { return false };
        set.copy_within(at + 1.., at);
        set[WAYS - 1] = 0;
        true
    }
}

/// Which set, and the number in it, which is not 0.
fn number(place: Place, sets: usize) -> (usize, u32) {
    let mixed = place.word().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((mixed >> 40) as usize & (sets - 1), (mixed as u32).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(n: u64) -> Place {
        Place::new(1 + n / 1000, (n % 1000) as u32)
    }

    #[test]
    fn what_left_lately_is_remembered_once() {
        let mut ghosts = Ghosts::new(4096);
        assert!(!ghosts.take(place(7)));
        (0..1024).for_each(|n| ghosts.add(place(n)));
        let found = (0..1024).filter(|n| ghosts.take(place(*n))).count();
        assert!(found > 1000, "{found} of 1024");
        assert_eq!((0..2048).filter(|n| ghosts.take(place(*n))).count(), 0);
    }

    #[test]
    fn of_many_the_last_are_remembered() {
        let mut ghosts = Ghosts::new(4096);
        (0..100_000).for_each(|n| ghosts.add(place(n)));
        let of = |ghosts: &mut Ghosts, range: std::ops::Range<u64>| range.filter(|n| ghosts.take(place(*n))).count();
        assert_eq!(of(&mut ghosts, 0..80_000), 0);
        let last = of(&mut ghosts, 99_000..100_000);
        assert!(last > 980, "{last} of 1000");
    }

    #[test]
    fn what_leaves_again_takes_no_second_entry() {
        let mut ghosts = Ghosts::new(0);
        (0..100).for_each(|_| ghosts.add(place(3)));
        assert!(ghosts.take(place(3)) && !ghosts.take(place(3)));
    }
}
