//! Memory that a device reads from or writes to.
//!
//! A transfer may take long, may outlive the patience of its client, and writes to memory at any time. So a request
//! *owns* what it needs: parts of memory, each with a reference that keeps it mapped. Memory that other processes write
//! comes as a slice of atomics, a safe type for just that: `Arc<impl AsRef<[AtomicU8]>>`. So clients of devices need no
//! `unsafe`, and cannot free memory too early.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use smallvec::SmallVec;

/// The alignment of [`Aligned`] memory, which suits every disk.
pub const ALIGNED: usize = 4096;

/// Memory of this process, aligned to [`ALIGNED`].
///
/// A device shares it by an `Arc`; the owner of the last reference can read it as a slice.
pub struct Aligned {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory; shared access is atomic only (invariant 2).
unsafe impl Send for Aligned {}
// SAFETY: as above.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// `len` bytes, all zero.
    pub fn zeroed(len: usize) -> Arc<Aligned> {
        let layout = Aligned::layout(len);
        // SAFETY: the layout's size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at) else { handle_alloc_error(layout) };
        Arc::new(Aligned { at, len })
    }

    /// A copy of these bytes.
    pub fn of(bytes: &[u8]) -> Arc<Aligned> {
        let mut memory = Aligned::zeroed(bytes.len());
        if let Some(memory) = Arc::get_mut(&mut memory) {
            memory.bytes_mut().copy_from_slice(bytes);
        }
        memory
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), ALIGNED).expect("no allocation is so large")
    }

    /// Its bytes: `&mut` means that nothing else uses them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this length, initialised, and ours alone: transfers hold an `Arc` (invariant 2).
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsRef<[AtomicU8]> for Aligned {
    fn as_ref(&self) -> &[AtomicU8] {
        // SAFETY: allocated with this length; an `AtomicU8` is a byte; `&mut` to it excludes this borrow.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout; the last owner drops it, hence no transfer has it.
        unsafe { dealloc(self.at.as_ptr(), Aligned::layout(self.len)) };
    }
}

/// A piece of memory (invariant 1).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Part(pub(crate) libc::iovec);

// SAFETY: it is an address; invariant 2 bounds the accesses through it.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Part {
    pub(crate) fn at(&self) -> usize {
        self.0.iov_base as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }

    fn cut(&self, range: Range<usize>) -> Part {
        assert!(range.start <= range.end && range.end <= self.len());
        Part(libc::iovec { iov_base: self.0.iov_base.wrapping_byte_add(range.start), iov_len: range.end - range.start })
    }
}

type Owner = Arc<dyn Any + Send + Sync>;

/// The memory of a transfer: parts that are filled, or read, one after the other.
#[derive(Clone, Default)]
pub struct Buffers {
    parts: SmallVec<[Part; 2]>,
    /// References that keep the parts mapped.
    owners: SmallVec<[Owner; 1]>,
    len: u64,
}

impl Buffers {
    pub fn new() -> Buffers {
        Buffers::default()
    }

