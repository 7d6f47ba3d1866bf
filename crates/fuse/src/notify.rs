//! What other processes changed, told to the kernel's caches; what the kernel may keep without it is all.
//!
//! A notification may wait in the kernel for a request on the same inode or directory, so it is never sent
//! from a thread that serves requests.

use std::io::IoSlice;
use std::sync::Arc;

use fs::node::Change;
use fs::{Fs, Ino, Kind, ROOT};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    NotifyInvalEntry, NotifyInvalInode, OutHeader, INC_EPOCH_MINOR, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY,
    NOTIFY_INVAL_INODE,
};
use crate::sys::Device;

/// Sends notifications; cheap to clone.
#[derive(Clone)]
pub struct Notifier {
    device: Arc<Device>,
    /// The kernel's protocol version.
    minor: u32,
}

impl Notifier {
    pub fn new(device: Arc<Device>, minor: u32) -> Notifier {
        Notifier { device, minor }
    }

    /// Can the kernel be told to look all names up again?
    pub fn knows_epochs(&self) -> bool {
        self.minor >= INC_EPOCH_MINOR
    }

    /// Tells the kernel of a change that another process made.
    pub fn tell(&self, fs: &Fs, change: Change) {
        tracing::trace!(?change, "notify");
        match change {
            Change::Inode { ino, attr_only } => self.inode(ino, attr_only),
            Change::Entry { parent, name } => self.entry(parent, &name),
            Change::All => self.all(fs),
        }
    }

    /// An append went elsewhere than the kernel believed. Rare, hence a thread for each.
    pub fn content_moved(&self, ino: Ino) {
        let this = self.clone();
        let spawned = std::thread::Builder::new().name("fuse-moved".into()).spawn(move || this.inode(ino, false));
        if let Err(e) = spawned {
            tracing::warn!(ino, "the kernel may show an append at the wrong place: {e}");
        }
    }

    /// Attributes and ACLs, and unless `attr_only` all pages.
    fn inode(&self, ino: Ino, attr_only: bool) {
        let off = if attr_only { -1 } else { 0 };
        self.send(NOTIFY_INVAL_INODE, &NotifyInvalInode { ino, off, len: 0 }, &[]);
    }

    /// A name, there or not; and with it the directory's attributes and listing.
    fn entry(&self, parent: Ino, name: &[u8]) {
        let head = NotifyInvalEntry { parent, namelen: name.len() as u32, flags: 0 };
        self.send(NOTIFY_INVAL_ENTRY, &head, &[name, b"\0"]);
        // A name that is not cached stops the kernel before it comes to the directory.
        self.inode(parent, false);
    }

    /// Everything: names by a new epoch, the rest one by one.
    fn all(&self, fs: &Fs) {
        if self.knows_epochs() {
            self.send(NOTIFY_INC_EPOCH, &(), &[]);
        }
        self.inode(ROOT, false);
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let mut found = Vec::new();
            let listed = fs.readdir(dir, 0, &mut |e| {
                if e.name != b"." && e.name != b".." {
                    found.push((e.ino, e.kind, e.name.to_vec()));
                }
                true
            });
            if let Err(e) = listed {
                tracing::warn!(dir, "cannot list a directory to have it forgotten: {e}");
            }
            for (ino, kind, name) in found {
                self.inode(ino, false);
                if !self.knows_epochs() {
                    self.entry(dir, &name);
                }
                if kind == Kind::Directory {
                    todo.push(ino);
                }
            }
        }
    }

    fn send<T: IntoBytes + Immutable>(&self, code: i32, body: &T, name: &[&[u8]]) {
        let body = body.as_bytes();
        let len = std::mem::size_of::<OutHeader>() + body.len() + name.iter().map(|n| n.len()).sum::<usize>();
        let head = OutHeader { len: len as u32, error: code, unique: 0 };
        let mut parts = [IoSlice::new(&[]); 4];
        parts[0] = IoSlice::new(head.as_bytes());
        parts[1] = IoSlice::new(body);
        for (part, bytes) in parts[2..].iter_mut().zip(name) {
            *part = IoSlice::new(bytes);
        }
        match rustix::io::writev(&*self.device, &parts[..2 + name.len()]) {
            // Not cached, or the mount is ending: nothing to forget.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED | Errno::NOTDIR) => {}
            Err(e) => tracing::warn!(code, "the kernel refused a notification: {e}"),
        }
    }
}
