//! Key locks, and how threads wait for each other across processes.

use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::{Runtime, LOCKS};

/// A key lock: sequence counter (low half, odd while held) and owner (high half: slot + 1, waiters bit).
#[derive(Clone, Copy)]
pub struct KeyLock<'a> {
    word: &'a AtomicU64,
    rt: &'a Runtime,
    at: u64,
}

const WAITERS: u32 = 1 << 31;
/// How long a thread that waits without a wake-up sleeps between looks.
const GLANCE: Duration = Duration::from_micros(20);

/// A key lock as a look saw it: its sequence counter, and its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sequence(u64);

impl Sequence {
    #[inline(always)]
    pub fn owner(self) -> Option<u32> {
        ((self.0 >> 32) as u32 & !WAITERS).checked_sub(1)
    }

    /// The counter, which is all there is to a free lock.
    #[inline(always)]
    pub fn count(self) -> u32 {
        self.0 as u32
    }
}

impl<'a> KeyLock<'a> {
    #[inline(always)]
    pub fn look(&self) -> Sequence {
        Sequence(self.word.load(Ordering::Acquire))
    }

    /// After reading: was everything read of the state that `seen` looked at?
    #[inline(always)]
    pub fn unchanged(&self, seen: Sequence) -> bool {
        fence(Ordering::Acquire);
        let now = self.word.load(Ordering::Relaxed);
        now == seen.0
    }

    /// For the holder: was the lock free when it was `seen`, and taken by nobody else since?
    #[inline(always)]
    pub fn follows(&self, seen: Sequence) -> bool {
        self.word.load(Ordering::Relaxed) as u32 == (seen.0 as u32).wrapping_add(1)
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock(&self, slot: u32) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        if seen >> 32 != 0 {
            return false;
        }
        let held = u64::from(slot + 1) << 32 | u64::from((seen as u32).wrapping_add(1));
        let taken = self.word.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // The odd counter is visible before the holder's stores; readers rely on it.
        fence(Ordering::Release);
        taken
    }

    #[inline(always)]
    pub fn unlock(&self) {
        let seq = (self.word.load(Ordering::Relaxed) as u32).wrapping_add(1);
        let old = self.word.swap(u64::from(seq), Ordering::AcqRel);
        if (old >> 32) as u32 & WAITERS != 0 {
            self.wake_waiters();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_waiters(&self) {
        let _ = futex::wake(self.half(), futex::Flags::empty(), u32::MAX >> 1);
    }

    /// The half with the owner, on which waiters sleep.
    fn half(&self) -> &'a AtomicU32 {
        self.rt.half(self.at + 4)
    }

    /// Sleeps until the lock changes hands, ten milliseconds at most.
    pub fn wait(&self) {
        let owner = self.half().load(Ordering::Relaxed);
        if owner == 0 {
            return;
        }
        let marked = owner | WAITERS;
        if owner != marked && self.half().compare_exchange(owner, marked, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return;
        }
        let _ = wait(self.half(), marked, 10_000_000);
    }
}

/// Sleeps while `word` is `value`, at most `nanos`; true if it slept so long.
pub fn wait(word: &AtomicU32, value: u32, nanos: i64) -> bool {
    let timeout = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) == Err(Errno::TIMEDOUT)
}

/// Gives way to a thread that sends no wake-up: at first awake, then asleep, since a thread of high priority that
/// yields does not let one of lower priority run.
pub fn pause(round: u32) {
    match round {
        0..16 => std::thread::yield_now(),
        _ => std::thread::sleep(GLANCE),
    }
}

pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

impl Runtime {
    #[inline(always)]
    pub fn lock_number(key: u64) -> u32 {
        (key % LOCKS) as u32
    }

    #[inline(always)]
    pub fn lock(&self, number: u32) -> KeyLock<'_> {
        let at = self.at.locks + u64::from(number) % LOCKS * 8;
        KeyLock { word: self.word(at), rt: self, at }
    }
}
