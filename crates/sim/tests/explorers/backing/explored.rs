//! Power cuts after each request to the disks, deaths at stores and writes, and both.

use sim::backing::plot::Plot;
use sim::backing::{explore_all, Depth};
use sim::scenario::{pairs, random, rich, singles, Scenario};
use sim::story::Story;
use sim::verdict::{full, replays};

/// Each scenario in one plot, or in all.
fn stories(scenarios: &[Scenario]) -> Vec<Story> {
    let all = full() || replays();
    let plots = |n: usize| match all {
        true => Plot::ALL.to_vec(),
        false => vec![Plot::ALL[n % Plot::ALL.len()]],
    };
    scenarios.iter().enumerate().flat_map(|(n, s)| plots(n).into_iter().map(|plot| Story::of(s, plot))).collect()
}

#[test]
fn every_operation_is_kept_as_promised() {
    let stats = explore_all(&stories(&singles()), Depth::wide());
    assert!(replays() || stats.newest > 200 && stats.older > 200 && stats.deaths > 200, "{stats:?}");
}

#[test]
fn every_pair_of_operations_is_kept_as_promised() {
    let stats = explore_all(&stories(&pairs()), Depth::wide());
    assert!(replays() || stats.newest > 300 && stats.older > 300 && stats.deaths > 300, "{stats:?}");
}

#[test]
fn random_operations_are_kept_as_promised() {
    let seeds = if full() { 1000 } else { 50 };
    explore_all(&stories(&random(0..seeds)), Depth::wide());
}

/// Each plot on a file system with every structure, at every event.
#[test]
fn every_plot_is_explored_at_every_event() {
    let stories: Vec<Story> = Plot::ALL.map(|plot| Story::of(&rich(), plot)).into();
    let stats = explore_all(&stories, Depth::deep());
    assert!(replays() || stats.cuts > 500 && stats.mixed > 500, "{stats:?}");
}

#[test]
fn a_copy_that_is_made_anew_is_the_old_one_or_the_new_one_at_every_event() {
    let stories = [Story::of(&singles()[0], Plot::Anew)];
    let stats = explore_all(&stories, Depth { cuts: usize::MAX, seeds: 2, deaths: 60, mixed: 1, aftermath: 6 });
    assert!(replays() || stats.cuts > 30 && stats.deaths > 30, "{stats:?}");
}
