//! mmap. The kernel maps files, and has what is stored through a mapping until it writes it: what this process maps it reads by the
//! kernel too.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use conquest::Ino;
use libc::{MAP_SHARED, MAP_SHARED_VALIDATE, MAP_TYPE};
use rustix::fs::fstat;

use super::place::number;
use super::{Outcome, Stop};
use crate::raw;
use crate::state::State;

/// Inodes that may be stored to through mappings. A forked child has the mappings, and this, but not its parent's engine.
static MAPPED: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// How many there are; more than [`MOST`]: any may be.
static COUNT: AtomicUsize = AtomicUsize::new(0);
const MOST: usize = 64;

#[inline(always)]
pub fn is_mapped(ino: Ino) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && is_noted(ino)
}

#[cold]
fn is_noted(ino: Ino) -> bool {
    let count = COUNT.load(Ordering::Acquire);
    count > MOST || MAPPED[..count].iter().any(|noted| [0, ino].contains(&noted.load(Ordering::Acquire)))
}

fn note(ino: Ino) {
    if !is_mapped(ino) {
        // An entry that is 0 yet counts as any.
        if let Some(entry) = MAPPED.get(COUNT.fetch_add(1, Ordering::AcqRel)) {
            entry.store(ino, Ordering::Release);
        }
    }
}

impl State {
    /// The call itself is the kernel's.
    pub fn map(&self, flags: usize, fd: usize) -> Outcome {
        if matches!(flags as i32 & MAP_TYPE, MAP_SHARED | MAP_SHARED_VALIDATE) {
            match self.descriptors.get(number(fd)) {
                Some(file) if file.writes() => note(file.ino),
                Some(_) => {}
                None => {
                    let stat = fstat(raw::borrow(number(fd))?)?;
                    if stat.st_dev == self.mounted.dev {
                        note(stat.st_ino);
                    }
                }
            }
        }
        Err(Stop::Kernel)
    }
}
