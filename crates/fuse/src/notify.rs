//! Notifications to the kernel's caches of what other processes changed; what the kernel may keep without it is all.
//!
//! A notification that drops pages or names may wait in the kernel for a request that holds the page or the directory,
//! so it is never sent from a thread that serves requests; nor, where there is a [guard](crate::guard), from this
//! process, since not even SIGKILL ends that wait.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conquest_fs::node::{Change, ReadFlags};
use conquest_fs::{Fs, Ino, Kind, ROOT};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    NotifyInvalEntry, NotifyInvalInode, NotifyStore, OutHeader, INC_EPOCH_MINOR, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY,
    NOTIFY_INVAL_INODE, NOTIFY_STORE,
};
use crate::stale_attrs::StaleAttrs;
use crate::sys::Device;
use crate::wait_policy;

/// How long, and how often, the kernel gets a notification again that does not have the inode and is about to: what it asked
/// for is done at once, as a rule, or waits for a commit.
const KNOWN: (Duration, u32) = (Duration::from_micros(200), 250);
/// Longest notification: that of a name.
const LONGEST: usize = std::mem::size_of::<OutHeader>() + std::mem::size_of::<NotifyInvalEntry>() + 256;

/// Sends notifications; cheap to clone.
#[derive(Clone)]
pub struct Notifier {
    device: Arc<Device>,
    /// The kernel's protocol version.
    minor: u32,
    /// To the process that sends those which may wait.
    guard: Arc<Mutex<Option<UnixStream>>>,
    moved: Arc<Mutex<Moved>>,
    /// Files whose attributes the kernel is not to believe.
    pub stale: Arc<StaleAttrs>,
}

/// Files whose content is not where the kernel believes, and which it has no notification of yet.
#[derive(Default)]
struct Moved {
    files: BTreeSet<Ino>,
    /// A thread tells it.
    is_notified: bool,
}

impl Notifier {
    pub fn new(device: Arc<Device>, minor: u32) -> Notifier {
        Notifier { device, minor, guard: Arc::default(), moved: Arc::default(), stale: Arc::default() }
    }

    /// From now on a process at the other end sends what may wait.
    pub fn delegate(&self, guard: UnixStream) {
        *lock(&self.guard) = Some(guard);
    }

    /// Can a notification make the kernel look all names up again?
    pub fn knows_epochs(&self) -> bool {
        self.minor >= INC_EPOCH_MINOR
    }

    /// Tells the kernel of a change that another process made.
    pub fn tell(&self, fs: &Fs, change: Change) {
        tracing::trace!(?change, "notify");
        match change {
            Change::Inode { ino, attr_only, grown } => {
                if !attr_only {
                    self.stale.forget(ino);
                }
                self.known_inode(fs, ino, attr_only);
                if grown {
                    self.grown(fs, ino);
                }
            }
            Change::Entry { parent, name } => self.entry(parent, &name),
            Change::All => {
                wait_policy::come_among_others();
                self.all(fs);
                wait_policy::come_first();
            }
        }
    }

    /// A request changed a file's content otherwise than the kernel believes. Rare, hence a thread that comes and goes: the
    /// request's own must not wait for what the request holds.
    pub fn content_moved(&self, ino: Ino) {
        let mut moved = lock(&self.moved);
        moved.files.insert(ino);
        if moved.is_notified {
            return;
        }
        let this = self.clone();
        match std::thread::Builder::new().name("fuse-moved".into()).spawn(move || this.tell_moved()) {
            Ok(_) => moved.is_notified = true,
            Err(e) => tracing::warn!(ino, "the kernel may show what the file held before: {e}"),
        }
    }

    /// Tells of all files whose content has moved, until there are no more.
    fn tell_moved(&self) {
        loop {
            let mut moved = lock(&self.moved);
            let Some(ino) = moved.files.pop_first() else {
                moved.is_notified = false;
                return;
            };
            drop(moved);
            self.inode(ino, false);
        }
    }

    /// Has the kernel write back what programs have stored in a range of a file, and drop its pages of it; waits for that.
    pub fn write_back(&self, ino: Ino, range: Range<u64>) {
        let at = |off: u64| off.min(i64::MAX as u64) as i64;
        let (off, len) = (at(range.start), at(range.end) - at(range.start));
        // No length would mean to the end.
        if len > 0 {
            self.send(NOTIFY_INVAL_INODE, &NotifyInvalInode { ino, off, len }, &[]);
        }
    }

    /// Attributes and ACLs, and unless `attr_only` all pages. False if the kernel has no such inode.
    fn inode(&self, ino: Ino, attr_only: bool) -> bool {
        let off = if attr_only { -1 } else { 0 };
        self.send(NOTIFY_INVAL_INODE, &NotifyInvalInode { ino, off, len: 0 }, &[])
    }

    /// The same of one that the kernel may be about to have: the reply that brings it does not say of the change.
    fn known_inode(&self, fs: &Fs, ino: Ino, attr_only: bool) {
        for _ in 0..KNOWN.1 {
            if self.inode(ino, attr_only) || !fs.is_retained(ino) {
                return;
            }
            std::thread::sleep(KNOWN.0);
        }
    }

    /// Attributes that were asked for before are not noted when they come. For the thread that serves a request of the
    /// inode: then nobody has to be waited for, not by this notification.
    pub fn outdate(&self, ino: Ino) {
        let body = NotifyInvalInode { ino, off: -1, len: 0 };
        report(NOTIFY_INVAL_INODE, write(&self.device, &message(NOTIFY_INVAL_INODE, body.as_bytes(), &[])));
    }

