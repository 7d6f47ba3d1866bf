//! For tests: disks in memory, disks that fail, and what a power cut leaves of a disk.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`ram`] | a disk in memory that records its requests; the states that a power cut leaves |
//! | [`disk`] | a disk over any other that fails as a seed says |
//! | [`timer`] | what happens later |
//!
//! Everything that is drawn comes from a seed: a failure that was found is found again.

pub mod disk;
pub mod ram;
pub mod timer;

pub use disk::{Fault, FaultDisk, Faults, Injected};
pub use ram::{Content, Cut, Event, RamDisk};
