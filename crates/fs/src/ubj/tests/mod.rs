//! The union cache over persistent RAM and a disk of the test's own.
//!
//! | module | what it tries |
//! | --- | --- |
//! | `rig` | a file system whose large files go to a disk in memory; comparing links with counts |
//! | `follow` | files between memory and disk: demoted, and on the side of their threshold |
//! | `leaves` | sequential writes take little memory |
//! | `lost` | reports of content whose place is gone |
//! | `policies` | the figures and settings for comparisons with other caches |
//! | `races` | changes at the instants of a write-back at which another call may come |
//! | `reads` | pages that are read again come into memory, and failures are tried again |
//! | `redirty` | blocks in memory that are the last copy of their pages |
//! | `thresholds` | the size beyond which a file's content goes to disk |
//! | `transitions` | the states of a block, from each to each |
//!
//! Random operations are among the tests of [`file`](crate::file), where the model of a file is.

mod follow;
mod leaves;
mod lost;
mod policies;
mod races;
mod reads;
mod redirty;
pub(crate) mod rig;
mod thresholds;
mod transitions;
