//! Pairs of operations: the first acknowledged, the second crashed after every store. Every pair on names, and on content
//! a sample (`CONQUEST_SIM_SEED=n` draws another one, `CONQUEST_SIM=full` takes all).

#[test]
fn every_crash_of_every_pair_leaves_before_or_after() {
    let stats = sim::explore::explore_all(&sim::scenario::pairs());
    if !sim::verdict::replays() {
        assert!(stats.states > 10_000 && stats.before > 1000 && stats.after > 1000, "{stats:?}");
    }
}

#[test]
fn every_crash_of_pairs_on_content_leaves_before_or_after() {
    let stats = sim::explore::explore_all(&sim::verdict::sample(sim::scenario::content_pairs(), 12));
    if !sim::verdict::replays() {
        assert!(stats.states > 1000 && stats.before > 100 && stats.after > 100, "{stats:?}");
    }
}
