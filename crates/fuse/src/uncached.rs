//! Files that are written past the page cache: those that a program creates and opens for writing only.
//!
//! Before the first write through its page cache the kernel asks for `security.capability`, and it never puts a page
//! that is not full to use; a write that comes here directly saves both. The kernel drops the pages of its range before
//! it sends such a write and again before the write returns. So nobody reads old content afterwards. But who has mapped
//! the file may store to a page that was fetched in between, and then the page is written back when it is dropped: with
//! what the range held before. So it is known here what was written past the cache and not read since. The page cache
//! has nothing of that, or something older, and what it writes back there is left out.
//!
//! What is known of a file stands in a table of fixed size.

use std::ops::Range;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use fs::Ino;
use rustix::io::Errno;

use crate::kernel;

/// The handle by which such a file is written.
pub const HANDLE: u64 = 1;

/// Files of which something is known, and most parts of one.
const SLOTS: usize = 256;
const PARTS: usize = 64;

/// The first Linux that drops pages also after the write: 6.18.4, and all from 6.19 on.
const SINCE: kernel::Version = (6, 18, 4);

/// What is known of files written past the page cache.
pub struct Uncached {
    slots: Box<[RwLock<Known>]>,
}

#[derive(Default)]
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
        let known = self.slot(ino);
        if !known.is_about(ino) {
            return read();
        }
        drop(known);
        let mut known = self.slot_mut(ino);
        if known.is_about(ino) {
            known.leave_out(&range);
        }
        read()
    }

    /// Writes past the page cache; `write` tells the offset it wrote to.
    pub fn write(&self, ino: Ino, len: u64, write: impl FnOnce() -> Result<u64, Errno>) -> Result<(), Errno> {
        let mut known = self.slot_mut(ino);
        let at = write()?;
        if known.ino != ino {
            *known = Known { ino, newer: Vec::new() };
        }
        known.take_in(at..at.saturating_add(len));
        Ok(())
    }

    /// Somebody writes through the page cache: all writes past it have returned, and their pages are dropped.
    pub fn note_written(&self, ino: Ino) {
        let known = self.slot(ino);
        if known.is_about(ino) {
            drop(known);
            self.forget(ino);
        }
    }

    /// The inode number may be that of an older file.
    pub fn forget(&self, ino: Ino) {
        let mut known = self.slot_mut(ino);
        if known.ino == ino {
            known.newer.clear();
        }
    }

    /// Writes back from the page cache: the parts of `range` where it has the newest content.
    pub fn write_back(
        &self,
        ino: Ino,
        range: Range<u64>,
        mut write: impl FnMut(Range<u64>) -> Result<u64, Errno>,
    ) -> Result<(), Errno> {
        let known = self.slot(ino);
        let mut parts = vec![range];
        if known.ino == ino {
            known.newer.iter().for_each(|newer| subtract(&mut parts, newer));
        }
        parts.into_iter().try_for_each(|part| write(part).map(drop))
    }

    fn slot(&self, ino: Ino) -> RwLockReadGuard<'_, Known> {
        self.slots[ino as usize % SLOTS].read().unwrap_or_else(|e| e.into_inner())
    }

    fn slot_mut(&self, ino: Ino) -> RwLockWriteGuard<'_, Known> {
        self.slots[ino as usize % SLOTS].write().unwrap_or_else(|e| e.into_inner())
    }
}

impl Known {
    fn is_about(&self, ino: Ino) -> bool {
        self.ino == ino && !self.newer.is_empty()
    }

    fn take_in(&mut self, part: Range<u64>) {
        // Mostly the end grows.
        if let [only] = &mut self.newer[..] {
            if only.end == part.start {
                only.end = part.end;
                return;
            }
        }
        self.leave_out(&part);
        if self.newer.len() >= PARTS {
            // Of the rest nothing is known then, as if it had been read.
            self.newer.remove(0);
        }
        self.newer.push(part);
    }

    fn leave_out(&mut self, part: &Range<u64>) {
        subtract(&mut self.newer, part);
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
    fn parts_stay_apart_and_are_not_too_many() {
        let mut known = Known::default();
        for part in [10..20, 30..40, 40..50, 15..35] {
            known.take_in(part);
        }
        known.newer.sort_by_key(|part| part.start);
        assert_eq!(known.newer, [10..15, 15..35, 35..40, 40..50]);
        known.leave_out(&(0..45));
        assert_eq!((known.newer.len(), known.newer[0].clone()), (1, 45..50));
        (0..2 * PARTS as u64).for_each(|n| known.take_in(100 + 2 * n..101 + 2 * n));
        assert_eq!(known.newer.len(), PARTS);
        let mut grows = Known::default();
        (0..1000).for_each(|n| grows.take_in(n..n + 1));
        assert_eq!((grows.newer.len(), grows.newer[0].clone()), (1, 0..1000));
    }

    #[test]
    fn nothing_is_believed_of_another_file() {
        let lab = Lab::default();
        lab.write(0, b"abcd");
        let other = INO + SLOTS as u64;
        lab.known.write(other, 4, || Ok(0)).unwrap();
        lab.write_back(0, *b"efgh");
        assert!(lab.shows(b"efgh"), "what was known is gone");
        lab.write(0, b"ijkl");
        lab.known.forget(INO);
        lab.write_back(0, *b"mnop");
        assert!(lab.shows(b"mnop"), "the number has another file now");
    }
}
