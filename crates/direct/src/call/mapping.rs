//! mmap: the call itself is the kernel's.

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
            None => {
                let stat = fstat(raw::borrow(number(fd))?)?;
                if stat.st_dev != self.mounted.dev {
                    return Err(Stop::Kernel);
                }
                (stat.st_ino, true)
            }
        };
        mapped::note_memory();
        if stores && matches!(flags as i32 & MAP_TYPE, MAP_SHARED | MAP_SHARED_VALIDATE) {
            mapped::note(ino);
        }
        Err(Stop::Kernel)
    }
}
