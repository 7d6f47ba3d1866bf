//! A memory on `battery` and its mirrored backing, either of which is lost at any point.
//!
//! Each run takes a sample of the points; `CONQUEST_SIM=full` loses each of the two at every event, which takes minutes.

use sim::backing::mirror::{explore, explore_all, tell, Depth, Sabotage};
use sim::verdict::{failures, replays, Failure, Filter};

#[test]
fn either_suffices_and_nothing_that_returned_is_lost() {
    let stats = explore_all(Depth::from_env());
    let few = stats.cuts < 20 || stats.mixed < 40 || stats.deaths < 40;
    assert!(replays() || !few, "{stats:?}");
}

fn found_with(sabotage: Sabotage, filter: &Filter) -> Vec<Failure> {
    let depth = Depth { memory: 40, others: 60, seeds: 1 };
    failures(|verdicts| explore(&tell(sabotage).unwrap(), sabotage, depth, filter, verdicts))
}

fn assert_found(sabotage: Sabotage, what: &str) {
    let (wrong, right) =
        (|filter: &Filter| found_with(sabotage, filter), |filter: &Filter| found_with(Sabotage::Nothing, filter));
    super::assert_found(wrong, right, |failure| failure.id.contains(what));
}

#[test]
fn operations_that_do_not_wait_for_the_mirror_are_found() {
    assert_found(Sabotage::NoWait, ":Region.");
}

#[test]
fn what_a_death_left_and_nobody_undid_is_found() {
    assert_found(Sabotage::NotUndone, ":Mirror.");
}
