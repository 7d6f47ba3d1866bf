//! Tests of the explorers: planted faults must be found, and a failure must be found again by its id.

use pram::MediumKind;
use rustix::io::Errno;
use sim::crash::{Medium, PERSISTENT};
use sim::explore::{explore, explore_together, replay, trace, Depth, Together};
use sim::medium::Sabotage;
use sim::model::Model;
use sim::op::Op;
use sim::scenario::{singles, Scenario};
use sim::tape::{Event, Thread};
use sim::verdict::{failures, Failure, Filter};

/// A few scenarios that change much, in different ways.
fn some() -> Vec<Scenario> {
    let names = ["create", "unlink-large", "rename-over", "overwrite-small", "overwrite-tree-many", "xattr-replace"];
    let some: Vec<Scenario> = singles().into_iter().filter(|s| names.contains(&s.name.as_str())).collect();
    assert_eq!(some.len(), names.len());
    some
}

/// The failures that the explorer finds with a fault planted.
fn findings(discipline: MediumKind, sabotage: Sabotage) -> Vec<(Scenario, Failure)> {
    let depth = Depth { cuts: 6, subsets: 16, seeds: 4, aftermath: 1000, again: 1000 };
    let mut found = Vec::new();
    for s in some() {
        let failures = failures(|verdicts| explore(&s, discipline, sabotage, depth, &Filter::default(), verdicts));
        found.extend(failures.into_iter().map(|f| (s.clone(), f)));
    }
    found
}

fn assert_found(discipline: MediumKind, sabotage: Sabotage) {
    let found = findings(discipline, sabotage);
    assert!(!found.is_empty(), "{sabotage:?} on {discipline:?} goes unnoticed");
    let (s, failure) = &found[0];
    eprintln!("{sabotage:?} is found {} times, first: {failure}", found.len());
    // Its id finds it again, and only with the fault.
    let again = replay(s, &failure.id, sabotage);
    assert_eq!(again.first().map(|failure| &failure.id), Some(&failure.id), "the id replays the failure");
    assert!(replay(s, &failure.id, Sabotage::Nothing).is_empty());
}

#[test]
fn a_missing_flush_of_undo_records_is_found() {
    assert_found(MediumKind::Dax, Sabotage::DropLogFlush);
}

#[test]
fn a_missing_flush_of_the_commit_is_found() {
    assert_found(MediumKind::Dax, Sabotage::DropCommitFlush);
}

#[test]
fn a_missing_flush_of_what_changed_is_found() {
    assert_found(MediumKind::Dax, Sabotage::DropDataFlush);
}

#[test]
fn a_missing_fence_after_undo_records_is_found() {
    assert_found(MediumKind::Dax, Sabotage::DropLogFence);
}

#[test]
fn a_missing_fence_after_the_commit_is_found() {
    assert_found(MediumKind::Dax, Sabotage::DropCommitFence);
}

#[test]
fn a_missing_fence_after_what_changed_is_found() {
    assert_found(MediumKind::Dax, Sabotage::DropDataFence);
}

#[test]
fn an_undo_record_that_comes_late_is_found_in_program_order() {
    assert_found(MediumKind::Battery, Sabotage::DelayLog);
}

#[test]
fn an_undo_record_that_comes_late_is_found_with_flushes() {
    assert_found(MediumKind::Dax, Sabotage::DelayLog);
}

#[test]
fn without_a_fault_nothing_is_found() {
    for discipline in PERSISTENT {
        let found = findings(discipline, Sabotage::Nothing);
        assert!(found.is_empty(), "{}", found[0].1);
    }
}

/// Faults are found beside other operations too.
#[test]
fn a_fault_among_several_operations_is_found() {
    let depth = Depth { cuts: 2, subsets: 16, seeds: 4, aftermath: 1000, again: 1000 };
    for sabotage in [Sabotage::DropLogFence, Sabotage::DropCommitFlush, Sabotage::DelayLog] {
        let explore = |seed, verdicts: &mut _| {
            explore_together(&Together::of(seed), sabotage, depth, 200, &Filter::default(), verdicts);
        };
        let found = (0..4).any(|seed| !failures(|verdicts| explore(seed, verdicts)).is_empty());
        assert!(found, "{sabotage:?} goes unnoticed");
    }
}

/// A fence covers the flushes of its own thread only, as a processor's does.
#[test]
fn a_fence_of_another_thread_does_not_count() {
    let [one, other] = [Thread(Some(1)), Thread(Some(2))];
    let mut medium = Medium::new(MediumKind::Dax, &[0; 4096]);
    let mut ways = |event: Event| {
        medium.apply(&event, None);
        medium.subsets()
    };
    assert_eq!(ways(Event::Store { off: 8, bytes: vec![1; 8] }), 2);
    assert_eq!(ways(Event::LineFlush { off: 8, len: 8, by: one }), 2);
    assert_eq!(ways(Event::Fence { by: other }), 2, "nothing is durable yet");
    assert_eq!(ways(Event::Store { off: 8, bytes: vec![2; 8] }), 3);
    assert_eq!(ways(Event::LineFlush { off: 8, len: 8, by: other }), 3);
    assert_eq!(ways(Event::Fence { by: one }), 2, "the first store is durable, not the second");
    assert_eq!(ways(Event::Fence { by: other }), 1, "all are");
}

/// The model expects one error and accepts no other.
#[test]
fn another_error_than_the_right_one_is_found() {
    let mut model = Model::default();
    let missing = Op::Unlink("/missing".into());
    assert!(model.apply(&missing, &Err(Errno::NOENT)).is_ok());
    assert!(model.apply(&missing, &Err(Errno::ACCESS)).is_err());
    let create = Op::Create("/new".into(), 0o644);
    assert!(model.apply(&create, &Err(Errno::NOSPC)).is_err());
    assert!(model.apply_in(&create, &Err(Errno::NOSPC), true).is_ok());
}

/// Missing flushes and fences do not matter where visible is durable: the two disciplines really differ.
#[test]
fn program_order_needs_no_flush() {
    use Sabotage::{DropCommitFence, DropCommitFlush, DropDataFence, DropDataFlush, DropLogFence, DropLogFlush};
    for sabotage in [DropLogFlush, DropCommitFlush, DropDataFlush, DropLogFence, DropCommitFence, DropDataFence] {
        assert!(findings(MediumKind::Battery, sabotage).is_empty(), "{sabotage:?}");
    }
}

#[test]
fn a_scenario_runs_the_same_twice() {
    for s in some() {
        for discipline in PERSISTENT {
            let shape = || trace(&s, discipline).unwrap().iter().map(|e| e.event.shape()).collect::<Vec<_>>();
            let first = shape();
            assert_eq!(first, shape(), "{}", s.name);
            assert!(first.len() > 10, "{} stores {} times", s.name, first.len());
        }
    }
}
