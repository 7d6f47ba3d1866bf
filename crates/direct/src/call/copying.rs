//! copy_file_range, sendfile.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::fs::{fcntl_getfl, fstat, FileType, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use super::place::number;
use super::{Outcome, Stop};
use crate::mapped::is_mapped;
use crate::open_file::OpenFile;
use crate::raw;
use crate::state::State;

/// Bytes read and written at a time.
const PIECE: usize = 64 << 10;
/// Bytes that one call copies from another file system: signals wait meanwhile.
const AT_ONCE: usize = 1 << 20;
/// Most bytes of one call.
const MOST: usize = 0x7fff_f000;

impl State {
    /// A descriptor of each file, and where its offset lies in memory, or 0: at its position.
    pub fn copy_file_range(&self, from: (usize, usize), to: (usize, usize), len: usize, flags: u32) -> Outcome {
        if flags == 0 && self.is_direct(to.0) && !self.is_direct(from.0) {
            return self.copy_in(from, to, len);
        }
        if flags == 0 && self.is_direct(from.0) && !self.is_direct(to.0) {
            return self.copy_out(from.0, to.0);
        }
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        if is_mapped(source.ino) {
            return Err(Stop::Kernel);
        }
        if flags != 0 {
            return Err(Errno::INVAL.into());
        }
        if source.is_dir() || target.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if !source.reads() || !takes_copies(&target) {
            return Err(Errno::BADF.into());
        }
        let offset = |at: usize, position: u64| match at {
            0 => Ok(position),
            at => raw::get::<i64>(at).and_then(|at| u64::try_from(at).map_err(|_| Errno::OVERFLOW)),
        };
        // One after the other: both may be the same.
        let start = offset(from.1, source.position().at)?;
        let begin = offset(to.1, target.position().at)?;
        let len = len.min(MOST) as u64;
        if begin.checked_add(len).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Errno::FBIG.into());
        }
        let there = len.min(self.fs().size(source.ino)?.saturating_sub(start));
        self.may_grow_to(begin + there, || Ok(self.fs().size(target.ino)?))?;
        if self.identity()?.uid != 0 && there > 0 {
            self.clear_setid(&target)?;
        }
        let copied = self.fs().copy_range((source.ino, start), (target.ino, begin), len)?;
        for (file, at, end) in [(&source, from.1, start + copied), (&target, to.1, begin + copied)] {
            match at {
                0 => file.position().at = end,
                at => raw::put(at, &end)?,
            }
        }
        Ok(copied as usize)
    }

    /// To a file on another file system, which the kernel refuses.
    fn copy_out(&self, from: usize, to: usize) -> Outcome {
        let (source, target) = (self.file(from)?, raw::borrow(number(to))?);
        let stat = fstat(target)?;
        let may = source.reads() && !source.is_dir() && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let takes = fcntl_getfl(target)? & (OFlags::RWMODE | OFlags::APPEND);
        match may && stat.st_dev != self.mounted.dev && [OFlags::WRONLY, OFlags::RDWR].contains(&takes) {
            true => Err(Errno::XDEV.into()),
            false => Err(Stop::Kernel),
        }
    }

    /// From a file on another file system. The kernel refuses that, and `cp` then copies through a buffer that it allocates for each file.
    fn copy_in(&self, from: (usize, usize), to: (usize, usize), len: usize) -> Outcome {
        let target = self.file(to.0)?;
        let source = raw::borrow(number(from.0))?;
        let stat = fstat(source)?;
        if stat.st_dev == self.mounted.dev {
            return Err(Stop::Kernel);
        }
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // Some files of the kernel have no size, but content.
        if !is_regular || stat.st_size <= 0 || is_mapped(target.ino) {
            return Err(Errno::XDEV.into());
        }
        if target.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if !takes_copies(&target) {
            return Err(Errno::BADF.into());
        }
        let start = if from.1 == 0 { rustix::fs::tell(source)? } else { raw::get(from.1)? };
        let begin = if to.1 == 0 { target.position().at } else { raw::get(to.1)? };
        let left = (stat.st_size as u64).saturating_sub(start);
        let most = len.min(AT_ONCE).min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = |buf: &mut [u8], done: usize| Ok(rustix::io::pread(source, buf, start + done as u64)?);
        let write =
            |data: &[u8], done: usize| self.pwrite(to.0, data.as_ptr() as usize, data.len(), begin as usize + done);
        let copied = move_data(most, read, write)?;
        match from.1 {
            0 => _ = rustix::fs::seek(source, SeekFrom::Start(start + copied as u64))?,
            at => raw::put(at, &(start + copied as u64))?,
        }
        match to.1 {
            0 => target.position().at = begin + copied as u64,
            at => raw::put(at, &(begin + copied as u64))?,
        }
        Ok(copied)
    }

    /// From a file that is served here to any descriptor, or from a file elsewhere to one that is.
    pub fn sendfile(&self, out: usize, input: usize, at: usize, len: usize) -> Outcome {
        let len = len.min(MOST);
        let is_place = |fd| self.descriptors.get(number(fd)).is_some_and(|file| file.is_place());
        if is_place(out) || is_place(input) {
            return Err(Stop::Kernel);
        }
        let given: Option<i64> = if at == 0 { None } else { Some(raw::get(at)?) };
        match self.descriptors.get(number(input)) {
            Some(file) => {
                if !file.reads() {
                    return Err(Errno::BADF.into());
                }
                let given = given.map(from_start).transpose()?;
                self.may_send_to(out)?;
                if is_mapped(file.ino) {
                    return Err(Stop::Kernel);
                }
                if file.is_dir() && len > 0 {
                    return Err(Errno::INVAL.into());
                }
                let read = |buf: &mut [u8], at: u64| Ok(self.fs().read(file.ino, at, buf)?);
                let start = given.unwrap_or_else(|| file.position().at);
                let sent = self.send(out, start, len, read)?;
                match at {
                    0 => file.position().at = start + sent as u64,
                    at => raw::put(at, &(start + sent as u64))?,
                }
                Ok(sent)
            }
            None => {
                let real = raw::borrow(number(input))?;
                let Ok(position) = rustix::fs::tell(real) else { return Err(Stop::Kernel) };
                if ![OFlags::RDONLY, OFlags::RDWR].contains(&(fcntl_getfl(real)? & OFlags::RWMODE)) {
                    return Err(Errno::BADF.into());
                }
                let start = given.map_or(Ok(position), from_start)?;
                self.may_send_to(out)?;
                let read = |buf: &mut [u8], at: u64| match rustix::io::pread(real, buf, at) {
                    Err(Errno::ISDIR) => Err(Errno::INVAL.into()),
                    read => Ok(read?),
                };
                let sent = self.send(out, start, len, read)?;
                match at {
                    0 => _ = rustix::fs::seek(real, SeekFrom::Start(start + sent as u64))?,
                    at => raw::put(at, &(start + sent as u64))?,
                }
                Ok(sent)
            }
        }
    }

    fn may_send_to(&self, out: usize) -> Outcome<()> {
        let flags = match self.descriptors.get(number(out)) {
            Some(file) => OFlags::from_bits_retain(file.flags()),
            None => fcntl_getfl(raw::borrow(number(out))?)?,
        };
        match [OFlags::WRONLY, OFlags::RDWR].contains(&(flags & OFlags::RWMODE)) {
            false => Err(Errno::BADF.into()),
            true if flags.contains(OFlags::APPEND) => Err(Errno::INVAL.into()),
            true => Ok(()),
        }
    }

    fn send(&self, out: usize, start: u64, len: usize, read: impl Fn(&mut [u8], u64) -> Outcome) -> Outcome {
        move_data(len, |buf, done| read(buf, start + done as u64), |data, _| self.write_to(out, data))
    }

    fn write_to(&self, out: usize, data: &[u8]) -> Outcome {
        if data.is_empty() {
            return Ok(0);
        }
        match self.descriptors.get(number(out)) {
            Some(_) => self.write(out, data.as_ptr() as usize, data.len()),
            None => {
                let out: BorrowedFd = raw::borrow(number(out))?;
                if rustix::fs::tell(out).is_ok() {
                    return Ok(rustix::io::write(out, data)?);
                }
                // To wait is for the kernel: a signal ends that.
                match rustix::io::pwritev2(out, &[IoSlice::new(data)], u64::MAX, ReadWriteFlags::NOWAIT) {
                    Err(Errno::AGAIN) if fcntl_getfl(out)?.contains(OFlags::NONBLOCK) => Err(Errno::AGAIN.into()),
                    Err(Errno::AGAIN | Errno::OPNOTSUPP) => Err(Stop::Kernel),
                    written => Ok(written?),
                }
            }
        }
    }
}

/// An offset that a call is given.
fn from_start(at: i64) -> Outcome<u64> {
    u64::try_from(at).map_err(|_| Errno::INVAL.into())
}

/// May a file be the target of copy_file_range?
fn takes_copies(file: &OpenFile) -> bool {
    file.writes() && !file.has(libc::O_APPEND)
}

/// Moves up to `len` bytes, by pieces; both are called with how many are done. Data that is moved counts, also where an error follows.
fn move_data(
    len: usize,
    read: impl Fn(&mut [u8], usize) -> Outcome,
    write: impl Fn(&[u8], usize) -> Outcome,
) -> Outcome {
    let mut buf = vec![0; len.min(PIECE)];
    let mut done = 0;
    while done < len {
        let room = (len - done).min(PIECE);
        let n = match read(&mut buf[..room], done) {
            Err(_) if done > 0 => break,
            n => n?,
        };
        let written = match write(&buf[..n], done) {
            Err(_) if done > 0 => break,
            written => written?,
        };
        done += written;
        if written < room {
            break;
        }
    }
    Ok(done)
}
