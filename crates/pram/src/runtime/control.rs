//! Words in the header of the runtime file, on which attached processes agree, about the backing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use super::Runtime;
pub use crate::clock::{monotonic, precise as now};
use crate::error::{Error, Result};

// Where the words are in the header.
const H_COMMITTER: u64 = 192;
const H_CHECKPOINTER: u64 = 200;
const H_BEGUN: u64 = 208;
const H_DONE: u64 = 216;
const H_WAKEUP: u64 = 224;
const H_FAILED: u64 = 232;
const H_CHECKPOINTED: u64 = 240;
const H_BACKING_TIME: u64 = 248;
const H_WANTED: u64 = 256;
const H_CROWD: u64 = 264;
const H_FLUSH: u64 = 272;
const H_LOGGED: u64 = 280;
const H_PAID: u64 = 288;
const H_HASTEN: u64 = 296;
const H_SINCE: u64 = 304;
const H_TRACKED: u64 = 320;
const H_STANDSTILL: u64 = 328;
const H_DURABLE: u64 = 336;
const H_USES: u64 = 344;
/// How often the backing was made anew.
const H_ANEW: u64 = 352;
/// Guests wait for this commit; and the word changes when one has come to.
const H_ASKED: u64 = 360;
const H_ASKED_WAKEUP: u64 = 368;
/// Why it failed: text, padded with zeros.
const H_WHY: u64 = 1024;
const WHY: usize = 512;
/// Where the words end.
pub(super) const END: u64 = H_WHY + WHY as u64;

/// The words about the backing on which attached processes agree.
#[derive(Clone, Copy)]
pub struct ControlBlock<'a> {
    /// The session that commits, and the one that checkpoints, + 1.
    pub committer: &'a AtomicU64,
    pub checkpointer: &'a AtomicU64,
    /// Commits begun and done.
    pub begun: &'a AtomicU64,
    pub done: &'a AtomicU64,
    /// Changes when a commit is done or has failed.
    pub wakeup: &'a AtomicU32,
    /// Not 0: nothing more can be made durable.
    pub failed: &'a AtomicU64,
    /// The commit that the image is of.
    pub checkpointed: &'a AtomicU64,
    /// The instant of the last commit, nanoseconds since the epoch.
    pub time: &'a AtomicU64,
    /// The same, nanoseconds of the monotonic clock, which nobody can set.
    pub since: &'a AtomicU64,
    /// Tickets since the last commit began; and how many were out when it was done, served ones included.
    pub wanted: &'a AtomicU64,
    pub crowd: &'a AtomicU64,
    /// The time that a commit takes, nanoseconds, a moving average.
    pub takes: &'a AtomicU64,
    /// Bytes that commits have written to the logs.
    pub logged: &'a AtomicU64,
    /// Until when the bytes written at a rate are paid for, see the crate `backing`.
    pub paid: &'a AtomicU64,
    /// Somebody waits for the image to hold this commit.
    pub hasten: &'a AtomicU64,
    /// The commit that those wait for who lead none.
    pub asked: &'a AtomicU64,
    /// Changes when one more does.
    pub asked_wakeup: &'a AtomicU32,
}

/// The word `failed` while the disk of the backing is full. (1: the backing has failed; 2: the reason is being written
/// down.)
const FULL: u64 = 3;
/// The word while a part of the backing is damaged: the next commit makes it anew from memory. (5: the reason is being
/// written down.)
const DAMAGED: u64 = 4;
const NOTING: u64 = 5;