    /// A file is longer, which its attributes do not say until somebody asks for them: where it ends the kernel writes what
    /// is appended, and maps and copies no further. A byte stored at the end makes it know.
    ///
    /// Its pages are dropped before: those that were stored to are written back up to the end that the kernel knew, and
    /// beyond it they have nothing. That of the byte is dropped after, too: somebody may have written there through this
    /// mount meanwhile, and the kernel may take for whole what has only this byte.
    fn grown(&self, fs: &Fs, ino: Ino) {
        let Some((offset, last)) = last_byte(fs, ino) else { return };
        self.send(NOTIFY_STORE, &NotifyStore { ino, offset, size: 1, padding: 0 }, &[&[last]]);
        self.send(NOTIFY_INVAL_INODE, &NotifyInvalInode { ino, off: offset as i64, len: 1 }, &[]);
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
        self.stale.forget_all();
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
                if kind == Kind::Regular {
                    self.grown(fs, ino);
                }
                if !self.knows_epochs() {
                    self.entry(dir, &name);
                }
                if kind == Kind::Directory {
                    todo.push(ino);
                }
            }
        }
    }

    /// False if the kernel does not have what it is about.
    fn send<T: IntoBytes + Immutable>(&self, code: i32, body: &T, name: &[&[u8]]) -> bool {
        let message = message(code, body.as_bytes(), name);
        let sent = self.hand_over(&message).unwrap_or_else(|| write(&self.device, &message));
        report(code, sent);
        sent != Err(Errno::NOENT)
    }

    /// Has the guard send it, and waits until it is sent. `None`: there is no guard.
    fn hand_over(&self, message: &[u8]) -> Option<Result<(), Errno>> {
        let mut guard = lock(&self.guard);
        let stream = guard.as_mut()?;
        let mut answer = [0; 4];
        if let Err(e) = stream.write_all(message).and_then(|()| stream.read_exact(&mut answer)) {
            tracing::warn!("the guard of the mount is gone, doing without: {e}");
            *guard = None;
            return None;
        }
        match i32::from_ne_bytes(answer) {
            0 => Some(Ok(())),
            code => Some(Err(Errno::from_raw_os_error(code))),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Where a file's last byte is, and what it is. `None`: it has none, or it is no file, or nobody's any more.
fn last_byte(fs: &Fs, ino: Ino) -> Option<(u64, u8)> {
    let attr = fs.getattr(ino).ok().filter(|attr| attr.kind == Kind::Regular)?;
    let (offset, mut last) = (attr.size.checked_sub(1)?, [0]);
    // Cut off meanwhile, what the next notification is of.
    let read = fs.read_as(ino, offset, &mut last, ReadFlags { unnoted: true, caller_caches: true }).ok()?;
    (read == 1).then_some((offset, last[0]))
}

fn report(code: i32, sent: Result<(), Errno>) {
    match sent {
        // Not cached, or the mount is ending: nothing to forget.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED | Errno::NOTDIR) => {}
        Err(e) => tracing::warn!(code, "the kernel refused a notification: {e}"),
    }
}

fn message(code: i32, body: &[u8], name: &[&[u8]]) -> Vec<u8> {
    let len = std::mem::size_of::<OutHeader>() + body.len() + name.iter().map(|n| n.len()).sum::<usize>();
    let head = OutHeader { len: len as u32, error: code, unique: 0 };
    [&[head.as_bytes(), body], name].concat().concat()
}

fn write(device: &Device, message: &[u8]) -> Result<(), Errno> {
    rustix::io::write(device, message).map(drop)
}

/// The guard's part: sends what comes from the server, one after another, until nothing comes any more.
pub fn relay(device: &Device, server: &mut UnixStream) -> std::io::Result<()> {
    let mut message = [0; LONGEST];
    loop {
        let mut head = OutHeader::default();
        server.read_exact(head.as_mut_bytes())?;
        let (size, len) = (std::mem::size_of::<OutHeader>(), head.len as usize);
        if !(size..=LONGEST).contains(&len) {
            return Err(std::io::Error::other("a message that is none"));
        }
        message[..size].copy_from_slice(head.as_bytes());
        server.read_exact(&mut message[size..len])?;
        let code = write(device, &message[..len]).map_or_else(Errno::raw_os_error, |()| 0);
        server.write_all(&code.to_ne_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each started a thread, which may wait in the kernel as long as a request takes.
    #[test]
    fn one_thread_tells_of_all_files_whose_content_moved() {
        let (device, mut kernel) = UnixStream::pair().unwrap();
        // Nobody reads: whoever writes waits.
        device.set_nonblocking(true).unwrap();
        while (&device).write(&[0; 4096]).is_ok() {}
        device.set_nonblocking(false).unwrap();
        let notifier = Notifier::new(Arc::new(Device::from(std::os::fd::OwnedFd::from(device))), 0);
        (1..=200).for_each(|ino| notifier.content_moved(ino));
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().flatten().map(name);
        let count = || tasks().filter(|name| name.trim() == "fuse-moved").count();
        // A thread names itself when it runs.
        while count() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(count(), 1);
        let reads = std::thread::spawn(move || std::io::copy(&mut kernel, &mut std::io::sink()));
        while lock(&notifier.moved).is_notified {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(lock(&notifier.moved).files.is_empty());
        drop(notifier);
        reads.join().unwrap().unwrap();
    }
}
