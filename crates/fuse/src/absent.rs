//! Names that are not there, which the kernel may remember: it has no inode for them, so nothing else says which of a
//! directory it has when that is [recalled](crate::recalls).
//!
//! The kernel remembers a name for a while, this table for longer. Where the table is full, the reply lets the kernel
//! remember nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use conquest_fs::Ino;

/// So many seconds the kernel remembers a name.
pub const VALID: u64 = 60;
/// Names are forgotten after one to two such times: also those that the kernel got late.
const GENERATION: Duration = Duration::from_secs(2 * VALID);
/// Most names of a generation.
const MOST: usize = 1 << 16;

type Names = HashSet<Box<[u8]>>;

#[derive(Default)]
pub struct Absent(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Ino, Names>,
    old: HashMap<Ino, Names>,
    /// Names in `young`.
    count: usize,
    began: Option<Instant>,
}

impl Absent {
    /// The kernel is about to learn that there is no such name. False if there is no room for it.
    pub fn add(&self, dir: Ino, name: &[u8]) -> bool {
        self.add_at(dir, name, Instant::now())
    }

    fn add_at(&self, dir: Ino, name: &[u8], now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(*all.began.get_or_insert(now)) >= GENERATION {
            let late = all.began.is_some_and(|began| now.duration_since(began) >= 2 * GENERATION);
            let young = std::mem::take(&mut all.young);
            all.old = if late { HashMap::new() } else { young };
            (all.began, all.count) = (Some(now), 0);
        }
        if all.young.get(&dir).is_some_and(|names| names.contains(name)) {
            return true;
        }
        let has_room = all.count < MOST;
        if has_room {
            all.young.entry(dir).or_default().insert(name.into());
            all.count += 1;
        }
        has_room
    }

    /// The kernel knows by itself that the name has come.
    pub fn remove(&self, dir: Ino, name: &[u8]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = &mut *all;
        for (names, counts) in [(&mut all.young, true), (&mut all.old, false)] {
            let Some(of_dir) = names.get_mut(&dir) else { continue };
            if of_dir.remove(name) && counts {
                all.count -= 1;
            }
            if of_dir.is_empty() {
                names.remove(&dir);
            }
        }
    }

    /// All names of a directory, which the kernel is about to forget.
    pub fn take(&self, dir: Ino) -> Vec<Box<[u8]>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let young = all.young.remove(&dir).unwrap_or_default();
        all.count -= young.len();
        let mut names: Vec<_> = young.into_iter().chain(all.old.remove(&dir).unwrap_or_default()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(absent: &Absent, dir: Ino) -> Vec<String> {
        absent.take(dir).iter().map(|name| String::from_utf8_lossy(name).into()).collect()
    }

    #[test]
    fn a_name_is_there_until_its_directory_is_taken_or_the_name_comes() {
        let absent = Absent::default();
        for (dir, name) in [(1, "b"), (1, "a"), (2, "a"), (1, "a"), (1, "c")] {
            assert!(absent.add(dir, name.as_bytes()));
        }
        absent.remove(1, b"c");
        absent.remove(1, b"no such name");
        assert_eq!(taken(&absent, 1), ["a", "b"]);
        assert!(absent.take(1).is_empty());
        assert_eq!(taken(&absent, 2), ["a"]);
        assert_eq!(absent.0.lock().unwrap().count, 0);
    }

    #[test]
    fn the_kernel_forgets_a_name_before_we_do_and_there_is_room_again_for_others() {
        let (absent, start) = (Absent::default(), Instant::now());
        assert!((0..MOST).all(|n| absent.add_at(1, &n.to_ne_bytes(), start)));
        assert!(!absent.add_at(1, b"one more", start));
        let valid = Duration::from_secs(VALID);
        assert!(!absent.add_at(1, b"one more", start + valid));
        assert!(absent.add_at(2, b"one more", start + GENERATION));
        assert_eq!(absent.take(1).len(), MOST, "those that came last may be remembered still");
        assert!(absent.add_at(3, b"x", start + GENERATION * 2));
        assert_eq!(taken(&absent, 2), ["one more"]);
        assert!(absent.add_at(4, b"x", start + GENERATION * 9));
        assert!(absent.take(3).is_empty(), "long ago");
    }
}
