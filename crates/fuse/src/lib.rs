//! The mount: Conquest as a kernel file system, by FUSE. Session and translation, nothing else.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`options`] | the options of `-o`, and the transport that they choose |
//! | [`mount`](mod@mount) | attaching to a directory |
//! | `unmount` | detaching from it |
//! | `detached_mount` | mounts made with all their flags before they are attached |
//! | `helper` | the same by `fusermount3`, for users who may not mount |
//! | `fuseblk` | the same as the file system of a block device, so that `sync` waits for us and the device stays the same |
//! | [`mounts`] | the kernel's mount table |
//! | `no_open` | teaches the kernel that opening and closing need no messages |
//! | `session` | the life of a mount: signals, the end |
//! | `threads` | the threads of a mount, and the end of one of them |
//! | `guard` | the process that sends notifications, and ends the connection of a killed server |
//! | `killed_process` | whether a process is being killed |
//! | `connection` | ending a connection from outside |
//! | `init` | the negotiation of capabilities |
//! | `uring` | transport: FUSE over io_uring, one queue and pinned thread per CPU |
//! | `wait_policy` | how queues wait for requests, on quiet and on busy machines |
//! | `dev` | transport: /dev/fuse; with io_uring it still carries FORGET and the like |
//! | `enospc` | on a full pool: when a request that found no space is tried again |
//! | `server` | opcode → operation, and the answers that save messages |
//! | `stale_attrs` | attributes that the kernel must not believe |
//! | `recalls` | files and directories that other processes change without an event, until the kernel may cache them again |
//! | `absent` | names of which the kernel caches that they do not exist |
//! | `prune` | inodes that the kernel is asked to forget |
//! | `answer_later` | requests that any thread may answer later |
//! | `workers` | the threads for requests that take long, or wait for space |
//! | `deferred_replies` | replies that wait until the change that they acknowledge is durable |
//! | `seeks` | SEEK_DATA and SEEK_HOLE, which wait for what programs have stored through mappings |
//! | `names` `attrs` `data` `dirs` `ioctl` | the operations, by subject |
//! | `operations` | counts them, and the times until their answers |
//! | `privileges` | for which callers a change clears set-id bits, which the message does not say |
//! | `cookies` | cookies of directories for 32-bit programs |
//! | `process` | rights of the calling process beyond the numbers in its request |
//! | `volume` | a linear device shown as one file |
//! | `request` | one request: header, argument, payload, reply in place |
//! | `notify` | notifications to the kernel's caches about changes by other processes |
//! | `convert` | attributes between `fs` and the protocol |
//! | `kernel` | the version of Linux |
//! | `abi` | the protocol's messages |
//! | `sys` | the one module with `unsafe`: io_uring commands, device clones, loop devices, signals |
//!
//! A request goes kernel → (`uring` | `dev`) → `server` → `fs`, in one thread, without an allocation of ours and
//! without a lock that many share; the reply goes back the same way. A request that takes long or has to wait is parked
//! (`answer_later`), and other threads serve or answer it: those of the transports never wait.
//!
//! Caching: the kernel may cache names, attributes and pages until a notification of `notify`. There is no write-back
//! cache: when `write(2)` returns, its data is in the pool.

#![deny(unsafe_code)]

mod abi;
mod absent;
mod answer_later;
mod attrs;
mod connection;
mod convert;
mod cookies;
mod data;
mod deferred_replies;
mod detached_mount;
mod dev;
mod dirs;
mod enospc;
mod error;
mod fuseblk;
mod guard;
mod helper;
mod init;
mod ioctl;
mod kernel;
pub mod killed_process;
pub mod mount;
pub mod mounts;
mod names;
mod no_open;
mod notify;
mod operations;
pub mod options;
mod privileges;
mod process;
mod prune;
mod recalls;
mod request;
mod seeks;
mod server;
mod session;
mod stale_attrs;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;
mod threads;
mod unmount;
mod uring;
mod volume;
mod wait_policy;
mod workers;

pub use connection::Connection;
pub use error::{Error, Result};
pub use guard::{guard, Duty};
pub use mount::{mount, mount_again, remount};
pub use options::{choose_transport, MountOptions, Transport, TransportChoice};
pub use session::Mount;
pub use sys::{flushes_for_others, Signals};
pub use unmount::{umount, write_back};
pub use volume::{is_volume_at, mount_volume, umount_volume, Shown, FILE as VOLUME_FILE};
