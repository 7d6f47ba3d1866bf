//! read, write, seek, truncate, sync.

use std::sync::atomic::Ordering;

use conquest_fs::node::{ReadFlags, Seek, WriteFlags};
use conquest_fs::{Attr, Caller, Kind, SetAttr};
use rustix::io::Errno;
use rustix::process::{getpid, kill_process, Signal};

use super::place::At;
use super::{Outcome, Stop};
use crate::mapped::{is_mapped, may_be_a_file};
use crate::open_file::OpenFile;
use crate::raw;
use crate::state::State;

/// Most bytes of one call.
const MOST: usize = 0x7fff_f000;
/// Bytes that are copied at a time: as many as a message of the mount has.
const PIECE: usize = 1 << 20;
/// Most bytes of a buffer that is looked at without asking for the file's size.
const SMALL: usize = 4096;
/// Most buffers of one call.
const BUFFERS: usize = 1024;

const RWF_HIPRI: u32 = 1;
const RWF_DSYNC: u32 = 2;
const RWF_SYNC: u32 = 4;
const RWF_APPEND: u32 = 16;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Where a write goes, and what else it does.
#[derive(Clone, Copy)]
struct How {
    at: u64,
    append: bool,
    sync: bool,
    data_sync: bool,
}

impl How {
    #[inline(always)]
    fn of(file: &OpenFile, at: u64) -> How {
        let (sync, data_sync) = (file.has(libc::O_SYNC & !libc::O_DSYNC), file.has(libc::O_DSYNC));
        How { at, append: file.has(libc::O_APPEND), sync, data_sync }
    }
}

/// How much of a buffer one call takes.
#[inline(always)]
fn at_most(addr: usize, len: usize) -> Outcome<usize> {
    match len > MOST && !raw::is_of_program(addr, len) {
        true => Err(Errno::FAULT.into()),
        false => Ok(len.min(MOST)),
    }
}

/// An offset that a call is given: it may not be negative, whatever the descriptor.
#[inline(always)]
fn begins(at: usize) -> Outcome<()> {
    i64::try_from(at).map(drop).map_err(|_| Errno::INVAL.into())
}

/// An offset of a call; the file system has none beyond.
#[inline(always)]
fn offset(at: usize, len: usize) -> Outcome<u64> {
    match i64::try_from(at).ok().and_then(|at| at.checked_add(len as i64)) {
        Some(_) => Ok(at as u64),
        None => Err(Errno::INVAL.into()),
    }
}

impl State {
    #[inline(always)]
    pub fn read(&self, fd: usize, buf: usize, len: usize) -> Outcome {
        let file = self.file(fd)?;
        let mut position = file.position();
        if position.is_kernels {
            return Err(Stop::Kernel);
        }
        let buf = self.room_to_fill(&file, (buf, len), position.at)?;
        let n = self.read_at(&file, position.at, buf)?;
        position.at += n as u64;
        Ok(n)
    }

    /// The buffer of a read at `at`. Memory that the file has nothing for is not looked at.
    #[inline(always)]
    fn room_to_fill<'a>(&self, file: &OpenFile, (buf, len): (usize, usize), at: u64) -> Outcome<&'a mut [u8]> {
        if !file.reads() {
            return Err(Errno::BADF.into());
        }
        let len = at_most(buf, len)?;
        if len <= SMALL {
            if let Ok(room) = raw::room(buf, len, len) {
                return Ok(room);
            }
        }
        self.large_room(file, (buf, len), at)
    }

    fn large_room<'a>(&self, file: &OpenFile, (buf, len): (usize, usize), at: u64) -> Outcome<&'a mut [u8]> {
        let left = match file.is_dir() {
            true => 0,
            false => self.fs().size(file.ino)?.saturating_sub(at),
        };
        let sure = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        match raw::room(buf, if sure == 0 { len } else { sure }, sure) {
            // Nothing is stored there.
            Err(_) if sure == 0 && raw::is_of_program(buf, len) => Ok(&mut []),
            room => Ok(room?),
        }
    }

    #[inline(always)]
    fn read_at(&self, file: &OpenFile, at: u64, buf: &mut [u8]) -> Outcome {
        if file.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if is_mapped(file.ino) {
            return Err(Stop::Kernel);
        }
        match may_be_a_file() {
            true => self.read_by_copy(file, at, buf),
            false => self.read_now(file, at, buf),
        }
    }

