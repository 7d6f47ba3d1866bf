//! The table of descriptors that are served here: number → open file.
//!
//! Each is a *placeholder* for the kernel: a descriptor that reserves the number and is of no use to a program. A number is in the
//! table as long as its placeholder is open; both change under the lock of the number.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::open_file::OpenFile;

/// Numbers beyond are the kernel's.
pub const MOST: usize = CHUNK * CHUNKS;
const CHUNK: usize = 512;
const CHUNKS: usize = 2048;
const BITS: usize = u64::BITS as usize;

/// The open file of a number, locked.
pub struct Slot<'a> {
    file: MutexGuard<'a, Option<Arc<OpenFile>>>,
    word: &'a AtomicU64,
    bit: u64,
}

struct Chunk {
    /// A bit for each number that has a file, readable without a lock.
    used: [AtomicU64; CHUNK / BITS],
    files: [Mutex<Option<Arc<OpenFile>>>; CHUNK],
}

pub struct Descriptors {
    chunks: Box<[OnceLock<Box<Chunk>>]>,
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors { chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect() }
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
        Some((self.chunks.get(fd / CHUNK)?.get()?, fd % CHUNK))
    }

    #[inline(always)]
    pub fn has(&self, fd: RawFd) -> bool {
        self.chunk(fd).is_some_and(|(chunk, n)| chunk.used[n / BITS].load(Ordering::Acquire) >> (n % BITS) & 1 != 0)
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
        let chunk = self.chunks.get(fd / CHUNK)?.get_or_init(new_chunk);
        Some(slot(chunk, fd % CHUNK))
    }

    /// All numbers from `first` to `last` that have a file.
    pub fn numbers(&self, first: usize, last: usize) -> Vec<RawFd> {
        let mut found = Vec::new();
        for (c, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk.get() else { continue };
            for (w, word) in chunk.used.iter().enumerate() {
                let mut word = word.load(Ordering::Acquire);
                while word != 0 {
                    found.push((c * CHUNK + w * BITS + word.trailing_zeros() as usize) as RawFd);
                    word &= word - 1;
                }
            }
        }
        found.retain(|fd| (first..=last).contains(&(*fd as usize)));
        found
    }
}

#[cold]
fn new_chunk() -> Box<Chunk> {
    Box::new(Chunk {
        used: std::array::from_fn(|_| AtomicU64::new(0)),
        files: std::array::from_fn(|_| Mutex::new(None)),
    })
}

#[inline(always)]
fn slot(chunk: &Chunk, n: usize) -> Slot<'_> {
    let file = chunk.files[n].lock().unwrap_or_else(PoisonError::into_inner);
    Slot { file, word: &chunk.used[n / BITS], bit: 1 << (n % BITS) }
}
