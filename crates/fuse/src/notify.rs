//! Notifications to the kernel's caches about changes by other processes; without one, the kernel may cache everything.
//!
//! A notification that drops pages or names may wait in the kernel for a request that holds the page or the directory.
//! So no thread that serves requests sends one; nor, where there is a [guard](crate::guard), does this process, since
//! not even SIGKILL ends that wait.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use conquest_fs::node::{Change, ReadFlags, Recall};
use conquest_fs::{Fs, Ino, Kind, ROOT};
use pram::priority;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{
    NotifyInvalEntry, NotifyInvalInode, NotifyPrune, NotifyStore, OutHeader, INC_EPOCH_MINOR, NOTIFY_INC_EPOCH,
    NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NOTIFY_STORE, PRUNE_MINOR,
};
use crate::absent::Absent;
use crate::prune::{self, Window};
use crate::stale_attrs::StaleAttrs;
use crate::sys::Device;

/// Interval and number of attempts to notify the kernel of an inode that it does not have yet but is about to get. As a
/// rule the pending request is done at once, or waits for a commit.
const KNOWN: (Duration, u32) = (Duration::from_micros(200), 250);
/// The length of the longest notification, that of inodes to forget.
const LONGEST: usize = std::mem::size_of::<OutHeader>() + std::mem::size_of::<NotifyPrune>() + 8 * prune::MOST;
/// Most notifications on their way to the guard before its answers are read: neither side waits for room in the socket.
const UNDER_WAY: usize = 64;

/// Sends notifications; cheap to clone.
#[derive(Clone)]
pub struct Notifier {
    device: Arc<Device>,
    /// The kernel's protocol version.
    minor: u32,
    /// To the process that sends the notifications that may wait.
    guard: Arc<Mutex<Option<UnixStream>>>,
    moved: Arc<Mutex<Moved>>,
    /// Files whose attributes the kernel is not to believe.
    pub stale: Arc<StaleAttrs>,
    /// Names of which it caches that they do not exist.
    pub absent: Arc<Absent>,
    window: Arc<Mutex<Window>>,
    /// The thread that reads FORGETs, if it lets them gather.
    forgets: Arc<OnceLock<Thread>>,
}

/// Files whose content the kernel believes at the wrong offsets, and that it has no notification of yet.
#[derive(Default)]
struct Moved {
    files: BTreeSet<Ino>,
    /// A thread is sending these notifications.
    is_notified: bool,
}

impl Notifier {
    pub fn new(device: Arc<Device>, minor: u32) -> Notifier {
        Notifier {
            device,
            minor,
            guard: Arc::default(),
            moved: Arc::default(),
            stale: Arc::default(),
            absent: Arc::default(),
            window: Arc::default(),
            forgets: Arc::default(),
        }
    }

    /// From now on the process at the other end sends the notifications that may wait.
    pub fn send_through(&self, guard: UnixStream) {
        *lock(&self.guard) = Some(guard);
    }

    /// This thread reads FORGETs, and rests (`park_timeout`) in between.
    pub fn forgets_come_to(&self, thread: Thread) {
        let _ = self.forgets.set(thread);
    }

    /// Has that thread read the FORGETs that have come: until then changes of these inodes need notifications.
    fn read_forgets(&self) {
        self.forgets.get().into_iter().for_each(Thread::unpark);
    }

    /// Can a notification make the kernel look up all names again?
    pub fn knows_epochs(&self) -> bool {
        self.minor >= INC_EPOCH_MINOR
    }

    /// Notifies the kernel of a change by another process.
    pub fn tell(&self, fs: &Fs, change: Change) {
        tracing::trace!(?change, "notify");
        match change {
            Change::Inode { ino, attr_only: true, .. } => {
                let mut messages = vec![inval_inode(ino, true)];
                messages.extend(self.prune(fs, ino));
                let _ = self.send_all(&messages)[0] || self.known_inode(fs, ino, true);
            }
            Change::Inode { ino, grown, .. } => self.content(fs, ino, grown),
            Change::Entry { parent, name, old } => self.directory(fs, parent, Some((&name, old))),
            Change::Directory(dir) => self.directory(fs, dir, None),
            Change::All => {
                priority::come_among_others();
                self.all(fs);
                priority::come_first();
            }
        }
    }

    /// Recalls a file whose content has changed. The kernel caches nothing of it after this, but has to know where it ends.
    fn content(&self, fs: &Fs, ino: Ino, grown: bool) {
        self.stale.forget(ino);
        fs.session().begin_recall(ino);
        let forgotten = self.known_inode(fs, ino, false);
        if grown {
            self.grown(fs, ino);
        }
        end_recall(fs, ino, forgotten);
        self.send_all(self.prune(fs, ino).as_slice());
    }

