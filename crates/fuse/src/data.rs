//! Requests about content: read, write, allocate, seek, copy, sync; and the sizes of the pool.

use std::ops::Range;

use conquest::brief;
use conquest_fs::node::{Fallocate, ReadFlags, Seek, WriteFlags};
use conquest_fs::Ino;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::abi::{
    fattr, CopyFileRangeIn, CopyFileRangeOut, FallocateIn, FsyncIn, LseekIn, LseekOut, Opcode, ReadIn, SetattrIn,
    StatfsOut, WriteIn, WriteOut, FSYNC_FDATASYNC, WRITE_CACHE, WRITE_KILL_SUIDGID,
};
use crate::attrs::may_retain_setid;
use crate::convert::errno;
use crate::request::{Answer, Request};
use crate::server::Server;

/// Most bytes copied for one request, so that other requests in its queue need not wait long. The caller asks again for
/// the rest.
const COPY_MAX: u64 = 16 << 20;

/// The size of the pages in which the kernel caches files.
const PAGE: u64 = 4096;

/// Allocating, copying or cutting off more bytes of a file than this is a long request, which a worker serves.
const LONG: u64 = 1 << 20;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Server {
    /// May it take long to serve this? So does work on much content, and on a file that is locked for such work.
    pub(crate) fn is_long(&self, req: &Request) -> bool {
        let busy = |ino| self.fs().session().has_long_lock(ino);
        let ino = req.head.nodeid;
        match Opcode::from_code(req.head.opcode) {
            Some(Opcode::Write) => busy(ino),
            // It reads files of the pool, and waits for locks.
            Some(Opcode::Getxattr) => req.name().is_ok_and(|name| name == brief::ATTRIBUTE.as_bytes()),
            Some(Opcode::Fallocate) => busy(ino) || req.args::<FallocateIn>().is_ok_and(|args| args.length > LONG),
            Some(Opcode::CopyFileRange | Opcode::CopyFileRange64) => {
                req.args::<CopyFileRangeIn>().is_ok_and(|args| busy(args.nodeid_out) || args.len > LONG)
            }
            Some(Opcode::Setattr) => req.args::<SetattrIn>().is_ok_and(|args| {
                args.valid & fattr::SIZE != 0 && (busy(ino) || self.has_beyond(ino, args.size) > LONG)
            }),
            _ => false,
        }
    }

    /// Bytes of memory that the file may hold beyond `size`.
    fn has_beyond(&self, ino: Ino, size: u64) -> u64 {
        self.fs().getattr(ino).map_or(0, |attr| (attr.blocks * 512).min(attr.size.saturating_sub(size)))
    }

    pub(crate) fn read(&self, req: &mut Request) -> Answer {
        let args: ReadIn = req.args()?;
        let size = (args.size as usize).min(req.data.len());
        let (ino, buf) = (req.head.nodeid, &mut req.data[..size]);
        self.seeks.note_read(ino);
        self.take_back(ino);
        let open = OFlags::from_bits_retain(args.flags);
        // The kernel caches a read that does not bypass its page cache.
        let flags =
            ReadFlags { unnoted: open.contains(OFlags::NOATIME), caller_caches: !open.contains(OFlags::DIRECT) };
        self.fs().read_as(ino, args.offset, buf, flags).map_err(errno)
    }

    pub(crate) fn write(&self, req: &mut Request) -> Answer {
        let args: WriteIn = req.args()?;
        let (ino, thread) = (req.head.nodeid, req.head.pid);
        let direct = open_flags(&args).contains(OFlags::DIRECT) && !is_from_cache(&args);
        self.take_back(ino);
        if direct {
            self.notifier.stale.begin(ino, thread);
        }
        let done = self.write_asked(req, &args);
        if direct {
            self.notifier.stale.end(ino, thread);
        }
        done?;
        req.reply(&WriteOut { size: args.size, padding: 0 })
    }

    fn write_asked(&self, req: &Request, args: &WriteIn) -> Result<(), Errno> {
        let (open, from_cache) = (open_flags(args), is_from_cache(args));
        let (ino, data) = (req.head.nodeid, req.content(args.size as usize)?);
        let flags = WriteFlags {
            append: open.contains(OFlags::APPEND) && !from_cache,
            // The kernel does not ask each time, and another mount may have set a capability since.
            kill_capability: !from_cache,
            write_back: from_cache,
            ..WriteFlags::default()
        };
        if args.write_flags & WRITE_KILL_SUIDGID != 0 {
            self.clear_setid(req, ino, |_| false)?;
        }
        let (offset, _) = self.fs().write(ino, args.offset, data, flags).map_err(errno)?;
        if flags.append && offset != args.offset {
            // The file had grown without the kernel's knowledge: its pages show the data at another offset.
            self.notifier.content_moved(ino);
        }
        if !self.durable() && open.intersects(OFlags::DSYNC | OFlags::SYNC) {
            self.fs().fsync(ino, !open.contains(OFlags::SYNC)).map_err(errno)?;
        }
        Ok(())
    }

    pub(crate) fn fallocate(&self, req: &Request) -> Answer {
        let args: FallocateIn = req.args()?;
        let mode = FallocateFlags::from_bits_retain(args.mode);
        let how = Fallocate::of_flags(mode).ok_or(Errno::OPNOTSUPP)?;
        let ino = req.head.nodeid;
        self.clear_setid(req, ino, may_retain_setid)?;
        let done = self.fs().fallocate(ino, how, args.offset, args.length).map_err(errno);
        if done.is_err() {
            self.may_have_changed(ino);
        }
        done.map(|()| 0)
    }

    /// After an error, or after a part of the work, the kernel still believes its cached state of the file.
    fn may_have_changed(&self, ino: Ino) {
        self.notifier.content_moved(ino);
    }

    pub(crate) fn lseek(&self, req: &mut Request) -> Answer {
        let args: LseekIn = req.args()?;
        let what = match args.whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        let offset = self.fs().seek(req.head.nodeid, args.offset, what).map_err(errno)?;
        req.reply(&LseekOut { offset })
    }

    /// May the answer be a hole in which the kernel has pages that were stored to?
    pub(crate) fn may_hide_stores(&self, req: &Request) -> bool {
        Opcode::from_code(req.head.opcode) == Some(Opcode::Lseek)
            && self.seeks.was_read(req.head.nodeid)
            && self.hole_after(req).is_ok_and(|hole| !hole.is_empty())
    }

    /// Has the kernel write back its pages in the holes that the answer to this request depends on. Not for a thread
    /// that serves requests.
    pub(crate) fn write_back_holes(&self, req: &Request) -> Result<(), Errno> {
        let mut written = 0;
        loop {
            let hole = self.hole_after(req)?;
            // Data in the first hole changes the answer.
            if hole.end <= written {
                return Ok(());
            }
            written = hole.end;
            self.notifier.write_back(req.head.nodeid, hole);
        }
    }

    /// The hole that decides the answer in the present state of the file system: SEEK_DATA passes over it, or SEEK_HOLE
    /// finds it. Empty: none.
    fn hole_after(&self, req: &Request) -> Result<Range<u64>, Errno> {
        let (args, ino): (LseekIn, _) = (req.args()?, req.head.nodeid);
        let start = match args.whence {
            SEEK_HOLE => self.fs().seek(ino, args.offset, Seek::Hole).map_err(errno)?,
            _ => args.offset,
        };
        let end = match self.fs().seek(ino, start, Seek::Data).map_err(errno) {
            Err(Errno::NXIO) => self.fs().getattr(ino).map_err(errno)?.size,
            end => end?,
        };
        Ok(start..end)
    }

    pub(crate) fn copy_file_range(&self, opcode: Opcode, req: &mut Request) -> Answer {
        let args: CopyFileRangeIn = req.args()?;
        if args.flags != 0 {
            return Err(Errno::INVAL);
        }
        let from = (req.head.nodeid, args.off_in);
        let to = (args.nodeid_out, args.off_out);
        let size = |ino| self.fs().getattr(ino).map(|attr| attr.size).map_err(errno);
        let there = args.len.min(COPY_MAX).min(size(from.0)?.saturating_sub(from.1));
        let Some(asked) = copied_in_pages(to.1, there, size(to.0)?) else { return Err(Errno::OPNOTSUPP) };
        self.clear_setid(req, to.0, may_retain_setid)?;
        let copied = self.fs().copy_range(from, to, asked).map_err(errno);
        let at_end = |copied| self.fs().getattr(from.0).is_ok_and(|attr| attr.size <= from.1 + copied);
        // Beyond the reported length, a part of a piece may have been copied.
        if !copied.is_ok_and(|copied| copied == asked || at_end(copied)) {
            self.may_have_changed(to.0);
        }
        let copied = copied?;
        match opcode {
            Opcode::CopyFileRange64 => req.reply(&CopyFileRangeOut { bytes_copied: copied }),
            _ => req.reply(&WriteOut { size: copied as u32, padding: 0 }),
        }
    }

    pub(crate) fn fsync(&self, req: &Request) -> Answer {
        if self.durable() {
            // The kernel remembers this answer and asks no more.
            return Err(Errno::NOSYS);
        }
        let args: FsyncIn = req.args()?;
        self.fs().fsync(req.head.nodeid, args.fsync_flags & FSYNC_FDATASYNC != 0).map_err(errno)?;
        Ok(0)
    }

    pub(crate) fn syncfs(&self) -> Answer {
        self.fs().sync().map_err(errno)?;
        Ok(0)
    }

    pub(crate) fn statfs(&self, req: &mut Request) -> Answer {
        let st = self.fs().statfs();
        req.reply(&StatfsOut {
            blocks: st.blocks,
            bfree: st.free_blocks,
            bavail: st.available_blocks,
            files: st.inodes,
            ffree: st.free_inodes,
            bsize: st.block_size,
            namelen: st.name_max,
            frsize: st.block_size,
            ..Default::default()
        })
    }
}

