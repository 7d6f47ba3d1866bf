//! The log over persistent RAM and disks of the test's own.
//!
//! | module | what it tries |
//! | --- | --- |
//! | `rig` | a log on a disk in memory |
//! | `world` | files of a test: which page has what content, and where; what the cleaner asks |
//! | `writing` | writing and reading, also where the disk fails |
//! | `cleaning` | the cleaner, and what the disk tells alone |
//! | `copies` | several disks: copies of segments, disks that fail or are missing |
//! | `copies_crash` | a power cut at each write and flush of a story on three disks, and then without one of them |
//! | `crash` | a power cut at each write and flush, with the memory kept or lost |
//! | `hanging` | disks that do not answer |
//! | `backing_segments` | the segments of the backing |
//! | `scale` | passes over a table of a TiB |
//! | `model` | any operations, against what should be there |

mod backing_segments;
mod cleaning;
mod copies;
mod copies_crash;
mod crash;
mod discarding;
mod hanging;
mod leaving;
mod lost;
mod model;
mod rig;
mod scale;
mod world;
mod writing;