    /// Recalls a directory: its attributes, and the names of which the kernel caches that they do not exist. And drops a name
    /// with the attributes of its inode.
    fn directory(&self, fs: &Fs, dir: Ino, name: Option<(&[u8], Option<Ino>)>) {
        let (session, mut messages) = (fs.session(), Vec::new());
        let recalls = !matches!(session.recall(dir), Recall::Done { .. });
        if recalls {
            session.begin_recall(dir);
            messages.push(inval_inode(dir, true));
            messages.extend(self.absent.take(dir).iter().map(|name| inval_entry(dir, name)));
        }
        let (old, of_old) = (name.and_then(|(_, old)| old), messages.len());
        // The inode before the name: with the name the kernel may forget it, and then seems not to have it yet.
        messages.extend(old.map(|ino| inval_inode(ino, true)));
        messages.extend(name.map(|(name, _)| inval_entry(dir, name)));
        messages.extend(old.and_then(|ino| self.prune(fs, ino)));
        let sent = self.send_all(&messages);
        if recalls {
            end_recall(fs, dir, sent[0] || self.known_inode(fs, dir, true));
        }
        if let Some(ino) = old.filter(|_| !sent[of_old]) {
            self.known_inode(fs, ino, true);
        }
    }

    /// Makes the kernel forget an inode that has changed, and others, unless they are in use.
    fn prune(&self, fs: &Fs, ino: Ino) -> Option<Vec<u8>> {
        if self.minor < PRUNE_MINOR {
            return None;
        }
        let inos = lock(&self.window).after(fs, ino);
        let head = NotifyPrune { count: inos.len() as u32, ..Default::default() };
        Some(message(NOTIFY_PRUNE, head.as_bytes(), &[inos.as_bytes()]))
    }

    /// A request changed a file's content otherwise than the kernel believes. This is rare, so a thread is started for
    /// it: the request's own thread must not wait for pages that the request holds.
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

    /// Notifies the kernel of all files whose content has moved, until there are no more.
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

    /// Makes the kernel write back the stores of programs in a range of a file, and drop its pages there; waits for
    /// that.
    pub fn write_back(&self, ino: Ino, range: Range<u64>) {
        let at = |off: u64| off.min(i64::MAX as u64) as i64;
        let (off, len) = (at(range.start), at(range.end) - at(range.start));
        // A length of 0 would mean up to the end.
        if len > 0 {
            self.send(NOTIFY_INVAL_INODE, &NotifyInvalInode { ino, off, len }, &[]);
        }
    }

    /// Drops attributes and ACLs, and unless `attr_only` all pages. False if the kernel has no such inode.
    fn inode(&self, ino: Ino, attr_only: bool) -> bool {
        self.send_all(&[inval_inode(ino, attr_only)])[0]
    }

    /// As [`inode`](Self::inode), for an inode that the kernel may be about to get by a reply from before the change. False if
    /// the kernel had not got it at last.
    fn known_inode(&self, fs: &Fs, ino: Ino, attr_only: bool) -> bool {
        for _ in 0..KNOWN.1 {
            if self.inode(ino, attr_only) || !fs.is_retained(ino) {
                return true;
            }
            self.read_forgets();
            std::thread::sleep(KNOWN.0);
        }
        false
    }

    /// Makes the kernel ignore attributes that it has asked for already. For the thread that serves a request of the
    /// inode: this notification then waits for no other request.
    pub fn outdate(&self, ino: Ino) {
        let message = inval_inode(ino, true);
        report(&message, write(&self.device, &message));
    }

    /// A file has become longer. Its attributes tell the kernel only when it asks for them; until then it appends at
    /// the old end, and maps and copies no further. Storing a byte at the new end makes it know.
    ///
    /// Its pages are dropped before: pages that were stored to are written back up to the old end, and hold nothing
    /// beyond it. The page of the byte is also dropped afterwards: a program may have written there through this mount
    /// meanwhile, and the kernel may take the page for whole, which has only this byte.
    fn grown(&self, fs: &Fs, ino: Ino) {
        let Some((offset, last)) = last_byte(fs, ino) else { return };
        self.send(NOTIFY_STORE, &NotifyStore { ino, offset, size: 1, padding: 0 }, &[&[last]]);
        self.send(NOTIFY_INVAL_INODE, &NotifyInvalInode { ino, off: offset as i64, len: 1 }, &[]);
    }

    /// Drops a name, existing or not, and with it the directory's attributes and listing.
    fn entry(&self, parent: Ino, name: &[u8]) {
        self.send_all(&[inval_entry(parent, name)]);
        // If the name is not cached, the kernel stops before it reaches the directory.
        self.inode(parent, false);
    }

    /// Drops everything: names by a new epoch, the rest inode by inode.
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

    /// False if the kernel does not have the inode or name.
    fn send<T: IntoBytes + Immutable>(&self, code: i32, body: &T, rest: &[&[u8]]) -> bool {
        self.send_all(&[message(code, body.as_bytes(), rest)])[0]
    }

