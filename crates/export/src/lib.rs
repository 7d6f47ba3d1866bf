//! Volumes: regions of disks as one linear block device, for a file system without knowledge of them (E×RAID, USENIX
//! ATC 2002, "legacy use").
//!
//! A *volume* is a directory with a `volume.toml` that names its disks, like the directory of a pool. Its disks are its
//! own, made for it and labelled with its UUID: a pool's regions hold segments that the log moves at will, and are
//! never exported.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`device`] | the trait of a linear device, for any front end (FUSE, later NBD, ublk) |
//! | [`linear`] | regions one after the other as such a device |
//! | `range_locks` | locks on the bytes that are being written |
//! | [`marks`] | the intent map: stretches where copies may differ after a power cut |
//! | [`resync`] | making copies equal again |
//! | [`config`] | `volume.toml` |
//! | [`volume`] | a volume: making, opening and closing it; rebuilding and replacing its disks |
//! | [`status`] | the status of a volume |
//! | [`control`] | questions to the process that serves it |
//! | [`error`] | the errors of volumes |
//!
//! ```text
//! ext4 → loop → FUSE ─┐
//! (nbd, ublk) ────────┴→ BlockDevice → Linear → Space → Region → disks
//! ```
//!
//! A region's guarantees suit a client that knows its own writes; a file system made for a disk expects more, and the
//! volume adds that:
//! - V1. A request of any length at any place is served; a write to a part of a block keeps the rest of it.
//! - V2. A sector reads the same every time until it is written again, even after a power cut: copies that may differ
//!   then are made equal before the volume is shown (`marks`, `resync`). A sector that was being written has its old
//!   content or the new. The exception: whole stripes of a RAID-5 were being written, and a disk is lost together with
//!   the power.
//! - V3. A discarded range reads as zeros; if that cannot be had cheaply, the volume takes no discards.
//! - V4. A flush makes all writes that were complete at its beginning durable, on all members in use.

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
