//! The union cache over persistent RAM and a disk of the test's own.
//!
//! | module | what it tries |
//! | --- | --- |
//! | `rig` | a file system whose large files go to a disk in memory; what leads where, against what is counted |
//! | `races` | changes at the instants of a write-back at which somebody else may come |

mod races;
mod rig;
