//! mmap: the call itself is the kernel's.

use std::os::fd::RawFd;

use conquest::Ino;
use libc::{MAP_SHARED, MAP_SHARED_VALIDATE, MAP_TYPE};
use rustix::fs::fstat;

use super::place::number;
use super::{Outcome, Stop};
use crate::state::State;
use crate::{mapped, raw};

impl State {
    pub fn map(&self, flags: usize, fd: usize) -> Outcome {
        let (ino, stores) = match self.descriptors.get(number(fd)) {
            Some(file) => (file.ino, file.writes()),
            None => (self.inode_of(number(fd)).ok_or(Stop::Kernel)?, true),
        };
        mapped::note_memory();
        if stores && matches!(flags as i32 & MAP_TYPE, MAP_SHARED | MAP_SHARED_VALIDATE) {
            mapped::note(ino);
        }
        Err(Stop::Kernel)
    }

    /// The inode of the pool that a descriptor of the kernel is of.
    pub fn inode_of(&self, fd: RawFd) -> Option<Ino> {
        let stat = fstat(raw::borrow(fd).ok()?).ok()?;
        (stat.st_dev == self.mounted.dev).then_some(stat.st_ino)
    }
}
