//! A directory with one file: opcode → call of the device.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use export::BlockDevice;
use exraid::{Class, Error};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::message::{value, Message, Reply};
use crate::abi::{
    self, AttrOut, Dirent, EntryOut, FallocateIn, Opcode, OpenOut, ReadIn, SetattrIn, StatfsOut, WireAttr, WriteIn,
    WriteOut, ROOT_ID,
};

/// The name of the file.
pub const FILE: &str = "volume";
const FILE_ID: u64 = 2;
/// Attributes never change.
const FOREVER: u64 = 1 << 30;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

const KEEP_SIZE: u32 = 1 << 0;
const PUNCH_HOLE: u32 = 1 << 1;
const ZERO_RANGE: u32 = 1 << 4;

type Answer = Result<Reply, Errno>;

/// The file system.
pub struct OneFile {
    device: Arc<dyn BlockDevice>,
    owner: (u32, u32),
    made: u64,
}

fn errno(e: &Error) -> Errno {
    match e.class {
        Class::NoSpace => Errno::NOSPC,
        Class::ReadOnly => Errno::ROFS,
        Class::Invalid => Errno::INVAL,
        _ => Errno::IO,
    }
}

/// Logged here once: the caller only gets a number.
fn failed(e: Error) -> Errno {
    tracing::error!("{e}");
    errno(&e)
}

impl OneFile {
    pub fn new(device: Arc<dyn BlockDevice>) -> OneFile {
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        OneFile { device, owner, made }
    }

    /// `None`: the request wants no reply.
    pub fn serve(&self, message: &mut Message) -> Option<Answer> {
        let node = message.head().nodeid;
        Some(match message.opcode() {
            Some(Opcode::Forget | Opcode::BatchForget) => return None,
            Some(Opcode::Read) => self.read(message),
            Some(Opcode::Write) => self.write(message),
            Some(Opcode::Fsync | Opcode::Fsyncdir | Opcode::Syncfs | Opcode::Destroy) => self.flush(),
            Some(Opcode::Fallocate) => self.fallocate(message),
            Some(Opcode::Lookup) => self.lookup(node, message),
            Some(Opcode::Getattr) => self.attr(node).map(|attr| attr_out(&attr)),
            Some(Opcode::Setattr) => self.setattr(node, message),
            Some(Opcode::Open) => self.open(node),
            Some(Opcode::Opendir) => Ok(value(&OpenOut::default())),
            Some(Opcode::Readdir) => self.readdir(node, message),
            Some(Opcode::Release | Opcode::Releasedir) => Ok(Reply::Nothing),
            Some(Opcode::Statfs) => Ok(self.statfs()),
            // The kernel remembers this answer and asks no more.
            _ => Err(Errno::NOSYS),
        })
    }

    fn attr(&self, node: u64) -> Result<WireAttr, Errno> {
        let size = self.device.size();
        let all = WireAttr {
            ino: node,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            blksize: self.device.preferred().clamp(4096, 1 << 20),
            ..Default::default()
        };
        match node {
            ROOT_ID => Ok(WireAttr { mode: DIRECTORY | 0o500, nlink: 2, ..all }),
            FILE_ID => Ok(WireAttr { mode: REGULAR | 0o600, size, blocks: size / 512, ..all }),
            _ => Err(Errno::NOENT),
        }
    }

    fn lookup(&self, node: u64, message: &mut Message) -> Answer {
        if node != ROOT_ID || message.name()? != FILE.as_bytes() {
            return Err(Errno::NOENT);
        }
        let attr = self.attr(FILE_ID)?;
        Ok(value(&EntryOut { nodeid: FILE_ID, entry_valid: FOREVER, attr_valid: FOREVER, attr, ..Default::default() }))
    }

    /// As with a block device, no request changes its size or its times.
    fn setattr(&self, node: u64, message: &mut Message) -> Answer {
        let args: SetattrIn = message.args()?;
        match args.valid & (abi::fattr::MODE | abi::fattr::UID | abi::fattr::GID) {
            0 => self.attr(node).map(|attr| attr_out(&attr)),
            _ => Err(Errno::PERM),
        }
    }

    fn open(&self, node: u64) -> Answer {
        match node {
            FILE_ID => {
                let open_flags = abi::FOPEN_DIRECT_IO | abi::FOPEN_NOFLUSH | abi::FOPEN_PARALLEL_DIRECT_WRITES;
                Ok(value(&OpenOut { open_flags, ..Default::default() }))
            }
            _ => Err(Errno::NOENT),
        }
    }

    fn readdir(&self, node: u64, message: &mut Message) -> Answer {
        let args: ReadIn = message.args()?;
        if node != ROOT_ID {
            return Err(Errno::NOTDIR);
        }
        let entries = [(".", ROOT_ID, DIRECTORY), ("..", ROOT_ID, DIRECTORY), (FILE, FILE_ID, REGULAR)];
        let mut out = Vec::new();
        for (n, (name, ino, mode)) in entries.into_iter().enumerate().skip(args.offset as usize) {
            let head = Dirent { ino, off: n as u64 + 1, namelen: name.len() as u32, kind: mode >> 12 };
            let len = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
            if out.len() + len > args.size as usize {
                break;
            }
            let end = out.len() + len;
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(name.as_bytes());
            out.resize(end, 0);
        }
        Ok(Reply::Bytes(out))
    }

    fn statfs(&self) -> Reply {
        let (bsize, size) = (4096, self.device.size());
        let blocks = size / u64::from(bsize);
        value(&StatfsOut { blocks, files: 1, bsize, frsize: bsize, namelen: 255, ..Default::default() })
    }

    fn read(&self, message: &mut Message) -> Answer {
        let args: ReadIn = message.args()?;
        // A read beyond the end returns nothing, as in any file.
        let left = self.device.size().saturating_sub(args.offset);
        let len = u64::from(args.size).min(left) as usize;
        if len == 0 {
            return Ok(Reply::Nothing);
        }
        let found = self.device.read(args.offset, message.room(len)).map_err(failed)?;
        Ok(message.filled(&found))
    }

    fn write(&self, message: &mut Message) -> Answer {
        let args: WriteIn = message.args()?;
        let size = args.size;
        if args.offset.saturating_add(u64::from(size)) > self.device.size() {
            return Err(Errno::NOSPC);
        }
        self.device.write(args.offset, message.content(size)?).map_err(failed)?;
        Ok(value(&WriteOut { size, padding: 0 }))
    }

    fn flush(&self) -> Answer {
        self.device.flush().map_err(failed).map(|()| Reply::Nothing)
    }

    fn fallocate(&self, message: &mut Message) -> Answer {
        let args: FallocateIn = message.args()?;
        let end = args.offset.checked_add(args.length).filter(|end| *end <= self.device.size()).ok_or(Errno::NOSPC)?;
        let range = args.offset..end;
        let done = match args.mode & !KEEP_SIZE {
            // The caller then writes zeros itself, and discards nothing.
            PUNCH_HOLE if !self.device.discards() => return Err(Errno::OPNOTSUPP),
            PUNCH_HOLE => self.device.discard(range),
            ZERO_RANGE => self.device.zero(range),
            0 => self.device.reserve(range),
            _ => return Err(Errno::OPNOTSUPP),
        };
        done.map_err(failed).map(|()| Reply::Nothing)
    }
}

fn attr_out(attr: &WireAttr) -> Reply {
    value(&AttrOut { attr_valid: FOREVER, attr_valid_nsec: 0, dummy: 0, attr: *attr })
}
