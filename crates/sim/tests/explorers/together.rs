//! Several operations at once on battery and dax, and a crash in the middle of all of them.
//!
//! Each run takes some orders of turns; `CONQUEST_SIM_SEED=n` draws others. `CONQUEST_SIM=full` takes more, and all
//! crashes.

use sim::explore::{explore_togethers, Together};
use sim::verdict::{full, replays, sample};

#[test]
fn every_crash_of_several_operations_leaves_each_done_or_not() {
    let most = if full() { usize::MAX } else { 40 };
    let all: Vec<Together> = sample((0..400).collect(), 20).into_iter().map(Together::of).collect();
    let stats = explore_togethers(&all, most);
    if !replays() {
        assert!(stats.several * 10 > stats.states && stats.most == 3, "{stats:?}");
    }
}
