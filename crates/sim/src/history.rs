//! The recorded events, and the states that may be found at each.
//!
//! A *boundary* is an instant between two operations. A power cut must leave a boundary that is not later than the cut,
//! and not earlier than the last acknowledged one. A death must leave the last boundary or the next one: the operation
//! under way is undone or done.
//!
//! Boundaries are compared by the bytes of the memory that a backing holds; where content of large files is elsewhere,
//! by the tree that the model predicts.

use std::cell::OnceCell;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::ledger::copied;
use crate::tape::{Moment, Point, Still};
use crate::tree::{difference, Snapshot, Tree};
use crate::world::{self, Setup};

/// An instant at which no operation is under way.
pub struct Boundary {
    /// Events before it.
    pub at: usize,
    /// The memory, if all content is in it.
    pub bytes: Arc<Vec<u8>>,
    seen: OnceCell<Result<Snapshot, String>>,
    /// The tree of the model, if there is one.
    pub tree: Tree,
}

impl Boundary {
    pub fn new(at: usize, bytes: impl Into<Arc<Vec<u8>>>) -> Boundary {
        Boundary { at, bytes: bytes.into(), seen: OnceCell::new(), tree: Tree::new() }
    }

    /// The same, with the tree of the model.
    pub fn modelled(at: usize, bytes: Vec<u8>, tree: Tree) -> Boundary {
        Boundary { tree, ..Boundary::new(at, bytes) }
    }

    /// Everything that is visible at this instant.
    pub fn seen(&self) -> Result<&Snapshot, String> {
        self.seen.get_or_init(|| world::seen(&self.bytes)).as_ref().map_err(Clone::clone)
    }
}

/// Events before an acknowledgement, and the last boundary that it covers.
pub type Promise = (usize, usize);

/// A recording, with the promises.
pub struct History {
    pub setup: Setup,
    pub start: Still,
    pub moments: Vec<Moment>,
    pub boundaries: Vec<Boundary>,
    pub acknowledged: Vec<Promise>,
}

impl History {
    /// A history of a single instant.
    pub fn of(setup: Setup, start: Still) -> History {
        let boundaries = vec![Boundary::new(0, start.memory.clone())];
        History { setup, start, moments: Vec::new(), boundaries, acknowledged: Vec::new() }
    }

    /// Memory and disks at these points, which are in ascending order.
    pub fn stills(&self, points: Vec<Point>) -> impl Iterator<Item = (Point, Still)> + '_ {
        self.start.at(&self.moments, points)
    }

    /// The last boundary before event `at`.
    pub fn reached(&self, at: usize) -> usize {
        self.boundaries.iter().rposition(|b| b.at <= at).unwrap_or(0)
    }

    /// The boundaries that a death of all processes may leave.
    pub fn after_death(&self, at: usize) -> RangeInclusive<usize> {
        let reached = self.reached(at);
        reached..=(reached + 1).min(self.boundaries.len() - 1)
    }

    /// The boundaries that a power cut may leave, which loses the memory.
    pub fn after_loss(&self, at: usize) -> RangeInclusive<usize> {
        let promised = self.acknowledged.iter().filter(|(events, _)| *events <= at).map(|(_, n)| *n).max();
        promised.unwrap_or(0)..=self.reached(at)
    }

    /// Which of some boundaries is the state that was found; an error if none is.
    pub fn which(
        &self,
        allowed: RangeInclusive<usize>,
        same: impl Fn(&Boundary) -> bool,
        describe: impl Fn() -> String,
    ) -> Result<usize, String> {
        if let Some(n) = allowed.clone().rev().find(|n| same(&self.boundaries[*n])) {
            return Ok(n);
        }
        let other = self.boundaries.iter().position(same).map(|n| match n < *allowed.start() {
            true => format!("it is instant {n}, and what was promised is lost"),
            false => format!("it is instant {n}"),
        });
        Err(format!("none of the instants {allowed:?}: {}", other.unwrap_or_else(describe)))
    }

    /// Which of some boundaries has these bytes, as far as a backing holds them; an error if none has.
    pub fn which_bytes(&self, allowed: RangeInclusive<usize>, bytes: &[u8]) -> Result<usize, String> {
        let parts = copied(bytes.len());
        let same = |b: &Boundary| parts.iter().all(|part| b.bytes[part.clone()] == bytes[part.clone()]);
        let lines = |n: usize| {
            let lines = parts.iter().flat_map(|part| part.clone().step_by(64).map(|at| at..(at + 64).min(part.end)));
            lines.filter(|line| self.boundaries[n].bytes[line.clone()] != bytes[line.clone()]).collect::<Vec<_>>()
        };
        self.which(allowed.clone(), same, || {
            let nearest = allowed.clone().map(|n| (n, lines(n))).min_by_key(|(_, lines)| lines.len());
            nearest.map_or("none is".into(), |(n, lines)| {
                let first = lines.first().map_or(0, |line| line.start);
                format!("{} lines differ from instant {n}, the first at {first:#x}", lines.len())
            })
        })
    }

    /// At which of some boundaries this is visible; an error if at none.
    pub fn which_seen(&self, allowed: RangeInclusive<usize>, found: &Snapshot) -> Result<usize, String> {
        let seen = |n: usize| match self.boundaries[n].seen() {
            Ok(seen) => format!("{n}: {}", found.difference(seen).unwrap_or_default()),
            Err(e) => format!("{n}: {e}"),
        };
        let each = || allowed.clone().map(seen).collect::<Vec<_>>().join("; ");
        self.which(allowed.clone(), |b| b.seen().is_ok_and(|seen| seen == found), each)
    }

    /// At which of some boundaries the model predicts this tree; an error if at none.
    pub fn which_tree(&self, allowed: RangeInclusive<usize>, found: &Tree) -> Result<usize, String> {
        let text = |n: usize| format!("{n}: {}", difference(found, &self.boundaries[n].tree).unwrap_or_default());
        let each = || allowed.clone().map(text).collect::<Vec<_>>().join("; ");
        self.which(allowed.clone(), |b| b.tree == *found, each)
    }
}
