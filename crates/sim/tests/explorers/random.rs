//! Operations drawn by seeds, the last one crashed after every store.

#[test]
fn every_crash_of_random_operations_leaves_before_or_after() {
    let seeds = if sim::verdict::full() { 5000 } else { 250 };
    let stats = sim::explore::explore_all(&sim::scenario::random(0..seeds));
    if !sim::verdict::replays() {
        assert!(stats.states > 2000 && stats.before > 300 && stats.after > 300, "{stats:?}");
    }
}