    #[inline(always)]
    fn read_now(&self, file: &OpenFile, at: u64, buf: &mut [u8]) -> Outcome {
        let flags = ReadFlags { unnoted: file.has(libc::O_NOATIME), caller_caches: false };
        Ok(self.fs().read_as(file.ino, at, buf, flags)?)
    }

    #[cold]
    fn read_by_copy(&self, file: &OpenFile, at: u64, buf: &mut [u8]) -> Outcome {
        let mut copy = vec![0; buf.len().clamp(1, PIECE)];
        let mut done = 0;
        loop {
            let room = (buf.len() - done).min(PIECE);
            let n = match self.read_now(file, at + done as u64, &mut copy[..room]) {
                Err(_) if done > 0 => return Ok(done),
                n => n?,
            };
            buf[done..done + n].copy_from_slice(&copy[..n]);
            done += n;
            if n < room || done == buf.len() {
                return Ok(done);
            }
        }
    }

    pub fn pread(&self, fd: usize, buf: usize, len: usize, at: usize) -> Outcome {
        let file = self.file(fd)?;
        begins(at)?;
        let room = self.room_to_fill(&file, (buf, len), at as u64)?;
        self.read_at(&file, offset(at, len.min(MOST))?, room)
    }

    pub fn readv(&self, fd: usize, buffers: (usize, usize), at: Option<usize>, flags: u32) -> Outcome {
        let file = self.file(fd)?;
        if flags & !RWF_HIPRI != 0 {
            return Err(Stop::Kernel);
        }
        at.map_or(Ok(()), begins)?;
        if !file.reads() {
            return Err(Errno::BADF.into());
        }
        let (buffers, all) = vectors(buffers)?;
        let mut position = file.position();
        let start = match at {
            Some(at) => offset(at, all)?,
            None if position.is_kernels => return Err(Stop::Kernel),
            None => position.at,
        };
        let mut done = 0;
        for (addr, len) in buffers {
            let at = start + done as u64;
            let n = match self.room_to_fill(&file, (addr, len), at).and_then(|part| self.read_at(&file, at, part)) {
                Err(_) if done > 0 => break,
                n => n?,
            };
            done += n;
            if n < len {
                break;
            }
        }
        if at.is_none() {
            position.at += done as u64;
        }
        Ok(done)
    }

    #[inline(always)]
    pub fn write(&self, fd: usize, buf: usize, len: usize) -> Outcome {
        let file = self.file(fd)?;
        if !file.writes() {
            return Err(Errno::BADF.into());
        }
        let data = raw::bytes_there(buf, at_most(buf, len)?)?;
        let mut position = file.position();
        if position.is_kernels {
            return Err(Stop::Kernel);
        }
        let (at, n) = self.write_at(&file, data, How::of(&file, position.at))?;
        position.at = at + n as u64;
        Ok(n)
    }

    /// Writes; where that went, and how much.
    #[inline(always)]
    fn write_at(&self, file: &OpenFile, data: &[u8], how: How) -> Outcome<(u64, usize)> {
        if data.is_empty() {
            return Ok((how.at, 0));
        }
        match may_be_a_file() {
            true => self.write_by_copy(file, data, how),
            false => self.write_now(file, data, how),
        }
    }

    #[cold]
    fn write_by_copy(&self, file: &OpenFile, data: &[u8], how: How) -> Outcome<(u64, usize)> {
        let (mut end, mut done) = (how.at, 0);
        for piece in data.chunks(PIECE) {
            let copy = piece.to_vec();
            let (at, n) = match self.write_now(file, &copy, How { at: how.at + done as u64, ..how }) {
                Err(_) if done > 0 => break,
                written => written?,
            };
            (end, done) = (at + n as u64, done + n);
            if n < piece.len() {
                break;
            }
        }
        Ok((end - done as u64, done))
    }

