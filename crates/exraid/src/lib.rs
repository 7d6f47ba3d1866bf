//! Disks and regions: the base of a log of segments, or of another client.
//!
//! This crate knows nothing of files or of persistent RAM. It offers devices with flush, of which many requests can be
//! under way; labels, by which a disk names its owner; and *regions*: a disk or several that together are one stretch
//! of the address space, with their speed, their failures and how many more they can stand. The client decides where
//! content goes, how many copies there are and when content moves (E×RAID, USENIX ATC 2002).
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`device`] | the trait of everything that can be read, written and flushed, and its contract |
//! | `in_flight` | requests under way on one device, and how long they may take |
//! | [`disk`] | files and block devices of the host, by io_uring or threads |
//! | [`label`] | the label of each disk: its owner, its place in its region, the epoch |
//! | [`note`] | the client's note beside the labels |
//! | [`duplex`] | streams that lie in segments of two regions at once |
//! | [`region`] | a disk, a stripe, a mirror, a RAID-5, as a client uses them; degraded operation, rebuilding |
//! | [`space`] | all regions as one address space with known boundaries |
//! | [`meter`] | speed, latency, queue, errors |
//! | [`events`] | events of regions |
//! | [`owner`] | the owner of files, and other users with access |
//! | [`error`] | the kinds of failure |
//! | `fault` | for tests: disks that fail or lose power |
//! | `sys` | all `unsafe`: memory of transfers, io_uring, system calls |
//!
//! A request goes region → member → device → host, and its answer the same way back:
//!
//! ```text
//! client --Request--> region --Request (shifted, split)--> disk --call--> io_uring or threads
//!    <----- Answer (with the memory) ------ meter, failures -----<----- completion
//! ```
//!
//! A client makes disks, makes a region of them, and sends it requests. Here it is a mirror, which loses one disk and
//! gets another:
//!
//! ```
//! use std::sync::Arc;
//! use exraid::{label::MemberState, region, Aligned, Buffers, Device, Disk, Layout, Making, Options, Request, Uuid};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let paths = [dir.path().join("a"), dir.path().join("b")];
//! let making = Making { size: Some(32 << 20), ..Making::default() };
//! let make = |path| Disk::make(path, &making).map(|disk| Arc::new(disk) as Arc<dyn Device>);
//! let disks = paths.iter().map(|path| make(path)).collect::<Result<Vec<_>, _>>()?;
//! let mirror = region::make(Uuid::random()?, 0, Layout::Mirror, disks)?;
//!
//! // Many requests can be under way; a write is durable when a flush that was asked for after it is answered.
//! let memory = Aligned::of(&[7; 8192]);
//! let first = mirror.start(Request::write(0, Buffers::part(&memory, 0..4096)));
//! let second = mirror.start(Request::write(1 << 20, Buffers::part(&memory, 4096..8192)));
//! first.wait().result?;
//! second.wait().result?;
//! mirror.flush()?;
//! drop(mirror);
//!
//! // It can be opened without one of its disks, and says so. The client must know that the next loss costs content.
//! let open = |path| Disk::open(path, &Options::default()).map(|disk| Arc::new(disk) as Arc<dyn Device>);
//! let mirror = region::open(vec![open(&paths[1])?])?;
//! assert_eq!(mirror.tolerated(), Some(0));
//! let mut found = [0; 100];
//! mirror.read_at(&mut found, 1 << 20)?;
//! assert_eq!(found, [7; 100]);
//!
//! // A new disk takes the place of the other; only the content that the client names as live is copied.
//! let spare = Disk::make(&dir.path().join("c"), &making)?;
//! let live = &mut || vec![0..4096, 1 << 20..(1 << 20) + 4096];
//! let is_whole = mirror.rebuild(0, Some((Arc::new(spare), Uuid::random()?)), live, &mut |_left| true)?;
//! assert!(is_whole && mirror.members()[0].state == MemberState::Whole);
//! # Ok(())
//! # }
//! ```
//!
//! Larger clients: `examples/throughput.rs` here, the crate `export` (a block device for any file system), and the log
//! of segments, the crate `ilfs`.

#![deny(unsafe_code)]

pub mod device;
pub mod disk;
pub mod duplex;
pub mod error;
pub mod events;
#[cfg(feature = "fault")]
pub mod fault;
mod in_flight;
pub mod label;
pub mod meter;
pub mod note;
pub mod owner;
pub mod region;
pub mod space;
mod sys;

pub use device::{
    Answer, Device, Done, Kind, Late, Op, Pending, Properties, Request, Ticket, Whereabouts, LATE, PATIENCE,
};
pub use disk::{Claim, Disk, Making, Options};
pub use error::{Class, Error, OpenError, Result};
pub use label::{Label, Layout, Uuid};
pub use meter::Performance;
pub use region::throttle::Background;
pub use region::{MemberStatus, Region};
pub use space::Space;
pub use sys::memory::{Aligned, Buffers, ALIGNED};
