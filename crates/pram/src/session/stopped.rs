//! Processes that stand still while others wait for them: by SIGSTOP, Ctrl-Z, a debugger, the freezer of a control group.
//!
//! SIGSTOP cannot be put off. So a thread that has waited some milliseconds looks whether the guest that it waits for is stopped, and
//! lets that go on to the end of its call:
//! 1. It marks what it waits for: the use of a slot at hand, or else the guest.
//! 2. It looks whether the guest still has that. (Else the mark would be for nothing, or, on a guest, for something later.)
//! 3. It sends SIGCONT. (After 1: else the guest could end its operation unmarked and run on.)
//! 4. The guest finds the mark when it gives up what is waited for. At the end of its call, when it has nothing that others wait for, it
//!    [stops itself](is_asked_to_stop).
//!
//! The lock of the memory's file is taken for a moment by those who come and go, who may have no session. The one who waits for it lets the
//! holder go on, and stops it again when that has given it up.
//!
//! Between 3 and 4 a SIGCONT of the guest's user has no effect: the guest stops, and has to be sent another one. Other threads of the
//! guest run meanwhile.
//!
//! | stopped | others |
//! | --- | --- |
//! | a guest, whose user the waiting process may signal | go on as above |
//! | a guest of another user | wait, until a process that may does so: the mount's server does before a commit |
//! | by a debugger, or frozen | wait for the locks that it holds; a [freeze](Session::freeze) lets all others go on meanwhile |
//! | a process that does background work, or a guest that does not [obey] | the same: it looks for no marks |

use std::os::fd::AsFd;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::process::{kill_process, test_kill_process, Pid, Signal};

use super::Session;
use crate::mem::fork;

/// The process that is asked to stop, 0: none. Its children are not asked: neither one of `fork`, whose generation (high half) is another,
/// nor one that shares its memory, whose number is.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Does this process [stop itself](is_asked_to_stop)?
static OBEYS: AtomicBool = AtomicBool::new(false);

/// From now on this process looks at the end of each call whether [it is to stop](is_asked_to_stop). Sessions that it begins after this are let
/// go on; other guests stay stopped: they would run on.
pub fn obey() {
    OBEYS.store(true, Ordering::Relaxed);
}

/// Is this process to stop itself now? Answers once. For a thread at the end of a call, when it holds nothing of a pool.
#[inline(always)]
pub fn is_asked_to_stop() -> bool {
    ASKED.load(Ordering::Relaxed) != 0 && take_request()
}

