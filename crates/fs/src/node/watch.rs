//! Telling the process that caches, the mount: its kernel keeps names, attributes and pages.

use std::sync::atomic::Ordering;

use pram::events::{Event, Seen};

use super::{Change, Fs};
use crate::attr::Ino;
use crate::error::Result;

/// Kinds of events; those of inodes are the numbers of [`Part`].
const ENTRY: u64 = 1;
const ATTRIBUTES: u64 = Part::Attributes as u64;
const CONTENT: u64 = Part::Content as u64;
const GROWTH: u64 = Part::Growth as u64;
/// Anything: a repair has changed it.
const REPAIR: u64 = 5;

/// A repair notifies of so many removed names one by one: each waits for the watcher.
const REMOVED_NOTIFIED: usize = 1024;

/// The parts of an inode that have changed.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Attributes = 2,
    /// And attributes.
    Content = 3,
    /// Content, and the file may be longer than it was.
    Growth = 4,
}

impl Part {
    pub fn is_content(self) -> bool {
        !matches!(self, Part::Attributes)
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

impl Fs {
    /// The binding of `name` in `parent` has changed. Call it without locks.
    pub(super) fn tell_entry(&self, parent: Ino, name: &[u8]) {
        if self.session().is_cached(parent) {
            self.tell(Event { kind: ENTRY, key: parent, payload: name.to_vec() });
            self.tell(Event { kind: ATTRIBUTES, key: parent, payload: Vec::new() });
        }
    }

    /// An inode has changed. Call it without locks.
    pub(super) fn tell_inode(&self, ino: Ino, part: Part) {
        if self.session().is_cached(ino) {
            self.tell(Event { kind: part as u64, key: ino, payload: Vec::new() });
        }
    }

    /// A repair has changed anything; these names are gone or lead elsewhere. Call it without locks.
    pub(crate) fn tell_repaired(&self, gone: &[(Ino, Vec<u8>)]) {
        if !self.session().is_watched() {
            return;
        }
        gone.iter().take(REMOVED_NOTIFIED).for_each(|(parent, name)| self.tell_entry(*parent, name));
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
                    ENTRY => f(Change::Entry { parent: e.key, name: e.payload }),
                    ATTRIBUTES => f(Change::Inode { ino: e.key, attr_only: true, grown: false }),
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
