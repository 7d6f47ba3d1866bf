//! What happened, event by event, and what may therefore be found at each.
//!
//! A *boundary* is an instant between two operations; its bytes are the region's, as they were then. What a power
//! cut leaves must be, byte for byte, some boundary: none later than the cut, none earlier than the last wait
//! that had returned. Undo logs, and what the region notes of its copy, are left out of the comparison: they are not
//! copied.

use std::cell::OnceCell;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use pram::memory::{Geometry, HEADERS};
use pram::session::USER_ROOTS;

use super::disk::Files;
use super::tape::{Event, Moment};
use super::world;
use crate::tree::Snapshot;

/// An instant at which no operation is under way.
pub struct Boundary {
    /// Events before it.
    pub at: usize,
    pub bytes: Arc<Vec<u8>>,
    seen: OnceCell<Result<Snapshot, String>>,
}

impl Boundary {
    pub fn new(at: usize, bytes: impl Into<Arc<Vec<u8>>>) -> Boundary {
        Boundary { at, bytes: bytes.into(), seen: OnceCell::new() }
    }

    /// What is seen there.
    pub fn seen(&self) -> Result<&Snapshot, String> {
        self.seen.get_or_init(|| world::seen(&self.bytes)).as_ref().map_err(Clone::clone)
    }
}

/// Memory and disks between two events.
#[derive(Clone)]
pub struct Still {
    pub region: Vec<u8>,
    pub marks: Vec<u64>,
    pub files: Files,
}

impl Still {
    /// Takes an event.
    pub fn apply(&mut self, moment: &Moment) {
        moment.marks.iter().for_each(|(n, word)| self.marks[*n] = *word);
        match &moment.event {
            Event::Store { bytes, .. } => self.store(moment, bytes.len()),
            event => self.files.apply(event),
        }
    }

    /// Takes the first bytes of a store.
    pub fn store(&mut self, moment: &Moment, len: usize) {
        if let Event::Store { off, bytes } = &moment.event {
            let at = *off as usize;
            self.region[at..at + len].copy_from_slice(&bytes[..len]);
        }
    }
}

/// Events before a wait returned, and the last boundary before it was called.
pub type Promise = (usize, usize);

/// A recording, with what was promised when.
pub struct History {
    pub start: Still,
    pub moments: Vec<Moment>,
    pub boundaries: Vec<Boundary>,
    pub acknowledged: Vec<Promise>,
}

impl History {
    pub fn size(&self) -> u64 {
        self.start.region.len() as u64
    }

    /// The last boundary before event `at`.
    pub fn reached(&self, at: usize) -> usize {
        self.boundaries.iter().rposition(|b| b.at <= at).unwrap_or(0)
    }

    /// The boundaries that a power cut after `at` events may leave.
    pub fn allowed(&self, at: usize) -> RangeInclusive<usize> {
        let promised =
            self.acknowledged.iter().filter(|(events, _)| *events <= at).map(|(_, boundary)| *boundary).max();
        promised.unwrap_or(0)..=self.reached(at)
    }

    /// Which of the boundaries that are allowed after `at` events has these bytes; if none, why.
    pub fn which(&self, at: usize, bytes: &[u8]) -> Result<usize, String> {
        self.which_of(self.allowed(at), bytes)
    }

    /// Which of some boundaries has these bytes; if none, why.
    pub fn which_of(&self, allowed: RangeInclusive<usize>, bytes: &[u8]) -> Result<usize, String> {
        let (notes, undo) = (notes(), undo_logs(self.size()));
        let same = |n: &usize| {
            let wanted = &self.boundaries[*n].bytes;
            [0..notes.start, notes.end..undo.start, undo.end..bytes.len()]
                .into_iter()
                .all(|part| wanted[part.clone()] == bytes[part])
        };
        if let Some(n) = allowed.clone().rev().find(same) {
            return Ok(n);
        }
        let other = (0..self.boundaries.len()).find(same).map(|n| format!("it is instant {n}"));
        Err(format!(
            "none of the instants {allowed:?}: {}",
            other.unwrap_or_else(|| self.nearest(allowed.clone(), bytes))
        ))
    }

    fn nearest(&self, allowed: RangeInclusive<usize>, bytes: &[u8]) -> String {
        let undo = &undo_logs(self.size());
        let lines = |n: usize| {
            let wanted = &self.boundaries[n].bytes;
            let differ = move |at: &usize| !undo.contains(at) && wanted[*at..*at + 64] != bytes[*at..*at + 64];
            (0..bytes.len()).step_by(64).filter(differ).collect::<Vec<_>>()
        };
        let Some((n, lines)) = allowed.map(|n| (n, lines(n))).min_by_key(|(_, lines)| lines.len()) else {
            return "none is".into();
        };
        format!("{} lines differ from instant {n}, the first at {:#x}", lines.len(), lines.first().unwrap_or(&0))
    }
}

/// Where a region notes how it stands to its copy, of which that knows nothing, and its epochs, which commits move on.
pub(super) fn notes() -> Range<usize> {
    let word = |n: u64| HEADERS + n as usize * 8;
    word(USER_ROOTS + 1)..word(USER_ROOTS + 6)
}

/// Where the undo logs of a region of `size` bytes lie.
pub(super) fn undo_logs(size: u64) -> Range<usize> {
    let geo = Geometry::of(size).expect("a region was made with it");
    geo.undo_logs().start as usize..geo.undo_logs().end as usize
}
