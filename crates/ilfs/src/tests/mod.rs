//! The log over persistent RAM and disks of the test's own.
//!
//! | module | contents |
//! | --- | --- |
//! | `rig` | a log on a disk in memory |
//! | `world` | files of a test: the content and place of each page; their answers to the cleaner |
//! | `writing` | writing and reading, also while the disk fails |
//! | `cleaning` | the cleaner, and salvage from the disk alone |
//! | `replicas` | several disks: replicas of segments, disks that fail or are missing |
//! | `replicas_crash` | a power cut at each write and flush of a story on three disks, and then without one of them |
//! | `crash` | a power cut at each write and flush, with the memory kept or lost |
//! | `hanging` | disks that do not answer |
//! | `backing_segments` | the segments of the backing |
//! | `scale` | passes over a table of a TiB |
//! | `model` | random operations, compared with a model |

mod backing_segments;
mod cleaning;
mod crash;
mod discarding;
mod hanging;
mod leaving;
mod lost;
mod model;
mod replicas;
mod replicas_crash;
mod rig;
mod scale;
mod world;
mod writing;
