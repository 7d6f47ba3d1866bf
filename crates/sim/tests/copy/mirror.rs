//! A region on `battery` and its mirror, either of which is lost at any point.
//!
//! In each run a sample of the points; `CONQUEST_SIM=full` loses each of the two at every event, which takes minutes.

use sim::copy::mirror::{explore, explore_all, tell, Depth, Sabotage};
use sim::copy::{parse, Filter, Verdicts};
use sim::explore::Failure;

#[test]
fn either_suffices_and_nothing_that_returned_is_lost() {
    let stats = explore_all(Depth::from_env());
    let few = stats.cuts < 20 || stats.mixed < 40 || stats.deaths < 40;
    assert!(std::env::var_os("CONQUEST_SIM_REPLAY").is_some() || !few, "{stats:?}");
}

fn failures(sabotage: Sabotage, filter: &Filter) -> Vec<Failure> {
    let mut verdicts = Verdicts::default();
    let depth = Depth { region: 40, others: 60, seeds: 1 };
    explore(&tell(sabotage).unwrap(), sabotage, depth, filter, &mut verdicts);
    verdicts.failures
}

/// A step that is left out is noticed, by an id that finds it again, and only where it is left out.
fn assert_found(sabotage: Sabotage, what: &str) {
    let found = failures(sabotage, &Filter::default());
    let first = found.iter().find(|f| f.id.contains(what)).unwrap_or_else(|| panic!("{sabotage:?} goes unnoticed"));
    let (_, filter) = parse(&first.id).unwrap();
    assert_eq!(failures(sabotage, &filter).first().map(|f| &f.id), Some(&first.id));
    assert!(failures(Sabotage::Nothing, &filter).is_empty());
}

#[test]
fn operations_that_do_not_wait_for_the_mirror_are_found() {
    assert_found(Sabotage::NoWait, ":Region.");
}

#[test]
fn what_a_death_left_and_nobody_undid_is_found() {
    assert_found(Sabotage::NotUndone, ":Mirror.");
}
