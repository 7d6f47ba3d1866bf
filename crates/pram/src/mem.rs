//! A mapping of shared memory, and every `unsafe` operation of this crate.
//!
//! Invariants that the SAFETY notes cite:
//! 1. `base..base + len` is mapped readable and writable for as long as the `Mapping` or a [`Stretch`] of it lives.
//!    (`len` may go up, within the mapped address space. Beyond `len` there may be no memory, and a load there is a
//!    signal.)
//! 2. Every access is checked against `len` (and its alignment) before it is made.
//! 3. Other threads and processes may change the memory at any time. So no reference to it is ever made
//!    except to atomics; words are loaded and stored as atomics, and bulk copies are raw copies whose
//!    result is either guarded by a lock or thrown away when a sequence counter says it was torn.
//! 4. Any bytes may be found there, so only types for which every bit pattern is valid ([`Pod`]) come out.

#![allow(unsafe_code)]

pub mod byte_lock;
mod checksum;
pub mod descriptor;
pub mod fork;
mod line_flush;
mod pages;
pub mod priority;

pub use checksum::{crc32c, crc32c_append};
pub use line_flush::{store_fence, LineFlush};

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{compiler_fence, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use descriptor::Kept;
use line_flush::stream_16;

/// A type that may lie in persistent RAM: plain bytes, no padding, no references, every bit pattern valid.
pub trait Pod: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static {}
impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static> Pod for T {}

/// A piece of shared (or, for tests, private) memory.
pub struct Mapping {
    base: NonNull<u8>,
    /// Bytes of address space.
    reserved: u64,
    len: AtomicU64,
    /// Accesses of [`SHORT`] bytes that begin before this are inside: most need no other check.
    short_end: AtomicU64,
    /// Whole words that are inside.
    words: AtomicU64,
    growth: Option<Growth>,
    mapped: Arc<Mapped>,
}

/// Address space that is unmapped when the last share goes.
struct Mapped {
    base: NonNull<u8>,
    bytes: u64,
    /// No child has it.
    own: Option<fork::Own>,
}

// SAFETY: it is an address, used only to unmap it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // First: what others map there then is their children's too.
        self.own = None;
        // SAFETY: mapped by us with this length; every borrower has a share.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

/// A stretch of a mapping that stays mapped while it lives, even if the mapping goes: for memory that is handed to a
/// device, which may use it for longer than the mapping exists.
pub struct Stretch {
    at: NonNull<u8>,
    len: usize,
    _mapped: Arc<Mapped>,
}

// SAFETY: as of a `Mapping`.
unsafe impl Send for Stretch {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Stretch {}

impl AsRef<[AtomicU8]> for Stretch {
    fn as_ref(&self) -> &[AtomicU8] {
        // SAFETY: checked when it was made (2), mapped as long as it lives (1), atomics only (3).
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast::<AtomicU8>().cast_const(), self.len) }
    }
}

/// How a mapping follows a memory that other processes enlarge.
struct Growth {
    file: Kept,
    /// The file's memory is taken step by step; else all of it is there, as a device's.
    is_taken: bool,
    /// The length that the memory itself records.
    recorded: fn(&Mapping) -> u64,
}

/// Address space set aside for a file to grow into: so many times its length, between two bounds.
const AHEAD: u64 = 16;
const LEAST_AHEAD: u64 = 256 << 30;
const MOST_AHEAD: u64 = 16 << 40;

/// The length that most accesses do not exceed.
const SHORT: u64 = 256;

// SAFETY: the memory is shared with other processes anyway; invariant 3 covers threads too.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Mapping {}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    No,
    /// For a file whose blocks are the memory itself (DAX): the kernel makes the file system's own record of a block
    /// durable before the first store to it. EOPNOTSUPP for other files.
    Dax,
}

impl Mapping {
    /// Maps the first `len` bytes of a file, shared.
    pub fn file(fd: impl AsFd, len: u64) -> rustix::io::Result<Mapping> {
        Mapping::file_by(fd, len, MapFlags::SHARED | MapFlags::NORESERVE)
    }

