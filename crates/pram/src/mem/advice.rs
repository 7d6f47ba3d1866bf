//! Advice to the kernel about the pages of a mapping.

use rustix::mm::Advice;

use super::Mapping;
use crate::error::{Error, Result};

impl Mapping {
    /// Asks for huge pages, where the kernel gives them: fewer TLB misses over a large memory.
    pub fn advise_huge(&self) {
        // SAFETY: the advice changes no content, and the whole range is mapped.
        let _ =
            unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.reserved as usize, Advice::LinuxHugepage) };
    }

    /// Gives the memory of whole pages back; of an [anonymous](Self::anonymous) mapping, they read as zeros afterwards.
    pub(crate) fn give_back(&self, off: u64, len: u64) -> Result<()> {
        let start = self.at(off, len)?;
        // SAFETY: in bounds (2). The kernel puts zeros, or a file's content, in their place, as another process's store would.
        unsafe { rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxDontNeed) }
            .map_err(Error::host("giving memory back"))
    }
}