    #[inline(always)]
    fn write_now(&self, file: &OpenFile, data: &[u8], how: How) -> Outcome<(u64, usize)> {
        let data = self.within_limit(file, data, how)?;
        if self.identity()?.uid != 0 {
            self.clear_setid(file)?;
        }
        let flags = WriteFlags { append: how.append, kill_capability: true, ..WriteFlags::default() };
        let at = self.fs().write_at(file.ino, how.at, data, flags)?;
        if how.sync || how.data_sync {
            self.fs().fsync(file.ino, !how.sync)?;
        }
        Ok((at, data.len()))
    }

    /// The part of `data` that the process's limit of file sizes allows.
    #[inline(always)]
    fn within_limit<'d>(&self, file: &OpenFile, data: &'d [u8], how: How) -> Outcome<&'d [u8]> {
        match self.size_limit.load(Ordering::Relaxed) {
            u64::MAX => Ok(data),
            limit => {
                let start = if how.append { self.fs().size(file.ino)? } else { how.at };
                let room = limit.saturating_sub(start);
                if room == 0 {
                    return Err(beyond_limit());
                }
                Ok(&data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))])
            }
        }
    }

    /// A write by another than the superuser takes set-id bits.
    #[inline(always)]
    pub fn clear_setid(&self, file: &OpenFile) -> Outcome<()> {
        match self.fs().has_setid(file.ino)? {
            true => self.clear_setid_of(file),
            false => Ok(()),
        }
    }

    #[cold]
    fn clear_setid_of(&self, file: &OpenFile) -> Outcome<()> {
        let (caller, old) = (self.identities.caller(self.identity()?), self.fs().getattr(file.ino)?);
        // A change that changes nothing would set ctime.
        if !loses_setid(&old, &caller) {
            return Ok(());
        }
        let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
        self.fs().setattr(file.ino, &set, &Caller { checked: true, owns: &[old.uid], ..caller })?;
        Ok(())
    }

    pub fn pwrite(&self, fd: usize, buf: usize, len: usize, at: usize) -> Outcome {
        let file = self.file(fd)?;
        begins(at)?;
        if !file.writes() {
            return Err(Errno::BADF.into());
        }
        let len = at_most(buf, len)?;
        let at = offset(at, len)?;
        let data = raw::bytes_there(buf, len)?;
        Ok(self.write_at(&file, data, How::of(&file, at))?.1)
    }

    pub fn writev(&self, fd: usize, buffers: (usize, usize), at: Option<usize>, flags: u32) -> Outcome {
        let file = self.file(fd)?;
        if flags & !(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND) != 0 {
            return Err(Stop::Kernel);
        }
        at.map_or(Ok(()), begins)?;
        if !file.writes() {
            return Err(Errno::BADF.into());
        }
        let (buffers, all) = vectors(buffers)?;
        // One write, which others see whole.
        let gathered;
        let data = match buffers.iter().filter(|(_, len)| *len > 0).collect::<Vec<_>>()[..] {
            [] => &[],
            [&(addr, len)] => raw::bytes_there(addr, len)?,
            ref parts => {
                gathered = gather(parts)?;
                &gathered[..]
            }
        };
        let mut position = file.position();
        let start = match at {
            Some(at) => offset(at, all)?,
            None if position.is_kernels => return Err(Stop::Kernel),
            None => position.at,
        };
        let mut how = How::of(&file, start);
        how.append |= flags & RWF_APPEND != 0;
        how.sync |= flags & RWF_SYNC != 0;
        how.data_sync |= flags & RWF_DSYNC != 0;
        let (went, n) = self.write_at(&file, data, how)?;
        if at.is_none() {
            position.at = went + n as u64;
        }
        Ok(n)
    }

    pub fn lseek(&self, fd: usize, by: i64, whence: u32) -> Outcome {
        let file = self.file(fd)?;
        let mut position = file.position();
        if position.is_kernels {
            return Err(Stop::Kernel);
        }
        let from = match whence {
            0 => 0,
            1 if by == 0 => return Ok(position.at as usize),
            1 => position.at,
            2 if file.is_dir() => self.fs().getattr(file.ino)?.size,
            2 => self.fs().size(file.ino)?,
            SEEK_DATA | SEEK_HOLE if file.is_dir() => return Err(Errno::INVAL.into()),
            SEEK_DATA | SEEK_HOLE => {
                let start = u64::try_from(by).map_err(|_| Errno::NXIO)?;
                let what = if whence == SEEK_DATA { Seek::Data } else { Seek::Hole };
                position.at = self.fs().seek(file.ino, start, what)?;
                return Ok(position.at as usize);
            }
            _ => return Err(Errno::INVAL.into()),
        };
        position.at =
            i64::try_from(from).ok().and_then(|from| from.checked_add(by)).filter(|at| *at >= 0).ok_or(Errno::INVAL)?
                as u64;
        Ok(position.at as usize)
    }

    pub fn ftruncate(&self, fd: usize, size: i64) -> Outcome {
        let file = self.file(fd)?;
        let size = u64::try_from(size).map_err(|_| Errno::INVAL)?;
        if file.is_dir() || !file.writes() {
            return Err(Errno::INVAL.into());
        }
        self.may_grow_to(size, || Ok(self.fs().size(file.ino)?))?;
        let kill_suidgid = self.identity()?.uid != 0;
        let set = SetAttr { size: Some(size), by_handle: true, kill_suidgid, ..SetAttr::default() };
        self.fs().setattr(file.ino, &set, &Caller { checked: true, ..Caller::root() })?;
        Ok(0)
    }

    pub fn truncate(&self, at: At, size: i64) -> Outcome {
        let size = u64::try_from(size).map_err(|_| Errno::INVAL)?;
        let place = self.place(at)?;
        let held = self.hold(at, 0)?;
        let old = self.fs().getattr(held.ino())?;
        match old.kind {
            // It may be a program that runs: only the kernel can tell.
            Kind::Regular if old.perm & 0o111 != 0 && self.fs().session().is_cached(held.ino()) => {
                return Err(Stop::Kernel)
            }
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        self.may_grow_to(size, || Ok(old.size))?;
        let caller = place.view().caller;
        let set = SetAttr { size: Some(size), kill_suidgid: caller.uid != 0, ..SetAttr::default() };
        self.fs().setattr(held.ino(), &set, &caller)?;
        Ok(0)
    }

    /// Does the process's limit of file sizes allow this one?
    pub fn may_grow_to(&self, size: u64, old: impl FnOnce() -> Outcome<u64>) -> Outcome<()> {
        match size > self.size_limit.load(Ordering::Relaxed) && size > old()? {
            true => Err(beyond_limit()),
            false => Ok(()),
        }
    }

    pub fn fsync(&self, fd: usize, data_only: bool) -> Outcome {
        let file = self.file(fd)?;
        self.fs().fsync(file.ino, data_only)?;
        Ok(0)
    }
}

