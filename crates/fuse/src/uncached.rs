//! Files that are written past the page cache: those that a program creates and opens for writing only.
//!
//! Before the first write through its page cache the kernel asks for `security.capability`, and it never puts a page
//! that is not full to use; a write that comes here directly saves both. It drops the pages of the range first, but not
//! a page that a reader fetches between that and the write. So such a write is done only while no page can be there:
//! none was read since the file was made, or since its pages were dropped. Else they are dropped first, by a thread that
//! serves nobody, for the kernel may wait for a READ that our caller's queue has yet to serve.
//!
//! What is known of a file stands in a table of fixed size. Who finds another file in its slot knows nothing and drops
//! the pages too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use fs::Ino;

/// The handle by which such a file is written.
pub const HANDLE: u64 = 1;

/// Files of which something is known.
const SLOTS: usize = 1024;
/// How often pages are dropped for one write while readers keep fetching them.
const ROUNDS: usize = 32;

/// What the page cache may have of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Pages {
    None,
    Some,
    /// They are being dropped, and none was read since that began.
    Dropping,
}

#[derive(Default)]
struct Slot {
    /// An inode, and what the page cache may have of it; changed under `guard` only.
    known: AtomicU64,
    /// Held while a write is done because there are no pages.
    guard: Mutex<()>,
}

/// What is known of the pages of files written past the page cache.
pub struct Uncached {
    slots: Box<[Slot]>,
}

impl Default for Uncached {
    fn default() -> Uncached {
        Uncached { slots: (0..SLOTS).map(|_| Slot::default()).collect() }
    }
}

impl Uncached {
    /// A file was made: it has no pages.
    pub fn note_made(&self, ino: Ino) {
        let slot = self.slot(ino);
        let _guard = slot.lock();
        slot.set(ino, Pages::None);
    }

    /// A page of it is about to be read.
    pub fn note_read(&self, ino: Ino) {
        let slot = self.slot(ino);
        // Of a file that is not in the table nothing is believed, and no more of one with pages: a write to either
        // drops them and so waits for the one that is now being read.
        if slot.is(ino, Pages::None) || slot.is(ino, Pages::Dropping) {
            let _guard = slot.lock();
            if slot.is(ino, Pages::None) || slot.is(ino, Pages::Dropping) {
                slot.set(ino, Pages::Some);
            }
        }
    }

    /// Writes, if there are no pages.
    pub fn write<R>(&self, ino: Ino, write: impl FnOnce() -> R) -> Option<R> {
        let slot = self.slot(ino);
        let _guard = slot.lock();
        slot.is(ino, Pages::None).then(write)
    }

    /// Drops the pages and writes. Not for threads that serve requests.
    pub fn drop_and_write<R>(&self, ino: Ino, drop_pages: impl Fn(), write: impl FnOnce() -> R) -> R {
        let slot = self.slot(ino);
        for _ in 0..ROUNDS {
            slot.begin_dropping(ino);
            drop_pages();
            let _guard = slot.lock();
            if slot.is(ino, Pages::Dropping) {
                slot.set(ino, Pages::None);
                return write();
            }
        }
        // Readers are faster: theirs are dropped once more afterwards.
        let written = write();
        drop_pages();
        written
    }

    fn slot(&self, ino: Ino) -> &Slot {
        &self.slots[ino as usize % SLOTS]
    }
}

impl Slot {
    fn begin_dropping(&self, ino: Ino) {
        let _guard = self.lock();
        self.set(ino, Pages::Dropping);
    }

    fn is(&self, ino: Ino, pages: Pages) -> bool {
        self.known.load(Ordering::SeqCst) == word(ino, pages)
    }

    fn set(&self, ino: Ino, pages: Pages) {
        self.known.store(word(ino, pages), Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.guard.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Inode numbers are indices and far below 2^62.
fn word(ino: Ino, pages: Pages) -> u64 {
    ino << 2 | pages as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_file_that_nobody_read_is_written_at_once() {
        let known = Uncached::default();
        assert_eq!(known.write(7, || ()), None, "of an unknown file there may be pages");
        known.note_made(7);
        assert_eq!(known.write(7, || 1), Some(1));
        assert_eq!(known.write(7, || 2), Some(2));
        known.note_read(7);
        assert_eq!(known.write(7, || 3), None, "a page was read");
    }

    #[test]
    fn pages_are_dropped_before_the_write_and_then_known_to_be_gone() {
        let known = Uncached::default();
        let order = Cell::new("");
        assert_eq!(known.drop_and_write(7, || order.set("dropped"), || order.get()), "dropped");
        assert_eq!(known.write(7, || 1), Some(1));
    }

    #[test]
    fn a_page_read_while_pages_are_dropped_is_dropped_too() {
        let known = Uncached::default();
        let times = Cell::new(0);
        let drop_pages = || {
            times.set(times.get() + 1);
            if times.get() < 3 {
                known.note_read(7);
            }
        };
        assert_eq!(known.drop_and_write(7, drop_pages, || times.get()), 3);
        // And if it never ends, they are dropped after the write as well.
        let times = Cell::new(0);
        let drop_pages = || {
            times.set(times.get() + 1);
            known.note_read(7);
        };
        assert_eq!(known.drop_and_write(7, drop_pages, || times.get()), ROUNDS);
        assert_eq!(times.get(), ROUNDS + 1);
        assert_eq!(known.write(7, || ()), None);
    }

    #[test]
    fn of_two_files_in_one_slot_the_last_is_known() {
        let known = Uncached::default();
        let other = 7 + SLOTS as u64;
        known.note_made(7);
        known.note_made(other);
        assert_eq!(known.write(7, || ()), None);
        known.note_read(7);
        assert_eq!(known.write(other, || 1), Some(1), "the other was not read");
    }
}
