//! What processes that work on the pool directly have had recalled, and when the kernel may keep it again.
//!
//! As long as direct changes go on, replies about a recalled file or directory are valid for no time: so no change costs an
//! event. When there was none for a while, the next reply takes it back.

use std::sync::atomic::{AtomicU32, Ordering};

use conquest_fs::node::Recall;
use conquest_fs::{Fs, Ino};

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
            recall => self.may_keep_again(fs, ino, recall, (fs.session().clock().coarse() / 1_000_000) as u32),
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

#[cfg(test)]
mod tests {
    use conquest::{FormatOptions, MediumKind, OpenOptions, Pool};
    use conquest_fs::ROOT;

    use super::*;

    #[test]
    fn a_second_without_changes_has_it_taken_back() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let at = dir.path().join("pool");
        Pool::format(&at, &FormatOptions::on(MediumKind::Battery, 16 << 20)).unwrap();
        let pool = Pool::open(&at, &OpenOptions::default()).unwrap();
        pool.retain(ROOT, 1).unwrap();
        let recalls = Recalls::default();
        let ask = |now| recalls.may_keep_again(&pool, ROOT, pool.session().recall(ROOT), now);
        let recall = || {
            pool.session().begin_recall(ROOT);
            pool.session().end_recall(ROOT);
        };
        pool.session().begin_recall(ROOT);
        assert!(!ask(5000));
        pool.session().end_recall(ROOT);
        // The clock may be at its end.
        let start = u32::MAX - 10;
        assert!(!ask(start) && !ask(start.wrapping_add(QUIET - 1)));
        recall();
        assert!(!ask(start.wrapping_add(QUIET)), "it has changed again");
        assert!(!ask(start.wrapping_add(2 * QUIET - 1)));
        assert!(ask(start.wrapping_add(2 * QUIET)));
        assert_eq!(pool.session().recall(ROOT), Recall::None);
    }
}
