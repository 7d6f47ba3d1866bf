//! Files that are written past the page cache: those that a program creates and opens for writing only.
//!
//! Before the first write through its page cache the kernel asks for `security.capability`, and it never puts a page
//! that is not full to use; a write that comes here directly saves both. The kernel drops the pages of its range before
//! it sends such a write and again before the write returns. So nobody reads old content afterwards. But who has mapped
//! the file may store to a page that was fetched in between, and then the page is written back when it is dropped: with
//! what the range held before. So it is known here what was written past the cache and not read since. The page cache
//! has nothing of that, or something older, and what it writes back there is left out.
//!
//! A write needs this until it returns, which nobody tells us: what is known of a file is given up only for that of many
//! others that were written later.

use std::ops::Range;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use fs::Ino;
use rustix::io::Errno;

use crate::kernel;

/// The handle by which such a file is written.
pub const HANDLE: u64 = 1;

/// Files are known in so many slots by their numbers, and most in one slot.
const SLOTS: usize = 256;
const FILES: usize = 64;

/// The first Linux that drops pages also after the write: 6.18.4, and all from 6.19 on.
const SINCE: kernel::Version = (6, 18, 4);

/// What is known of files written past the page cache.
pub struct Uncached {
    slots: Box<[RwLock<Slot>]>,
}

/// Some files; the one that was written last is the last.
#[derive(Default)]
struct Slot(Vec<Known>);

struct Known {
    ino: Ino,
    /// Written past the cache, and neither read nor written through it since; apart from each other.
    newer: Vec<Range<u64>>,
}

impl Default for Uncached {
    fn default() -> Uncached {
        Uncached { slots: (0..SLOTS).map(|_| RwLock::default()).collect() }
    }
}

impl Uncached {
    /// Does the kernel drop pages when it must?
    pub fn works() -> bool {
        kernel::version().is_some_and(|version| version >= SINCE)
    }

    /// Reads into the page cache.
    pub fn read<R>(&self, ino: Ino, range: Range<u64>, read: impl FnOnce() -> R) -> R {
        // Held meanwhile: what is read is older than a write that waits, and newer than the last.
        let slot = self.slot(ino);
        if slot.newer(ino).is_empty() {
            return read();
        }
        drop(slot);
        let mut slot = self.slot_mut(ino);
        slot.leave_out(ino, &range);
        read()
    }

    /// Writes past the page cache; `write` tells the offset it wrote to.
    pub fn write(&self, ino: Ino, len: u64, write: impl FnOnce() -> Result<u64, Errno>) -> Result<(), Errno> {
        let mut slot = self.slot_mut(ino);
        let at = write()?;
        slot.take_in(ino, at..at.saturating_add(len));
        Ok(())
    }

    /// Somebody writes through the page cache: all writes past it have returned, and their pages are dropped.
    pub fn note_written(&self, ino: Ino) {
        let known = !self.slot(ino).newer(ino).is_empty();
        if known {
            self.forget(ino);
        }
    }

    /// The inode number may be that of an older file.
    pub fn forget(&self, ino: Ino) {
        self.slot_mut(ino).0.retain(|known| known.ino != ino);
    }

    /// Writes back from the page cache: the parts of `range` where it has the newest content.
    pub fn write_back(
        &self,
        ino: Ino,
        range: Range<u64>,
        mut write: impl FnMut(Range<u64>) -> Result<u64, Errno>,
    ) -> Result<(), Errno> {
        let slot = self.slot(ino);
        let mut parts = vec![range];
        slot.newer(ino).iter().for_each(|newer| subtract(&mut parts, newer));
        // What cannot be written is no reason to lose the rest.
        let mut done = Ok(());
        for part in parts {
            done = done.and(write(part).map(drop));
        }
        done
    }

    fn slot(&self, ino: Ino) -> RwLockReadGuard<'_, Slot> {
        self.slots[ino as usize % SLOTS].read().unwrap_or_else(|e| e.into_inner())
    }

    fn slot_mut(&self, ino: Ino) -> RwLockWriteGuard<'_, Slot> {
        self.slots[ino as usize % SLOTS].write().unwrap_or_else(|e| e.into_inner())
    }
}

impl Slot {
    /// What of a file was written past the page cache and not read since.
    fn newer(&self, ino: Ino) -> &[Range<u64>] {
        self.0.iter().find(|known| known.ino == ino).map_or(&[], |known| &known.newer)
    }

    fn leave_out(&mut self, ino: Ino, part: &Range<u64>) {
        if let Some(known) = self.0.iter_mut().find(|known| known.ino == ino) {
            subtract(&mut known.newer, part);
        }
    }

    fn take_in(&mut self, ino: Ino, part: Range<u64>) {
        let mut known = match self.0.iter().position(|known| known.ino == ino) {
            Some(place) => self.0.remove(place),
            None => Known { ino, newer: Vec::new() },
        };
        known.take_in(part);
        if self.0.len() >= FILES {
            self.0.remove(0);
        }
        self.0.push(known);
    }
}

impl Known {
    fn take_in(&mut self, part: Range<u64>) {
        // Mostly the end grows.
        if let [only] = &mut self.newer[..] {
            if only.end == part.start {
                only.end = part.end;
                return;
            }
        }
        subtract(&mut self.newer, &part);
        self.newer.push(part);
    }
}

