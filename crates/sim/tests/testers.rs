//! Tests of the tester: planted faults must be found, and what is found must be found again.

use sim::explore::{explore, replay, trace, Depth, Failure, Sabotage, Stats};
use sim::medium::Discipline;
use sim::scenario::{singles, Scenario};

/// A few scenarios that change much, in different ways.
fn some() -> Vec<Scenario> {
    let names = ["create", "unlink-large", "rename-over", "overwrite-small", "overwrite-tree-many", "xattr-replace"];
    let some: Vec<Scenario> = singles().into_iter().filter(|s| names.contains(&s.name.as_str())).collect();
    assert_eq!(some.len(), names.len());
    some
}

/// What the explorer finds with a fault planted.
fn findings(discipline: Discipline, sabotage: Sabotage) -> Vec<(Scenario, Failure)> {
    let depth = Depth { cuts: 6, seeds: 4, aftermath: 1000, again: 1000 };
    let mut found = Vec::new();
    for s in some() {
        if let Err(failures) = explore(&s, discipline, sabotage, depth, &mut Stats::default()) {
            found.extend(failures.into_iter().map(|f| (s.clone(), f)));
        }
    }
    found
}

fn assert_found(discipline: Discipline, sabotage: Sabotage) {
    let found = findings(discipline, sabotage);
    assert!(!found.is_empty(), "{sabotage:?} on {discipline:?} goes unnoticed");
    let (s, failure) = &found[0];
    eprintln!("{sabotage:?} is found {} times, first: {failure}", found.len());
    // Its id finds it again, and only with the fault.
    let again = replay(s, &failure.id, sabotage).expect_err("the id replays the failure");
    assert_eq!(again[0].id, failure.id);
    assert!(replay(s, &failure.id, Sabotage::Nothing).is_ok());
}

#[test]
fn a_missing_flush_of_undo_records_is_found() {
    assert_found(Discipline::Dax, Sabotage::DropLogFlush);
}

#[test]
fn a_missing_flush_of_the_commit_is_found() {
    assert_found(Discipline::Dax, Sabotage::DropCommitFlush);
}

#[test]
fn a_missing_flush_of_what_changed_is_found() {
    assert_found(Discipline::Dax, Sabotage::DropDataFlush);
}

#[test]
fn an_undo_record_that_comes_late_is_found_in_program_order() {
    assert_found(Discipline::Battery, Sabotage::DelayLog);
}

#[test]
fn an_undo_record_that_comes_late_is_found_with_flushes() {
    assert_found(Discipline::Dax, Sabotage::DelayLog);
}

#[test]
fn without_a_fault_nothing_is_found() {
    for discipline in Discipline::ALL {
        let found = findings(discipline, Sabotage::Nothing);
        assert!(found.is_empty(), "{}", found[0].1);
    }
}

/// Missing flushes do not matter where visible is durable: the two disciplines are really two.
#[test]
fn program_order_needs_no_flush() {
    for sabotage in [Sabotage::DropLogFlush, Sabotage::DropCommitFlush, Sabotage::DropDataFlush] {
        assert!(findings(Discipline::Battery, sabotage).is_empty(), "{sabotage:?}");
    }
}

#[test]
fn a_scenario_runs_the_same_twice() {
    for s in some() {
        for discipline in Discipline::ALL {
            let shape = || trace(&s, discipline).unwrap().iter().map(|e| e.shape()).collect::<Vec<_>>();
            let first = shape();
            assert_eq!(first, shape(), "{}", s.name);
            assert!(first.len() > 10, "{} stores {} times", s.name, first.len());
        }
    }
}
