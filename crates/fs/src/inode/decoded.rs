//! Packed inodes that this process has decoded last: another look at one costs as much as at a plain one.
//!
//! Of the inodes with the same place here, one is remembered if it was decoded twice in a row. So a walk over a large tree replaces
//! none that is looked at again and again, and costs no stores.
//!
//! An inode is remembered as it was when its lock was free and in a certain state (its sequence counter: each
//! taking and each release is one more). Why no inode that is served is stale or torn:
//! 1. A change of an inode, a note of its reading, its packing and unpacking all hold its lock, in any process (as
//!    every reader without locks relies on, and [`recent`](crate::recent)). So an inode that was decoded while the lock was in a
//!    state is the present one as long as the lock is in that state.
//! 2. It is put here only if the lock was still in the state after all had been read: so it is not torn. It is served only
//!    to a reader that finds the lock in that state; one without the lock looks at it once more afterwards, as after any other read.
//!    The holder of the lock, which may be about to change the inode, is served nothing.
//! 3. Repairs lead a block elsewhere, or nowhere, without locks, while all operations are held up. So the offset of the packed form
//!    is compared too, which was just read from the table.
//! 4. A counter of 31 bits comes around. For the same state to be another one, the lock would have to be taken exactly 2^31
//!    times, or a multiple, between two looks: then the packed form would have to lie where it lay, as long as it was,
//!    with the same check code.
//! 5. Threads that store to and read the same entry: its version is odd while one stores, and a reader that finds it
//!    changed takes nothing.

use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

use pram::Sequence;
use zerocopy::transmute;

use crate::layout::{RawInode, INODE, MAX_INODES};
use crate::Ino;

/// Inodes that are remembered, in half a megabyte at most: neighbours never have the same place.
const ENTRIES: usize = 4096;
const WORDS: usize = INODE as usize / 8;
const _: () = assert!(MAX_INODES <= 1 << 32 && size_of::<Entry>() == 128);

/// A packed form of a block: where it lies, and its check code and length.
#[derive(Clone, Copy)]
pub struct Form {
    pub off: u64,
    pub check: u64,
}

#[derive(Default)]
#[repr(align(128))]
struct Entry {
    /// Odd while a thread stores.
    version: AtomicU64,
    /// Number of the inode and state of its lock; 0: nothing (there is no inode 0).
    key: AtomicU64,
    off: AtomicU64,
    check: AtomicU64,
    inode: [AtomicU64; WORDS],
}

/// Remembered inodes. Memory is taken for some neighbours with the first packed one of them: a process that looks at few inodes takes
/// little.
pub struct Decoded([OnceLock<Box<Group>>; GROUPS]);

/// Neighbours, and as many groups as it takes.
const NEIGHBOURS: usize = 32;
const GROUPS: usize = ENTRIES / NEIGHBOURS;

#[derive(Default)]
struct Group {
    entries: [Entry; NEIGHBOURS],
    /// For each entry, the number of the inode that was decoded last.
    last: [AtomicU32; NEIGHBOURS],
}

impl Default for Decoded {
    fn default() -> Decoded {
        Decoded(std::array::from_fn(|_| OnceLock::new()))
    }
}

/// The group of an inode, and its place there.
#[inline(always)]
fn place(ino: Ino) -> (usize, usize) {
    (ino as usize % ENTRIES / NEIGHBOURS, ino as usize % NEIGHBOURS)
}

#[inline(always)]
fn key(ino: Ino, seen: Sequence) -> u64 {
    ino << 32 | u64::from(seen.count())
}

impl Decoded {
    /// The inode, if it is known as it is in this state of its lock and in this form of its block.
    #[inline(always)]
    pub fn get(&self, ino: Ino, seen: Sequence, form: Form) -> Option<RawInode> {
        let (group, n) = place(ino);
        let entry = &self.0[group].get()?.entries[n];
        let version = entry.version.load(Ordering::Acquire);
        let is_known = entry.key.load(Ordering::Relaxed) == key(ino, seen)
            && entry.off.load(Ordering::Relaxed) == form.off
            && entry.check.load(Ordering::Relaxed) == form.check;
        if !is_known || version % 2 == 1 {
            return None;
        }
        let words = entry.inode.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (entry.version.load(Ordering::Relaxed) == version).then(|| transmute!(words))
    }