    /// The same, but stores stay with this process.
    pub fn file_private(fd: impl AsFd, len: u64) -> rustix::io::Result<Mapping> {
        Mapping::file_by(fd, len, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    /// Maps the first `len` bytes of a file whose memory is yet to be taken, and sets address space aside for it to
    /// grow into. `recorded` says how much of it can be used, from words in the memory itself.
    pub fn growing(fd: impl AsFd, len: u64, sync: Sync, recorded: fn(&Mapping) -> u64) -> rustix::io::Result<Mapping> {
        let file = Kept::duplicate_of(&fd)?;
        let flags = match sync {
            Sync::No => MapFlags::SHARED | MapFlags::NORESERVE,
            Sync::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        };
        let mut reserved = len.saturating_mul(AHEAD).clamp(LEAST_AHEAD, MOST_AHEAD).max(len);
        loop {
            match Mapping::file_by(&fd, reserved, flags) {
                Ok(mut map) => {
                    map.set_len(len);
                    map.growth = Some(Growth { file, is_taken: true, recorded });
                    return Ok(map);
                }
                // A limit of the process or machine.
                Err(Errno::NOMEM) if reserved > len => reserved = (reserved / 2).max(len),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Maps all `len` bytes of a device; other processes may use more of it than this one knows, see
    /// [`growing`](Self::growing).
    pub fn device(fd: impl AsFd, len: u64, recorded: fn(&Mapping) -> u64) -> rustix::io::Result<Mapping> {
        let file = Kept::duplicate_of(&fd)?;
        let mut map = Mapping::file(fd, len)?;
        map.growth = Some(Growth { file, is_taken: false, recorded });
        Ok(map)
    }

    /// Maps a file as `flags` say, which do not fix the address.
    fn file_by(fd: impl AsFd, len: u64, flags: MapFlags) -> rustix::io::Result<Mapping> {
        let p = pages::map_file(fd, len, flags)?;
        let is_shared = flags.contains(MapFlags::SHARED);
        Ok(Mapping::adopt(p, len, is_shared))
    }

    /// Fresh zeroed memory of this process alone.
    pub fn anonymous(len: u64) -> rustix::io::Result<Mapping> {
        // SAFETY: as in `file_by`.
        let p = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Mapping::adopt(p, len, false))
    }

    fn adopt(p: *mut std::ffi::c_void, len: u64, is_shared: bool) -> Mapping {
        let base = NonNull::new(p.cast()).expect("mmap never returns null");
        let [short_end, words] = [AtomicU64::new(0), AtomicU64::new(0)];
        let own = is_shared.then(|| fork::keep(base, len as usize));
        let mapped = Arc::new(Mapped { base, bytes: len, own });
        let mut map = Mapping { base, reserved: len, len: AtomicU64::new(0), short_end, words, growth: None, mapped };
        map.set_len(len);
        map
    }

    /// So many bytes are inside: those that have memory.
    pub(crate) fn set_len(&mut self, len: u64) {
        [&mut self.len, &mut self.short_end, &mut self.words].into_iter().for_each(|word| *word.get_mut() = 0);
        self.extend(len);
    }

    /// At least so many bytes are inside now.
    pub(crate) fn extend(&self, len: u64) {
        let len = len.min(self.reserved);
        self.len.fetch_max(len, Ordering::Release);
        self.short_end.fetch_max(len.saturating_sub(SHORT - 1), Ordering::Release);
        self.words.fetch_max(len / 8, Ordering::Release);
    }

    /// Takes in memory that others have added; true if there was any.
    #[cold]
    #[inline(never)]
    pub(crate) fn catch_up(&self) -> bool {
        let Some(growth) = &self.growth else { return false };
        let (now, recorded) = (self.len(), (growth.recorded)(self).min(self.reserved));
        let is_there = || !growth.is_taken || growth.file.size().is_ok_and(|size| size >= recorded);
        let more = recorded > now && is_there();
        if more {
            self.extend(recorded);
        }
        more
    }

    /// The file below, if its memory is taken step by step.
    pub(crate) fn growing_file(&self) -> Option<&Kept> {
        self.growth.as_ref().filter(|growth| growth.is_taken).map(|growth| &growth.file)
    }

    /// Bytes of address space: the mapping cannot get longer.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes that can be used.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Never true: a mapping has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn at(&self, off: u64, len: u64) -> Result<*mut u8> {
        let inside = len <= SHORT && off < self.short_end.load(Ordering::Relaxed);
        if inside || self.holds(off, len) {
            // SAFETY: off < base + len (invariant 1), so the pointer stays inside the mapping.
            return Ok(unsafe { self.base.as_ptr().add(off as usize) });
        }
        self.at_late(off, len)
    }

    #[inline(always)]
    fn holds(&self, off: u64, len: u64) -> bool {
        off.checked_add(len).is_some_and(|end| end <= self.len.load(Ordering::Relaxed))
    }

    /// [`at`](Self::at) of a range that is not inside yet.
    #[cold]
    #[inline(never)]
    fn at_late(&self, off: u64, len: u64) -> Result<*mut u8> {
        if self.catch_up() && self.holds(off, len) {
            // SAFETY: as in `at`.
            return Ok(unsafe { self.base.as_ptr().add(off as usize) });
        }
        Err(bad_address(off, len))
    }

    #[inline(always)]
    fn aligned(&self, off: u64, len: u64) -> Result<*mut u8> {
        if off % len != 0 {
            return Err(bad_address(off, len));
        }
        self.at(off, len)
    }

    /// `count` words at `off`, one check for all of them.
    #[inline(always)]
    pub fn words(&self, off: u64, count: usize) -> Result<&[AtomicU64]> {
        let len = count as u64 * 8;
        if off % 8 != 0 {
            return Err(bad_address(off, len));
        }
        // SAFETY: as in `word`, for each word of the slice.
        Ok(unsafe { std::slice::from_raw_parts(self.at(off, len)?.cast::<AtomicU64>().cast_const(), count) })
    }

    #[inline(always)]
    pub fn atomic64(&self, off: u64) -> Result<&AtomicU64> {
        // An unaligned offset becomes too large a number.
        match self.word(off.rotate_right(3)) {
            Some(word) => Ok(word),
            None => self.word_late(off),
        }
    }

    /// [`atomic64`](Self::atomic64) of a word that is not inside yet.
    #[cold]
    #[inline(never)]
    fn word_late(&self, off: u64) -> Result<&AtomicU64> {
        self.catch_up();
        self.word(off.rotate_right(3)).ok_or_else(|| bad_address(off, 8))
    }

    /// Word `n` of the mapping, `None` beyond its end: for frequent calls that can do without an answer.
    #[inline(always)]
    pub fn word(&self, n: u64) -> Option<&AtomicU64> {
        if n >= self.words.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: in bounds (2), aligned since the base is a page, lives as long as the mapping (1), only ever
        // accessed atomically or as bytes under a lock (3).
        Some(unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(n as usize)) })
    }

    #[inline(always)]
    pub fn atomic32(&self, off: u64) -> Result<&AtomicU32> {
        // SAFETY: as in `word`.
        Ok(unsafe { AtomicU32::from_ptr(self.aligned(off, 4)?.cast()) })
    }

    #[inline(always)]
    pub fn atomic8(&self, off: u64) -> Result<&AtomicU8> {
        // SAFETY: as in `word`.
        Ok(unsafe { AtomicU8::from_ptr(self.at(off, 1)?) })
    }

    /// A stretch of the mapping, which stays mapped for as long as it is held.
    pub fn stretch(&self, off: u64, len: u64) -> Result<Stretch> {
        let at = NonNull::new(self.at(off, len)?).ok_or_else(|| bad_address(off, len))?;
        Ok(Stretch { at, len: len as usize, _mapped: self.mapped.clone() })
    }

    /// Copies a value out. Words are loaded atomically; a value of several words may be torn.
    #[inline(always)]
    pub fn read<T: Pod>(&self, off: u64) -> Result<T> {
        let size = size_of::<T>();
        if size == 4 && off % 4 == 0 {
            let half = self.atomic32(off)?.load(Ordering::Relaxed);
            // SAFETY: four bytes, and every bit pattern is a `T` (4).
            return Ok(unsafe { std::mem::transmute_copy(&half) });
        }
        if size % 8 != 0 || off % 8 != 0 {
            return self.read_bytewise(off);
        }
        let src = self.at(off, size as u64)?;
        let mut value = MaybeUninit::<T>::uninit();
        let dst = value.as_mut_ptr().cast::<u8>();
        for i in 0..size / 8 {
            // SAFETY: in bounds (2), aligned since `off` is and the base is a page; atomic load (3). The
            // destination is unaligned-safe.
            unsafe {
                let w = AtomicU64::from_ptr(src.add(i * 8).cast()).load(Ordering::Relaxed);
                dst.add(i * 8).cast::<u64>().write_unaligned(w);
            }
        }
        // SAFETY: every byte has been written, and every bit pattern is a `T` (4).
        Ok(unsafe { value.assume_init() })
    }

    /// [`read`](Self::read) of a value that is not made of aligned words.
    #[inline]
    fn read_bytewise<T: Pod>(&self, off: u64) -> Result<T> {
        let size = size_of::<T>();
        let src = self.at(off, size as u64)?;
        let mut value = MaybeUninit::<T>::uninit();
        let dst = value.as_mut_ptr().cast::<u8>();
        let words = if off % 8 == 0 { size / 8 } else { 0 };
        for i in 0..words {
            // SAFETY: as in `read`.
            unsafe {
                let w = AtomicU64::from_ptr(src.add(i * 8).cast()).load(Ordering::Relaxed);
                dst.add(i * 8).cast::<u64>().write_unaligned(w);
            }
        }
        for i in words * 8..size {
            // SAFETY: in bounds (2); atomic byte load (3).
            unsafe { dst.add(i).write(AtomicU8::from_ptr(src.add(i)).load(Ordering::Relaxed)) };
        }
        // SAFETY: every byte has been written, and every bit pattern is a `T` (4).
        Ok(unsafe { value.assume_init() })
    }

    /// Stores bytes. If `off` is aligned, whole words are stored atomically, in ascending order, up to 256 bytes.
    #[inline(always)]
    pub fn write(&self, off: u64, bytes: &[u8]) -> Result<()> {
        let dst = self.at(off, bytes.len() as u64)?;
        compiler_fence(Ordering::SeqCst);
        let words = if off % 8 == 0 && bytes.len() <= 256 { bytes.len() / 8 } else { 0 };
        for i in 0..words {
            // SAFETY: in bounds and aligned (2); atomic store (3); source unaligned-safe.
            unsafe {
                let w = bytes.as_ptr().add(i * 8).cast::<u64>().read_unaligned();
                AtomicU64::from_ptr(dst.add(i * 8).cast()).store(w, Ordering::Relaxed);
            }
        }
        let rest = &bytes[words * 8..];
        if let [byte] = rest {
            // SAFETY: in bounds (2); atomic store (3).
            unsafe { AtomicU8::from_ptr(dst.add(words * 8)).store(*byte, Ordering::Relaxed) };
        } else if !rest.is_empty() {
            // SAFETY: in bounds (2); a raw copy (3); a Rust slice cannot overlap the mapping.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), dst.add(words * 8), rest.len()) };
        }
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Stores bytes past the caches (non-temporal stores). The ends, where lines are shared, go through the caches and
    /// are written back. Durable at the next [`store_fence`]. For many bytes at once, in memory that nobody reads yet.
    pub fn stream(&self, off: u64, bytes: &[u8], how: LineFlush) -> Result<()> {
        self.at(off, bytes.len() as u64)?;
        let head = (off.next_multiple_of(LINE) - off).min(bytes.len() as u64) as usize;
        let (head, rest) = bytes.split_at(head);
        let (lines, tail) = rest.split_at(rest.len() / LINE as usize * LINE as usize);
        let (lines_at, tail_at) = (off + head.len() as u64, off + (head.len() + lines.len()) as u64);
        for (at, bytes) in [(off, head), (tail_at, tail)] {
            self.write(at, bytes)?;
            self.flush_lines(at, bytes.len() as u64, how)?;
        }
        let dst = self.at(lines_at, lines.len() as u64)?;
        for (i, piece) in lines.chunks_exact(16).enumerate() {
            // SAFETY: in bounds (2), aligned: the base is a page and `lines_at` begins a line, if there is any.
            unsafe { stream_16(dst.add(i * 16), piece) };
        }
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Copies bytes out; torn if somebody stores meanwhile.
    #[inline]
    pub fn copy_out(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        let src = self.at(off, buf.len() as u64)?;
        // SAFETY: in bounds (2); a raw copy (3); a Rust slice cannot overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(src, buf.as_mut_ptr(), buf.len()) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Are the bytes at `off` these? Meaningless if somebody stores meanwhile.
    #[inline(always)]
    pub fn equals(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        let (here, len) = (bytes.as_ptr(), bytes.len());
        let there = self.at(off, len as u64)?;
        // SAFETY (each): `i + 8 <= len`, so in bounds (2), unaligned-safe; raw loads (3).
        let word = |i: usize| unsafe {
            there.add(i).cast::<u64>().read_unaligned() == here.add(i).cast::<u64>().read_unaligned()
        };
        // SAFETY (each): as above, with 4 bytes.
        let half = |i: usize| unsafe {
            there.add(i).cast::<u32>().read_unaligned() == here.add(i).cast::<u32>().read_unaligned()
        };
        // The last piece overlaps the one before, rather than leaving a rest.
        match len {
            8.. => Ok((0..len / 8).all(|i| word(i * 8)) && word(len - 8)),
            4..=7 => Ok(half(0) && half(len - 4)),
            // SAFETY: in bounds (2); a raw load (3).
            _ => Ok((0..len).all(|i| unsafe { there.add(i).read() } == bytes[i])),
        }
    }

    /// Which of the sixteen half words at `off` have these upper 16 bits: a bit for each. Meaningless if somebody
    /// stores meanwhile.
    #[inline(always)]
    pub fn upper_halves(&self, off: u64, upper: u16) -> Result<u16> {
        let there = self.at(off, 64)?;
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::*;
            // SAFETY: SSE2 is part of x86-64; in bounds (2), unaligned-safe; raw loads (3).
            let mask = unsafe {
                let wanted = _mm_set1_epi32(i32::from(upper));
                let four =
                    |i| _mm_cmpeq_epi32(_mm_srli_epi32(_mm_loadu_si128(there.cast::<__m128i>().add(i)), 16), wanted);
                let (low, high) = (_mm_packs_epi32(four(0), four(1)), _mm_packs_epi32(four(2), four(3)));
                _mm_movemask_epi8(_mm_packs_epi16(low, high))
            };
            Ok(mask as u16)
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            // SAFETY: in bounds (2), unaligned-safe; raw loads (3).
            let half = |i| unsafe { there.add(i * 4).cast::<u32>().read_unaligned() };
            Ok((0..16).fold(0, |mask, i| mask | u16::from(half(i) >> 16 == u32::from(upper)) << i))
        }
    }

    /// Copies `len` bytes from `src` to `dst` inside the mapping; the ranges may overlap.
    #[inline]
    pub fn copy_within(&self, src: u64, dst: u64, len: u64) -> Result<()> {
        let (s, d) = (self.at(src, len)?, self.at(dst, len)?);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: both in bounds (2); a raw copy that allows overlap (3).
        unsafe { std::ptr::copy(s, d, len as usize) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Fills `len` bytes with zeros.
    #[inline]
    pub fn zero(&self, off: u64, len: u64) -> Result<()> {
        let dst = self.at(off, len)?;
        compiler_fence(Ordering::SeqCst);
        // SAFETY: in bounds (2); a raw fill (3).
        unsafe { std::ptr::write_bytes(dst, 0, len as usize) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Starts to write the cache lines of a range back to memory; done at the next [`store_fence`].
    pub fn flush_lines(&self, off: u64, len: u64, how: LineFlush) -> Result<()> {
        self.at(off, len)?;
        for line in lines(off, len) {
            // SAFETY: the line holds a byte of the range, so its start is in bounds (2): the base is a page.
            how.line(unsafe { self.base.as_ptr().add(line as usize) });
        }
        Ok(())
    }

    /// Lets the processor fetch the lines that are about to be stored to. Ranges outside the mapping do no harm.
    #[inline(always)]
    pub fn expect_store(&self, off: u64, len: u64) {
        #[cfg(target_arch = "x86_64")]
        for line in lines(off, len) {
            let p = self.base.as_ptr().wrapping_add(line as usize);
            // SAFETY: a hint, which changes nothing and faults nowhere.
            unsafe { std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly)) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (off, len);
    }

    /// Is every one of `len` bytes at `off` zero?
    pub fn is_zero(&self, off: u64, len: u64) -> Result<bool> {
        self.all_pieces(off, len, |piece| piece.iter().all(|b| *b == 0))
    }

    /// The CRC-32C of `len` bytes, continued from `crc`. Only of memory that nobody changes meanwhile.
    pub fn crc(&self, crc: u32, off: u64, len: u64) -> Result<u32> {
        let mut crc = crc;
        self.all_pieces(off, len, |piece| {
            crc = crc32c::crc32c_append(crc, piece);
            true
        })?;
        Ok(crc)
    }

    /// Is `test` true of every piece of a range? It gets copies, in order, until it is not.
    fn all_pieces(&self, off: u64, len: u64, mut test: impl FnMut(&[u8]) -> bool) -> Result<bool> {
        let mut buf = [0u8; 4096];
        let (mut at, end) = (off, off.checked_add(len).ok_or(Error::BadAddress { off, len })?);
        while at < end {
            let n = (end - at).min(4096) as usize;
            self.copy_out(at, &mut buf[..n])?;
            if !test(&buf[..n]) {
                return Ok(false);
            }
            at += n as u64;
        }
        Ok(true)
    }
}

/// Out of line: an access inside the mapping never gets here.
#[cold]
#[inline(never)]
fn bad_address(off: u64, len: u64) -> Error {
    Error::BadAddress { off, len }
}

/// Bytes per group: chunks and, in the first of them, their part of the chunk table.
pub const GROUP: u64 = 64 << 20;
/// Bytes per cache line.
pub const LINE: u64 = 64;

/// Where the cache lines begin that hold a byte of the range.
pub fn lines(off: u64, len: u64) -> impl Iterator<Item = u64> {
    let first = if len == 0 { off } else { off / LINE * LINE };
    (first..off.saturating_add(len)).step_by(LINE as usize)
}

#[cfg(test)]
mod tests;
