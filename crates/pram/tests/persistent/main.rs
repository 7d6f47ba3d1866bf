//! Tests of persistent RAM from outside.
//!
//! | module | subject |
//! | --- | --- |
//! | [`rig`] | memories of this process and in files, seeded numbers |
//! | [`player`] | further processes |
//! | [`header`] | damaged, foreign and truncated memories are refused or mended |
//! | [`grow`] | a memory that grows, cut at every store |
//! | [`heap`] | the heap against a model, alone and from many threads |
//! | [`blocks`] | blocks beside the objects, and transfers between them and devices |
//! | [`crowded`] | chunks of a full memory go from owner to owner |
//! | [`operations`] | operations that begin anew, long locks, and threads that may not wait for a device |
//! | [`tx`] | commit and rollback of every size |
//! | [`save`] | save, restore, and images that must be refused |
//! | [`readahead`] | reading ahead gives the same bytes and errors |
//! | [`log`] | the redo log: every crash, damage, and logs that must be refused |
//! | [`backing`] | a backing that is read back is made durable before anything follows it |
//! | [`epoch`] | epochs, the participants in their end, and commits that end |
//! | [`image`] | the incremental image: every crash, damage, and images that must be refused |
//! | [`tape`] | a disk that remembers its requests, loses power, and fails |
//! | [`marks`] | marks of changed lines, against a model |
//! | [`fuzz`] | arbitrary bytes in a memory: errors, never panics |
//! | [`speed`] | the cost of blocks; run by hand |
//! | [`guests`] | processes that leave background work to others, and children of `fork` |
//! | [`delegation`] | what is recalled, and what nobody may keep |
//! | [`processes`] | several processes, some of them killed |
//! | [`stopped`] | processes that are stopped while others wait for them |

mod backing;
mod blocks;
mod crowded;
mod delegation;
mod epoch;
mod fuzz;
mod grow;
mod guests;
mod header;
mod heap;
mod image;
mod log;
mod marks;
mod operations;
mod player;
mod processes;
mod readahead;
mod rig;
mod save;
mod speed;
mod stopped;
mod tape;
mod tx;
