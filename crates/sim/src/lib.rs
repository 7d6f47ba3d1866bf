//! For tests only: what could a crash leave, and is it what was promised?
//!
//! A scenario is some operations that have been acknowledged and one that is under way. It runs once on a
//! recording medium; then, for every store of the operation, the memory is built as a crash right there
//! could leave it, opened, recovered, checked, and compared with the states before and after.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`trace`] | what reached the medium: stores, flushes, fences |
//! | [`medium`] | the recording medium, and the sabotaged ones that test the tester |
//! | [`crash`] | from a trace to the states that a crash could leave |
//! | [`op`] | operations by path, run on the file system |
//! | [`model`] | the same operations on a plain model |
//! | [`tree`] | everything that can be seen of a file system |
//! | [`explore`] | the explorer: runs a scenario, judges every crash state |
//! | [`blocks`] | the explorer for blocks beside the heap |
//! | [`scenario`] | the scenarios |
//! | `stage` | whose turn it is, of several threads and processes; deaths |
//! | [`copy`] | the explorer for `logged`: memory, marks, redo logs and image together |
//! | [`large`] | the explorer for large files: memory, copy, and the disk with their content |
//!
//! Two disciplines of persistence: on *battery*, stores are durable in program order; on *dax*, every
//! 8-byte word stored since one thread last flushed it and fenced holds any of the values it has had since, or
//! the one from before, independently of all others. (Hardware is kinder: it keeps the order within a
//! cache line.) Several threads take turns: see `explore::together`.
//!
//! A failure prints an id, `scenario:discipline:point:choice`. `CONQUEST_SIM_REPLAY=id` explores that state
//! alone; `CONQUEST_SIM=full` takes more cuts, more seeds, and looks at every state in full; `CONQUEST_SIM_SEED=n` draws another
//! sample where one is drawn.
//!
//! On *logged*, what survives a power cut is on disks, which have a discipline of their own: see [`copy::disk`].

#![forbid(unsafe_code)]

pub mod blocks;
pub mod copy;
pub mod crash;
pub mod explore;
pub mod large;
pub mod medium;
pub mod model;
pub mod op;
pub mod scenario;
mod stage;
pub mod trace;
pub mod tree;
