//! A linear device shown as one file, for a loop device and a file system that knows nothing of Conquest.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`session`] | attaching, threads, the end |
//! | `file` | a directory with one file: opcode → call of the device |
//! | `message` | a request of /dev/fuse whose content lies in memory that disks take |
//!
//! A pool's requests (`server`) go another way: here there is nothing to translate and nothing in memory. Each request
//! waits for disks, and its content must reach them without a copy. Both share the layers below: the protocol, the
//! greeting, threads, mounting.
//!
//! The file is opened past the page cache: writes reach us at once, and the cached content of a loop device is not
//! cached twice. Requests of one loop device are under way at the same time (`ASYNC_DIO`).
//!
//! *Memory.* A loop device on this file writes a file system's dirty pages back through us. If we waited for memory
//! that only this write-back could free, both would wait for ever. So each thread allocates its memory at the
//! beginning, and disks are read and written past the page cache. As root the process also declares that it writes back
//! others' pages (`PR_SET_IO_FLUSHER`): the kernel then never asks it to write such pages when it needs memory. For
//! disks that are files, this holds only if their own file system does not need memory.

mod file;
mod message;
mod session;

pub use file::FILE;
pub use session::{is_volume_at, mount_volume, umount_volume, Shown};
