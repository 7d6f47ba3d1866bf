//! The log over persistent RAM and disks of the test's own.

mod rig;
mod writing;
