//! Tests of the explorers: planted faults must be found, by an id that finds them again.

use sim::backing::plot::{Plot, Weave};
use sim::backing::{explore, Depth};
use sim::ledger::Sabotage;
use sim::scenario::rich;
use sim::story::{tell, Step, Story};
use sim::verdict::{failures, Failure, Filter};

fn found_in(story: &Story, filter: &Filter) -> Vec<Failure> {
    let depth = Depth { cuts: 60, seeds: 2, deaths: 60, mixed: 1, aftermath: 1000 };
    failures(|verdicts| explore(story, depth, filter, verdicts))
}

fn assert_found(story: &Story, right: &Story) {
    super::assert_found(|filter| found_in(story, filter), |filter| found_in(right, filter), |_| true);
}

fn story(plot: Plot) -> Story {
    Story::of(&rich(), plot)
}

#[test]
fn a_log_whose_flush_does_nothing_is_found() {
    assert_found(&Story { lie: Some(1), ..story(Plot::Plain) }, &story(Plot::Plain));
}

#[test]
fn an_image_whose_flush_does_nothing_is_found() {
    assert_found(&Story { lie: Some(0), ..story(Plot::Full) }, &story(Plot::Full));
}

#[test]
fn a_store_that_is_not_marked_is_found() {
    let right = story(Plot::Plain);
    let mut wrong = right.clone();
    wrong.steps.insert(1, Step::Forget);
    assert_found(&wrong, &right);
}

/// Found where the commit is durable, and the participant's content for it is not.
#[test]
fn a_participant_that_writes_too_late_is_found() {
    let right = story(Plot::Plain);
    let mut wrong = right.clone();
    wrong.steps.insert(0, Step::Botch(Sabotage::Late));
    assert_found(&wrong, &right);
}

/// Found where a change falls between the beginning of a commit and its instant.
#[test]
fn a_participant_that_looks_too_early_is_found() {
    let right = story(Plot::Rounds);
    let mut wrong = right.clone();
    wrong.steps.insert(0, Step::Botch(Sabotage::Early));
    assert_found(&wrong, &right);
}

#[test]
fn a_fault_in_any_weave_is_found() {
    for weave in Weave::ALL {
        let right = Story::woven(&rich(), false, weave);
        let lying = Story { lie: Some(1), ..right.clone() };
        assert_found(&lying, &right);
        let mut unmarked = right.clone();
        let last = right.steps.iter().rposition(|step| matches!(step, Step::Wait)).unwrap();
        unmarked.steps.insert(last, Step::Forget);
        unmarked.steps.insert(last, Step::Op(rich().op));
        assert_found(&unmarked, &right);
    }
}

#[test]
fn a_seed_gives_the_same_story_twice() {
    for plot in Plot::ALL {
        let shape = || {
            let history = tell(&story(plot)).unwrap();
            let events = history.moments.iter().map(|m| (m.event.shape(), m.marks.len()));
            (events.collect::<Vec<_>>(), history.acknowledged)
        };
        let (first, again) = (shape(), shape());
        assert_eq!(first.0.len(), again.0.len());
        assert_eq!(first, again, "{plot:?}");
    }
}