    /// Was this inode the last of its place that was decoded? It is, from now on.
    #[inline(always)]
    pub fn wants(&self, ino: Ino) -> bool {
        let (group, n) = place(ino);
        let last = &self.0[group].get_or_init(Box::default).last[n];
        let is_last = last.load(Ordering::Relaxed) == ino as u32;
        if !is_last {
            last.store(ino as u32, Ordering::Relaxed);
        }
        is_last
    }

    /// Remembers an inode that was decoded in this form, all of it while its lock was in this state.
    #[cold]
    #[inline(never)]
    pub fn put(&self, ino: Ino, seen: Sequence, form: Form, raw: &RawInode) {
        let (group, n) = place(ino);
        let Some(Group { entries, .. }) = self.0[group].get().map(|group| &**group) else { return };
        let entry = &entries[n];
        let version = entry.version.load(Ordering::Relaxed);
        let odd = version | 1;
        if odd == version || entry.version.compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            // Another thread stores another one.
            return;
        }
        // A reader of any of this sees the odd version afterwards.
        fence(Ordering::Release);
        let words: [u64; WORDS] = transmute!(*raw);
        entry.key.store(key(ino, seen), Ordering::Relaxed);
        entry.off.store(form.off, Ordering::Relaxed);
        entry.check.store(form.check, Ordering::Relaxed);
        entry.inode.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        entry.version.store(version + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use pram::Session;
    use zerocopy::FromZeros;

    use super::*;

    const FORM: Form = Form { off: 64, check: 5 };

    fn inode(size: u64) -> RawInode {
        RawInode { size, extra: size, ..RawInode::new_zeroed() }
    }

    fn take_lock(session: &Session, ino: Ino) {
        session.begin().unwrap().lock(&[ino]).unwrap();
    }

    #[test]
    fn only_what_is_looked_at_again_is_remembered() {
        let decoded = Decoded::default();
        let other = 7 + ENTRIES as Ino;
        let wants: Vec<bool> = [7, other, 7, 7, 8, 7].into_iter().map(|ino| decoded.wants(ino)).collect();
        assert_eq!(wants, [false, false, false, true, false, true]);
    }

    #[test]
    fn what_has_changed_is_not_served() {
        let session = pram::Session::in_memory(4 << 20).unwrap();
        let decoded = Decoded::default();
        let seen = session.seen(7).unwrap();
        assert!(decoded.get(7, seen, FORM).is_none());
        assert!(!decoded.wants(7));
        decoded.put(7, seen, FORM, &inode(3));
        assert_eq!(decoded.get(7, seen, FORM), Some(inode(3)));
        let others = [Form { off: 80, ..FORM }, Form { check: 6, ..FORM }];
        assert!(others.into_iter().all(|form| decoded.get(7, seen, form).is_none()));
        assert!(decoded.get(7 + ENTRIES as Ino, seen, FORM).is_none());
        take_lock(&session, 7);
        assert!(decoded.get(7, session.seen(7).unwrap(), FORM).is_none());
        let mut op = session.begin().unwrap();
        op.lock(&[7]).unwrap();
        assert_eq!(session.seen(7), None, "who has the lock is served nothing");
    }

    #[test]
    fn nobody_sees_half_of_one_that_is_replaced() {
        let session = pram::Session::in_memory(4 << 20).unwrap();
        let (decoded, stop) = (Decoded::default(), AtomicBool::new(false));
        let seen = session.seen(7).unwrap();
        decoded.wants(7);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (decoded, stop) = (&decoded, &stop);
                scope.spawn(move || {
                    let mut size = thread;
                    while !stop.load(Ordering::Relaxed) {
                        decoded.put(7, seen, FORM, &inode(size));
                        size += 2;
                        std::thread::yield_now();
                    }
                });
            }
            let found = std::iter::repeat_with(|| decoded.get(7, seen, FORM)).flatten().take(20_000);
            let halves = found.filter(|it| it.size != it.extra).count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(halves, 0);
        });
    }
}
