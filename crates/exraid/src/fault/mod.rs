//! For tests: disks in memory, disks that fail, and the states of a disk after a power cut.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`ram`] | a disk in memory that records its requests; its states after a power cut |
//! | [`disk`] | a disk over any other with seeded failures |
//! | [`timer`] | delayed calls |
//!
//! All random choices come from a seed: a failure can be repeated.

pub mod disk;
pub mod ram;
pub mod timer;

pub use disk::{Fault, FaultDisk, Faults, Injected};
pub use ram::{Content, Cut, Event, RamDisk};
