//! The mount: Conquest as a kernel file system, by FUSE. Session and translation, nothing else.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`options`] | what `-o` says, and which transport that means |
//! | [`mount`](mod@mount) | attaching to a directory |
//! | `unmount` | letting go of it |
//! | `detached` | mounts made with all their flags before they are put in place |
//! | `helper` | the same by `fusermount3`, for those who may not mount |
//! | `block` | the same as the file system of a block device, so that `sync` waits for us and the device stays the same |
//! | [`mounts`] | the kernel's mount table |
//! | `prime` | what the kernel learns by the first calls |
//! | `session` | the life of a mount: signals, the end |
//! | `threads` | the threads of a mount, and that one of them has ended |
//! | `guard` | the process that sends notifications, and ends the connection of a killed server |
//! | `killed` | whether a process is being killed |
//! | `connection` | ending a connection from outside |
//! | `init` | the negotiation of capabilities |
//! | `uring` | transport: FUSE over io_uring, one queue and pinned thread per CPU |
//! | `wait_policy` | how queues wait for requests, on quiet and on busy machines |
//! | `host` | how many threads run, and how long one has waited for a processor |
//! | `dev` | transport: /dev/fuse; with io_uring it still carries FORGET and the like |
//! | `enospc` | on a full pool: when a request that found no space is tried again |
//! | `server` | opcode → operation, and the answers that save messages |
//! | `stale_attrs` | attributes that the kernel must not believe |
//! | `parked` | requests that are answered later, by whatever thread |
//! | `workers` | the threads for requests that take long, or wait for space |
//! | `deferred` | replies that wait until what they acknowledge is durable |
//! | `seeks` | SEEK_DATA and SEEK_HOLE, which wait for what programs have stored through mappings |
//! | `names` `attrs` `data` `dirs` `file_flags` | the operations, by subject |
//! | `privileges` | for whom a change takes set-id bits, which the message does not say |
//! | `cookies` | cookies of directories for 32-bit programs |
//! | `process` | what the process behind a request may do beyond what its numbers say |
//! | `volume` | a linear device shown as one file |
//! | `request` | one request: header, argument, payload, reply in place |
//! | `notify` | notifications to the kernel's caches of what other processes changed |
//! | `convert` | attributes between `fs` and the protocol |
//! | `kernel` | which Linux this is |
//! | `abi` | the protocol's messages |
//! | `sys` | the one module with `unsafe`: io_uring commands, device clones, loop devices, signals |
//!
//! The way of a request: kernel → (`uring` | `dev`) → `server` → `fs`, in one thread, without an
//! allocation of ours or a lock that many share; the reply goes back the same way. What takes long or has to wait is
//! `parked`, and served or answered by other threads: those of the transports never wait.
//!
//! Caching: the kernel may keep names, attributes and pages until a notification of `notify`. There
//! is no write-back cache: what `write(2)` returned for is in the pool.

#![deny(unsafe_code)]

mod abi;
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
mod host_cpus;
mod init;
mod ioctl;
mod kernel;
pub mod killed_process;
pub mod mount;
pub mod mounts;
mod names;
mod no_open;
mod notify;
pub mod options;
mod privileges;
mod process;
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
