//! Packing and unpacking inodes, crashed after every store: operations on inodes that are packed, a sample of them
//! (`CONQUEST_SIM_SEED=n` draws another, `CONQUEST_SIM=full` takes all).

#[test]
fn every_crash_around_packed_inodes_leaves_before_or_after() {
    let stats = sim::explore::explore_all(&sim::verdict::sample(sim::scenario::packed(), 4));
    if !sim::verdict::replays() {
        assert!(stats.states > 2500 && stats.before > 250 && stats.after > 250, "{stats:?}");
    }
}

/// All sixteen inodes of a block have their exact times, or all have them in seconds.
#[test]
fn every_crash_around_coarser_times_leaves_those_of_one_form() {
    let stats = sim::explore::explore_all(&sim::scenario::packed_in_seconds());
    if !sim::verdict::replays() {
        assert!(stats.states > 500 && stats.before > 500 && stats.after > 20, "{stats:?}");
    }
}
