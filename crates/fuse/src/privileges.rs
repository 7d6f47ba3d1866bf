//! For which callers a change clears set-id bits: a SETATTR does not say. The kernel asks for a file's capability
//! before a call that clears the file's privileges, so the thread's requests before it tell:
//!
//! | before a SETATTR of a file | it is of |
//! | before a SETATTR of a file | it comes from |
//! | --- | --- |
//! | no GETXATTR that finds a capability, or one | chown(2), which clears the bits |
//! | two | a write to a file with a capability; the request says whether the bits go |
//! | a SETATTR of the mode, of a file without a name, and no GETXATTR since | the kernel: overlayfs gives its copy the owner of the original |
//!
//! Only the last two are recorded. Where that record is lost, the bits are cleared.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use conquest_fs::Ino;

use crate::abi::InHeader;

/// The number of inodes recorded; one more drops all records.
const LIMIT: usize = 1024;

/// The last request of a thread, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It set the mode of a file without a name.
    ModeSet,
    /// It found a capability.
    Found,
    FoundAgain,
}

struct Noted {
    thread: u32,
    /// The request that was this step: it may be served again.
    request: u64,
    step: Step,
}

/// The last requests of threads to inodes whose privileges may be about to go.
#[derive(Default)]
pub struct Privileges {
    noted: Mutex<HashMap<Ino, Noted>>,
    /// The number of records, readable without the lock.
    count: AtomicUsize,
}

impl Privileges {
    /// The request asks for the length of its inode's capability.
    pub fn asked(&self, head: &InHeader, found: bool) {
        if !found && self.is_empty() {
            return;
        }
        let mut noted = self.lock();
        let step = match noted.get(&head.nodeid) {
            Some(last) if last.request == head.unique => return,
            Some(last) if last.thread == head.pid && last.step != Step::ModeSet => Step::FoundAgain,
            _ => Step::Found,
        };
        self.note(&mut noted, head, found.then_some(step));
    }

    /// The request sets the mode, and nothing else, of an inode without a name.
    pub fn mode_set(&self, head: &InHeader) {
        self.note(&mut self.lock(), head, Some(Step::ModeSet));
    }

    /// The request gives its inode a capability, or reads it after the kernel asked for its length.
    pub fn forget(&self, head: &InHeader) {
        if !self.is_empty() {
            self.note(&mut self.lock(), head, None);
        }
    }

    /// Does this change of the owner come from the kernel itself?
    pub fn is_kernels(&self, head: &InHeader) -> bool {
        self.came_after(head, Step::ModeSet)
    }

    /// Does this request clear the privileges before a write?
    pub fn is_before_write(&self, head: &InHeader) -> bool {
        self.came_after(head, Step::FoundAgain)
    }

    fn came_after(&self, head: &InHeader, step: Step) -> bool {
        let is_last = |last: &Noted| last.thread == head.pid && last.step == step;
        !self.is_empty() && self.lock().get(&head.nodeid).is_some_and(is_last)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Noted>> {
        self.noted.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn note(&self, noted: &mut HashMap<Ino, Noted>, head: &InHeader, step: Option<Step>) {
        if noted.len() >= LIMIT && !noted.contains_key(&head.nodeid) {
            noted.clear();
        }
        match step {
            Some(step) => _ = noted.insert(head.nodeid, Noted { thread: head.pid, request: head.unique, step }),
            None => _ = noted.remove(&head.nodeid),
        }
        self.count.store(noted.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(nodeid: u64, pid: u32, unique: u64) -> InHeader {
        InHeader { nodeid, pid, unique, ..Default::default() }
    }

    #[test]
    fn what_a_thread_asked_before_tells_for_whom_it_is() {
        let privileges = Privileges::default();
        let now = request(7, 1, 100);
        privileges.mode_set(&request(7, 1, 1));
        assert!(
            privileges.is_kernels(&now)
                && !privileges.is_kernels(&request(7, 2, 100))
                && !privileges.is_kernels(&request(8, 1, 100))
        );
        privileges.asked(&request(7, 1, 2), false);
        assert!(!privileges.is_kernels(&now), "chown(2) asks first");
        privileges.mode_set(&request(7, 1, 3));
        (0..2).for_each(|_| privileges.asked(&request(7, 1, 4), true));
        assert!(!privileges.is_kernels(&now) && !privileges.is_before_write(&now), "one request, served twice");
        privileges.asked(&request(7, 1, 5), true);
        assert!(privileges.is_before_write(&now));
        privileges.forget(&request(7, 1, 6));
        privileges.asked(&request(7, 1, 7), true);
        privileges.asked(&request(7, 2, 8), true);
        assert!(!privileges.is_before_write(&now), "each thread for itself");
    }

    #[test]
    fn forgetting_takes_the_bits() {
        let privileges = Privileges::default();
        (0..=LIMIT as u64).for_each(|ino| privileges.mode_set(&request(ino, 1, ino)));
        assert!(!privileges.is_kernels(&request(0, 1, 9999)) && privileges.is_kernels(&request(LIMIT as u64, 1, 9999)));
    }
}