    /// All of one piece of memory.
    pub fn whole<M: AsRef<[AtomicU8]> + Send + Sync + 'static>(memory: &Arc<M>) -> Buffers {
        let len = (**memory).as_ref().len();
        Buffers::part(memory, 0..len)
    }

    /// A part of one piece of memory.
    pub fn part<M: AsRef<[AtomicU8]> + Send + Sync + 'static>(memory: &Arc<M>, range: Range<usize>) -> Buffers {
        let mut buffers = Buffers::new();
        buffers.push(memory, range);
        buffers
    }

    /// Adds a part behind the others.
    ///
    /// # Panics
    /// If `range` is not within the memory.
    pub fn push<M: AsRef<[AtomicU8]> + Send + Sync + 'static>(&mut self, memory: &Arc<M>, range: Range<usize>) {
        // This pointer comes from a borrow of the memory that the `Arc` keeps alive and in place: invariant 1 holds as
        // long as the clone does. Stores through it are allowed, as the memory consists of atomics.
        let bytes = &(**memory).as_ref()[range];
        self.append(Part(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }));
        let is_last = |owner: &Owner| std::ptr::addr_eq(Arc::as_ptr(owner), Arc::as_ptr(memory));
        if !self.owners.last().is_some_and(is_last) {
            self.owners.push(memory.clone());
        }
    }

    /// Adds the parts of `other`.
    pub fn join(&mut self, other: Buffers) {
        other.parts.into_iter().for_each(|part| self.append(part));
        let last = self.owners.last().map(Arc::as_ptr);
        let is_last = |owner: &Owner| last.is_some_and(|last| std::ptr::addr_eq(last, Arc::as_ptr(owner)));
        self.owners.extend(other.owners.into_iter().skip_while(is_last));
    }

    fn append(&mut self, part: Part) {
        self.len += part.len() as u64;
        match self.parts.last_mut() {
            // Adjacent in memory: one part.
            Some(last) if last.at() + last.len() == part.at() => last.0.iov_len += part.len(),
            _ if part.len() == 0 => {}
            _ => self.parts.push(part),
        }
    }

    /// A stretch of it, which shares the owners.
    ///
    /// # Panics
    /// If `range` is not within it.
    pub fn slice(&self, range: Range<u64>) -> Buffers {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        let mut cut = Buffers { owners: self.owners.clone(), ..Buffers::default() };
        let mut from = 0;
        for part in &self.parts {
            let end = from + part.len() as u64;
            let (low, high) = (range.start.max(from), range.end.min(end));
            if low < high {
                cut.append(part.cut((low - from) as usize..(high - from) as usize));
            }
            from = end;
        }
        cut
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address and the length of each part.
    pub fn layout(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.parts.iter().map(|part| (part.at(), part.len()))
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Copies all of it out, torn if it changes meanwhile.
    ///
    /// # Panics
    /// If `to` has another length.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert_eq!(to.len() as u64, self.len);
        let mut rest = to;
        for part in &self.parts {
            let (now, later) = rest.split_at_mut(part.len());
            load(part, now);
            rest = later;
        }
    }

    /// Copies all of it out.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.copy_to(&mut bytes);
        bytes
    }

    /// Copies it out in pieces of `len` bytes, the last one perhaps shorter, and shows each to `see`.
    pub fn pieces(&self, len: usize, mut see: impl FnMut(&[u8])) {
        let (mut piece, mut filled) = (vec![0; len], 0);
        for part in &self.parts {
            let mut rest = part.cut(0..part.len());
            while rest.len() > 0 {
                let now = rest.len().min(len - filled);
                load(&rest.cut(0..now), &mut piece[filled..filled + now]);
                (rest, filled) = (rest.cut(now..rest.len()), filled + now);
                if filled == len {
                    see(&piece);
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            see(&piece[..filled]);
        }
    }

    /// Fills all of it.
    ///
    /// # Panics
    /// If `from` has another length.
    pub fn copy_from(&self, from: &[u8]) {
        assert_eq!(from.len() as u64, self.len);
        let mut rest = from;
        for part in &self.parts {
            let (now, later) = rest.split_at(part.len());
            store(part, now);
            rest = later;
        }
    }
}

/// Its aligned whole words, and the rest; a transfer is nearly always aligned.
fn words(part: &Part) -> (&[AtomicU64], &[AtomicU8]) {
    let words = if part.at() % 8 == 0 { part.len() / 8 } else { 0 };
    // SAFETY: mapped (invariant 1) for the life of the borrow, since whoever has the part has its owner; aligned as
    // checked; any bytes are valid, and all access is atomic (invariant 2).
    unsafe {
        let at: *const u8 = part.0.iov_base.cast();
        let rest = std::slice::from_raw_parts(at.add(words * 8).cast(), part.len() - words * 8);
        (std::slice::from_raw_parts(if words == 0 { NonNull::dangling().as_ptr() } else { at.cast() }, words), rest)
    }
}

/// The bytes from which `rep movsb` is faster than a loop over words.
#[cfg(target_arch = "x86_64")]
const MANY: usize = 256;

/// Copies by one instruction with an unspecified order and width of loads and stores. To the compiler it is no access
/// to shared memory, and so no race; to other threads it is some number of atomic accesses.
///
/// # Safety
/// `len` bytes can be loaded at `from` and stored at `to`, and the two do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

fn load(part: &Part, to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if to.len() >= MANY && to.len() == part.len() {
        // SAFETY: `part.len()` bytes are mapped (invariant 1), and `to` has as many; the processor stores to `to` alone.
        return unsafe { copy_bytes(part.0.iov_base.cast(), to.as_mut_ptr(), to.len()) };
    }
    let (words, rest) = words(part);
    let (to_words, to_rest) = to.split_at_mut(words.len() * 8);
    for (word, to) in words.iter().zip(to_words.chunks_exact_mut(8)) {
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    for (byte, to) in rest.iter().zip(to_rest) {
        *to = byte.load(Ordering::Relaxed);
    }
}

fn store(part: &Part, from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if from.len() >= MANY && from.len() == part.len() {
        // SAFETY: as in `load`; the memory may be stored to (invariant 2).
        return unsafe { copy_bytes(from.as_ptr(), part.0.iov_base.cast(), from.len()) };
    }
    let (words, rest) = words(part);
    let (from_words, from_rest) = from.split_at(words.len() * 8);
    for (word, from) in words.iter().zip(from_words.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(std::array::from_fn(|n| from[n])), Ordering::Relaxed);
    }
    for (byte, from) in rest.iter().zip(from_rest) {
        byte.store(*from, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} parts", self.len, self.parts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(len: usize) -> Arc<Aligned> {
        Aligned::of(&(0..len).map(|n| n as u8).collect::<Vec<_>>())
    }

    #[test]
    fn it_begins_where_it_should_and_is_one_s_own_again() {
        for len in [0, 1, 512, 5000, 1 << 20] {
            let mut memory = Aligned::zeroed(len);
            assert_eq!((memory.len(), memory.at.as_ptr() as usize % ALIGNED), (len, 0));
            let buffers = Buffers::whole(&memory);
            assert!(Arc::get_mut(&mut memory).is_none(), "a transfer has a share");
            buffers.copy_from(&vec![7; len]);
            drop(buffers);
            let bytes = Arc::get_mut(&mut memory).expect("ours alone").bytes_mut();
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn parts_that_follow_one_another_are_one() {
        let memory = counted(4096);
        let mut buffers = Buffers::part(&memory, 0..512);
        buffers.push(&memory, 512..1024);
        buffers.push(&memory, 2048..2560);
        buffers.push(&memory, 3000..3000);
        assert_eq!((buffers.len(), buffers.parts().len(), buffers.owners.len()), (1536, 2, 1));
    }

    #[test]
    fn a_stretch_of_many_parts_is_what_lies_there() {
        let (first, second) = (counted(100), counted(300));
        let mut buffers = Buffers::part(&first, 10..90);
        buffers.push(&second, 1..200);
        buffers.push(&first, 0..7);
        let all = buffers.to_vec();
        assert_eq!(all.len(), 80 + 199 + 7);
        for start in [0, 1, 79, 80, 81, 279, 286] {
            for end in [start, start + 1, 80, 200, 286] {
                if start <= end && end <= 286 {
                    let cut = buffers.slice(start..end);
                    assert_eq!(cut.to_vec(), all[start as usize..end as usize], "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn pieces_are_as_long_as_asked_whatever_the_parts() {
        let (first, second) = (counted(100), counted(300));
        let mut buffers = Buffers::part(&first, 10..90);
        buffers.push(&second, 1..200);
        for len in [1, 7, 80, 279, 300] {
            let mut pieces = Vec::new();
            buffers.pieces(len, |piece| pieces.push(piece.to_vec()));
            assert!(pieces.iter().rev().skip(1).all(|piece| piece.len() == len), "{len}");
            assert_eq!(pieces.concat(), buffers.to_vec(), "{len}");
        }
    }

    #[test]
    fn a_stretch_keeps_the_memory_alive() {
        let memory = counted(8192);
        let cut = Buffers::whole(&memory).slice(4096..4100);
        drop(memory);
        assert_eq!(cut.to_vec(), [0, 1, 2, 3]);
    }
}
