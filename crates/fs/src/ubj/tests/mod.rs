//! The union cache over persistent RAM and a disk of the test's own.
//!
//! | module | what it tries |
//! | --- | --- |
//! | `rig` | a file system whose large files go to a disk in memory; what leads where, against what is counted |
//! | `leaves` | what is written in order, and takes little memory |
//! | `races` | changes at the instants of a write-back at which somebody else may come |
//! | `thresholds` | beyond which size a file's content goes to disk |
//!
//! Random operations are among the tests of [`file`](crate::file), where the model of a file is.

mod leaves;
mod races;
pub(crate) mod rig;
mod thresholds;
