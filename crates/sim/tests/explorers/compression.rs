//! Compressing files and making them plain, crashed after every store: the content is there, in one form or the other,
//! and nothing of the other form is left.

#[test]
fn every_crash_of_compressing_leaves_the_content() {
    let stats = sim::explore::explore_all(&sim::scenario::compression());
    if !sim::verdict::replays() {
        assert!(stats.states > 2000 && stats.before > 100 && stats.after > 100, "{stats:?}");
    }
}
