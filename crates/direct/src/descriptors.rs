//! The table of descriptors that are served here: number → open file.
//!
//! Each is a *placeholder* for the kernel: a descriptor that reserves the number and is of no use to a program. A number is in the
//! table as long as its placeholder is open; both change under the lock of the number.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::open_file::OpenFile;

/// Numbers beyond are the kernel's.
pub const MOST: usize = CHUNK * CHUNKS * GROUPS;
/// So many numbers have a table of their own, and so many tables: a process with few descriptors, as most, takes little memory.
const CHUNK: usize = u64::BITS as usize;
const CHUNKS: usize = 128;
const GROUPS: usize = 128;

/// The open file of a number, locked.
pub struct Slot<'a> {
    file: MutexGuard<'a, Option<Arc<OpenFile>>>,
    word: &'a AtomicU64,
    bit: u64,
}

struct Chunk {
    /// A bit for each number that has a file, readable without a lock.
    used: AtomicU64,
    files: [Mutex<Option<Arc<OpenFile>>>; CHUNK],
}

type Group = [OnceLock<Box<Chunk>>; CHUNKS];

pub struct Descriptors {
    groups: [OnceLock<Box<Group>>; GROUPS],
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors { groups: std::array::from_fn(|_| OnceLock::new()) }
    }
}

impl Slot<'_> {
    pub fn file(&self) -> Option<&Arc<OpenFile>> {
        self.file.as_ref()
    }

    /// Puts a file there; the one that was there is to be dropped without the lock.
    #[must_use]
    pub fn put(&mut self, file: Arc<OpenFile>) -> Option<Arc<OpenFile>> {
        self.word.fetch_or(self.bit, Ordering::Release);
        self.file.replace(file)
    }

    #[must_use]
    pub fn take(&mut self) -> Option<Arc<OpenFile>> {
        self.word.fetch_and(!self.bit, Ordering::Release);
        self.file.take()
    }
}

impl Descriptors {
    #[inline(always)]
    fn chunk(&self, fd: RawFd) -> Option<(&Chunk, usize)> {
        let fd = usize::try_from(fd).ok()?;
        let group = self.groups.get(fd / CHUNK / CHUNKS)?.get()?;
        Some((group[fd / CHUNK % CHUNKS].get()?, fd % CHUNK))
    }

    #[inline(always)]
    pub fn has(&self, fd: RawFd) -> bool {
        self.chunk(fd).is_some_and(|(chunk, n)| chunk.used.load(Ordering::Acquire) >> n & 1 != 0)
    }

    #[inline(always)]
    pub fn get(&self, fd: RawFd) -> Option<Arc<OpenFile>> {
        match self.has(fd) {
            true => self.existing(fd)?.file.clone(),
            false => None,
        }
    }

    /// The slot of a number in whose neighbourhood there is a file, or was.
    #[inline(always)]
    pub fn existing(&self, fd: RawFd) -> Option<Slot<'_>> {
        self.chunk(fd).map(|(chunk, n)| slot(chunk, n))
    }

    /// The slot of any number below [`MOST`].
    #[inline(always)]
    pub fn slot(&self, fd: RawFd) -> Option<Slot<'_>> {
        let fd = usize::try_from(fd).ok()?;
        let group = self.groups.get(fd / CHUNK / CHUNKS)?.get_or_init(new_group);
        let chunk = group[fd / CHUNK % CHUNKS].get_or_init(new_chunk);
        Some(slot(chunk, fd % CHUNK))
    }

    /// The numbers from `first` to `last` that have a file.
    pub fn numbers(&self, first: usize, last: usize) -> impl Iterator<Item = RawFd> + '_ {
        let groups = self.groups.iter().enumerate().filter_map(|(g, group)| Some((g, group.get()?)));
        let chunks = groups.flat_map(|(g, group)| {
            group.iter().enumerate().filter_map(move |(c, chunk)| Some(((g * CHUNKS + c) * CHUNK, chunk.get()?)))
        });
        let numbers = chunks.flat_map(|(start, chunk)| {
            let used = chunk.used.load(Ordering::Acquire);
            (0..CHUNK).filter(move |n| used >> n & 1 != 0).map(move |n| start + n)
        });
        numbers.filter(move |fd| (first..=last).contains(fd)).map(|fd| fd as RawFd)
    }
}

#[cold]
fn new_group() -> Box<Group> {
    Box::new(std::array::from_fn(|_| OnceLock::new()))
}

#[cold]
fn new_chunk() -> Box<Chunk> {
    Box::new(Chunk { used: AtomicU64::new(0), files: std::array::from_fn(|_| Mutex::new(None)) })
}

#[inline(always)]
fn slot(chunk: &Chunk, n: usize) -> Slot<'_> {
    let file = chunk.files[n].lock().unwrap_or_else(PoisonError::into_inner);
    Slot { file, word: &chunk.used, bit: 1 << n }
}
