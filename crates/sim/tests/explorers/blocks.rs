//! Blocks beside the heap, crashed at every store; a missing flush is found.

use pram::Medium;
use pram::MediumKind;
use sim::blocks::explore;
use sim::crash::PERSISTENT;
use sim::explore::Depth;
use sim::medium::{Fault, Faulty};
use sim::tape::TapeMedium;

#[test]
fn every_crash_leaves_a_block_that_is_whole() {
    for discipline in PERSISTENT {
        let states = explore(discipline, Depth::from_env(), &|medium| Box::new(medium)).unwrap();
        eprintln!("{discipline:?}: {states} states");
        assert!(states > 150, "{states}");
    }
}

/// Where the second chunk of the heap begins: the first has tables, the others blocks.
const BLOCKS: u64 = 3 * pram::CHUNK;

/// The flushes of the content, or of the descriptors, are missing: that is found on dax, and makes no difference in
/// program order.
#[test]
fn a_missing_flush_is_found() {
    for of_content in [true, false] {
        let below = |inner: TapeMedium| -> Box<dyn Medium> {
            let lost = Box::new(move |off| off >= 2 * pram::CHUNK && (off >= BLOCKS) == of_content);
            Box::new(Faulty::new(inner, Fault::DropFlush(lost)))
        };
        let found = explore(MediumKind::Dax, Depth::from_env(), &below).expect_err("a fault was planted");
        eprintln!("{found}");
        explore(MediumKind::Battery, Depth::from_env(), &below).unwrap();
    }
}