/// Does a change by this caller take set-id bits? Set-group-id without the group's execution stays for members.
pub fn loses_setid(attr: &Attr, caller: &Caller) -> bool {
    attr.perm & 0o4000 != 0 || attr.perm & 0o2000 != 0 && (attr.perm & 0o010 != 0 || !caller.in_group(attr.gid))
}

#[cold]
fn beyond_limit() -> Stop {
    // Nothing is lost if the signal cannot be sent: the error says the same.
    let _ = kill_process(getpid(), Signal::XFSZ);
    Errno::FBIG.into()
}

/// What the buffers hold, as far as it is there.
fn gather(parts: &[&(usize, usize)]) -> Outcome<Vec<u8>> {
    let mut all = Vec::new();
    for &&(addr, len) in parts {
        let part = match raw::bytes_there(addr, len) {
            Err(_) if !all.is_empty() => break,
            part => part?,
        };
        all.extend_from_slice(part);
        if part.len() < len {
            break;
        }
    }
    Ok(all)
}

/// The buffers of a `readv` or `writev`, and how many bytes they are.
fn vectors((addr, count): (usize, usize)) -> Outcome<(Vec<(usize, usize)>, usize)> {
    if count > BUFFERS {
        return Err(Errno::INVAL.into());
    }
    let mut all = 0;
    let mut found = Vec::with_capacity(count);
    for n in 0..count {
        let [addr, len]: [u64; 2] = raw::get(addr + 16 * n)?;
        if i64::try_from(len).is_err() {
            return Err(Errno::INVAL.into());
        }
        let len = (len as usize).min(MOST - all);
        all += len;
        found.push((addr as usize, len));
    }
    Ok((found, all))
}
