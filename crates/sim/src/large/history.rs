//! What happened, and what of it may be found after a crash.
//!
//! A *boundary* is an instant between two operations. Content of large files is not in the copy, so boundaries are told apart by
//! what can be read, not by the bytes of the region.

use std::ops::RangeInclusive;

use pram::MediumKind;

use crate::copy::history::{Promise, Still};
use crate::copy::tape::Moment;
use crate::tree::{difference, Tree};

pub struct Boundary {
    /// Events before it.
    pub at: usize,
    /// What the model says.
    pub tree: Tree,
}

pub struct History {
    pub kind: MediumKind,
    pub start: Still,
    pub moments: Vec<Moment>,
    pub boundaries: Vec<Boundary>,
    pub acknowledged: Vec<Promise>,
}

impl History {
    /// The last boundary before event `at`.
    pub fn reached(&self, at: usize) -> usize {
        self.boundaries.iter().rposition(|b| b.at <= at).unwrap_or(0)
    }

    /// Those that a death of all processes may leave: the operation under way was done or was not.
    pub fn after_death(&self, at: usize) -> RangeInclusive<usize> {
        let reached = self.reached(at);
        reached..=(reached + 1).min(self.boundaries.len() - 1)
    }

    /// Those that the loss of memory may leave.
    pub fn after_loss(&self, at: usize) -> RangeInclusive<usize> {
        let promised = self.acknowledged.iter().filter(|(events, _)| *events <= at).map(|(_, n)| *n).max();
        promised.unwrap_or(0)..=self.reached(at)
    }

    /// Which of some boundaries was found.
    pub fn which(&self, allowed: RangeInclusive<usize>, found: &Tree) -> Result<usize, String> {
        let same = |n: &usize| difference(found, &self.boundaries[*n].tree).is_none();
        if let Some(n) = allowed.clone().rev().find(same) {
            return Ok(n);
        }
        let other = (0..self.boundaries.len()).find(same).map(|n| format!("it is instant {n}"));
        let told = |n: usize| format!("{n}: {}", difference(found, &self.boundaries[n].tree).unwrap_or_default());
        let each = || allowed.clone().map(told).collect::<Vec<_>>().join("; ");
        Err(format!("none of the instants {allowed:?}: {}", other.unwrap_or_else(each)))
    }
}
