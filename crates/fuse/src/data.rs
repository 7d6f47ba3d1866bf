//! Requests about content: read, write, allocate, seek, copy, sync; and the sizes of the pool.

use fs::node::{Fallocate, Seek, WriteFlags};
use fs::{Fs, Ino};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::abi::{
    CopyFileRangeIn, CopyFileRangeOut, FallocateIn, FsyncIn, LseekIn, LseekOut, Opcode, ReadIn, StatfsOut, WriteIn,
    WriteOut, FSYNC_FDATASYNC, WRITE_CACHE, WRITE_KILL_SUIDGID,
};
use crate::notify::Notifier;
use crate::request::{Answer, Later, Request};
use crate::server::{errno, Server};
use crate::uncached;

/// Most bytes copied for one request, so that others in its queue need not wait long; the caller asks again
/// for the rest.
const COPY_MAX: u64 = 16 << 20;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// A write, as its request asks for it.
struct Write {
    ino: Ino,
    offset: u64,
    flags: WriteFlags,
    open: OFlags,
}

impl Write {
    fn new(ino: Ino, args: &WriteIn) -> Write {
        let open = OFlags::from_bits_retain(args.flags);
        let flags = WriteFlags {
            append: open.contains(OFlags::APPEND) && args.write_flags & WRITE_CACHE == 0,
            kill_suidgid: args.write_flags & WRITE_KILL_SUIDGID != 0,
        };
        Write { ino, offset: args.offset, flags, open }
    }

    fn content(&self, fs: &Fs, notifier: &Notifier, data: &[u8]) -> Result<(), Errno> {
        let (offset, _) = fs.write(self.ino, self.offset, data, self.flags).map_err(errno)?;
        if self.flags.append && offset != self.offset {
            // The file had grown without the kernel's knowledge: its pages show the data elsewhere.
            notifier.content_moved(self.ino);
        }
        Ok(())
    }

    /// Waits until it is durable, if the file was opened for that.
    fn sync(&self, fs: &Fs) -> Result<(), Errno> {
        if fs.durable_at_return() || !self.open.intersects(OFlags::DSYNC | OFlags::SYNC) {
            return Ok(());
        }
        fs.fsync(self.ino, !self.open.contains(OFlags::SYNC)).map_err(errno)
    }
}

impl Server {
    pub(crate) fn read(&self, req: &mut Request) -> Answer {
        let args: ReadIn = req.args()?;
        let size = (args.size as usize).min(req.data.len());
        self.uncached.note_read(req.head.nodeid);
        self.fs().read(req.head.nodeid, args.offset, &mut req.data[..size]).map_err(errno)
    }

    pub(crate) fn write(&self, req: &mut Request) -> Answer {
        let args: WriteIn = req.args()?;
        let write = Write::new(req.head.nodeid, &args);
        let data = req.content(args.size as usize)?;
        if args.fh != uncached::HANDLE || args.write_flags & WRITE_CACHE != 0 {
            write.content(self.fs(), &self.notifier, data)?;
        } else if let Some(written) = self.uncached.write(write.ino, || write.content(self.fs(), &self.notifier, data))
        {
            written?;
        } else {
            req.later = Some(self.write_later(write, data.to_vec()));
            return req.reply(&WriteOut { size: args.size, padding: 0 });
        }
        write.sync(self.fs())?;
        req.reply(&WriteOut { size: args.size, padding: 0 })
    }

    /// A write that pages must be dropped for.
    fn write_later(&self, write: Write, data: Vec<u8>) -> Later {
        let (pool, notifier, uncached) = (self.pool().clone(), self.notifier.clone(), self.uncached.clone());
        let room = self.room.clone();
        Box::new(move || {
            // Only with O_DIRECT there may be other writes of the file under way, whose pages are then dropped too.
            let (off, len) = match write.open.contains(OFlags::DIRECT) || write.flags.append {
                true => (0, 0),
                false => (write.offset, data.len()),
            };
            let drop_pages = || notifier.drop_pages(write.ino, off, len);
            let write_all = || write.content(&pool, &notifier, &data);
            let full = Err(Errno::NOSPC);
            uncached.drop_and_write(write.ino, drop_pages, || match write_all() {
                written if written == full => room.retry(full, write_all),
                written => written,
            })?;
            write.sync(&pool)
        })
    }

    pub(crate) fn fallocate(&self, req: &Request) -> Answer {
        let args: FallocateIn = req.args()?;
        let mode = FallocateFlags::from_bits_retain(args.mode);
        let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let how = match mode.difference(FallocateFlags::KEEP_SIZE) {
            FallocateFlags::PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            FallocateFlags::ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            FallocateFlags::COLLAPSE_RANGE if !keep_size => Fallocate::CollapseRange,
            FallocateFlags::INSERT_RANGE if !keep_size => Fallocate::InsertRange,
            rest if rest.is_empty() => Fallocate::Allocate { keep_size },
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.fs().fallocate(req.head.nodeid, how, args.offset, args.length).map_err(errno)?;
        Ok(0)
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

    pub(crate) fn copy_file_range(&self, opcode: Opcode, req: &mut Request) -> Answer {
        let args: CopyFileRangeIn = req.args()?;
        if args.flags != 0 {
            return Err(Errno::INVAL);
        }
        let from = (req.head.nodeid, args.off_in);
        let to = (args.nodeid_out, args.off_out);
        let copied = self.fs().copy_range(from, to, args.len.min(COPY_MAX)).map_err(errno)?;
        match opcode {
            Opcode::CopyFileRange64 => req.reply(&CopyFileRangeOut { bytes_copied: copied }),
            _ => req.reply(&WriteOut { size: copied as u32, padding: 0 }),
        }
    }

    pub(crate) fn fsync(&self, req: &Request) -> Answer {
        if self.durable() {
            // Remembered by the kernel: it asks no more.
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
            bavail: st.free_blocks,
            files: st.inodes,
            ffree: st.free_inodes,
            bsize: st.block_size,
            namelen: st.name_max,
            frsize: st.block_size,
            ..Default::default()
        })
    }
}
