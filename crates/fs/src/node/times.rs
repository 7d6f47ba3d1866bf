//! The times of changes. They are those of the kernel's tick, as its file systems have them, and exact ones if a process has looked
//! at the inode since the tick began: so it finds out that the inode was changed again (as Linux does since 6.13).
//!
//! 1. A process that returns an inode's times notes the latest in the runtime file and reads the inode again: a change that did not
//!    know of it learns of it then.
//! 2. A change of it within the tick finds that there, holding its lock, and takes the exact time.
//! 3. From then on no change has an earlier time, of any inode: a later change is never older.

use super::{now, Fs, Node};
use crate::attr::{Ino, Time};

/// Exact times are ahead of the tick by so many nanoseconds at most; where they are by more the clock was set back.
const AHEAD: u64 = 1_000_000_000;

impl Fs {
    /// The time of a change of `nodes` as they were so far, whose locks the caller holds.
    #[inline(always)]
    pub(super) fn stamp<'a>(&self, nodes: impl IntoIterator<Item = &'a Node>) -> Time {
        let (tick, rt) = (self.tick(), self.session().runtime());
        let looked = |node: &Node| node.raw.ctime >= tick.0 && rt.was_looked_at(node.ino, bits(node.raw.ctime));
        match nodes.into_iter().any(looked) {
            true => self.exact_time(),
            false => tick,
        }
    }

    /// The time of a change of inodes that no process can have looked at.
    #[inline(always)]
    pub(super) fn tick(&self) -> Time {
        let (clock, latest) = (now(), self.session().runtime().latest());
        match latest.checked_sub(bits(clock.0)) {
            Some(1..=AHEAD) => Time(latest as i64),
            _ => clock,
        }
    }

    #[cold]
    fn exact_time(&self) -> Time {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let exact = Time::new(t.tv_sec, t.tv_nsec as u32);
        Time(self.session().runtime().give_out(bits(exact.0), AHEAD) as i64)
    }

    /// Notes a look at the times of an inode that was last changed at `ctime`; true if they must be read again.
    #[inline(always)]
    pub(super) fn note_look(&self, ino: Ino, ctime: i64) -> bool {
        self.session().runtime().note_look(ino, bits(ctime))
    }
}

/// As the runtime file has it; nothing is changed before 1970.
fn bits(time: i64) -> u64 {
    time.max(0) as u64
}
