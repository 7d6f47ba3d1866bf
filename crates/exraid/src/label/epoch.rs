//! The epoch of a set of disks: how often its membership has changed, and which way.
//!
//! A number alone does not distinguish two halves that were used without each other: both have counted on. So each
//! epoch has a random stamp from its beginning, and a label has the last stamps. Then a disk that stayed behind differs
//! from one that diverged.

use super::raw::STAMPS;

/// An epoch, and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub(super) number: u64,
    /// The stamp of epoch `n` lies at `n` modulo their number.
    pub(super) stamps: [u64; STAMPS],
}

/// The relation of one epoch to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Same,
    /// The other one is in the past of this one: the other disk stayed behind.
    Ahead,
    /// The reverse of `Ahead`.
    Behind,
    /// Both diverged from a common epoch: each half was written without the other.
    Split,
    /// One is so much older that its place in the other's past is unknown.
    Unknown,
}

impl Epoch {
    /// The first epoch of a new set of disks.
    pub fn first(stamp: u64) -> Epoch {
        Epoch { number: 0, stamps: [0; STAMPS] }.next(stamp)
    }

    /// The one after this; `stamp` is random.
    #[must_use]
    pub fn next(mut self, stamp: u64) -> Epoch {
        self.number += 1;
        self.stamps[self.number as usize % STAMPS] = stamp;
        self
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// The stamps of the last epochs, as in labels.
    pub fn stamps(&self) -> &[u64; STAMPS] {
        &self.stamps
    }

    /// From the fields of a label.
    pub fn from_raw(number: u64, stamps: [u64; STAMPS]) -> Epoch {
        Epoch { number, stamps }
    }

    fn stamp(&self) -> u64 {
        self.stamps[self.number as usize % STAMPS]
    }

    pub fn relation(&self, other: &Epoch) -> Relation {
        if self.number < other.number {
            return match other.relation(self) {
                Relation::Ahead => Relation::Behind,
                relation => relation,
            };
        }
        if self.number - other.number >= STAMPS as u64 {
            return Relation::Unknown;
        }
        match self.stamps[other.number as usize % STAMPS] == other.stamp() {
            false => Relation::Split,
            true if self.number == other.number => Relation::Same,
            true => Relation::Ahead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_that_were_used_without_each_other_are_distinguished() {
        let both = (2..40).fold(Epoch::first(1), Epoch::next);
        let (one, other) = (both.next(1000), both.next(2000));
        assert_eq!(one.relation(&one), Relation::Same);
        assert_eq!(one.relation(&both), Relation::Ahead);
        assert_eq!(both.relation(&one), Relation::Behind);
        assert_eq!(one.relation(&other), Relation::Split, "both counted on once");
        let further = other.next(2001).next(2002);
        assert_eq!(further.relation(&one), Relation::Split, "one counted on more often");
        assert_eq!(one.relation(&further), Relation::Split);
    }

    #[test]
    fn what_nobody_remembers_is_not_guessed() {
        let old = Epoch::first(5);
        let new = (100..100 + STAMPS as u64 - 1).fold(old, Epoch::next);
        assert_eq!(new.relation(&old), Relation::Ahead);
        assert_eq!(new.next(7).relation(&old), Relation::Unknown);
        assert_eq!(old.relation(&new.next(7)), Relation::Unknown);
    }
}
