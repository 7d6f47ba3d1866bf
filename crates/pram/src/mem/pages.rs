//! The pages of a mapping: huge ones where the kernel gives such, and given back.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::null_mut;

use rustix::fs::{fallocate, FallocateFlags};
use rustix::mm::{madvise, mmap, munmap, Advice, MapFlags, ProtFlags};

use super::descriptor::Kept;
use super::Mapping;
use crate::error::{Error, Result};

const PAGE: u64 = 4096;
/// Bytes of a huge page; such lie at multiples of that.
const HUGE: u64 = 2 << 20;

/// Maps the first `len` bytes of a file as `flags` say, which do not fix the address.
pub(super) fn map_file(fd: impl AsFd, len: u64, flags: MapFlags) -> rustix::io::Result<*mut c_void> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
    let map = |at: *mut c_void, flags| unsafe { mmap(at, len as usize, access, flags, &fd, 0) };
    let anywhere = map(null_mut(), flags)?;
    let beyond = anywhere as usize % HUGE as usize;
    if beyond == 0 || len < HUGE {
        return Ok(anywhere);
    }
    // SAFETY: nobody has seen it yet.
    unsafe { munmap(anywhere, len as usize) }?;
    // The space below is free, as a rule.
    let aligned = map(anywhere.wrapping_byte_sub(beyond), flags | MapFlags::FIXED_NOREPLACE);
    aligned.or_else(|_| map(null_mut(), flags))
}

impl Mapping {
    /// Asks for huge pages, where the kernel gives them: fewer TLB misses over a large memory.
    pub fn advise_huge(&self) {
        // SAFETY: the advice changes no content, and the whole range is mapped.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.reserved as usize, Advice::LinuxHugepage) };
    }

    /// Takes memory for each whole 2 MiB of a range in which there is none yet, as one page of that size, where the kernel
    /// gives such: one fault where there would be 512. A failure is no error: the caller
    /// takes small pages for what is left.
    pub(crate) fn take_huge(&self, range: Range<u64>) {
        let Some(Ok(file)) = self.growing_file().map(Kept::lend) else { return };
        let starts = (range.start.next_multiple_of(HUGE)..range.end).step_by(HUGE as usize);
        for start in starts.take_while(|start| start + HUGE <= range.end.min(self.reserved)) {
            // The kernel makes one page of those that are there: it wants one at least.
            if fallocate(&file, FallocateFlags::empty(), start, PAGE).is_err() {
                break;
            }
            // SAFETY: the call changes no content, and the range is mapped; where it is not aligned the kernel refuses.
            let taken = unsafe {
                libc::madvise(self.base.as_ptr().add(start as usize).cast(), HUGE as usize, libc::MADV_COLLAPSE)
            };
            if taken != 0 {
                break;
            }
        }
    }

    /// Gives the memory of whole pages back; of an [anonymous](Self::anonymous) mapping, they read as zeros afterwards.
    pub(crate) fn give_back(&self, off: u64, len: u64) -> Result<()> {
        let start = self.at(off, len)?;
        // SAFETY: in bounds (2). The kernel puts zeros, or a file's content, in their place, as another process's store would.
        unsafe { madvise(start.cast(), len as usize, Advice::LinuxDontNeed) }.map_err(Error::host("giving memory back"))
    }
}
