//! Crash explorers, for tests only: which states can a crash leave, and does each keep the promises of the file system?
//!
//! A scenario is some acknowledged operations and one that is under way. It runs once on a recording medium. Then, for
//! every store of the last operation, the memory is built as a crash right there could leave it. It is opened,
//! recovered, checked, and compared with the states before and after.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`op`] | operations by path, run on the file system |
//! | [`model`] | the same operations on a plain model |
//! | [`tree`] | everything that is visible in a file system |
//! | [`check`] | is a file system sound, and can it be worked with? |
//! | `stage` | which of several threads and processes runs next; deaths |
//! | [`choice`] | which of the values in doubt a crash leaves |
//! | [`disk`], [`fault`] | disks: durable content, and the states that a power cut can leave; disks that fail at one call |
//! | [`tape`] | the requests that reached memory and disks, in one order |
//! | [`crash`] | from such a recording to the states of memory that a crash could leave |
//! | [`medium`] | media with planted faults, to test the explorers |
//! | [`ledger`] | a participant in commits, and a check of its records |
//! | [`world`] | a world: a live file system with simulated memory and disks; made, taken up after a death, loaded after a power cut |
//! | [`story`] | a story: the steps in a world, one by one |
//! | [`history`] | a history: the recorded events, the promises, and so the states that may be found |
//! | [`verdict`] | failures and statistics |
//! | [`scenario`] | acknowledged operations, and one that is under way |
//! | [`explore`] | the explorer of scenarios: every crash that the memory survives |
//! | [`blocks`] | the explorer for blocks beside the heap |
//! | [`backing`] | the explorer for `logged`: memory, marks, redo logs and image together |
//! | [`large`] | the explorer for large files: memory, backing, and the disk with their content |
//!
//! There are two disciplines of persistence. On *battery*, stores are durable in program order. On *dax*, a word of 8
//! bytes is in doubt from a store until one thread has flushed it and fenced. It then holds any of its values since, or
//! the one from before, independently of all other words. (Hardware is kinder: it keeps the order within a cache line.)
//! On *logged*, the disks survive a power cut, with a discipline of their own: see [`disk`]. Several threads take turns:
//! see `explore::together`.
//!
//! A failure prints an id, `name:kind:point:choice`. `CONQUEST_SIM_REPLAY=id` explores that state alone.
//! `CONQUEST_SIM=full` takes more cuts and more seeds, and checks every state in full. `CONQUEST_SIM_SEED=n` draws
//! another sample where one is drawn.

#![forbid(unsafe_code)]

pub mod backing;
pub mod blocks;
pub mod check;
pub mod choice;
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