impl ControlBlock<'_> {
    /// May a commit be tried? Also where the disk was full, or the backing is to be made anew.
    pub fn is_usable(&self) -> bool {
        [0, FULL, DAMAGED, NOTING].contains(&self.failed.load(Ordering::SeqCst))
    }

    /// Is the backing to be made anew?
    pub fn is_damaged(&self) -> bool {
        [DAMAGED, NOTING].contains(&self.failed.load(Ordering::SeqCst))
    }

    /// Notes that the last commit is of the instant `time`, nanoseconds since the epoch, at most `most` ago.
    pub fn note_time(&self, time: i64, most: u64) {
        let ago = u64::try_from(now().saturating_sub(time)).unwrap_or(most).min(most);
        self.since.store(monotonic().saturating_sub(ago), Ordering::SeqCst);
        self.time.store(time as u64, Ordering::SeqCst);
    }

    /// Is the last commit's instant at least `nanos` ago? By the monotonic clock: if the other one was set back, or
    /// begins in 1970 with each boot, no commit would come until it has caught up.
    pub fn is_due(&self, nanos: u64) -> bool {
        let (now, since) = (monotonic(), self.since.load(Ordering::SeqCst));
        // A later instant comes from another clock.
        since > now || now - since >= nanos
    }
}

/// Reports to every process why a commit has failed.
pub fn note_failure(rt: &Runtime, e: &Error) {
    match e {
        Error::DiskFull(_) => rt.fill_backing(&e.to_string()),
        e => rt.fail_backing(&e.to_string()),
    }
}

/// Fails where nothing more can be made durable.
pub fn refuse_failed(words: &ControlBlock) -> Result<()> {
    match words.is_usable() {
        true => Ok(()),
        false => Err(Error::Host {
            what: "what the pool's memory holds could not be written to disk".into(),
            errno: Errno::IO,
        }),
    }
}