#[cold]
#[inline(never)]
fn take_request() -> bool {
    let (asked, me) = (ASKED.load(Ordering::Relaxed), this_process());
    let is_of_parent = asked >> 32 == me >> 32 && asked != me;
    !is_of_parent && ASKED.compare_exchange(asked, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() && asked == me
}

fn ask() {
    ASKED.store(this_process(), Ordering::Relaxed);
}

fn this_process() -> u64 {
    fork::generation() << 32 | u64::from(std::process::id())
}

impl Session {
    /// Step 4, of a slot whose mark was found.
    #[cold]
    #[inline(never)]
    pub(super) fn heed_slot(&self, slot: u32) {
        if self.is_guest() && self.rt.does_mark_count(slot) {
            ask();
        }
    }

    /// Step 4, of a guest that gives up something else.
    #[inline]
    pub(super) fn heed(&self) {
        if self.is_guest() && self.rt.take_mark() {
            ask();
        }
    }

    /// Has the operation in this slot end, if its process is stopped.
    #[cold]
    #[inline(never)]
    pub(super) fn urge_slot(&self, slot: u32) {
        let (used, Some(n)) = self.rt.slot_state(slot) else { return };
        let Some(pid) = self.stopped_guest(n) else { return };
        // 1.
        if !self.rt.mark_slot(slot, used) {
            return;
        }
        // 2, 3.
        fence(Ordering::SeqCst);
        if self.rt.slot_state(slot).0 != used || !self.is_alive(n) || kill_process(pid, Signal::CONT).is_err() {
            self.rt.unmark_slot(slot, used);
        }
    }

    /// The same of all operations.
    pub(super) fn urge_all(&self) {
        (0..self.rt.slots()).for_each(|slot| self.urge_slot(slot));
    }

    /// Has session `n` give up what it has, if its process is stopped.
    #[cold]
    #[inline(never)]
    pub(super) fn urge_session(&self, n: u32, has_it: impl Fn() -> bool) {
        let Some(pid) = self.stopped_guest(n) else { return };
        // 1.
        if !self.rt.mark_guest(n) {
            return;
        }
        // 2, 3.
        fence(Ordering::SeqCst);
        if !has_it() || !self.is_alive(n) || kill_process(pid, Signal::CONT).is_err() {
            self.rt.unmark_guest(n);
        }
    }

    /// The process of guest `n`, if it is stopped by a signal and may be sent one.
    fn stopped_guest(&self, n: u32) -> Option<Pid> {
        self.shared.as_ref().filter(|_| n != self.rt.me())?;
        let (pid, namespace) = self.rt.guest_process(n)?;
        // The number may be another process's here.
        let pid = Pid::from_raw(pid as i32).filter(|_| namespace != 0 && namespace == pid_namespace())?;
        (state_of(pid) == Some(b'T') && test_kill_process(pid).is_ok()).then_some(pid)
    }

    /// Might the operation in this slot go on by itself? Not if no thread of its process runs.
    pub(super) fn may_go_on(&self, slot: u32) -> bool {
        let (_, Some(n)) = self.rt.slot_state(slot) else { return true };
        let pid = self.rt.sessions().into_iter().find(|session| session.index == n).map(|session| session.pid);
        n == self.rt.me() || pid.is_some_and(runs)
    }
}

/// The namespace by which others find the process of a guest that begins; 0: they do not.
pub(super) fn namespace_of_guest() -> u64 {
    if OBEYS.load(Ordering::Relaxed) {
        pid_namespace()
    } else {
        0
    }
}

/// The namespace that numbers of processes are of; 0: unknown.
fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// The state of a process, as `/proc/PID/stat` tells it: `pid (name) STATE ...`.
fn state_of(pid: Pid) -> Option<u8> {
    state_in(format!("/proc/{}/stat", pid.as_raw_nonzero()))
}

fn state_in(path: String) -> Option<u8> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // The name has at most 16 bytes.
    let mut text = [0; 64];
    let len = rustix::io::read(file, &mut text).ok()?;
    let text = &text[..len];
    let end = text.windows(2).rposition(|two| two == b") ")?;
    text.get(end + 2).copied()
}

/// Does any thread of a process run, or wait for the processor?
fn runs(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| state_in(format!("{}/stat", thread.path().display())) == Some(b'R'))
}

/// A process that goes on for a moment; stopped again when this is dropped.
pub(super) struct GoesOn(Pid);

impl Drop for GoesOn {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::STOP);
    }
}

impl GoesOn {
    /// The process that has locked `file`, if it is stopped.
    #[cold]
    pub fn with_lock(file: impl AsFd) -> Option<GoesOn> {
        let pid = holder(file).filter(|pid| state_of(*pid) == Some(b'T'))?;
        kill_process(pid, Signal::CONT).is_ok().then_some(GoesOn(pid))
    }

    /// Has it locked `file` still?
    pub fn has_lock(&self, file: impl AsFd) -> bool {
        holder(file) == Some(self.0)
    }
}

/// The process that has locked a file by `flock`.
fn holder(file: impl AsFd) -> Option<Pid> {
    let stat = rustix::fs::fstat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let text = std::fs::read_to_string("/proc/locks").ok()?;
    Pid::from_raw(holder_in(&text, &format!("{major:02x}:{minor:02x}:{}", stat.st_ino))?)
}

/// From lines `NUMBER: FLOCK ADVISORY WRITE PID FILE ...`, and with `->` before the kind those who wait.
fn holder_in(locks: &str, file: &str) -> Option<i32> {
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file)).then(|| fields[4].parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_is_seen_to() {
        // The thread that waits for the tests.
        assert!(matches!(state_of(rustix::process::getpid()), Some(b'S' | b'R')));
        assert!(runs(std::process::id()));
        assert_ne!(pid_namespace(), 0);
    }

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 fe:00:12 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 9 fe:00:12 0 EOF\n";
        assert_eq!(holder_in(locks, "fe:00:12"), Some(8));
        assert_eq!(holder_in(locks, "fe:00:13"), None);
        assert_eq!(holder_in("2: FLOCK", ""), None);
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(holder(&file), None);
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("nobody else has it");
        assert_eq!(holder(&file), Some(rustix::process::getpid()));
    }

    #[test]
    fn a_request_is_answered_once() {
        ask();
        assert!(is_asked_to_stop() && !is_asked_to_stop());
    }
}
