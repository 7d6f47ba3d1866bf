//! Every single operation of the API, crashed after every store.

#[test]
fn every_crash_of_every_operation_leaves_before_or_after() {
    let stats = sim::explore::explore_all(&sim::scenario::singles());
    if !sim::verdict::replays() {
        assert!(stats.states > 20_000 && stats.before > 1000 && stats.after > 1000, "{stats:?}");
    }
}
