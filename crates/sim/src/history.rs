//! What happened, event by event, and what may therefore be found at each.
//!
//! A *boundary* is an instant between two operations. What a power cut leaves must be some boundary: none later than the cut, none
//! earlier than the last that was acknowledged. What a death leaves must be the last boundary, or the next one: the operation under
//! way is undone or done.
//!
//! Boundaries are distinguished by the bytes of the memory, but for what a backing does not hold of them; or, where content of
//! large files is elsewhere, by what the model says can be read.

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
    /// The memory, where all content is in it.
    pub bytes: Arc<Vec<u8>>,
    seen: OnceCell<Result<Snapshot, String>>,
    /// What the model says, if there is one.
    pub tree: Tree,
}

impl Boundary {
    pub fn new(at: usize, bytes: impl Into<Arc<Vec<u8>>>) -> Boundary {
        Boundary { at, bytes: bytes.into(), seen: OnceCell::new(), tree: Tree::new() }
    }

    /// The same, with what the model says.
    pub fn modelled(at: usize, bytes: Vec<u8>, tree: Tree) -> Boundary {
        Boundary { tree, ..Boundary::new(at, bytes) }
    }

    /// What is seen there.
    pub fn seen(&self) -> Result<&Snapshot, String> {
        self.seen.get_or_init(|| world::seen(&self.bytes)).as_ref().map_err(Clone::clone)
    }
}

/// Events before something was acknowledged, and the last boundary that it was about.
pub type Promise = (usize, usize);

/// A recording, with what was promised when.
pub struct History {
    pub setup: Setup,
    pub start: Still,
    pub moments: Vec<Moment>,
    pub boundaries: Vec<Boundary>,
    pub acknowledged: Vec<Promise>,
}

impl History {
    /// Nothing but that this is there.
    pub fn of(setup: Setup, start: Still) -> History {
        let boundaries = vec![Boundary::new(0, start.memory.clone())];
        History { setup, start, moments: Vec::new(), boundaries, acknowledged: Vec::new() }
    }

    /// Memory and disks at these points, which are in order.
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

    /// The boundaries that a power cut may leave, and the loss of the memory.
    pub fn after_loss(&self, at: usize) -> RangeInclusive<usize> {
        let promised = self.acknowledged.iter().filter(|(events, _)| *events <= at).map(|(_, n)| *n).max();
        promised.unwrap_or(0)..=self.reached(at)
    }

    /// Which of some boundaries is the same as what was found; if none, why.
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

    /// Which of some boundaries has these bytes, as far as a backing holds them; if none, why.
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

    /// In which of some boundaries this is seen; if in none, why.
    pub fn which_seen(&self, allowed: RangeInclusive<usize>, found: &Snapshot) -> Result<usize, String> {
        let seen = |n: usize| match self.boundaries[n].seen() {
            Ok(seen) => format!("{n}: {}", found.difference(seen).unwrap_or_default()),
            Err(e) => format!("{n}: {e}"),
        };
        let each = || allowed.clone().map(seen).collect::<Vec<_>>().join("; ");
        self.which(allowed.clone(), |b| b.seen().is_ok_and(|seen| seen == found), each)
    }

    /// In which of some boundaries the model sees this; if in none, why.
    pub fn which_tree(&self, allowed: RangeInclusive<usize>, found: &Tree) -> Result<usize, String> {
        let text = |n: usize| format!("{n}: {}", difference(found, &self.boundaries[n].tree).unwrap_or_default());
        let each = || allowed.clone().map(text).collect::<Vec<_>>().join("; ");
        self.which(allowed.clone(), |b| b.tree == *found, each)
    }
}