/// How many of `len` bytes may be copied to `at` in a file of `size` bytes without changing a page that retains a part
/// of its content. The kernel drops its copy of a changed page, and with it any store that a program made there through
/// a mapping meanwhile. `None`: no bytes; the kernel then reads and writes instead.
fn copied_in_pages(at: u64, len: u64, size: u64) -> Option<u64> {
    let end = at.saturating_add(len);
    let end = if end >= size { end } else { end / PAGE * PAGE };
    (len == 0 || at % PAGE == 0 && end > at).then(|| end.saturating_sub(at).min(len))
}

fn open_flags(args: &WriteIn) -> OFlags {
    OFlags::from_bits_retain(args.flags)
}

/// Does this write carry data that a program stored through a mapping?
fn is_from_cache(args: &WriteIn) -> bool {
    args.write_flags & WRITE_CACHE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_copied_and_what_is_at_the_end() {
        assert_eq!(copied_in_pages(0, 100, 0), Some(100), "to a new file");
        assert_eq!(copied_in_pages(0, 100, 100), Some(100));
        assert_eq!(copied_in_pages(0, 100, 101), None);
        assert_eq!(copied_in_pages(4096, 9000, 20_000), Some(8192));
        assert_eq!(copied_in_pages(1, 9000, 0), None, "what comes before it in the page stays");
        assert_eq!(copied_in_pages(1, 0, 0), Some(0));
        assert_eq!(copied_in_pages(0, u64::MAX, 5), Some(u64::MAX));
    }
}
