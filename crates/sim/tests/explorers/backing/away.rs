//! Memory that its backing left behind, taken up again.

use sim::backing::away::{explore, Other};
use sim::backing::plot::Plot;
use sim::backing::{explore_away, Depth};
use sim::scenario::{rich, singles};
use sim::story::Story;
use sim::verdict::{failures, full, replays, sample, Filter};

/// Each operation in one plot.
#[test]
fn what_was_promised_elsewhere_is_not_written_over() {
    let of = |(n, s)| Story::of(s, Plot::ALL[n % Plot::ALL.len()]);
    let stories: Vec<Story> = sample(singles().iter().enumerate().map(of).collect(), 4);
    let stats = explore_away(&stories, Depth::wide());
    assert!(replays() || stats.taken_up > 100 && stats.promised > 100, "{stats:?}");
}

/// Each plot, with more deaths.
#[test]
fn every_plot_is_left_behind_and_taken_up_again() {
    let stories: Vec<Story> = Plot::ALL.map(|plot| Story::of(&rich(), plot)).into();
    let few = Depth { deaths: Depth::deep().deaths / if full() { 4 } else { 8 }, ..Depth::deep() };
    let stats = explore_away(&stories, few);
    assert!(replays() || stats.taken_up > 100 && stats.promised > 100, "{stats:?}");
}

/// A test of the explorer.
#[test]
fn a_memory_that_does_not_tell_its_own_commits_from_others_is_found() {
    let story = Story::of(&rich(), Plot::Plain);
    let few = Depth { deaths: 4, ..Depth::wide() };
    let found = failures(|verdicts| explore(&story, Other::Same, few, &Filter::default(), verdicts));
    let first = found.first().expect("the fault goes unnoticed");
    assert!(first.text.contains("promised elsewhere"), "{first}");
}
