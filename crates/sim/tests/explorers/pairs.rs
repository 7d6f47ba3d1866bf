//! Pairs of operations: the first acknowledged, the second crashed after every store. Samples of the pairs on names and
//! of those on content (`CONQUEST_SIM_SEED=n` draws others, `CONQUEST_SIM=full` takes all).

#[test]
fn every_crash_of_every_pair_leaves_before_or_after() {
    let stats = sim::explore::explore_all(&sim::verdict::sample(sim::scenario::pairs(), 4));
    if !sim::verdict::replays() {
        assert!(stats.states > 2500 && stats.before > 250 && stats.after > 250, "{stats:?}");
    }
}

#[test]
fn every_crash_of_pairs_on_content_leaves_before_or_after() {
    let stats = sim::explore::explore_all(&sim::verdict::sample(sim::scenario::content_pairs(), 12));
    if !sim::verdict::replays() {
        assert!(stats.states > 1000 && stats.before > 100 && stats.after > 100, "{stats:?}");
    }
}
