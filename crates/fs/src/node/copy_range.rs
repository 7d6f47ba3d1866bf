//! `copy_file_range(2)`.

use rustix::io::Errno;

use super::content::check_regular;
use super::{Fs, Node, WriteFlags};
use crate::attr::{Ino, Kind};
use crate::error::Result;

/// Bytes copied at a time by [`Fs::copy_range`].
const COPY: usize = 256 << 10;

impl Fs {
    /// Copies within the pool, in pieces of 256 KiB; returns the bytes copied, short at the end of the source
    /// or where memory ran out. Holes are copied as zeros.
    pub fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.snapshot(from.0)?, self.snapshot(to.0)?);
        if source.kind == Kind::Directory as u8 {
            return Err(Errno::ISDIR.into());
        }
        check_regular(&target)?;
        check_regular(&source)?;
        // Bytes beyond the end are not copied, and overlap nothing.
        let len = len.min(source.size.saturating_sub(from.1));
        if from.0 == to.0 && from.1.abs_diff(to.1) < len {
            return Err(Errno::INVAL.into());
        }
        let mut buf = vec![0; (len as usize).clamp(1, COPY)];
        let flags = WriteFlags { kill_capability: true, ..WriteFlags::default() };
        let mut done = 0;
        while done < len {
            let n = self.read(from.0, from.1 + done, &mut buf[..((len - done) as usize).min(COPY)])?;
            if n == 0 {
                break;
            }
            match self.write_node(to.0, to.1 + done, &buf[..n], flags, &mut Node::blank()) {
                Ok(_) => done += n as u64,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
