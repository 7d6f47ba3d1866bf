//! Reads directories, with and without the attributes of their entries.
//!
//! The kernel must not cache listings. It fills its cache while a program reads the directory. If another process
//! changes the directory meanwhile, the kernel may keep entries from before the change for good. And a program that
//! goes on in a listing that was made anew may see it end at a page that is full.

use conquest_fs::node::DirEntry;
use conquest_fs::{Caller, Ino, Kind};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{Dirent, EntryOut, OpenOut, ReadIn};
use crate::convert::{entry_out, errno};
use crate::request::{Answer, Request};
use crate::server::Server;

/// Fills a reply with records, each padded to 8 bytes.
struct Records<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl Records<'_> {
    fn fits(&self, entry: &DirEntry, prefix: usize) -> bool {
        self.len + prefix + record_size(entry) <= self.buf.len()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buf[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Call only if it [`fits`](Self::fits).
    fn put_entry(&mut self, entry: &DirEntry) {
        let end = self.len + record_size(entry);
        self.put(
            Dirent { ino: entry.ino, off: entry.cookie, namelen: entry.name.len() as u32, kind: entry.kind as u32 }
                .as_bytes(),
        );
        self.put(entry.name);
        self.buf[self.len..end].fill(0);
        self.len = end;
    }
}

fn record_size(entry: &DirEntry) -> usize {
    (std::mem::size_of::<Dirent>() + entry.name.len()).next_multiple_of(8)
}

impl Server {
    /// With the answer "not here" the kernel would cache listings.
    pub(crate) fn opendir(&self, req: &mut Request) -> Answer {
        req.reply(&OpenOut::default())
    }

    pub(crate) fn readdir(&self, req: &mut Request) -> Answer {
        self.list(req, 0, |_, _| ())
    }

    pub(crate) fn readdirplus(&self, req: &mut Request) -> Answer {
        let (dir, thread) = (req.head.nodeid, req.head.pid);
        self.list(req, std::mem::size_of::<EntryOut>(), |records, entry| {
            records.put(self.entry_of(dir, entry, thread).as_bytes());
        })
    }

    fn list(&self, req: &mut Request, prefix: usize, mut before: impl FnMut(&mut Records, &DirEntry)) -> Answer {
        let args: ReadIn = req.args()?;
        let size = (args.size as usize).min(req.data.len());
        let mut records = Records { buf: &mut req.data[..size], len: 0 };
        let (mut full, thread) = (false, req.head.pid);
        let cookie = self.cookies.meant(args.offset)?;
        let listed = self.fs().readdir(req.head.nodeid, cookie, &mut |entry| {
            full = !records.fits(&entry, prefix);
            if !full {
                before(&mut records, &entry);
                records.put_entry(&DirEntry { cookie: self.cookies.shown(entry.cookie, thread), ..entry });
            }
            !full
        });
        match (listed, records.len) {
            // Entries listed before a failure count: the kernel holds references to them.
            (Err(e), 0) => Err(errno(e)),
            (Ok(()), 0) if full => Err(Errno::INVAL),
            // A kernel that has removed it does not ask.
            _ if self.fs().is_removed(req.head.nodeid).is_ok_and(|is_removed| is_removed) => Err(Errno::NOENT),
            (_, len) => Ok(len),
        }
    }

    /// The attributes of an entry in READDIRPLUS. Node 0 means none: the kernel looks the entry up if it needs it. This
    /// is so for `.` and `..`, to which the kernel takes no reference, for a file that grows, for a name that another process
    /// has changed since, and where memory for a reference is lacking.
    fn entry_of(&self, dir: Ino, entry: &DirEntry, thread: u32) -> EntryOut {
        if entry.name == b"." || entry.name == b".." {
            return EntryOut::default();
        }
        match self.look_up(dir, entry.name, &Caller::root()) {
            Ok((attr, valid)) if attr.kind == Kind::Directory || !self.is_growing(attr.ino, thread) => {
                entry_out(&attr, valid)
            }
            Ok((attr, _)) => {
                self.fs().release(attr.ino, 1);
                EntryOut::default()
            }
            Err(_) => EntryOut::default(),
        }
    }
}
