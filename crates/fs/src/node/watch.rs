//! Telling the process that caches, the mount: its kernel keeps names, attributes and pages.

use std::sync::atomic::Ordering;

pub use pram::delegation::Recall;
use pram::events::{Event, Seen};

use super::{Change, Fs};
use crate::attr::Ino;
use crate::error::Result;

/// Kinds of events; those of inodes are the numbers of [`Part`].
const ENTRY: u64 = 1;
const ATTRIBUTES: u64 = Part::Attributes as u64;
const CONTENT: u64 = Part::Content as u64;
const GROWTH: u64 = Part::Growth as u64;
const EXTENDED: u64 = Part::Extended as u64;
/// Anything: a repair has changed it.
const REPAIR: u64 = 5;
/// Names were added to a directory or removed.
const DIRECTORY: u64 = 6;

/// A repair notifies of so many removed names one by one: each waits for the watcher.
const REMOVED_NOTIFIED: usize = 1024;

/// The parts of an inode that have changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Attributes = 2,
    /// And attributes.
    Content = 3,
    /// Content, and the file may be longer than it was.
    Growth = 4,
    /// Attributes and extended attributes, ACLs among them.
    Extended = 7,
}

impl Part {
    pub fn is_content(self) -> bool {
        matches!(self, Part::Content | Part::Growth)
    }

    /// Does a recall of the inode cover it? A kernel uses the size that it knows without asking, and caches ACLs for good.
    fn is_recalled(self) -> bool {
        matches!(self, Part::Attributes | Part::Content)
    }

    /// Of content that now ends at `end` or further, and ended at `size` before.
    #[inline(always)]
    pub fn of_content(size: u64, end: u64) -> Part {
        if end > size {
            Part::Growth
        } else {
            Part::Content
        }
    }
}

/// The key by which changes of a name are announced.
pub(super) fn name_key(parent: Ino, name: &[u8]) -> u64 {
    let hash = |key: u64, byte: &u8| (key ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let key = name.iter().fold(parent ^ 0xcbf2_9ce4_8422_2325, hash);
    key ^ key >> 32
}

fn entry_event(parent: Ino, name: &[u8], old: Option<Ino>) -> Event {
    Event { kind: ENTRY, key: parent, payload: [&old.unwrap_or(0).to_le_bytes(), name].concat() }
}

fn entry_of(event: &Event) -> Change {
    match event.payload.split_first_chunk() {
        Some((old, name)) => {
            let old = Some(u64::from_le_bytes(*old)).filter(|old| *old != 0);
            Change::Entry { parent: event.key, name: name.into(), old }
        }
        None => Change::All,
    }
}

impl Fs {
    /// The binding of `name` in `parent` has changed; before, it led to `old`. `own` are the changes that this thread has
    /// announced. True if the notification covers the attributes of `old`. Call it without locks.
    ///
    /// The watcher caches a name only with a reference to its inode, and that a name does not exist as a part of the directory.
    /// While the change before is being notified, the watcher may still cache the inode before `old`.
    pub(super) fn tell_entry(&self, parent: Ino, name: &[u8], old: Option<Ino>, own: &[u64]) -> bool {
        let session = self.session();
        if !session.is_cached(parent) {
            return false;
        }
        let old = old.filter(|old| session.is_cached(*old));
        if old.is_some() || session.is_changed_beside(name_key(parent, name), own) {
            self.tell(entry_event(parent, name, old));
        } else if session.is_kept(parent) {
            self.tell(Event { kind: DIRECTORY, key: parent, payload: Vec::new() });
        }
        old.is_some()
    }

    /// An inode has changed. Call it without locks.
    pub(super) fn tell_inode(&self, ino: Ino, part: Part) {
        let session = self.session();
        let is_kept = if part.is_recalled() { session.is_kept(ino) } else { session.is_cached(ino) };
        if is_kept {
            self.tell(Event { kind: part as u64, key: ino, payload: Vec::new() });
        }
    }

    /// The content of a file is about to change. What programs have stored to mapped pages of it the watcher writes back now: after the
    /// change it would write whole pages over it. Call it without locks.
    #[inline(always)]
    pub(super) fn recall_content(&self, ino: Ino) {
        if self.session().is_watched() && self.session().is_kept(ino) {
            self.tell(Event { kind: CONTENT, key: ino, payload: Vec::new() });
        }
    }

    /// A repair has changed anything; these names are gone or lead elsewhere. Call it without locks.
    pub(crate) fn tell_repaired(&self, gone: &[(Ino, Vec<u8>)]) {
        if !self.session().is_watched() {
            return;
        }
        let kept = gone.iter().take(REMOVED_NOTIFIED).filter(|(parent, _)| self.session().is_cached(*parent));
        kept.for_each(|(parent, name)| self.tell(entry_event(*parent, name, None)));
        self.tell(Event { kind: REPAIR, key: 0, payload: Vec::new() });
    }

    /// Whether another process changes this inode's content, or another's, and has not notified the watcher: a look at
    /// it meanwhile may be newer than the watcher's knowledge.
    pub fn is_changing(&self, ino: Ino) -> bool {
        self.session().is_changing(ino)
    }

    #[cold]
    fn tell(&self, event: Event) {
        if let Err(e) = self.session().publish(&event) {
            tracing::error!("telling the mount of a change: {e}");
        }
    }

    /// Declares that this process caches its lookups from now on: others wait until [`watch`](Self::watch), which must
    /// follow, has notified of their changes. Only one process of a pool at a time may do that.
    pub fn begin_watching(&self) -> Result<()> {
        Ok(self.session().start_watching()?)
    }

    /// Declares that this process caches its lookups, and receives the changes of others. Calls `f`
    /// for each change of an inode to which this process holds references, or of an entry of such a directory,
    /// before the call that made the change returns to its caller. Returns after [`Fs::stop_watching`];
    /// meant for a thread of its own.
    pub fn watch(&self, f: &mut dyn FnMut(Change)) -> Result<()> {
        self.begin_watching()?;
        let mut acted = 0;
        while !self.stop_watching.load(Ordering::Acquire) {
            let seen = self.session().next_event(acted)?;
            acted = seen.events();
            match seen {
                Seen::Idle => {}
                Seen::Lost(_) => f(Change::All),
                Seen::Event(e) => match e.kind {
                    ENTRY => f(entry_of(&e)),
                    DIRECTORY => f(Change::Directory(e.key)),
                    ATTRIBUTES | EXTENDED => f(Change::Inode { ino: e.key, attr_only: true, grown: false }),
                    CONTENT => f(Change::Inode { ino: e.key, attr_only: false, grown: false }),
                    GROWTH => f(Change::Inode { ino: e.key, attr_only: false, grown: true }),
                    // A repair, or something that this version does not know.
                    _ => f(Change::All),
                },
            }
        }
        self.session().stop_watching();
        Ok(())
    }

    /// Ends [`Fs::watch`]. From now on no call waits for it, and another process may watch.
    pub fn stop_watching(&self) {
        self.stop_watching.store(true, Ordering::Release);
        self.session().stop_watching();
    }
}
