//! Power cuts: after every event, everything that the disks may then hold; and power cuts of who takes that up.

use super::disk::Files;
use super::history::{Boundary, History, Still};
use super::later::{cut_later, live};
use super::tape::Event;
use super::world::{look, reload, World};
use super::{caught, Depth, Filter, Stats, Verdicts};
use crate::crash::Choice;
use crate::explore::{check, name_of_choice, work_with};
use rng::Rng;

/// Explores the power cuts of a history. An id is `name:cut:events:choice`, or of a later power cut
/// `name:cut:events:choice/events/choice`.
pub fn explore(name: &str, history: &History, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    let wanted = places(history, depth.cuts, name);
    let mut files = history.start.files.clone();
    for at in 0..=history.moments.len() {
        if let Some(moment) = at.checked_sub(1).map(|n| &history.moments[n]) {
            if !moment.event.reaches_a_disk() {
                continue;
            }
            files.apply(&moment.event);
        }
        let here = match filter.point {
            None => wanted.binary_search(&at).is_ok(),
            Some(point) => point == at.to_string(),
        };
        if !here || verdicts.enough() {
            continue;
        }
        let (wanted, later) = match filter.choice.map(|told| told.split_once('/').ok_or(told)) {
            None => (None, None),
            Some(Err(first)) => (Some(first), None),
            Some(Ok((first, later))) => (Some(first), Some(later)),
        };
        for choice in choices(&files, depth.seeds) {
            let told = name_of_choice(choice);
            if wanted.is_some_and(|wanted| wanted != told) {
                continue;
            }
            verdicts.stats.cuts += 1;
            let deep = verdicts.stats.cuts % depth.aftermath == 0 || filter.point.is_some();
            let id = |what: &str| format!("{name}:cut:{at}:{told}{what}");
            match caught(|| judge(history, at, &files.cut(choice), deep, &mut verdicts.stats)) {
                Err(text) => verdicts.take(Err(text), || id("")),
                Ok(None) => {}
                Ok(Some(second)) => {
                    let mut rng = Rng::new(super::seed_of(name) ^ at as u64);
                    let id = |what: &str| id(&format!("/{what}"));
                    cut_later(&second, &mut rng, &id, depth, &Filter { choice: later, ..Filter::default() }, verdicts);
                }
            }
        }
    }
}

/// The places to look at: all, or a few drawn, and the end. Stores reach no disk.
fn places(history: &History, most: usize, name: &str) -> Vec<usize> {
    let reached = |n: &usize| matches!(history.moments[*n - 1].event, Event::Write { .. } | Event::Flush { .. });
    let mut all: Vec<usize> = (1..=history.moments.len()).filter(reached).collect();
    let end = all.last().copied().unwrap_or(0);
    if all.len() > most {
        Rng::new(super::seed_of(name)).shuffle(&mut all);
        all.truncate(most);
    }
    all.extend([0, end]);
    all.sort_unstable();
    all.dedup();
    all
}

/// What can become of what is in doubt.
pub fn choices(files: &Files, seeds: u64) -> Vec<Choice> {
    match files.in_doubt() {
        0 => vec![Choice::None],
        1 => vec![Choice::None, Choice::All],
        _ => [Choice::None, Choice::All].into_iter().chain((1..=seeds).map(Choice::Seed)).collect(),
    }
}

/// Judges what a cut after `at` events left. If `deep` also by living on with it; that life.
pub fn judge(
    history: &History,
    at: usize,
    left: &Files,
    deep: bool,
    stats: &mut Stats,
) -> Result<Option<History>, String> {
    let bytes = reload(left, history.size())?;
    let n = history.which(at, &bytes)?;
    *(if n == history.reached(at) { &mut stats.newest } else { &mut stats.older }) += 1;
    deep.then(|| go_on(history, n, left)).transpose()
}

/// Opens what a cut left, which is instant `n`, looks at everything, and lives on.
fn go_on(history: &History, n: usize, left: &Files) -> Result<History, String> {
    let world = World::load(left.clone(), history.size())?;
    check(&world.fs, false)?;
    let found = look(&world.fs)?;
    let wanted = history.boundaries[n].seen()?;
    if found != *wanted {
        return Err(format!("opened, it is not instant {n}: {}", found.difference(wanted).unwrap_or_default()));
    }
    // On a full file system work may fail: that is not judged here.
    let _ = work_with(&world.fs, &found);
    let instant = history.boundaries[n].bytes.clone();
    let start = Still { region: instant.to_vec(), marks: Vec::new(), files: left.clone() };
    live(&world, start, vec![Boundary::new(0, instant)], 0).map_err(|e| format!("after recovery: {e}"))
}

/// A cut now, after a wait, leaves what is in memory.
pub fn same_again(world: &World) -> Result<(), String> {
    let now = History {
        start: Still { region: world.bytes(), marks: Vec::new(), files: Files::default() },
        moments: Vec::new(),
        boundaries: vec![Boundary::new(0, world.bytes())],
        acknowledged: Vec::new(),
    };
    let left = world.tape.files().cut(Choice::None);
    let bytes = reload(&left, now.size()).map_err(|e| format!("after a wait: {e}"))?;
    now.which(0, &bytes).map(|_| ()).map_err(|e| format!("after a wait, the copy is not the region: {e}"))
}
