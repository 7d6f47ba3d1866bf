//! A linear device shown as one file, for a loop device and a file system that knows nothing of it.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`session`] | attaching, threads, the end |
//! | `file` | a directory with one file: opcode → call of the device |
//! | `message` | a request of /dev/fuse whose content lies in memory that disks take |
//!
//! Not the way of a pool's requests (`server`): there is nothing to translate and nothing in memory, each request waits for
//! disks, and its content is to go there without a copy. What both share is below: the protocol, the greeting, threads,
//! mounting.
//!
//! The file is opened past the page cache: what is written is asked of us at once, and what a loop device has in memory
//! is not there twice. Requests of one loop device are under way at the same time (`ASYNC_DIO`).
//!
//! *Memory.* A loop device on this file writes a file system's dirty pages back through us. If we waited for memory that
//! only that could free, both would wait for ever. So each thread has its memory from the beginning, disks are read and
//! written past the page cache, and as root the process says that it writes others' pages back (`PR_SET_IO_FLUSHER`): the kernel
//! then never asks it to write such pages itself when it needs memory. For disks that are files of a file system that
//! itself may need memory, that holds as far as that file system goes.

mod file;
mod message;
mod session;

pub use file::FILE;
pub use session::{is_volume_at, mount_volume, umount_volume, Shown};
