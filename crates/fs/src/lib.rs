//! The Conquest file system: names, inodes and POSIX semantics over one memory of persistent RAM.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`error`] | errors, and the one errno table |
//! | [`attr`] | the attributes of an inode, and the caller |
//! | [`node`] | the API by inode number, which every front end uses |
//! | [`codec`] | bytes to fewer bytes, and back |
//! | [`compress`] | compressing content: the choice of files, times and codecs |
//! | [`path`] | the API by path with permission checks, for embedding programs |
//! | [`poll`] | waiting for unannounced changes of others |
//! | `retry` | operations that lack something, and run again once they have it |
//! | [`layout`] | the layout of the memory: superblock, inode, every size asserted |
//! | `inode` | the inode table: two levels, blocks of sixteen |
//! | `perm` | the shared table of (uid, gid, mode) triples |
//! | `dir` | directories: extendible hash tables of buckets |
//! | [`setting`] | settings of inodes, inherited from the directory |
//! | `acl` | POSIX access control lists |
//! | `bytes` | names and paths, a word at a time |
//! | `recent` | the directory that a thread's last path led to |
//! | [`packed`] | the codes of packed inodes and names |
//! | `file` | content of memory files: one contiguous block, or a tree of pages |
//! | `xattr` | extended attributes and POSIX ACLs |
//! | [`ubj`] | the union cache: content of large files in memory, between files and the log on disks |
//! | [`tier`] | files move between memory and disk, and room is made in both |
//! | [`maintenance`] | chores on disks: cleaning, replicas, balance, scrubbing |
//! | [`fsck`] | the check of everything, and mark-and-sweep |
//! | [`wakeup`] | a call that wakes a thread that rests |
//!
//! Data model: superblock → inode table → inode block → inode → (bucket | bucket table | data block |
//! page tree | symlink target) and → xattr block.
//!
//! Lock order: locks are per inode number and always taken for all inodes of an operation at once, in
//! ascending order; readers take none (sequence counters).

#![forbid(unsafe_code)]

mod acl;
pub mod attr;
mod bytes;
pub mod codec;
pub mod compress;
mod dir;
pub mod error;
mod file;
pub mod fsck;
mod inode;
pub mod layout;
pub mod maintenance;
pub mod node;
pub mod packed;
pub mod path;
mod perm;
pub mod poll;
mod recent;
mod retry;
pub mod setting;
pub mod tier;
pub mod ubj;
pub mod wakeup;
mod xattr;

pub use attr::{Attr, Caller, Ino, Kind, SetAttr, SetTime, Time, ROOT};
pub use backing::Ticket;
pub use dir::{packed_entries, Taken};
pub use error::{Error, Lack, Result};
pub use inode::max_inodes;
pub use node::{Atime, Fs, Policy};
pub use setting::{Compression, Durability, Priority, Redundancy, Times};
