//! Every pair of namespace operations: the first acknowledged, the second crashed after every store.

#[test]
fn every_crash_of_every_pair_leaves_before_or_after() {
    let stats = sim::explore::explore_all(&sim::scenario::pairs());
    if std::env::var_os("CONQUEST_SIM_REPLAY").is_none() {
        assert!(stats.states > 10_000 && stats.before > 1000 && stats.after > 1000, "{stats:?}");
    }
}
