//! An open file.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::Open;
use crate::attr::{Attr, Caller, Ino, SetAttr};
use crate::error::Result;
use crate::node::{Fs, Node, WriteFlags};

/// An open file: a reference that keeps the inode alive. Dropping it closes it.
///
/// As `std::fs::File` it has a position, which [`Read`], [`Write`] and [`Seek`] use, also by a reference. A read or write at a
/// given offset leaves that alone.
pub struct File<'a> {
    fs: &'a Fs,
    ino: Ino,
    how: Open,
    privileged: bool,
    position: Mutex<u64>,
}

impl<'a> File<'a> {
    /// Takes over a reference to the inode.
    pub(super) fn new(fs: &'a Fs, ino: Ino, how: Open, privileged: bool) -> File<'a> {
        File { fs, ino, how, privileged, position: Mutex::new(0) }
    }

    pub fn ino(&self) -> Ino {
        self.ino
    }

    pub fn attr(&self) -> Result<Attr> {
        self.fs.getattr(self.ino)
    }

    /// Reads from an offset; how many bytes: fewer than asked for where the file ends.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if !self.how.read {
            return Err(Errno::BADF.into());
        }
        self.fs.read(self.ino, offset, buf)
    }

    /// Writes all of `data` at an offset; at the end where the file was opened to append.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.put(offset, data, self.how.append).map(drop)
    }

    /// Writes all of `data` at the end; returns where that was.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.put(0, data, true)
    }

    fn put(&self, offset: u64, data: &[u8], append: bool) -> Result<u64> {
        self.may_write()?;
        let flags =
            WriteFlags { append, kill_suidgid: !self.privileged, kill_capability: true, ..WriteFlags::default() };
        self.fs.write_node(self.ino, offset, data, flags, &mut Node::blank())
    }

    fn may_write(&self) -> Result<()> {
        match self.how.write || self.how.append {
            true => Ok(()),
            false => Err(Errno::BADF.into()),
        }
    }

    /// Cuts the file, or makes it longer by a hole.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.may_write()?;
        let set = SetAttr { size: Some(size), by_handle: true, kill_suidgid: !self.privileged, ..SetAttr::default() };
        self.fs.setattr(self.ino, &set, &Caller { checked: true, ..Caller::root() }).map(drop)
    }

    /// Waits until all of it is durable.
    pub fn sync_all(&self) -> Result<()> {
        self.fs.fsync(self.ino, false)
    }

    /// Waits until its content is durable.
    pub fn sync_data(&self) -> Result<()> {
        self.fs.fsync(self.ino, true)
    }

    fn position(&self) -> MutexGuard<'_, u64> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for &File<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut position = self.position();
        let len = self.read_at(buf, *position)?;
        *position += len as u64;
        Ok(len)
    }
}

impl Write for &File<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let mut position = self.position();
        *position = self.put(*position, data, self.how.append)? + data.len() as u64;
        Ok(data.len())
    }

    /// Nothing is held back; [`File::sync_all`] makes it durable.
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for &File<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let mut position = self.position();
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.attr()?.size.checked_add_signed(by),
        };
        *position = at.filter(|at| i64::try_from(*at).is_ok()).ok_or(Errno::INVAL)?;
        Ok(*position)
    }
}

impl Read for File<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for File<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        (&*self).seek(to)
    }
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        self.fs.release(self.ino, 1);
    }
}
