//! The one module with `unsafe`: what no safe wrapper exists for.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`device`] | /dev/fuse and its clones |
//! | [`ring`] | a queue of FUSE over io_uring: commands and the buffers the kernel fills |
//! | [`signals`] | signals as a file descriptor |

mod device;
mod ring;
mod signals;

pub use device::{Device, DEVICE};
pub use ring::{try_ring, Event, Queue};
pub use signals::Signals;
