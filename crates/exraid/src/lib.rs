//! Disks and regions: what a log of segments, or another client, is built on.
//!
//! This crate knows nothing of files and nothing of persistent RAM. It offers devices with flush, of which many requests
//! can be under way; labels, by which a disk says whose it is; and *regions*: a disk or several that together are one
//! stretch of the address space, with what is known of their speed, their failures and how many more they can stand.
//! It decides nothing: where content goes, how many copies there are and what is moved is the client's (E×RAID, USENIX
//! ATC 2002).
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`device`] | the trait of everything that is read, written and flushed, and its contract |
//! | [`disk`] | files and block devices of the host, by io_uring or threads |
//! | [`label`] | what each disk says of itself: whose it is, its place in its region, the epoch |
//! | [`region`] | a disk, a stripe, a mirror: what a client uses; degraded operation, rebuilding |
//! | [`space`] | all regions as one address space whose boundaries are known |
//! | [`meter`] | speed, latency, queue, errors |
//! | [`events`] | what happens to regions |
//! | [`error`] | what can fail |
//! | `fault` | for tests: disks that fail, and what a power cut leaves of them |
//! | `sys` | all `unsafe`: memory of transfers, io_uring, system calls |
//!
//! A request goes region → member → device → host, and its answer the same way back:
//!
//! ```text
//! client --Request--> region --Request (shifted, split)--> disk --call--> io_uring or threads
//!    <----- Answer (with the memory) ------ meter, failures -----<----- completion
//! ```

#![deny(unsafe_code)]

pub mod device;
pub mod disk;
pub mod error;
pub mod events;
#[cfg(feature = "fault")]
pub mod fault;
mod flight;
pub mod label;
pub mod meter;
pub mod region;
pub mod space;
mod sys;

pub use device::{Answer, Device, Done, Kind, Op, Pending, Properties, Request, Ticket};
pub use disk::{Claim, Disk, Making, Options};
pub use error::{Class, Error, OpenError, Result};
pub use label::{Label, Layout, Uuid};
pub use meter::Performance;
pub use region::{MemberStatus, Region};
pub use space::Space;
pub use sys::memory::{Aligned, Buffers, ALIGNED};
