//! Three processes at work on one pool, of which one or two die; and several threads of one process or of two.
//!
//! All of them wait for commits at the same time: one leads, the others follow. Any may die with all of its threads, or
//! get a failure of a disk, after which no wait may succeed. The power is cut after requests to the disks.
//!
//! Each run takes a few orders of turns, with a few deaths each; `CONQUEST_SIM_SEED=n` draws others. `CONQUEST_SIM=full`
//! explores more orders, with many deaths of each, and a cut after each request to the disks: hours.

use sim::backing::several::{explore_all, Company, Depth, Play, Roles, Sabotage, Scene};
use sim::verdict::{full, replays, Stats};

use super::several::{assert_found, of_role};

/// The number of leaders that died while so many waited.
fn leads(roles: &Roles, waiting: usize) -> u64 {
    roles.get(&format!("leading a commit, {waiting} waiting")).copied().unwrap_or(0)
}

fn explore(company: Company) -> (Stats, Roles) {
    explore_all(&Play::all(company), Depth::of_many())
}

#[test]
fn three_work_one_or_two_die_and_nothing_promised_is_lost() {
    let (stats, roles) = explore(Company::Three);
    if !replays() {
        assert!(stats.deaths > 200 && stats.cuts > 100 && stats.mixed > 200, "{stats:?}");
        assert!(leads(&roles, 2) > 5 && of_role(&roles, "operating") > 20, "{roles:?}");
    }
}

#[test]
fn a_third_comes_and_goes_while_two_work_and_die() {
    let (stats, roles) = explore(Company::Coming);
    if !replays() {
        assert!(stats.deaths > 150 && stats.cuts > 100 && stats.mixed > 150, "{stats:?}");
        assert!(of_role(&roles, "coming or going") > 0 && of_role(&roles, "leading") > 20, "{roles:?}");
    }
}

#[test]
fn threads_that_wait_at_the_same_time_are_promised_what_is_kept() {
    let depth = Depth { seeds: if full() { 200 } else { 8 }, ..Depth::of_many() };
    let (stats, roles) = explore_all(&Play::all(Company::Threads), depth);
    assert!(replays() || stats.cuts > 300 && stats.mixed > 50, "{stats:?}");
    assert!(replays() || of_role(&roles, "hears of a failing disk") > 50, "{roles:?}");
}

#[test]
fn a_process_of_several_threads_dies_and_another_goes_on() {
    let (stats, roles) = explore(Company::Pairs);
    if !replays() {
        assert!(stats.deaths > 100 && stats.cuts > 100 && stats.mixed > 100, "{stats:?}");
        assert!(leads(&roles, 2) + leads(&roles, 3) > 3, "{roles:?}");
    }
}

fn play(company: Company) -> Play {
    Play::by(company, Scene::Crowd)
}

#[test]
fn one_of_three_that_does_not_flush_is_found() {
    assert_found(&play(Company::Three), Sabotage::NoFlush, "what was promised is lost");
}

#[test]
fn one_of_three_whose_death_goes_unnoticed_is_found() {
    assert_found(&play(Company::Three), Sabotage::Unnoticed, "for ever");
}

#[test]
fn what_one_of_three_has_begun_and_nobody_undoes_is_found() {
    assert_found(&Play::by(Company::Coming, Scene::Plain), Sabotage::NotUndone, "fsck");
}

#[test]
fn one_thread_that_does_not_flush_is_found() {
    assert_found(&play(Company::Threads), Sabotage::NoFlush, "what was promised is lost");
}

#[test]
fn threads_that_ask_before_they_have_done_it_are_found() {
    assert_found(&play(Company::Threads), Sabotage::EarlyTicket, "what was promised is lost");
}

#[test]
fn a_disk_that_fails_one_thread_and_says_nothing_is_found() {
    // The write that failed is missing between others that did not.
    assert_found(&play(Company::Threads), Sabotage::Silent, "the log has a hole");
}

#[test]
fn processes_that_ask_before_they_have_done_it_are_found() {
    assert_found(&play(Company::Three), Sabotage::EarlyTicket, "what was promised is lost");
}
