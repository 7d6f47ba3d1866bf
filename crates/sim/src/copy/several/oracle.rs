//! What a power cut may leave: the region at an instant between operations, whoever's they are.
//!
//! Operations of two processes overlap. A state of the region, after so many events, is one *between operations* if no
//! operation has stored before it and stores after it. That is told from the stores alone, each with the operation that it
//! belongs to, and not from what a commit believes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::disk::Files;
use super::super::history::{notes, undo_logs, Still};
use super::super::tape::{Event, Moment};
use crate::stage::Use;

/// Events before a wait returned, and before it was called: what was done by then.
pub type Promise = (usize, usize);

/// A recording of several processes, with what was promised to any of them when.
pub struct Timeline {
    pub start: Still,
    pub moments: Vec<Moment>,
    /// By state: is it between operations?
    between: Vec<bool>,
    /// Events before a wait returned, and the first state with all that was promised.
    promises: Vec<(usize, usize)>,
}

const LINE: usize = 64;

impl Timeline {
    /// `stores`: by event, the operations that a store belongs to.
    pub fn new(
        start: Still,
        moments: Vec<Moment>,
        stores: &BTreeMap<usize, Vec<Use>>,
        promises: Vec<Promise>,
    ) -> Timeline {
        let mut spans: BTreeMap<Use, Range<usize>> = BTreeMap::new();
        for (event, uses) in stores {
            uses.iter().for_each(|op| spans.entry(*op).or_insert(*event..*event).end = *event);
        }
        let mut between = vec![true; moments.len() + 1];
        spans.values().for_each(|span| between[span.start + 1..=span.end].fill(false));
        // Not the state at the call: somebody may have been in the middle of an operation, which was promised to nobody.
        let done = |called| spans.values().map(|span| span.end + 1).filter(|end| *end <= called).max().unwrap_or(0);
        let promises = promises.into_iter().map(|(returned, called)| (returned, done(called))).collect();
        Timeline { start, moments, between, promises }
    }

    /// States that a cut after `at` events may leave.
    fn allowed(&self, at: usize) -> Range<usize> {
        let promised = self.promises.iter().filter(|(returned, _)| *returned <= at).map(|(_, first)| *first);
        promised.max().unwrap_or(0)..at + 1
    }

    /// How many states lie between operations.
    pub fn instants(&self) -> usize {
        self.between.iter().filter(|b| **b).count()
    }

    /// The disks after each event at which they change: number of events, and what they hold.
    pub fn disks(&self) -> impl Iterator<Item = (usize, Files)> + '_ {
        let mut files = self.start.files.clone();
        self.moments.iter().enumerate().filter_map(move |(n, moment)| {
            match &moment.event {
                Event::Write { file, at, bytes } => files.0[*file].write(bytes, *at),
                Event::Flush { file } => files.0[*file].flush(),
                Event::Failed { file } => files.0[*file].fail_flush(),
                Event::Store { .. } | Event::Rest => return None,
            }
            Some((n + 1, files.clone()))
        })
    }

    /// Is `found` a state that a cut after `at` events may leave?
    pub fn judge(&self, at: usize, found: &[u8]) -> Result<(), String> {
        let allowed = self.allowed(at);
        let (mut any, mut nearest) = (None, (usize::MAX, 0));
        self.compare(found, at, |state, lines| {
            if lines == 0 && self.between[state] {
                any = Some(state);
            }
            if allowed.contains(&state) && lines < nearest.0 {
                nearest = (lines, state);
            }
        });
        match any {
            Some(state) if allowed.contains(&state) => Ok(()),
            Some(state) => Err(format!("it is state {state}, and none of {allowed:?}: what was promised is lost")),
            None if nearest.0 == 0 => Err(format!("it is state {}, in the middle of an operation", nearest.1)),
            None => Err(format!("none of the states {allowed:?}: {} lines differ from {}", nearest.0, nearest.1)),
        }
    }

    /// Tells `f` of each state up to `last` in how many lines it differs from `found`.
    fn compare(&self, found: &[u8], last: usize, mut f: impl FnMut(usize, usize)) {
        let (notes, undo) = (notes(), undo_logs(found.len() as u64));
        let mut bytes = self.start.region.clone();
        let differs = |bytes: &[u8], line: usize| {
            let (start, end) = (line * LINE, (line * LINE + LINE).min(found.len()));
            let parts = [start..notes.start.clamp(start, end), notes.end.clamp(start, end)..end];
            !undo.contains(&start) && parts.into_iter().any(|part| bytes[part.clone()] != found[part])
        };
        let mut wrong: Vec<bool> = (0..found.len().div_ceil(LINE)).map(|line| differs(&bytes, line)).collect();
        let mut count = wrong.iter().filter(|w| **w).count();
        f(0, count);
        for (n, moment) in self.moments[..last].iter().enumerate() {
            if let Event::Store { off, bytes: stored } = &moment.event {
                let (at, end) = (*off as usize, *off as usize + stored.len());
                bytes[at..end].copy_from_slice(stored);
                let touched = at / LINE..end.div_ceil(LINE);
                for (line, was) in touched.clone().zip(&mut wrong[touched]) {
                    let now = differs(&bytes, line);
                    count = count + usize::from(now) - usize::from(*was);
                    *was = now;
                }
            }
            f(n + 1, count);
        }
    }
}
