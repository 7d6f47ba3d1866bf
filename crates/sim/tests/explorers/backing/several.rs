//! Two processes at work on one pool, of which one dies at a store, a write, a flush, a step, or while it waits.
//!
//! Each run takes some orders of turns, with a few deaths each; `CONQUEST_SIM_SEED=n` draws others. `CONQUEST_SIM=full`
//! explores more orders, with most deaths of each, and a cut after each request to the disks: some minutes.

use sim::backing::several::{explore, explore_all, outline, Company, Depth, Play, Roles, Sabotage, Scene};
use sim::verdict::{failures, replays, Failure, Filter};

/// The number of deaths during actions that begin with `does`.
pub fn of_role(roles: &Roles, does: &str) -> u64 {
    roles.iter().filter(|(role, _)| role.starts_with(does)).map(|(_, n)| n).sum()
}

#[test]
fn whoever_dies_the_other_goes_on_and_nothing_promised_is_lost() {
    let (stats, roles) = explore_all(&Play::all(Company::Two), Depth::from_env());
    if !replays() {
        let roles_seen = ["operating", "leading a commit", "waiting for a commit or operations", "checkpointing"];
        assert!(roles_seen.iter().all(|role| of_role(&roles, role) > 5), "{roles:?}");
        assert!(stats.deaths > 500 && stats.cuts > 100 && stats.mixed > 500, "{stats:?}");
    }
}

/// Many more orders of turns for the scene with a session that comes and goes, without deaths.
#[test]
fn whoever_comes_while_others_commit_can_open() {
    let depth = Depth { seeds: 60, deaths: 0, cuts: 1, ..Depth::from_env() };
    explore_all(&[Play::of(Scene::Join)], depth);
}

fn found_in(play: &Play, filter: &Filter) -> Vec<Failure> {
    let depth = Depth { first: 0, seeds: 4, deaths: 60, further: 0, cuts: 20, mixed: 2, choices: 1 };
    failures(|verdicts| explore(play, depth, filter, verdicts, &mut Roles::new()))
}

/// Some failure contains this text.
pub fn assert_found(right: &Play, sabotage: Sabotage, says: &str) {
    let wrong = Play { sabotage, ..right.clone() };
    super::assert_found(|filter| found_in(&wrong, filter), |filter| found_in(right, filter), |f| f.text.contains(says));
}

#[test]
fn a_death_that_goes_unnoticed_is_found() {
    assert_found(&Play::of(Scene::Plain), Sabotage::Unnoticed, "for ever");
}

#[test]
fn an_operation_of_the_dead_that_is_not_undone_is_found() {
    assert_found(&Play::of(Scene::Plain), Sabotage::NotUndone, "fsck");
}

#[test]
fn changes_of_the_dead_that_are_not_marked_are_found() {
    assert_found(&Play::of(Scene::Plain), Sabotage::Unmarked, "has another region");
}

#[test]
fn one_process_that_does_not_flush_is_found() {
    assert_found(&Play::of(Scene::Swap), Sabotage::NoFlush, "what was promised is lost");
}

#[test]
fn a_play_is_performed_the_same_twice() {
    let companies = [Company::Two, Company::Three, Company::Coming, Company::Threads, Company::Pairs];
    for play in companies.into_iter().flat_map(Play::all) {
        for seed in 0..3 {
            assert_eq!(outline(&play, seed).unwrap(), outline(&play, seed).unwrap(), "{} {seed}", play.name);
        }
    }
}
