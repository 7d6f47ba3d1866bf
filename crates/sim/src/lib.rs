//! For tests only: what could a crash leave, and is it what was promised?
//!
//! A scenario is some operations that have been acknowledged and one that is under way. It runs once on a
//! recording medium; then, for every store of the operation, the memory is built as a crash right there
//! could leave it, opened, recovered, checked, and compared with the states before and after.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`op`] | operations by path, run on the file system |
//! | [`model`] | the same operations on a plain model |
//! | [`tree`] | everything that can be seen of a file system |
//! | [`check`] | is a file system sound, and can it be worked with? |
//! | `stage` | whose turn it is, of several threads and processes; deaths |
//! | [`choice`] | what becomes of what is in doubt at a crash |
//! | [`disk`], [`fault`] | disks: what is durable, what a cut can leave; and those that fail at one call |
//! | [`tape`] | what reached memory and disks, in one order |
//! | [`crash`] | from that to the states of memory that a crash could leave |
//! | [`medium`] | the sabotaged media that test the tester |
//! | [`ledger`] | a participant in commits, and what it must have written |
//! | [`world`] | a world: a file system alive, with simulated memory and disks: made, taken up after a death, loaded after a cut |
//! | [`story`] | a story: what is done in a world, step by step |
//! | [`history`] | a history: what happened, what was promised, and what may therefore be found |
//! | [`verdict`] | what was found |
//! | [`scenario`] | operations that have been acknowledged, and one that is under way |
//! | [`explore`] | the explorer of scenarios: every crash that memory survives |
//! | [`blocks`] | the explorer for blocks beside the heap |
//! | [`copy`] | the explorer for `logged`: memory, marks, redo logs and image together |
//! | [`large`] | the explorer for large files: memory, backing, and the disk with their content |
//!
//! Two disciplines of persistence: on *battery*, stores are durable in program order; on *dax*, every
//! 8-byte word stored since one thread last flushed it and fenced holds any of the values it has had since, or
//! the one from before, independently of all others. (Hardware is kinder: it keeps the order within a
//! cache line.) Several threads take turns: see `explore::together`. On *logged*, what survives a power cut is on disks, which
//! have a discipline of their own: see [`disk`].
//!
//! A failure prints an id, `name:kind:point:choice`. `CONQUEST_SIM_REPLAY=id` explores that state
//! alone; `CONQUEST_SIM=full` takes more cuts, more seeds, and looks at every state in full; `CONQUEST_SIM_SEED=n` draws another
//! sample where one is drawn.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod check;
pub mod choice;
pub mod copy;
pub mod crash;
pub mod disk;
pub mod explore;
pub mod fault;
pub mod history;
pub mod large;
pub mod ledger;
pub mod medium;
pub mod model;
pub mod op;
pub mod scenario;
mod stage;
pub mod story;
pub mod tape;
pub mod tree;
pub mod verdict;
pub mod world;
