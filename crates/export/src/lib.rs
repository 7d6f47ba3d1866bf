//! Volumes: regions of disks as one linear block device, for a file system that knows nothing of them (E×RAID, USENIX ATC
//! 2002, "legacy use").
//!
//! A *volume* is a directory with a `volume.toml` that names its disks, as a pool is one. Its disks are its own, made for
//! it and labelled with its UUID: a pool's regions hold segments that the log moves as it likes, and are never shown so.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`device`] | the trait of a linear device, whatever shows it: what a front end (FUSE, later NBD, ublk) meets |
//! | [`linear`] | regions one after the other as such a device |
//! | `range_locks` | which bytes are being written |
//! | [`marks`] | which stretches copies may differ in, after a power cut |
//! | [`resync`] | making them the same |
//! | [`config`] | `volume.toml` |
//! | [`volume`] | a volume: making, opening and closing it; its disks rebuilt, replaced |
//! | [`status`] | how it does |
//! | [`control`] | asking the process that serves it |
//! | [`error`] | what can fail |
//!
//! ```text
//! ext4 → loop → FUSE ─┐
//! (nbd, ublk) ────────┴→ BlockDevice → Linear → Space → Region → disks
//! ```
//!
//! What a region promises is for a client that knows what it wrote; a file system that was made for a disk takes more for
//! granted, and the volume adds it:
//! - V1. A request of any length at any place is served: of a block that is written in part the rest stays.
//! - V2. A sector reads the same every time until it is written again, also after a power cut: copies that may differ then
//!   are made the same before the volume is shown (`marks`, `resync`). One that was being written has its old content or
//!   the new, but where whole stripes of a RAID-5 were written and a disk is lost together with the power.
//! - V3. What was discarded reads as zeros; where that cannot be had cheaply, the volume takes no discards.
//! - V4. What was complete when a flush began is durable when it has ended, on all members that count.

#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod device;
pub mod error;
pub mod linear;
pub mod marks;
mod range_locks;
pub mod resync;
pub mod status;
pub mod volume;

pub use config::{Config, Kind, NewDisk, NewRegion};
pub use device::BlockDevice;
pub use error::{Error, Result};
pub use linear::Linear;
pub use status::Status;
pub use volume::Volume;
