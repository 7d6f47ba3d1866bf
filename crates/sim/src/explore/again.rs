//! A second crash, during the recovery from the first.

use std::sync::Arc;

use pram::Mapping;

use super::{choices, name_of, name_of_choice, open, open_recording, points, Allowed, Depth, Run};
use crate::crash::{mapping, Medium};
use crate::medium::Discipline;
use crate::scenario::Scenario;
use crate::trace::{Event, Recorder};

/// Most cuts inside one long store.
const CUTS: u64 = 2;

/// Recovers what a crash left, which must be as `allowed`, and again after a crash at each store of that: it comes to the
/// same. True if that is the state after the operation.
pub(super) fn recover_twice(
    run: &Run,
    s: &Scenario,
    discipline: Discipline,
    depth: Depth,
    left: &Mapping,
    allowed: Allowed,
) -> Result<bool, String> {
    let mut bytes = vec![0; left.len() as usize];
    left.copy_out(0, &mut bytes).map_err(|e| e.to_string())?;
    let recorder = Arc::<Recorder>::default();
    recorder.start();
    let fs = open_recording(mapping(&bytes), discipline, &recorder)?;
    let events = recorder.stop();
    let after = run.judge(s, &fs, allowed, false)?;
    let differ = run.before.snapshot != run.after.snapshot;
    each_crash(discipline, depth, &bytes, &events, |left, told| {
        let told = format!("recovery was cut at {told}");
        let found = open(left(), discipline).and_then(|fs| run.judge(s, &fs, Allowed::Either, false));
        match found.map_err(|e| format!("{told}: {e}"))? {
            found if differ && found != after => Err(format!("{told}: first it was after: {after}, then: {found}")),
            _ => Ok(()),
        }
    })?;
    Ok(after)
}

/// Calls `look` with what makes what each crash leaves, and where that was.
pub(super) fn each_crash(
    discipline: Discipline,
    depth: Depth,
    base: &[u8],
    events: &[Event],
    mut look: impl FnMut(&dyn Fn() -> Mapping, &str) -> Result<(), String>,
) -> Result<(), String> {
    let (mut medium, mut applied) = (Medium::new(discipline, base), 0);
    for point in points(events, CUTS) {
        events[applied..point.events].iter().for_each(|event| medium.apply(event, None));
        applied = point.events;
        if point.cut > 0 {
            medium.apply(&events[point.events], Some(point.cut));
        }
        for choice in choices(&medium, discipline, depth) {
            look(&|| medium.crash(choice), &format!("{}:{}", name_of(point), name_of_choice(choice)))?;
        }
    }
    Ok(())
}