/// Takes `part` out of all ranges.
fn subtract(ranges: &mut Vec<Range<u64>>, part: &Range<u64>) {
    let rest = ranges.iter().flat_map(|r| [r.start..r.end.min(part.start), r.start.max(part.end)..r.end]);
    *ranges = rest.filter(|r| !r.is_empty()).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const INO: Ino = 7;

    /// A file, what is known of it, and how it is used. Pages are 4 bytes here.
    #[derive(Default)]
    struct Lab {
        known: Uncached,
        content: RefCell<[u8; 16]>,
    }

    impl Lab {
        fn put(&self, at: u64, data: &[u8]) -> Result<u64, Errno> {
            self.content.borrow_mut()[at as usize..][..data.len()].copy_from_slice(data);
            Ok(at)
        }

        fn write(&self, at: u64, data: &[u8]) {
            self.known.write(INO, data.len() as u64, || self.put(at, data)).unwrap();
        }

        fn read(&self, page: u64) -> [u8; 4] {
            let range = page * 4..page * 4 + 4;
            self.known.read(INO, range, || self.content.borrow()[page as usize * 4..][..4].try_into().unwrap())
        }

        fn write_back(&self, page: u64, data: [u8; 4]) {
            let start = page * 4;
            let part = |part: Range<u64>| {
                self.put(part.start, &data[(part.start - start) as usize..(part.end - start) as usize])
            };
            self.known.write_back(INO, start..start + 4, part).unwrap();
        }

        fn shows(&self, content: &[u8]) -> bool {
            self.content.borrow().starts_with(content)
        }
    }

    #[test]
    fn an_old_page_that_is_written_back_does_not_undo_a_write() {
        let lab = Lab::default();
        let old = [0, 1].map(|page| lab.read(page));
        lab.write(2, b"ab");
        // The rest of what one call writes.
        lab.write(4, b"cd");
        lab.write_back(0, [b's', old[0][1], old[0][2], old[0][3]]);
        lab.write_back(1, [old[1][0], old[1][1], old[1][2], b't']);
        // It may be stored to again before it is dropped.
        lab.write_back(0, [b'S', old[0][1], old[0][2], old[0][3]]);
        assert!(lab.shows(b"S\0abcd\0t"));
    }

    #[test]
    fn what_cannot_be_written_back_does_not_take_the_rest_along() {
        let lab = Lab::default();
        lab.read(0);
        lab.write(1, b"ab");
        let mut parts = Vec::new();
        let done = lab.known.write_back(INO, 0..4, |part| {
            parts.push(part.start);
            Err(Errno::NOSPC)
        });
        parts.sort_unstable();
        assert_eq!((done, parts), (Err(Errno::NOSPC), vec![0, 3]));
    }

    #[test]
    fn what_is_stored_to_a_new_page_stays() {
        let lab = Lab::default();
        let old = lab.read(1);
        lab.write(2, b"abcd");
        let mut page = lab.read(0);
        page[3] = b'X';
        lab.write_back(0, page);
        assert!(lab.shows(b"\0\0aXcd"), "page 0 was read after the write");
        lab.write_back(1, old);
        assert!(lab.shows(b"\0\0aXcd"), "page 1 was not");
        lab.known.note_written(INO);
        lab.write_back(1, *b"yyyy");
        assert!(lab.shows(b"\0\0aXyyyy"), "it was written through the cache");
    }

    #[test]
    fn parts_stay_apart_however_many() {
        let mut known = Known { ino: INO, newer: Vec::new() };
        for part in [10..20, 30..40, 40..50, 15..35] {
            known.take_in(part);
        }
        known.newer.sort_by_key(|part| part.start);
        assert_eq!(known.newer, [10..15, 15..35, 35..40, 40..50]);
        subtract(&mut known.newer, &(0..45));
        assert_eq!((known.newer.len(), known.newer[0].clone()), (1, 45..50));
        // As many as there may be pages that are read while one call writes.
        (0..2000).for_each(|n| known.take_in(100 + 2 * n..101 + 2 * n));
        assert_eq!(known.newer.len(), 2001);
        let mut grows = Known { ino: INO, newer: Vec::new() };
        (0..1000).for_each(|n| grows.take_in(n..n + 1));
        assert_eq!((grows.newer.len(), grows.newer[0].clone()), (1, 0..1000));
    }

    #[test]
    fn a_file_is_known_until_many_others_were_written() {
        let lab = Lab::default();
        let old = lab.read(0);
        lab.write(0, b"abcd");
        let others = |n: usize| (1..=n as u64).map(|n| INO + n * SLOTS as u64);
        for other in others(FILES - 1) {
            lab.known.write(other, 4, || Ok(0)).unwrap();
        }
        lab.write_back(0, old);
        assert!(lab.shows(b"abcd"), "others have the same slot");
        for other in others(FILES) {
            lab.known.write(other, 4, || Ok(0)).unwrap();
        }
        lab.write_back(0, *b"efgh");
        assert!(lab.shows(b"efgh"), "it was written long ago");
    }

    #[test]
    fn nothing_is_believed_of_another_file() {
        let lab = Lab::default();
        lab.write(0, b"ijkl");
        lab.known.forget(INO);
        lab.write_back(0, *b"mnop");
        assert!(lab.shows(b"mnop"), "the number has another file now");
    }
}
