//! What processes that work on the pool directly have had recalled, and when the kernel may keep it again.
//!
//! As long as direct changes go on, replies about a recalled file or directory are valid for no time: so no change costs an
//! event. When there was none for a while, the next reply takes it back.

use std::sync::atomic::{AtomicU32, Ordering};

use conquest_fs::node::Recall;
use conquest_fs::{Fs, Ino};
use rustix::time::{clock_gettime, ClockId};

/// So many milliseconds without a change make it worth keeping again.
const QUIET: u32 = 1000;
/// Inodes are known by their numbers modulo this: others' changes only delay that they are taken back.
const SLOTS: usize = 1 << 12;

/// When a change was last noted: the low bits of a time in milliseconds.
pub struct Recalls(Box<[AtomicU32]>);

impl Default for Recalls {
    fn default() -> Recalls {
        Recalls((0..SLOTS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Recalls {
    /// May the kernel keep what is read of the inode from now on? Ask before it is read.
    #[inline(always)]
    pub fn may_keep(&self, fs: &Fs, ino: Ino) -> bool {
        match fs.session().recall(ino) {
            Recall::None => true,
            recall => self.may_keep_again(fs, ino, recall, now()),
        }
    }

    #[cold]
    fn may_keep_again(&self, fs: &Fs, ino: Ino, recall: Recall, now: u32) -> bool {
        let last = &self.0[ino as usize % SLOTS];
        match recall {
            Recall::None => true,
            Recall::Begun => false,
            Recall::Done { changed: true } => {
                fs.session().note_changes(ino);
                last.store(now, Ordering::Relaxed);
                false
            }
            Recall::Done { changed: false } => {
                let is_quiet = now.wrapping_sub(last.load(Ordering::Relaxed)) >= QUIET;
                if is_quiet {
                    fs.session().take_back(ino);
                }
                is_quiet
            }
        }
    }
}

/// Milliseconds of a clock that goes on.
fn now() -> u32 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000) as u32
}
