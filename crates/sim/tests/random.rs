//! Operations drawn by seeds, the last one crashed after every store.

#[test]
fn every_crash_of_random_operations_leaves_before_or_after() {
    let seeds = if std::env::var("CONQUEST_SIM").as_deref() == Ok("full") { 5000 } else { 250 };
    let stats = sim::explore::explore_all(&sim::scenario::random(0..seeds));
    if std::env::var_os("CONQUEST_SIM_REPLAY").is_none() {
        assert!(stats.states > 2000 && stats.before > 300 && stats.after > 300, "{stats:?}");
    }
}
