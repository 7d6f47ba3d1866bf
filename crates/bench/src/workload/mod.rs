//! The workloads.

pub mod beside;
pub mod bigdir;
pub mod compression;
pub mod databases;
pub mod direct;
pub mod disks;
pub mod durable;
pub mod filebench;
pub mod large;
pub mod largefile;
pub mod memory;
pub mod mixed;
pub mod mramfs;
pub mod open;
pub mod packed;
pub mod places;
mod plan;
pub mod postmark;
mod program;
pub mod scale;
pub mod smallfile;
pub mod stalls;
pub mod study;
pub mod sustained;
mod tree;
pub mod ubj;