    /// The same for several, one after another.
    fn send_all(&self, messages: &[Vec<u8>]) -> Vec<bool> {
        let mut sent = Vec::new();
        for some in messages.chunks(UNDER_WAY) {
            let handed_over = self.hand_over(some);
            let done = handed_over.unwrap_or_else(|| some.iter().map(|message| write(&self.device, message)).collect());
            some.iter().zip(&done).for_each(|(message, done)| report(message, *done));
            sent.extend(done.iter().map(|done| *done != Err(Errno::NOENT)));
        }
        if messages.iter().any(|message| code(message) == NOTIFY_PRUNE) {
            self.read_forgets();
        }
        sent
    }

    /// Has the guard send notifications, and waits for that. `None`: there is no guard.
    fn hand_over(&self, messages: &[Vec<u8>]) -> Option<Vec<Result<(), Errno>>> {
        let mut guard = lock(&self.guard);
        let stream = guard.as_mut()?;
        let mut answers = vec![[0; 4]; messages.len()];
        let handed_over = stream.write_all(&messages.concat());
        if let Err(e) = handed_over.and_then(|()| stream.read_exact(answers.as_flattened_mut())) {
            tracing::warn!("the guard of the mount is gone, doing without: {e}");
            *guard = None;
            return None;
        }
        let answer = |answer| match i32::from_ne_bytes(answer) {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(code)),
        };
        Some(answers.into_iter().map(answer).collect())
    }
}

/// Drops attributes and ACLs, and unless `attr_only` all pages.
fn inval_inode(ino: Ino, attr_only: bool) -> Vec<u8> {
    let off = if attr_only { -1 } else { 0 };
    message(NOTIFY_INVAL_INODE, NotifyInvalInode { ino, off, len: 0 }.as_bytes(), &[])
}

/// Drops a name, existing or not.
fn inval_entry(parent: Ino, name: &[u8]) -> Vec<u8> {
    let head = NotifyInvalEntry { parent, namelen: name.len() as u32, flags: 0 };
    message(NOTIFY_INVAL_ENTRY, head.as_bytes(), &[name, b"\0"])
}

/// `forgotten`: does the kernel cache nothing of the inode any more? Else the next change needs a notification, too.
fn end_recall(fs: &Fs, ino: Ino, forgotten: bool) {
    match forgotten {
        true => fs.session().end_recall(ino),
        false => fs.session().take_back(ino),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The offset and value of a file's last byte. `None`: the file is empty, of another kind, or freed.
fn last_byte(fs: &Fs, ino: Ino) -> Option<(u64, u8)> {
    let attr = fs.getattr(ino).ok().filter(|attr| attr.kind == Kind::Regular)?;
    let (offset, mut last) = (attr.size.checked_sub(1)?, [0]);
    // If the file was cut meanwhile, the next notification reports that.
    let read = fs.read_as(ino, offset, &mut last, ReadFlags { unnoted: true, caller_caches: true }).ok()?;
    (read == 1).then_some((offset, last[0]))
}

fn report(message: &[u8], sent: Result<(), Errno>) {
    match sent {
        // Not cached, or the mount is ending: there is nothing to drop.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED | Errno::NOTDIR) => {}
        Err(e) => tracing::warn!(code = code(message), "the kernel refused a notification: {e}"),
    }
}

fn message(code: i32, body: &[u8], name: &[&[u8]]) -> Vec<u8> {
    let len = std::mem::size_of::<OutHeader>() + body.len() + name.iter().map(|n| n.len()).sum::<usize>();
    let head = OutHeader { len: len as u32, error: code, unique: 0 };
    [&[head.as_bytes(), body], name].concat().concat()
}

/// The code of a notification.
fn code(message: &[u8]) -> i32 {
    OutHeader::read_from_prefix(message).map_or(0, |(head, _)| head.error)
}

fn write(device: &Device, message: &[u8]) -> Result<(), Errno> {
    rustix::io::write(device, message).map(drop)
}

/// The guard's side: sends the server's notifications one after another, until the server closes its end.
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

    /// Each such file once started a thread, which may wait in the kernel as long as a request takes.
    #[test]
    fn one_thread_tells_of_all_files_whose_content_moved() {
        let (device, mut kernel) = UnixStream::pair().unwrap();
        // Nobody reads: each writer waits.
        device.set_nonblocking(true).unwrap();
        while (&device).write(&[0; 4096]).is_ok() {}
        device.set_nonblocking(false).unwrap();
        let notifier = Notifier::new(Arc::new(Device::from(std::os::fd::OwnedFd::from(device))), 0);
        (1..=200).for_each(|ino| notifier.content_moved(ino));
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().flatten().map(name);
        let count = || tasks().filter(|name| name.trim() == "fuse-moved").count();
        // A thread gets its name when it runs.
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