impl Runtime {
    pub fn backing(&self) -> ControlBlock<'_> {
        ControlBlock {
            committer: self.header(H_COMMITTER),
            checkpointer: self.header(H_CHECKPOINTER),
            begun: self.header(H_BEGUN),
            done: self.header(H_DONE),
            wakeup: self.half(H_WAKEUP),
            failed: self.header(H_FAILED),
            checkpointed: self.header(H_CHECKPOINTED),
            time: self.header(H_BACKING_TIME),
            since: self.header(H_SINCE),
            wanted: self.header(H_WANTED),
            crowd: self.header(H_CROWD),
            takes: self.header(H_FLUSH),
            logged: self.header(H_LOGGED),
            paid: self.header(H_PAID),
            hasten: self.header(H_HASTEN),
            asked: self.header(H_ASKED),
            asked_wakeup: self.half(H_ASKED_WAKEUP),
        }
    }

    /// Notes that nothing more can be made durable; every process reports `why`.
    pub fn fail_backing(&self, why: &str) {
        if self.pass_backing(&[0, FULL, DAMAGED, NOTING], 2) {
            self.note_why(why);
            self.header(H_FAILED).store(1, Ordering::SeqCst);
            tracing::error!("{why}; nothing more goes to the backing");
        }
    }

    /// Notes that a part of the backing is damaged while memory is whole: the next commit makes the backing anew.
    pub fn damage_backing(&self, why: &str) {
        if self.pass_backing(&[0, FULL], NOTING) {
            self.note_why(why);
            // A failure meanwhile stays.
            let _ = self.header(H_FAILED).compare_exchange(NOTING, DAMAGED, Ordering::SeqCst, Ordering::SeqCst);
            tracing::error!("{why}; the pool's backing is made anew from memory");
        }
    }

    /// Notes that the backing was made anew.
    pub fn note_anew(&self) {
        self.header(H_ANEW).fetch_add(1, Ordering::SeqCst);
        if self.pass_backing(&[DAMAGED, NOTING], 0) {
            tracing::warn!("the pool's backing was made anew and is whole");
        }
    }

    /// How often the backing was made anew since the runtime file was made, and the reason of the last time, or of the
    /// next.
    pub fn backing_anew(&self) -> (u64, Option<String>) {
        let times = self.header(H_ANEW).load(Ordering::SeqCst);
        (times, (times > 0 || self.backing_damaged()).then(|| self.why()))
    }

    /// Is a part of the backing damaged, so that it is being made anew?
    pub fn backing_damaged(&self) -> bool {
        self.backing().is_damaged()
    }

    fn pass_backing(&self, from: &[u64], to: u64) -> bool {
        let word = self.header(H_FAILED);
        from.iter().any(|from| word.compare_exchange(*from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }

    fn note_why(&self, why: &str) {
        let mut text = [0u8; WHY];
        let len = why.len().min(WHY);
        text[..len].copy_from_slice(&why.as_bytes()[..len]);
        self.map().write(H_WHY, &text).expect("in bounds");
    }

    fn why(&self) -> String {
        let mut text = vec![0u8; WHY];
        self.map().copy_out(H_WHY, &mut text).expect("in bounds");
        text.truncate(text.iter().position(|b| *b == 0).unwrap_or(WHY));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Notes that a commit found the disk of the backing full: changes fail until a commit finds room.
    pub fn fill_backing(&self, why: &str) {
        if self.header(H_FAILED).compare_exchange(0, FULL, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            tracing::error!("{why}; nothing can be changed until there is room there, then it goes on by itself");
        }
    }

    /// Notes that a commit has found room.
    pub fn unfill_backing(&self) {
        if self.backing_full()
            && self.header(H_FAILED).compare_exchange(FULL, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            tracing::warn!("the disk of the pool's backing has room again; the pool goes on");
        }
    }

    /// Is the disk of the backing full? Then changes fail, until there is room.
    pub fn backing_full(&self) -> bool {
        self.header(H_FAILED).load(Ordering::Relaxed) == FULL
    }

    /// Do all processes mark their stores?
    pub fn is_tracked(&self) -> bool {
        self.header(H_TRACKED).load(Ordering::SeqCst) != 0
    }

    pub fn set_tracked(&self, tracked: bool) {
        self.header(H_TRACKED).store(u64::from(tracked), Ordering::SeqCst);
    }

    /// Has the backing failed, or is its disk full, so that nothing more can be made durable?
    #[inline(always)]
    pub fn backing_failed(&self) -> bool {
        [1, 2, FULL].contains(&self.header(H_FAILED).load(Ordering::Relaxed))
    }

    /// Why nothing more can be made durable.
    pub fn backing_failure(&self) -> Option<String> {
        (self.header(H_FAILED).load(Ordering::SeqCst) == 1).then(|| self.why())
    }

    /// The instant of the last commit, nanoseconds since the epoch.
    pub fn backing_time(&self) -> i64 {
        self.backing().time.load(Ordering::Relaxed) as i64
    }

    /// Commits done, and the bytes that they wrote to the logs, since the runtime file was made.
    pub fn backing_commits(&self) -> (u64, u64) {
        let words = self.backing();
        (words.done.load(Ordering::Relaxed), words.logged.load(Ordering::Relaxed))
    }

    /// Epochs before this one are durable.
    pub fn durable(&self) -> u64 {
        self.header(H_DURABLE).load(Ordering::SeqCst)
    }

    pub fn note_durable(&self, before: u64) {
        self.header(H_DURABLE).fetch_max(before, Ordering::SeqCst);
    }

    /// How often slots had been used when the epoch was last moved on without a backing.
    pub fn uses_at_move(&self) -> &AtomicU64 {
        self.header(H_USES)
    }

    /// Notes that all operations stood still for `time`.
    pub fn note_standstill(&self, time: Duration) {
        self.header(H_STANDSTILL).fetch_max(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The longest time that all operations stood still since the runtime file was made: for a commit, a save or a repair.
    pub fn longest_standstill(&self) -> Duration {
        Duration::from_nanos(self.header(H_STANDSTILL).load(Ordering::Relaxed))
    }

    /// Takes back the roles of session `n`, which died or leaves.
    pub fn abandon_backing(&self, n: u32) {
        let words = self.backing();
        for role in [words.committer, words.checkpointer, self.supplier(), self.saver(), self.maintainer()] {
            let _ = role.compare_exchange(u64::from(n + 1), 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}
