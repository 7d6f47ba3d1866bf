//! The one module with `unsafe`: calls that have no safe wrapper.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`child`] | a call made by a child process |
//! | [`flusher`] | declares that the process writes back the changes of others |
//! | [`device`] | /dev/fuse and its clones |
//! | [`loop_device`] | a block device to mount as |
//! | [`ring`] | a queue of FUSE over io_uring: commands and the buffers the kernel fills |
//! | [`setattr`] | the flags of one mount |
//! | [`signals`] | signals as a file descriptor |

mod child;
mod device;
mod flusher;
mod loop_device;
mod ring;
mod setattr;
mod signals;

pub use child::{in_child, in_child_within};
pub use device::{Device, DEVICE};
pub use flusher::flushes_for_others;
pub use loop_device::{unshare_root, LoopControl};
pub use ring::{is_passing, try_ring, Entry, Event, Queue};
pub use setattr::mount_setattr;
pub use signals::Signals;
