//! Large files: nothing is lost, and nothing wrong is read, for all losses of memory and disk.

use sim::large::stories::{named, random};
use sim::large::{explore, explore_all, Depth};
use sim::verdict::{failures, full, replays, Filter};
use sim::world::SEGMENTS;

#[test]
fn large_files_are_kept_as_promised() {
    let stats = explore_all(&named(), Depth::from_env());
    assert!(replays() || stats.states > 200 && stats.deaths > 100 && stats.cuts > 200, "{stats:?}");
    assert!(replays() || stats.older > 10 && stats.unreadable > 10 && stats.lives > 50, "{stats:?}");
}

#[test]
fn random_operations_on_large_files_are_kept_as_promised() {
    let seeds = if full() || replays() { 60 } else { 6 };
    explore_all(&random(0..seeds), Depth::from_env());
}

/// A disk that reports a flush without doing it loses content.
#[test]
fn a_disk_that_does_not_flush_is_found() {
    if replays() {
        return;
    }
    let mut stories = named();
    stories.iter_mut().for_each(|story| story.lie = Some(SEGMENTS));
    let explore = |story| failures(|verdicts| explore(story, Depth::from_env(), &Filter::default(), verdicts));
    let failures: Vec<_> = stories.iter().flat_map(explore).collect();
    let of = |kind: &str| failures.iter().filter(|f| f.id.contains(kind)).count();
    assert!(of(":crash:") > 5 && of(":cut:") > 5, "{failures:?}");
}
