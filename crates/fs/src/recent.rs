//! The directory that a thread's last path led to. Programs work in a directory for a while, and finding it is a good
//! part of the cost of finding a file in it.
//!
//! A path up to its last name leads through directories that have a lock each. It leads to the same directory as long as
//! none of these locks has been taken since: a change of names, permissions or ACLs of a directory is made under
//! its lock, in any process, as every reader without locks relies on. So a change needs no notification.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use pram::{Sequence, Session};

use crate::attr::{Caller, Ino};
use crate::bytes;
use crate::inode::At;

/// Longest path up to a last name, and most directories on it, that are remembered.
const LONGEST: usize = 128;
const DEEPEST: usize = 8;
/// Most supplementary groups of a caller for whom one is remembered.
const GROUPS: usize = 8;

/// Tells the pools apart that this process has open, or had.
#[derive(Debug)]
pub struct Serial(u64);

impl Default for Serial {
    fn default() -> Serial {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Serial(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The directories that a walk has come through, each as it was before its name was looked up in it.
#[derive(Clone, Copy)]
pub struct Trail {
    steps: [Option<(Ino, Sequence)>; DEEPEST],
    len: usize,
}

impl Trail {
    pub const NEW: Trail = Trail { steps: [None; DEEPEST], len: 0 };

    /// The next step leads on from `dir`; to be called before it is taken.
    #[inline(always)]
    pub fn leave(&mut self, session: &Session, dir: Ino) {
        if let Some(step) = self.steps.get_mut(self.len) {
            *step = session.seen(dir).map(|seen| (dir, seen));
        }
        self.len += 1;
    }

    /// Does it lead where it led?
    #[inline(always)]
    fn holds(&self, session: &Session) -> bool {
        let mut steps = self.steps.iter().take(self.len);
        self.len <= DEEPEST && steps.all(|step| step.is_some_and(|(dir, seen)| session.seen(dir) == Some(seen)))
    }
}

struct Recent {
    /// Of which pool; 0: nothing is remembered.
    serial: u64,
    /// Where the path begins.
    start: Ino,
    path: [u8; LONGEST],
    len: usize,
    uid: u32,
    gid: u32,
    checked: bool,
    groups: [u32; GROUPS],
    group_count: usize,
    trail: Trail,
    at: At,
}

impl Recent {
    const NONE: Recent = Recent {
        serial: 0,
        start: 0,
        path: [0; LONGEST],
        len: 0,
        uid: 0,
        gid: 0,
        checked: false,
        groups: [0; GROUPS],
        group_count: 0,
        trail: Trail::NEW,
        at: At { ino: 0, generation: None },
    };

    /// Permissions on the way were looked at for the caller.
    #[inline(always)]
    fn is_for(&self, caller: &Caller) -> bool {
        (self.uid, self.gid, self.checked) == (caller.uid, caller.gid, caller.checked)
            && self.groups.get(..self.group_count) == Some(caller.groups)
    }
}

thread_local! {
    static RECENT: RefCell<Recent> = const { RefCell::new(Recent::NONE) };
}

/// The directory of the last name of `path`, which begins at `start`, and that name, if the directory is the one that was found
/// last.
#[inline(always)]
pub fn find<'p>(
    session: &Session,
    serial: &Serial,
    caller: &Caller,
    start: Ino,
    path: &'p [u8],
) -> Option<(At, &'p [u8])> {
    RECENT.with_borrow(|recent| {
        if recent.serial != serial.0 || recent.start != start {
            return None;
        }
        let name = path.strip_prefix(recent.path.get(..recent.len)?)?;
        let here =
            !name.is_empty() && !bytes::contains(name, b'/') && recent.is_for(caller) && recent.trail.holds(session);
        here.then_some((recent.at, name))
    })
}

/// Remembers that `path`, which begins at `start` and ends with a slash, led `caller` to `at`.
pub fn note(serial: &Serial, caller: &Caller, start: Ino, path: &[u8], trail: &Trail, at: At) {
    if path.len() > LONGEST || caller.groups.len() > GROUPS || trail.len > DEEPEST {
        return;
    }
    RECENT.with_borrow_mut(|recent| {
        recent.path[..path.len()].copy_from_slice(path);
        recent.groups[..caller.groups.len()].copy_from_slice(caller.groups);
        (recent.len, recent.group_count) = (path.len(), caller.groups.len());
        (recent.uid, recent.gid, recent.checked) = (caller.uid, caller.gid, caller.checked);
        (recent.trail, recent.at, recent.serial, recent.start) = (*trail, at, serial.0, start);
    })
}
