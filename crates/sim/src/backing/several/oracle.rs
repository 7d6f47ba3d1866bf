//! The states that a power cut may leave: the memory at an instant between operations of all processes.
//!
//! Operations of two processes overlap. A state of the memory, after so many events, is *between operations* if no
//! operation has stored before it and stores after it. That follows from the stores alone, each with its operation, and
//! not from the decisions of a commit. These states are the boundaries of the history.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::history::{Boundary, History};
use crate::ledger::copied;
use crate::stage::Use;
use crate::tape::{Event, Moment, Still};
use crate::world::Setup;

/// Events before a wait returned, and before it was called: everything done by then is promised.
pub type Promise = (usize, usize);

const LINE: usize = 64;

/// A recording of several processes, with all promises. `stores`: by event, the operations that a store belongs to.
pub fn history(
    start: Still,
    moments: Vec<Moment>,
    stores: &BTreeMap<usize, Vec<Use>>,
    promises: &[Promise],
) -> History {
    let mut spans: BTreeMap<Use, Range<usize>> = BTreeMap::new();
    for (event, uses) in stores {
        uses.iter().for_each(|op| spans.entry(*op).or_insert(*event..*event).end = *event);
    }
    let mut between = vec![true; moments.len() + 1];
    spans.values().for_each(|span| between[span.start + 1..=span.end].fill(false));
    let instants: Vec<usize> = (0..between.len()).filter(|state| between[*state]).collect();
    // Not the state at the call: another thread may have been in the middle of an operation, which is not promised.
    let done = |called| spans.values().map(|span| span.end + 1).filter(|end| *end <= called).max().unwrap_or(0);
    let first = |called| instants.partition_point(|state| *state < done(called));
    let acknowledged = promises.iter().map(|(returned, called)| (*returned, first(*called))).collect();
    let boundaries = instants.iter().map(|state| Boundary::new(*state, Vec::new())).collect();
    History { setup: Setup::logged(start.memory.len() as u64), start, moments, boundaries, acknowledged }
}

/// Is `found` a state that a cut after `at` events may leave?
pub fn judge(history: &History, at: usize, found: &[u8]) -> Result<(), String> {
    let differ = differing(history, found, at);
    let allowed = history.after_loss(at);
    let same = |boundary: &Boundary| differ.get(boundary.at) == Some(&0);
    let nearest = || match differ.iter().enumerate().min_by_key(|(_, lines)| **lines) {
        Some((state, 0)) => format!("it is state {state}, in the middle of an operation"),
        Some((state, lines)) => format!("{lines} lines differ from state {state}"),
        None => "there is none".into(),
    };
    history.which(allowed, same, nearest).map(drop)
}

/// The number of lines in which each state up to `last` differs from `found`.
fn differing(history: &History, found: &[u8], last: usize) -> Vec<usize> {
    let (parts, mut bytes) = (copied(found.len()), history.start.memory.to_vec());
    let differs = |bytes: &[u8], line: usize| {
        let (start, end) = (line * LINE, (line * LINE + LINE).min(found.len()));
        let mut within = parts.iter().map(|part| part.start.clamp(start, end)..part.end.clamp(start, end));
        within.any(|part| bytes[part.clone()] != found[part])
    };
    let mut wrong: Vec<bool> = (0..found.len().div_ceil(LINE)).map(|line| differs(&bytes, line)).collect();
    let mut counts = vec![wrong.iter().filter(|w| **w).count()];
    for moment in &history.moments[..last] {
        let mut count = counts[counts.len() - 1];
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
        counts.push(count);
    }
    counts
}
