//! Power cuts: after every event, all states that the disks may then have; and further power cuts in the life after.

use rng::Rng;

use super::judge::judge;
use super::later::cut_later;
use super::Depth;
use crate::history::History;
use crate::tape::Event;
use crate::verdict::{caught, seed_of, Filter, Verdicts};

/// Explores the power cuts of a history. An id is `name:cut:events:choice`, or of a later power cut
/// `name:cut:events:choice/events/choice`.
pub fn explore(name: &str, history: &History, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    let wanted = places(history, depth.cuts, name);
    let (choice, later) = match filter.choice.map(|text| text.split_once('/').ok_or(text)) {
        None => (None, None),
        Some(Err(first)) => (Some(first), None),
        Some(Ok((first, later))) => (Some(first), Some(later)),
    };
    let start = std::iter::once((0, history.start.files.clone()));
    for (at, files) in start.chain(history.start.files.over(&history.moments)) {
        let here = match filter.point {
            None => wanted.binary_search(&at).is_ok(),
            Some(point) => point == at.to_string(),
        };
        if !here || verdicts.enough() {
            continue;
        }
        for (drawn, name_of) in files.choices(depth.seeds).into_iter().map(|choice| (choice, choice.name())) {
            if choice.is_some_and(|wanted| wanted != name_of) {
                continue;
            }
            verdicts.stats.cuts += 1;
            let deep = verdicts.stats.cuts % depth.aftermath == 0 || filter.point.is_some();
            let id = |what: &str| format!("{name}:cut:{at}:{name_of}{what}");
            match caught(|| judge(history, at, &files.cut(drawn), deep, &mut verdicts.stats)) {
                Err(text) => verdicts.take(Err(text), || id("")),
                Ok(None) => {}
                Ok(Some(second)) => {
                    let mut rng = Rng::new(seed_of(name) ^ at as u64);
                    let id = |what: &str| id(&format!("/{what}"));
                    cut_later(&second, &mut rng, &id, depth, &Filter { choice: later, ..Filter::default() }, verdicts);
                }
            }
        }
    }
}

/// The places to explore: all, or a few drawn, and the end. Stores reach no disk.
fn places(history: &History, most: usize, name: &str) -> Vec<usize> {
    let reached = |n: &usize| matches!(history.moments[*n - 1].event, Event::Write { .. } | Event::Flush { .. });
    let mut all: Vec<usize> = (1..=history.moments.len()).filter(reached).collect();
    let end = all.last().copied().unwrap_or(0);
    if all.len() > most {
        Rng::new(seed_of(name)).shuffle(&mut all);
        all.truncate(most);
    }
    all.extend([0, end]);
    all.sort_unstable();
    all.dedup();
    all
}
