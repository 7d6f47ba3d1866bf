//! Tests of persistent RAM from outside.
//!
//! | module | what it shows |
//! | --- | --- |
//! | [`rig`] | regions in memory and in files, seeded numbers |
//! | [`header`] | damaged, foreign and truncated regions are refused or mended |
//! | [`grow`] | a memory that grows, cut at every store |
//! | [`heap`] | the heap against a model, alone and from many threads |
//! | [`blocks`] | blocks beside the objects, and transfers between them and devices |
//! | [`crowded`] | chunks of a full memory go from hand to hand |
//! | [`operations`] | operations that begin anew, long locks, and who may not wait for a device |
//! | [`tx`] | commit and rollback of every size |
//! | [`save`] | save, restore, and images that must be refused |
//! | [`readahead`] | reading ahead gives the same bytes and errors |
//! | [`log`] | the redo log: every crash, damage, and logs that must be refused |
//! | [`copy`] | what is read back is made durable before anything follows it |
//! | [`epoch`] | epochs, who has a part in their end, and commits that end |
//! | [`image`] | the incremental image: every crash, damage, and images that must be refused |
//! | [`tape`] | a disk that remembers its requests, loses power, and fails |
//! | [`marks`] | marks of changed lines, against a model |
//! | [`fuzz`] | arbitrary bytes in a memory: errors, never panics |
//! | [`speed`] | what blocks cost; run by hand |
//! | [`processes`] | several processes, some of them killed |

mod blocks;
mod copy;
mod crowded;
mod epoch;
mod fuzz;
mod grow;
mod header;
mod heap;
mod image;
mod log;
mod marks;
mod operations;
mod processes;
mod readahead;
mod rig;
mod save;
mod speed;
mod tape;
mod tx;
