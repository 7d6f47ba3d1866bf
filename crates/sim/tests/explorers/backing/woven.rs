//! Every single operation, and every pair of operations on names, in and between commits and checkpoints.
//!
//! The plots ([`explored`](super::explored)) put an operation at the beginning of a story. Here it and the one before it
//! are the whole story, so that every write and flush is about them. A commit falls between them or around them, or the
//! second falls in the middle of the commit or the checkpoint of the first.
//!
//! Each run takes a sample, one story in so many, with a few cuts and deaths of each; `CONQUEST_SIM_SEED=n` draws
//! another one. `CONQUEST_SIM=full` explores all stories, at every write and flush, which takes some minutes.

use sim::backing::plot::Weave;
use sim::backing::{explore_all, Depth};
use sim::scenario::{pairs, singles, Scenario};
use sim::story::Story;
use sim::verdict::{replays, sample, Stats};

fn explore(scenarios: &[Scenario], pair: bool, part: usize) -> Stats {
    let all = scenarios.iter().flat_map(|s| Weave::ALL.map(|weave| Story::woven(s, pair, weave)));
    explore_all(&sample(all.collect(), part), Depth::short())
}

#[test]
fn every_single_operation_is_kept_in_every_weave() {
    let stats = explore(&singles(), false, 5);
    assert!(replays() || stats.newest > 200 && stats.older > 200 && stats.deaths > 200, "{stats:?}");
}

#[test]
fn every_pair_is_kept_in_every_weave() {
    let stats = explore(&pairs(), true, 7);
    assert!(replays() || stats.newest > 200 && stats.older > 200 && stats.deaths > 200, "{stats:?}");
}
